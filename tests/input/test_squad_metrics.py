"""The scores against those that the official programs print.

The golden numbers come from other people's code run on the very inputs below: SQuAD 1.1 from allennlp 0.9.0's
`squad_eval.py`, SQuAD 2.0 from transformers 4.46.3's `squad_metrics.py`, both the official scripts; KorQuAD from a
transcription of its `evaluate-v1.0.py`. They are compared to 1e-12 because `sum` of floats differs in Python 3.12.
"""

import random

import pytest

from tasks.squad.metrics import squad_v1, squad_v2

# fmt: off
WORDS = [
    "the", "The", "a", "an", "A", "cat", "Cat", "sat,", "on",
    "U.S.", "mat.", "(1999)", "don't", "é", "É", "İ", "서울", "서울은",
    "《춘향전》", "\u2018한국\u2019", "\u201c인용\u201d", "「책」", "<b>", "$5", "-", "...", "and/or",
    "ﬁ", "Straße", "a-b", "the-",
]
GOLDEN_V1 = {1: (55.0, 35.164285714285725), 2: (47.0, 32.65238095238095), 3: (51.0, 32.91904761904762)}
GOLDEN_KORQUAD = {1: (51.5, 39.4909873505445), 2: (44.5, 39.484506644702996), 3: (48.0, 41.179655983851035)}
GOLDEN_V2 = {  # of seed 1
    "exact": 42.0, "f1": 43.51785714285713, "total": 200, "HasAns_exact": 38.59649122807018,
    "HasAns_f1": 41.2593984962406, "HasAns_total": 114, "NoAns_exact": 46.51162790697674,
    "NoAns_f1": 46.51162790697674, "NoAns_total": 86,
}
BEST = ("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh")
GOLDEN_BEST = {2: (49.0, -2.84, 49.892857142857146, -0.9), 3: (44.5, -0.38, 45.50952380952381, -0.38)}
# fmt: on


def random_case(seed, unanswerable=0.0):
    """References, predictions and null odds of 200 questions."""
    generator = random.Random(seed)

    def text() -> str:
        separator = " " if generator.random() < 0.9 else "\u3000"
        return separator.join(generator.choice(WORDS) for _ in range(generator.randrange(5)))

    references, predictions, odds = {}, {}, {}
    for number in range(200):
        answers = [text() for _ in range(generator.randrange(1, 4))]
        answers = [] if generator.random() < unanswerable else answers
        references[f"q{number}"] = answers
        predictions[f"q{number}"] = generator.choice([*answers, text(), text(), ""])
        odds[f"q{number}"] = round(generator.uniform(-3, 3), generator.choice([0, 2]))
    return references, predictions, odds


@pytest.mark.parametrize(("is_korean", "golden"), [(False, GOLDEN_V1), (True, GOLDEN_KORQUAD)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_v1_prints_the_official_numbers(is_korean, golden, seed):
    references, predictions, _ = random_case(seed)
    del predictions["q7"]
    expected = dict(zip(("exact_match", "f1"), golden[seed], strict=True))
    assert squad_v1(references, predictions, is_korean) == pytest.approx(expected, rel=1e-12)


def test_v2_prints_the_official_numbers():
    scores = squad_v2(*random_case(1, unanswerable=0.4))
    assert {name: scores[name] for name in GOLDEN_V2} == pytest.approx(GOLDEN_V2, rel=1e-12)
    for seed, golden in GOLDEN_BEST.items():
        scores = squad_v2(*random_case(seed, unanswerable=0.4))
        assert [scores[name] for name in BEST] == pytest.approx(golden, rel=1e-12)
    scores = squad_v2({"a": [], "b": ["x"]}, {"a": "u", "b": "v"}, {"a": -1.0, "b": -2.0})
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (50.0, 0.0)  # answering nothing is best
