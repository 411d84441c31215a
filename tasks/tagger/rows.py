"""Tagged sentences as rows of tokens, and the scores of rows as tags of sentences.

Arrays have their shape as a suffix: T tokens of a row, L labels.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from scipy.special import log_softmax

from bert.text.characters import character_starts
from distributed.rows import ragged
from ringbase.files import digest
from ringbase.settings import flat
from tasks.runs.cache import Tables, with_facts
from tasks.runs.task import DataSet
from tasks.runs.texts import Preparation, max_context_owner, window_starts
from tasks.tagger.reading import PREFIXED, Sentences, illegal, text_of
from tasks.tagger.settings import SentenceSettings

VERSION = 2  # increase when reading or `tables` makes something else: old rows are not used
NONE = -1  # of a token at which no word begins


class Tagged(NamedTuple):
    """What a model says of the words of a sentence: their tags, and the probability of each."""

    tags: Sequence[str]
    shares: Sequence[float]

    def share(self, first: int, last: int) -> float:
        """The lowest probability of the words of an entity."""
        return min(self.shares[first : last + 1])


Results = tuple[Sequence[Tagged], np.ndarray]  # of each sentence; the losses of all words


def tables(
    sentences: Sentences,
    labels: Sequence[str],
    settings: SentenceSettings,
    preparation: Preparation,
) -> Tables:
    """A row of `rows` has `input_ids` ([CLS] tokens [SEP]), `sentence_a_tokens`, `sentence` (its
    number), and for each token `words`, the number of the word that begins there, and `tags`, the
    number of its label; all int32. A long sentence becomes overlapping rows, of which the one with
    the most context has the word."""
    number_of = {label: number for number, label in enumerate(labels)}
    joined = [text_of(each.words, settings.characters) for each in sentences]
    texts = [text for text, _ in joined]
    tokenizer = preparation.tokenizer
    encoded = preparation.ids_and_spans(texts, "tokenizing", "sentence")
    rows, without_token = [], []
    for number, each in enumerate(sentences):
        ids, spans = encoded[number]
        words = words_of_tokens(each.words, joined[number][1], spans)
        if not settings.characters:
            absent = sorted(set(range(len(each.words))).difference(words.tolist()))
            without_token += [f"{each.words[word]!a} ({each.place})" for word in absent]
        tags_of_words = np.full(len(each.words) + 1, NONE, np.int32)  # the last is that of NONE
        if each.tags:
            tags_of_words[:-1] = [number_of[tag] for tag in each.tags]
        for here, own in _windows(words, settings):
            tokens = np.concatenate([[tokenizer.cls_id], ids[here], [tokenizer.sep_id]])
            rows.append((tokens, own, tags_of_words[own], len(tokens), number))
    input_ids, words_of_rows, tags_of_rows, lengths, numbers = zip(*rows, strict=True)
    columns = {
        "input_ids": ragged(input_ids, pa.int32()),
        "words": ragged(words_of_rows, pa.int32()),
        "tags": ragged(tags_of_rows, pa.int32()),
        "sentence_a_tokens": pa.array(lengths, pa.int32()),
        "sentence": pa.array(numbers, pa.int32()),
    }
    content = digest("tagger", VERSION, tokenizer.digest, labels, flat(settings), sentences)
    notes = _notes(sentences, len(rows), without_token)
    fit = preparation.fit([ids for ids, _ in encoded], texts)
    return with_facts({"rows": columns}, {"digest": content, "notes": notes, **fit})


def _windows(words: np.ndarray, settings: SentenceSettings) -> Iterator[tuple[slice, np.ndarray]]:
    """The tokens of each row of a sentence, and the words that begin at them in this row, [CLS] and
    [SEP] included."""
    room = settings.max_seq_length - 2
    starts = window_starts(len(words), room, settings.doc_stride)
    lengths = [min(room, len(words) - start) for start in starts]
    owners = max_context_owner(starts, lengths, len(words))
    for window, start in enumerate(starts):
        here = slice(start, start + room)
        own = np.where(owners[here] == window, words[here], NONE)
        yield here, np.pad(own, 1, constant_values=NONE)


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
    word_starts = np.asarray(starts)
    word_ends = word_starts + [len(word) for word in words]
    owners = np.searchsorted(word_ends, spans[:, 0], side="right")
    reached = np.append(word_starts, np.iinfo(np.int64).max)[owners] < spans[:, 1]
    owned, first_tokens = np.unique(np.where(reached, owners, NONE), return_index=True)
    numbers[first_tokens] = owned
    return numbers


class TagDecoder:
    """Makes the scores of rows the tags of sentences, and the cross-entropies of their words."""

    def __init__(self, data: DataSet, labels: Sequence[str], characters: bool):
        self._data = data
        self._labels = labels
        self._characters = characters
        self._tags: Any = data.rows.column("tags")

    def keep(self, row: int, scores_TL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The number of the best label of each token and its probability, [T, 2], and the
        cross-entropies of those with a tag."""
        values, offsets = self._tags
        tags_T = values[offsets[row] : offsets[row + 1]]
        logs_TL = log_softmax(scores_TL.astype(float), 1)
        used = np.flatnonzero(tags_T >= 0)
        losses = -logs_TL[used, tags_T[used]]
        best_T2 = np.stack([logs_TL.argmax(1), np.exp(logs_TL.max(1))], 1)
        return best_T2, losses

    def results(self, kept: Sequence[tuple[np.ndarray, np.ndarray]]) -> Results:
        """The tags of each sentence, and the losses of all words with a tag. A word without a token
        has O; see `filled` for characters."""
        sentences, rows = self._data.examples(), self._data.rows
        best, losses = zip(*kept, strict=True)
        words, offsets = rows.column("words")
        sentence_of = np.repeat(rows.column("sentence"), np.diff(offsets))
        tags = [[""] * len(each.words) for each in sentences]
        shares = [[1.0] * len(each.words) for each in sentences]
        first = np.flatnonzero(words != NONE)  # tokens of their words
        places = zip(sentence_of[first].tolist(), words[first].tolist(), strict=True)
        for (sentence, word), (label, share) in zip(
            places, np.concatenate(best)[first].tolist(), strict=True
        ):
            tags[sentence][word] = self._labels[int(label)]
            shares[sentence][word] = share
        found = []
        for each, own, own_shares in zip(sentences, tags, shares, strict=True):
            whole = filled(each.words, own) if self._characters else [tag or "O" for tag in own]
            found.append(Tagged(whole, own_shares))
        return found, np.concatenate(losses)


def filled(characters: Sequence[str], tags: Sequence[str]) -> list[str]:
    """The tags of characters, where "" is that of one at which no token begins.

    Inside a token, and at an accent or a vowel sign, it goes on with the entity before; a blank
    belongs to it only if the next token does.
    """
    result = []
    before = "O"
    starts = character_starts("".join(characters))
    for place, (character, tag) in enumerate(zip(characters, tags, strict=True)):
        if not tag or place not in starts:
            inner = f"I-{before[2:]}" if PREFIXED.fullmatch(before) else before
            after = next(filter(None, tags[place:]), "O")
            tag = "O" if character.isspace() and after != inner else inner
        result.append(tag)
        before = tag
    return result
