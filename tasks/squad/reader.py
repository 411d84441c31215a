"""The reader of bert-squad. Without TensorFlow."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ringbase.settings import flat
from tasks.runs.reader import Reader
from tasks.squad.reading import Examples, Source, read
from tasks.squad.settings import WindowSettings


@dataclass(frozen=True)
class SpanReader(Reader[Examples]):
    """Questions and their contexts, which are cut into windows."""

    windows: WindowSettings = field(default_factory=WindowSettings)
    name, table = "squad", "windows"
    # increase when reading or cutting accepts or writes something else: old folders are not used
    version = 7

    @property
    def max_seq_length(self) -> int:
        return self.windows.max_seq_length

    def read(self, source: Source) -> Examples:
        return read(source, self.windows.version_2_with_negative)

    def key(self, source: Source, examples: Callable) -> object:
        return flat(self.windows), examples()

    def rows_of(self, examples: Examples) -> tuple[int, bool]:
        return len(examples.questions), False
