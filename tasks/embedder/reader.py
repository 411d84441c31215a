"""The reader of bert-embedder. Without TensorFlow."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from distributed.rows import ragged
from tasks.embedder.reading import Pairs, Source, read
from tasks.embedder.settings import DEFAULTS, VectorSettings
from tasks.embedder.texts import Texts, texts_of_pairs
from tasks.runs.rows.cache import Tables, with_facts
from tasks.runs.rows.reader import Reader
from tasks.runs.rows.texts import Tokenization, rows_of_texts

LABEL, TEACHER = "label", "teacher"  # columns of rows


@dataclass(frozen=True)
class PairReader(Reader[Pairs]):
    """Pairs of texts, with hard negatives or scores; texts to embed."""

    vectors: VectorSettings = field(default_factory=VectorSettings)
    settings: Mapping = field(default_factory=dict)
    name = "embedder"
    table = "texts"
    train_table = "pairs"

    @property
    def max_seq_length(self) -> int:
        return self.vectors.max_seq_length or DEFAULTS["max_seq_length"]

    def read(self, source: Source) -> Pairs:
        return read(source)

    def texts_of(self, pairs: Pairs) -> Texts:
        return texts_of_pairs(pairs, self.vectors)

    def key(self, source: Source, read: Callable[[], Pairs]) -> object:
        # what nobody has set was unknown to earlier versions, whose trainings go on
        settings = {name: value for name, value in self.settings.items() if value is not None}
        return settings, self.max_seq_length, self.labels, read().content

    def rows_of(self, pairs: Pairs) -> tuple[int, bool]:
        return len(pairs.rows), True

    def tables(self, pairs: Pairs, tokenization: Tokenization) -> Tables:
        """A row of `pairs` has `input_ids`, those of its texts one after another ([CLS] text
        [SEP]), `sizes` (the tokens of each text; both lists of int32), `digests` (of each text, a
        list of int64) and `score` (float32, NaN without one). A row of `texts` has the columns of
        `rows_of_texts`, for the texts of `Texts`. Where texts have labels, `label` is the digest of
        that of a row (int64), or of its anchor if it has none; where they have a teacher's scores
        these are in `teacher`, a list of float32 beside that of the texts, of anchors 0. Digests
        are those of texts without prompts."""
        known = self.texts_of(pairs)
        texts = known.texts
        second = [None] * len(texts)
        prompted, lengths = known.with_prompts, known.max_seq_lengths
        columns, fit = rows_of_texts(tokenization, prompted, second, lengths)
        ids = [row.values.to_numpy() for row in columns["input_ids"]]
        sizes = np.array([*map(len, ids)])
        digests = np.array([*map(digest_of, texts)])
        num_rows = len(known.rows)
        joined = {
            "input_ids": ragged(
                (np.concatenate([ids[place] for place in row]) for row in known.rows), pa.int32()
            ),
            "sizes": ragged((sizes[row] for row in known.rows), pa.int32()),
            "digests": ragged((digests[row] for row in known.rows), pa.int64()),
            "score": pa.array(pairs.scores or [np.nan] * num_rows, pa.float32()),
        }
        if pairs.labels:
            groups = zip(pairs.labels, pairs.rows, strict=True)
            digests_of_groups = [digest_of(label or row[0]) for label, row in groups]
            joined[LABEL] = pa.array(digests_of_groups, pa.int64())
        if pairs.teacher:
            joined[TEACHER] = ragged(
                (np.array([0.0, *scores], np.float32) for scores in pairs.teacher), pa.float32()
            )
        notes = [f"{num_rows:,} pairs, {len(texts):,} texts"]
        if known.most_in_row == 1:
            notes = [f"{num_rows:,} texts"]
        if known.most_in_row > 2:
            numbers = np.array([len(row) - 2 for row in known.rows])
            if numbers.min() < numbers.max():
                having = int((numbers > 0).sum())
                notes.append(f"hard negatives in {having:,} pairs, at most {numbers.max()} in one")
            if pairs.scores:
                notes.append(
                    "scores and hard negatives: the scores are trained on, without the negatives"
                    " (--score_column '' for these)"
                )
        notes += [f"{number:,} {what}" for what, number in pairs.counts.items() if number]
        notes += pairs.notes
        if fit["rows_cut"]:
            limit = f"--max_seq_length {self.max_seq_length}"
            if self.vectors.max_query_length:
                limit += f", queries to --max_query_length {self.vectors.max_query_length}"
            notes.append(f"{fit['rows_cut']:,} cut to {limit}")
        facts = {"notes": notes, "sets": [*pairs.sets], **fit}
        return with_facts({"texts": columns, "pairs": joined}, facts)


def digest_of(text: str) -> int:
    """An int64 that stands for a text on every rank."""
    value = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(value, signed=True)
