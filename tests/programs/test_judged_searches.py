"""bert-embedder and searches that somebody has judged, in the form of BEIR; the scores of rankings
beside those of scikit-learn and of trec_eval."""

import json
from functools import partial

import numpy as np
import pytest
from harness.models import save_model
from harness.program_runs import bert, metrics_in, objects_in
from harness.refusals import refused
from harness.texts import ALL_WORDS, write_lines
from sklearn.metrics import average_precision_score, ndcg_score

import ringbert
from tasks.embedder.reading import Source, read
from tasks.embedder.settings import PairSettings
from tasks.runs.ranking import ranks_of, search_scores

embed = partial(bert, "embedder")
# what pytrec_eval-terrier 0.5.11 says of the rankings of `test_scores_are_those_of_trec_eval`:
# ndcg_cut_10, map_cut_100, recall_*, P_*, and recip_rank of the ten best
OF_TREC_EVAL = {
    "ndcg@10": 0.04830728201697562,
    "mrr@10": 0.15866666666666668,
    "recall@1": 0.007521367521367521,
    "recall@10": 0.050426573426573425,
    "recall@100": 0.3827938727938727,
    "map@100": 0.04026580822118609,
    "precision@1": 0.08,
    "precision@10": 0.052,
}


def test_scores_are_those_of_trec_eval():
    """Of 300 documents in 25 rankings, a few of them right to a degree of 1 to 3."""
    chance = np.random.default_rng(80)
    values = chance.permuted(np.tile(np.arange(300.0), (25, 1)), axis=1)
    gains = chance.integers(1, 4, (25, 300)) * (chance.random((25, 300)) < 0.03)
    gains[:, 0] = 1
    relevant = [np.flatnonzero(row) for row in gains]
    ranks = [ranks_of(*row) for row in zip(values, relevant, strict=True)]
    of_relevant = [row[places] for row, places in zip(gains, relevant, strict=True)]
    assert search_scores(ranks, of_relevant) == pytest.approx(OF_TREC_EVAL)


def test_scores_of_two_queries_by_hand():
    """Right documents at the places 1 (gain 1) and 4 (gain 2) of the first query, and beyond the
    tenth place of the second."""
    scores = search_scores(
        [np.array([3, 0]), np.array([10])], [np.array([2.0, 1.0]), np.array([1.0])]
    )
    best = 2 / np.log2(2) + 1 / np.log2(3)
    assert scores == pytest.approx(
        {
            "ndcg@10": (1 / np.log2(2) + 2 / np.log2(5)) / best / 2,
            "mrr@10": 1 / 2,
            "recall@1": 1 / 4,
            "recall@10": 1 / 2,
            "recall@100": 1,
            "map@100": ((1 / 1 + 2 / 4) / 2 + 1 / 11) / 2,
            "precision@1": 1 / 2,
            "precision@10": 2 / 10 / 2,
        }
    )


def write_search(folder, **files):
    """A folder in the form of BEIR: objects for each file of lines, rows for each set."""
    for name, rows in files.items():
        if name in ("corpus", "queries"):
            write_lines(folder / f"{name}.jsonl", *map(json.dumps, rows))
        else:
            lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
            (folder / "qrels").mkdir(exist_ok=True)
            write_lines(folder / f"qrels/{name}.tsv", *lines)
    return folder


def some_search(folder):
    """Queries of two words, and documents that have them, with degrees; a document is the query q1
    itself, two others have the same text, and one has none."""
    chance = np.random.default_rng(3)
    corpus, queries, judged = [], [], []
    for number in range(40):
        words = chance.choice(ALL_WORDS, 4).tolist()
        title = " ".join(words[:1]) if number % 2 else ""
        corpus.append({"_id": f"d{number}", "title": title, "text": " ".join(words[1:])})
    corpus[7] |= {"title": corpus[5]["title"], "text": corpus[5]["text"]}
    corpus[9] |= {"title": "", "text": ""}
    for number in range(12):
        right = chance.choice(40, 3, replace=False)
        words = f"{corpus[right[0]]['title']} {corpus[right[0]]['text']}".split()[:2]
        queries.append({"_id": f"q{number}", "text": " ".join(words)})
        judged += [(f"q{number}", f"d{place}", gain) for gain, place in enumerate(right)]
    judged.append(("q0", "d5", 1))
    judged.append(("q11", "d8", -1))
    queries += [{"_id": "q12", "text": "of another set"}]
    corpus.append({"_id": "q1", "title": "", "text": queries[1]["text"]})
    judged = [row for row in judged if row[:2] != ("q3", "d30")]
    return write_search(folder, corpus=corpus, queries=queries, test=judged, train=judged[:20])


def in_order(folder):
    """The texts of queries and documents, and the gains [queries, documents]."""
    lines = {name: objects_in(folder / f"{name}.jsonl") for name in ("queries", "corpus")}
    texts = {}
    for name, rows in lines.items():
        parts = {row["_id"]: (row.get("title", ""), row["text"]) for row in rows}
        texts[name] = {key: " ".join(both).strip() for key, both in parts.items()}
    del texts["queries"]["q12"]
    gains = np.zeros((len(texts["queries"]), len(texts["corpus"])))
    numbers = [{key: place for place, key in enumerate(of)} for of in texts.values()]
    for line in (folder / "qrels/test.tsv").read_text().splitlines()[1:]:
        query, document, gain = line.split("\t")
        gains[numbers[0][query], numbers[1][document]] = max(float(gain), 0)
    return [[*of.values()] for of in texts.values()], gains


def test_a_judged_search_has_the_scores_of_scikit_learn(tmp_path, capsys):
    """Every document counts, by its id; the one that is the query itself is left out; of equal
    cosines those of wrong documents come first. Train and dev sets are files of the same folder."""
    search = some_search(tmp_path)
    model = save_model(tmp_path / "made", "features")
    flags = (f"--model={model}", f"--dev_file={search}/qrels/test.tsv", "--do_eval")
    scores = embed(tmp_path / "run", *flags)
    said = capsys.readouterr().err
    assert "12 queries among 41 documents" in said
    assert "1 documents without a text" in said
    assert "13 judgements that a document is wrong, which are not read" in said

    (queries, documents), gains = in_order(search)
    embedder = ringbert.Embedder(model, normalize=True)
    with pytest.warns(UserWarning, match="1 of 41 items in texts have an empty text"):
        of_documents = embedder(documents, "document")
    cosines = embedder(queries, "query") @ of_documents.T
    assert documents[40] == queries[1]
    values = cosines - 1e-5 * (gains > 0)
    values[1, 40] = -2
    right = gains > 0
    expected = {
        "ndcg@10": ndcg_score(gains, values, k=10, ignore_ties=True),
        "map@100": np.mean([*map(average_precision_score, right, values)]),
    }
    order = np.argsort(-values, axis=1)
    hits = np.take_along_axis(right, order, axis=1)
    firsts = hits.argmax(1)
    expected["mrr@10"] = np.mean((firsts < 10) / (1 + firsts))
    for most in (1, 10):
        expected[f"precision@{most}"] = hits[:, :most].mean()
        expected[f"recall@{most}"] = np.mean(hits[:, :most].sum(1) / right.sum(1))
    for name, value in expected.items():
        assert scores[f"eval_{name}"] == pytest.approx(value, abs=1e-6), name
    assert next(iter(scores)) == "eval_ndcg@10"
    mistakes = objects_in(tmp_path / "run/mistakes.jsonl")
    expected = sorted(zip(queries, 1 + firsts, strict=True))
    found = sorted((line["anchor"], line["rank"]) for line in mistakes)
    assert found == [each for each in expected if each[1] > 1] != []

    few = embed(tmp_path / "few", *flags, "--max_predict_examples=4")
    expected = ndcg_score(gains[:4], values[:4], k=10, ignore_ties=True)
    assert few["eval_ndcg@10"] == pytest.approx(expected, abs=1e-6)


def test_judgements_are_trained_on_and_mined_with(tmp_path):
    search = some_search(tmp_path)
    model = save_model(tmp_path / "made", "features")
    train = f"--train_file={search}/qrels/train.tsv"
    flags = (f"--model={model}", train, f"--dev_file={search}/qrels/test.tsv", "--do_train")
    flags += ("--do_eval", "--num_train_steps=2", "--train_batch_size=8", "--eval_steps=1")
    embed(tmp_path / "run", *flags)
    assert sum("eval_ndcg@10" in line for line in metrics_in(tmp_path / "run")) == 2
    pairs = read(Source(PairSettings(train_file=f"{search}/qrels/train.tsv"), "train"))
    (queries, documents), gains = in_order(search)
    right = {(queries[row], documents[column]) for row, column in np.argwhere(gains > 0)}
    assert set(pairs.rows) < right
    assert len(pairs.rows) == 13  # of twenty, a third of them judged wrong
    assert pairs.corpus == ()

    # an evaluation alone is a run, which a comparison takes as its baseline
    before = embed(tmp_path / "before", flags[0], flags[2], "--do_eval")
    runs = [tmp_path / "before", tmp_path / "run"]
    page = ringbert.report(runs, tmp_path / "page.html").read_text()
    after = json.loads((tmp_path / "run/result.json").read_text())["scores"]
    for scores in (before, after):
        assert f"{scores['eval_ndcg@10']:.4f}" in page

    mine = ("--do_predict", f"--predict_file={search}/qrels/test.tsv", "--num_negatives=3")
    embed(tmp_path / "mined", f"--model={tmp_path}/run/model", *mine)
    rows = objects_in(tmp_path / "mined/mined.jsonl")
    assert {row["query"] for row in rows} == set(queries)
    for row in rows:
        assert len(row["neg"]) == 3
        assert set(row["neg"]) <= set(documents) - {row["query"], *row["pos"]}
        assert {(row["query"], positive) for positive in row["pos"]} <= right


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"corpus": [{"_id": "d1", "text": "a"}]}, ["corpus.jsonl has no _id d2", "1 of 2"]),
        ({"queries": [{"_id": "q", "text": 3}]}, ["queries.jsonl: line 1", "must be texts"]),
        ({"corpus": [{"_id": "d1", "text": "a"}] * 2}, ["line 2: the _id d1 occurs twice"]),
        ({"corpus": [{"text": "a"}]}, ["corpus.jsonl: no column '_id'"]),
        ({"test": [("q", "d1", "good")]}, ["line 2: score must be a number, got 'good'"]),
        ({"test": [("q", "d1", 0)]}, ["0 pairs", "1 judgements that a document is wrong"]),
    ],
)
def test_damaged_judgements_are_one_line(change, named, tmp_path):
    files = {
        "corpus": [{"_id": "d1", "text": "a"}, {"_id": "d2", "text": "b"}],
        "queries": [{"_id": "q", "text": "c"}],
        "test": [("q", "d1", 1), ("q", "d2", 1)],
    }
    write_search(tmp_path, **(files | change))
    file = tmp_path / "qrels/test.tsv"
    refused(lambda: read(Source(PairSettings(dev_file=str(file)), "dev")), str(file), *named)


def test_judgements_without_their_texts_or_as_texts_are_refused(tmp_path):
    write_search(tmp_path, test=[("q", "d", 1)])
    file = str(tmp_path / "qrels/test.tsv")
    needed = "needs queries.jsonl and corpus.jsonl"
    refused(lambda: read(Source(PairSettings(dev_file=file), "dev")), needed, "there is no")
    as_texts = Source(PairSettings(predict_file=file), "predict")
    refused(lambda: read(as_texts), "give queries.jsonl or corpus.jsonl")
