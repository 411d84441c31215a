"""Masked-language-model masking as a pure function of keys, over a whole batch at once.

The rules are those of google-research/bert `create_pretraining_data.py`
(`create_masked_lm_predictions`). The random numbers are hashes of (key of the example, position of
the token): a key gives the same masks on any rank, in any batch and at any time.
"""

from dataclasses import dataclass

import numpy as np

from bert.text.tokenizer import Tokenizer
from ringbase.ragged import Array, Ragged, mixed, offsets_of
from ringbase.settings import LONGEST_ROW

MASKED_SHARE, KEPT_SHARE = 0.8, 0.1  # the rest become a random entry of the vocabulary
# the golden ratio of 2⁶⁴: splitmix64's step from one state to the next
_STEP = np.uint64(0x9E3779B97F4A7C15)
_LARGEST = np.uint64((1 << 64) - 1)


@dataclass(frozen=True)
class Masking:
    """How texts of a tokenizer are masked."""

    tokenizer: Tokenizer
    # share of an example's tokens to predict; special tokens count too
    masked_lm_prob: float
    max_predictions_per_seq: int
    do_whole_word_mask: bool

    def num_predictions(self, lengths):
        """The maximum number of predictions of examples of these lengths; int64, an array or a
        number."""
        wanted = np.rint(lengths * self.masked_lm_prob).astype(np.int64)
        return np.minimum(np.maximum(wanted, 1), self.max_predictions_per_seq)


def mask(values: Array, offsets: Array, keys: Array, masking: Masking) -> dict[str, Ragged]:
    """Masks n examples by their keys (uint64 [n], from `example_keys`). Returns int32 columns:
    `input_ids` with masks, `masked_lm_positions` (ascending, within the example) and
    `masked_lm_ids`, the ids to predict.

    `values` holds the token ids of all examples, special tokens included, and `offsets` (int64 [n +
    1]) where each example starts. In an example of L tokens, min(max_predictions_per_seq, max(1,
    round(L · masked_lm_prob))) are predicted (halves round to even), or fewer if there are fewer
    candidates or whole words do not fit; [CLS] and [SEP] never. A predicted token becomes [MASK] in
    80 % of cases, a random entry of the vocabulary in 10 %, and stays as it is in 10 %.
    """
    lengths = np.diff(offsets)
    length = int(lengths.max(initial=0))
    assert length <= LONGEST_ROW, length
    inside = np.arange(length) < lengths[:, None]
    candidate = inside.copy()
    tokenizer = masking.tokenizer
    candidate[inside] = (values != tokenizer.cls_id) & (values != tokenizer.sep_id)
    # A hash of each key and position. Its last bits are the position, so that no two of a row are
    # equal, and their order does not depend on the sorting algorithm.
    position = np.arange(length, dtype=np.uint64)
    hashes = mixed(np.asarray(keys, np.uint64)[:, None] + (position + 1) * _STEP)
    hashes = (hashes & ~np.uint64(LONGEST_ROW - 1)) | position

    wanted = masking.num_predictions(lengths)
    if masking.do_whole_word_mask:
        continues = np.zeros_like(inside)
        continues[inside] = tokenizer.continues_word[values]
        chosen = _whole_words(hashes, candidate, continues, wanted)
    else:
        chosen = _smallest(hashes, candidate, wanted)

    masked = np.array(values, np.int32)
    places = np.flatnonzero(chosen[inside])  # in `values`
    original_ids = masked[places]
    draws = mixed(hashes[chosen] + _STEP)
    share = (draws >> 32) / 2.0**32
    word = ((draws & 0xFFFFFFFF) * tokenizer.vocab_size) >> 32
    other = np.where(share < MASKED_SHARE + KEPT_SHARE, original_ids, word.astype(np.int32))
    masked[places] = np.where(share < MASKED_SHARE, np.int32(tokenizer.mask_id), other)
    positions = np.nonzero(chosen)[1].astype(np.int32)
    predictions = offsets_of(chosen.sum(axis=1))
    return {
        "input_ids": (masked, offsets),
        "masked_lm_positions": (positions, predictions),
        "masked_lm_ids": (original_ids, predictions),
    }


def example_keys(seed: int, *parts: Array | int) -> Array:
    """A key (uint64 [n]) for each example: a hash of the seed and of parts such as row number and
    epoch.

    A part is an array [n] or one number for all. Keys of different seeds or parts are statistically
    independent.
    """
    state = mixed(np.atleast_1d(seed).astype(np.uint64) + _STEP)
    for part in parts:
        state = mixed(state + (np.atleast_1d(part).astype(np.uint64) + 1) * _STEP)
    return state


def _smallest(hashes: Array, candidate: Array, wanted: Array) -> Array:
    """Bool [n, length]: the `wanted` candidates of each row with the smallest hashes."""
    wanted = np.minimum(wanted, candidate.sum(axis=1))
    ranked = np.where(candidate, hashes, _LARGEST)
    last = np.sort(ranked, axis=1)[np.arange(len(wanted)), np.maximum(wanted, 1) - 1]
    return candidate & (ranked <= last[:, None]) & (wanted > 0)[:, None]


def _whole_words(hashes: Array, candidate: Array, continues: Array, wanted: Array) -> Array:
    """Bool [n, length]: words in random order, each taken unless the row would then exceed
    `wanted`.

    A piece that continues a word belongs to the word before it, even across [SEP], as in Google's
    code. The first candidate of an example always starts a word.
    """
    n, length = candidate.shape
    starts = candidate & ~(continues & (np.cumsum(candidate, axis=1) > 1))
    # start of each token's word
    start = np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)
    rows = np.arange(n)[:, None]
    sizes = np.bincount((rows * length + start)[candidate], minlength=n * length).reshape(n, length)
    order = np.argsort(np.where(starts, hashes, _LARGEST), axis=1)
    sizes = np.take_along_axis(sizes, order, axis=1)
    taken = np.zeros_like(candidate)
    room = wanted.copy()
    # one word of every example at a time
    for turn in range(int(starts.sum(axis=1).max(initial=0))):
        size = sizes[:, turn]
        fits = (size <= room) & (size > 0)
        room -= np.where(fits, size, 0)
        taken[rows[:, 0], order[:, turn]] = fits
        if not room.any():
            break
    return candidate & np.take_along_axis(taken, start, axis=1)
