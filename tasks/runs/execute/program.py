"""A program that trains, evaluates and predicts, the same for all tasks: `run_task`."""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from distributed.plan import make_plan
from distributed.run import Run
from ringbase.files import read_object
from ringbase.secrets import masked
from ringbase.settings import changing
from tasks.runs.details import RUN, SCORED_ON
from tasks.runs.environment import result_file
from tasks.runs.execute.evaluate import Evaluation, Results, write_mistakes, write_predictions
from tasks.runs.execute.facts import facts_of
from tasks.runs.execute.job import Job
from tasks.runs.execute.loading import load_trained, model_of
from tasks.runs.execute.predict import Predictor
from tasks.runs.execute.trainer import Trainer, TrainingData, fixed_settings
from tasks.runs.history import History
from tasks.runs.resolve.command import (
    Program,
    folder_of_seed,
    refuse_changes,
    refuse_single_run,
    resolve,
)
from tasks.runs.resolve.past import MODEL, TASK_FILE
from tasks.runs.resolve.plan import planned
from tasks.runs.resolve.spec import RunSpec, Start
from tasks.runs.rows.reader import Readings, Source
from tasks.runs.rows.sets import DataSet, Sets, open_set
from tasks.runs.rows.texts import Tokenization
from tasks.runs.settings import FineTuningConfig, ProgramConfig
from tasks.runs.task import Scores, Task

Config = TypeVar("Config", bound=ProgramConfig)
Settled = TypeVar("Settled", bound=ProgramConfig, covariant=True)


class SeedRun(NamedTuple):
    """One run of a command: what it is, the job with its folder, and its starts."""

    spec: RunSpec
    job: Job
    history: History

    @property
    def start(self) -> Start:
        return self.spec.start

    @property
    def seed(self) -> int:
        return self.spec.seed

    @property
    def trains(self) -> bool:
        """Whether there is something left to train."""
        return "train" in self.spec.does and not self.start.is_complete

    def check_unchanged(self, data: TrainingData, config: ProgramConfig) -> None:
        """Raises InputError, on every rank, if a training that goes on has other settings than
        before."""
        world = self.job.world
        settings = fixed_settings(data, config.training, self.seed)
        plan_of = partial(make_plan, rows=len(data.rows), size=world.ranks.launched_size)
        note = world.on_first(refuse_changes, self.spec, settings, config, plan_of, data.stream)
        if note:
            self.job.run.say(note)


@dataclass(frozen=True)
class Work(Generic[Settled]):
    """What a command has to do."""

    config: Settled  # the flags, with the settings of a trained model for what was not given
    runs: Sequence[SeedRun]  # one, or one for each of `--seeds`
    readings: Readings

    @property
    def start(self) -> Start:
        """Where the first run starts: all have the same model, labels and tokenizer."""
        return self.runs[0].start


def resolved(program: Program[Config], config: Config, job: Job) -> Work[Config]:
    """What a command does, on every rank. Rank 0 finds it out, and locks the folders of the runs.
    Raises InputError as `resolve`."""
    resume = config.training.resume
    world, run, readings = job.world, job.run, Readings()
    if config.plan:  # of a program of one's own; ours print it before they join
        plans = world.on_first(planned, program, config, world.size, run.say)
        world.say(json.dumps(plans, indent=2, ensure_ascii=False), sys.stdout)
        raise SystemExit(0)
    folders = {}
    if config.has_seeds:
        world.on_first(refuse_single_run, run.folder)  # before folders are made in it
        for seed in config.each_seed:
            folders[seed] = run.part(folder_of_seed(run.folder, seed).name)
            world.on_first(folders[seed].lock)
    written = {name: job.config[name] for name in config.given}
    found = world.on_first(resolve, program, config, written, run.folder, resume, readings, run.say)
    runs = []
    for spec in found.specs:
        own = folders.get(spec.seed, run)
        history = History(own, world, [*spec.starts])
        runs.append(SeedRun(spec, replace(job, run=own, config=spec.config), history))
    return Work(found.config, runs, readings)


def open_sets(program: Program[Config], work: Work[Config], job: Job) -> Sets:
    """The sets that a command reads. A source of two kinds is opened once. Rows are made once per
    machine."""
    config, start, readings = work.config, work.start, work.readings
    reader = program.reader(config, start)
    allow_unknown = isinstance(config, FineTuningConfig) and config.allow_unknown
    tokenization = Tokenization(job.world, job.run, start.words, allow_unknown)
    opened: list[DataSet] = []
    sets: dict[str, list[DataSet]] = {}
    for kind, sources in program.sources(config, start).items():
        sets[kind] = []
        for source in sources:
            data = next((data for data in opened if data.source is source), None)
            if data is None:
                data = open_set(reader, source, tokenization, readings)
                opened.append(data)
            sets[kind].append(data)
    for data in sets.get("train", ()):
        readings.forget(data.source)
    return Sets(**sets)


def run_task(task: Task, sets: Sets, work: Work[FineTuningConfig], job: Job) -> Scores:
    """Trains, evaluates and predicts as the flags say, once for each run, on every rank. The model
    is made, traced and compiled once. Returns the scores, or their means over several seeds."""
    config, runs = work.config, work.runs
    model = model_of(work.start, task.head)
    trainer = None
    for data in sets.train:
        rows = data.tables[task.train_table or task.table]
        # `fixed_settings` puts the schedule's values, of each seed and with defaults, over these
        fixed = changing(config, "rows", "training")
        commit = data.source.commit
        key, stream = data.made.key, task.stream
        training_data = TrainingData(rows, key, fixed, commit, stream)
        for one in runs:
            one.check_unchanged(training_data, config)
        if any(one.trains for one in runs):
            trainer = Trainer(model, task, training_data, config.training, job)
    predictor = Predictor(model, task, job)
    evaluation = Evaluation(task, predictor, sets.dev, config.eval_batch_size, job.world)
    if not config.has_seeds:
        return run_once(trainer, evaluation, sets, runs[0], config)
    asks_for_more = trainer or config.does_eval or sets.predict
    before = None
    if config.do_train:
        before = job.world.on_first(result_in, job.run.folder)
    if asks_for_more:
        job.run.remove(result_file(config.do_train))
    results = dict[int, Scores]()
    for one in runs:
        job.world.on_first(job.run.lock_again)  # after a death
        job.world.on_first(one.job.run.lock_again)
        job.run.say(f"seed {one.seed}")
        with closing(one.job.run):
            results[one.seed] = run_once(trainer, evaluation, sets, one, config)
    return summed_up(config, job, results, None if trainer else before)


@dataclass
class Outcome:
    """What a run has found so far."""

    task: Task
    steps: int | None  # that the model was trained for
    facts: dict[str, Any] = field(default_factory=dict)  # of result.json
    scores: Scores = field(default_factory=dict)
    evaluated: Results = field(default_factory=dict)

    def add_scored(self, *sources: Source) -> None:
        """Notes of which data the scores are."""
        names = [masked(str(source)) for source in sources]
        self.facts[SCORED_ON] = [*self.facts.get(SCORED_ON, ()), *names]


def run_once(
    trainer: Trainer | None,
    evaluation: Evaluation,
    sets: Sets,
    one: SeedRun,
    config: FineTuningConfig,
) -> Scores:
    """One run: trains or loads, evaluates, predicts, and writes the files. Returns the scores.

    A training that is complete stays as it is, but for what this command computes anew.
    """
    start, job = one.start, one.job
    asks_for_more = config.does_eval or sets.predict
    is_scored = start.result is not None and start.result.get("scored") == evaluation.key
    has_all = not sets.predict and (is_scored or not config.does_eval)
    if start.is_complete and config.do_train and has_all:
        return say_complete(job.run, start)
    outcome = with_model(trainer, evaluation, one, config)
    if config.does_eval:
        evaluate(outcome, evaluation, one)
    predict_sets(outcome, evaluation, sets.predict, one, config.predict_batch_size)
    if asks_for_more:
        timing = outcome.facts["prediction"] = evaluation.predictor.timing
        rows, seconds = timing["rows"], timing["seconds"]
        job.run.say(f"predicted {rows:,} rows in {seconds:.1f} s, {rows / seconds:.1f} a second")
    if not config.do_train:
        outcome.facts[RUN] = facts_of(one.spec, job, outcome.task)
    before = start.result if config.do_train else None
    job.finish(one.history, config.do_train, outcome.scores, outcome.facts, before)
    return {**(before or {}).get("scores", {}), **outcome.scores}


def with_model(
    trainer: Trainer | None, evaluation: Evaluation, one: SeedRun, config: FineTuningConfig
) -> Outcome:
    """A run whose model is trained, or loaded if there is nothing to train."""
    spec, job, history = one
    if one.trains:
        assert trainer is not None
        held_out = evaluation.held_out(config.evaluation)
        trained = trainer.run(spec, job, history, held_out)
        return Outcome(evaluation.task, trained.steps, trained._asdict())
    if not config.do_train:  # of an earlier command, and no longer so
        job.run.remove(result_file(trains=False))
    load_trained(spec.start, evaluation.predictor.model, history, job.run)
    return Outcome(evaluation.task.taught(spec.start.saved), spec.start.steps)


def evaluate(outcome: Outcome, evaluation: Evaluation, one: SeedRun) -> None:
    """Scores the dev sets, and keeps what they teach beside a model of this training."""
    job, task = one.job, outcome.task
    outcome.scores, outcome.evaluated = evaluation.measure(), evaluation.results
    if not outcome.scores:
        return
    learned = evaluation.written(job.run, outcome.scores, outcome.steps)
    details = job.world.on_first(evaluation.details, task.taught(learned))
    outcome.facts |= {"scored": evaluation.key} | learned | details
    outcome.add_scored(*(data.source for data in evaluation.sets))
    if one.trains and learned:  # a model that is complete keeps what it has learned
        outcome.task = task.taught(learned)
        job.run.write_json(f"{MODEL}/{TASK_FILE}", {**outcome.task.settings, **learned})


def predict_sets(
    outcome: Outcome,
    evaluation: Evaluation,
    sets: Sequence[DataSet],
    one: SeedRun,
    batch_size: int,
) -> None:
    """Predicts sets, those that were evaluated from what was computed there, and writes the files
    of predictions."""
    task, job = outcome.task, one.job
    run, world = job.run, job.world
    names = [str(data.source) for data in sets if not data.is_printed]
    if names and (replaced := one.history.predicts(names)):
        run.say(f"note: {', '.join(names)} replaces the predictions of {replaced}")
    for data in sets:
        results = outcome.evaluated.get(data)
        if data not in outcome.evaluated:
            results = evaluation.predictor.results(task, data, batch_size)
            if found := world.on_first(task.scores, "predict", data, results):
                outcome.scores |= found
                outcome.add_scored(data.source)
                # mistakes.jsonl has those of the dev set
                name = f"predict_mistakes{data.suffix}.jsonl"
                world.on_first(write_mistakes, run, task, data, results, name)
        results = task.finished(data, results, world)
        world.on_first(write_predictions, run, task, data, results)


def say_complete(run: Run, start: Start) -> Scores:
    """Says that a training is complete and nothing else was asked for. Returns its scores."""
    assert start.result is not None
    scores = start.result["scores"]
    figures = "".join(f", {name} {value:.4g}" for name, value in scores.items())
    run.say(f"done: {run.folder} was complete and stays as it is{figures}")
    return scores


def result_in(folder: Path) -> Mapping[str, Any] | None:
    """What result.json in a folder says; None without one."""
    file = folder / result_file(trains=True)
    return read_object(file) if file.is_file() else None


def summed_up(
    config: FineTuningConfig,
    job: Job,
    results: Mapping[int, Scores],
    before: Mapping[str, Any] | None,
) -> Scores:
    """Writes means and standard deviations of the seeds' scores into `output_dir`. Returns the
    means. `before`: what result.json says of trainings that were complete."""
    means, deviations, lines = Scores(), Scores(), []
    common = set.intersection(*map(set, results.values()))
    for name in next(iter(results.values())):
        if name not in common:  # of a seed that was evaluated on more
            continue
        values = [scores[name] for scores in results.values()]
        means[name] = statistics.mean(values)
        deviations[name] = statistics.stdev(values) if len(values) > 1 else 0.0
        figures = f"{means[name]:.4f} ± {deviations[name]:.4f}"
        lines.append(f"{name} = {figures} ({len(results)} seeds)")
    job.world.on_first(job.run.lock_again)  # after a death
    if lines:
        job.run.write("eval_results.txt", "\n".join(lines) + "\n")
        job.run.say("\n".join(lines))
    facts = {"standard_deviations": deviations, "seeds": results}
    job.finish(History(job.run, job.world), config.do_train, means, facts, before)
    return means
