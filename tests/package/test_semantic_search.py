"""examples/semantic_search.sh goes from SQuAD's files to answers, on two ranks, with a tiny model;
examples/search_texts.py finds what the predictors find."""

import inspect
import json
import re
import sys

import numpy as np
import pytest
from harness.jobs import shell
from harness.models import save_model
from harness.mpi import ROOT
from harness.program_runs import bert, objects_in
from harness.squad_files import make_entries, write_squad
from harness.texts import write_lines

import ringbert
from ringbase.files import read_json

QUESTIONS = "what is the red fox near", "which tool is by the axe"


def listed(printed):
    """The texts below each question, with their scores."""
    found, texts = {}, []
    for line in printed.splitlines():
        if line.startswith("  "):
            score, text = line.split(maxsplit=1)
            texts.append((text, float(score)))
        else:
            texts = found[line] = []
    return found


@pytest.mark.slow
def test_the_way_from_pairs_to_a_search(tmp_path):
    page = (ROOT / "docs/semantic_search.md").read_text()
    assert "\n    examples/semantic_search.sh " in page
    (tmp_path / "squad").mkdir()
    for name, number, seed in (("train", 60, 1), ("dev", 20, 2)):
        entries = []
        for context, _, *answer in make_entries(number, seed):
            entries.append((context, " ".join(context.split()[:3]), *answer))
        write_squad(tmp_path / f"squad/{name}-v1.1.json", entries)
    questions = write_lines(tmp_path / "questions.txt", *QUESTIONS)
    out = tmp_path / "out"
    done = shell(
        ROOT / "examples/semantic_search.sh",
        tmp_path / "squad",
        save_model(tmp_path, "features"),
        out,
        wait_s=300,
        QUESTIONS=questions,
        TRAIN_FLAGS="--num_train_steps 6 --global_batch_size 16 --max_seq_length 64",
    )
    documents = [line["text"] for line in objects_in(out / "documents.jsonl")]
    assert len(documents) == len(np.load(out / "model/vectors.npy"))
    assert sum(len(row["neg"]) for row in objects_in(out / "first/mined.jsonl")) > 0
    assert read_json(out / "model/result.json")["scores"]["eval_ndcg@10"] > 0
    found = listed(done.stdout.partition("== questions\n")[2])
    assert tuple(found) == QUESTIONS
    embedder = ringbert.Embedder(out / "model")
    nearest = embedder.nearest(QUESTIONS, documents, top_k=3)
    (out / "search").symlink_to(out / "model")
    (block,) = re.findall(r"\n\n((?:    .*\n|\n)*?    print\(embedder.*\n)", page)
    done = shell(sys.executable, "-c", inspect.cleandoc(block), cwd=out)
    [[(best, _)]] = embedder.nearest(["who wrote it?"], ["Ada wrote it.", "It rained."], top_k=1)
    assert best in done.stdout
    for texts, expected in zip(found.values(), nearest, strict=True):
        assert [text for text, _ in texts] == [text for text, _ in expected]
        cosines = [cosine for _, cosine in expected]
        np.testing.assert_allclose([score for _, score in texts], cosines, atol=1e-3)


def test_a_reranker_sorts_what_was_found(tmp_path, monkeypatch, capsys):
    """By its own numbers, of question and text together."""
    texts = ["the red fox", "an axe and a saw", "two dogs", "a green crow"]
    file = write_lines(tmp_path / "texts.jsonl", *(json.dumps({"text": text}) for text in texts))
    model = save_model(tmp_path / "embedder", "features")
    bert("embedder", tmp_path / "run", f"--model={model}", f"--predict_file={file}", "--do_predict")
    reranker = save_model(
        tmp_path / "reranker", "classifier", labels=("L",), problem_type="regression"
    )
    monkeypatch.syspath_prepend(ROOT / "examples")
    import search_texts

    arguments = [tmp_path / "run", QUESTIONS[0], f"--model={model}", f"--reranker={reranker}"]
    monkeypatch.setattr(sys, "argv", ["search_texts.py", *map(str, arguments), "--top_k=4"])
    search_texts.main()
    found = listed(capsys.readouterr().out)[QUESTIONS[0]]
    scores = ringbert.Classifier(reranker)([(QUESTIONS[0], text) for text in texts])
    expected = sorted(zip(texts, (each.value for each in scores), strict=True), key=lambda x: -x[1])
    assert [text for text, _ in found] == [text for text, _ in expected]
    np.testing.assert_allclose([score for _, score in found], [v for _, v in expected], atol=1e-3)
