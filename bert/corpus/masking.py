"""Masked-language-model masking as a pure function of keys, over a whole batch at once.

The rules are those of google-research/bert `create_pretraining_data.py` (`create_masked_lm_predictions`). The
random numbers are hashes of (key of the example, position of the token), so masks can be drawn when a row is read.
The same key gives the same masks on any rank and in any batch.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert.text.tokenizer import Tokenizer
from ringbase.ragged import mixed, offsets_of
from ringbase.settings import LONGEST_ROW

MASKED_SHARE, KEPT_SHARE = 0.8, 0.1  # the rest become a random entry of the vocabulary
_STEP = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio of 2⁶⁴: splitmix64's step from one state to the next
_LARGEST = np.uint64((1 << 64) - 1)


@dataclass(frozen=True)
class Masking:
    """The parameters of masking."""

    vocab_size: int
    mask_id: int
    special_ids: tuple[int, ...]  # of [CLS] and [SEP], which are never predicted
    masked_lm_prob: float = 0.15  # share of an example's tokens to predict; special tokens count too
    max_predictions_per_seq: int = 20
    continues_word: np.ndarray | None = None  # bool [vocab_size]: continues a word (`##ing`); masks whole words

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, masked_lm_prob: float, max_predictions_per_seq: int, do_whole_word_mask: bool
    ):
        """The masking of texts of this tokenizer with these settings."""
        continues_word = tokenizer.continues_word if do_whole_word_mask else None
        special_ids = tokenizer.cls_id, tokenizer.sep_id
        limits = masked_lm_prob, max_predictions_per_seq
        return cls(tokenizer.vocab_size, tokenizer.mask_id, special_ids, *limits, continues_word)

    def num_predictions(self, lengths):
        """The maximum number of predictions of examples of these lengths; int64, an array or a number."""
        wanted = np.rint(lengths * self.masked_lm_prob).astype(np.int64)
        return np.minimum(np.maximum(wanted, 1), self.max_predictions_per_seq)


class Masked(NamedTuple):
    values: np.ndarray  # int32, the token ids of all examples with masks applied
    positions: np.ndarray  # int32, the predicted tokens' indices within their example, ascending
    position_offsets: np.ndarray  # int64 [n + 1], where each example's predictions start
    original_ids: np.ndarray  # int32, the ids to predict


def mask(values: np.ndarray, offsets: np.ndarray, keys: np.ndarray, masking: Masking) -> Masked:
    """Masks n examples by their keys (uint64 [n], from `example_keys`).

    `values` holds the token ids of all examples, special tokens included, and `offsets` (int64 [n + 1]) where each
    example starts. In an example of L tokens, min(max_predictions_per_seq, max(1, round(L · masked_lm_prob))) are
    predicted (halves round to even), or fewer if there are fewer candidates or whole words do not fit. A predicted
    token becomes [MASK] in 80 % of cases, a random entry of the vocabulary in 10 %, and stays as it is in 10 %.
    """
    lengths = np.diff(offsets)
    length = int(lengths.max(initial=0))
    assert length <= LONGEST_ROW, f"an example of {length} tokens"
    inside = np.arange(length) < lengths[:, None]
    candidate = inside.copy()
    candidate[inside] = ~np.isin(values, masking.special_ids)
    # A hash of each key and position. Its last bits are the position, so that no two of a row are equal, and their
    # order does not depend on the sorting algorithm.
    position = np.arange(length, dtype=np.uint64)
    hashes = mixed(np.asarray(keys, np.uint64)[:, None] + (position + np.uint64(1)) * _STEP)
    hashes = (hashes & ~np.uint64(LONGEST_ROW - 1)) | position

    wanted, chosen = masking.num_predictions(lengths), candidate
    if candidate.any() and masking.continues_word is not None:
        continues = np.zeros_like(inside)
        continues[inside] = masking.continues_word[values]
        chosen = _whole_words(hashes, candidate, continues, wanted)
    elif candidate.any():
        chosen = _smallest(hashes, candidate, wanted)

    masked = np.array(values, np.int32)
    places = np.flatnonzero(chosen[inside])  # in `values`
    original_ids = masked[places]
    draws = mixed(hashes[chosen] + _STEP)
    share = (draws >> np.uint64(32)) / 2.0**32
    word = ((draws & np.uint64(0xFFFFFFFF)) * np.uint64(masking.vocab_size)) >> np.uint64(32)
    other = np.where(share < MASKED_SHARE + KEPT_SHARE, original_ids, word.astype(np.int32))
    masked[places] = np.where(share < MASKED_SHARE, np.int32(masking.mask_id), other)
    return Masked(masked, np.nonzero(chosen)[1].astype(np.int32), offsets_of(chosen.sum(axis=1)), original_ids)


def example_keys(seed: int, *parts: "np.ndarray | int") -> np.ndarray:
    """A key (uint64 [n]) for each example: a hash of the seed and of parts such as row number and epoch.

    A part is an array [n] or one number for all. Keys of different seeds or parts are statistically independent.
    """
    state = mixed(np.atleast_1d(seed).astype(np.uint64) + _STEP)
    for part in parts:
        state = mixed(state + (np.atleast_1d(part).astype(np.uint64) + np.uint64(1)) * _STEP)
    return state


def _smallest(hashes: np.ndarray, candidate: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Bool [n, length]: the `wanted` candidates of each row with the smallest hashes."""
    wanted = np.minimum(wanted, candidate.sum(axis=1))
    ranked = np.where(candidate, hashes, _LARGEST)
    last = np.sort(ranked, axis=1)[np.arange(len(wanted)), np.maximum(wanted, 1) - 1]
    return candidate & (ranked <= last[:, None]) & (wanted > 0)[:, None]


def _whole_words(
    hashes: np.ndarray, candidate: np.ndarray, continues: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Bool [n, length]: words in random order, each taken unless the row would then exceed `wanted`.

    A piece that continues a word belongs to the word before it, even across [SEP], as in Google's code. The first
    candidate of an example always starts a word.
    """
    n, length = candidate.shape
    starts = candidate & ~(continues & (np.cumsum(candidate, axis=1) > 1))
    start = np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)  # start of each token's word
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
