"""bert-export: what plain TensorFlow makes of its files."""

import json
import sys

import numpy as np
import pytest
from harness.jobs import run
from harness.models import save_model
from harness.program_runs import refusal
from scipy.special import softmax
from transformers import AutoTokenizer

import ringbert
from bert import weights
from ringbase.files import read_json
from tasks.export.__main__ import main

# In a process that cannot import our packages: the outputs of SavedModels for the inputs in the
# JSON of argv[1].
SERVER = """
import json, sys
absent = ("ringbert", "bert", "distributed", "tasks", "keras", "transformers")
sys.modules.update(dict.fromkeys(absent))
import tensorflow as tf

results = {}
for folder, inputs in json.loads(sys.argv[1]).items():
    function = tf.saved_model.load(folder).signatures["serving_default"]
    outputs = function(**{key: tf.constant(value) for key, value in inputs.items()})
    results[folder] = {key: value.numpy().tolist() for key, value in outputs.items()}
print(json.dumps(results, default=bytes.decode))
"""
HEADS = ("span", "classifier", "pretraining")
LABELS = ("neg", "pos", "모름")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder for each head, as a run's model/: random weights of a tiny model."""
    names = {"labels": LABELS, "problem_type": "single_label_classification"}
    return {head: save_model(tmp_path_factory.mktemp(head), head, **names) for head in HEADS}


def export(*argv):
    with pytest.raises(SystemExit, match=r"^0$"):
        main(list(map(str, argv)))


@pytest.mark.slow
def test_saved_models_give_what_the_predictors_give(trained, tmp_path):
    """In plain TensorFlow, with ids of transformers' tokenizer: rows of unlike lengths, one of them
    a pair."""
    pair = ("the animal", "a crow and the red axe")
    texts = [pair, ("the tool", "near the brown fox, two and a cat sat by the saw")]
    encoded = AutoTokenizer.from_pretrained(trained["span"])(texts, padding=True)
    inputs = {name: encoded[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    for head, folder in trained.items():
        export(folder, tmp_path / head)
        exported = AutoTokenizer.from_pretrained(tmp_path / head / "assets.extra")
        assert exported(texts, padding=True) == encoded
        for tokenizer in (exported, AutoTokenizer.from_pretrained(folder)):
            cut = tokenizer("fox " * 1000, truncation=True).input_ids
            assert len(cut) == read_json(folder / "config.json")["max_position_embeddings"]
    served = (sys.executable, "-c", SERVER, json.dumps(dict.fromkeys(HEADS, inputs)))
    found = run(served, cwd=tmp_path).json()
    mask = np.array(inputs["attention_mask"], bool)

    expected = ringbert.Classifier(trained["classifier"])(texts)
    assert found["classifier"]["label"] == [prediction.label for prediction in expected]
    rows = [list(prediction.probabilities.values()) for prediction in expected]
    np.testing.assert_allclose(softmax(found["classifier"]["logits"], 1), rows, atol=1e-5)

    for row, (question, context) in enumerate(texts):
        best = ringbert.QuestionAnswering(trained["span"])(question, context)
        start, end = (np.array(found["span"][name])[row] for name in ("start_logits", "end_logits"))
        in_context = np.flatnonzero(np.array(inputs["token_type_ids"])[row])[:-1]
        spans = [start[i] + end[j] for i in in_context for j in in_context[in_context >= i]]
        assert max(spans) == pytest.approx(best.score, abs=1e-5)

    vectors = ringbert.Features(trained["pretraining"])(texts)
    tensors = weights.read(trained["pretraining"])
    for row, text in enumerate(vectors):
        last = np.array(found["pretraining"]["sequence_output"])[row][mask[row]]
        np.testing.assert_allclose(last, text.vectors, atol=1e-5)
        pooler = "bert/pooler/dense"
        pooled = np.tanh(last[0] @ tensors[f"{pooler}/kernel"] + tensors[f"{pooler}/bias"])
        np.testing.assert_allclose(found["pretraining"]["pooled_output"][row], pooled, atol=1e-5)


@pytest.mark.parametrize(
    ("argv", "status", "named"),
    [
        (["{span}", "{span}"], 1, ["OUT", "{span}"]),
        (["{span}x", "out"], 1, ["{span}x"]),
        (["{span}", "s3://bucket/out"], 1, ["OUT s3://bucket/out", "local folder"]),
        (["{span}", "out", "--signature=texts"], 2, ["--signature", "ids", "assets.extra"]),
    ],
)
def test_bad_input_is_one_line(trained, tmp_path, monkeypatch, capsys, argv, status, named):
    monkeypatch.chdir(tmp_path)
    argv, named = ([word.format(**trained) for word in words] for words in (argv, named))
    refusal(capsys, "bert-export", lambda: main(argv), *named, status=status)
    assert not (tmp_path / "out").exists()
