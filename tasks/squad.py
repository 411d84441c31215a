"""bert-squad: fine-tune BERT on SQuAD over all ranks, predict, score (google-research/bert `run_squad.py`).

The whole story is `run_squad`, below: data -> plan -> model -> train -> predict -> files. Tensors bear their shape
as a suffix: B rows, T positions of a row, 2 for start and end.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from bert import InputError
from tasks import flags, start

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf
    from transformers import BertConfig

    from bert.model import Bert
    from bert.tokenizer import Tokenizer
    from distributed.collectives import Collectives
    from distributed.rows import Rows
    from distributed.run import Run
    from distributed.train import Batch
    from distributed.world import World
    from tasks.squad_data import Examples

LENGTH_MULTIPLE = 8  # windows are padded to the longest of their batch, rounded up
LARGE = 1e30


@dataclass(frozen=True)
class Config:
    """The flags of bert-squad: names and defaults of run_squad.py, and a few of ours."""

    output_dir: str = field(metadata={"help": "folder for checkpoints, predictions and scores", "group": "data"})
    train_file: str | None = flags.flag(None, "SQuAD JSON to train on (.gz too)", "data")
    predict_file: str | None = flags.flag(None, "SQuAD JSON to predict and score", "data")
    dataset_name: str | None = flags.flag(
        None, "hub data set or folder with SQuAD's columns: its splits train and validation", "data"
    )
    version_2_with_negative: bool = flags.flag(
        False, "the data has questions without an answer (SQuAD v2.0)", "data"
    )
    max_train_examples: int | None = flags.flag(None, "train on the first N questions", "data")
    max_predict_examples: int | None = flags.flag(None, "predict the first N questions", "data")
    max_seq_length: int = flags.flag(384, "tokens per window, question included", "data")
    doc_stride: int = flags.flag(128, "tokens between the starts of windows", "data")
    max_query_length: int = flags.flag(64, "tokens of a question that are kept", "data")
    allow_unknown: bool = flags.flag(False, "go on although more than 10 % of the tokens are [UNK]", "data")

    model: str | None = flags.flag(
        None,
        "hub name or folder: configuration, vocabulary and weights at once",
        "model",
        ("--model_name_or_path",),
    )
    bert_config_file: str | None = flags.flag(
        None, "BERT configuration (JSON), instead of the model's own", "model"
    )
    vocab_file: str | None = flags.flag(None, "WordPiece vocabulary, instead of the model's own", "model")
    init_checkpoint: str | None = flags.flag(None, "weights: bert_model.ckpt or a Hugging Face folder", "model")
    do_lower_case: bool | None = flags.flag(
        None, "lower-case and strip accents; default: the tokenizer file's, else true", "model"
    )

    do_train: bool = flags.flag(False, "train", "training")
    train_batch_size: int | None = flags.flag(
        None, "rows per rank and optimizer step (32 unless given)", "training"
    )
    global_batch_size: int | None = flags.flag(
        None, "rows per optimizer step over all ranks; keeps one rank's steps and rate", "training"
    )
    gradient_accumulation_steps: int = flags.flag(1, "micro-batches that a rank's batch is split into", "training")
    learning_rate: float = flags.flag(5e-5, "peak rate of one rank", "training")
    lr_scaling: Literal["linear", "sqrt", "none"] = flags.flag(
        "linear", "how the rate grows with the ranks", "training"
    )
    num_train_epochs: float = flags.flag(3.0, "passes over the windows", "training")
    warmup_proportion: float = flags.flag(0.1, "share of the steps with a rising rate", "training")
    seed: int = flags.flag(42, "of initial values, order and dropout", "training", ("--random_seed",))
    save_checkpoints_steps: int = flags.flag(1000, "steps between checkpoints", "training")
    keep_checkpoints: int = flags.flag(5, "how many checkpoints are kept", "training")
    resume: str = flags.flag("auto", "auto, never, or the folder of a run to go on from", "training")
    log_steps: int = flags.flag(25, "steps between lines of metrics.jsonl", "training")

    do_predict: bool = flags.flag(False, "predict, and score when the file has answers", "prediction")
    predict_batch_size: int = flags.flag(8, "windows per prediction batch", "prediction")
    n_best_size: int = flags.flag(20, "candidates per question in nbest_predictions.json", "prediction")
    max_answer_length: int = flags.flag(30, "tokens of an answer at most", "prediction")
    null_score_diff_threshold: float = flags.flag(
        0.0, "answer nothing when null beats the best answer by more", "prediction"
    )
    metric: Literal["auto", "squad_v1", "squad_v2", "korquad_v1"] = flags.flag(
        "auto", "auto: by the file's version", "prediction"
    )

    precision: Literal["fp32", "bf16"] = flags.flag(
        "fp32", "bf16: bfloat16 products, float32 weights and sums", "machine"
    )
    device: Literal["auto", "gpu", "cpu"] = flags.flag("auto", "where to compute", "machine")
    share_gpus: bool = flags.flag(False, "allow more ranks than GPUs", "machine")
    backend: Literal["auto", "mpi", "local"] = flags.flag("auto", "what sums the gradients", "machine")

    def __post_init__(self):
        if not (self.do_train or self.do_predict):
            raise ValueError("nothing to do: give --do_train, --do_predict or both")
        for wanted, flag in ((self.do_train, "train_file"), (self.do_predict, "predict_file")):
            if wanted and not (getattr(self, flag) or self.dataset_name):
                raise ValueError(f"--do_{flag.removesuffix('_file')} needs --{flag} (or --dataset_name)")
        if self.max_seq_length <= self.max_query_length + 3:
            raise ValueError(
                f"--max_seq_length {self.max_seq_length} must exceed "
                f"--max_query_length + 3 = {self.max_query_length + 3}"
            )
        at_least_one = ("doc_stride", "max_query_length", "predict_batch_size", "n_best_size", "max_answer_length")
        most = ("max_train_examples", "max_predict_examples")
        for name in (*at_least_one, *most, "save_checkpoints_steps", "keep_checkpoints", "log_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} is {value}, needed is at least 1")
        if self.seed < 0:
            raise ValueError(f"--seed is {self.seed}, needed is at least 0")
        if self.metric != "auto" and (self.metric == "squad_v2") != self.version_2_with_negative:
            raise ValueError(
                f"--metric {self.metric} does not fit --version_2_with_negative={self.version_2_with_negative}"
            )


def main(argv: Sequence[str] | None = None) -> None:
    config = flags.parse(
        Config, argv, prog="bert-squad", description="Fine-tune BERT on SQuAD over all MPI ranks."
    )
    start.check_packages()
    start.set_environment()
    start.import_tensorflow()
    from distributed.world import World

    with World.join(config.device, config.share_gpus, "bert-squad", (InputError,)) as world:
        run_squad(config, world)


def run_squad(config: Config, world: "World") -> dict[str, float]:
    """Trains and predicts as the flags say, on every rank of `world`; the scores, if the file has answers."""
    from bert import weights
    from bert.model import Bert
    from distributed.collectives import open_collectives
    from distributed.optimizer import broadcast_variables
    from distributed.run import Run, versions

    start.set_precision(config.precision)
    collectives = open_collectives(world, config.backend)
    world.agree({"the configuration": asdict(config), "the versions of packages": versions()})
    run = Run.of(config.output_dir, world)
    run.say(f"{world}, backend {collectives.name}, {config.precision}")
    for note in world.notes:
        run.say(note)

    # Data, tokenizer and configuration: decided on rank 0, the windows built once per machine.
    model_files = world.on_first(find_model_files, config, run)
    train_data = open_data(config, world, run, model_files, training=True) if config.do_train else None
    predict_data = open_data(config, world, run, model_files, training=False) if config.do_predict else None

    settings = training_settings(config, train_data) if train_data else None
    begin = world.on_first(start.find_start, config, settings, run)
    run.remove("result.json")  # from here on the run is not complete
    model = Bert(model_files.bert_config, "span", seed=config.seed)

    if train_data:
        fine_tune(config, world, collectives, run, begin, model, model_files.tokenizer, train_data)
    else:
        if begin.weights is None:
            raise InputError(
                "--do_predict needs weights: --init_checkpoint, --model, or an --output_dir with a checkpoint"
            )
        source = begin.weights
        world.on_first(lambda: run.say(f"weights: {weights.load(model, source)}"))
        broadcast_variables(model.trainable_variables, collectives)

    scores: dict[str, float] = {}
    if predict_data:
        outputs = predict_windows(config, world, run, model, predict_data.windows)
        scores = world.on_first(write_predictions, config, run, predict_data, outputs)
    run.write_json("result.json", {"scores": scores, "seconds": round(run.seconds(), 1), "world_size": world.size})
    run.say(f"done: {config.output_dir}" + "".join(f", {name} {value:.2f}" for name, value in scores.items()))
    run.close()
    collectives.close()
    return scores


# -- data ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelFiles:
    """What rank 0 found out about the model, the same on all ranks."""

    bert_config: "BertConfig"
    tokenizer: "Tokenizer"


@dataclass(frozen=True)
class Data:
    """One SQuAD file as rows: its windows, and the places of its contexts' tokens. `key` names its content."""

    windows: "Rows"
    paragraphs: "Rows"
    key: str


def find_model_files(config: Config, run: "Run") -> ModelFiles:
    """The configuration and the tokenizer: from their own flags, else the folder of the weights. On rank 0.

    Raises InputError when there is none, or they do not fit each other or the flags.
    """
    from bert import tokenizer, weights

    source = start.newest_checkpoint(config, run.say)
    given = config.init_checkpoint or config.model
    if source is None and given:
        source = weights.find(given)
    bert_config = weights.config_from_file(config.bert_config_file) if config.bert_config_file else None
    if bert_config is None and source is not None:
        bert_config = weights.read_config(source)
    if bert_config is None:
        raise InputError(
            "no model configuration: give --bert_config_file, or --model with a folder or hub name that has one"
        )
    folder = source if source is None or source.is_dir() else source.parent
    words = tokenizer.load(
        config.vocab_file, folder, config.do_lower_case, str(config.init_checkpoint or config.model or "")
    )
    if words.vocab_size > bert_config.vocab_size:
        raise InputError(
            f"{words.source} has {words.vocab_size} entries, the model's configuration {bert_config.vocab_size}: "
            "--vocab_file does not belong to this model"
        )
    if words.vocab_size < bert_config.vocab_size:
        run.say(
            f"warning: {words.source} has {words.vocab_size} entries, the model's configuration "
            f"{bert_config.vocab_size}: the rest is never used"
        )
    if config.max_seq_length > bert_config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length {config.max_seq_length} exceeds the model's "
            f"{bert_config.max_position_embeddings} positions"
        )
    return ModelFiles(bert_config, words)


def read_examples(config: Config, training: bool) -> "Examples":
    """The questions to train on or to predict."""
    from tasks import squad_data

    path, flag = (config.train_file, "--train_file") if training else (config.predict_file, "--predict_file")
    most = config.max_train_examples if training else config.max_predict_examples
    if path is None:
        split = "train" if training else "validation"
        return squad_data.read_hub(str(config.dataset_name), split, training, config.version_2_with_negative, most)
    return squad_data.read(path, flag, training, config.version_2_with_negative, most)


def open_data(config: Config, world: "World", run: "Run", model_files: ModelFiles, training: bool) -> Data:
    """The windows of the training or prediction file, memory-mapped on every rank."""
    from distributed.rows import Rows
    from tasks import squad_data

    def build() -> str:
        examples = read_examples(config, training)
        if examples.skipped:
            run.say(
                f"warning: {len(examples.skipped)} answers of {examples.source} are not at their answer_start "
                f"and are left out: {', '.join(examples.skipped[:5])}"
            )
        return squad_data.windows(
            examples,
            model_files.tokenizer,
            start.cache_folder(),
            max_seq_length=config.max_seq_length,
            doc_stride=config.doc_stride,
            max_query_length=config.max_query_length,
            allow_unknown=config.allow_unknown,
            run=run,
        )

    key = world.on_each_machine(build)
    world.agree({f"the content of {'--train_file' if training else '--predict_file'}": key})
    folder = start.cache_folder() / key
    return Data(Rows.open(folder / "windows.arrow"), Rows.open(folder / "paragraphs.arrow"), key)


def collate(fields: dict) -> "Batch":
    """Windows -> int32 arrays [B, T], T the longest window rounded up to a multiple of 8, and positions [B]."""
    import numpy as np

    from distributed.rows import pad

    lengths = np.diff(fields["input_ids"][1])
    length = -(-int(lengths.max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    place = np.arange(length, dtype=np.int32)
    inside = place < lengths[:, None]
    return {
        "input_ids": pad(fields["input_ids"], length),
        "token_type_ids": ((place >= fields["question_tokens"][:, None]) & inside).astype(np.int32),
        "position_ids": np.broadcast_to(place, inside.shape),
        "example_ids": inside.astype(np.int32),
        "start_position": fields["start_position"],
        "end_position": fields["end_position"],
    }


# -- training -----------------------------------------------------------------------------------------------------


def training_settings(config: Config, data: Data) -> dict[str, object]:
    """What must not change between the parts of a run, under the flags' names."""
    from distributed.plan import DEFAULT_BATCH_SIZE

    lengths = ("max_seq_length", "doc_stride", "max_query_length")
    schedule = ("learning_rate", "lr_scaling", "num_train_epochs", "warmup_proportion")
    names = (*lengths, *schedule, "global_batch_size", "version_2_with_negative", "seed")
    batch = config.train_batch_size or (None if config.global_batch_size else DEFAULT_BATCH_SIZE)
    settings = {f"--{name}": getattr(config, name) for name in names}
    return settings | {"--train_batch_size": batch, "training data (digest)": data.key}


def fine_tune(
    config: Config,
    world: "World",
    collectives: "Collectives",
    run: "Run",
    begin: start.Start,
    model: "Bert",
    tokenizer: "Tokenizer",
    data: Data,
) -> None:
    """Trains `model` from where `begin` says to the end of the plan; leaves it in `output_dir/model`."""
    from bert import weights
    from bert.optimizer import AdamWeightDecay, WarmupDecay
    from distributed.checkpoint import Checkpoints, set_aside
    from distributed.optimizer import AllreduceOptimizer
    from distributed.plan import make_plan, rate_warning
    from distributed.run import environment
    from distributed.train import train

    plan = make_plan(
        len(data.windows),
        world.size,
        learning_rate=config.learning_rate,
        epochs=config.num_train_epochs,
        train_batch_size=config.train_batch_size,
        global_batch_size=config.global_batch_size,
        accumulation=config.gradient_accumulation_steps,
        warmup_proportion=config.warmup_proportion,
        lr_scaling=config.lr_scaling,
    )
    run.say(str(plan))
    if warning := rate_warning(plan):
        run.say(warning)
    optimizer = AllreduceOptimizer(
        AdamWeightDecay(WarmupDecay(plan.learning_rate, plan.steps, plan.warmup_steps)),
        model.trainable_variables,
        world,
        collectives,
    )
    world.agree(
        {
            "the vocabulary": tokenizer.digest,
            "the data": (data.key, len(data.windows)),
            "the plan": plan,
            "the start": begin,
            "the tensors": [(name, tuple(v.shape)) for name, v in model.named_tensors().items()],
        }
    )
    checkpoints = Checkpoints(
        run.folder / start.CHECKPOINTS,
        world,
        lambda folder: weights.save(model, folder, tokenizer),
        config.keep_checkpoints,
    )

    def restore() -> None:
        new = () if begin.state else weights.HEAD_TENSORS["span"]
        if begin.weights is None:
            run.say(f"weights: initial values, seed {config.seed}: training from scratch")
            return
        run.say(f"weights: {weights.load(model, begin.weights, new=new)} ({begin.why})")
        if begin.checkpoint:
            checkpoints.restore(begin.checkpoint, optimizer)

    world.on_first(restore)
    optimizer.broadcast_variables()
    optimizer.check_replicas()
    state = begin.state and replace(begin.state, step=start.resumed_step(begin.state, plan))
    if begin.state and state:
        if state.step != begin.state.step:  # other ranks, other steps: the schedule goes on at the same progress
            optimizer.optimizer.iterations.assign(state.step)
        run.rewind_metrics(state.position)
    else:
        run.remove("metrics.jsonl")
    goes_on_here = begin.checkpoint is not None and begin.checkpoint.parent == checkpoints.folder
    if not goes_on_here and (aside := world.on_first(set_aside, checkpoints.folder)):
        run.say(f"the checkpoints of the run before are kept in {aside}")
    if state is None or state.step < plan.steps:
        told = {"config": asdict(config), "plan": asdict(plan), "start": begin.why, "environment": environment()}
        run.write_json("run.json", told)
    train(
        world,
        optimizer,
        plan,
        data.windows,
        run,
        checkpoints,
        collate=collate,
        weights=lambda batch: {"loss": float(len(batch["input_ids"]))},
        loss=lambda batch, key: {"loss": span_loss(model(batch, dropout_key=key), batch)},
        seed=config.seed,
        settings=training_settings(config, data),
        start=state,
        save_every=config.save_checkpoints_steps,
        log_every=config.log_steps,
    )
    world.on_first(run.replace_folder, "model", lambda folder: weights.save(model, folder, tokenizer))


def span_loss(scores_BT2: "tf.Tensor", batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
    """Sum over rows of (cross-entropy of the start + cross-entropy of the end) / 2, padding left out."""
    import tensorflow as tf

    padding_BT1 = tf.cast(batch["example_ids"] == 0, scores_BT2.dtype)[:, :, None]
    log_probs_BT2 = tf.nn.log_softmax(scores_BT2 - LARGE * padding_BT1, axis=1)
    targets_B2 = tf.stack([batch["start_position"], batch["end_position"]], 1)
    found_B2 = tf.gather(tf.transpose(log_probs_BT2, [0, 2, 1]), targets_B2, batch_dims=2)
    return -tf.reduce_sum(found_B2) / 2


# -- prediction ---------------------------------------------------------------------------------------------------


def predict_windows(
    config: Config, world: "World", run: "Run", model: "Bert", windows: "Rows"
) -> "list[np.ndarray] | None":
    """Start and end scores of every window, float32 [tokens, 2], on rank 0; None elsewhere."""
    import numpy as np
    import tensorflow as tf

    from distributed.rows import fixed_batches
    from distributed.train import predict

    lengths = np.diff(windows.column("input_ids")[1])
    batches = fixed_batches(lengths, config.predict_batch_size)
    names = ("input_ids", "token_type_ids", "position_ids", "example_ids")
    signature = {name: tf.TensorSpec([None, None], tf.int32) for name in names}
    forward = tf.function(lambda batch: model(batch), input_signature=[signature], autograph=False)

    def inputs(fields: dict) -> "Batch":
        batch = collate(fields)
        return {name: batch[name] for name in names}

    outputs = predict(world, windows, batches, run, collate=inputs, forward=forward)
    if outputs is None:
        return None
    scores: list = [None] * len(windows)
    for batch, scores_BT2 in zip(batches, outputs, strict=True):
        for row, window in enumerate(batch):
            scores[window] = scores_BT2[row, : lengths[window]]
    return scores


def write_predictions(config: Config, run: "Run", data: Data, scores: "list[np.ndarray]") -> dict[str, float]:
    """Answers and scores into Google's files; the scores. On rank 0."""
    from tasks import squad_answers, squad_metrics

    examples = read_examples(config, training=False)
    answers = squad_answers.find_answers(
        examples,
        data.windows,
        data.paragraphs,
        scores,
        n_best_size=config.n_best_size,
        max_answer_length=config.max_answer_length,
        version_2=config.version_2_with_negative,
        null_score_diff_threshold=config.null_score_diff_threshold,
    )
    run.write_json("predictions.json", answers.predictions)
    run.write_json("nbest_predictions.json", answers.nbest)
    if config.version_2_with_negative:
        run.write_json("null_odds.json", answers.null_odds)
    if not examples.is_labelled:
        run.say(f"{examples.source} has no answers: predictions are written, not scored")
        return {}
    metric = config.metric
    if metric == "auto":
        korean = "korquad" in examples.version.lower()
        metric = "squad_v2" if config.version_2_with_negative else "korquad_v1" if korean else "squad_v1"
    if metric == "squad_v2":
        result = squad_metrics.squad_v2(examples.references, answers.predictions)
        best = squad_metrics.squad_v2(examples.references, answers.predictions, answers.null_odds)
        result |= {name: value for name, value in best.items() if name.startswith("best_")}
    else:
        result = getattr(squad_metrics, metric)(examples.references, answers.predictions)
    run.write("eval_results.txt", "".join(f"{name} = {value}\n" for name, value in sorted(result.items())))
    return result


if __name__ == "__main__":
    main()
