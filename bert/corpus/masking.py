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
    # share of an example's tokens to predict, or that of each example; special tokens count too
    masked_lm_prob: float | Array
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
    tokenizer = masking.tokenizer
    candidate = inside.copy()
    candidate[inside] = (values != tokenizer.cls_id) & (values != tokenizer.sep_id)
    # A hash of each key and position. Its last bits are the position, so that no two of a row are
    # equal, and their order does not depend on the sorting algorithm.
    position = np.arange(length, dtype=np.uint64)
    states = np.asarray(keys, np.uint64)[:, None] + (position + 1) * _STEP
    first_bits = ~np.uint64(LONGEST_ROW - 1)
    hashes = (mixed(states) & first_bits) | position

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
    share = (draws >> 32) / 2.0**32  # the first half of a draw says what becomes of the token
    random_ids = ((draws & 0xFFFFFFFF) * tokenizer.vocab_size) >> 32
    new_ids = random_ids.astype(np.int32)
    new_ids = np.where(share < MASKED_SHARE + KEPT_SHARE, original_ids, new_ids)
    masked[places] = np.where(share < MASKED_SHARE, np.int32(tokenizer.mask_id), new_ids)
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
        numbers = np.atleast_1d(part).astype(np.uint64)
        state = mixed(state + (numbers + 1) * _STEP)
    return state


def _smallest(hashes, candidate, wanted):
    """Bool [n, length]: the `wanted` candidates of each row with the smallest hashes."""
    wanted = np.minimum(wanted, candidate.sum(axis=1))
    candidate = candidate & (wanted > 0)[:, None]
    ranked = np.where(candidate, hashes, _LARGEST)
    last_place = np.maximum(wanted, 1) - 1
    last = np.take_along_axis(np.sort(ranked, axis=1), last_place[:, None], axis=1)
    return candidate & (ranked <= last)


def _whole_words(hashes, candidate, continues, wanted):
    """Bool [n, length]: words in random order, each taken unless the row would then exceed
    `wanted`.

    A piece that continues a word belongs to the word before it, even across [SEP], as in Google's
    code. The first candidate of an example always starts a word.
    """
    n, length = candidate.shape
    rows = np.arange(n)
    is_first = np.cumsum(candidate, axis=1) == 1
    is_start = candidate & (is_first | ~continues)
    # the place where each token's word starts, in its row and in all rows
    start = np.where(is_start, np.arange(length), 0)
    start = np.maximum.accumulate(start, axis=1)
    flat_start = rows[:, None] * length + start
    sizes = np.bincount(flat_start[candidate], minlength=n * length).reshape(n, length)
    order = np.argsort(np.where(is_start, hashes, _LARGEST), axis=1)
    sizes = np.take_along_axis(sizes, order, axis=1)
    taken = np.zeros_like(candidate)
    room = wanted.copy()
    most_words = int(is_start.sum(axis=1).max(initial=0))
    # one word of every example at a time
    for turn in range(most_words):
        size = sizes[:, turn]
        fits = (size <= room) & (size > 0)
        room -= np.where(fits, size, 0)
        taken[rows, order[:, turn]] = fits
        if not room.any():
            break
    return candidate & np.take_along_axis(taken, start, axis=1)
