"""The model's scores and gradients are PyTorch's (tests/goldens, made by scripts/make_goldens.py),
however rows are padded and grouped, whatever XLA compiles, and in fewer bits."""

import functools
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from harness.batches import Computer, Row
from harness.models import KEY, error
from safetensors.numpy import load_file

from bert import configuration, weights
from bert.configuration import BertConfig
from bert.heads import CLASSIFIER, HEADS, PRETRAINING
from bert.model import Bert

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
OF_BERT = ["span_gelu", "classifier_gelu", "tagger_gelu", "pretraining_gelu"]
FAMILY = ["roberta", "electra", "distilbert", "modernbert"]
SLOW = [
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
# Of scores and loss, and of gradients. Two float32 programs that sum in different orders differ by
# some units of 6e-8 per operation, over the dozens of dependent operations of two layers by about
# 1e-5 of the largest value. bfloat16 has 8 bits: 0.4 % for each of some dozen rounded values;
# gradients are sums that nearly cancel.
TOLERANCES = {"float32": (2e-5, 2e-5), "mixed_bfloat16": (0.02, 0.1)}


@functools.cache
def golden(name: str, precision: str) -> tuple[Bert, dict[str, np.ndarray], list[Row]]:
    """The model as we load it, PyTorch's numbers, and the rows of which they are."""
    there = load_file(GOLDENS / name / "golden.safetensors")
    config = replace(configuration.read_config(GOLDENS / name), **NO_DROPOUT)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    model = Bert(config, HEADS[name.split("_")[0]])
    keras.config.set_dtype_policy(before)
    weights.load(model, GOLDENS / name)
    rows, length = [], there["input_ids"].shape[1]
    none = np.zeros(len(there["input_ids"]), int)
    for number, mask in enumerate(there["attention_mask"].astype(bool)):
        masked = zip(there.get("masked_tokens", []), there.get("masked_ids", []), strict=True)
        start, end = (int(there.get(f"{end}_positions", none)[number]) for end in ("start", "end"))
        rows.append(
            Row(
                there["input_ids"][number, mask].tolist(),
                int((there["token_type_ids"][number, mask] == 0).sum()),
                (start, end),
                int(there.get("labels", none)[number]),
                {
                    int(token % length): int(id_)
                    for token, id_ in masked
                    if token // length == number
                },
                there["tags"][number, mask].tolist() if "tags" in there else (),
            )
        )
    return model, there, rows


def scores_there(there: dict[str, np.ndarray], rows: list[Row]) -> list[np.ndarray]:
    """PyTorch's scores of each row, as in `Computed`."""
    if "mlm" not in there:
        return [
            scores[: len(row.input_ids)] for scores, row in zip(there["scores"], rows, strict=True)
        ]
    ends = np.cumsum([len(row.masked) for row in rows])
    mlm = np.split(there["mlm"], ends[:-1])
    nsp = there.get("nsp", [[]] * len(rows))
    return [np.concatenate([part.ravel(), of_row]) for part, of_row in zip(mlm, nsp, strict=True)]


def gradients_off(found: dict[str, np.ndarray], there: dict, model: Bert) -> dict[str, float]:
    """How far each gradient is from PyTorch's, as a share of its norm."""
    theirs = {
        key.removeprefix("gradient."): value
        for key, value in there.items()
        if key.startswith("gradient.")
    }
    largest, off = max(map(np.linalg.norm, theirs.values())), {}
    for key, ours in found.items():
        assert ours.dtype == np.float32
        right = theirs.pop(weights.hugging_face_name(key, model.head, model.config.architecture))
        # Softmax ignores a common addend: gradients of key biases, and of a span's last beta and
        # bias, are 0.
        scale = max(np.linalg.norm(right), largest / 100)
        off[key] = np.linalg.norm((ours.T if key.endswith("/kernel") else ours) - right) / scale
    assert not theirs
    return off


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
        *(
            (f"{head}_{name}", "by length", False, "float32")
            for head in ("classifier", "tagger")
            for name in FAMILY
        ),
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
    model, there, rows = golden(name, precision)
    to_scores, to_gradients = TOLERANCES[precision]
    # A row that is longer than the run expects is computed too: without the loop over heads of long
    # rows. A run with long rows has that loop and ModernBERT's blocks.
    runs = ({}, {"longest": 8}, {"longest": 64})
    for more in runs if trains and name.startswith("span_") else ({},):
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
    elif grouping == "by length" and not trains:  # alone and among others
        for row, ours in zip(rows, compute(rows * 4, grouping).scores, strict=False):
            assert error(compute([row], grouping).scores[0], ours) < 1e-5  # other orders of sums


def test_initial_values_are_those_of_bert():
    config = BertConfig(vocab_size=2000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
    tensors, again, other = (
        {
            name: v.numpy()
            for name, v in Bert(config, PRETRAINING, seed=seed).named_tensors().items()
        }
        for seed in (4, 4, 5)
    )
    drawn = {
        name: value
        for name, value in tensors.items()
        if not name.endswith(("gamma", "beta", "bias"))
    }
    assert all(
        (value == name.endswith("gamma")).all()
        for name, value in tensors.items()
        if name not in drawn
    )
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
