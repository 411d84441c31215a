"""bert-classifier: fine-tune BERT to label texts or pairs of texts (google-research/bert `run_classifier.py`).

The data are those of GLUE's and other tasks (`--task_name`; the table is in tasks.py), or your own files with
named columns. Start reading at `run_classifier`, below.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from distributed import phases
from ringbase.settings import setting
from tasks import flags
from tasks.classifier.runs import RunsSettings, run_all
from tasks.classifier.settings import DataSettings, EvaluationSettings
from tasks.fit import fit, load_for_prediction, write_eval_results
from tasks.job import Job, result_file, run_on_ranks
from tasks.origin import Needs, find_origin

if TYPE_CHECKING:
    from bert.model import Bert
    from distributed.evaluation import HeldOut
    from distributed.train import Training
    from tasks.classifier.sets import DataSet
    from tasks.classifier.tasks import Labels, Task


@dataclass(frozen=True, kw_only=True)
class Config(EvaluationSettings, DataSettings, RunsSettings):
    """The flags of bert-classifier: names and defaults of run_classifier.py, and some more."""

    class_weights: str | None = setting(
        None, "weight of each label in the loss: LABEL=WEIGHT,… or balanced", "training"
    )

    def __post_init__(self):
        super().__post_init__()
        if not (self.do_train or self.do_eval or self.do_predict):
            raise ValueError("nothing to do: give --do_train, --do_eval, --do_predict or several of them")
        evaluates = self.do_eval or self.evaluates_while_training
        for wanted, flag, why in (
            (self.do_train, "train_file", "--do_train"),
            (evaluates, "dev_file", "--do_eval or a flag that scores the dev set"),
            (self.do_predict, "predict_file", "--do_predict"),
        ):
            if wanted and not self.task_name and not getattr(self, flag):
                raise ValueError(f"{why} needs --{flag}, or --task_name and --data_dir")

    @property
    def data_set_commit(self) -> str | None:
        from bert import hub
        from tasks.classifier.tasks import find_task

        source = find_task(str(self.task_name)).hub if self.from_hub else None
        return hub.cached_commit(source.name, self.dataset_revision or source.revision) if source else None


def main(argv: Sequence[str] | None = None) -> None:
    description = "Fine-tune BERT to label texts or pairs of texts over all MPI ranks."
    config = flags.parse(Config, argv, prog="bert-classifier", description=description)
    run_on_ranks("bert-classifier", config, config.output_dir, partial(run_all, program=run_classifier))


def run_classifier(config: Config, job: Job) -> dict[str, float]:
    """Trains, evaluates and predicts as the flags say, on every rank. Returns the scores."""
    from tasks.classifier.evaluation import evaluate, scorer, write_predictions
    from tasks.classifier.labels import decide_labels, with_classifier
    from tasks.classifier.sets import is_trained_on_pairs, open_sets, task_of

    # Configuration, tokenizer, weights and labels are found on rank 0; the rows are built once per machine.
    world, run = job.world, job.run
    origin = world.on_first(find_origin, config, run, config.do_train, Needs(max_seq_length=config.max_seq_length))
    has_pairs = not config.do_train and world.on_first(is_trained_on_pairs, origin)
    task = task_of(config, bool(has_pairs))
    if has_pairs and not (config.task_name or config.text_pair_column or config.reads_lines):
        run.say("warning: the model was trained on pairs of texts: --text_pair_column names the second text")
    labels = world.on_first(decide_labels, config, config.do_train, task, origin, run)
    origin = world.on_first(with_classifier, origin, labels)

    def sets(kind: str, is_needed: bool) -> "list[DataSet]":
        return open_sets(config, task, kind, labels, origin.words, job) if is_needed else []

    train_sets = sets("train", config.do_train)
    dev_sets = sets("dev", config.do_eval or (config.do_train and config.evaluates_while_training))
    test_sets = sets("test", config.do_predict)
    phases.ended("data")
    model = job.engine.bert(origin.bert_config, "classifier", config.seed)
    score_rows = scorer(job, config.max_seq_length)

    def dev_scores() -> dict[str, float]:
        return evaluate(task, labels, dev_sets, score_rows, config.eval_batch_size, job)

    steps = origin.state.step if origin.state else None
    if config.do_train:
        held_out = held_out_of(config, task, dev_sets, dev_scores)
        steps = fit(config, job, origin, training_of(config, model, labels, train_sets[0], held_out))
    else:
        run.remove(result_file(trains=False))  # from here on the command is not complete
        load_for_prediction(job, origin, model)

    scores: dict[str, float] = {}
    if config.do_eval:
        scores = dev_scores()
        write_eval_results(run, scores, scores["eval_loss"], steps)
    for test_set in test_sets:
        outputs = score_rows(test_set.rows, config.predict_batch_size)
        scores |= world.on_first(write_predictions, config, task, test_set, labels, outputs, run)
    job.finish(result_file(config.do_train), {"scores": scores})
    run.say(f"done: {config.output_dir}" + "".join(f", {name} {value:.4f}" for name, value in scores.items()))
    return scores


def training_of(
    config: Config, model: "Bert", labels: "Labels", train_set: "DataSet", held_out: "HeldOut | None"
) -> "Training":
    """The training of a classifier: its data, its loss (weighted by `--class_weights`) and its settings."""
    from distributed.feed import Feed
    from distributed.order import Order
    from distributed.train import Training
    from tasks.classifier.examples import collate
    from tasks.classifier.loss import class_weights, example_weights, label_loss

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


def held_out_of(
    config: Config, task: "Task", dev_sets: "list[DataSet]", dev_scores: Callable[[], Mapping[str, float]]
) -> "HeldOut | None":
    """The evaluation during training that the flags ask for; None without one."""
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


if __name__ == "__main__":
    main()
