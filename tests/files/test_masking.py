"""Masks against Google's algorithm (create_pretraining_data.py, written out below)."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bert.corpus.masking import Masking, example_keys, mask
from bert.corpus.settings import GOOGLES_MASKS
from bert.settings import VocabularySettings
from bert.text import tokenizer, vocabulary

VOCAB, CLS, SEP, MASK = 1000, 1, 2, 3
CONTINUES = np.arange(VOCAB) % 3 == 0  # [MASK] among them: it stands in no text
TOKENIZER = SimpleNamespace(
    vocab_size=VOCAB, mask_id=MASK, cls_id=CLS, sep_id=SEP, continues_word=CONTINUES
)


def examples(lengths, seed=0):
    """[CLS] a [SEP] b [SEP] of each length, joined, and their offsets; b may begin in the middle of
    a word."""
    chance, offsets = np.random.default_rng(seed), np.cumsum([0, *lengths])
    values = chance.integers(4, VOCAB, offsets[-1]).astype(np.int32)
    values[offsets[:-1]] = CLS
    values[offsets[:-1] + np.array(lengths) // 2] = SEP
    values[offsets[1:] - 1] = SEP
    return values, offsets


def masked(values, offsets, seed, **settings):
    keys = example_keys(seed, np.arange(len(offsets) - 1))
    return mask(values, offsets, keys, Masking(TOKENIZER, **GOOGLES_MASKS | settings))


def words_of(tokens, whole_words):
    words = []
    for place, token in enumerate(tokens):
        if token in (CLS, SEP):
            continue
        if whole_words and words and CONTINUES[token]:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def google_places(words, number):
    """The places that are predicted, given the words in random order."""
    places = []
    for word in words:
        if len(places) >= number:
            break
        if len(places) + len(word) <= number:
            places += word
    return places


@pytest.mark.parametrize("whole_words", [False, True], ids=["tokens", "whole words"])
def test_the_number_and_places_are_distributed_as_googles(whole_words):
    """One example masked 10,000 times by us and by Google's algorithm with Python's generator.

    Differences of two shares are held against 5 standard deviations: passed by chance once in 10^6
    for each of the 64 places; the seeds are fixed.
    """
    times, (tokens, _) = 10_000, examples([64], seed=4)
    values, offsets = np.tile(tokens, times), np.arange(times + 1) * 64
    found = masked(values, offsets, 1, do_whole_word_mask=whole_words, max_predictions_per_seq=8)
    positions, starts = found["masked_lm_positions"]
    ours = np.bincount(positions, minlength=64)
    numbers = np.bincount(np.diff(starts), minlength=9)
    generator, theirs, their_numbers = random.Random(0), np.zeros(64), np.zeros(9)
    words = words_of(tokens.tolist(), whole_words)
    assert not whole_words or max(map(len, words)) >= 3
    for _ in range(times):
        generator.shuffle(words)
        places = google_places(words, 8)  # of round(64 * 0.15) = 10
        theirs[places] += 1
        their_numbers[len(places)] += 1
    for a, b in ((ours, theirs), (numbers, their_numbers)):
        share = (a + b) / (2 * times)
        deviation = np.sqrt(2 * share * (1 - share) / times)
        np.testing.assert_array_less(np.abs(a - b) / times, 5 * deviation + 1e-12)


def test_eighty_ten_ten():
    values, offsets = examples([128] * 2000)
    (ids, _), (positions, starts), (originals, _) = masked(values, offsets, 0).values()
    now = ids[np.repeat(offsets[:-1], np.diff(starts)) + positions]
    # A random word may be [MASK] or the token itself: 0.1 / 1000 of the cases.
    for share, came in ((0.8, now == MASK), (0.1, now == originals)):
        expected = share + 0.1 / VOCAB
        assert abs(came.mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / len(now))
    counts = np.bincount(now[(now != MASK) & (now != originals)], minlength=VOCAB)
    counts = np.delete(counts, MASK)
    # χ² has mean 998 and variance 2 · 998. A draw that is the token itself is not seen: it takes
    # 0.1 % from each.
    assert abs(np.sum((counts - counts.mean()) ** 2) / counts.mean() - 998) < 5 * np.sqrt(2 * 998)
    assert counts[:3].sum() > 0, "special tokens are words of the vocabulary too"


@pytest.mark.parametrize(
    ("whole_words", "probability", "most"),
    [(False, 0.15, 1000), (False, 0.5, 77), (True, 0.15, 20)],
)
def test_masks_give_back_the_original_in_whole_words_as_many_as_pythons_round_says(
    whole_words, probability, most
):
    values, offsets = examples(range(5, 400))
    before = values.copy()
    limits = {"masked_lm_prob": probability, "max_predictions_per_seq": most}
    columns = masked(values, offsets, 5, do_whole_word_mask=whole_words, **limits).values()
    np.testing.assert_array_equal(values, before)
    parts = ([part.tolist() for part in np.split(array, starts[1:-1])] for array, starts in columns)
    for ids, now, positions, originals in zip(np.split(values, offsets[1:-1]), *parts, strict=True):
        assert positions == sorted(set(positions))
        wanted = min(most, max(1, round(len(ids) * probability)), len(ids) - 3)
        assert len(positions) <= wanted if whole_words else len(positions) == wanted
        restored = np.array(now)
        restored[positions] = originals
        np.testing.assert_array_equal(restored, ids)
        words = words_of(ids.tolist(), whole_words)
        assert set(positions) <= {place for word in words for place in word}
        assert all(len(set(word) & set(positions)) in (0, len(word)) for word in words)


def google_starts_a_word(piece):
    """`_is_start_piece_sp` of google-research/albert's create_pretraining_data.py, without its
    marks: "For foreign characters, we always treat them as a whole piece"."""
    english = {*"abcdefghijklmnopqrstuvwhyz"}  # in its spelling
    return piece.startswith(("▁", "<")) or not english.issuperset(piece.lower())


JAPANESE = ["東京", "大学", "先生", "は", "が", "を", "に", "読む", "書いた", "ビール", "今日"]
THAI = ["ฉัน", "รัก", "กรุงเทพ", "หนังสือ", "อ่าน", "เขียน", "ดี", "ที่", "นี้"]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece", "bytes"])
@pytest.mark.parametrize("words", [JAPANESE, THAI], ids=["Japanese", "Thai"])
def test_pieces_are_words_where_words_have_no_blanks(kind, words, tmp_path):
    """So that whole words mask as many tokens as single ones do."""
    chance = random.Random(3)
    texts = ["".join(chance.choices(words, k=25)) for _ in range(200)]
    if kind == "bytes":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=275, special_tokens=special, initial_alphabet=alphabet
        )
        made.train_from_iterator(texts, trainer)
        made.save(str(tmp_path / "tokenizer.json"))
    else:
        settings = VocabularySettings(kind=kind, vocab_size=60, do_lower_case=False)
        vocabulary.train(texts, tmp_path, settings)
    ours = tokenizer.load(folder=tmp_path)
    rows = [[ours.cls_id, *ids[:62], ours.sep_id] for ids in ours.encode_ids(texts)]
    offsets = np.cumsum([0, *map(len, rows)])
    values = np.concatenate(rows).astype(np.int32)
    keys = example_keys(1, np.arange(len(rows)))
    masking = Masking(ours, **GOOGLES_MASKS | {"do_whole_word_mask": True})
    positions, starts = mask(values, offsets, keys, masking)["masked_lm_positions"]
    assert len(positions) / len(values) == pytest.approx(0.15, abs=0.02)
    assert np.diff(starts).min() > 0
    if kind in ("unigram", "bpe") and words is JAPANESE:
        pieces = ours.pieces(range(5, ours.vocab_size))
        ends = [not google_starts_a_word(piece) for piece in pieces]
        assert ours.continues_word[5:].tolist() == ends


def test_words_of_other_scripts_still_have_blanks(tmp_path):
    """Korean, Hindi, Arabic and Latin letters with accents; a vowel sign belongs to its letter."""
    words = ["한국어", "हिन्दी", "العربية", "été", "русский", "ελληνικά"]
    texts = [" ".join(words)] * 50
    vocabulary.train(
        texts, tmp_path, VocabularySettings(kind="bpe", vocab_size=70, do_lower_case=False)
    )
    ours = tokenizer.load(folder=tmp_path)
    (ids,) = ours.encode_ids(texts[:1])
    assert (~ours.continues_word[ids]).sum() == len(words)


def test_keys_tell_seeds_rows_and_epochs_apart():
    rows = np.arange(20_000)
    keys = [
        example_keys(1, rows, 0),
        example_keys(1, rows, 1),
        example_keys(2, rows, 0),
        example_keys(1, rows),
        example_keys(1, 0, rows)[2:],
        example_keys(2**63 + 5, rows, 0),
    ]
    # two alike once in 10^9 times
    assert len(np.unique(np.concatenate(keys))) == sum(map(len, keys))
