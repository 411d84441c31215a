"""The reader of bert-classifier. Without TensorFlow."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from tasks.classifier.reading import Source, Texts, read
from tasks.classifier.targets import Target, target_of
from tasks.runs.resolve.labels import Labels
from tasks.runs.rows.cache import Tables, with_facts
from tasks.runs.rows.reader import Reader
from tasks.runs.rows.texts import Tokenization, rows_of_texts


@dataclass(frozen=True)
class LabelReader(Reader[Texts]):
    """Texts and pairs of texts, with a label, several, or a number."""

    max_seq_length: int = 128
    labels: Labels = ()
    has_several: bool = False  # labels per text
    name = "classifier"
    table = "examples"
    # increase when reading or `tables` writes something else: old folders are not used
    version = 6

    @cached_property
    def target(self) -> Target:
        """What the labels are."""
        return target_of(self.labels, self.has_several)

    def read(self, source: Source) -> Texts:
        return read(source, self.labels or ())

    def is_read_alike(self, texts: Texts) -> bool:
        if not self.labels or texts.labels is None:
            return True
        found = itertools.chain(*texts.labels) if self.has_several else texts.labels
        return set(found) <= set(self.labels)

    def key(self, source: Source, texts: Callable) -> object:
        return self.max_seq_length, self.labels, self.has_several, texts()

    def rows_of(self, texts: Texts) -> tuple[int, bool]:
        return len(texts.first), True

    def tables(self, texts: Texts, tokenization: Tokenization) -> Tables:
        """Tokenizes texts.

        A row of `examples` has the columns of `rows_of_texts` and `label`, as the target stores it:
        its index in `labels`, int32, -1 without a label; a list of indices; or a number, float32,
        NaN without a label. A row of `ids` has the `id` of the example. The facts are those of
        `Tokenization.row_tables`.
        """
        first = texts.first
        second: Sequence = texts.second or [None] * len(first)
        examples, fit = rows_of_texts(tokenization, first, second, self.max_seq_length)
        examples["label"] = self.target.column(texts.labels, len(first))
        empty = [text for text in (*first, *second) if text is not None and not text.strip()]
        cut = f"cut to --max_seq_length {self.max_seq_length}"
        counts = {cut: fit["rows_cut"], "with an empty text": len(empty), **texts.counts}
        notes = [f"{len(first):,} examples"]
        notes += [f"{count:,} {text}" for text, count in counts.items() if count]
        ids = {"id": pa.array(texts.ids)}
        return with_facts({"examples": examples, "ids": ids}, {"notes": notes, **fit})
