"""sentence-transformers beside bert-embedder: the vectors of each other's folders, and the loss of
the same vectors with its gradient."""

import itertools
import json
import sys
from functools import partial

import numpy as np
import pytest
from harness.classifier_runs import model_flags, write_data
from harness.jobs import shell
from harness.mpi import ENVIRONMENT
from harness.program_runs import bert
from harness.texts import ALL_WORDS, write_lines

import ringbert
from distributed.joint import InBatchLoss, Vectors
from distributed.world import World

embed = partial(bert, "embedder")
KINDS = [*itertools.product(("mean", "cls"), (True, False))]
ROWS, WIDTH, TEMPERATURE = 7, 16, 0.05
# Vectors of the texts in argv[2] by the folder in argv[1], which is then saved as argv[3].
VECTORS = """
import json, sys
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1])
print(json.dumps(model.encode(json.loads(sys.argv[2])).tolist()))
model.save(sys.argv[3])
"""
# Losses of the vectors in argv[1] [columns, rows, width], their gradients in the same shape.
LOSSES = """
import json, sys
import torch
from sentence_transformers import losses, util

results = []
for kind in (losses.MultipleNegativesRankingLoss, losses.MultipleNegativesSymmetricRankingLoss):
    for similarity in (util.dot_score, util.cos_sim):
        columns = torch.tensor(json.loads(sys.argv[1]), requires_grad=True)
        loss = kind(None, scale=float(sys.argv[2]), similarity_fct=similarity)
        value = loss.compute_loss_from_embeddings(list(columns), None)
        value.backward()
        results.append((value.item(), columns.grad.tolist()))
print(json.dumps(results))
"""


def rival(torch, script, *arguments):
    path = f"{torch}:{ENVIRONMENT['PYTHONPATH']}"
    return shell(sys.executable, "-c", script, *arguments, PYTHONPATH=path).json()


def some_texts():
    """Of one word up to more than the 32 tokens that a row takes."""
    chance = np.random.default_rng(0)
    return [" ".join(chance.choice(ALL_WORDS, size)) for size in (1, 2, 5, 12, 60)]


@pytest.mark.timeout(900)
def test_both_compute_the_vectors_of_a_folder_that_either_wrote(torch, tmp_path):
    data, texts = write_data(tmp_path), some_texts()
    pairs = [{"anchor": one, "positive": two} for one, two in itertools.pairwise(texts)]
    write_lines(data / "pairs.jsonl", *map(json.dumps, pairs))
    write_lines(data / "texts.jsonl", *(json.dumps({"anchor": text}) for text in texts))
    train = (f"--train_file={data}/pairs.jsonl", "--do_train", "--num_train_steps=2")
    for pooling, normalize in KINDS:
        run, saved = tmp_path / f"{pooling}-{normalize}", tmp_path / f"{pooling}-{normalize}-saved"
        given = (f"--pooling={pooling}", f"--normalize={normalize}")
        embed(run, *model_flags(data), *train, *given, "--learning_rate=1e-3")
        right = np.array(rival(torch, VECTORS, run / "model", json.dumps(texts), saved))
        assert np.ptp(right) > 0.1
        for folder in (run, saved):
            found = ringbert.Embedder(folder)(texts)
            np.testing.assert_allclose(found, right, atol=1e-5)  # float32 sums
        predict = ("--do_predict", f"--predict_file={data}/texts.jsonl", f"--model={saved}")
        embed(run / "predicted", *predict)
        np.testing.assert_allclose(np.load(run / "predicted/vectors.npy"), right, atol=1e-5)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_columns", [2, 3])
def test_the_loss_and_its_gradient_are_the_same(num_columns, torch):
    """Of an anchor, its positive, and perhaps a hard negative in each row. By cosines the gradient
    is that of unit vectors without its part along them."""
    chance = np.random.default_rng(num_columns)
    units = chance.normal(size=(num_columns, ROWS, WIDTH)).astype(np.float32)
    units /= np.linalg.norm(units, axis=-1, keepdims=True)
    slot, row = (each.reshape(-1) for each in np.indices((num_columns, ROWS)))
    digest = np.arange(len(row))
    own = Vectors(units.reshape(-1, WIDTH), row, slot, digest, digest[row], ROWS + row)
    results = rival(torch, LOSSES, json.dumps(units.tolist()), 1 / TEMPERATURE)
    for both_ways in (False, True):
        by_product, by_cosine = results[2 * both_ways : 2 * both_ways + 2]
        gradient, loss = InBatchLoss(TEMPERATURE, both_ways).gradient(own, World())
        found = gradient.reshape(units.shape) / ROWS
        across = found - units * (units * found).sum(-1, keepdims=True)
        for (value, right), ours in ((by_product, found), (by_cosine, across)):
            assert loss / ROWS == pytest.approx(value, abs=1e-5)
            np.testing.assert_allclose(ours, right, atol=1e-5)
            assert np.abs(ours).max() > 0.1
