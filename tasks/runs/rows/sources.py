"""The examples of a task that its settings name: a file for each set, or the splits of a data
set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bert.hub import cached_commit, load_data_set
from tasks.runs.rows.tables import Table, of_data_set, open_table


@dataclass(frozen=True)
class Source:
    """The "train", "dev" or "predict" examples of the settings."""

    settings: Any  # train_file, dev_file, predict_file and those of `DataSettings`
    kind: str
    # of a data set
    splits: ClassVar[Mapping] = {"train": "train", "dev": "validation", "predict": "test"}
    suffix: ClassVar[str] = ""
    is_printed: ClassVar[bool] = False

    def __str__(self) -> str:
        """For messages: the flag that names the data, and the data."""
        if self.file:
            return f"--{self.kind}_file {self.file}"
        return f"--dataset_name {self.settings.dataset_name} ({self.splits[self.kind]})"

    @property
    def file(self) -> str | None:
        return getattr(self.settings, f"{self.kind}_file")

    @property
    def limit(self) -> int | None:
        if self.kind == "train":
            return self.settings.max_train_examples
        return self.settings.max_predict_examples

    @property
    def commit(self) -> str | None:
        """The hub's, of the data set."""
        if self.file:
            return None
        return cached_commit(self.settings.dataset_name, self.settings.dataset_revision)

    def table(self, columns: Sequence[str | None], classes: Sequence[str] = ()) -> Table:
        """The table in the file, of which Parquet gives these columns, or in the split; there the
        columns `classes` may hold the numbers of classes."""
        if self.file:
            path = Path(self.file).expanduser()
            is_published = bool(getattr(self.settings, "task_name", None))
            return open_table(path, str(self), columns, skips_short_rows=is_published)
        name, revision = self.settings.dataset_name, self.settings.dataset_revision
        where = f"--dataset_name {name}"
        data = load_data_set(name, None, self.splits[self.kind], where, revision)
        return of_data_set(data, where, classes)
