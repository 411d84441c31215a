"""A run's `model/` as it is in transformers with PyTorch: the same tokens and the same scores."""

import itertools
import json
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf
from harness.batches import TASKS, Computer, Row
from harness.jobs import run
from harness.models import KEY, error, save_model
from harness.mpi import ENVIRONMENT, ROOT
from harness.torch_models import TOLERANCES, gradients_off, loaded, scores_there

from bert import configuration, weights
from bert.batch import batch_of
from bert.heads import EMBEDDINGS, HEADS
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
OF_ROBERTA = {"type_vocab_size": 1, "max_position_embeddings": 129}
FAMILY = {  # the vocabulary has padding as id 0
    "bert": {},
    "roberta": OF_ROBERTA,
    "xlm-roberta": OF_ROBERTA,
    "camembert": OF_ROBERTA,
    "electra": {"embedding_size": 24},
    "distilbert": {},
    "modernbert": {
        "local_attention": 8,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "layer_norm_eps": 1e-5,
    },
}
LAYER_TYPES = ("full_attention", "sliding_attention", "sliding_attention")  # of ModernBERT
MODERN_KINDS = (
    "span",
    "tagger",
    "classifier_cls",
    "classifier_mean",
    "masked",
    "embedding_mean",
    "embedding_cls",
)
# Writes folders KIND_SIZE in the folder in argv.
MAKE_MODERN = """
import pathlib, sys
import torch, torch_goldens
from transformers import AutoConfig, AutoModel

def vectors(outputs, inputs, mean):
    states, mask = outputs.last_hidden_state, inputs["attention_mask"][:, :, None]
    vectors = (states * mask).sum(1) / mask.sum(1) if mean else states[:, 0]
    return torch.nn.functional.normalize(vectors) if mean else vectors

def embedding_loss(mean):
    def loss(outputs, inputs, rows):
        scores = vectors(outputs, inputs, mean)
        slopes = torch.randn(scores.shape).double()
        return {"scores": scores, "slopes": slopes, "loss": (scores * slopes).sum()}
    return loss

rows = torch_goldens.Rows(
    lengths=((100, 300), (2, 5), (20, 700)),
    spans=((110, 299), (0, 0), (650, 699)),
    masked=((0, 2), (0, 280), (1, 1), (2, 350), (2, 699)),
)
of = {
    "span": (torch_goldens.AutoModelForQuestionAnswering, torch_goldens.span_loss),
    "tagger": (torch_goldens.AutoModelForTokenClassification, torch_goldens.tagger_loss),
    "classifier": (torch_goldens.AutoModelForSequenceClassification, torch_goldens.classifier_loss),
    "masked": (torch_goldens.AutoModelForMaskedLM, torch_goldens.masked_loss),
}
for kind in KINDS:
    head, _, pooling = kind.partition("_")
    auto, loss = of.get(head) or (AutoModel, embedding_loss(pooling == "mean"))
    for layers, hidden in ((2, 32), (3, 64), (4, 96)):
        config = AutoConfig.for_model(
            "modernbert", vocab_size=torch_goldens.VOCAB_SIZE, hidden_size=hidden,
            intermediate_size=2 * hidden, num_hidden_layers=layers, num_attention_heads=4,
            local_attention=64, max_position_embeddings=1024, pad_token_id=0,
            classifier_pooling=pooling or "cls",
        )
        folder = pathlib.Path(sys.argv[1], f"{kind}_{hidden}")
        deviation = (2 / hidden) ** 0.5  # by which no product becomes larger with the width
        torch_goldens.make(
            folder, auto.from_config, loss, config, rows, torch.float64, deviation
        )
""".replace("KINDS", repr(MODERN_KINDS))
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
            changes |= {"model_type": name}
            if name == "modernbert":
                changes["layer_types"] = LAYER_TYPES[: size["num_hidden_layers"]]
            folder = tmp_path / f"{name}-{size['hidden_size']}-{head}"
            folder = save_model(folder, head, **changes, **size)
            compare_scores(folder, head, f"{torch}:{ENVIRONMENT['PYTHONPATH']}")


@pytest.fixture(scope="module")
def modern_models(torch, tmp_path_factory):
    """Folders of ModernBERT with PyTorch's scores and gradients, in three sizes for each head."""
    folder = tmp_path_factory.mktemp("modern")
    path = f"{torch}:{ROOT / 'scripts'}:{ENVIRONMENT['PYTHONPATH']}"
    assert run((sys.executable, "-c", MAKE_MODERN, folder), PYTHONPATH=path).status == 0
    return folder


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", MODERN_KINDS)
def test_scores_and_gradients_of_modernbert_to_700_tokens_are_those_of_pytorch(kind, modern_models):
    """Rows of 5, 300 and 700 tokens; local layers see 32 places on each side. PyTorch computes in
    float64: two sums of 700 tokens in float32 can be 3e-5 apart."""
    name, _, pooling = kind.partition("_")
    head = EMBEDDINGS[pooling, pooling == "mean"] if name == "embedding" else None
    for hidden in (32, 64, 96):
        model, there, rows = loaded(modern_models / f"{kind}_{hidden}", head=head)
        assert [len(row.input_ids) for row in rows] == [300, 5, 700]
        if name == "embedding":
            TASKS[model.head.name] = Slopes(there["slopes"])
            there = {key.replace("gradient.", "gradient.model."): there[key] for key in there}
        to_scores, to_gradients = TOLERANCES["float32"]
        for more in ({}, {"longest": 700}):  # as it is, and cut into blocks
            computed = Computer(model, **more)(rows, "by length", KEY)
            for ours, theirs in zip(computed.scores, scores_there(there, rows), strict=True):
                assert error(ours, theirs) < to_scores
            assert computed.loss == pytest.approx(float(there["loss"]), rel=to_scores)
            off = gradients_off(computed.gradients, there, model)
            assert max(off.values()) < to_gradients, off


@dataclass
class Slopes:
    """The task of vectors whose loss is the sum of their products with these."""

    slopes: np.ndarray

    def batch(self, fields, grouping):
        lengths = np.diff(fields["input_ids"][1])
        order, _ = grouping(lengths)
        return batch_of(fields, grouping)[1] | {"slopes": self.slopes[order]}

    def weights(self, batch):
        return {"loss": 1.0}

    def loss(self, vectors_BH, batch):
        return {"loss": tf.reduce_sum(vectors_BH * batch["slopes"])}


def compare_scores(folder, head, path):
    words = tokenizer.load(None, folder)
    model = Bert(configuration.read_config(folder), HEADS[head])
    weights.load(model, folder)
    command = (sys.executable, "-c", SCRIPT, folder, MODELS[head], json.dumps(PAIRS))
    there = run(command, PYTHONPATH=path).json()
    firsts, seconds = (words.encode_ids(part) for part in zip(*PAIRS, strict=True))
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
