"""A task of one's own with all that RingBERT's programs have: ranks, checkpoints, evaluation while
training, seeds, restarts, pages, prediction and export from Python.

    from ringbert.task import Config, Task, main, …

    class Stars(Task[Reviews, np.ndarray]):
        …

    main(Stars)

examples/own_task.py is a whole one, through which docs/contributing.md walks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic

from bert.batch import Batch, Grouping, batch_of, num_examples
from bert.heads import CLASSIFIER, SPAN, TAGGER, Head
from distributed.run import Run
from ringbase.errors import InputError
from ringbase.ragged import padded
from ringbase.settings import LONGEST_ROW, Settings, setting
from tasks.runs import flags
from tasks.runs import task as tasks
from tasks.runs.details import Details, Record
from tasks.runs.execute.job import Job, run_on_ranks
from tasks.runs.execute.program import open_sets, resolved, run_task
from tasks.runs.resolve.command import Learned, Program, Say
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.cache import Tables, with_facts
from tasks.runs.rows.reader import Examples
from tasks.runs.rows.sets import DataSet
from tasks.runs.rows.sources import Source
from tasks.runs.rows.tables import number_in
from tasks.runs.rows.texts import Tokenization, rows_of_texts
from tasks.runs.settings import (
    DataSettings,
    TaskConfig,
    data_setting,
    other_file_setting,
    row_setting,
    train_file_setting,
)
from tasks.runs.task import Decoder, Results, Scores, Tensors
from tasks.runs.trained import saved_settings

__all__ = [
    "CLASSIFIER",
    "SPAN",
    "TAGGER",
    "Batch",
    "Config",
    "DataSet",
    "Decoder",
    "Details",
    "Grouping",
    "Head",
    "InputError",
    "Record",
    "Run",
    "Scores",
    "Settings",
    "Source",
    "Tables",
    "Task",
    "Tensors",
    "Tokenization",
    "batch_of",
    "data_setting",
    "main",
    "num_examples",
    "number_in",
    "padded",
    "row_setting",
    "rows_of_texts",
    "setting",
    "with_facts",
]


class FileSettings(DataSettings):
    """Which examples are read."""

    train_file: str | None = train_file_setting("CSV, TSV, JSON lines or Parquet file to train on")
    dev_file: str | None = other_file_setting("file of the same kinds to evaluate on")
    predict_file: str | None = other_file_setting("file of the same kinds to predict")


class Config(TaskConfig):
    """The flags that every program has. One of your own adds fields by `setting`, or by
    `row_setting` what its rows depend on; those with `is_saved` are among the task's settings."""

    files: FileSettings
    max_seq_length: int = row_setting(
        128, "maximum number of tokens of a row", at_least=3, at_most=LONGEST_ROW, is_saved=True
    )

    def check(self) -> None:
        super().check()
        self.check_files(self.files, "dataset_name")


class Task(tasks.Task[Examples, Results], Generic[Examples, Results]):
    """A task, whose methods `tasks.runs.task.Task` describes. Its class says `name`, `head`,
    `metric`, and the `labels` of the model's outputs: a single one is a number."""

    name: ClassVar[str]
    labels: ClassVar[Sequence[str]] = ()

    def __init__(self, settings: Mapping[str, Any]):
        """`settings`: the flags with `is_saved`, of a command or of a trained model."""
        self._settings = settings

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._settings

    @property
    def max_seq_length(self) -> int:
        return self.settings["max_seq_length"]


class OwnProgram(Program[Config]):
    """The program of a task of one's own."""

    def __init__(self, task: type[Task]):
        self.name = task.name
        self._task = task

    def length(self, config: Config) -> int:
        return config.max_seq_length

    def outputs(self, config: Config, start: Start, learned: Learned, say: Say) -> Start:
        if not self._task.labels:
            return start
        labels = tuple(self._task.labels)
        return replace(start, bert_config=replace(start.bert_config, labels=labels))

    def sources(self, config: Config, start: Start) -> Mapping[str, Sequence[Source]]:
        return {kind: [Source(config.files, kind)] for kind in config.wanted_sets}

    def reader(self, config: Config, start: Start) -> Task:
        return self._task(saved_settings(config))


def main(
    task: type[Task], config: type[Config] = Config, argv: Sequence[str] | None = None
) -> None:
    """The program of a task: reads the flags of `config`, from `argv` or this process's, joins the
    ranks, and trains, evaluates and predicts. `--help` shows the task's docstring."""
    program = OwnProgram(task)
    name = program.name
    given = flags.parse(config, argv, prog=name, description=task.__doc__)
    run_on_ranks(name, given, given.output_dir, partial(_run, program))


def _run(program: OwnProgram, config: Config, job: Job) -> Scores:
    work = resolved(program, config, job)
    sets = open_sets(program, work, job)
    task = program.reader(work.config, work.start)
    return run_task(task, sets, work, job)
