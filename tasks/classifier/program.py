"""bert-classifier: fine-tune BERT to label texts or pairs of texts (google-research/bert `run_classifier.py`).

The data are those of GLUE's and other tasks (`--task_name`; the table is in named_tasks.py), or your own files
with named columns. Start reading at `run_classifier`, below.
"""

from collections.abc import Callable, Mapping
from functools import partial

from bert import hub
from distributed import phases
from distributed.order import Order
from distributed.train import HeldOut
from tasks.classifier.evaluation import evaluate, score, write_predictions
from tasks.classifier.labels import decide_labels, is_trained_on_pairs, with_classifier
from tasks.classifier.named_tasks import NamedTask, find_task, task_of
from tasks.classifier.reading import Source
from tasks.classifier.rows import DataSet, open_set
from tasks.classifier.runs import run_seeds
from tasks.classifier.settings import ClassifierConfig, EvaluationSettings, TextSettings
from tasks.classifier.task import LabelTask, class_weights
from tasks.environment import result_file
from tasks.fit import TrainingData, fit, load_for_prediction, write_eval_results
from tasks.job import Job, run_on_ranks
from tasks.predict import Predictor
from tasks.start import Needs, find_start


def run(config: ClassifierConfig) -> None:
    work = partial(run_seeds, config, program=run_classifier)
    run_on_ranks("bert-classifier", config, config.machine, config.output_dir, work)


def run_classifier(config: ClassifierConfig, job: Job) -> dict[str, float]:
    """Trains, evaluates and predicts as the flags say, on every rank. Returns the scores."""
    # Configuration, tokenizer, weights and labels are found on rank 0; the rows are built once per machine.
    world, run, texts, evaluation = job.world, job.run, config.texts, config.evaluation
    max_seq_length, seed = config.examples.max_seq_length, config.training.loop.seed
    resume, needs = job.resume(config.training.resume), Needs(max_seq_length)
    start = world.on_first(find_start, config.model, resume, run, config.do_train, needs)
    has_pairs = not config.do_train and world.on_first(is_trained_on_pairs, start)
    task = task_of(texts, bool(has_pairs))
    if has_pairs and not (texts.task_name or texts.text_pair_column or texts.reads_lines):
        run.say("warning: the model was trained on pairs of texts: --text_pair_column names the second text")
    labels = world.on_first(decide_labels, texts, config.do_train, task, start, run)
    start = world.on_first(with_classifier, start, labels)

    def sets(kind: str, is_needed: bool) -> list[DataSet]:
        sources = [Source(texts, task, split) for split in task.splits_of(kind)] if is_needed else []
        return [open_set(source, labels, config.examples, start.words, world, run) for source in sources]

    train_sets = sets("train", config.do_train)
    dev_sets = sets("dev", evaluation.do_eval or (config.do_train and evaluation.during_training))
    test_sets = sets("test", config.do_predict)
    phases.ended("data")
    job.make_model(start.bert_config, "classifier", seed)
    predictor = Predictor(job, LabelTask(max_seq_length).batch, max_seq_length)

    def dev_scores() -> dict[str, float]:
        return evaluate(task, labels, dev_sets, predictor, evaluation.eval_batch_size, job)

    steps = start.state.step if start.state else None
    if config.do_train:
        rows = train_sets[0].rows
        kept = {name: getattr(texts, name) for name in ("task_name", "text_pair_column")}
        weight_of_label = class_weights(config.class_weights, labels, rows)
        label_task = LabelTask(max_seq_length, weight_of_label, kept | {"max_seq_length": max_seq_length})
        held_out = held_out_of(evaluation, task, dev_sets, dev_scores)
        steps = fit(label_task, training_data(config, train_sets[0]), start, config.training, job, held_out)
    else:
        run.remove(result_file(trains=False))  # from here on the command is not complete
        load_for_prediction(job, start)

    scores: dict[str, float] = {}
    if evaluation.do_eval:
        scores = dev_scores()
        write_eval_results(run, scores, scores["eval_loss"], steps)
    for test_set in test_sets:
        outputs = score(predictor, test_set.rows, config.predict_batch_size)
        scores |= world.on_first(write_predictions, task, test_set, labels, outputs, run)
    job.finish(config.do_train, scores)
    return scores


def training_data(config: ClassifierConfig, train_set: DataSet) -> TrainingData:
    """The rows to train on, and what must not change when the run is resumed."""
    return TrainingData(
        rows=train_set.rows,
        order=Order(len(train_set.rows), config.training.loop.seed),
        key=train_set.key,
        settings={"--max_seq_length": config.examples.max_seq_length, "--class_weights": config.class_weights},
        commit=commit_of(config.texts),
    )


def held_out_of(
    settings: EvaluationSettings,
    task: NamedTask,
    dev_sets: list[DataSet],
    dev_scores: Callable[[], Mapping[str, float]],
) -> HeldOut | None:
    """The evaluation during training that the flags ask for; None without one."""
    if not settings.during_training:
        return None
    return HeldOut(
        measure=dev_scores,
        num_rows=sum(len(dev_set.rows) for dev_set in dev_sets),
        every=settings.eval_steps or "epoch",
        best=f"eval_{task.metrics[0]}" if settings.keeps_best else None,
        patience=settings.early_stopping_patience,
    )


def commit_of(texts: TextSettings) -> str | None:
    """The hub's commit of the data, as far as the hub's cache tells it; None for other data."""
    source = find_task(str(texts.task_name)).hub if texts.from_hub else None
    return hub.cached_commit(source.name, texts.dataset_revision or source.revision) if source else None
