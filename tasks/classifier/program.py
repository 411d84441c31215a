"""bert-classifier: fine-tune BERT to label texts or pairs of texts (google-research/bert `run_classifier.py`).

The data are those of GLUE's and other tasks (`--task_name`; the table is in tasks.py), or your own files with
named columns. Start reading at `run_classifier`, below.
"""

from collections.abc import Callable, Mapping
from functools import partial

from bert import hub
from bert.model import Bert
from distributed import phases
from distributed.feed import Feed
from distributed.order import Order
from distributed.train import HeldOut
from ringbase.settings import flat
from tasks.classifier.evaluation import evaluate, scorer, write_predictions
from tasks.classifier.labels import decide_labels, is_trained_on_pairs, with_classifier
from tasks.classifier.loss import class_weights, example_weights, label_loss
from tasks.classifier.reading import Source
from tasks.classifier.rows import DataSet, collate, open_set
from tasks.classifier.runs import run_seeds
from tasks.classifier.settings import ClassifierConfig, EvaluationSettings, TextSettings
from tasks.classifier.tasks import Labels, Task, find_task, task_of
from tasks.environment import result_file
from tasks.fit import Training, fit, load_for_prediction, write_eval_results
from tasks.job import Job, run_on_ranks
from tasks.start import Needs, find_start


def run(config: ClassifierConfig) -> None:
    work = partial(run_seeds, config, program=run_classifier)
    run_on_ranks("bert-classifier", config, config.machine, config.output_dir, work)


def run_classifier(config: ClassifierConfig, job: Job) -> dict[str, float]:
    """Trains, evaluates and predicts as the flags say, on every rank. Returns the scores."""
    # Configuration, tokenizer, weights and labels are found on rank 0; the rows are built once per machine.
    world, run, texts, evaluation = job.world, job.run, config.texts, config.evaluation
    max_seq_length, seed = config.examples.max_seq_length, config.training.loop.seed
    needs = Needs(max_seq_length=max_seq_length)
    resume = job.resume(config.training.resume)
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
    model = job.engine.bert(start.bert_config, "classifier", seed)
    score_rows = scorer(job, max_seq_length)

    def dev_scores() -> dict[str, float]:
        return evaluate(task, labels, dev_sets, score_rows, evaluation.eval_batch_size, job)

    steps = start.state.step if start.state else None
    if config.do_train:
        held_out = held_out_of(evaluation, task, dev_sets, dev_scores)
        work = training_of(config, model, labels, train_sets[0], held_out)
        steps = fit(config.training, job, start, work, {"config": flat(config), "data_set": commit_of(texts)})
    else:
        run.remove(result_file(trains=False))  # from here on the command is not complete
        load_for_prediction(job, start, model)

    scores: dict[str, float] = {}
    if evaluation.do_eval:
        scores = dev_scores()
        write_eval_results(run, scores, scores["eval_loss"], steps)
    for test_set in test_sets:
        outputs = score_rows(test_set.rows, config.predict_batch_size)
        scores |= world.on_first(write_predictions, task, test_set, labels, outputs, run)
    job.finish(config.do_train, {"scores": scores})
    run.say(f"done: {config.output_dir}" + "".join(f", {name} {value:.4f}" for name, value in scores.items()))
    return scores


def training_of(
    config: ClassifierConfig, model: Bert, labels: Labels, train_set: DataSet, held_out: HeldOut | None
) -> Training:
    """The training of a classifier: its data, its loss (weighted by `--class_weights`) and its settings."""
    max_seq_length = config.examples.max_seq_length
    facts = {"--max_seq_length": max_seq_length, "--class_weights": config.class_weights}
    weight_of_label = class_weights(config.class_weights, labels, train_set.rows)
    feed = Feed(
        rows=train_set.rows,
        order=Order(len(train_set.rows), config.training.loop.seed),
        collate=collate,
        weights=lambda batch: {"loss": float(example_weights(batch, weight_of_label).sum())},
        lengths=partial(train_set.rows.lengths_at, "input_ids"),
        longest=max_seq_length,
    )
    return Training(
        model=model,
        feed=feed,
        loss=lambda batch, key: {"loss": label_loss(model(batch, dropout_key=key), batch, weight_of_label)},
        data_key=train_set.key,
        settings=facts | config.training.schedule() | {"training data (digest)": train_set.key},
        held_out=held_out,
    )


def held_out_of(
    settings: EvaluationSettings,
    task: Task,
    dev_sets: list[DataSet],
    dev_scores: Callable[[], Mapping[str, float]],
) -> HeldOut | None:
    """The evaluation during training that the flags ask for; None without one."""
    if not settings.during_training:
        return None
    return HeldOut(
        measure=dev_scores,
        tokens=sum(int(dev_set.rows.lengths("input_ids").sum()) for dev_set in dev_sets),
        every=settings.eval_steps or "epoch",
        best=f"eval_{task.metrics[0]}" if settings.keeps_best else None,
        patience=settings.early_stopping_patience,
    )


def commit_of(texts: TextSettings) -> str | None:
    """The hub's commit of the data, as far as the hub's cache tells it; None for other data."""
    source = find_task(str(texts.task_name)).hub if texts.from_hub else None
    return hub.cached_commit(source.name, texts.dataset_revision or source.revision) if source else None
