"""The scores of a model on the dev sets, while a training and at its end, and the files of
predictions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distributed.run import Run
from distributed.train import HeldOut
from distributed.world import World
from ringbase.errors import InputError
from ringbase.files import digest
from tasks.runs.details import REPORT, Record, Section, examples
from tasks.runs.execute.predict import Predictor
from tasks.runs.rows.sets import DataSet
from tasks.runs.settings import SelectionSettings
from tasks.runs.task import Scores, Task

Results = dict[DataSet, Any]  # of the sets, on rank 0; None on other ranks


@dataclass
class Evaluation:
    """The dev sets, and what the model last said about them."""

    task: Task
    predictor: Predictor
    sets: Sequence[DataSet]
    batch_size: int
    world: World
    results: Results = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A digest of the sets and the metric: scores are compared with those of the same."""
        return digest(self.task.metric, [data.made.key for data in self.sets])

    def measure(self) -> Scores:
        """The scores of all sets, the same on every rank."""
        scores = Scores()
        for data in self.sets:
            self.results[data] = self.predictor.results(self.task, data, self.batch_size)
            scores |= self.world.on_first(self.task.scores, "eval", data, self.results[data])
        metric = self.task.metric
        if metric not in scores:
            return scores
        # the one that chooses the model is the first on the page and in the card
        return {metric: scores[metric]} | scores

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
            key=self.key,
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
            records = [*task.cases(data, results)]
            if records:
                wrong = [record.shown or record.fields for record in mistakes_in(records)]
                share = f"{len(wrong):,} of {len(records):,}"
                note = f"{share}; all of them are in {file_of_mistakes(data)}, the worst first"
                sections.append(examples("Mistakes", note, wrong))
        return facts | {REPORT: sections}


def write_predictions(run: Run, task: Task, data: DataSet, results: Any) -> None:
    """Writes predictions.jsonl, a line for each example, and the task's other files. On rank 0."""
    if lines := [line_of(record) for record in task.records(data, results)]:
        run.write(f"predictions{data.suffix}.jsonl", "".join(lines))
    task.write(run, data, results)


def write_mistakes(run: Run, task: Task, data: DataSet, results: Any, name: str) -> None:
    """Writes the lines of mistakes, the surest first. On rank 0."""
    records = [*task.cases(data, results)]
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
