"""Written by scripts/make_stubs.py from the flags of the programs."""

from os import PathLike
from typing import Any, Literal

from ringbert.job import CommandJob
from tasks.programs import CLASSIFIER, EMBEDDER, PRETRAINING, SQUAD, TAGGER

class Squad(CommandJob, of=SQUAD):
    output_dir: str
    model: str | None
    model_revision: str | None
    init_checkpoint: str | None
    bert_config_file: str | None
    model_size: Literal['tiny', 'minilm', 'base', 'large', 'ettin-17m', 'ettin-32m', 'ettin-68m', 'modernbert-base', 'modernbert-large'] | None
    vocab_file: str | None
    spm_model_file: str | None
    do_lower_case: bool | None
    train_batch_size: int | None
    global_batch_size: int | None
    gradient_accumulation_steps: int
    learning_rate: float
    lr_scaling: Literal['linear', 'sqrt', 'none']
    num_train_epochs: float | None
    num_train_steps: int | None
    warmup_proportion: float
    num_warmup_steps: int | None
    decay_proportion: float
    num_decay_steps: int | None
    lr_scheduler_type: Literal['linear', 'linear_from_peak', 'cosine', 'constant', 'inverse_sqrt', 'polynomial', 'wsd']
    min_lr_ratio: float
    lr_power: float
    lr_decay_type: Literal['1-sqrt', 'linear', 'cosine']
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    adam_bias_correction: bool
    max_grad_norm: float
    layer_lr_decay: float
    head_learning_rate: float | None
    freeze: int | Literal['embeddings', 'encoder'] | None
    reinit_layers: int
    hidden_dropout_prob: float | None
    attention_probs_dropout_prob: float | None
    optimizer: Literal['adamw', 'lamb']
    packing: Literal['auto', 'off']
    recompute: bool
    attention: Literal['own', 'cudnn']
    compression: Literal['none', 'bf16']
    seed: int
    save_checkpoints_steps: int
    save_checkpoints_minutes: float
    keep_checkpoints: int
    check_steps: int
    log_steps: int | None
    timeline: str | None
    profile_steps: str | None
    xla: Literal['auto', 'on', 'off']
    step: Literal['auto', 'whole']
    resume: str
    report_to: str | list
    device: Literal['auto', 'gpu', 'cpu']
    share_gpus: bool
    deterministic: bool
    backend: Literal['auto', 'nccl', 'ring', 'mpi', 'local']
    precision: Literal['fp32', 'bf16', 'fp16']
    tf32: bool
    stall_warning: float
    stall_timeout: float
    do_train: bool
    eval_steps: int | Literal['auto'] | None
    load_best_model_at_end: bool
    early_stopping_patience: int | None
    seeds: str | list | None
    do_predict: bool
    predict_batch_size: int
    allow_unknown: bool
    max_train_examples: int | None
    max_predict_examples: int | None
    dataset_name: str | None
    dataset_revision: str | None
    train_file: Any
    predict_file: Any
    version_2_with_negative: bool
    max_seq_length: int
    doc_stride: int
    max_query_length: int
    n_best_size: int
    max_answer_length: int
    null_score_diff_threshold: float
    label_smoothing_factor: float
    metric: Literal['auto', 'squad_v1', 'squad_v2', 'korquad_v1', 'characters']
    def __init__(
        self,
        *,
        output_dir: str | PathLike[str],
        model: str | PathLike[str] | None = None,
        model_revision: str | None = None,
        init_checkpoint: str | PathLike[str] | None = None,
        bert_config_file: str | PathLike[str] | None = None,
        model_size: Literal['tiny', 'minilm', 'base', 'large', 'ettin-17m', 'ettin-32m', 'ettin-68m', 'modernbert-base', 'modernbert-large'] | None = None,
        vocab_file: str | PathLike[str] | None = None,
        spm_model_file: str | PathLike[str] | None = None,
        do_lower_case: bool | None = None,
        train_batch_size: int | None = None,
        global_batch_size: int | None = None,
        gradient_accumulation_steps: int = 1,
        learning_rate: float = 5e-05,
        lr_scaling: Literal['linear', 'sqrt', 'none'] = 'linear',
        num_train_epochs: float | None = 3.0,
        num_train_steps: int | None = None,
        warmup_proportion: float = 0.1,
        num_warmup_steps: int | None = None,
        decay_proportion: float = 0.1,
        num_decay_steps: int | None = None,
        lr_scheduler_type: Literal['linear', 'linear_from_peak', 'cosine', 'constant', 'inverse_sqrt', 'polynomial', 'wsd'] = 'linear',
        min_lr_ratio: float = 0.0,
        lr_power: float = 2.0,
        lr_decay_type: Literal['1-sqrt', 'linear', 'cosine'] = '1-sqrt',
        weight_decay: float = 0.01,
        adam_beta1: float = 0.9,
        adam_beta2: float = 0.999,
        adam_epsilon: float = 1e-06,
        adam_bias_correction: bool = False,
        max_grad_norm: float = 1.0,
        layer_lr_decay: float = 1.0,
        head_learning_rate: float | None = None,
        freeze: int | Literal['embeddings', 'encoder'] | None = None,
        reinit_layers: int = 0,
        hidden_dropout_prob: float | None = None,
        attention_probs_dropout_prob: float | None = None,
        optimizer: Literal['adamw', 'lamb'] = 'adamw',
        packing: Literal['auto', 'off'] = 'auto',
        recompute: bool = False,
        attention: Literal['own', 'cudnn'] = 'own',
        compression: Literal['none', 'bf16'] = 'none',
        seed: int = 42,
        save_checkpoints_steps: int = 1000,
        save_checkpoints_minutes: float = 10.0,
        keep_checkpoints: int = 5,
        check_steps: int = 0,
        log_steps: int | None = None,
        timeline: str | None = None,
        profile_steps: str | None = None,
        xla: Literal['auto', 'on', 'off'] = 'auto',
        step: Literal['auto', 'whole'] = 'auto',
        resume: str = 'auto',
        report_to: str | list = 'tensorboard',
        device: Literal['auto', 'gpu', 'cpu'] = 'auto',
        share_gpus: bool = False,
        deterministic: bool = False,
        backend: Literal['auto', 'nccl', 'ring', 'mpi', 'local'] = 'auto',
        precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
        tf32: bool = False,
        stall_warning: float = 30.0,
        stall_timeout: float = 600.0,
        do_train: bool = False,
        eval_steps: int | Literal['auto'] | None = None,
        load_best_model_at_end: bool = False,
        early_stopping_patience: int | None = None,
        seeds: str | list | None = None,
        do_predict: bool = False,
        predict_batch_size: int = 8,
        allow_unknown: bool = False,
        max_train_examples: int | None = None,
        max_predict_examples: int | None = None,
        dataset_name: str | None = None,
        dataset_revision: str | None = None,
        train_file: Any = None,
        predict_file: Any = None,
        version_2_with_negative: bool = False,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
        n_best_size: int = 20,
        max_answer_length: int = 30,
        null_score_diff_threshold: float = 0.0,
        label_smoothing_factor: float = 0.0,
        metric: Literal['auto', 'squad_v1', 'squad_v2', 'korquad_v1', 'characters'] = 'auto',
    ) -> None: ...

class Classification(CommandJob, of=CLASSIFIER):
    output_dir: str
    model: str | None
    model_revision: str | None
    init_checkpoint: str | None
    bert_config_file: str | None
    model_size: Literal['tiny', 'minilm', 'base', 'large', 'ettin-17m', 'ettin-32m', 'ettin-68m', 'modernbert-base', 'modernbert-large'] | None
    vocab_file: str | None
    spm_model_file: str | None
    do_lower_case: bool | None
    train_batch_size: int | None
    global_batch_size: int | None
    gradient_accumulation_steps: int
    learning_rate: float
    lr_scaling: Literal['linear', 'sqrt', 'none']
    num_train_epochs: float | None
    num_train_steps: int | None
    warmup_proportion: float
    num_warmup_steps: int | None
    decay_proportion: float
    num_decay_steps: int | None
    lr_scheduler_type: Literal['linear', 'linear_from_peak', 'cosine', 'constant', 'inverse_sqrt', 'polynomial', 'wsd']
    min_lr_ratio: float
    lr_power: float
    lr_decay_type: Literal['1-sqrt', 'linear', 'cosine']
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    adam_bias_correction: bool
    max_grad_norm: float
    layer_lr_decay: float
    head_learning_rate: float | None
    freeze: int | Literal['embeddings', 'encoder'] | None
    reinit_layers: int
    hidden_dropout_prob: float | None
    attention_probs_dropout_prob: float | None
    optimizer: Literal['adamw', 'lamb']
    packing: Literal['auto', 'off']
    recompute: bool
    attention: Literal['own', 'cudnn']
    compression: Literal['none', 'bf16']
    seed: int
    save_checkpoints_steps: int
    save_checkpoints_minutes: float
    keep_checkpoints: int
    check_steps: int
    log_steps: int | None
    timeline: str | None
    profile_steps: str | None
    xla: Literal['auto', 'on', 'off']
    step: Literal['auto', 'whole']
    resume: str
    report_to: str | list
    device: Literal['auto', 'gpu', 'cpu']
    share_gpus: bool
    deterministic: bool
    backend: Literal['auto', 'nccl', 'ring', 'mpi', 'local']
    precision: Literal['fp32', 'bf16', 'fp16']
    tf32: bool
    stall_warning: float
    stall_timeout: float
    do_train: bool
    do_eval: bool
    eval_batch_size: int
    eval_steps: int | Literal['auto'] | None
    load_best_model_at_end: bool
    early_stopping_patience: int | None
    seeds: str | list | None
    do_predict: bool
    predict_batch_size: int
    allow_unknown: bool
    max_train_examples: int | None
    max_predict_examples: int | None
    task_name: str | None
    data_dir: str | None
    from_hub: bool
    dataset_revision: str | None
    language: str
    train_file: Any
    dev_file: Any
    predict_file: Any
    text_column: str
    text_pair_column: str | None
    label_column: str | list
    regression: bool
    multi_label: bool
    ranking: bool
    max_seq_length: int
    label_smoothing_factor: float
    classifier_dropout: float | None
    class_weights: str | dict | None
    def __init__(
        self,
        *,
        output_dir: str | PathLike[str],
        model: str | PathLike[str] | None = None,
        model_revision: str | None = None,
        init_checkpoint: str | PathLike[str] | None = None,
        bert_config_file: str | PathLike[str] | None = None,
        model_size: Literal['tiny', 'minilm', 'base', 'large', 'ettin-17m', 'ettin-32m', 'ettin-68m', 'modernbert-base', 'modernbert-large'] | None = None,
        vocab_file: str | PathLike[str] | None = None,
        spm_model_file: str | PathLike[str] | None = None,
        do_lower_case: bool | None = None,
        train_batch_size: int | None = None,
        global_batch_size: int | None = None,
        gradient_accumulation_steps: int = 1,
        learning_rate: float = 5e-05,
        lr_scaling: Literal['linear', 'sqrt', 'none'] = 'linear',
        num_train_epochs: float | None = 3.0,
        num_train_steps: int | None = None,
        warmup_proportion: float = 0.1,
        num_warmup_steps: int | None = None,
        decay_proportion: float = 0.1,
        num_decay_steps: int | None = None,
        lr_scheduler_type: Literal['linear', 'linear_from_peak', 'cosine', 'constant', 'inverse_sqrt', 'polynomial', 'wsd'] = 'linear',
        min_lr_ratio: float = 0.0,
        lr_power: float = 2.0,
        lr_decay_type: Literal['1-sqrt', 'linear', 'cosine'] = '1-sqrt',
        weight_decay: float = 0.01,
        adam_beta1: float = 0.9,
        adam_beta2: float = 0.999,
        adam_epsilon: float = 1e-06,
        adam_bias_correction: bool = False,
        max_grad_norm: float = 1.0,
        layer_lr_decay: float = 1.0,
        head_learning_rate: float | None = None,
        freeze: int | Literal['embeddings', 'encoder'] | None = None,
        reinit_layers: int = 0,
        hidden_dropout_prob: float | None = None,
        attention_probs_dropout_prob: float | None = None,
        optimizer: Literal['adamw', 'lamb'] = 'adamw',
        packing: Literal['auto', 'off'] = 'auto',
        recompute: bool = False,
        attention: Literal['own', 'cudnn'] = 'own',
        compression: Literal['none', 'bf16'] = 'none',
        seed: int = 42,
        save_checkpoints_steps: int = 1000,
        save_checkpoints_minutes: float = 10.0,
        keep_checkpoints: int = 5,
        check_steps: int = 0,
        log_steps: int | None = None,
        timeline: str | None = None,
        profile_steps: str | None = None,
        xla: Literal['auto', 'on', 'off'] = 'auto',
        step: Literal['auto', 'whole'] = 'auto',
        resume: str = 'auto',
        report_to: str | list = 'tensorboard',
        device: Literal['auto', 'gpu', 'cpu'] = 'auto',
        share_gpus: bool = False,
        deterministic: bool = False,
        backend: Literal['auto', 'nccl', 'ring', 'mpi', 'local'] = 'auto',
        precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
        tf32: bool = False,
        stall_warning: float = 30.0,
        stall_timeout: float = 600.0,
        do_train: bool = False,
        do_eval: bool = False,
        eval_batch_size: int = 8,
        eval_steps: int | Literal['auto'] | None = None,
        load_best_model_at_end: bool = False,
        early_stopping_patience: int | None = None,
        seeds: str | list | None = None,
        do_predict: bool = False,
        predict_batch_size: int = 8,
        allow_unknown: bool = False,
        max_train_examples: int | None = None,
        max_predict_examples: int | None = None,
        task_name: str | None = None,
        data_dir: str | PathLike[str] | None = None,
        from_hub: bool = False,
        dataset_revision: str | None = None,
        language: str = 'en',
        train_file: Any = None,
        dev_file: Any = None,
        predict_file: Any = None,
        text_column: str = 'text',
        text_pair_column: str | None = None,
        label_column: str | list = 'label',
        regression: bool = False,
        multi_label: bool = False,
        ranking: bool = False,
        max_seq_length: int = 128,
        label_smoothing_factor: float = 0.0,
        classifier_dropout: float | None = None,
        class_weights: str | dict | None = None,
    ) -> None: ...

class Tagging(CommandJob, of=TAGGER):
    output_dir: str
    model: str | None
    model_revision: str | None
    init_checkpoint: str | None
    bert_config_file: str | None
    model_size: Literal['tiny', 'minilm', 'base', 'large', 'ettin-17m', 'ettin-32m', 'ettin-68m', 'modernbert-base', 'modernbert-large'] | None
    vocab_file: str | None
    spm_model_file: str | None
    do_lower_case: bool | None
    train_batch_size: int | None
    global_batch_size: int | None
    gradient_accumulation_steps: int
    learning_rate: float
    lr_scaling: Literal['linear', 'sqrt', 'none']
    num_train_epochs: float | None
    num_train_steps: int | None
    warmup_proportion: float
    num_warmup_steps: int | None
    decay_proportion: float
    num_decay_steps: int | None
    lr_scheduler_type: Literal['linear', 'linear_from_peak', 'cosine', 'constant', 'inverse_sqrt', 'polynomial', 'wsd']
    min_lr_ratio: float
    lr_power: float
    lr_decay_type: Literal['1-sqrt', 'linear', 'cosine']
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    adam_bias_correction: bool
    max_grad_norm: float
    layer_lr_decay: float
    head_learning_rate: float | None
    freeze: int | Literal['embeddings', 'encoder'] | None
    reinit_layers: int
    hidden_dropout_prob: float | None
    attention_probs_dropout_prob: float | None
    optimizer: Literal['adamw', 'lamb']
    packing: Literal['auto', 'off']
    recompute: bool
    attention: Literal['own', 'cudnn']
    compression: Literal['none', 'bf16']
    seed: int
    save_checkpoints_steps: int
    save_checkpoints_minutes: float
    keep_checkpoints: int
    check_steps: int
    log_steps: int | None
    timeline: str | None
    profile_steps: str | None
    xla: Literal['auto', 'on', 'off']
    step: Literal['auto', 'whole']
    resume: str
    report_to: str | list
    device: Literal['auto', 'gpu', 'cpu']
    share_gpus: bool
    deterministic: bool
    backend: Literal['auto', 'nccl', 'ring', 'mpi', 'local']
    precision: Literal['fp32', 'bf16', 'fp16']
    tf32: bool
    stall_warning: float
    stall_timeout: float
    do_train: bool
    do_eval: bool
    eval_batch_size: int
    eval_steps: int | Literal['auto'] | None
    load_best_model_at_end: bool
    early_stopping_patience: int | None
    seeds: str | list | None
    do_predict: bool
    predict_batch_size: int
    allow_unknown: bool
    max_train_examples: int | None
    max_predict_examples: int | None
    dataset_name: str | None
    dataset_revision: str | None
    train_file: Any
    dev_file: Any
    predict_file: Any
    max_seq_length: int
    doc_stride: int
    characters: bool
    label_smoothing_factor: float
    classifier_dropout: float | None
    def __init__(
        self,
        *,
        output_dir: str | PathLike[str],
        model: str | PathLike[str] | None = None,
        model_revision: str | None = None,
        init_checkpoint: str | PathLike[str] | None = None,
        bert_config_file: str | PathLike[str] | None = None,
        model_size: Literal['tiny', 'minilm', 'base', 'large', 'ettin-17m', 'ettin-32m', 'ettin-68m', 'modernbert-base', 'modernbert-large'] | None = None,
        vocab_file: str | PathLike[str] | None = None,
        spm_model_file: str | PathLike[str] | None = None,
        do_lower_case: bool | None = None,
        train_batch_size: int | None = None,
        global_batch_size: int | None = None,
        gradient_accumulation_steps: int = 1,
        learning_rate: float = 5e-05,
        lr_scaling: Literal['linear', 'sqrt', 'none'] = 'linear',
        num_train_epochs: float | None = 3.0,
        num_train_steps: int | None = None,
        warmup_proportion: float = 0.1,
        num_warmup_steps: int | None = None,
        decay_proportion: float = 0.1,
        num_decay_steps: int | None = None,
        lr_scheduler_type: Literal['linear', 'linear_from_peak', 'cosine', 'constant', 'inverse_sqrt', 'polynomial', 'wsd'] = 'linear',
        min_lr_ratio: float = 0.0,
        lr_power: float = 2.0,
        lr_decay_type: Literal['1-sqrt', 'linear', 'cosine'] = '1-sqrt',
        weight_decay: float = 0.01,
        adam_beta1: float = 0.9,
        adam_beta2: float = 0.999,
        adam_epsilon: float = 1e-06,
        adam_bias_correction: bool = False,
        max_grad_norm: float = 1.0,
        layer_lr_decay: float = 1.0,
        head_learning_rate: float | None = None,
        freeze: int | Literal['embeddings', 'encoder'] | None = None,
        reinit_layers: int = 0,
        hidden_dropout_prob: float | None = None,
        attention_probs_dropout_prob: float | None = None,
        optimizer: Literal['adamw', 'lamb'] = 'adamw',
        packing: Literal['auto', 'off'] = 'auto',
        recompute: bool = False,
        attention: Literal['own', 'cudnn'] = 'own',
        compression: Literal['none', 'bf16'] = 'none',
        seed: int = 42,
        save_checkpoints_steps: int = 1000,
        save_checkpoints_minutes: float = 10.0,
        keep_checkpoints: int = 5,
        check_steps: int = 0,
        log_steps: int | None = None,
        timeline: str | None = None,
        profile_steps: str | None = None,
        xla: Literal['auto', 'on', 'off'] = 'auto',
        step: Literal['auto', 'whole'] = 'auto',
        resume: str = 'auto',
        report_to: str | list = 'tensorboard',
        device: Literal['auto', 'gpu', 'cpu'] = 'auto',
        share_gpus: bool = False,
        deterministic: bool = False,
        backend: Literal['auto', 'nccl', 'ring', 'mpi', 'local'] = 'auto',
        precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
        tf32: bool = False,
        stall_warning: float = 30.0,
        stall_timeout: float = 600.0,
        do_train: bool = False,
        do_eval: bool = False,
        eval_batch_size: int = 8,
        eval_steps: int | Literal['auto'] | None = None,
        load_best_model_at_end: bool = False,
        early_stopping_patience: int | None = None,
        seeds: str | list | None = None,
        do_predict: bool = False,
        predict_batch_size: int = 8,
        allow_unknown: bool = False,
        max_train_examples: int | None = None,
        max_predict_examples: int | None = None,
        dataset_name: str | None = None,
        dataset_revision: str | None = None,
        train_file: Any = None,
        dev_file: Any = None,
        predict_file: Any = None,
        max_seq_length: int = 128,
        doc_stride: int = 64,
        characters: bool = False,
        label_smoothing_factor: float = 0.0,
        classifier_dropout: float | None = None,
    ) -> None: ...

class Embedding(CommandJob, of=EMBEDDER):
    output_dir: str
    model: str | None
    model_revision: str | None
    init_checkpoint: str | None
    bert_config_file: str | None
    model_size: Literal['tiny', 'minilm', 'base', 'large', 'ettin-17m', 'ettin-32m', 'ettin-68m', 'modernbert-base', 'modernbert-large'] | None
    vocab_file: str | None
    spm_model_file: str | None
    do_lower_case: bool | None
    train_batch_size: int | None
    global_batch_size: int | None
    gradient_accumulation_steps: int
    learning_rate: float
    lr_scaling: Literal['linear', 'sqrt', 'none']
    num_train_epochs: float | None
    num_train_steps: int | None
    warmup_proportion: float
    num_warmup_steps: int | None
    decay_proportion: float
    num_decay_steps: int | None
    lr_scheduler_type: Literal['linear', 'linear_from_peak', 'cosine', 'constant', 'inverse_sqrt', 'polynomial', 'wsd']
    min_lr_ratio: float
    lr_power: float
    lr_decay_type: Literal['1-sqrt', 'linear', 'cosine']
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    adam_bias_correction: bool
    max_grad_norm: float
    layer_lr_decay: float
    head_learning_rate: float | None
    freeze: int | Literal['embeddings', 'encoder'] | None
    reinit_layers: int
    hidden_dropout_prob: float | None
    attention_probs_dropout_prob: float | None
    optimizer: Literal['adamw', 'lamb']
    packing: Literal['auto', 'off']
    recompute: bool
    attention: Literal['own', 'cudnn']
    compression: Literal['none', 'bf16']
    seed: int
    save_checkpoints_steps: int
    save_checkpoints_minutes: float
    keep_checkpoints: int
    check_steps: int
    log_steps: int | None
    timeline: str | None
    profile_steps: str | None
    xla: Literal['auto', 'on', 'off']
    step: Literal['auto', 'whole']
    resume: str
    report_to: str | list
    device: Literal['auto', 'gpu', 'cpu']
    share_gpus: bool
    deterministic: bool
    backend: Literal['auto', 'nccl', 'ring', 'mpi', 'local']
    precision: Literal['fp32', 'bf16', 'fp16']
    tf32: bool
    stall_warning: float
    stall_timeout: float
    do_train: bool
    do_eval: bool
    eval_batch_size: int
    eval_steps: int | Literal['auto'] | None
    load_best_model_at_end: bool
    early_stopping_patience: int | None
    seeds: str | list | None
    do_predict: bool
    predict_batch_size: int
    allow_unknown: bool
    max_train_examples: int | None
    max_predict_examples: int | None
    dataset_name: str | None
    dataset_revision: str | None
    train_file: Any
    dev_file: Any
    predict_file: Any
    corpus_file: Any
    task_name: Literal['sts-b', 'STS-B'] | None
    data_dir: str | None
    anchor_column: str
    positive_column: str
    negative_columns: str | list | None
    score_column: str | None
    score_scale: float
    label_column: str | None
    same_dataset_within_batch: bool
    max_seq_length: int | None
    pooling: Literal['mean', 'cls'] | None
    normalize: bool | None
    query_prompt: str | None
    document_prompt: str | None
    prompt_name: Literal['query', 'document', 'none'] | None
    max_query_length: int | None
    dims: str | list | None
    truncate_dim: int | None
    temperature: float
    both_ways: bool
    guide_margin: float | None
    kd_loss_type: Literal['margin_mse', 'kl_div'] | None
    num_negatives: int | None
    range_min: int
    range_max: int | None
    absolute_margin: float | None
    relative_margin: float | None
    max_score: float | None
    min_score: float | None
    sampling_strategy: Literal['top', 'random']
    def __init__(
        self,
        *,
        output_dir: str | PathLike[str],
        model: str | PathLike[str] | None = None,
        model_revision: str | None = None,
        init_checkpoint: str | PathLike[str] | None = None,
        bert_config_file: str | PathLike[str] | None = None,
        model_size: Literal['tiny', 'minilm', 'base', 'large', 'ettin-17m', 'ettin-32m', 'ettin-68m', 'modernbert-base', 'modernbert-large'] | None = None,
        vocab_file: str | PathLike[str] | None = None,
        spm_model_file: str | PathLike[str] | None = None,
        do_lower_case: bool | None = None,
        train_batch_size: int | None = None,
        global_batch_size: int | None = None,
        gradient_accumulation_steps: int = 1,
        learning_rate: float = 5e-05,
        lr_scaling: Literal['linear', 'sqrt', 'none'] = 'linear',
        num_train_epochs: float | None = 3.0,
        num_train_steps: int | None = None,
        warmup_proportion: float = 0.1,
        num_warmup_steps: int | None = None,
        decay_proportion: float = 0.1,
        num_decay_steps: int | None = None,
        lr_scheduler_type: Literal['linear', 'linear_from_peak', 'cosine', 'constant', 'inverse_sqrt', 'polynomial', 'wsd'] = 'linear',
        min_lr_ratio: float = 0.0,
        lr_power: float = 2.0,
        lr_decay_type: Literal['1-sqrt', 'linear', 'cosine'] = '1-sqrt',
        weight_decay: float = 0.01,
        adam_beta1: float = 0.9,
        adam_beta2: float = 0.999,
        adam_epsilon: float = 1e-06,
        adam_bias_correction: bool = False,
        max_grad_norm: float = 1.0,
        layer_lr_decay: float = 1.0,
        head_learning_rate: float | None = None,
        freeze: int | Literal['embeddings', 'encoder'] | None = None,
        reinit_layers: int = 0,
        hidden_dropout_prob: float | None = None,
        attention_probs_dropout_prob: float | None = None,
        optimizer: Literal['adamw', 'lamb'] = 'adamw',
        packing: Literal['auto', 'off'] = 'auto',
        recompute: bool = False,
        attention: Literal['own', 'cudnn'] = 'own',
        compression: Literal['none', 'bf16'] = 'none',
        seed: int = 42,
        save_checkpoints_steps: int = 1000,
        save_checkpoints_minutes: float = 10.0,
        keep_checkpoints: int = 5,
        check_steps: int = 0,
        log_steps: int | None = None,
        timeline: str | None = None,
        profile_steps: str | None = None,
        xla: Literal['auto', 'on', 'off'] = 'auto',
        step: Literal['auto', 'whole'] = 'auto',
        resume: str = 'auto',
        report_to: str | list = 'tensorboard',
        device: Literal['auto', 'gpu', 'cpu'] = 'auto',
        share_gpus: bool = False,
        deterministic: bool = False,
        backend: Literal['auto', 'nccl', 'ring', 'mpi', 'local'] = 'auto',
        precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
        tf32: bool = False,
        stall_warning: float = 30.0,
        stall_timeout: float = 600.0,
        do_train: bool = False,
        do_eval: bool = False,
        eval_batch_size: int = 8,
        eval_steps: int | Literal['auto'] | None = None,
        load_best_model_at_end: bool = False,
        early_stopping_patience: int | None = None,
        seeds: str | list | None = None,
        do_predict: bool = False,
        predict_batch_size: int = 8,
        allow_unknown: bool = False,
        max_train_examples: int | None = None,
        max_predict_examples: int | None = None,
        dataset_name: str | None = None,
        dataset_revision: str | None = None,
        train_file: Any = None,
        dev_file: Any = None,
        predict_file: Any = None,
        corpus_file: Any = None,
        task_name: Literal['sts-b', 'STS-B'] | None = None,
        data_dir: str | PathLike[str] | None = None,
        anchor_column: str = 'anchor|query|text',
        positive_column: str = 'positive|pos',
        negative_columns: str | list | None = None,
        score_column: str | None = None,
        score_scale: float = 1.0,
        label_column: str | None = None,
        same_dataset_within_batch: bool = False,
        max_seq_length: int | None = None,
        pooling: Literal['mean', 'cls'] | None = None,
        normalize: bool | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        prompt_name: Literal['query', 'document', 'none'] | None = None,
        max_query_length: int | None = None,
        dims: str | list | None = None,
        truncate_dim: int | None = None,
        temperature: float = 0.05,
        both_ways: bool = False,
        guide_margin: float | None = None,
        kd_loss_type: Literal['margin_mse', 'kl_div'] | None = None,
        num_negatives: int | None = None,
        range_min: int = 0,
        range_max: int | None = None,
        absolute_margin: float | None = None,
        relative_margin: float | None = None,
        max_score: float | None = None,
        min_score: float | None = None,
        sampling_strategy: Literal['top', 'random'] = 'top',
    ) -> None: ...

class Pretraining(CommandJob, of=PRETRAINING):
    output_dir: str
    model: str | None
    model_revision: str | None
    init_checkpoint: str | None
    bert_config_file: str | None
    model_size: Literal['tiny', 'minilm', 'base', 'large', 'ettin-17m', 'ettin-32m', 'ettin-68m', 'modernbert-base', 'modernbert-large'] | None
    vocab_file: str | None
    spm_model_file: str | None
    do_lower_case: bool | None
    train_batch_size: int | None
    global_batch_size: int | None
    gradient_accumulation_steps: int
    learning_rate: float
    lr_scaling: Literal['linear', 'sqrt', 'none']
    num_train_epochs: float | None
    num_train_steps: int | None
    warmup_proportion: float
    num_warmup_steps: int | None
    decay_proportion: float
    num_decay_steps: int | None
    lr_scheduler_type: Literal['linear', 'linear_from_peak', 'cosine', 'constant', 'inverse_sqrt', 'polynomial', 'wsd']
    min_lr_ratio: float
    lr_power: float
    lr_decay_type: Literal['1-sqrt', 'linear', 'cosine']
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    adam_bias_correction: bool
    max_grad_norm: float
    layer_lr_decay: float
    head_learning_rate: float | None
    freeze: int | Literal['embeddings', 'encoder'] | None
    reinit_layers: int
    hidden_dropout_prob: float | None
    attention_probs_dropout_prob: float | None
    optimizer: Literal['adamw', 'lamb']
    packing: Literal['auto', 'off']
    recompute: bool
    attention: Literal['own', 'cudnn']
    compression: Literal['none', 'bf16']
    seed: int
    save_checkpoints_steps: int
    save_checkpoints_minutes: float
    keep_checkpoints: int
    check_steps: int
    log_steps: int | None
    timeline: str | None
    profile_steps: str | None
    xla: Literal['auto', 'on', 'off']
    step: Literal['auto', 'whole']
    resume: str
    report_to: str | list
    init_moments: bool
    device: Literal['auto', 'gpu', 'cpu']
    share_gpus: bool
    deterministic: bool
    backend: Literal['auto', 'nccl', 'ring', 'mpi', 'local']
    precision: Literal['fp32', 'bf16', 'fp16']
    tf32: bool
    stall_warning: float
    stall_timeout: float
    do_train: bool
    max_seq_length: int
    max_predictions_per_seq: int | None
    masked_lm_prob: float | str | None
    do_whole_word_mask: bool | None
    do_eval: bool
    eval_batch_size: int
    eval_steps: int | Literal['auto'] | None
    max_eval_steps: int
    input_file: str | list
    mixture_alpha: float | str | None
    eval_input_file: str | list | None
    def __init__(
        self,
        *,
        output_dir: str | PathLike[str],
        input_file: str | PathLike[str] | list,
        model: str | PathLike[str] | None = None,
        model_revision: str | None = None,
        init_checkpoint: str | PathLike[str] | None = None,
        bert_config_file: str | PathLike[str] | None = None,
        model_size: Literal['tiny', 'minilm', 'base', 'large', 'ettin-17m', 'ettin-32m', 'ettin-68m', 'modernbert-base', 'modernbert-large'] | None = None,
        vocab_file: str | PathLike[str] | None = None,
        spm_model_file: str | PathLike[str] | None = None,
        do_lower_case: bool | None = None,
        train_batch_size: int | None = None,
        global_batch_size: int | None = None,
        gradient_accumulation_steps: int = 1,
        learning_rate: float = 5e-05,
        lr_scaling: Literal['linear', 'sqrt', 'none'] = 'linear',
        num_train_epochs: float | None = None,
        num_train_steps: int | None = None,
        warmup_proportion: float = 0.1,
        num_warmup_steps: int | None = None,
        decay_proportion: float = 0.1,
        num_decay_steps: int | None = None,
        lr_scheduler_type: Literal['linear', 'linear_from_peak', 'cosine', 'constant', 'inverse_sqrt', 'polynomial', 'wsd'] = 'linear',
        min_lr_ratio: float = 0.0,
        lr_power: float = 2.0,
        lr_decay_type: Literal['1-sqrt', 'linear', 'cosine'] = '1-sqrt',
        weight_decay: float = 0.01,
        adam_beta1: float = 0.9,
        adam_beta2: float = 0.999,
        adam_epsilon: float = 1e-06,
        adam_bias_correction: bool = False,
        max_grad_norm: float = 1.0,
        layer_lr_decay: float = 1.0,
        head_learning_rate: float | None = None,
        freeze: int | Literal['embeddings', 'encoder'] | None = None,
        reinit_layers: int = 0,
        hidden_dropout_prob: float | None = None,
        attention_probs_dropout_prob: float | None = None,
        optimizer: Literal['adamw', 'lamb'] = 'adamw',
        packing: Literal['auto', 'off'] = 'auto',
        recompute: bool = False,
        attention: Literal['own', 'cudnn'] = 'own',
        compression: Literal['none', 'bf16'] = 'none',
        seed: int = 42,
        save_checkpoints_steps: int = 1000,
        save_checkpoints_minutes: float = 10.0,
        keep_checkpoints: int = 5,
        check_steps: int = 0,
        log_steps: int | None = None,
        timeline: str | None = None,
        profile_steps: str | None = None,
        xla: Literal['auto', 'on', 'off'] = 'auto',
        step: Literal['auto', 'whole'] = 'auto',
        resume: str = 'auto',
        report_to: str | list = 'tensorboard',
        init_moments: bool = False,
        device: Literal['auto', 'gpu', 'cpu'] = 'auto',
        share_gpus: bool = False,
        deterministic: bool = False,
        backend: Literal['auto', 'nccl', 'ring', 'mpi', 'local'] = 'auto',
        precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
        tf32: bool = False,
        stall_warning: float = 30.0,
        stall_timeout: float = 600.0,
        do_train: bool = False,
        max_seq_length: int = 128,
        max_predictions_per_seq: int | None = None,
        masked_lm_prob: float | str | None = None,
        do_whole_word_mask: bool | None = None,
        do_eval: bool = False,
        eval_batch_size: int = 8,
        eval_steps: int | Literal['auto'] | None = None,
        max_eval_steps: int = 100,
        mixture_alpha: float | str | None = None,
        eval_input_file: str | PathLike[str] | list | None = None,
    ) -> None: ...
