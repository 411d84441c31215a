"""Masks against Google's algorithm (create_pretraining_data.py, written out below) and their own formulas."""

import random
from collections import Counter

import numpy as np
import pytest

from bert.corpus.masking import Masked, Masking, example_keys, mask

VOCAB, CLS, SEP, MASK = 1000, 1, 2, 3
CONTINUES = np.arange(VOCAB) % 3 == 0  # [MASK] among them: it stands in no text
WHOLE_WORDS = pytest.mark.parametrize("whole_words", [False, True], ids=["tokens", "whole words"])


def masking(whole_words: bool = False, **settings) -> Masking:
    return Masking(VOCAB, MASK, (CLS, SEP), continues_word=CONTINUES if whole_words else None, **settings)


def example(length: int, chance: np.random.Generator) -> np.ndarray:
    """[CLS] a [SEP] b [SEP] of `length` tokens; b may begin in the middle of a word."""
    tokens = chance.integers(4, VOCAB, length)
    tokens[[0, length // 2, -1]] = CLS, SEP, SEP
    return tokens.astype(np.int32)


def examples(lengths: list[int], seed: int = 0) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)
    return [example(length, chance) for length in lengths]


def flat(tokens: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([np.empty(0, np.int32), *tokens]), np.cumsum([0, *map(len, tokens)])


def parts(masked: Masked, offsets: np.ndarray) -> list[tuple[list[int], list[int], list[int]]]:
    """(values, positions, original ids) of each example."""
    at = masked.position_offsets
    return [
        (
            masked.values[offsets[i] : offsets[i + 1]].tolist(),
            masked.positions[at[i] : at[i + 1]].tolist(),
            masked.original_ids[at[i] : at[i + 1]].tolist(),
        )
        for i in range(len(offsets) - 1)
    ]


# -- Google's algorithm -------------------------------------------------------------------------------------------


def words_of(tokens: list[int], whole_words: bool) -> list[list[int]]:
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token in (CLS, SEP):
            continue
        if whole_words and words and CONTINUES[token]:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def google_places(tokens: list[int], words: list[list[int]], probability: float, most: int) -> list[int]:
    """The places that are predicted, given the words in random order."""
    number = min(most, max(1, round(len(tokens) * probability)))
    places: list[int] = []
    for word in words:
        if len(places) >= number:
            break
        if len(places) + len(word) > number:
            continue
        places += word
    return sorted(places)


@WHOLE_WORDS
def test_the_same_as_the_formulas_in_plain_integers(whole_words: bool) -> None:
    """Google's choice with the words in the order of their hashes, and the draws from the hashes."""
    word64, step = 2**64, 0x9E3779B97F4A7C15

    def mixed(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % word64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % word64
        return x ^ (x >> 31)

    lengths = [5, 6, 20, 64, 128, 33, 10, 30, 50, 3, 2, 128] * 5
    tokens = examples(lengths)
    values, offsets = flat(tokens)
    keys = example_keys(7, np.arange(len(tokens)), 2)
    found = mask(values, offsets, keys, masking(whole_words))
    seen = Counter()
    for number, (ids, told) in enumerate(zip(tokens, parts(found, offsets), strict=True)):
        ids = ids.tolist()
        key = mixed((7 + step) % word64)
        key = mixed((key + (number + 1) * step) % word64)
        key = mixed((key + (2 + 1) * step) % word64)
        assert key == int(keys[number])
        hashes = [mixed((key + (place + 1) * step) % word64) // 2**16 * 2**16 + place for place in range(len(ids))]
        words = sorted(words_of(ids, whole_words), key=lambda word, h=hashes: h[word[0]])
        places = google_places(ids, words, 0.15, 20)
        changed = list(ids)
        for place in places:
            draw = mixed((hashes[place] + step) % word64)
            share = (draw >> 32) / 2**32
            if share < 0.8:
                changed[place] = MASK
            elif share >= 0.9:
                changed[place] = (draw % 2**32) * VOCAB >> 32
            seen["mask" if share < 0.8 else "kept" if share < 0.9 else "random"] += 1
        assert told == (changed, places, [ids[place] for place in places])
    assert min(seen[kind] for kind in ("mask", "kept", "random")) > 20


@WHOLE_WORDS
def test_the_number_and_places_are_distributed_as_googles(whole_words: bool) -> None:
    """One example masked 20,000 times by us and by Google's algorithm with Python's generator.

    Differences of two shares are held against 5 standard deviations: passed by chance once in 10⁶ for each of the
    64 places; the seeds are fixed.
    """
    times = 20_000
    tokens = examples([64], seed=4)[0]
    settings = masking(whole_words, max_predictions_per_seq=8)
    values, offsets = flat([tokens] * times)
    found = mask(values, offsets, example_keys(1, np.arange(times)), settings)
    ours = np.bincount(found.positions, minlength=64)
    numbers = np.bincount(np.diff(found.position_offsets), minlength=9)

    generator = random.Random(0)
    theirs, their_numbers = np.zeros(64), np.zeros(9)
    for _ in range(times):
        words = words_of(tokens.tolist(), whole_words)
        generator.shuffle(words)
        places = google_places(tokens.tolist(), words, 0.15, 8)
        theirs[places] += 1
        their_numbers[len(places)] += 1
    for a, b in ((ours, theirs), (numbers, their_numbers)):
        share = (a + b) / (2 * times)
        deviation = np.sqrt(2 * share * (1 - share) / times)
        np.testing.assert_array_less(np.abs(a - b) / times, 5 * deviation + 1e-12)
    assert not whole_words or max(map(len, words_of(tokens.tolist(), True))) >= 3


@WHOLE_WORDS
def test_shares_of_mask_kept_and_random_words(whole_words: bool) -> None:
    tokens = examples([128] * 2000)
    values, offsets = flat(tokens)
    found = mask(values, offsets, example_keys(0, np.arange(2000)), masking(whole_words))
    rows = np.repeat(np.arange(2000), np.diff(found.position_offsets))
    now = found.values[offsets[rows] + found.positions]
    total = len(now)
    assert total > 30_000
    # A random word may be [MASK] or the token itself: 0.1 / 1000 of the cases, less than the bound's rounding.
    for share, came in ((0.8, now == MASK), (0.1, now == found.original_ids)):
        expected = share + 0.1 / VOCAB
        assert abs(came.mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / total)
    others = now[(now != MASK) & (now != found.original_ids)]
    counts = np.bincount(others, minlength=VOCAB)
    counts = np.delete(counts, MASK)
    # χ² has mean 998 and variance 2 · 998. A draw that is the token itself is not seen: it takes 0.1 % from each.
    chi_square = np.sum((counts - counts.mean()) ** 2) / counts.mean()
    assert abs(chi_square - 998) < 5 * np.sqrt(2 * 998)
    assert len(counts) == VOCAB - 1
    assert counts[:3].sum() > 0, "special tokens are words of the vocabulary too"


# -- what must hold for any masks ---------------------------------------------------------------------------------


@WHOLE_WORDS
def test_masks_give_back_the_original_and_leave_the_rest(whole_words: bool) -> None:
    tokens = examples(list(range(3, 200)))
    values, offsets = flat(tokens)
    before = values.copy()
    found = mask(values, offsets, example_keys(5, np.arange(len(tokens))), masking(whole_words))
    np.testing.assert_array_equal(values, before)
    dtypes = [array.dtype for array in found]
    assert dtypes == [np.int32, np.int32, np.int64, np.int32]
    changed = 0
    for ids, (now, positions, original) in zip(tokens, parts(found, offsets), strict=True):
        assert positions == sorted(set(positions))
        assert all(ids[place] not in (CLS, SEP) for place in positions)
        restored = np.array(now)
        restored[positions] = original
        np.testing.assert_array_equal(restored, ids)
        changed += np.sum(ids != now)
    assert changed > 1000


def test_the_number_to_predict_is_pythons_round() -> None:
    lengths = list(range(5, 513))
    values, offsets = flat(examples(lengths))
    for probability, most in ((0.15, 1000), (0.15, 20), (0.1, 1000), (0.5, 77)):
        settings = masking(masked_lm_prob=probability, max_predictions_per_seq=most)
        found = mask(values, offsets, example_keys(0, np.arange(len(lengths))), settings)
        expected = [min(most, max(1, round(n * probability)), n - 3) for n in lengths]
        assert np.diff(found.position_offsets).tolist() == expected
    assert [round(n * 0.5) for n in (5, 7)] == [2, 4], "halves are among them"


def test_whole_words_are_predicted_whole_or_not_at_all() -> None:
    tokens = examples([128] * 200)
    values, offsets = flat(tokens)
    found = mask(values, offsets, example_keys(0, np.arange(200)), masking(True))
    for ids, (_, positions, _) in zip(tokens, parts(found, offsets), strict=True):
        assert 0 < len(positions) <= 19
        for word in words_of(ids.tolist(), True):
            assert len(set(word) & set(positions)) in (0, len(word))


def test_a_word_that_would_exceed_the_number_is_passed_over() -> None:
    long_word = [CLS, 4, *[6] * 30, SEP]  # 6 continues a word: one of 31 tokens, and 5 are wanted
    assert not CONTINUES[4]
    assert CONTINUES[6]
    alone = mask(*flat([np.array(long_word)] * 50), example_keys(0, np.arange(50)), masking(True))
    assert len(alone.positions) == 0
    beside = [*long_word[:-1], 7, 8, 10, SEP]
    found = mask(*flat([np.array(beside)] * 50), example_keys(0, np.arange(50)), masking(True))
    assert parts(found, np.arange(51) * len(beside))[0][1] == [32, 33, 34]
    assert np.diff(found.position_offsets).tolist() == [3] * 50


@WHOLE_WORDS
def test_an_example_has_the_same_masks_in_any_batch(whole_words: bool) -> None:
    tokens = examples([20, 128, 5, 77, 64, 128, 9, 33])
    keys = example_keys(3, np.arange(8), 1)
    together = parts(mask(*flat(tokens), keys, masking(whole_words)), flat(tokens)[1])
    for order in ([0], [5], [7, 2, 0], [3, 3, 1], list(range(8))[::-1]):
        chosen = [tokens[i] for i in order]
        values, offsets = flat(chosen)
        found = mask(values, offsets, keys[order], masking(whole_words))
        assert parts(found, offsets) == [together[i] for i in order]
    wide = mask(flat(tokens)[0].astype(np.int64), flat(tokens)[1], keys, masking(whole_words))
    assert parts(wide, flat(tokens)[1]) == together


@WHOLE_WORDS
def test_examples_without_candidates_and_batches_without_examples(whole_words: bool) -> None:
    odd = [np.array(tokens, np.int32) for tokens in ([CLS, SEP], [], [CLS, SEP, SEP], [7], [CLS, 8, SEP])]
    values, offsets = flat(odd)
    found = mask(values, offsets, example_keys(0, np.arange(5)), masking(whole_words))
    assert np.diff(found.position_offsets).tolist() == [0, 0, 0, 1, 1]
    assert (found.positions.tolist(), found.original_ids.tolist()) == ([0, 1], [7, 8])
    for chosen in ([], odd[:1], odd[1:2]):
        values, offsets = flat(chosen)
        found = mask(values, offsets, example_keys(0, np.arange(len(chosen))), masking(whole_words))
        assert (found.values.tolist(), found.positions.tolist()) == (values.tolist(), [])
        assert found.position_offsets.tolist() == [0] * (len(chosen) + 1)


# -- keys ---------------------------------------------------------------------------------------------------------


def test_keys_tell_seeds_rows_and_epochs_apart() -> None:
    rows = np.arange(100_000)
    sets = [
        example_keys(1, rows, 0), example_keys(1, rows, 1), example_keys(2, rows, 0), example_keys(1, rows),
        example_keys(1, 0, rows)[2:], example_keys(-1, rows, 0), example_keys(2**63 + 5, rows, 0),
    ]  # fmt: skip
    assert all(keys.dtype == np.uint64 for keys in sets)
    total = np.concatenate(sets)
    assert len(np.unique(total)) == len(total)  # 7·10⁵ random words of 64 bits hold two alike once in 7·10⁷ times
    assert example_keys(5).shape == (1,)
    assert example_keys(5, 3, 4).tolist() == example_keys(5, np.array([3]), np.array([4])).tolist()


def test_a_bit_of_a_part_changes_half_of_the_keys_bits() -> None:
    rows = np.random.default_rng(0).integers(0, 2**40, 4000)
    before = example_keys(9, rows, 1)
    for bit in range(0, 40, 3):
        changed = before ^ example_keys(9, rows ^ (1 << bit), 1)
        each = np.array([np.mean((changed >> np.uint64(place)) & np.uint64(1)) for place in range(64)])
        # 4000 coins each: 0.5 ± 0.0079; 6 standard deviations over 64 · 14 of them
        assert np.abs(each - 0.5).max() < 0.048


def test_masks_of_two_epochs_overlap_as_independent_ones_do() -> None:
    tokens = examples([128] * 2000)
    values, offsets = flat(tokens)
    first, second = (mask(values, offsets, example_keys(0, np.arange(2000), epoch), masking()) for epoch in (0, 1))
    both = sum(
        len(set(a[1]) & set(b[1])) for a, b in zip(parts(first, offsets), parts(second, offsets), strict=True)
    )
    # 19 of 125 twice: hypergeometric, mean 2.888 and variance 2.08 an example
    mean, variance = 19 * 19 / 125, 19 * (19 / 125) * (106 / 125) * (106 / 124)
    assert abs(both - 2000 * mean) < 5 * np.sqrt(2000 * variance)
