"""A run's `model/` as it is in transformers with PyTorch: the same tokens and the same scores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness.batches import Computer, Row
from harness.texts import write_model

from bert import configuration, weights
from bert.model import Bert
from bert.text import tokenizer

TORCH = ("torch==2.13.0+cpu", "sympy", "mpmath", "networkx", "jinja2", "markupsafe")
PAIRS = [("the animal", "a crow and the red axe"), ("who?", "Near the brown fox, two: A Cat 1 ☃")]
# Prints transformers' inputs and scores for the folder and class in argv.
SCRIPT = """
import json, sys
import torch, transformers

folder, kind, pairs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
encoded = transformers.AutoTokenizer.from_pretrained(folder)(*zip(*pairs), padding=True, return_tensors="pt")
model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
assert not any(report.values()), report
with torch.no_grad():
    outputs = model.eval()(**encoded)
scores = [outputs[name].tolist() for name in ("start_logits", "end_logits", "logits") if name in outputs]
print(json.dumps({"inputs": {name: value.tolist() for name, value in encoded.items()}, "scores": scores}))
"""


@pytest.fixture(scope="module")
def torch_folder(tmp_path_factory) -> Path:
    """PyTorch for CPUs, in a folder of its own: our environment has none."""
    folder = tmp_path_factory.mktemp("torch")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir", f"--target={folder}"]
    subprocess.run([*install, *TORCH], check=True, timeout=600)
    return folder


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("head", "kind"),
    [("span", "AutoModelForQuestionAnswering"), ("classifier", "AutoModelForSequenceClassification")],
)
def test_pytorch_computes_the_same_scores(torch_folder, tmp_path, head, kind):
    write_model(tmp_path, num_layers=2)
    words = tokenizer.load(str(tmp_path / "vocab.txt"))
    model = Bert(configuration.config_from_file(tmp_path / "bert_config.json"), head, seed=3)
    weights.copied(model, words)(tmp_path / "model")
    path = os.pathsep.join([str(torch_folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "model"), kind, json.dumps(PAIRS)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout.splitlines()[-1])
    ids, mask = (np.array(there["inputs"][name]) for name in ("input_ids", "attention_mask"))
    first, second = words.encode_ids([pair[0] for pair in PAIRS]), words.encode_ids([pair[1] for pair in PAIRS])
    rows = []
    for number in range(len(PAIRS)):
        expected = [words.cls_id, *first[number], words.sep_id, *second[number], words.sep_id]
        assert ids[number, mask[number] == 1].tolist() == expected
        rows.append(Row(expected, len(first[number]) + 2))
    ours = Computer(model)(rows, "by length").scores
    theirs = np.stack(np.array(there["scores"]), -1) if head == "span" else np.array(there["scores"][0])
    for number, scores in enumerate(ours):
        right = theirs[number][: len(scores)]
        np.testing.assert_allclose(scores, right, atol=1e-5)  # float32 sums
        assert np.ptp(right) > 0.1
