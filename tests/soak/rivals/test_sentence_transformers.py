"""sentence-transformers beside bert-embedder: the vectors of each other's folders, also with
prompts and cut, the loss of the same vectors with its gradient, the loss without false negatives,
and the scores of a judged search."""

import itertools
import json
import sys
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from harness.classifier_runs import model_flags, write_data
from harness.jobs import shell
from harness.models import save_model
from harness.mpi import ENVIRONMENT
from harness.pair_files import make_pairs
from harness.program_runs import bert, metrics_in
from harness.texts import ALL_WORDS, write_lines

import ringbert
from distributed.joint import InBatchLoss, Vectors
from distributed.world import World
from tasks.embedder.distillation import candidates_of, distillation

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

# Of the texts in argv[2], by the folder in argv[1]: vectors of queries and of documents, and their
# first argv[3] numbers as unit vectors.
ROLES = """
import json, sys
from sentence_transformers import SentenceTransformer

folder, texts, size = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
whole, cut = SentenceTransformer(folder), SentenceTransformer(folder, truncate_dim=size)
found = [whole.encode_query(texts), whole.encode_document(texts)]
for encode in (cut.encode_query, cut.encode_document):
    found.append(encode(texts, normalize_embeddings=True))
print(json.dumps([vectors.tolist() for vectors in found]))
"""
# The scores of the search in argv[2], whose judgements are 1, by the folder in argv[1].
SEARCH = """
import json, sys
from pathlib import Path
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

folder = Path(sys.argv[2])
queries, corpus = (
    {row["_id"]: row["text"] for row in map(json.loads, (folder / name).read_text().splitlines())}
    for name in ("queries.jsonl", "corpus.jsonl")
)
relevant = {}
for line in (folder / "qrels/test.tsv").read_text().splitlines()[1:]:
    query, document, _ = line.split("\\t")
    relevant.setdefault(query, set()).add(document)
evaluator = InformationRetrievalEvaluator(queries, corpus, relevant, write_csv=False)
print(json.dumps(evaluator(SentenceTransformer(sys.argv[1]))))
"""
# GISTEmbedLoss of the columns of texts in argv[2] with the margin argv[3], by the folder in argv[1]
# as the model and as its guide.
GUIDED = """
import json, sys
from sentence_transformers import SentenceTransformer, losses

model = SentenceTransformer(sys.argv[1], device="cpu").eval()
loss = losses.GISTEmbedLoss(
    model, model, temperature=0.05, margin=float(sys.argv[3]), contrast_anchors=False,
    contrast_positives=False,
)
print(loss([model.preprocess(column) for column in json.loads(sys.argv[2])], None).item())
"""

# The same of losses of a teacher's scores in argv[2] [rows, columns - 1].
DISTILLED = """
import json, sys
import torch
from sentence_transformers import losses

results = []
for kind in (losses.MarginMSELoss, losses.DistillKLDivLoss):
    columns = torch.tensor(json.loads(sys.argv[1]), requires_grad=True)
    scores = torch.tensor(json.loads(sys.argv[2]))
    value = kind(None).compute_loss_from_embeddings(list(columns), scores)
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
        gradient, (loss,) = InBatchLoss(TEMPERATURE, both_ways).gradient(own, World())
        found = gradient.reshape(units.shape) / ROWS
        across = found - units * (units * found).sum(-1, keepdims=True)
        for (value, right), ours in ((by_product, found), (by_cosine, across)):
            assert loss / ROWS == pytest.approx(value, abs=1e-5)
            np.testing.assert_allclose(ours, right, atol=1e-5)
            assert np.abs(ours).max() > 0.1


@pytest.mark.timeout(900)
def test_losses_of_a_teachers_scores_and_their_gradients_are_the_same(torch):
    """Of an anchor, its positive and two negatives in each row."""
    chance = np.random.default_rng(7)
    columns = chance.normal(size=(4, ROWS, WIDTH)).astype(np.float32)
    scores = chance.normal(size=(ROWS, 3)).astype(np.float32)
    slot, row = (each.reshape(-1) for each in np.indices((4, ROWS)))
    teacher = np.concatenate([np.zeros((ROWS, 1)), scores], 1).T.reshape(-1)
    texts = {"slot": slot, "row_id": row, "teacher": teacher}
    batch = candidates_of(texts, len(slot) + 3) | {"slot": slot}  # with padding
    results = rival(torch, DISTILLED, json.dumps(columns.tolist()), json.dumps(scores.tolist()))
    for kind, (value, right) in zip(("margin_mse", "kl_div"), results, strict=True):
        loss = distillation(kind, 1.0)
        vectors = tf.constant(columns.reshape(-1, WIDTH))
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            anchors, candidates = (
                tf.gather(vectors, batch[name]) for name in ("candidate_anchor", "candidate")
            )
            ours = loss.loss(tf.reduce_sum(anchors * candidates, 1), batch) / loss.weight(batch)
        assert float(ours) == pytest.approx(value, rel=1e-5)
        gradient = tf.convert_to_tensor(tape.gradient(ours, vectors)).numpy()
        np.testing.assert_allclose(gradient.reshape(columns.shape), right, atol=1e-5)


@pytest.mark.timeout(900)
def test_prompts_and_sizes_of_a_folder_count_in_both(torch, tmp_path):
    model, texts = save_model(tmp_path, "features"), some_texts()
    file = write_lines(tmp_path / "pairs.jsonl", *map(json.dumps, make_pairs(20, 1)))
    flags = (f"--model={model}", f"--train_file={file}", "--do_train", "--num_train_steps=2")
    flags += ("--query_prompt=red ", "--document_prompt=dull ", "--dims=24,8")
    embed(tmp_path / "run", *flags, "--learning_rate=1e-3")
    folder = tmp_path / "run/model"
    right = rival(torch, ROLES, folder, json.dumps(texts), 8)
    whole, cut = ringbert.Embedder(folder), ringbert.Embedder(folder, truncate_dim=8)
    found = [of(texts, role) for of in (whole, cut) for role in ("query", "document")]
    for ours, theirs in zip(found, right, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    assert np.abs(found[0] - found[1]).max() > 0.01


@pytest.mark.timeout(900)
def test_a_judged_search_has_the_same_scores(torch, tmp_path):
    model = save_model(tmp_path, "features")
    pairs = {row["anchor"]: row for row in make_pairs(40, 3)}
    corpus, queries, judged = {}, [], []
    for number, (query, row) in enumerate(pairs.items()):
        queries.append({"_id": f"q{number}", "text": query})
        for name in ("positive", "negative"):
            document = corpus.setdefault(row[name], f"d{len(corpus)}")
            if name == "positive" or number % 3 == 0:  # some queries have two
                judged.append(f"q{number}\t{document}\t1")
    write_lines(tmp_path / "queries.jsonl", *map(json.dumps, queries))
    documents = [{"_id": name, "title": "", "text": text} for text, name in corpus.items()]
    write_lines(tmp_path / "corpus.jsonl", *map(json.dumps, documents))
    file = write_lines(tmp_path / "qrels/test.tsv", "query-id\tcorpus-id\tscore", *judged)
    train = write_lines(tmp_path / "pairs.jsonl", *map(json.dumps, pairs.values()))
    flags = (f"--model={model}", f"--train_file={train}", "--do_train", "--num_train_steps=1")
    scores = embed(tmp_path / "run", *flags, f"--dev_file={file}", "--do_eval")
    right = rival(torch, SEARCH, tmp_path / "run/model", tmp_path)
    names = "ndcg@10", "mrr@10", "map@100", "recall@1", "recall@10", "precision@1", "precision@10"
    for name in names:
        assert scores[f"eval_{name}"] == pytest.approx(right[f"cosine_{name}"], abs=1e-6), name


@pytest.mark.timeout(900)
@pytest.mark.parametrize("margin", [0.0, 0.1, -0.02])
def test_the_loss_without_false_negatives_is_the_same(margin, torch, tmp_path):
    model = save_model(tmp_path, "features")
    rows = [row for row in make_pairs(40, 5) if row["positive"] != row["negative"]]
    seen, kept = set(), []
    for row in rows:  # no text twice
        if not seen & {*row.values()}:
            kept.append(row)
            seen |= {*row.values()}
    file = write_lines(tmp_path / "pairs.jsonl", *map(json.dumps, kept))
    flags = (f"--model={model}", f"--train_file={file}", "--do_train", "--num_train_steps=1")
    flags += (f"--train_batch_size={len(kept)}", "--log_steps=1", "--learning_rate=0")
    flags += ("--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0")
    embed(tmp_path / "run", *flags, f"--guide_margin={margin}")
    (line,) = [line for line in metrics_in(tmp_path / "run") if "loss" in line]
    assert line["loss/left_out"] > 0
    columns = [[row[name] for row in kept] for name in ("anchor", "positive", "negative")]
    right = rival(torch, GUIDED, tmp_path / "run/model", json.dumps(columns), margin)
    assert line["loss"] == pytest.approx(right, rel=1e-5)
