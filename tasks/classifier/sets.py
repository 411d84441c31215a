"""The classifier's data sets as rows: of a named task, of the hub, or of the user's own files."""

import os
from dataclasses import dataclass, replace

import numpy as np

from bert.text.tokenizer import Tokenizer
from distributed.rows import Rows
from ringbase.errors import InputError
from tasks.classifier.examples import examples
from tasks.classifier.settings import STANDARD_INPUT, ExampleSettings, TextSettings
from tasks.classifier.tasks import SECOND_TEXT, Columns, Labels, Split, Task, find_task, is_on_pairs
from tasks.classifier.texts import Texts, read_file, read_standard_input, read_task, read_task_hub
from tasks.environment import cache_folder
from tasks.job import Job
from tasks.start import Start, run_of, settings_of_run

FILE_FLAGS = {"train": "train_file", "dev": "dev_file", "test": "predict_file"}


@dataclass(frozen=True)
class DataSet:
    """A split as rows: `input_ids`, `sentence_a_tokens` and `label` (-1 or NaN for an example without a label)."""

    split: str
    rows: Rows
    key: str
    texts: Texts | None = None  # of standard input, which cannot be read again

    @property
    def is_labelled(self) -> bool:
        label = np.asarray(self.rows.column("label"))
        return not bool(np.any(np.isnan(label) if label.dtype.kind == "f" else label < 0))


def is_trained_on_pairs(start: Start) -> bool | None:
    """Whether the run that wrote the model was trained on pairs of texts; None if nothing tells. On rank 0.

    Raises InputError: the run's run.json is damaged.
    """
    return None if start.weights is None else is_on_pairs(settings_of_run(run_of(start.weights)))


def task_of(settings: TextSettings, has_pairs: bool = False) -> Task:
    """The task of `--task_name`, or one made for the user's own files.

    With `has_pairs` the lines of standard input are pairs, also without `--text_pair_column`.
    """
    if settings.task_name:
        return find_task(settings.task_name)
    columns = Columns(settings.text_column, settings.text_pair_column, settings.label_column, id="")
    files = {split: getattr(settings, flag) for split, flag in FILE_FLAGS.items()}
    splits = {split: Split((file,), columns) for split, file in files.items() if file}
    if has_pairs and columns.pair is None and settings.reads_lines:
        splits["test"] = replace(splits["test"], columns=replace(columns, pair=SECOND_TEXT))
    if settings.regression:
        return Task("", "", None, ("pearson", "spearmanr", "corr"), "corr", splits)
    return Task("", "", (), ("accuracy", "mcc"), "accuracy", splits)  # its labels are found in the data


def read_texts(settings: TextSettings, task: Task, split: str) -> Texts:
    """The texts of a split, limited by --max_train_examples or --max_predict_examples."""
    if settings.from_hub:
        texts = read_task_hub(task, split, settings.language, settings.dataset_revision)
    elif settings.task_name:
        texts = read_task(task, str(settings.data_dir), split, settings.language)
    else:
        part, flag = task.split(split), f"--{FILE_FLAGS[split]}"
        is_test = split == "test"
        if is_test and part.files[0] == STANDARD_INPUT:
            texts = read_standard_input(part.columns)
        else:
            texts = read_file(
                part.files[0], flag, part.columns, numeric_labels=task.is_regression, needs_labels=not is_test
            )
    return texts.head(settings.max_train_examples if split == "train" else settings.max_predict_examples)


def open_sets(
    settings: TextSettings,
    rows: ExampleSettings,
    task: Task,
    kind: str,
    labels: Labels,
    tokenizer: Tokenizer,
    job: Job,
) -> list[DataSet]:
    """The sets of a kind ("train", "dev" or "test"), memory-mapped on every rank, built once per machine."""
    if not task.splits_of(kind):
        task.split(kind)  # raises an error that lists the sets that exist
    return [_open_set(settings, rows, task, split, labels, tokenizer, job) for split in task.splits_of(kind)]


def _open_set(
    settings: TextSettings,
    rows: ExampleSettings,
    task: Task,
    split: str,
    labels: Labels,
    tokenizer: Tokenizer,
    job: Job,
) -> DataSet:
    given: Texts | None = None
    if split == "test" and settings.predict_file == STANDARD_INPUT:
        if job.world.size > 1 or "PRTE_LAUNCHED" in os.environ:  # mpirun of Open MPI 5 delivers it without an end
            raise InputError("--predict_file -: standard input needs one rank, started without mpirun")
        given = read_texts(settings, task, split)

    def build() -> str:
        texts = read_texts(settings, task, split) if given is None else given
        return examples(rows, texts, labels, tokenizer, cache_folder(), job.run)

    key = job.world.on_each_machine(build)
    job.world.agree({f"the content of the {split} set": key})
    data = DataSet(split, Rows.open(cache_folder() / key / "examples.arrow"), key, given)
    if not split.startswith("test") and not data.is_labelled:
        raise InputError(f"the {split} set has examples without a label")
    return data
