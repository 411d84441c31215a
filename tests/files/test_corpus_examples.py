"""Examples of a corpus against Google's `create_pretraining_data.py`, written out here."""

import collections
import itertools
import random

import numpy as np
import pytest
from harness.corpora import CLS, SEP, build, halves, make_texts, write

TEXTS = make_texts(80)
# -> document
TOKENS = {token: number for number, text in enumerate(TEXTS) for token in itertools.chain(*text)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The written texts, for tests that only read."""
    folder = tmp_path_factory.mktemp("corpus")
    write(folder, TEXTS)
    return folder


@pytest.fixture(scope="module")
def static(folder):
    return build(folder, "static", masking="static", dupe_factor=20, short_seq_prob=0.3)


def google_instances(texts, draw, max_seq_length, short_seq_prob):
    """(A, B, is_random_next) as `create_pretraining_data.py` makes them."""
    for number, text in enumerate(texts):
        most = max_seq_length - 3
        target = draw.randint(2, most) if draw.random() < short_seq_prob else most
        chunk, index = [], 0
        while index < len(text):
            chunk.append(text[index])
            if index == len(text) - 1 or sum(map(len, chunk)) >= target:
                split = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a = [token for sentence in chunk[:split] for token in sentence]
                is_random = len(chunk) == 1 or draw.random() < 0.5
                b = []
                if is_random:
                    other = number
                    for _ in range(10):
                        other = draw.randrange(len(texts))
                        if other != number:
                            break
                    for sentence in texts[other][draw.randrange(len(texts[other])) :]:
                        b += sentence
                        if len(b) >= target - len(a):
                            break
                    index -= len(chunk) - split
                else:
                    b = [token for sentence in chunk[split:] for token in sentence]
                while len(a) + len(b) > most:
                    longer = a if len(a) > len(b) else b
                    del longer[0 if draw.random() < 0.5 else -1]
                yield a, b, is_random
                chunk = []
            index += 1


def assert_same_means(ours, theirs):
    """Column by column within 4.5 standard errors: 1 chance in 100,000 to differ."""
    for number, (one, other) in enumerate(
        zip(np.array(ours, float).T, np.array(theirs, float).T, strict=True)
    ):
        # Examples of one document hang together: about 10 of them share a target length.
        error = np.sqrt(10 * (one.var() / len(one) + other.var() / len(other)))
        assert abs(one.mean() - other.mean()) <= 4.5 * error, (
            f"{number}: {one.mean()}, {other.mean()} +- {error}"
        )


def test_examples_are_distributed_as_googles(static):
    rows, manifest = static
    assert manifest["counts"]["examples"] == len(rows)
    draw = random.Random(1)
    theirs = [row for _ in range(20) for row in google_instances(TEXTS, draw, 128, 0.3)]
    ours = [(*halves(row), row["is_random_next"]) for row in rows]

    def measured(a, b, is_random):
        size = len(a) + len(b)
        return is_random, size, len(a), *(size <= most for most in (31, 62, 100, 123))

    assert_same_means([measured(*row) for row in ours], [measured(*row) for row in theirs])
    for kind in (0, 1):
        lengths = (
            [[len(b)] for _, b, is_random in which if is_random == kind] for which in (ours, theirs)
        )
        assert_same_means(*lengths)
    # Every document is gone through once per duplicate, so the number of examples is random only
    # through targets.
    assert abs(len(ours) / len(theirs) - 1) < 0.05


def test_a_and_b_come_from_where_they_should(static):
    starts = {sentence[0] for text in TEXTS for sentence in text}
    others = collections.Counter()
    for row in static[0]:
        a, b = halves(row)
        for part in (a, b):
            assert part == list(range(part[0], part[0] + len(part)))  # consecutive
            assert TOKENS[part[0]] == TOKENS[part[-1]]
        assert 5 <= len(a) + len(b) + 3 <= 128
        assert (TOKENS[a[0]] != TOKENS[b[0]]) == row["is_random_next"]
        if len(row["input_ids"]) < 128:  # nothing was cut off
            assert {a[0], b[0]} <= starts
            assert row["is_random_next"] or b[0] == a[-1] + 1
        else:
            assert row["is_random_next"] or b[0] > a[-1]
        others[TOKENS[b[0]]] += row["is_random_next"]
    # Each document is as likely a random one: chi-square of 80 cells, 79 degrees.
    expected = sum(others.values()) / len(TEXTS)
    assert (
        sum((others[n] - expected) ** 2 / expected for n in range(len(TEXTS)))
        < 79 + 5 * (2 * 79) ** 0.5
    )


def test_no_sentence_is_lost(folder):
    rows, manifest = build(folder, "plain", short_seq_prob=0.0, max_seq_length=512, dupe_factor=2)
    assert set(rows[0]) == {"input_ids", "sentence_a_tokens", "is_random_next"}
    seen = collections.Counter()
    for row in rows:
        a, b = halves(row)
        seen.update(a if row["is_random_next"] else a + b)
    cut = sum(len(row["input_ids"]) == 512 for row in rows)
    # Unused sentences are put back, so each is in an example of its own document; only truncation
    # loses tokens.
    assert 0 <= sum(2 - seen[token] for token in TOKENS) <= cut * 25 * 2
    assert max(seen.values()) <= 2
    counts = {"tokens": len(TOKENS), "sentences": sum(map(len, TEXTS)), "documents": len(TEXTS)}
    assert counts.items() <= manifest["counts"].items()


def test_rows_without_next_sentence_are_full_and_lose_nothing(folder):
    rows, _ = build(folder, "rows", next_sentence=False, dupe_factor=2, max_seq_length=50)
    assert set(rows[0]) == {"input_ids", "sentence_a_tokens"}
    first_tokens, seen = {text[0][0] for text in TEXTS}, collections.Counter()
    for row in rows:
        ids = row["input_ids"]
        assert (ids[0], ids[-1]) == (CLS, SEP)
        assert row["sentence_a_tokens"] == len(ids) <= 50
        inner = ids[1:-1]
        assert SEP not in (inner[0], inner[-1])
        for before, token in itertools.pairwise(inner):
            # Consecutive tokens of the corpus, with a [SEP] before each document.
            assert token == (SEP if before + 1 in first_tokens else before + 1) or before == SEP
        seen.update(token for token in inner if token != SEP)
    assert seen == dict.fromkeys(TOKENS, 2)
    # All but the last row of each duplicate and the first of the second one, and those at a [SEP].
    assert sum(len(row["input_ids"]) < 48 for row in rows) <= 3
