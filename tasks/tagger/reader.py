"""The reader of bert-tagger. Without TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from distributed.rows import ragged
from tasks.runs.rows.cache import Tables, with_facts
from tasks.runs.rows.reader import Reader
from tasks.runs.rows.texts import Tokenization, max_context_owner, window_starts
from tasks.tagger.reading import Sentences, Source, illegal, read, tags_of, text_of
from tasks.tagger.settings import SentenceSettings

NONE = -1  # of a token at which no word begins


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

    def is_read_alike(self, sentences: Sentences) -> bool:
        return not self.labels or tags_of(sentences) <= set(self.labels)

    def tables(self, sentences: Sentences, tokenization: Tokenization) -> Tables:
        """A row of `rows` has `input_ids` ([CLS] tokens [SEP]), `sentence_a_tokens`, `sentence`
        (its number), and for each token `words`, the number of the word that begins there, and
        `tags`, the number of its label; all int32. A long sentence becomes overlapping rows, of
        which the one with the most context has the word."""
        settings, tokenizer = self.sentences, tokenization.tokenizer
        number_of = {label: number for number, label in enumerate(self.labels)}
        joined = [text_of(sentence.words, settings.characters) for sentence in sentences]
        texts, starts = zip(*joined, strict=True)
        encoded = tokenization.ids_and_spans(texts, "tokenizing", "sentence")
        rows, without_token = [], []
        for number, sentence in enumerate(sentences):
            ids, spans = encoded[number]
            words = words_of_tokens(sentence.words, starts[number], spans)
            if not settings.characters:
                absent = set(range(len(sentence.words))).difference(words.tolist())
                for word in sorted(absent):
                    without_token.append(f"{sentence.words[word]!a} ({sentence.place})")
            tags = np.full(len(sentence.words) + 1, NONE, np.int32)  # the last is that of NONE
            if sentence.tags:
                tags[:-1] = [number_of[tag] for tag in sentence.tags]
            for here, words_here in _windows(words, settings):
                input_ids = np.concatenate([[tokenizer.cls_id], ids[here], [tokenizer.sep_id]])
                rows.append((input_ids, words_here, tags[words_here], len(input_ids), number))
        *lists, lengths, numbers = zip(*rows, strict=True)
        columns = {}
        for name, column in zip(("input_ids", "words", "tags"), lists, strict=True):
            columns[name] = ragged(column, pa.int32())
        columns["sentence_a_tokens"] = pa.array(lengths, pa.int32())
        columns["sentence"] = pa.array(numbers, pa.int32())
        notes = _notes(sentences, len(rows), without_token)
        fit = tokenization.fit([ids for ids, _ in encoded], texts)
        return with_facts({"rows": columns}, {"notes": notes, **fit})


def _windows(words: np.ndarray, settings: SentenceSettings) -> Iterator[tuple[slice, np.ndarray]]:
    """The tokens of each row of a sentence, and the words that begin at them in this row, [CLS] and
    [SEP] included."""
    num_tokens = len(words)
    room = settings.max_seq_length - 2
    starts = window_starts(num_tokens, room, settings.doc_stride)
    lengths = [min(room, num_tokens - start) for start in starts]
    owners = max_context_owner(starts, lengths, num_tokens)
    for window, start in enumerate(starts):
        here = slice(start, start + room)
        words_here = np.where(owners[here] == window, words[here], NONE)
        yield here, np.pad(words_here, 1, constant_values=NONE)


def _notes(sentences: Sentences, num_rows: int, without_token: Sequence[str]) -> list[str]:
    notes = [f"{len(sentences):,} sentences, {num_rows:,} rows"]
    if broken := illegal(sentences):
        notes.append(
            f"{len(broken):,} of them with tags that their scheme forbids, such as an I- after O"
            f" (the first: {broken[0].place}), read as conlleval does"
        )
    if without_token:
        notes.append(
            f"{len(without_token):,} words of invisible characters, which leave no token, are not"
            f" trained on and get O (the first: {without_token[0]})"
        )
    return notes


def words_of_tokens(words: Sequence[str], starts: Sequence[int], spans: np.ndarray) -> np.ndarray:
    """For each token the number of the word whose first token it is, else NONE; int32 [n].

    `starts` are the words' first characters in the text, `spans` the tokens' characters, int32 [n,
    2]. A token belongs to the first word that it overlaps: normalization may have dropped or moved
    the word's first character.
    """
    numbers = np.full(len(spans), NONE, np.int32)
    word_ends = np.add(starts, [len(word) for word in words])
    owners = np.searchsorted(word_ends, spans[:, 0], side="right")
    # a token behind the last word reaches none
    word_starts = np.append(starts, np.iinfo(np.int64).max)
    is_reached = word_starts[owners] < spans[:, 1]
    owners = np.where(is_reached, owners, NONE)
    owned, first_tokens = np.unique(owners, return_index=True)
    numbers[first_tokens] = owned
    return numbers
