"""A program that trains, evaluates and predicts, the same for all tasks: `run_task`."""

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from distributed.run import Run
from distributed.train import HeldOut
from distributed.world import World
from ringbase.errors import InputError
from tasks.runs import history
from tasks.runs.details import REPORT, Section, examples
from tasks.runs.environment import result_file
from tasks.runs.job import Job
from tasks.runs.predict import Predictor
from tasks.runs.settings import FineTuningConfig, SelectionSettings
from tasks.runs.start import Completed, Needs, Start, start_of_run
from tasks.runs.task import DataSet, Record, Scores, Task, open_set
from tasks.runs.texts import Preparation
from tasks.runs.trained import TASK_FILE
from tasks.runs.training import Training, TrainingData

Config = TypeVar("Config", bound=FineTuningConfig)
Results = dict[DataSet, Any]  # of the sets, on rank 0; None on other ranks


class Sets(NamedTuple):
    """The sets that a command needs. Those of `predict` that are in `dev` too are computed once."""

    train: Sequence[DataSet] = ()  # one or none
    dev: Sequence[DataSet] = ()
    predict: Sequence[DataSet] = ()


class SeedRun(NamedTuple):
    """One run of a program: where it starts, its seed, and the job with its folder."""

    seed: int
    job: Job
    start: Start


def open_sets(
    task: Task, sources: Mapping[str, Sequence], runs: Sequence[SeedRun], config: Config, job: Job
) -> Sets:
    """The sets of the sources of "train", one or none, "dev" and "predict". A source in both of
    these is opened once. Rows are made once per machine."""
    preparation = Preparation(job.world, job.run, runs[0].start.words, config.allow_unknown)
    opened: dict[int, DataSet] = {}
    sets: dict[str, list[DataSet]] = {}
    for kind, named in sources.items():
        sets[kind] = []
        for source in named:
            key = id(source)
            if key not in opened:
                opened[key] = open_set(task, source, preparation)
            sets[kind].append(opened[key])
    return Sets(**sets)


def runs_of(
    config: Config, job: Job, max_seq_length: int, completed: Completed[Config] | None = None
) -> list[SeedRun]:
    """The runs of a command: this one, or one for each of `--seeds` in a folder of its own. Raises
    InputError as `start_of_run`, or if two start from different models."""
    runs = []
    for seed in config.each_seed:
        each = job.of_seed(seed) if config.seeds else job
        start = start_of_run(config, each, Needs(max_seq_length), completed)
        runs.append(SeedRun(seed, each, start))
    first = runs[0].start
    for one in runs:
        start = one.start
        if (start.bert_config, start.words.digest) != (first.bert_config, first.words.digest):
            raise InputError(
                f"{one.job.run.folder} starts from another model or tokenizer than the first"
                " seed's folder: give another --output_dir, or --resume never"
            )
    return runs


def run_task(
    task: Task, sets: Sets, runs: Sequence[SeedRun], config: FineTuningConfig, job: Job
) -> Scores:
    """Trains, evaluates and predicts as the flags say, once for each run, on every rank. The model
    is made, traced and compiled once. Returns the scores, or their means over several seeds."""
    model = runs[0].start.model(task.head)
    training = None
    for data in sets.train:
        rows = data.tables[task.train_table or task.table]
        commit = getattr(data.source, "commit", None)
        trained = TrainingData(rows, data.prepared.key, settings=task.fixed, commit=commit)
        training = Training(model, task, trained, config.training, job)
    predictor = Predictor(model, task, job)
    evaluation = Evaluation(task, predictor, sets.dev, config.eval_batch_size, job.world)
    if config.seeds is None:
        return run_once(training, evaluation, sets, runs[0], config)
    job.run.remove(result_file(config.do_train))
    results = dict[int, Scores]()
    for one in runs:
        job.world.on_first(job.run.lock_again)  # after a death
        job.run.say(f"seed {one.seed}")
        with closing(one.job.run):
            results[one.seed] = run_once(training, evaluation, sets, one, config)
    return summed_up(config, job, results)


@dataclass
class Evaluation:
    """The dev sets, and what the model last said about them."""

    task: Task
    predictor: Predictor
    sets: Sequence[DataSet]
    batch_size: int
    world: World
    results: Results = field(default_factory=dict)

    def measure(self) -> Scores:
        """The scores of all sets, the same on every rank."""
        scores = Scores()
        for data in self.sets:
            self.results[data] = self.predictor.results(self.task, data, self.batch_size)
            scores |= self.world.on_first(self.task.scores, "eval", data, self.results[data])
        return scores

    def held_out(self, settings: SelectionSettings) -> HeldOut | None:
        """How a training is evaluated; the best model is that of the highest `task.metric`."""
        if not settings.during_training:
            return None
        return HeldOut(
            measure=self._measure_training,
            num_rows=sum(len(data.rows) for data in self.sets),
            every=settings.eval_steps or "epoch",
            best=self.task.metric if settings.keeps_best else None,
            patience=settings.early_stopping_patience,
        )

    def _measure_training(self) -> Scores:
        scores = self.measure()
        if not scores:
            raise InputError(
                f"{self.sets[0].source}: it says nothing about what is right, which the evaluation"
                " while training needs"
            )
        return scores

    def written(self, run: Run, scores: Scores, steps: int | None) -> dict:
        """Writes the files of the last evaluation, with these scores. Returns what it teaches."""
        # as run_classifier.py, with loss and step where there is a loss
        loss = {"loss": scores["eval_loss"], "global_step": steps} if "eval_loss" in scores else {}
        write_eval_results(run, scores | loss)
        return self.world.on_first(self._learned, run)

    def _learned(self, run: Run) -> dict:
        learned: dict = {}
        for data, results in self.results.items():
            of_set = self.task.calibrated(data, results)
            write_mistakes(run, self.task.taught(of_set), data, results, file_of_mistakes(data))
            learned |= of_set
        return learned

    def details(self, task: Task) -> dict:
        """What result.json holds of the last evaluation besides scores. On rank 0."""
        facts: dict = {}
        sections: list[Section] = []
        for data, results in self.results.items():
            details = task.details(data, results)
            facts |= details.facts
            sections += details.sections
            records = [*task.records(data, results)]
            if records:
                wrong = [record.shown or record.fields for record in mistakes_in(records)]
                share = f"{len(wrong):,} of {len(records):,}"
                note = f"{share}; all of them are in {file_of_mistakes(data)}, the worst first"
                sections.append(examples("Mistakes", note, wrong))
        return facts | {REPORT: sections}


def run_once(
    training: Training | None,
    evaluation: Evaluation,
    sets: Sets,
    one: SeedRun,
    config: FineTuningConfig,
) -> Scores:
    """One run: trains or loads, evaluates, predicts, and writes the files. Returns the scores."""
    task, job, start = evaluation.task, one.job, one.start
    world, run = job.world, job.run
    if training:
        held_out = evaluation.held_out(config.evaluation)
        steps: int | None = training.run(start, job, one.seed, held_out)
    else:
        steps = start.load(evaluation.predictor.model, world, run)
        task = task.taught(world.on_first(start.settings))
    scores, facts, evaluated = Scores(), dict(), Results()
    if config.does_eval:
        scores, evaluated = evaluation.measure(), evaluation.results
    if scores:
        learned = evaluation.written(run, scores, steps)
        facts = learned | world.on_first(evaluation.details, task.taught(learned))
        if training and learned:
            task = task.taught(learned)
            run.write_json(f"model/{TASK_FILE}", {**task.settings, **learned})
    names = [str(data.source) for data in sets.predict if not data.is_printed]
    if names and (replaced := world.on_first(history.predicted, run, names)):
        run.say(f"note: {', '.join(names)} replaces the predictions of {replaced}")
    for data in sets.predict:
        results = evaluated.get(data)
        if data not in evaluated:
            results = evaluation.predictor.results(task, data, config.predict_batch_size)
            if found := world.on_first(task.scores, "predict", data, results):
                scores |= found
                # mistakes.jsonl has those of the dev set
                name = f"predict_mistakes{data.suffix}.jsonl"
                world.on_first(write_mistakes, run, task, data, results, name)
        world.on_first(write_predictions, run, task, data, results)
    if config.does_eval or sets.predict:
        timing = facts["prediction"] = evaluation.predictor.timing
        rows, seconds = timing["rows"], timing["seconds"]
        run.say(f"predicted {rows:,} rows in {seconds:.1f} s, {rows / seconds:.1f} a second")
    job.finish(config.do_train, scores, facts)
    return scores


def write_predictions(run: Run, task: Task, data: DataSet, results: Any) -> None:
    """Writes predictions.jsonl, a line for each example, and the task's other files. On rank 0."""
    if lines := [line_of(record) for record in task.records(data, results)]:
        run.write(f"predictions{data.suffix}.jsonl", "".join(lines))
    task.write(run, data, results)


def write_mistakes(run: Run, task: Task, data: DataSet, results: Any, name: str) -> None:
    """Writes the lines of mistakes, the surest first. On rank 0."""
    records = [*task.records(data, results)]
    if records:
        run.write(name, "".join(map(line_of, mistakes_in(records))))


def file_of_mistakes(data: DataSet) -> str:
    return f"mistakes{data.suffix}.jsonl"


def mistakes_in(records: Sequence[Record]) -> list[Record]:
    """The surest first."""
    wrong = [record for record in records if record.mistake is not None]
    return sorted(wrong, key=lambda record: -(record.mistake or 0))


def line_of(record: Record) -> str:
    return json.dumps(record.fields, ensure_ascii=False) + "\n"


def write_eval_results(run: Run, values: Mapping[str, float | None]) -> None:
    """eval_results.txt as Google's scripts write it, without values that are None."""
    lines = (f"{name} = {value}\n" for name, value in sorted(values.items()) if value is not None)
    run.write("eval_results.txt", "".join(lines))


def summed_up(config: FineTuningConfig, job: Job, results: Mapping[int, Scores]) -> Scores:
    """Writes means and standard deviations of the seeds' scores into `output_dir`. Returns the
    means."""
    means, deviations, lines = Scores(), Scores(), []
    for name in next(iter(results.values())):
        values = [scores[name] for scores in results.values()]
        means[name] = statistics.mean(values)
        deviations[name] = statistics.stdev(values) if len(values) > 1 else 0.0
        figures = f"{means[name]:.4f} ± {deviations[name]:.4f}"
        lines.append(f"{name} = {figures} ({len(results)} seeds)")
    job.world.on_first(job.run.lock_again)  # after a death
    job.run.write("eval_results.txt", "\n".join(lines) + "\n")
    job.run.say("\n".join(lines))
    job.finish(config.do_train, means, {"standard_deviations": deviations, "seeds": results})
    return means
