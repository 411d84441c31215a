"""The reader of bert-embedder. Without TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tasks.embedder.reading import Pairs, Source, read
from tasks.embedder.settings import DEFAULTS, VectorSettings
from tasks.runs.reader import Reader


@dataclass(frozen=True)
class PairReader(Reader[Pairs]):
    """Pairs of texts, with hard negatives or scores; texts to embed."""

    vectors: VectorSettings = field(default_factory=VectorSettings)
    settings: Mapping = field(default_factory=dict)
    name, table, train_table = "embedder", "texts", "pairs"

    @property
    def max_seq_length(self) -> int:
        return self.vectors.max_seq_length or DEFAULTS["max_seq_length"]

    def read(self, source: Source) -> Pairs:
        return read(source)

    def rows_of(self, pairs: Pairs) -> tuple[int, bool]:
        return len(pairs.rows), True
