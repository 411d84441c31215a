"""Answers, labels and vectors from Python and bert-ask are those of the programs; refusals name the
argument."""

import io
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial

import fsspec
import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from harness.classifier_runs import COLUMNS, TEST, classify, table_in, write_rows
from harness.models import save_model
from harness.program_runs import bert, files_in, in_process, objects_in, refusal
from harness.refusals import refused
from harness.squad_files import make_entries, write_squad
from harness.texts import write_lines

import ringbert
from ringbase.files import read_json, write_json
from ringbert import ask

LABELS = ("tool", "animal", "colour")
LENGTHS = {"max_seq_length": 40, "doc_stride": 12, "max_query_length": 16}
VERSION_2 = {"version_2_with_negative": True, "null_score_diff_threshold": -2.0}
NAN = float("nan")


@pytest.fixture(scope="module")
def span_model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("span"), "span")


@pytest.fixture(scope="module")
def label_model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("label"), "classifier", labels=LABELS)


@pytest.fixture(scope="module")
def vector_model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("vector"), "features")


def warned(call, match):
    """What the call returns; its one warning names the line of the user's that called."""
    with pytest.warns(UserWarning, match=match) as caught:
        result = call()
    assert [warning.filename for warning in caught] == [__file__]
    return result


def labelled(folder, model, columns, rows, *flags):
    """Labels a file of these rows, by the program."""
    write_rows(folder / "test.tsv", columns, rows)
    argv = (f"--model={model}", f"--predict_file={folder}/test.tsv", "--do_predict")
    classify(folder / "out", *argv, *flags)


@pytest.mark.parametrize(
    "settings", [LENGTHS, LENGTHS | VERSION_2], ids=["always answers", "may have no answer"]
)
def test_answers_are_those_of_bert_squad(span_model, tmp_path, settings):
    """The same answers, candidates, probabilities and null odds, to the last bit. Contexts have one
    to three windows, and the threshold lies between the questions' null odds."""
    entries = make_entries(12, 5)
    file = write_squad(tmp_path / "dev.json", entries)
    flags = [f"--{name}={value}" for name, value in settings.items()]
    flags += [f"--model={span_model}", f"--predict_file={file}", "--do_predict"]
    bert("squad", tmp_path, *flags)
    predictions = read_json(tmp_path / "predictions.json")
    nbest = read_json(tmp_path / "nbest_predictions.json")
    may_have_none = "version_2_with_negative" in settings
    null_odds = read_json(tmp_path / "null_odds.json") if may_have_none else {}
    answers = ringbert.QuestionAnswering(span_model, **settings)
    contexts, questions = [entry[0] for entry in entries], [entry[1] for entry in entries]
    found = answers(questions, contexts, top_k=20)
    for listed, context, (id_, prediction) in zip(
        found, contexts, predictions.items(), strict=True
    ):
        entries = {entry["text"]: entry for entry in nbest[id_]}
        # with the null answer there may be 21 in all
        others = [text for text in entries if text != prediction]
        assert [answer.text for answer in listed] == [prediction, *others[:19]]
        for answer in listed:
            entry = entries[answer.text]
            assert answer.text == context[answer.start : answer.end]
            assert answer.probability == entry["probability"]
            assert answer.score == entry["start_logit"] + entry["end_logit"]
            assert answer.null_odds == null_odds.get(id_)
    assert sum(not listed[0].text for listed in found) in (range(1, 12) if null_odds else [0])
    # In other forms the question has other neighbours in its batch, and so other roundings.
    best, question, context = found[0][0], questions[0], contexts[0]
    for one in [
        answers(question, context),
        *answers([question], context),
        *answers(question, contexts[:1]),
        *answers(question, context, top_k=1),
    ]:
        assert (one.text, one.start, one.end) == (best.text, best.start, best.end)
        assert one.probability == pytest.approx(best.probability, rel=1e-4)


def test_a_model_for_other_predictions_is_refused(span_model, label_model, tmp_path, capsys):
    """A tagger's outputs have the names and shapes of a classifier's. A TensorFlow checkpoint says
    nothing of its kind, and any model has features."""
    tagger = save_model(tmp_path, "tagger", labels=("O", "S-X"))
    embedder = save_model(tmp_path / "embedder", "features")  # as sentence-transformers' folders
    write_json(embedder / "modules.json", [])
    for predictor, model, *named in (
        (ringbert.Tagger, label_model, "text-classification", "ringbert.Classifier"),
        (ringbert.Embedder, label_model, "text-classification", "bert-classifier"),
        (ringbert.Classifier, tagger, "token-classification", "ringbert.Tagger"),
        (ringbert.QuestionAnswering, tagger, "token-classification", "bert-tagger"),
        (ringbert.Classifier, span_model, "question-answering", "bert-squad"),
        (ringbert.QuestionAnswering, embedder, "sentence-similarity", "ringbert.Embedder"),
    ):
        refused(lambda: predictor(model), model, *named)  # noqa: B023
    assert len(ringbert.Features(label_model)("the red fox").pooled)
    file = write_lines(tmp_path / "test.txt", "the tool", "fox animal")
    predicts = ("--do_predict", f"--predict_file={file}", f"--model={label_model}")
    run = partial(bert, "tagger", tmp_path / "out", *predicts)
    refusal(capsys, "bert-tagger", run, label_model, "text-classification", "bert-classifier")


def test_an_unknown_argument_is_answered_as_a_flag_is(label_model):
    known = refused(lambda: ringbert.Classifier(label_model, max_length=12), "max_seq_length")
    assert known == "unknown argument max_length; it is max_seq_length here"
    none = refused(lambda: ringbert.Classification(colour=1, output_dir="out"), "colour")
    assert none == "unknown argument colour; help() of its class lists all arguments"


def test_a_folder_of_several_seeds_names_its_models(label_model, tmp_path):
    for seed in 1, 2:
        shutil.copytree(label_model, tmp_path / f"seed-{seed}/model")
    refused(lambda: ringbert.Classifier(tmp_path), tmp_path, "seed-1/model")


def test_results_are_json(span_model, label_model, tmp_path):
    regression = save_model(tmp_path / "r", "classifier", problem_type="regression", labels=("L",))
    tagger = save_model(tmp_path / "t", "tagger", labels=("O", "S-X"))
    text = "the red fox"
    answer = ringbert.QuestionAnswering(span_model)("the tool", text)
    label = ringbert.Classifier(label_model)(text)
    number = ringbert.Classifier(regression)(text)
    entities = ringbert.Tagger(tagger)(text)
    assert number.probability is None
    for result in answer, label, number, *entities:
        read = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        names = [field.name for field in fields(result)]
        assert list(read) == names
        for name in names:
            value = getattr(result, name)
            assert read[name] == (list(value) if isinstance(value, tuple) else value)
    vectors = ringbert.Features(label_model)(text).to_dict()
    assert json.loads(json.dumps(vectors))["tokens"][0] == "[CLS]"
    assert len(vectors["vectors"]) == len(vectors["tokens"])


def test_questions_without_known_words(span_model):
    answers = ringbert.QuestionAnswering(span_model, **LENGTHS)
    warned(lambda: answers("모르는 글자", "완전히 다른 말로 된 문장"), r"\[UNK\]")
    # characters without a token
    assert answers("the tool", "\u200b\u00ad") == ringbert.Answer("", 0, 0, 0.0, 0.0)


def test_labels_are_those_of_bert_classifier(label_model, tmp_path):
    """A model of pairs warns of single texts."""
    pairs = [(e.first, e.second) for e in TEST]
    columns = ("--text_column=body", "--text_pair_column=more", "--max_seq_length=12")
    labelled(tmp_path, label_model, COLUMNS[:2], pairs, *columns)
    shutil.copytree(label_model, tmp_path / "run/model")
    config = {"task_name": "mrpc", "max_seq_length": 12}
    write_json(tmp_path / "run/run.json", {"config": config})
    classifier = ringbert.Classifier(tmp_path / "run")
    found = warned(lambda: classifier(pairs), "max_seq_length 12")
    written = np.loadtxt(tmp_path / "out/test_results.tsv").tolist()
    assert [one.probabilities for one in found] == [
        dict(zip(LABELS, row, strict=True)) for row in written
    ]
    labels = [row[1] for row in table_in(tmp_path / "out/predictions.tsv")[1:]]
    assert [one.label for one in found] == labels
    assert [one.probability for one in found] == [*map(max, written)]
    mixed = [("the red fox", "two dull axe"), "the red fox"]
    assert len(warned(lambda: classifier(mixed), "pairs of texts")) == 2


def test_a_regression_gives_values(tmp_path):
    model = save_model(tmp_path, "classifier", problem_type="regression", labels=("LABEL_0",))
    labelled(tmp_path, model, ["text"], [[e.first] for e in TEST], "--regression")
    found = ringbert.Classifier(model)([e.first for e in TEST])
    assert [one.value for one in found] == np.loadtxt(tmp_path / "out/test_results.tsv").tolist()
    assert (found[0].label, found[0].probabilities) == (str(found[0].value), {})


def test_vectors_are_those_of_bert_features(span_model, tmp_path):
    """The program rounds to six decimals, and its batches are others: 1e-5 in all."""
    items = [
        ("the red fox near a saw", "two axe and drill"),
        "cat",
        "grey hare and pink crow by the rake",
    ]
    lines = [item if isinstance(item, str) else " ||| ".join(item) for item in items]
    source = write_lines(tmp_path / "lines.txt", *lines)
    files = (f"--input_file={source}", f"--output_file={tmp_path}/out.jsonl")
    in_process("features", tmp_path, *files, f"--model={span_model}", "--layers=-1")
    written = [line["features"] for line in objects_in(tmp_path / "out.jsonl")]
    vectors = ringbert.Features(span_model)
    found = vectors(items)
    for one, expected, item in zip(found, written, items, strict=True):
        assert list(one.tokens) == [token["token"] for token in expected]
        values = [token["layers"][0]["values"] for token in expected]
        np.testing.assert_allclose(one.vectors, values, rtol=0, atol=1e-5)
        np.testing.assert_allclose(one.pooled, one.vectors.mean(0), rtol=1e-6)
        parts = iter(item if isinstance(item, tuple) else (item,))
        text = next(parts)
        for token, (start, end) in zip(one.tokens[1:], one.offsets[1:].tolist(), strict=True):
            assert (token, start, end) == ("[SEP]", 0, 0) or token.removeprefix("##") == text[
                start:end
            ]
            text = next(parts, "") if token == "[SEP]" else text
    short = ringbert.Features(span_model, max_seq_length=6)
    cut = warned(lambda: short(items[0]), "max_seq_length 6")
    assert len(cut.offsets) == len(cut.tokens) == 6
    np.testing.assert_array_equal(vectors.pooled(items), [one.pooled for one in found])
    first = ringbert.Features(span_model, pooling="cls")(items)
    np.testing.assert_array_equal([one.pooled for one in first], [one.vectors[0] for one in first])
    warned(lambda: vectors.pooled("cat " * 200), "max_seq_length 128")


def test_a_runs_folder_gives_its_settings_and_the_users_come_first(span_model, goldens, tmp_path):
    """In model/, in a checkpoint, or in the newest of the checkpoints."""
    out, alone = tmp_path / "out", tmp_path / "alone"
    for name in ("out/model", "alone/checkpoints/rows-000000000032"):
        shutil.copytree(span_model, tmp_path / name)
    config = LENGTHS | VERSION_2 | {"n_best_size": 5, "learning_rate": 1.0}
    for run, folder in (
        (out, out),
        (out, str(out / "model")),
        (alone, alone / "checkpoints/rows-000000000032"),
    ):
        write_json(run / "run.json", {"config": config})
        settings = ringbert.QuestionAnswering(folder, n_best_size=7).settings
        assert (settings.n_best_size, settings.max_seq_length, settings.doc_stride) == (7, 40, 12)
        assert settings.version_2_with_negative
    interrupted = ringbert.QuestionAnswering(goldens / "runs/squad/interrupted")
    assert interrupted.settings.max_query_length == 12
    # as of a training on corpora
    (out / "run.json").write_text('{"config": {"max_seq_length": null}}')
    assert ringbert.Features(out).settings.max_seq_length == 128  # the model's positions
    # the default is 384
    assert ringbert.QuestionAnswering(span_model).settings.max_seq_length == 128
    (out / "run.json").write_text('{"config": {"max_seq_length": "40"}}')
    refused(lambda: ringbert.QuestionAnswering(out), "max_seq_length", "'40'")


def test_threads_two_predictors_and_the_keras_policy(label_model):
    before, items = keras.config.dtype_policy().name, [e.first for e in TEST]
    rough = ringbert.Classifier(label_model, precision="bf16")
    exact = ringbert.Classifier(label_model)
    assert keras.config.dtype_policy().name == before
    alone = [exact(item) for item in items]
    rounding = [
        one.probability - other.probability for one, other in zip(rough(items), alone, strict=True)
    ]
    assert 1e-6 < np.abs(rounding).max() < 0.02
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(exact, items)) == alone


def test_frames_of_labels_have_the_index_of_the_texts(label_model, monkeypatch):
    classifier, items = ringbert.Classifier(label_model), [e.first for e in TEST]
    data = pandas.DataFrame({"text": items}).sample(frac=0.5, random_state=1)
    frame, found = classifier.frame(data.text), classifier([*data.text])
    shares = [f"probabilities_{label}" for label in LABELS]
    assert list(frame) == ["text", "label", "probability", "labels", *shares]
    assert frame.index.equals(data.index)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pandas", None)
        refused(lambda: classifier.frame(items), "pandas", "pip install")
    assert frame.text.equals(data.text)
    assert list(frame.label) == [one.label for one in found]
    assert list(frame.probability) == [one.probability for one in found]
    values = [[*one.probabilities.values()] for one in found]
    assert frame[shares].to_numpy().tolist() == values
    assert classifier.frame("the cat").index.tolist() == [0]
    mixed = classifier.frame(iter([("the cat", "a saw"), "the cat"]))
    assert mixed.text_pair.isna().tolist() == [False, True]
    refused(lambda: classifier.frame(data), "texts")
    warned(lambda: classifier.frame("cat " * 200), "max_seq_length 128")


def test_frames_of_numbers_and_of_vectors(tmp_path, span_model):
    """Of a regression there are no probabilities."""
    model = save_model(tmp_path, "classifier", problem_type="regression", labels=("LABEL_0",))
    texts = [e.first for e in TEST]
    frame = ringbert.Classifier(model).frame(texts)
    assert list(frame) == ["text", "label", "value", "labels"]
    assert list(frame.value) == [one.value for one in ringbert.Classifier(model)(texts)]
    vectors = ringbert.Features(span_model)
    np.testing.assert_array_equal(np.stack(vectors.frame(texts).pooled), vectors.pooled(texts))


def test_frames_of_entities_repeat_the_index_of_their_text(tmp_path):
    """As pandas' explode does."""
    labels = ("O", "B-PER", "B-LOC")
    tagger = ringbert.Tagger(save_model(tmp_path, "tagger", labels=labels))
    series = pandas.Series([e.first for e in TEST], index=range(100, 100 + len(TEST)))
    frame = tagger.frame(series)
    expected = pandas.Series(tagger([*series]), index=series.index).explode().dropna()
    assert len(frame) > 0
    assert frame.index.equals(expected.index)
    for name in ("text", "label", "start", "end", "probability"):
        assert list(frame[name]) == [getattr(entity, name) for entity in expected]
    nothing = warned(lambda: tagger.frame(["", " "]), "2 of 2 items")
    assert (len(nothing), list(nothing)) == (0, list(frame))


@pytest.fixture
def store(goldens, cache):
    """Runs of bert-classifier in a store."""
    store = fsspec.filesystem("memory")
    store.put(str(goldens / "runs/classifier"), "/bucket", recursive=True)
    (checkpoint,) = store.glob("/bucket/interrupted/checkpoints/*")[-1:]
    store.copy(checkpoint, "/bucket/finished/checkpoints/rows-1", recursive=True)
    yield "memory://bucket"
    store.store.clear()


def test_models_in_a_store(store, cache, goldens, tmp_path):
    """Of a run its model/ alone is copied; before there is one, its newest checkpoint is used."""
    pairs, runs = [("the cat", "a saw"), ("two red", "axe")], goldens / "runs/classifier"
    classifier = ringbert.Classifier(f"{store}/finished")
    assert classifier(pairs) == ringbert.Classifier(runs / "finished")(pairs)
    (copy,) = (cache / "remote").iterdir()
    assert files_in(copy) == files_in(runs / "finished/model")
    # with task.json, the settings of the run
    assert classifier.settings == ringbert.Classifier(runs / "finished").settings
    assert ringbert.Classifier(f"{store}/finished/model/").labels == classifier.labels
    unfinished = ringbert.Classifier(f"{store}/interrupted/")
    assert unfinished(pairs) == ringbert.Classifier(runs / "interrupted")(pairs)
    ringbert.export(f"{store}/finished", tmp_path / "exported")
    assert (tmp_path / "exported/saved_model.pb").is_file()
    absent = f"{store}/absent"
    for call in (ringbert.Classifier, lambda name: ringbert.export(name, tmp_path / "more")):
        assert "--" not in refused(lambda call=call: call(absent), f"folder {absent}")


def test_texts_that_are_refused(span_model, label_model):
    answers, labels = ringbert.QuestionAnswering(span_model), ringbert.Classifier(label_model)
    refused(lambda: answers(" \n", "c"), "question")
    refused(lambda: answers("q", NAN), "context", "nan")
    refused(lambda: answers(["q", "q"], ["c"]), "question", "2", "context", "1")
    refused(lambda: answers([("q", "c")], "c"), "question[0]", "('q', 'c')")
    refused(lambda: answers("q", "\ud800"), "context", "\\ud800")
    assert labels([]) == []
    assert len(warned(lambda: labels(["a", " "]), "1 of 2 items in texts")) == 2
    for nothing in (None, NAN, pandas.NA):
        refused(lambda one=nothing: labels(["a", one]), f"texts[1] is {nothing}: ", "not empty")
    refused(lambda: labels(["a", ("b", None)]), "texts[1] is ('b', None): ")
    refused(lambda: answers(["q", None], "c"), "question[1] is None: ")
    refused(lambda: labels(["a", ("b", 3)]), "texts[1]", "3")
    refused(lambda: labels({"text": "a"}), "texts", "{")


TEXTS = ["the red cat", "two dull hours", "a dog"]
CONTAINERS = {
    "tuple": tuple,
    "array": np.array,
    "generator": iter,
    "shuffled series": lambda texts: pandas.Series(texts, index=[2, 0, 1]),
    "filtered series": lambda texts: pandas.Series(["x", *texts], index=[5, 7, 9, 11]).iloc[1:],
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_texts_may_be_in_any_container(kind, span_model, label_model, vector_model):
    made = CONTAINERS[kind]
    labels, features = ringbert.Classifier(label_model), ringbert.Features(span_model)
    answers, embedder = ringbert.QuestionAnswering(span_model), ringbert.Embedder(vector_model)
    assert labels(made(TEXTS)) == labels(TEXTS)
    assert labels.frame(made(TEXTS)).text.tolist() == TEXTS
    assert answers("a cat", made(TEXTS)) == answers("a cat", TEXTS)
    np.testing.assert_array_equal(features.pooled(made(TEXTS)), features.pooled(TEXTS))
    np.testing.assert_array_equal(embedder(made(TEXTS)), embedder(TEXTS))
    # each text is its own nearest one
    found = embedder.nearest(made(TEXTS), made(TEXTS), top_k=1)
    assert [text for ((text, _),) in found] == TEXTS


def test_no_texts_have_no_results_and_one_may_be_a_corpus(span_model, vector_model, label_model):
    labels, features = ringbert.Classifier(label_model), ringbert.Features(span_model)
    answers, embedder = ringbert.QuestionAnswering(span_model), ringbert.Embedder(vector_model)
    width = embedder("a").size
    for nothing in ([], (), iter(()), pandas.Series([], dtype=object)):
        assert (labels(nothing), answers("a cat", nothing)) == ([], [])
    frame = labels.frame([])
    assert (len(frame), [*frame]) == (0, [*labels.frame(["a"])])
    assert (features([]), features.pooled([]).shape) == ([], (0, width))
    assert embedder([]).shape == (0, width)
    assert embedder.nearest(["a"], []) == [[]]
    assert embedder.nearest([], ["a"]) == []
    (((text, _),),) = embedder.nearest(["film"], "a fine film")
    assert text == "a fine film"
    for wrong in (None, 3, {"text": "a"}, pandas.DataFrame({"text": ["a"]})):
        refused(lambda one=wrong: labels(one), "texts must be")
        refused(lambda one=wrong: embedder.nearest(["a"], one), "corpus must be")


def test_folders_and_settings_that_are_refused(span_model, label_model, vector_model, tmp_path):
    def check(kind, folder, *named, **options):
        line = refused(lambda: kind(folder, **options), *named)
        assert "--" not in line  # flags are the programs'

    check(ringbert.QuestionAnswering, "nobody/nothing", "nobody/nothing", "HF_HUB_OFFLINE")
    check(ringbert.QuestionAnswering, tmp_path, tmp_path, "no config.json", "no model")
    check(ringbert.QuestionAnswering, vector_model, vector_model, "missing", "bert-squad trains")
    # before what its own settings say
    check(ringbert.QuestionAnswering, vector_model, "missing", max_seq_length=40)
    check(ringbert.QuestionAnswering, span_model, "precision", precision="fp8")
    check(ringbert.QuestionAnswering, span_model, "max_seq_length", "128", max_seq_length=129)
    named = ("max_seq_length", "max_query_length")
    check(ringbert.QuestionAnswering, span_model, *named, max_seq_length=40)
    check(ringbert.Features, span_model, "layer", "1", layer=1)
    check(ringbert.Features, span_model, "pooling", pooling="max")


@pytest.mark.parametrize("top_k", [0, -1, "a", 2.0, 21])
def test_numbers_of_answers_that_are_refused(span_model, top_k):
    answers = ringbert.QuestionAnswering(span_model, **LENGTHS)
    refused(lambda: answers("the animal", "a cat", top_k=top_k), "top_k", f"{top_k!r}")


def test_options_of_none_have_their_defaults(span_model):
    features = ringbert.Features(span_model, layer=None, pooling=None, precision=None)
    expected = ringbert.Features(span_model).pooled("the cat")
    np.testing.assert_array_equal(features.pooled("the cat"), expected)


def test_too_little_memory_is_one_line(label_model, monkeypatch):
    def exhausted(*_, **options):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    monkeypatch.setattr(tf.nn, "softmax", exhausted)  # which attention calls
    labels = ringbert.Classifier(label_model)
    refused(lambda: labels("the cat"), "out of memory", "batch_size")


def test_bert_ask_prints_lines_and_json(span_model, tmp_path, capsys, monkeypatch):
    """From a file and from standard input. An answer with a line's end must not begin a line of the
    output."""
    file, context = tmp_path / "context.txt", "the cat sat near a\nred fox and the dog"
    model, flags = str(span_model), [f"--{name}={value}" for name, value in LENGTHS.items()]
    file.write_text(context)
    answers = ringbert.QuestionAnswering(span_model, **LENGTHS)
    expected = answers("the animal", context, top_k=3)
    assert any("\n" in answer.text for answer in expected)
    ask.main([model, "the animal", str(file), *flags, "--top_k=3"])
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines == [[f"{a.probability:.4f}", a.text.replace("\n", " ")] for a in expected]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(context.encode())))
    ask.main(["--json", *flags, model, "the animal", "-"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["question"] == "the animal"
    assert [ringbert.Answer(**answer) for answer in printed["answers"]] == expected[:1]
    threshold = "--null_score_diff_threshold=-99"
    ask.main([model, "who?", str(file), *flags, "--version_2_with_negative", threshold])
    assert capsys.readouterr().out.endswith("\t(no answer)\n")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nothing.txt"], ["nothing.txt"]),
        (["-"], ["standard input", "line 1", "UTF-8"]),
        ([__file__, "--max_seq_length=999"], ["max_seq_length", "128"]),
    ],
)
def test_bad_input_of_bert_ask_is_one_line(span_model, words, named, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    refusal(capsys, "bert-ask", lambda: ask.main([str(span_model), "who?", *words]), *named)
