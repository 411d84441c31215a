"""The reader of bert-classifier. Without TensorFlow."""

from collections.abc import Callable
from dataclasses import dataclass

from tasks.classifier.reading import Source, Texts, read
from tasks.runs.reader import Reader
from tasks.runs.resolve.labels import Labels


@dataclass(frozen=True)
class LabelReader(Reader[Texts]):
    """Texts and pairs of texts, with a label, several, or a number."""

    max_seq_length: int = 128
    labels: Labels = ()
    has_several: bool = False  # labels per text
    name, table = "classifier", "examples"
    # increase when reading or `tables` writes something else: old folders are not used
    version = 6

    def read(self, source: Source) -> Texts:
        return read(source, self.labels or ())

    def key(self, source: Source, texts: Callable) -> object:
        return self.max_seq_length, self.labels, self.has_several, texts()

    def rows_of(self, texts: Texts) -> tuple[int, bool]:
        return len(texts.first), True
