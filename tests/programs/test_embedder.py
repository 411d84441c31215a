"""bert-embedder from its flags to its files, on a tiny model: pairs, scores, search, and the folder
that sentence-transformers reads."""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from harness import parsing
from harness.classifier_runs import model_flags, write_data
from harness.models import save_model
from harness.pair_files import loss_by_hand, make_pairs
from harness.program_runs import bert, metrics_in, objects_in, refusal
from harness.refusals import refused
from harness.texts import ALL_WORDS, write_lines
from scipy.stats import spearmanr
from sklearn.metrics import ndcg_score
from transformers import AutoTokenizer

import ringbert
from ringbase.files import read_json
from ringbert.in_memory import file_of
from tasks.embedder.reading import Source, files_and_columns, read
from tasks.embedder.scoring import ranks_of_relevant
from tasks.embedder.settings import PairSettings
from tasks.runs.ranking import ranks_of, search_scores

embed = partial(bert, "embedder")
LEARN = ("--do_train", "--global_batch_size=32", "--learning_rate=2e-3", "--num_train_steps=60")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = write_data(tmp_path_factory.mktemp("embedder"))
    for name, number, seed in (("train", 600, 1), ("dev", 60, 2)):
        write_lines(folder / f"{name}.jsonl", *map(json.dumps, make_pairs(number, seed)))
    return folder


@pytest.fixture(scope="module")
def flags(data):
    files = (f"--train_file={data}/train.jsonl", f"--dev_file={data}/dev.jsonl")
    return (*model_flags(data), *files)


@pytest.fixture(scope="module")
def trained(flags, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    predict = ("--do_predict", f"--predict_file={data}/dev.jsonl")
    scores = embed(folder, *flags, *LEARN, "--do_eval", "--eval_steps=20", *predict)
    return folder, scores


def test_a_search_gets_better_and_leaves_its_files(trained, data):
    folder, scores = trained
    measured = [line["eval_mrr@10"] for line in metrics_in(folder) if "eval_mrr@10" in line]
    assert len(measured) == 3
    assert scores["eval_mrr@10"] == pytest.approx(measured[-1])
    assert measured[-1] > 0.5  # chance among 120 documents: 0.05; measured 0.8
    vectors = np.load(folder / "vectors.npy")
    table = pq.read_table(folder / "vectors.parquet")
    pairs = make_pairs(60, 2)
    assert table["text"].to_pylist() == [pair["anchor"] for pair in pairs]
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), np.float32), vectors)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)

    documents = list(dict.fromkeys(p[name] for p in pairs for name in ("positive", "negative")))
    embedder = ringbert.Embedder(folder)
    positives = {}
    for pair in pairs:
        positives.setdefault(pair["anchor"], set()).add(pair["positive"])
    reciprocal = []
    for anchor, listed in zip(positives, embedder.nearest([*positives], documents), strict=True):
        ranks = [rank for rank, (text, _) in enumerate(listed, 1) if text in positives[anchor]]
        reciprocal.append(1 / min(ranks) if ranks else 0)
    assert scores["eval_mrr@10"] == pytest.approx(np.mean(reciprocal), abs=1e-6)
    np.testing.assert_allclose(embedder([p["anchor"] for p in pairs]), vectors, atol=1e-6)
    mistakes = objects_in(folder / "mistakes.jsonl")
    assert all(line["nearest_cosine"] >= line["cosine"] for line in mistakes)
    page = (folder / "report.html").read_text()
    assert f"{len(mistakes)} of {len(positives)}; all of them are in mistakes.jsonl" in page
    cosines, wrong = read_json(folder / "result.json")["report"]
    assert [(section["title"], section["columns"][0]) for section in (cosines, wrong)] == [
        ("Cosines", "cosine of"),
        ("Mistakes", "anchor"),
    ]
    products = (vectors * embedder([pair["positive"] for pair in pairs])).sum(1)
    figures = [np.mean(products), *np.percentile(products, [5, 25, 50, 75, 95])]
    (name, *shown), (_, mean_of_others, *_) = cosines["rows"]
    assert name == "pairs"
    np.testing.assert_allclose([*map(float, shown)], figures, atol=6e-4)  # three digits
    assert float(mean_of_others) < figures[0]
    first, line = wrong["rows"][0], mistakes[0]
    columns = ["anchor", "positive", "rank", "cosine", "nearest", "nearest_cosine"]
    assert wrong["columns"] == columns
    cells = [cell["text"] if isinstance(cell, dict) else cell for cell in first]
    assert cells == [line[column] for column in columns]


def test_the_folder_says_what_sentence_transformers_reads(trained, tmp_path):
    folder, _ = trained
    modules = read_json(folder / "model/modules.json")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    assert kinds == ["Transformer", "Pooling", "Normalize"]
    pooling = read_json(folder / "model" / modules[1]["path"] / "config.json")
    assert pooling["word_embedding_dimension"] == 64
    assert (pooling["pooling_mode_mean_tokens"], pooling["pooling_mode_cls_token"]) == (True, False)
    (folder / "model/task.json").rename(tmp_path / "task.json")
    try:  # a folder of sentence-transformers has none
        embedder = ringbert.Embedder(folder / "model")
        assert (embedder.options["pooling"], embedder.options["max_seq_length"]) == ("mean", 32)
        expected = embedder("red fox")
    finally:
        (tmp_path / "task.json").rename(folder / "model/task.json")
    ringbert.export(folder, tmp_path / "exported")
    exported = tf.saved_model.load(str(tmp_path / "exported")).signatures["ids"]
    tokenizer = AutoTokenizer.from_pretrained(f"{tmp_path}/exported/assets.extra")
    ids = tokenizer(["red fox"], return_tensors="np")
    found = exported(**{name: tf.constant(values, tf.int32) for name, values in ids.items()})
    np.testing.assert_allclose(found["vector"][0], expected, atol=1e-5)


def newer_folder(folder, pooling, *more):
    """The files of sentence-transformers 6 beside a model: other names of classes and keys than
    before, and the length of texts as the tokenizer's. Vectors are not made unit vectors."""
    model = save_model(folder, "features")
    package = "sentence_transformers"
    types = [f"{package}.base.modules.transformer.Transformer"]
    types += [f"{package}.sentence_transformer.modules.pooling.Pooling", *more]
    modules = [
        {"idx": number, "name": str(number), "path": "1_Pooling" if number else "", "type": name}
        for number, name in enumerate(types)
    ]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling").mkdir()
    config = {"embedding_dimension": 64, "pooling_mode": pooling, "include_prompt": True}
    (model / "1_Pooling/config.json").write_text(json.dumps(config))
    (model / "sentence_bert_config.json").write_text('{"module_output_name": "token_embeddings"}')
    settings = read_json(model / "tokenizer_config.json") | {"model_max_length": 6}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    return model


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_folder_of_newer_sentence_transformers_gives_its_vectors(pooling, tmp_path):
    """Those of `Features`, of texts of unequal lengths, as from a folder that says nothing."""
    model = newer_folder(tmp_path, pooling)
    texts = ["red", "the red fox saw a dull axe", "fox axe"]
    with pytest.warns(UserWarning, match="beyond max_seq_length 6 are cut off"):
        expected = ringbert.Features(model, pooling=pooling, max_seq_length=6).pooled(texts)
    np.testing.assert_allclose(ringbert.Embedder(model)(texts), expected, atol=1e-5)
    write_lines(tmp_path / "texts.jsonl", *(json.dumps({"anchor": text}) for text in texts))
    predict = (f"--model={model}", "--do_predict", f"--predict_file={tmp_path}/texts.jsonl")
    embed(tmp_path / "run", *predict)
    vectors = np.load(tmp_path / "run/vectors.npy")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    embed(tmp_path / "units", *predict, "--normalize", "--max_seq_length=32")
    units = ringbert.Embedder(model, normalize=True, max_seq_length=32)(texts)
    np.testing.assert_allclose(np.load(tmp_path / "units/vectors.npy"), units, atol=1e-5)
    assert np.abs(units - vectors).max() > 0.1
    (model / "modules.json").unlink()  # a folder of other programs'
    given = {"pooling": pooling, "max_seq_length": 6}
    found = ringbert.Embedder(model, normalize=False, **given)(texts)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(
        ringbert.Embedder(model, **given)(texts), expected / lengths, atol=1e-5
    )


@pytest.mark.parametrize(
    ("inner", "kind", "lengths"),
    [
        ("0_Transformer", "Transformer", "sentence_bert_config.json"),
        ("0_RoBERTa", "RoBERTa", "sentence_roberta_config.json"),
    ],
)
def test_a_folder_of_the_first_sentence_transformers_gives_its_vectors(
    inner, kind, lengths, tmp_path
):
    """The model is in a folder inside, and config.json beside it has a version alone."""
    new = newer_folder(tmp_path, "cls")
    expected = ringbert.Embedder(new)("the red fox")
    old = tmp_path / "old"
    shutil.copytree(new, old / inner, ignore=shutil.ignore_patterns("modules.json", "1_Pooling"))
    (old / inner / lengths).write_text('{"max_seq_length": 6, "do_lower_case": false}')
    shutil.copytree(new / "1_Pooling", old / "1_Pooling")
    package = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": inner, "type": f"{package}.{kind}"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{package}.Pooling"},
    ]
    (old / "modules.json").write_text(json.dumps(modules))
    (old / "config.json").write_text('{"__version__": "0.4.1"}')
    for folder in (old, old / inner):
        embedder = ringbert.Embedder(folder)
        np.testing.assert_allclose(embedder("the red fox"), expected, atol=1e-6)
        assert (embedder.options["pooling"], embedder.options["max_seq_length"]) == ("cls", 6)
    modules[0]["path"] = "../model"  # another folder is not read
    (old / "modules.json").write_text(json.dumps(modules))
    refused(lambda: ringbert.Embedder(old), old)


def write_prompts(model, **config):
    (model / "config_sentence_transformers.json").write_text(json.dumps(config))


def test_prompts_of_a_folder_are_put_before_texts(tmp_path, capsys):
    """By the rules of sentence-transformers' `encode_query`, `encode_document` and `encode`: the
    vectors are those of the texts with the prompts written before them."""
    model = newer_folder(tmp_path, "mean")
    plain = ringbert.Embedder(model, max_seq_length=32)
    queries, documents = ["the red fox", "an axe"], ["a saw", "the red fox"]
    with_query = plain([f"red {text}" for text in queries])
    with_document = plain([f"dull {text}" for text in documents])
    for names, default, expected in (
        (("query", "document"), None, plain(queries)),
        (("query", "passage"), "query", with_query),
        (("query", "corpus"), "corpus", plain([f"dull {text}" for text in queries])),
    ):
        prompts = dict(zip(names, ("red ", "dull "), strict=True))
        write_prompts(model, prompts=prompts, default_prompt_name=default)
        embedder = ringbert.Embedder(model, max_seq_length=32)
        np.testing.assert_allclose(embedder(queries), expected, atol=1e-6)
        np.testing.assert_allclose(embedder(queries, prompt_name="query"), with_query, atol=1e-6)
        np.testing.assert_allclose(embedder(documents, "document"), with_document, atol=1e-6)
        np.testing.assert_allclose(embedder(queries, "none"), plain(queries), atol=1e-6)
    units = [each / np.linalg.norm(each, axis=1)[:, None] for each in (with_query, with_document)]
    cosines = units[0] @ units[1].T
    np.testing.assert_allclose(embedder.similarities(queries, documents), cosines, atol=1e-6)
    listed = embedder.nearest(queries, documents)
    assert [texts[0][0] for texts in listed] == [documents[each] for each in cosines.argmax(1)]
    refused(lambda: embedder(queries, "passage"), "prompt_name must be one of query, document")

    write_lines(tmp_path / "texts.csv", "anchor", *queries)
    predict = (f"--model={model}", "--do_predict", f"--predict_file={tmp_path}/texts.csv")
    predict += ("--max_seq_length=32",)
    embed(tmp_path / "default", *predict)
    said = capsys.readouterr().err
    assert "prompts: 'red ' before queries, 'dull ' before documents" in said
    assert "have no prompt" not in said
    np.testing.assert_allclose(np.load(tmp_path / "default/vectors.npy"), expected, atol=1e-6)
    embed(tmp_path / "query", *predict, "--prompt_name=query")
    np.testing.assert_allclose(np.load(tmp_path / "query/vectors.npy"), with_query, atol=1e-6)
    embed(tmp_path / "own", *predict, "--query_prompt=old ", "--prompt_name=query")
    old = plain([f"old {text}" for text in queries])
    np.testing.assert_allclose(np.load(tmp_path / "own/vectors.npy"), old, atol=1e-6)


def test_prompts_that_are_not_applied_are_said_and_damaged_ones_refused(tmp_path):
    model = newer_folder(tmp_path, "mean")
    config = {"prompts": {"query": "red ", "document": "", "label": "dull "}}
    write_prompts(model, **config)
    ringbert.Embedder(model)  # warnings are errors
    write_prompts(model, **config, default_prompt_name="label")
    with pytest.warns(UserWarning, match="puts 'dull ' before every text, which is neither"):
        ringbert.Embedder(model)
    write_prompts(model, **config, default_prompt_name="none")
    refused(lambda: ringbert.Embedder(model), "default_prompt_name", "none")
    write_prompts(model, prompts=["red"])
    refused(lambda: ringbert.Embedder(model), "prompts must be")
    write_prompts(model, **config)
    pooling = read_json(model / "1_Pooling/config.json") | {"include_prompt": False}
    (model / "1_Pooling/config.json").write_text(json.dumps(pooling))
    with pytest.warns(UserWarning, match="include_prompt is false"):
        ringbert.Embedder(model)


@pytest.mark.slow
def test_prompts_are_trained_evaluated_and_written(tmp_path, capsys):
    """Evaluated as if they stood in the file. A query's own text among the documents is still left
    out, and the same text as a query and as a document is one text to the loss."""
    model = save_model(tmp_path, "features")
    rows = make_pairs(24, 7)
    prompts = ("--query_prompt=red ", "--document_prompt=dull ")
    before = {"anchor": "red ", "positive": "dull ", "negative": "dull "}
    by_hand = [{name: before[name] + text for name, text in row.items()} for row in rows]
    evaluated = []
    for name, lines, more in (("flags", rows, prompts), ("hand", by_hand, ())):
        file = write_lines(tmp_path / f"{name}.jsonl", *map(json.dumps, lines))
        flags = (f"--model={model}", "--do_eval", f"--dev_file={file}", *more)
        evaluated.append(embed(tmp_path / name, *flags))
    assert evaluated[0] == pytest.approx(evaluated[1])

    # texts that are anchors and documents
    rows[3]["negative"] = rows[5]["anchor"]
    rows[4]["positive"] = rows[6]["anchor"]
    file = write_lines(tmp_path / "shared.jsonl", *map(json.dumps, rows))
    flags = (f"--model={model}", f"--train_file={file}", f"--dev_file={file}", "--do_train")
    flags += ("--do_eval", "--num_train_steps=1", "--train_batch_size=24", "--log_steps=1")
    flags += ("--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0")
    embed(tmp_path / "shared", *flags, *prompts, "--max_query_length=4")
    (line,) = [line for line in metrics_in(tmp_path / "shared") if "loss" in line]
    embedder = ringbert.Embedder(
        model, normalize=True, query_prompt="red ", document_prompt="dull ", max_query_length=4
    )
    roles = [partial(embedder, prompt_name=name) for name in ("query", "document")]
    expected = loss_by_hand([tuple(row.values()) for row in rows], *roles, 0.05)
    assert line["loss"] == pytest.approx(expected, rel=1e-5)
    mistakes = objects_in(tmp_path / "shared/mistakes.jsonl")
    assert mistakes
    assert not [line for line in mistakes if line["nearest"] == line["anchor"]]

    folder = tmp_path / "shared/model"
    assert read_json(folder / "config_sentence_transformers.json") == {
        "similarity_fn_name": "cosine",
        "prompts": {"query": "red ", "document": "dull "},
        "default_prompt_name": None,
    }
    embedder, plain = ringbert.Embedder(folder), ringbert.Embedder(folder, query_prompt="")
    np.testing.assert_array_equal(embedder("fox", "query"), plain("red fox", "query"))
    ringbert.export(folder, tmp_path / "exported")
    exported = read_json(tmp_path / "exported/assets.extra/config_sentence_transformers.json")
    assert exported["prompts"] == {"query": "red ", "document": "dull "}
    # which another training takes over
    more = (f"--model={folder}", "--do_train", f"--train_file={tmp_path}/flags.jsonl")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        embed(tmp_path / "again", *more, "--plan")
    assert "prompts: 'red ' before queries, 'dull ' before documents" in capsys.readouterr().err


def mined_by_hand(embedder, pairs, corpus, number, range_min=0, range_max=None, most_cosine=None):
    """Of each query the nearest texts, one by one: neither its positives nor itself, and not above
    what `most_cosine` makes of the lowest cosine of its positives."""
    positives = {}
    for pair in pairs:
        positives.setdefault(pair["anchor"], []).append(pair["positive"])
    documents = [*dict.fromkeys([pair["positive"] for pair in pairs] + corpus)]
    mined = {}
    for query, right in positives.items():
        cosines = embedder.similarities(query, documents)[0]
        lowest = min(cosines[documents.index(each)] for each in right)
        order = np.argsort(-cosines, kind="stable")
        if range_max:  # the positives of any query have room besides
            order = order[: range_max + max(map(len, positives.values())) + 1]
        kept = [place for place in order if documents[place] not in {query, *right}]
        if most_cosine:
            kept = [place for place in kept if cosines[place] <= most_cosine(lowest)]
        chosen = kept[range_min:range_max][:number]
        mined[query] = [documents[place] for place in chosen], cosines[chosen]
    return mined


@pytest.mark.parametrize(
    ("asked", "by_hand"),
    [
        (["--num_negatives=4"], {"number": 4}),
        (["--num_negatives=3", "--range_min=2", "--range_max=9"], {"number": 3, "range_min": 2}),
        (
            ["--num_negatives=5", "--absolute_margin=0.05", "--range_max=12"],
            {"number": 5, "most_cosine": lambda lowest: lowest - 0.05},
        ),
        (
            ["--num_negatives=5", "--relative_margin=0.1", "--range_max=12"],
            {"number": 5, "most_cosine": lambda lowest: lowest * 0.9},
        ),
    ],
)
def test_mined_negatives_are_the_nearest_by_hand_and_can_be_trained_on(
    asked, by_hand, trained, tmp_path, capsys
):
    """Also with several positives of an anchor, which is itself a document, and a corpus that
    repeats texts."""
    pairs = make_pairs(30, 5)
    pairs += [{"anchor": pairs[0]["anchor"], "positive": pairs[1]["anchor"]}]
    corpus = [pair["negative"] for pair in make_pairs(20, 6)] + [pairs[2]["anchor"]]
    corpus += [corpus[0], pairs[3]["positive"]]
    file = write_lines(tmp_path / "pairs.jsonl", *map(json.dumps, pairs))
    documents = (json.dumps({"positive": text}) for text in corpus)
    others = write_lines(tmp_path / "corpus.jsonl", *documents)
    files = (f"--predict_file={file}", f"--corpus_file={others}", "--do_predict")
    embed(tmp_path / "mined", f"--model={trained[0]}/model", *files, *asked)
    options = dict(flag.removeprefix("--").split("=") for flag in asked)
    if "range_max" in options:
        by_hand = by_hand | {"range_max": int(options["range_max"])}
    expected = mined_by_hand(ringbert.Embedder(trained[0]), pairs, corpus, **by_hand)
    mined = tmp_path / "mined/mined.jsonl"
    rows = objects_in(mined)
    assert [row["query"] for row in rows] == [*expected]
    number = 0
    for row in rows:
        texts, cosines = expected[row["query"]]
        assert row["neg"] == texts
        np.testing.assert_allclose(row["neg_scores"], cosines, atol=1e-6)
        assert len(row["pos"]) == len(row["pos_scores"])
        number += len(texts)
    assert number > 30
    said = capsys.readouterr().err
    assert f"mined.jsonl: {number} hard negatives of {len(rows)} queries" in said
    assert not (tmp_path / "mined/vectors.npy").exists()
    pairs_read = read(Source(PairSettings(train_file=str(mined)), "train"))
    assert len(pairs_read.rows) == len(pairs)
    assert sum(len(row) - 2 for row in pairs_read.rows) >= number


def test_negatives_by_chance_are_some_of_those_in_range(trained, tmp_path):
    pairs = make_pairs(30, 5)
    file = write_lines(tmp_path / "pairs.jsonl", *map(json.dumps, pairs))
    flags = (f"--model={trained[0]}/model", f"--predict_file={file}", "--do_predict")
    flags += ("--num_negatives=4", "--range_max=8")
    found = []
    for name, *more in (("top",), ("one", "--seed=1"), ("same", "--seed=1"), ("two", "--seed=2")):
        by_chance = ["--sampling_strategy=random"] if more else []
        embed(tmp_path / name, *flags, *by_chance, *more)
        found.append([row["neg"] for row in objects_in(tmp_path / name / "mined.jsonl")])
    top, one, same, two = found
    assert one == same
    assert one != two
    assert one != top
    expected = mined_by_hand(ringbert.Embedder(trained[0]), pairs, [], 8, range_max=8)
    for row, (texts, _) in zip(one, expected.values(), strict=True):
        assert len(row) == 4
        assert [text for text in texts if text in row] == row


@pytest.mark.slow
def test_the_first_numbers_of_a_vector_are_trained_scored_kept_and_exported(tmp_path):
    model = save_model(tmp_path, "features")
    rows = make_pairs(24, 7)
    file = write_lines(tmp_path / "pairs.jsonl", *map(json.dumps, rows))
    flags = (f"--model={model}", "--do_train", "--do_eval", "--num_train_steps=1", "--log_steps=1")
    flags += (f"--train_file={file}", f"--dev_file={file}", "--train_batch_size=24")
    flags += ("--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0", "--dims=8,64,24")
    scores = embed(tmp_path / "run", *flags)
    (line,) = [line for line in metrics_in(tmp_path / "run") if "loss" in line]
    of_sizes = []
    for size in (64, 24, 8):
        embedder = ringbert.Embedder(model, normalize=True, truncate_dim=size)
        texts = [tuple(row.values()) for row in rows]
        of_sizes.append(loss_by_hand(texts, embedder, embedder, 0.05))
    assert line["loss"] == pytest.approx(sum(of_sizes), rel=1e-5)

    assert {name for name in scores if name.startswith("eval_ndcg")} == {
        "eval_ndcg@10",
        "eval_ndcg@10_24",
        "eval_ndcg@10_8",
    }
    folder = tmp_path / "run/model"
    evaluate = (f"--model={folder}", f"--dev_file={file}", "--do_eval", "--truncate_dim=8")
    predict = ("--do_predict", f"--predict_file={file}")
    shorter = embed(tmp_path / "shorter", *evaluate, *predict)
    assert shorter["eval_mrr@10"] == pytest.approx(scores["eval_mrr@10_8"])

    texts = [row["anchor"] for row in rows]
    whole = ringbert.Embedder(folder)(texts)
    expected = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    embedder = ringbert.Embedder(folder, truncate_dim=8)
    np.testing.assert_allclose(embedder(texts), expected, atol=1e-6)
    np.testing.assert_allclose(np.load(tmp_path / "shorter/vectors.npy"), expected, atol=1e-6)
    assert embedder([]).shape == (0, 8)
    plain = ringbert.Embedder(folder, truncate_dim=8, normalize=False)(texts)
    unnormalized = ringbert.Embedder(folder, normalize=False)(texts)
    np.testing.assert_allclose(plain, unnormalized[:, :8], atol=1e-6)

    ringbert.export(folder, tmp_path / "exported")
    exported = tf.saved_model.load(str(tmp_path / "exported")).signatures["ids"]
    tokenizer = AutoTokenizer.from_pretrained(f"{tmp_path}/exported/assets.extra")
    ids = tokenizer(texts[:1], return_tensors="np")
    found = exported(**{name: tf.constant(values, tf.int32) for name, values in ids.items()})
    assert set(found) == {"vector", "vector_24", "vector_8"}
    np.testing.assert_allclose(found["vector_8"], expected[:1], atol=1e-5)


def test_sizes_that_no_vector_has_are_refused(tmp_path, capsys):
    model = save_model(tmp_path, "features")
    file = write_lines(tmp_path / "pairs.jsonl", *map(json.dumps, make_pairs(4, 7)))
    flags = (f"--model={model}", "--do_train", f"--train_file={file}")
    for flag in ("--dims=128,8", "--truncate_dim=65"):
        limit = f"{flag.partition('=')[0]} must be at most the width of the model's vectors, 64"
        train = partial(embed, tmp_path / "out", *flags, flag)
        refusal(capsys, "bert-embedder", train, limit)
    refused(lambda: ringbert.Embedder(model, truncate_dim=65), "truncate_dim must be at most")
    for dims in ("a", "8,,4", "0"):
        found = parsing.refusal(capsys, "bert-embedder", "--output_dir=o", *flags, f"--dims={dims}")
        assert "--dims must be numbers" in found


def test_what_cannot_be_mined_is_one_line(capsys):
    flags = ("--output_dir=o", "--model=m", "--do_predict", "--predict_file=p")
    named = "--num_negatives must be at most --range_max - --range_min = 2, got 3"
    found = parsing.refusal(
        capsys, "bert-embedder", *flags, "--num_negatives=3", "--range_min=4", "--range_max=6"
    )
    assert named in found


def test_queries_may_be_shorter_than_documents(tmp_path):
    model = save_model(tmp_path, "features")
    embedder = ringbert.Embedder(model, max_query_length=4)
    whole = ringbert.Embedder(model)
    found = embedder("the red fox saw", "query")
    np.testing.assert_allclose(found, whole("the red"), atol=1e-6)
    np.testing.assert_array_equal(embedder("the red fox saw"), whole("the red fox saw"))


def test_a_text_alone_is_one_text_and_the_nearest_are_a_number(trained):
    embedder = ringbert.Embedder(trained[0])
    corpus = ["the cat", "a dog"]
    assert len(embedder.nearest("the cat", corpus)) == 1
    for top_k in (0, -1, "a", 2.0):
        refused(partial(embedder.nearest, "the cat", corpus, top_k=top_k), "top_k", repr(top_k))


def test_folders_with_other_modules_are_refused(tmp_path):
    for name, named, *arguments in (
        ("max", "max", "max"),
        ("dense", "Dense", "mean", "sentence_transformers.models.Dense"),
        ("several", "max", ["mean", "max"]),
    ):
        model = newer_folder(tmp_path / name, *arguments)
        refused(lambda model=model: ringbert.Embedder(model), named)
    model = newer_folder(tmp_path / "given", "max")
    assert np.isfinite(ringbert.Embedder(model, pooling="mean")("red fox")).all()
    for damaged in ("{}", "[3]", '[{"type": "Transformer"}]'):
        (model / "modules.json").write_text(damaged)
        refused(lambda: ringbert.Embedder(model), "modules.json")


AS_THEY_COME = [
    {"query": "a red fox", "pos": ["the fox", "red"], "neg": ["an axe", "saws"], "neg_scores": [1]},
    {"query": "the axe", "pos": "an axe"},
    {"query": "two saws", "pos": ["saws", " "], "neg": None, "pos_scores": [0.5, 0.5]},
    {"query": "", "pos": ["nothing"], "neg": ["a red fox"]},
    {"query": "a dull saw", "pos": ["", None], "neg": []},
    {"query": "an old dog", "pos": ["the dog"], "neg": ["", "a red fox", "the axe", "a cat"]},
]
# a row with two positives is two pairs
ROWS_OF_THESE = [
    ("a red fox", "the fox", "an axe", "saws"),
    ("a red fox", "red", "an axe", "saws"),
    ("the axe", "an axe"),
    ("two saws", "saws"),
    ("an old dog", "the dog", "a red fox", "the axe", "a cat"),
]


def test_lists_of_any_length_are_read_from_lines_parquet_and_memory(tmp_path):
    """With what is empty counted, and a miner's scores no part of the loss."""
    file = write_lines(tmp_path / "train.jsonl", *map(json.dumps, AS_THEY_COME))
    with_lists = [
        row | {"pos": [row["pos"]] if isinstance(row["pos"], str) else row["pos"]}
        for row in AS_THEY_COME
    ]
    in_memory = file_of(with_lists, "train_file")
    for path in (file, in_memory):
        pairs = read(Source(PairSettings(train_file=str(path)), "train"))
        assert (pairs.rows, pairs.scores) == (ROWS_OF_THESE, None)
        assert dict(pairs.counts) == {
            "empty texts in lists of pos left out": 3,
            "empty texts in lists of neg left out": 1,
            "rows without query left out": 1,
            "rows without pos left out": 1,
        }
        assert pairs.notes == ["pos_scores, neg_scores: a miner's scores, which no loss here reads"]
    few = PairSettings(train_file=str(file), max_train_examples=3)
    assert read(Source(few, "train")).rows == ROWS_OF_THESE[:3]


def test_a_column_of_lists_of_scores_is_no_score_unless_it_is_named(tmp_path):
    rows = [{"anchor": text, "positive": f"{text}!", "score": [0.9, 0.1]} for text in "ab"]
    file = write_lines(tmp_path / "mined.jsonl", *map(json.dumps, rows))
    settings = PairSettings(train_file=str(file))
    pairs = read(Source(settings, "train"))
    assert pairs.scores is None
    assert pairs.notes == ["score: lists of a miner's scores, which no loss here reads"]
    named = replace(settings, score_column="score")
    refused(lambda: read(Source(named, "train")), "line 1", "score must be a number")


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"query": ["a"], "pos": "b"}, ["line 2", "query must be a text, got"]),
        ({"query": "a", "pos": 3}, ["line 2", "pos must be a text or a list of texts"]),
        ({"query": "a", "pos": "b", "neg": ["c", 1]}, ["line 2", "neg must be"]),
    ],
)
def test_cells_that_hold_no_texts_are_refused(row, named, tmp_path):
    file = write_lines(tmp_path / "train.jsonl", json.dumps(AS_THEY_COME[0]), json.dumps(row))
    refused(lambda: read(Source(PairSettings(train_file=str(file)), "train")), *named)


def test_the_loss_of_unequal_rows_is_that_of_numpy_and_the_plan_names_it(tmp_path, capsys):
    """One step without dropout, of all rows, from a model whose vectors are known."""
    model = save_model(tmp_path, "features")
    file = write_lines(tmp_path / "train.jsonl", *map(json.dumps, AS_THEY_COME))
    flags = (f"--model={model}", f"--train_file={file}", "--do_train", "--num_train_steps=1")
    flags += ("--train_batch_size=5", "--hidden_dropout_prob=0", "--log_steps=1")
    flags += ("--attention_probs_dropout_prob=0", "--temperature=0.2")
    embed(tmp_path / "run", *flags)
    said = capsys.readouterr().err
    loss = "each anchor chooses its positive, in the global batch (temperature 0.2), because no"
    assert f"loss: {loss} pair has a score" in said
    assert "hard negatives in 3 pairs, at most 3 in one, 3 empty texts in lists of pos" in said
    with pytest.raises(SystemExit):
        embed(tmp_path / "new", *flags, "--plan")
    planned = capsys.readouterr()
    (plan,) = json.loads(planned.out)
    assert loss in planned.err
    assert loss in plan["loss"]

    embedder = ringbert.Embedder(model, normalize=True)
    (line,) = [line for line in metrics_in(tmp_path / "run") if "loss" in line]
    expected = loss_by_hand(ROWS_OF_THESE, embedder, embedder, 0.2)
    assert line["loss"] == pytest.approx(expected, rel=1e-5)


def test_empty_texts_have_vectors_in_their_places_and_are_counted(tmp_path, capsys):
    model = save_model(tmp_path, "features")
    texts = ["red fox", "", "an axe", " "]
    file = write_lines(tmp_path / "texts.jsonl", *(json.dumps({"anchor": text}) for text in texts))
    embed(tmp_path / "run", f"--model={model}", "--do_predict", f"--predict_file={file}")
    assert "2 empty texts" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="2 of 4 items in texts have an empty text"):
        found = ringbert.Embedder(model)(texts)
    np.testing.assert_allclose(np.load(tmp_path / "run/vectors.npy"), found, atol=1e-6)
    np.testing.assert_array_equal(found[1], found[3])


@pytest.mark.slow
def test_scores_are_learned_and_measured(data, tmp_path):
    """Pairs whose score is the share of words that they have in common."""
    lines = []
    for pair in make_pairs(400, 3):
        one, other = (set(pair[name].split()) for name in ("anchor", "negative"))
        lines.append({"a": pair["anchor"], "b": pair["negative"], "how": 4 * len(one & other) / 2})
        lines.append({"a": pair["anchor"], "b": pair["positive"], "how": 4.0})
    write_lines(tmp_path / "train.jsonl", *map(json.dumps, lines[:700]))
    write_lines(tmp_path / "dev.jsonl", *map(json.dumps, lines[700:]))
    columns = ("--anchor_column=a", "--positive_column=b", "--score_column=how", "--score_scale=4")
    files = (f"--train_file={tmp_path}/train.jsonl", f"--dev_file={tmp_path}/dev.jsonl")
    given = (*model_flags(data), *files, *columns, *LEARN, "--do_eval", "--load_best_model_at_end")
    scores = embed(tmp_path / "run", *given)
    assert scores["eval_spearman"] > 0.5
    embedder = ringbert.Embedder(tmp_path / "run")
    one, other = ([line[name] for line in lines[700:]] for name in ("a", "b"))
    cosines = np.diag(embedder.similarities(one, other))
    expected = spearmanr(cosines, [line["how"] for line in lines[700:]]).statistic
    assert scores["eval_spearman"] == pytest.approx(expected, abs=1e-3)
    _, worst = read_json(tmp_path / "run/result.json")["report"]
    assert worst["columns"] == ["anchor", "positive", "score", "cosine"]
    errors = [abs(score - cosine) for *_, score, cosine in worst["rows"]]
    assert errors == sorted(errors, reverse=True)
    assert len(errors) == 12


def test_ranks_are_those_of_scikit_learn():
    chance = np.random.default_rng(0)
    queries, documents = chance.normal(size=(20, 4)), chance.normal(size=(30, 4))
    relevant = [chance.permutation(30)[: 1 + row % 3] for row in range(20)]
    ranks = ranks_of_relevant(queries, documents, relevant, [-1] * 20)
    gains = np.zeros((20, 30))
    for row, places in enumerate(relevant):
        gains[row, places] = 1
    products = queries @ documents.T
    scores = search_scores(ranks)
    assert scores["ndcg@10"] == pytest.approx(ndcg_score(gains, products, k=10))
    order = np.argsort(-products, axis=1)
    firsts = [np.flatnonzero(gains[row][order[row]])[0] for row in range(20)]
    reciprocal = [1 / (first + 1) if first < 10 else 0 for first in firsts]
    assert scores["mrr@10"] == pytest.approx(np.mean(reciprocal))
    recall = np.mean([gains[row][order[row][:10]].sum() / gains[row].sum() for row in range(20)])
    assert scores["recall@10"] == pytest.approx(recall)


def test_of_equal_scores_the_irrelevant_ones_count_before():
    """scikit-learn's NDCG of the worst order of equal scores; among relevant ones any is as good.
    NaN is the worst score of all."""
    chance = np.random.default_rng(3)
    values = chance.integers(0, 3, size=(40, 25)).astype(float)
    gains = chance.random((40, 25)) < 0.2
    gains[:, 0] = True
    values[::4, 0] = np.nan
    relevant = [np.flatnonzero(row) for row in gains]
    scores = search_scores([ranks_of(*row) for row in zip(values, relevant, strict=True)])
    worst = np.nan_to_num(values, nan=-1) - 1e-6 * gains
    expected = ndcg_score(gains, worst, k=10, ignore_ties=True)
    assert scores["ndcg@10"] == pytest.approx(expected)
    order = np.argsort(-worst, axis=1)
    hits = np.take_along_axis(gains, order, axis=1)
    firsts = hits.argmax(1)
    assert scores["mrr@10"] == pytest.approx(np.mean((firsts < 10) / (1 + firsts)))
    recall = hits[:, :10].sum(1) / gains.sum(1)
    assert scores["recall@10"] == pytest.approx(recall.mean())
    perfect = ranks_of(np.array([1.0, 1.0, 0.0]), np.array([0, 1]))
    assert search_scores([perfect])["mrr@10"] == 1


def test_a_pair_of_equal_texts_finds_itself(data, tmp_path):
    """As in sentence-transformers' evaluator, which leaves no document out; the anchor of another
    pair, though it is a document, is left out of its own search."""
    model = save_model(tmp_path, "features")
    rows = [{"anchor": text, "positive": text} for text in ALL_WORDS[:4]]
    rows.append({"anchor": "the saw", "positive": "the saw near the axe"})
    rows.append({"anchor": "two foxes", "positive": "the saw"})
    write_lines(tmp_path / "dev.jsonl", *map(json.dumps, rows))
    flags = (f"--model={model}", f"--dev_file={tmp_path}/dev.jsonl", "--do_eval")
    embed(tmp_path / "run", *flags)
    report = {line["anchor"]: line["rank"] for line in objects_in(tmp_path / "run/mistakes.jsonl")}
    assert not report.keys() & {*ALL_WORDS[:4]}


@pytest.mark.parametrize(
    ("lines", "more", "named"),
    [
        (["texts,positive", "a,b"], (), ["--train_file", "'anchor|query|text'"]),
        (["anchor,positive", "a,b"], (), ["--train_file", "1 pairs"]),
        (["anchor,positive", "a,b", "c,"], (), ["1 pairs", "1 rows without positive left out"]),
        (["anchor,positive", "a,b", "c,d"], ("--train_batch_size=1",), ["--train_batch_size"]),
        (["anchor,positive,score", "a,b,1", "c,d,2"], (), ["line 3", "--score_scale"]),
        (["anchor,positive,score", "a,b,x", "c,d,2"], (), ["line 2", "score"]),
        (
            ["anchor,positive,score", "a,b,1"],
            ("--score_column=scor",),
            ["--score_column", "'score'"],
        ),
        (["anchor,positive", "a,b"], ("--negative_columns=hard",), ["--negative_columns", "hard"]),
    ],
)
def test_bad_pairs_are_one_line(lines, more, named, data, tmp_path, capsys):
    write_lines(tmp_path / "train.csv", *lines)
    flags = (*model_flags(data), f"--train_file={tmp_path}/train.csv", "--do_train", *more)
    refusal(capsys, "bert-embedder", lambda: embed(tmp_path / "out", *flags), *named)
    assert not (tmp_path / "out").exists() or not [*(tmp_path / "out").iterdir()]


@pytest.mark.parametrize("flag", ["predict_file=mine.csv", "anchor_column=a", "dataset_name=d"])
def test_what_a_named_task_has_itself_cannot_be_given(flag, capsys):
    flags = "--output_dir=o", "--task_name=sts-b", "--data_dir=glue", "--do_train", f"--{flag}"
    parsing.refusal(capsys, "bert-embedder", *flags).index(f"--{flag.partition('=')[0]} is for")


def test_scores_beside_hard_negatives_are_said(data, tmp_path, capsys):
    rows = ["anchor,positive,negative,score", "the cat,a cat,a saw,0.9", "a saw,the saw,a cat,0.8"]
    write_lines(tmp_path / "train.csv", *rows)
    flags = (*model_flags(data), f"--train_file={tmp_path}/train.csv", "--do_train")
    embed(tmp_path / "out", *flags, "--num_train_steps=1", "--train_batch_size=2", "--both_ways")
    said = capsys.readouterr().err
    assert "scores and hard negatives: the scores are trained on" in said
    assert "note: --both_ways changes nothing: the pairs have scores" in said


def test_a_missing_file_of_a_named_task_is_one_line(data, tmp_path, capsys):
    flags = (*model_flags(data), "--task_name=STS-B", f"--data_dir={tmp_path}", "--do_train")
    line = refusal(
        capsys, "bert-embedder", lambda: embed(tmp_path / "out", *flags), "--task_name STS-B"
    )
    assert "--train_file" not in line


def test_short_rows_of_published_files_are_left_out(tmp_path):
    rows = ["sentence1\tsentence2\tscore", "a\tb\t5.0", "c\td", "e\tf\t2.5"]
    write_lines(tmp_path / "dev.tsv", *rows)
    given = PairSettings(task_name="sts-b", data_dir=str(tmp_path), score_column="gold")
    settings = files_and_columns(given)  # the task's columns
    pairs = read(Source(settings, "dev"))
    assert (pairs.rows, pairs.scores) == ([("a", "b"), ("e", "f")], [1.0, 0.5])


@pytest.mark.slow
def test_shapes_that_xla_compiles_give_the_same_training(flags, tmp_path):
    """Rows of attention in fixed groups, of texts and not of pairs; one micro-batch and several."""
    few = (*flags, "--do_train", "--num_train_steps=4", "--learning_rate=1e-3", "--log_steps=1")
    losses = []
    for number, more in enumerate(
        ((), ("--xla=on",), ("--xla=on", "--gradient_accumulation_steps=2"), ("--packing=off",))
    ):
        embed(tmp_path / str(number), *few, "--global_batch_size=16", *more)
        losses.append([line["loss"] for line in metrics_in(tmp_path / str(number))])
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], rtol=1e-4)
