"""The model's scores and gradients are PyTorch's (tests/goldens, made by scripts/make_goldens.py),
however rows are padded and grouped, whatever XLA compiles, and in fewer bits."""

import functools
from pathlib import Path

import numpy as np
import pytest
from harness import torch_models
from harness.batches import Computer
from harness.models import KEY, error
from harness.torch_models import TOLERANCES, gradients_off, scores_there

from bert import configuration
from bert.configuration import BertConfig
from bert.heads import CLASSIFIER, PRETRAINING
from bert.model import Bert

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
OF_BERT = ["span_gelu", "classifier_gelu", "tagger_gelu", "pretraining_gelu"]
FAMILY = ["roberta", "electra", "distilbert"]
SLOW = [
    ("tagger_modernbert", "by length", False, "float32"),
    ("classifier_modernbert_silu", "by length", True, "float32"),
    ("span_modernbert", "by length", True, "float32"),
    ("classifier_modernbert", "by length", False, "float32"),
    ("pretraining_gelu_new", "by length", False, "float32"),
    ("pretraining_gelu", "compiled", True, "float32"),
    ("span_electra", "padded", False, "mixed_bfloat16"),
    ("span_electra", "by length", True, "mixed_bfloat16"),
    ("span_electra", "compiled", True, "mixed_bfloat16"),
    ("span_modernbert", "compiled", True, "float32"),
    ("span_modernbert", "by length", True, "mixed_bfloat16"),
    ("classifier_modernbert_mean", "padded", True, "float32"),
    ("masked_modernbert", "by length", True, "float32"),
]
# What else differs between trainings by their longest row. A row that is longer is computed too:
# without the loop over heads of long rows. A run with long rows has that loop, which all
# architectures but ModernBERT share, and ModernBERT's blocks.
RUNS = {
    ("span_gelu", "by length", "float32"): [{}, {"longest": 8}, {"longest": 64}],
    ("span_modernbert", "by length", "float32"): [{}, {"longest": 8}, {"longest": 64}],
    ("span_modernbert", "by length", "mixed_bfloat16"): [{}, {"longest": 64}],
}
golden = functools.cache(torch_models.loaded)


@pytest.mark.parametrize(
    ("name", "grouping", "trains", "precision"),
    [
        *(
            (name, grouping, False, "float32")
            for name in OF_BERT
            for grouping in ("padded", "by length")
        ),
        ("span_gelu", "by length", True, "float32"),
        *((f"span_{name}", "by length", True, "float32") for name in FAMILY),
        *((f"classifier_{name}", "by length", False, "float32") for name in FAMILY),
        *((f"tagger_{name}", "by length", False, "float32") for name in FAMILY),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    ],
)
def test_scores_and_gradients_are_those_of_pytorch(name, grouping, trains, precision, monkeypatch):
    """Training has a key, though dropout is 0: other operations than for prediction are then the
    fastest, on CPUs with parts that XLA compiles, and a few heads at a time. "compiled" has a row
    that is all padding."""
    monkeypatch.setattr("bert.model.COMPILED_WIDTH", 16)
    monkeypatch.setattr("bert.ops_cpu.IN_TURNS_FROM", 12)
    # ModernBERT's local layers see 4 places on each side, in blocks of 8 places; its global layers
    # compute 5 queries at a time.
    monkeypatch.setattr("bert.modern.BLOCKS_FROM", 1)
    monkeypatch.setattr("bert.modern.KEPT_TO", 4)
    monkeypatch.setattr("bert.modern.QUERIES", 5)
    model, there, rows = golden(GOLDENS / name, precision)
    to_scores, to_gradients = TOLERANCES[precision]
    for more in RUNS.get((name, grouping, precision), [{}]) if trains else [{}]:
        compute = Computer(model, **more)
        computed = compute(rows, grouping, KEY if trains else None)
        for ours, theirs in zip(computed.scores, scores_there(there, rows), strict=True):
            assert ours.dtype == np.float32
            assert error(ours, theirs) < to_scores
        assert computed.loss == pytest.approx(float(there["loss"]), rel=to_scores)
        off = gradients_off(computed.gradients, there, model)
        assert max(off.values()) < to_gradients, off
    if precision != "float32":  # or else nothing was computed in fewer bits
        assert max(off.values()) > 10 * TOLERANCES["float32"][1]
    # Alone and among others. The tagger's head sees one token at a time.
    elif grouping == "by length" and not trains and model.head.name != "tagger":
        for row, ours in zip(rows, compute(rows * 4, grouping).scores, strict=False):
            assert error(compute([row], grouping).scores[0], ours) < 1e-5  # other orders of sums


def test_initial_values_are_those_of_bert():
    config = BertConfig(vocab_size=2000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)

    def values_of(seed):
        tensors = Bert(config, PRETRAINING, seed=seed).named_tensors()
        return {name: variable.numpy() for name, variable in tensors.items()}

    tensors, again, other = map(values_of, (4, 4, 5))
    drawn = {}
    for name, value in tensors.items():
        if name.endswith(("gamma", "beta", "bias")):
            assert (value == name.endswith("gamma")).all(), name
        else:
            drawn[name] = value
    for name, value in drawn.items():
        assert np.abs(value).max() <= 0.04, name  # truncated at two standard deviations
        np.testing.assert_array_equal(again[name], value)
        assert not np.array_equal(other[name], value)
    # A normal distribution of 0.02 cut at two standard deviations has one of 0.0176.
    assert tensors["bert/embeddings/word_embeddings"].std() == pytest.approx(0.0176, rel=0.01)
    # no two tensors alike
    assert len({value.ravel()[:50].tobytes() for value in drawn.values()}) == len(drawn)


def test_initial_values_of_modernbert_are_those_of_transformers():
    """`_init_weights` of modeling_modernbert.py: smaller where a branch ends."""
    values = {"model_type": "modernbert", "vocab_size": 2000, "hidden_size": 64, "pad_token_id": 0}
    values |= {"num_hidden_layers": 8, "num_attention_heads": 4, "intermediate_size": 96}
    model = Bert(configuration.config_of(values), CLASSIFIER)
    cut = 0.8796  # of a normal distribution that is cut at two standard deviations
    deviations = {
        "bert/embeddings/word_embeddings": 0.02,
        "bert/encoder/layer_1/attention/self/query_key_value/kernel": 0.02,
        "bert/encoder/layer_1/intermediate/dense/kernel": 0.02,
        "bert/encoder/layer_1/attention/output/dense/kernel": 0.02 / 4,
        "bert/encoder/layer_1/output/dense/kernel": 0.02 / 4,
        "bert/pooler/dense/kernel": 0.02 / 4,
    }
    for name, deviation in deviations.items():
        found = model.named_tensors()[name].numpy().std()
        assert found == pytest.approx(cut * deviation, rel=0.05), name
    assert model.named_tensors()["output_weights"].numpy().std() == pytest.approx(cut / 8, rel=0.2)
