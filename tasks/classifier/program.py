"""bert-classifier: fine-tune BERT to label texts or pairs of texts (google-research/bert `run_classifier.py`).

GLUE's tasks and others by `--task_name` (their table is tasks/classifier_tasks.py), or any file of yours by its
columns. The story is `run_classifier`, below. Tensors bear their shape as a suffix: B rows, L labels.
"""

import gc
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ringbert.errors import InputError
from ringbert.ragged import padded
from ringbert.settings import check_at_least, setting
from tasks import flags
from tasks.batches import INPUTS, encoder_inputs, grouped, num_examples, prediction_batches
from tasks.classifier.sets import (
    DataSet,
    Labels,
    decide_labels,
    labels_of_weights,
    open_set,
    read_texts,
    task_of,
    with_labels,
)
from tasks.fit import TrainingSettings, fit, load_for_prediction, write_eval_results
from tasks.job import Job, run_on_ranks
from tasks.origin import Needs, find_origin

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from bert.model import Bert
    from bert.packing import Grouping
    from distributed.evaluation import HeldOut
    from distributed.feed import Batch
    from distributed.rows import Rows
    from distributed.run import Run
    from distributed.train import Training
    from tasks.classifier.tasks import Task
    from tasks.origin import Origin

HEAD = ("output_weights", "output_bias")


@dataclass(frozen=True, kw_only=True)
class Config(TrainingSettings):
    """The flags of bert-classifier: names and defaults of run_classifier.py, and a few of ours."""

    task_name: str | None = setting(
        None,
        "cola sst-2 mrpc sts-b qqp mnli qnli rte wnli ax xnli nsmc kornli korsts; or none, with files of your own",
        "data",
    )
    data_dir: str | None = setting(None, "folder of the task's files, as GLUE lays them out", "data")
    from_hub: bool = setting(False, "take the task's data from the hub instead of --data_dir", "data")
    language: str = setting("en", "XNLI: language of the examples", "data")
    train_file: str | None = setting(None, "CSV, TSV, JSON lines or Parquet to train on", "data")
    dev_file: str | None = setting(None, "the same, to evaluate", "data", aliases=("validation_file",))
    predict_file: str | None = setting(None, "the same, to predict", "data", aliases=("test_file",))
    text_column: str = setting("text", "column of the text", "data")
    text_pair_column: str | None = setting(None, "column of the second text", "data")
    label_column: str = setting("label", "column of the label", "data")
    regression: bool = setting(False, "the labels of the files are numbers to predict", "data")
    max_train_examples: int | None = setting(None, "train on the first N examples", "data")
    max_predict_examples: int | None = setting(None, "evaluate and predict the first N examples", "data")
    max_seq_length: int = setting(128, "tokens per example", "data")
    allow_unknown: bool = setting(False, "go on although more than 10 % of the tokens are [UNK]", "data")

    class_weights: str | None = setting(
        None, "balanced, or LABEL=WEIGHT,…: how much an example of a label counts in the loss", "training"
    )
    seeds: str | None = setting(
        None, "several runs, such as 1,2,3, each in output_dir/seed-N; mean and deviation", "training"
    )

    do_eval: bool = setting(False, "score the dev set", "evaluation")
    eval_batch_size: int = setting(
        8, "examples of --max_seq_length per evaluation batch; of shorter ones more", "evaluation"
    )
    eval_steps: int | Literal["auto"] | None = setting(
        None,
        "score the dev set every N steps of training too (an epoch, when the next flags need it); "
        "auto: as often as takes at most 2 % of the time",
        "evaluation",
    )
    load_best_model_at_end: bool = setting(
        False, "keep the model of the best dev score instead of the last", "evaluation"
    )
    early_stopping_patience: int | None = setting(
        None, "stop after N dev scores without a better one; keeps the best model", "evaluation"
    )
    do_predict: bool = setting(False, "predict the test set", "prediction")
    predict_batch_size: int = setting(
        8, "examples of --max_seq_length per prediction batch; of shorter ones more", "prediction"
    )

    def __post_init__(self):
        super().__post_init__()
        if not (self.do_train or self.do_eval or self.do_predict):
            raise ValueError("nothing to do: give --do_train, --do_eval, --do_predict or several of them")
        if self.task_name and not (self.data_dir or self.from_hub):
            raise ValueError("--task_name needs --data_dir, the folder of its files (or --from_hub)")
        if self.task_name and (self.train_file or self.dev_file or self.predict_file):
            raise ValueError("--task_name and files of your own exclude each other: the task names its files")
        evaluates = self.do_eval or self.evaluates_while_training
        for wanted, flag, why in (
            (self.do_train, "train_file", "--do_train"),
            (evaluates, "dev_file", "--do_eval or a flag that scores the dev set"),
            (self.do_predict, "predict_file", "--do_predict"),
        ):
            if wanted and not self.task_name and not getattr(self, flag):
                raise ValueError(f"{why} needs --{flag}, or --task_name and --data_dir")
        check_at_least(self, 4, "max_seq_length")
        check_at_least(self, 1, "max_train_examples", "max_predict_examples", "eval_batch_size")
        check_at_least(self, 1, "predict_batch_size", "eval_steps", "early_stopping_patience")
        if self.from_hub and not self.task_name:
            raise ValueError("--from_hub needs --task_name")
        if self.regression and self.task_name:
            raise ValueError("--regression is for files of your own: --task_name knows it of the task")
        seeds = [] if self.seeds is None else self.seeds.split(",")
        if not all(re.fullmatch("[0-9]+", seed) for seed in seeds) or len(set(map(int, seeds))) < len(seeds):
            raise ValueError(f"--seeds {self.seeds}: different numbers separated by commas are needed")

    @property
    def evaluates_while_training(self) -> bool:
        return bool(self.eval_steps or self.keeps_best)

    @property
    def keeps_best(self) -> bool:
        return self.load_best_model_at_end or self.early_stopping_patience is not None


def main(argv: Sequence[str] | None = None) -> None:
    description = "Fine-tune BERT to label texts or pairs of texts over all MPI ranks."
    config = flags.parse(Config, argv, prog="bert-classifier", description=description)
    program = run_classifier if config.seeds is None else run_seeds
    run_on_ranks("bert-classifier", config, config.output_dir, program)


def run_classifier(config: Config, job: Job) -> dict[str, float]:
    """Trains, evaluates and predicts as the flags say, on every rank; the scores of the dev set."""
    from bert.model import Bert

    # Configuration, tokenizer, weights and labels are found on rank 0; the rows are built once per machine.
    world, run = job.world, job.run
    task = task_of(config)
    origin = world.on_first(find_origin, config, run, config.do_train, Needs(max_seq_length=config.max_seq_length))
    labels = world.on_first(decide_labels, config, task, origin, run)
    stated = world.on_first(labels_of_weights, origin)
    origin = replace(
        origin,
        bert_config=with_labels(origin.bert_config, labels),
        fresh_tensors=HEAD if stated is not None and sorted(stated) != sorted(labels or ()) else (),
    )
    train_set = open_set(config, job, task, "train", origin, labels) if config.do_train else None
    wants_dev = config.do_eval or (config.do_train and config.evaluates_while_training)
    dev_sets = open_sets(config, job, task, "dev", origin, labels) if wants_dev else []
    test_sets = open_sets(config, job, task, "test", origin, labels) if config.do_predict else []
    model = Bert(origin.bert_config, "classifier", seed=config.seed)
    score_rows = scorer(config, job, model)

    def dev_scores() -> dict[str, float]:
        return evaluate(config, job, task, labels, dev_sets, score_rows)

    steps = origin.state.step if origin.state else None
    if train_set:
        held_out = held_out_of(config, task, dev_sets, dev_scores)
        steps = fit(config, job, origin, training_of(config, model, labels, train_set, held_out))
    else:
        run.remove("result.json")  # from here on the run is not complete
        load_for_prediction(job, origin, model)

    scores: dict[str, float] = {}
    if config.do_eval:
        scores = dev_scores()
        write_eval_results(run, scores, scores["eval_loss"], steps)
    for test_set in test_sets:
        outputs = score_rows(test_set.rows, config.predict_batch_size)
        scores |= world.on_first(write_predictions, config, run, task, test_set, labels, outputs)
    job.finish({"scores": scores})
    run.say(f"done: {config.output_dir}" + "".join(f", {name} {value:.4f}" for name, value in scores.items()))
    return scores


def open_sets(
    config: Config, job: Job, task: "Task", kind: str, origin: "Origin", labels: Labels
) -> list[DataSet]:
    """The task's sets of a kind, "dev" or "test"; MNLI has two of each."""
    names = task.splits_of(kind)
    if not names:
        task.split(kind)  # raises the error that names those there are
    return [open_set(config, job, task, split, origin, labels) for split in names]


def run_seeds(config: Config, job: Job) -> None:
    """The same once for each of `--seeds`; means and standard deviations into the files of `output_dir`."""
    import keras

    from distributed.run import Run

    job.run.remove("result.json")
    results: dict[str, dict[str, float]] = {}
    for seed in str(config.seeds).split(","):
        folder = Path(config.output_dir).expanduser() / f"seed-{seed}"
        job.run.say(f"seed {seed}")
        with_seed = replace(config, seed=int(seed), output_dir=str(folder), seeds=None)
        run = Run.of(folder, job.world)
        results[seed] = run_classifier(with_seed, replace(job, run=run))
        run.close()
        keras.backend.clear_session()
        gc.collect()  # the last seed's model and compiled functions hold each other
    names = list(next(iter(results.values())))
    columns = {name: [scores[name] for scores in results.values()] for name in names}
    means = {name: statistics.mean(values) for name, values in columns.items()}
    deviations = {name: statistics.stdev(v) if len(v) > 1 else 0.0 for name, v in columns.items()}
    lines = [f"{name} = {means[name]:.4f} ± {deviations[name]:.4f} ({len(results)} seeds)\n" for name in names]
    job.run.write("eval_results.txt", "".join(lines))
    job.finish({"scores": means, "standard_deviations": deviations, "seeds": results})
    job.run.say("".join(lines).strip())


# -- training -----------------------------------------------------------------------------------------------------


def training_of(
    config: Config, model: "Bert", labels: Labels, train_set: DataSet, held_out: "HeldOut | None"
) -> "Training":
    """What is trained: the label of each example, weighted by `--class_weights`."""
    from distributed.feed import Feed
    from distributed.order import Order
    from distributed.train import Training

    weight_of_label = class_weights(config.class_weights, labels, train_set.rows)
    feed = Feed(
        rows=train_set.rows,
        order=Order(len(train_set.rows), config.seed),
        collate=collate,
        weights=lambda batch: {"loss": float(example_weights(batch, weight_of_label).sum())},
        lengths=partial(train_set.rows.lengths_at, "input_ids"),
        longest=config.max_seq_length,
    )
    return Training(
        model=model,
        feed=feed,
        loss=lambda batch, key: {"loss": label_loss(model(batch, dropout_key=key), batch, weight_of_label)},
        data_key=train_set.key,
        settings=config.run_settings(train_set.key, "max_seq_length", "class_weights"),
        held_out=held_out,
    )


def collate(fields: dict, grouping: "Grouping | None" = None) -> "Batch":
    """Examples -> the encoder's inputs, their first tokens [B] and their labels [B]."""
    fields, groups = grouped(fields, grouping)
    batch = encoder_inputs(fields, groups)
    return batch | {"label": padded(fields["label"], len(batch["first_tokens"]))}


def class_weights(given: str | None, labels: Labels, rows: "Rows") -> "np.ndarray | None":
    """The weight of an example by its label, float32 [L]; None for equal weights.

    "balanced" is n / (L * examples of the label), scikit-learn's definition. Raises InputError: a label without
    a weight or an example, an unknown label, a weight that is no positive number.
    """
    import numpy as np

    if given is None:
        return None
    if labels is None:
        raise InputError("--class_weights needs labels: a regression has none")
    if given == "balanced":
        counts = np.bincount(np.asarray(rows.column("label")), minlength=len(labels))
        if not counts.all():
            raise InputError(f"--class_weights balanced: no example has label {labels[int(np.argmin(counts))]}")
        return (counts.sum() / (len(labels) * counts)).astype(np.float32)
    weights = {}
    for part in given.split(","):
        name, _, text = part.rpartition("=")
        try:
            weights[name] = float(text)
        except ValueError:
            weights[name] = 0.0
        if name not in labels or not 0 < weights[name] < float("inf"):
            raise InputError(f"--class_weights {part}: LABEL=WEIGHT, with one of {', '.join(labels)}, is needed")
    absent = [name for name in labels if name not in weights]
    if absent:
        raise InputError(f"--class_weights {given}: no weight for {', '.join(absent)}")
    return np.array([weights[name] for name in labels], np.float32)


def example_weights(batch: "Batch", weight_of_label: "np.ndarray | None") -> "np.ndarray":
    """How much each example counts in the loss."""
    import numpy as np

    label = batch["label"][: num_examples(batch)]
    return np.ones(len(label)) if weight_of_label is None else weight_of_label[label].astype(np.float64)


def label_loss(
    scores_BL: "tf.Tensor", batch: dict[str, "tf.Tensor"], weight_of_label: "np.ndarray | None"
) -> "tf.Tensor":
    """Weighted sum over rows of the cross-entropy, or of the squared error when the label is a number."""
    import tensorflow as tf

    from bert.inputs import is_example

    label = batch["label"]
    if label.dtype.is_floating:
        return tf.reduce_sum(tf.square(scores_BL[:, 0] - label) * is_example(batch))
    losses_B = tf.nn.sparse_softmax_cross_entropy_with_logits(label, scores_BL)
    if weight_of_label is not None:
        losses_B *= tf.gather(tf.constant(weight_of_label), label)
    return tf.reduce_sum(losses_B * is_example(batch))


def held_out_of(config: Config, task: "Task", dev_sets: list[DataSet], dev_scores: Any) -> "HeldOut | None":
    """What the flags ask to be measured while training."""
    from distributed.evaluation import HeldOut

    if not config.evaluates_while_training:
        return None
    return HeldOut(
        measure=dev_scores,
        tokens=sum(int(dev_set.rows.lengths("input_ids").sum()) for dev_set in dev_sets),
        every=config.eval_steps or "epoch",
        best=f"eval_{task.primary_metric}" if config.keeps_best else None,
        patience=config.early_stopping_patience,
    )


# -- evaluation and prediction ------------------------------------------------------------------------------------


def scorer(config: Config, job: Job, model: "Bert") -> Any:
    """A function (rows, batch size) -> scores, float32 [n, L], in the order of the rows; None off rank 0."""
    import numpy as np
    import tensorflow as tf

    from distributed.feed import batch_maker
    from distributed.predict import predict

    signature = {name: tf.TensorSpec([None, None], tf.int32) for name in INPUTS}
    signature["first_tokens"] = tf.TensorSpec([None], tf.int32)
    forward = tf.function(lambda batch: model(batch), input_signature=[signature], autograph=False)

    def inputs(fields: dict) -> "Batch":
        batch = collate(fields)
        return {name: batch[name] for name in signature}

    def score_rows(rows: "Rows", batch_size: int) -> "np.ndarray | None":
        batches = prediction_batches(rows.lengths("input_ids"), batch_size, config.max_seq_length)
        advice = "lower --eval_batch_size, --predict_batch_size or --max_seq_length"
        make_batch = batch_maker(rows, inputs)
        outputs = predict(job.world, job.run, batches, make_batch, forward, memory_advice=advice)
        if outputs is None:
            return None
        scores_BL = np.empty((len(rows), outputs[0].shape[1]), np.float32)
        scores_BL[np.concatenate(batches)] = np.concatenate(outputs)
        return scores_BL

    return score_rows


def evaluate(
    config: Config, job: Job, task: "Task", labels: Labels, dev_sets: list[DataSet], score_rows: Any
) -> dict[str, float]:
    """The task's metrics and the mean loss of each dev set, the same values on every rank."""
    found: dict[str, float] = {}
    for dev_set in dev_sets:
        prefix = f"eval{suffix_of(task, dev_set.split)}_"
        scores_BL = score_rows(dev_set.rows, config.eval_batch_size)
        found |= job.world.on_first(measure, task, dev_set.rows, labels, scores_BL, prefix)
    return found


def measure(task: "Task", rows: "Rows", labels: Labels, scores_BL: "np.ndarray", prefix: str) -> dict[str, float]:
    """The task's metrics and the mean loss, their names after `prefix`. On rank 0."""
    import numpy as np
    from scipy.special import log_softmax

    from tasks.classifier import metrics as classifier_metrics

    label = np.asarray(rows.column("label"))
    if labels is None:
        predictions = scores_BL[:, 0].astype(np.float64)
        loss = np.mean(np.square(predictions - label))
    else:
        predictions = scores_BL.argmax(1)
        loss = -np.mean(log_softmax(scores_BL.astype(np.float64), 1)[np.arange(len(label)), label])
    values = classifier_metrics.scores(task.metrics, label, predictions)
    return {f"{prefix}{name}": float(value) for name, value in (values | {"loss": loss}).items()}


def write_predictions(
    config: Config, run: "Run", task: "Task", test_set: DataSet, labels: Labels, scores_BL: "np.ndarray"
) -> dict[str, float]:
    """Google's test_results.tsv (probabilities, no header), the labels under the examples' ids (GLUE's submission
    file), and the scores if the set has labels. On rank 0."""
    from scipy.special import softmax

    from tasks.classifier.tasks import submission

    suffix = suffix_of(task, test_set.split)
    shown = scores_BL if labels is None else softmax(scores_BL.astype(float), 1)
    run.write(f"test_results{suffix}.tsv", "".join("\t".join(map(str, row)) + "\n" for row in shown.tolist()))
    texts = read_texts(config, task, test_set.split)
    predicted = scores_BL[:, 0].tolist() if labels is None else [labels[n] for n in scores_BL.argmax(1)]
    name = task.split(test_set.split).submission or f"predictions{suffix}.tsv"
    run.write(name, submission(task, texts.ids, predicted))
    if not test_set.is_labelled:
        return {}
    return measure(task, test_set.rows, labels, scores_BL, f"predict{suffix}_")


def suffix_of(task: "Task", split: str) -> str:
    """What the names of a set's scores and files end in: nothing for the first of its kind, the only one that
    run_classifier.py knows, "_mismatched" for MNLI's other."""
    kind = split.split("_")[0]
    return "" if split == task.splits_of(kind)[0] else split.removeprefix(kind)


if __name__ == "__main__":
    main()
