"""A run's `model/` as it is in transformers with PyTorch: the same tokens and the same scores."""

import itertools
import json
import sys

import numpy as np
import pytest
from harness import texts
from harness.batches import Computer, Row
from harness.jobs import run
from harness.models import save_model
from harness.mpi import ENVIRONMENT

from bert import configuration, weights
from bert.heads import HEADS
from bert.model import Bert
from bert.text import tokenizer

MODELS = {
    "span": "AutoModelForQuestionAnswering",
    "classifier": "AutoModelForSequenceClassification",
    "tagger": "AutoModelForTokenClassification",
}
SIZES = [
    {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 4 * hidden}
    for layers, hidden in ((1, 32), (2, 64), (3, 96))
]
FAMILY = {  # the vocabulary has padding as id 0
    "bert": {},
    "roberta": {"model_type": "roberta", "type_vocab_size": 1, "max_position_embeddings": 129},
    "xlm-roberta": {
        "model_type": "xlm-roberta",
        "type_vocab_size": 1,
        "max_position_embeddings": 129,
    },
    "camembert": {"model_type": "camembert", "type_vocab_size": 1, "max_position_embeddings": 129},
    "electra": {"model_type": "electra", "embedding_size": 24},
    "distilbert": {"model_type": "distilbert"},
}
MODERN = {  # 32 places on each side; rows of more than 256 are cut into blocks
    "model_type": "modernbert",
    "num_hidden_layers": 3,
    "layer_types": ("full_attention", "sliding_attention", "sliding_attention"),
    "local_attention": 64,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
    "max_position_embeddings": 1024,
    "layer_norm_eps": 1e-5,
}
PAIRS = [("the animal", "a crow and the red axe"), ("who?", "Near the brown fox, two: A Cat 1 ☃")]
# Prints transformers' inputs and scores for the folder and class in argv.
SCRIPT = """
import json, sys
import torch, transformers

folder, kind, pairs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
encoded = tokenizer(*zip(*pairs), padding=True, return_tensors="pt")
model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
assert not any(report.values()), report
with torch.no_grad():
    outputs = model.eval()(**encoded)
names = ("start_logits", "end_logits", "logits")
scores = [outputs[name].tolist() for name in names if name in outputs]
print(json.dumps({"input_ids": encoded["input_ids"].tolist(), "scores": scores}))
"""


@pytest.mark.timeout(900)
def test_pytorch_computes_the_same_scores(torch, tmp_path):
    for name, changes in reversed(FAMILY.items()):
        for size, head in itertools.product(SIZES, MODELS):
            folder = save_model(
                tmp_path / f"{name}-{size['hidden_size']}-{head}", head, **changes, **size
            )
            compare_scores(folder, head, f"{torch}:{ENVIRONMENT['PYTHONPATH']}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("head", MODELS)
def test_rows_of_modernbert_up_to_700_tokens_have_the_same_scores(head, torch, tmp_path):
    kinds = [word for kind in texts.WORDS.values() for word in kind]
    chance = np.random.default_rng(1)
    lengths = (1, 40, 130, 300, 690)
    pairs = [("who?", " ".join(chance.choice(kinds, length))) for length in lengths]
    for hidden in (32, 64, 96):
        sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden}
        folder = save_model(tmp_path / f"{hidden}", head, **MODERN, **sizes)
        compare_scores(folder, head, f"{torch}:{ENVIRONMENT['PYTHONPATH']}", pairs)


def compare_scores(folder, head, path, pairs=PAIRS):
    words, model = (
        tokenizer.load(None, folder),
        Bert(configuration.read_config(folder), HEADS[head]),
    )
    weights.load(model, folder)
    command = (sys.executable, "-c", SCRIPT, folder, MODELS[head], json.dumps(pairs))
    there = run(command, PYTHONPATH=path).json()
    firsts, seconds = (words.encode_ids(part) for part in zip(*pairs, strict=True))
    rows = [
        Row([words.cls_id, *first, words.sep_id, *second, words.sep_id], len(first) + 2)
        for first, second in zip(firsts, seconds, strict=True)
    ]
    longest = max(len(row.input_ids) for row in rows)
    assert there["input_ids"] == [
        [*row.input_ids] + [0] * (longest - len(row.input_ids)) for row in rows
    ]
    theirs = (
        np.stack(np.array(there["scores"]), -1) if head == "span" else np.array(there["scores"][0])
    )
    for ours, right in zip(Computer(model)(rows, "by length").scores, theirs, strict=True):
        np.testing.assert_allclose(ours, right[: len(ours)], atol=1e-5)  # float32 sums
        assert np.ptp(ours) > 0.01
