"""The scores of rows of tokens as tags of sentences.

Arrays have their shape as a suffix: T tokens of a row, L labels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax

from bert.text.characters import character_starts
from tasks.runs.rows.sets import DataSet
from tasks.runs.task import Decoder
from tasks.tagger.reader import NONE
from tasks.tagger.reading import PREFIXED


class Tagged(NamedTuple):
    """What a model says of the words of a sentence: their tags, and the probability of each."""

    tags: Sequence[str]
    shares: Sequence[float]

    def share(self, first: int, last: int) -> float:
        """The lowest probability of the words of an entity."""
        return min(self.shares[first : last + 1])


Results = tuple[Sequence[Tagged], np.ndarray]  # of each sentence; the losses of all words


class TagDecoder(Decoder):
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
        tagged = np.flatnonzero(tags_T >= 0)
        losses = -logs_TL[tagged, tags_T[tagged]]
        probabilities_T = np.exp(logs_TL.max(1))
        return np.stack([logs_TL.argmax(1), probabilities_T], 1), losses

    def results(self, kept: Sequence[tuple[np.ndarray, np.ndarray]]) -> Results:
        """The tags of each sentence, and the losses of all words with a tag. A word without a token
        has O; see `filled` for characters."""
        sentences, rows = self._data.examples(), self._data.rows
        best, losses = zip(*kept, strict=True)
        words, offsets = rows.column("words")
        sentence_of = np.repeat(rows.column("sentence"), np.diff(offsets))
        tags = [[""] * len(sentence.words) for sentence in sentences]
        shares = [[1.0] * len(sentence.words) for sentence in sentences]
        first = np.flatnonzero(words != NONE)  # tokens of their words
        best_of_words = np.concatenate(best)[first].tolist()
        for sentence, word, (label, share) in zip(
            sentence_of[first].tolist(), words[first].tolist(), best_of_words, strict=True
        ):
            tags[sentence][word] = self._labels[int(label)]
            shares[sentence][word] = share
        found = []
        for number, tags_of_words in enumerate(tags):
            if self._characters:
                whole = filled(sentences[number].words, tags_of_words)
            else:
                whole = [tag or "O" for tag in tags_of_words]
            found.append(Tagged(whole, shares[number]))
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
