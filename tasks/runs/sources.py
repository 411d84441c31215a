"""The examples of a task that its settings name: a file for each set, or the splits of a data
set."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.hub import load_data_set
from tasks.runs.tables import Table, of_data_set, open_table

SPLITS = {"train": "train", "dev": "validation", "predict": "test"}


@dataclass(frozen=True)
class Source:
    """The "train", "dev" or "predict" examples of the settings."""

    settings: Any  # train_file, dev_file, predict_file, dataset_name, dataset_revision and limits
    kind: str

    def __str__(self) -> str:
        """For messages: the flag that names the data, and the data."""
        if self.file:
            return f"--{self.kind}_file {self.file}"
        return f"--dataset_name {self.settings.dataset_name}"

    @property
    def file(self) -> str | None:
        return getattr(self.settings, f"{self.kind}_file")

    @property
    def limit(self) -> int | None:
        if self.kind == "train":
            return self.settings.max_train_examples
        return self.settings.max_predict_examples

    def table(self, columns: Sequence[str | None], classes: Sequence[str] = ()) -> Table:
        """The table in the file, of which Parquet gives these columns, or in the split; there the
        columns `classes` may hold the numbers of classes."""
        if self.file:
            path = Path(self.file).expanduser()
            return open_table(path, str(self), columns)
        split = SPLITS[self.kind]
        name, revision = self.settings.dataset_name, self.settings.dataset_revision
        data = load_data_set(name, None, split, str(self), revision)
        return of_data_set(data, str(self), classes)
