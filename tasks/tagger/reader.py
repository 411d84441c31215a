"""The reader of bert-tagger. Without TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasks.runs.reader import Reader
from tasks.tagger.reading import Sentences, Source, read
from tasks.tagger.settings import SentenceSettings


@dataclass(frozen=True)
class TagReader(Reader[Sentences]):
    """Sentences of words, perhaps with tags."""

    sentences: SentenceSettings = field(default_factory=SentenceSettings)
    labels: Sequence[str] = ()
    settings: Mapping = field(default_factory=dict)
    name = "tagger"
    version = 2  # increase when reading or `tables` makes something else: old rows are not used

    @property
    def max_seq_length(self) -> int:
        return self.sentences.max_seq_length

    def read(self, source: Source) -> Sentences:
        return read(source, self.sentences.characters, self.labels)
