"""bert-classifier: fine-tune BERT to label texts or pairs of texts (google-research/bert
`run_classifier.py`).

The data are those of a task in named_tasks.py, or your own files. Start reading at
`run_classifier`, below.
"""

import contextlib
import statistics
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bert.configuration import BertConfig
from bert.model import Bert
from distributed.run import Run
from ringbase.errors import InputError
from ringbase.settings import flat, made
from tasks.cache import Prepared
from tasks.classifier.details import details
from tasks.classifier.named_tasks import Labels, NamedTask
from tasks.classifier.reading import Source, sources
from tasks.classifier.rows import open_set
from tasks.classifier.scoring import measure, write_predictions
from tasks.classifier.settings import ClassifierConfig
from tasks.classifier.several import THRESHOLDS
from tasks.classifier.task import LabelTask, class_weights, labels_of, with_labels
from tasks.environment import result_file
from tasks.evaluation import evaluations, write_eval_results
from tasks.job import Job, run_on_ranks
from tasks.predict import Predictor
from tasks.start import Needs, Start, start_of_run
from tasks.texts import Preparation
from tasks.trained import TASK_FILE, saved_settings, settings_of
from tasks.training import Training, TrainingData

Scores = dict[str, float]
Sets = list[tuple[Source, Prepared]]


@dataclass(frozen=True)
class Shared:
    """What the runs of all seeds have in common: data, and a model with all that is compiled for
    it."""

    origin: tuple[BertConfig, str]  # the model's configuration and the tokenizer's digest
    task: NamedTask
    labels: Labels
    model: Bert
    predictor: Predictor
    dev_sets: Sets
    test_sets: Sets
    training: Training | None


def run(config: ClassifierConfig) -> None:
    run_on_ranks("bert-classifier", config, config.machine, config.output_dir, run_classifier)


def run_classifier(config: ClassifierConfig, job: Job) -> Scores:
    """Runs once, or once for each of `--seeds`. Returns the scores, or their means."""
    shared, results = None, dict[int, Scores]()
    with contextlib.closing(runs_of(config, job)) as runs:
        for seed, config_of_run, job_of_run in runs:
            start, task = found_start(config_of_run, job_of_run)
            shared = shared or prepare(config_of_run, job_of_run, start, task)
            if (start.bert_config, start.words.digest) != shared.origin:
                raise InputError(
                    f"{job_of_run.run.folder} starts from another model or tokenizer than the first"
                    " seed's folder: give another --output_dir, or --resume never"
                )
            results[seed] = run_once(shared, config_of_run, job_of_run, start)
    return summed_up(config, job, results) if config.seeds else results[seed]


def runs_of(
    config: ClassifierConfig, job: Job
) -> Generator[tuple[int, ClassifierConfig, Job], None, None]:
    """The seed, the settings and the job of each run: this one, or one for each of `--seeds` in a
    folder of its own."""
    if config.seeds is None:
        yield config.training.loop.seed, config, job
        return
    job.run.remove(result_file(config.do_train))
    for seed in map(int, config.seeds.split(",")):
        job.world.on_first(job.run.lock_again)  # after a death
        job.run.say(f"seed {seed}")
        folder = job.run.folder / f"seed-{seed}"
        values = flat(config) | {"seed": seed, "output_dir": str(folder), "seeds": None}
        with contextlib.closing(Run(folder, job.world)) as run:
            yield seed, made(ClassifierConfig, values), replace(job, run=run, config=values)


def found_start(config: ClassifierConfig, job: Job) -> tuple[Start, NamedTask]:
    """Where a run starts. Configuration, tokenizer, weights and labels are found on rank 0."""
    start = start_of_run(config, job, Needs(config.examples.max_seq_length))
    task, start = job.world.on_first(with_labels, config, start, job.run)
    return start, task


def prepare(config: ClassifierConfig, job: Job, start: Start, task: NamedTask) -> Shared:
    """Reads the data, whose rows are built once per machine, and makes the model."""
    labels, length = labels_of(start.bert_config), config.examples.max_seq_length

    preparation = Preparation(job.world, job.run, start.words, config.examples.allow_unknown)

    def sets(kind: str, is_needed: bool) -> Sets:
        needed = sources(config.texts, task, kind) if is_needed else []
        return [
            (source, open_set(source, labels, config.examples, preparation)) for source in needed
        ]

    train_sets = sets("train", config.do_train)
    dev_sets = sets("dev", config.evaluation.needs_dev_set(config.do_train))
    test_sets = sets("test", config.do_predict)
    examples = train_sets[0][1].tables["examples"] if train_sets else None
    weights = class_weights(config.class_weights, labels, examples) if examples else None
    num_labels = len(labels or ()) if task.has_several else 0
    label_task = LabelTask(length, weights, saved_settings(config), num_labels)
    model = start.model(label_task.head)
    training = None
    if train_sets:
        source, train_set = train_sets[0]
        fixed = {"max_seq_length": length, "class_weights": config.class_weights}
        data = TrainingData.of(train_set, "examples", fixed, source.commit)
        training = Training(model, label_task, data, config.training, job)
    predictor = Predictor(model, label_task.batch, length, job)
    origin = start.bert_config, start.words.digest
    return Shared(origin, task, labels, model, predictor, dev_sets, test_sets, training)


def run_once(shared: Shared, config: ClassifierConfig, job: Job, start: Start) -> Scores:
    """Trains, evaluates and predicts as the flags say, on every rank. Returns the scores."""
    world, run, evaluation = job.world, job.run, config.evaluation
    labels, predictor = shared.labels, shared.predictor
    dev_outputs = dict[str, Any]()  # of the last evaluation

    def dev_scores() -> Scores:
        scores: Scores = {}
        for source, data in shared.dev_sets:
            outputs = predictor(data.tables["examples"], evaluation.eval_batch_size)
            dev_outputs[source.split] = outputs
            scores |= world.on_first(measure, "eval", source, data, labels, outputs)
        return scores

    if shared.training:
        num_rows = sum(len(dev.tables["examples"]) for _, dev in shared.dev_sets)
        held_out = evaluations(evaluation, dev_scores, shared.task.metrics[0], num_rows)
        seed = config.training.loop.seed
        steps: int | None = shared.training.run(start, job, seed, held_out)
    else:
        steps = start.load(shared.model, world, run)

    scores, facts = Scores(), dict[str, Any]()
    thresholds = {} if config.do_train else world.on_first(trained_thresholds, start)
    if evaluation.do_eval:
        scores = dev_scores()
        write_eval_results(run, {**scores, "loss": scores["eval_loss"], "global_step": steps})
        facts = world.on_first(details, shared.dev_sets, dev_outputs, labels)
        if config.do_train and THRESHOLDS in facts:
            thresholds = facts[THRESHOLDS]
            settings = {**saved_settings(config), THRESHOLDS: thresholds}
            run.write_json(f"model/{TASK_FILE}", settings)
    for source, data in shared.test_sets:
        outputs = predictor(data.tables["examples"], config.predict_batch_size)
        scores |= world.on_first(write_predictions, source, data, labels, outputs, run, thresholds)
    job.finish(config.do_train, scores, facts)
    return scores


def summed_up(config: ClassifierConfig, job: Job, results: Mapping[int, Scores]) -> Scores:
    """Writes means and standard deviations of the seeds' scores into `output_dir`. Returns the
    means."""
    columns = {
        name: [scores[name] for scores in results.values()] for name in next(iter(results.values()))
    }
    means = {name: statistics.mean(values) for name, values in columns.items()}
    deviations = {
        name: statistics.stdev(values) if len(values) > 1 else 0.0
        for name, values in columns.items()
    }
    lines = [
        f"{name} = {means[name]:.4f} ± {deviations[name]:.4f} ({len(results)} seeds)"
        for name in means
    ]
    job.world.on_first(job.run.lock_again)  # after a death
    job.run.write("eval_results.txt", "\n".join(lines) + "\n")
    job.run.say("\n".join(lines))
    job.finish(config.do_train, means, {"standard_deviations": deviations, "seeds": results})
    return means


def trained_thresholds(start: Start) -> dict[str, float]:
    """Those that an evaluation chose for the model, by label."""
    saved = settings_of(start.weights).get(THRESHOLDS) if start.weights else None
    return saved if isinstance(saved, dict) else {}
