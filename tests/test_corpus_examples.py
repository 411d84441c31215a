"""Examples against Google's `create_pretraining_data.py`, written out here."""

import collections
import itertools
import random

import numpy as np
import pytest
from corpora import CLS, MASK, SEP, build, build_with, halves, make_texts, unmasked, write
from real_data import real
from real_tokenizers import albert

from bert.corpus.settings import BuildSettings
from bert.corpus.shards import open_table


@pytest.fixture(scope="module")
def texts():
    return make_texts(80)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, texts):
    """The written texts, for tests that only read."""
    folder = tmp_path_factory.mktemp("corpus")
    write(folder, texts)
    return folder


@pytest.fixture(scope="module")
def static(folder):
    return build(folder, "static", masking="static", dupe_factor=20)


def google_instances(texts, draw: random.Random, max_seq_length: int, short_seq_prob: float):
    """(A, B, is_random_next, whether the target was short) as `create_pretraining_data.py` makes them."""
    for number, text in enumerate(texts):
        most = max_seq_length - 3
        is_short = draw.random() < short_seq_prob
        target = draw.randint(2, most) if is_short else most
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
                yield a, b, is_random, is_short
                chunk = []
            index += 1


def close(one, other, name: str) -> None:
    """Whether two samples have the same mean, within 4.5 standard errors: 1 chance in 100,000 to differ."""
    one, other = np.asarray(one, float), np.asarray(other, float)
    # Examples of one document hang together: about 10 of them share a target length.
    error = np.sqrt(10 * (one.var() / len(one) + other.var() / len(other)))
    assert abs(one.mean() - other.mean()) < 4.5 * error, f"{name}: {one.mean()} and {other.mean()} +- {error}"


def test_examples_are_distributed_as_googles(static, texts):
    rows, manifest = static
    draw = random.Random(1)
    google = [row for _ in range(20) for row in google_instances(texts, draw, 128, 0.1)]
    ours = [(*halves(row), row["is_random_next"]) for row in rows]
    close([row[2] for row in ours], [row[2] for row in google], "random next")
    lengths, theirs = ([len(a) + len(b) for a, b, *_ in which] for which in (ours, google))
    close(lengths, theirs, "length")
    close([len(a) for a, *_ in ours], [len(a) for a, *_ in google], "length of A")
    for most in (30, 60, 100, 124):
        close([n <= most for n in lengths], [n <= most for n in theirs], f"at most {most} tokens")
    for kind in (0, 1):
        close(
            [len(b) for _, b, r in ours if r == kind],
            [len(b) for _, b, r, _ in google if r == kind],
            "length of B",
        )
    # Every document is gone through once per duplicate, so the number of examples is random only through targets.
    assert abs(len(ours) / len(google) - 1) < 0.05
    assert manifest["counts"]["examples"] == len(rows)
    assert manifest["counts"]["examples_with_random_next"] == sum(row[2] for row in ours)


def test_share_of_short_targets(tmp_path):
    texts = [
        [[number * 100 + word for word in range(5, 25)] for number in range(n * 10, n * 10 + 10)]
        for n in range(60)
    ]
    write(tmp_path, texts)
    # 200 tokens a document and a target of 61: a first example below 61 - 20 tokens tells a short target.
    for probability in (0.0, 0.3, 1.0):
        rows, _ = build(tmp_path, f"p{probability}", dupe_factor=30, max_seq_length=64, short_seq_prob=probability)
        draw = random.Random(2)
        google = [
            len(a) + len(b) for _ in range(30) for a, b, *_ in google_instances(texts, draw, 64, probability)
        ]
        ours = [len(row["input_ids"]) - 3 for row in rows]
        close([n < 61 for n in ours], [n < 61 for n in google], "shorter than the target")
        close(ours, google, "length")


def test_a_and_b_come_from_where_they_should(static, texts):
    rows, _ = static
    place = {  # token -> document, place in it
        token: (number, at)
        for number, text in enumerate(texts)
        for at, token in enumerate(token for sentence in text for token in sentence)
    }
    starts = {sentence[0] for text in texts for sentence in text}
    others = collections.Counter()
    for row in rows:
        a, b = halves(row)
        for part in (a, b):
            assert part == list(range(part[0], part[0] + len(part)))  # consecutive
            assert place[part[0]][0] == place[part[-1]][0]
        assert 5 <= len(a) + len(b) + 3 <= 128
        of_a, of_b = place[a[0]][0], place[b[0]][0]
        assert (of_a != of_b) == row["is_random_next"]
        if len(row["input_ids"]) < 128:  # nothing was cut off
            assert a[0] in starts
            assert b[0] in starts
            if not row["is_random_next"]:
                assert b[0] == a[-1] + 1
        elif not row["is_random_next"]:
            assert b[0] > a[-1]
        if row["is_random_next"]:
            others[of_b] += 1
    # Random documents are drawn from the whole corpus, each as likely: chi-square of 80 cells, 79 degrees.
    expected = sum(others.values()) / len(texts)
    assert sum((others[n] - expected) ** 2 / expected for n in range(len(texts))) < 79 + 5 * (2 * 79) ** 0.5


def test_static_masks_follow_googles_rules(static):
    rows, manifest = static
    kinds, total = collections.Counter(), 0
    for row in rows:
        ids, original = row["input_ids"], unmasked(row)
        positions = row["masked_lm_positions"]
        assert positions == sorted(set(positions))
        assert len(positions) == min(20, max(1, round(len(ids) * 0.15)), len(ids) - 3)
        assert not {CLS, SEP} & {original[position] for position in positions}
        for position, was in zip(positions, row["masked_lm_ids"], strict=True):
            kinds["mask" if ids[position] == MASK else "same" if ids[position] == was else "other"] += 1
        assert [n for p, n in enumerate(ids) if p not in positions] == [
            n for p, n in enumerate(original) if p not in positions
        ]
        total += len(positions)
    assert manifest["counts"]["masked_tokens"] == total
    for kind, share in (("mask", 0.8), ("same", 0.1), ("other", 0.1)):
        assert abs(kinds[kind] / total - share) < 4.5 * (share * (1 - share) / total) ** 0.5, kind


def test_each_sentence_is_there_when_only_its_document_can_follow(folder, texts):
    rows, manifest = build(folder, "plain", short_seq_prob=0.0, max_seq_length=512, dupe_factor=2)
    assert set(rows[0]) == {"input_ids", "sentence_a_tokens", "is_random_next"}
    seen = collections.Counter()
    for row in rows:
        a, _ = halves(row)
        seen.update(a)
        if not row["is_random_next"]:
            seen.update(halves(row)[1])
    words = {token for text in texts for sentence in text for token in sentence}
    cut = sum(len(row["input_ids"]) == 512 for row in rows)
    # Unused sentences are put back, so each is in an example of its own document; only truncation loses tokens.
    lost = sum(2 - seen[word] for word in words)
    assert 0 <= lost <= cut * 25 * 2
    assert max(seen.values()) <= 2
    assert manifest["counts"]["tokens"] == len(words)
    assert manifest["counts"]["sentences"] == sum(map(len, texts))
    assert manifest["counts"]["documents"] == len(texts)


def test_rows_without_next_sentence_are_full_and_lose_nothing(folder, texts):
    rows, manifest = build(folder, "rows", next_sentence=False, dupe_factor=2, max_seq_length=50)
    assert set(rows[0]) == {"input_ids", "sentence_a_tokens"}
    first_tokens = {text[0][0] for text in texts}
    seen = collections.Counter()
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
    words = [token for text in texts for sentence in text for token in sentence]
    assert seen == dict.fromkeys(words, 2)
    # All but the last row of each duplicate and the first of the second one, and those at a [SEP].
    assert sum(len(row["input_ids"]) < 48 for row in rows) <= 3
    assert manifest["counts"]["examples"] == len(rows)


def test_whole_words_of_a_sentencepiece_model_are_masked_whole(tmp_path):
    """With ALBERT's model: a word begins at a piece with the mark."""
    novel = (real("text/british_fiction") / "Austen_Emma.txt").read_text(encoding="utf-8")
    (tmp_path / "a.txt").write_text(novel[:200_000], encoding="utf-8")
    words = albert(do_lower_case=True)
    settings = BuildSettings(
        input_file=str(tmp_path / "a.txt"), output_dir=str(tmp_path / "shards"), split_sentences=True,
        document_separator="blanks", masking="static", dupe_factor=1, do_whole_word_mask=True, next_sentence=False,
    )  # fmt: skip
    build_with(settings, words)
    pieces = words._backend.id_to_token
    table, _ = open_table(str(tmp_path / "shards"))
    cut = long = 0
    for row in table.to_pylist():
        masked, ids = set(row["masked_lm_positions"]), list(row["input_ids"])
        for place, original in zip(row["masked_lm_positions"], row["masked_lm_ids"], strict=True):
            ids[place] = original
        continues = [token not in words.special_ids and not pieces(token).startswith("\u2581") for token in ids]
        for place in masked:
            start = max(n for n in range(place + 1) if not continues[n])
            start += ids[start] in (words.cls_id, words.sep_id)  # a row may begin within a word
            stop = next((n for n in range(place + 1, len(ids)) if not continues[n]), len(ids))
            cut += not masked.issuperset(range(start, stop))
            long += stop - start > 1
    assert long > 500
    assert cut == 0
