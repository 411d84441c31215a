"""Masked-language-model masking as a pure function of keys, over a whole batch at once.

The rules are those of google-research/bert `create_pretraining_data.py` (`create_masked_lm_predictions`); the
random numbers are hashes of (key of the example, position of the token), so masks can be drawn when a row is read:
the same key gives the same masks, whatever else is in the batch, on any rank.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MASKED_SHARE, KEPT_SHARE = 0.8, 0.1  # the rest become a word drawn from the whole vocabulary
LONGEST = 1 << 16


@dataclass(frozen=True)
class Masking:
    """How to mask.

    Attributes:
      special_ids: [CLS] and [SEP], which are never predicted.
      masked_lm_prob: share of an example's tokens, special ones included, to predict.
      continues_word: bool [vocab_size], True for pieces that continue a word (`##ing`); masks whole words.
    """

    vocab_size: int
    mask_id: int
    special_ids: tuple[int, ...]
    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 20
    continues_word: np.ndarray | None = None

    def __post_init__(self):
        assert 0 < self.masked_lm_prob <= 1
        assert self.max_predictions_per_seq > 0
        assert self.continues_word is None or self.continues_word.shape == (self.vocab_size,)

    def num_predictions(self, lengths):
        """How many tokens of examples of these lengths are predicted at most; int64, an array or a number."""
        wanted = np.rint(lengths * self.masked_lm_prob).astype(np.int64)
        return np.minimum(np.maximum(wanted, 1), self.max_predictions_per_seq)


class Masked(NamedTuple):
    """Masked examples: the flat `values` (int32) with masks applied; of what is to be predicted the flat
    `positions` (int32, index within the example, ascending) and `original_ids` (int32), with
    `position_offsets` (int64 [n + 1]).
    """

    values: np.ndarray
    positions: np.ndarray
    position_offsets: np.ndarray
    original_ids: np.ndarray


def mask(values: np.ndarray, offsets: np.ndarray, keys: np.ndarray, masking: Masking) -> Masked:
    """Masks n examples by their keys (uint64 [n], from `example_keys`).

    `values` holds all tokens, special ones included, and `offsets` (int64 [n + 1]) where each example starts. Of
    an example of L tokens min(max_predictions_per_seq, max(1, round(L · masked_lm_prob))) are predicted, half
    rounding to even: [MASK] in 80 %, themselves in 10 %, a uniform draw from the vocabulary in 10 % of cases.
    Fewer when it has fewer candidates, or when whole words do not fit.
    """
    lengths = np.diff(offsets)
    length = int(lengths.max(initial=0))
    assert length <= LONGEST, f"an example of {length} tokens"
    inside = np.arange(length) < lengths[:, None]
    candidate = inside.copy()
    candidate[inside] = ~np.isin(values, masking.special_ids)
    wanted = masking.num_predictions(lengths)

    hashes = _hashes(keys, length)
    if masking.continues_word is None:
        chosen = _smallest(hashes, candidate, wanted)
    else:
        continues = np.zeros_like(inside)
        continues[inside] = masking.continues_word[values]
        chosen = _whole_words(hashes, candidate, continues, wanted)

    of_token = np.flatnonzero(chosen[inside])  # in `values`
    rows, positions = np.nonzero(chosen)
    masked = np.array(values, np.int32)
    original_ids = masked[of_token]
    masked[of_token] = _replacements(hashes[rows, positions], original_ids, masking)
    position_offsets = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))]).astype(np.int64)
    return Masked(masked, positions.astype(np.int32), position_offsets, original_ids)


def example_keys(seed: int, *parts: "np.ndarray | int") -> np.ndarray:
    """A key (uint64 [n]) for each example: a hash of the seed and of parts such as row number and epoch, [n] or
    one for all. Keys of different seeds or parts are as good as independent."""
    state = _mixed(_words(seed) + _STEP)
    for part in parts:
        state = _mixed(state + (_words(part) + np.uint64(1)) * _STEP)
    return state


# -- choosing -----------------------------------------------------------------------------------------------------


def _smallest(hashes: np.ndarray, candidate: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The `wanted` candidates of smallest hash of each row: the first ones in random order. Bool [n, length]."""
    wanted = np.minimum(wanted, candidate.sum(axis=1))
    if not wanted.any():
        return np.zeros_like(candidate)
    ranked = np.where(candidate, hashes, _LARGEST)
    last = np.sort(ranked, axis=1)[np.arange(len(wanted)), np.maximum(wanted, 1) - 1]
    return candidate & (ranked <= last[:, None]) & (wanted > 0)[:, None]


def _whole_words(
    hashes: np.ndarray, candidate: np.ndarray, continues: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Words in random order, each taken unless it would exceed `wanted`. Bool [n, length].

    A piece that continues a word belongs to the word before it, as Google has it also across [SEP]; the first
    candidate of an example starts one in any case.
    """
    if not candidate.any():
        return candidate
    n, length = candidate.shape
    starts = candidate & ~(continues & (np.cumsum(candidate, axis=1) > 1))
    start = np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)  # of each token's word
    rows = np.arange(n)[:, None]
    sizes = np.bincount((rows * length + start)[candidate], minlength=n * length).reshape(n, length)
    order = np.argsort(np.where(starts, hashes, _LARGEST), axis=1)
    sizes = np.take_along_axis(sizes, order, axis=1)
    taken = np.zeros_like(candidate)
    room = wanted.copy()
    for turn in range(int(starts.sum(axis=1).max())):  # one word of every example at a time
        fits = (sizes[:, turn] <= room) & (sizes[:, turn] > 0)
        room -= np.where(fits, sizes[:, turn], 0)
        taken[rows[:, 0], order[:, turn]] = fits
        if not room.any():
            break
    return candidate & np.take_along_axis(taken, start, axis=1)


def _replacements(hashes: np.ndarray, original_ids: np.ndarray, masking: Masking) -> np.ndarray:
    """What stands in the place of each predicted token."""
    draws = _mixed(hashes + _STEP)
    share = (draws >> np.uint64(32)) / 2.0**32
    word = ((draws & np.uint64(0xFFFFFFFF)) * np.uint64(masking.vocab_size)) >> np.uint64(32)
    other = np.where(share < MASKED_SHARE + KEPT_SHARE, original_ids, word.astype(np.int32))
    return np.where(share < MASKED_SHARE, np.int32(masking.mask_id), other)


# -- random numbers -----------------------------------------------------------------------------------------------

_STEP = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio of 2⁶⁴: splitmix64's step from one state to the next
_LARGEST = np.uint64((1 << 64) - 1)


def _hashes(keys: np.ndarray, length: int) -> np.ndarray:
    """A hash of each (key, position), uint64 [n, length]; no two of a row are equal, so their order is no accident
    of a sorting algorithm."""
    position = np.arange(length, dtype=np.uint64)
    hashes = _mixed(np.asarray(keys, np.uint64)[:, None] + (position + np.uint64(1)) * _STEP)
    return (hashes & ~np.uint64(LONGEST - 1)) | position


def _mixed(words: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014, Fast Splittable Pseudorandom Number Generators): a
    bijection of uint64 in which a bit of the input changes half of those of the output."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _words(part: "np.ndarray | int") -> np.ndarray:
    """As uint64 [n] or [1]; negative numbers as their two's complement."""
    if isinstance(part, int):
        part = np.array([part & int(_LARGEST)], np.uint64)
    return np.atleast_1d(part).astype(np.uint64)
