"""The fast encoder of a corpus against `Tokenizer.encode`."""

import numpy as np
from real_data import real
from real_tokenizers import albert, multilingual, uncased

from bert.corpus import encoder as corpus_encoder


def test_words_are_encoded_as_the_tokenizer_does(monkeypatch):
    """Odd characters, real text in two languages, and a cache that overflows all the time."""
    odd = [
        "a\x1cb c\x85d\x0be\tf",
        "x\u2028y\u3000z\u00a0w",
        "[SEP] ##ing",
        "é e\u0301 \u0301e",
        "㈜ 北京 don't--x",
        "中文，测试。x “é”—ы  、\u3400龥豈",
        "\ufffd \x00",
        "ΑΣ σ",
    ]
    novel = (real("text/british_fiction") / "Austen_Emma.txt").read_text(encoding="utf-8").split("\n")[:1000]
    reviews = real("nsmc/ratings_test.txt").read_text(encoding="utf-8").split("\n")[1:1000]
    lines = [*odd, *novel, "", *reviews]
    monkeypatch.setattr(corpus_encoder, "MOST_CACHED_WORDS", 500)
    for words, by_word in (
        (uncased(), True),
        (multilingual(), True),
        (albert(), False),
    ):
        expected, _ = words.encode(lines)
        encoder = corpus_encoder.Encoder(corpus_encoder.Words.of(words))
        assert encoder._by_word == by_word
        parts = [encoder(lines[at : at + 100]) for at in range(0, len(lines), 100)]
        assert np.concatenate([lengths for _, lengths in parts]).tolist() == [len(ids) for ids in expected]
        assert np.array_equal(np.concatenate([values for values, _ in parts]), np.concatenate(expected))
