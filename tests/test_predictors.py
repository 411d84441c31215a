"""Answers, labels and vectors from Python are those of the programs, for every kind of folder; refusals name the
argument."""

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import texts
from classifier_runs import COLUMNS, TEST, classify, write_rows
from mpi import mpirun
from program_runs import in_process
from real_data import real
from squad_files import make_entries, write_squad

import ringbert
from ringbert.errors import InputError
from tasks import features
from tasks.squad import program as squad

LABELS = ("tool", "animal", "colour")
NUM_QUESTIONS = 12
LENGTHS = {"max_seq_length": 40, "doc_stride": 12, "max_query_length": 16}
VERSION_2 = {"version_2_with_negative": True, "null_score_diff_threshold": -2.0}


def save(folder: Path, head: str, **changes) -> Path:
    """A Hugging Face folder of a tiny BERT with this head and random weights."""
    from bert import configuration, weights
    from bert.model import Bert
    from bert.text import tokenizer

    texts.write_model(folder / "source", num_layers=1)
    words = tokenizer.load(str(folder / "source/vocab.txt"))
    config = configuration.config_from_file(folder / "source/bert_config.json")
    config = type(config).from_dict(config.to_dict() | changes)
    weights.save(Bert(config, head, seed=3), folder / "model", words)
    return folder / "model"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def span_model(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("span"), "span")


@pytest.fixture(scope="module")
def label_model(tmp_path_factory) -> Path:
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: n for n, name in enumerate(LABELS)}}
    return save(tmp_path_factory.mktemp("label"), "classifier", **names)


def flags_of(settings: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]


# -- questions ----------------------------------------------------------------------------------------------------


def answered(model: Path, file: Path, output_dir: Path, **settings) -> dict[str, dict]:
    """bert-squad's files about the questions of a file."""
    argv = [f"--model={model}", f"--predict_file={file}", "--do_predict", f"--output_dir={output_dir}"]
    in_process("bert-squad", squad.Config, squad.run_squad, output_dir, *argv, *flags_of(settings))
    names = ("predictions", "nbest_predictions", "null_odds")
    paths = {name: output_dir / f"{name}.json" for name in names}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def check_answers(found: list[list], pairs: list[tuple[str, str]], written: dict[str, dict]) -> None:
    """The same answers, candidates, probabilities and null odds, to the last bit."""
    assert len(found) == len(pairs) == len(written["predictions"])
    everything = zip(found, pairs, written["predictions"].items(), strict=True)
    for answers, (_, context), (id_, prediction) in everything:
        assert answers[0].text == prediction
        assert all(answer.text == context[answer.start : answer.end] for answer in answers)
        listed = {entry["text"]: entry for entry in written["nbest_predictions"][id_]}
        others = [text for text in listed if text != prediction]  # with the null answer there may be 21 in all
        assert [answer.text for answer in answers[1:]] == others[:19]
        assert [answer.probability for answer in answers] == [listed[a.text]["probability"] for a in answers]
        logits = [listed[a.text]["start_logit"] + listed[a.text]["end_logit"] for a in answers]
        assert [answer.score for answer in answers] == logits
        assert {answer.null_odds for answer in answers} == {written.get("null_odds", {}).get(id_)}


def test_answers_are_those_of_bert_squad(span_model, cache, tmp_path):
    """Contexts of one to three windows; with a threshold that lies between the questions' null odds."""
    entries = make_entries(NUM_QUESTIONS, 5)
    file = write_squad(tmp_path / "dev.json", entries)
    pairs = [(question, context) for context, question, *_ in entries]
    written = answered(span_model, file, tmp_path / "out", **LENGTHS, **VERSION_2)
    answers = ringbert.QuestionAnswering(span_model, **LENGTHS, **VERSION_2)
    found = answers(pairs, top_k=20)
    check_answers(found, pairs, written)
    assert 0 < sum(not listed[0].text for listed in found) < NUM_QUESTIONS
    # In other forms the same questions have other neighbours in their batch, and so other roundings.
    best = [listed[0] for listed in found]
    question, context = pairs[0]
    forms = [*answers(pairs), *answers([q for q, _ in pairs], [c for _, c in pairs])]
    forms += [answers(question, context), *answers([question], context), *answers(question, context, top_k=1)]
    for one, other in zip(forms, [*best, *best, *[best[0]] * 3], strict=True):
        assert (one.text, one.start, one.end) == (other.text, other.start, other.end)
        assert one.probability == pytest.approx(other.probability, rel=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_call_traces_or_compiles_again(span_model, precision):
    """Python runs the model's code while TensorFlow traces it, and not afterwards."""
    answers = ringbert.QuestionAnswering(span_model, **LENGTHS, precision=precision)
    model, traced = answers._trained.model, []
    states_of = model._states
    model._states = lambda *arguments: traced.append(1) or states_of(*arguments)
    for num_words in (1, 5, 11, 30, 60):
        answers("the tool", " ".join(["saw", "cat"] * num_words))
    answers(["the tool", "the animal"], "a cat sat near the saw")
    assert len(traced) == 1
    assert not model.compiles


@pytest.mark.slow
def test_version_1_always_answers(span_model, cache, tmp_path):
    entries = make_entries(NUM_QUESTIONS, 6)
    file = write_squad(tmp_path / "dev.json", entries)
    pairs = [(question, context) for context, question, *_ in entries]
    answers = ringbert.QuestionAnswering(span_model, **LENGTHS)
    check_answers(answers(pairs, top_k=20), pairs, answered(span_model, file, tmp_path / "out", **LENGTHS))
    with pytest.warns(UserWarning, match=r"100.0% of the tokens are \[UNK\]|% of the tokens are \[UNK\]"):
        answers("모르는 글자", "완전히 다른 말로 된 문장")
    nothing = answers("the tool", "\u200b\u00ad")  # characters without a token
    assert nothing == ringbert.Answer("", 0, 0, 0.0, 0.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_answers_about_real_questions(cache, tmp_path):
    """300 questions of SQuAD's dev set, with MiniLM and a random head; then the same one after the other."""
    from bert import configuration, weights
    from bert.model import Bert
    from bert.text import tokenizer

    minilm, file = real("minilm"), real("squad") / "dev-v1.1.json"
    bert = Bert(configuration.read_config(minilm), "span", seed=1)
    weights.load(bert, minilm, new=weights.HEAD_TENSORS["span"])
    weights.save(bert, tmp_path / "model", tokenizer.load(folder=minilm))
    limit = {"max_predict_examples": 300, "max_seq_length": 192, "doc_stride": 64}
    written = answered(tmp_path / "model", file, tmp_path / "out", **limit)
    data = json.loads(file.read_text())["data"]
    paragraphs = [paragraph for entry in data for paragraph in entry["paragraphs"]]
    pairs = [(qa["question"], p["context"]) for p in paragraphs for qa in p["qas"]][:300]
    answers = ringbert.QuestionAnswering(tmp_path / "model", max_seq_length=192, doc_stride=64)
    check_answers(answers(pairs, top_k=20), pairs, written)
    alone = [answers(question, context).text for question, context in pairs[:60]]
    assert alone == [written["predictions"][id_] for id_ in list(written["predictions"])[:60]]


# -- labels -------------------------------------------------------------------------------------------------------


def test_labels_are_those_of_bert_classifier(label_model, cache, tmp_path):
    write_rows(tmp_path / "test.tsv", COLUMNS[:2], [(e.first, e.second) for e in TEST])
    argv = (f"--model={label_model}", f"--predict_file={tmp_path}/test.tsv", "--do_predict", "--max_seq_length=12")
    classify(tmp_path / "out", *argv, "--text_column=body", "--text_pair_column=more")
    written = np.loadtxt(tmp_path / "out/test_results.tsv", delimiter="\t")
    classifier = ringbert.Classifier(label_model, max_seq_length=12)
    pairs = [(e.first, e.second) for e in TEST]
    with pytest.warns(UserWarning, match=r"\d+ of 50 texts are cut to max_seq_length 12 tokens") as caught:
        found = classifier(pairs)
    assert [warning.filename for warning in caught] == [__file__]  # the line of the user's that called
    assert [list(one.probabilities) for one in found] == [list(LABELS)] * len(TEST)
    assert np.array_equal([list(one.probabilities.values()) for one in found], written)
    labels = [line.split("\t")[1] for line in (tmp_path / "out/predictions.tsv").read_text().splitlines()[1:]]
    assert [one.label for one in found] == labels
    assert all(one.probability == max(one.probabilities.values()) for one in found)
    shortest = min(range(len(pairs)), key=lambda number: len(" ".join(pairs[number])))
    assert classifier(pairs[shortest]).probability == pytest.approx(found[shortest].probability, rel=1e-4)
    assert isinstance(classifier("the red fox"), ringbert.Prediction)


def test_a_model_of_pairs_warns_once_of_single_texts(label_model, tmp_path):
    shutil.copytree(label_model, tmp_path / "model")
    (tmp_path / "run.json").write_text('{"config": {"task_name": "mrpc"}}')
    classifier = ringbert.Classifier(tmp_path)
    classifier([("the red fox", "two dull axe")])
    with pytest.warns(UserWarning, match="the model was trained on pairs of texts: give tuples") as caught:
        classifier([("the red fox", "two dull axe"), "the red fox"])
    assert [warning.filename for warning in caught] == [__file__]
    classifier("the red fox")


@pytest.mark.slow
def test_a_regression_gives_values(cache, tmp_path):
    model = save(tmp_path, "classifier", problem_type="regression", id2label={0: "LABEL_0"})
    write_rows(tmp_path / "test.tsv", ["text"], [[e.first] for e in TEST])
    argv = (f"--model={model}", f"--predict_file={tmp_path}/test.tsv", "--do_predict", "--regression")
    classify(tmp_path / "out", *argv)
    written = np.loadtxt(tmp_path / "out/test_results.tsv")
    classifier = ringbert.Classifier(model)
    found = classifier([e.first for e in TEST])
    assert [one.value for one in found] == written.tolist()
    assert (found[0].label, found[0].probabilities, classifier.labels) == (str(written[0]), {}, ())
    assert np.isnan(found[0].probability)


# -- vectors ------------------------------------------------------------------------------------------------------


def test_vectors_are_those_of_bert_features(span_model, tmp_path):
    """The program rounds to six decimals, and its batches are others: 1e-5 in all."""
    lines = [
        "the red fox near a saw ||| two axe and drill",
        "cat",
        "grey hare and pink crow by the rake of hammer",
    ]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    argv = (f"--input_file={tmp_path}/lines.txt", f"--output_file={tmp_path}/out.jsonl", f"--model={span_model}")
    in_process("bert-features", features.Config, features.run_features, tmp_path, *argv, "--layers=-1")
    written = [json.loads(line)["features"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    items = [tuple(line.split(" ||| ")) if "|||" in line else line for line in lines]
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
            assert (token, start, end) == ("[SEP]", 0, 0) or token.removeprefix("##") == text[start:end]
            text = next(parts, "") if token == "[SEP]" else text
    np.testing.assert_array_equal(vectors.pooled(items), [one.pooled for one in found])
    for call in (vectors, vectors.pooled):
        with pytest.warns(UserWarning, match="1 of 1 texts are cut to max_seq_length 128 tokens") as caught:
            call("cat " * 200)
        assert [warning.filename for warning in caught] == [__file__]
    assert vectors.pooled(items[1]).shape == (64,)


@pytest.mark.slow
def test_vectors_are_those_of_transformers(goldens):
    """MiniLM's hidden states by transformers on PyTorch, of one sentence, within 1e-5."""
    folder = real("minilm")
    golden = json.loads((goldens / "minilm.json").read_text())
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    text = " ".join(vocabulary[number] for number in golden["input_ids"][1:-1])
    for layer in (-1, 2):
        found = ringbert.Features(folder, layer=layer, pooling="cls")(["a neighbour in its batch", text])[1]
        assert list(found.tokens) == [vocabulary[number] for number in golden["input_ids"]]
        ours = [found.vectors[token, part] for token, part in golden["places"]]
        np.testing.assert_allclose(ours, golden["values"][layer % 6 + 1], rtol=0, atol=1e-5)
        assert np.linalg.norm(found.vectors) == pytest.approx(golden["norms"][layer % 6 + 1], rel=1e-5)
        np.testing.assert_array_equal(found.pooled, found.vectors[0])


# -- folders and processes ----------------------------------------------------------------------------------------


def test_the_folder_of_a_run(span_model, tmp_path):
    """model/ of the run, and the settings in its run.json; the user's own come first."""
    out = tmp_path / "out"
    shutil.copytree(span_model, out / "model")
    config = LENGTHS | VERSION_2 | {"n_best_size": 5, "learning_rate": 1.0, "max_seq_length": 64}
    (out / "run.json").write_text(json.dumps({"config": config}))
    for folder in (out, str(out / "model")):
        settings = ringbert.QuestionAnswering(folder, n_best_size=7).settings
        assert (settings.n_best_size, settings.max_seq_length, settings.doc_stride) == (7, 64, 12)
        assert settings.version_2_with_negative
    (out / "run.json").write_text('{"config": {"max_seq_length": null}}')  # as of a training on corpora
    assert ringbert.Features(out).settings.max_seq_length == 128  # the model's positions
    alone = ringbert.QuestionAnswering(span_model).settings
    assert alone.max_seq_length == 128  # the model's positions; the default is 384
    assert not alone.version_2_with_negative
    (out / "run.json").write_text('{"config": {"max_seq_length": "40"}}')
    with pytest.raises(InputError, match='max_seq_length must be an integer, got "40"'):
        ringbert.QuestionAnswering(out)


@pytest.mark.slow
def test_the_folder_of_a_training(cache, tmp_path):
    """The program's own folders: of a finished training, and of one that has only checkpoints."""
    texts.write_model(tmp_path, num_layers=1)
    file = write_squad(tmp_path / "train.json", make_entries(64, 1))
    argv = [f"--vocab_file={tmp_path}/vocab.txt", f"--bert_config_file={tmp_path}/bert_config.json"]
    argv += [f"--train_file={file}", f"--predict_file={file}", "--do_train", "--do_predict", "--num_train_steps=4"]
    argv += [f"--output_dir={tmp_path}/out", "--train_batch_size=8", *flags_of(LENGTHS)]
    in_process("bert-squad", squad.Config, squad.run_squad, tmp_path / "out", *argv)
    written = json.loads((tmp_path / "out/predictions.json").read_text())
    pairs = [(question, context) for context, question, *_ in make_entries(64, 1)]
    expected = list(written.values())
    assert [answer.text for answer in ringbert.QuestionAnswering(tmp_path / "out")(pairs)] == expected
    shutil.rmtree(tmp_path / "out/model")
    assert [answer.text for answer in ringbert.QuestionAnswering(tmp_path / "out")(pairs)] == expected
    with pytest.raises(InputError, match=r"holds a model without the head .* train one with bert-classifier"):
        ringbert.Classifier(tmp_path / "out")


@pytest.mark.slow
def test_threads_two_predictors_and_the_keras_policy(span_model, label_model):
    import keras

    before = keras.config.dtype_policy().name
    rough = ringbert.Classifier(label_model, precision="bf16")
    exact = ringbert.Classifier(label_model)
    assert keras.config.dtype_policy().name == before
    assert (rough._trained.model.compute_dtype, exact._trained.model.compute_dtype) == ("bfloat16", "float32")
    items = [e.first for e in TEST]
    alone = [exact(item) for item in items]
    assert [one.probability for one in rough(items)] == pytest.approx([one.probability for one in alone], abs=0.02)
    found: dict[int, ringbert.Prediction] = {}
    numbers = iter(range(len(items)))

    def work() -> None:
        for number in numbers:
            found[number] = exact(items[number])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(len(items))] == alone


@pytest.mark.slow
def test_processes_of_an_mpi_job_predict_without_joining_it(span_model):
    done = mpirun(2, "predicting.py", span_model)
    assert done.status == 0, done
    found = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda line: line["rank"])
    sums = ringbert.Features(span_model).pooled(["the red fox", "two dull axe"]).sum(1).tolist()
    facts = {"loaded by import ringbert": [], "joined": False, "sums": sums}
    assert found == [{"rank": str(rank)} | facts for rank in range(2)]


# -- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "c"), "question is empty"),
        ((" \n", "c"), "question is empty"),
        (("q", ""), "context is empty"),
        (("q",), "context is missing: give the text to search"),
        (("q", None), "context is missing: give the text to search"),
        (("q", float("nan")), "context must be a string or a list of strings, got nan, which tables hold where"),
        (("q", ["c", float("nan")]), r"context\[1\] must be a string, got nan, which tables hold where"),
        ((("q", ""),), r"question\[1\] is empty"),
        (("q", []), "context is empty: at least one is needed"),
        ((None, "c"), "question must be a string, a list of strings, .*, got None"),
        ((7, "c"), "question must be a string, a list of strings, .*, got int 7"),
        ((b"q", "c"), "question must be a string, a list of strings, .*, got bytes b'q'"),
        (({"q"}, "c"), "question must be a string, .*, got set"),
        (([], "c"), "question is empty: at least one is needed"),
        ((["q", ""], "c"), r"question\[1\] is empty"),
        ((["q", "q"], ["c"]), "question has 2 items and context 1: give one for each, or one for all"),
        ((["q"], [float("nan")]), r"context\[0\] must be a string, got nan"),
        ((["q", "p"],), r"question\[0\] must be a pair \(question, context\) where no context is given, got 'q'"),
        (([["q", "c"], ("q", "")],), r"question\[1\]\[1\] is empty"),
        ((("q", "p", "r"),), r"question\[0\] must be a pair"),
        (("q", "\ud800"), "context holds half a surrogate pair"),
    ],
)  # fmt: skip
def test_questions_that_are_refused(arguments, message):
    from tasks.predictors.question_answering import checked_pairs

    with pytest.raises(InputError, match=f"^{message}") as caught:
        checked_pairs(*arguments, *[None] * (2 - len(arguments)))
    assert "\n" not in str(caught.value)


def test_questions_that_are_taken():
    from tasks.predictors.question_answering import checked_pairs

    assert checked_pairs("q", "c") == ([("q", "c")], True)
    assert checked_pairs(("q", "c"), None) == ([("q", "c")], True)
    assert checked_pairs(["q"], "c") == ([("q", "c")], False)
    assert checked_pairs("q", ["c"]) == ([("q", "c")], False)
    assert checked_pairs("q", ["c", "d"]) == ([("q", "c"), ("q", "d")], False)
    assert checked_pairs(("q", "p"), "c") == ([("q", "c"), ("p", "c")], False)
    assert checked_pairs(["q", "p"], ["c", "d"]) == ([("q", "c"), ("p", "d")], False)
    assert checked_pairs([("q", "c"), ["p", "d"]], None) == ([("q", "c"), ("p", "d")], False)


def test_one_question_over_contexts_and_a_pair(span_model):
    answers = ringbert.QuestionAnswering(span_model, **LENGTHS)
    contexts = ["a cat sat near the saw", "the red fox"]
    found = answers("the tool", contexts)
    assert found == answers([("the tool", context) for context in contexts])
    assert [len(each) for each in answers("the tool", contexts, top_k=2)] == [2, 2]
    single = answers(("the tool", contexts[0]))
    assert single == answers("the tool", contexts[0])
    assert answers(("the tool", contexts[0]), top_k=1) == [single]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("", "texts is empty"),
        ([], "texts is empty: at least one is needed"),
        (["a", float("nan")], r"texts\[1\] must be a string, got nan"),
        (["a", None], r"texts\[1\] must be a string, got None"),
        (["a", ("b", 3)], r"texts\[1\]\[1\] must be a string, got int 3"),
        (["a", ("b", "c", "d")], r"texts\[1\] must be a string or a pair of strings, got 3 values"),
        ({"text": "a"}, r"texts must be a string, a pair of strings, or a list of these, got dict"),
        (3, "texts must be a string, a pair of strings, or a list of these, got int 3"),
        (np.array("a"), "texts must be a string, a pair of strings, or a list of these, got ndarray"),
    ],
)  # fmt: skip
def test_texts_that_are_refused(argument, message):
    from tasks.predictors.inputs import checked_texts

    with pytest.raises(InputError, match=f"^{message}"):
        checked_texts(argument)


def test_texts_that_are_taken():
    from tasks.predictors.inputs import checked_texts

    assert checked_texts("a") == ([("a", None)], True)
    assert checked_texts(("a", "b")) == ([("a", "b")], True)
    assert checked_texts(["a", "b"]) == ([("a", None), ("b", None)], False)
    assert checked_texts([("a", "b"), ["c", "d"]]) == ([("a", "b"), ("c", "d")], False)
    assert checked_texts(text for text in np.array(["a", "b", "c"])) == ([(c, None) for c in "abc"], False)


def test_representations_are_short(span_model, label_model):
    answers = ringbert.QuestionAnswering(span_model, **LENGTHS, precision="bf16")
    assert repr(answers) == f"QuestionAnswering('{span_model}', 1 layer of 64, max_seq_length=40, bf16)"
    classifier = ringbert.Classifier(label_model)
    assert repr(classifier) == f"Classifier('{label_model}', 1 layer of 64, 3 labels, max_seq_length=128, fp32)"
    features = ringbert.Features(span_model)
    facts = "layer=-1, pooling='mean', max_seq_length=128"
    assert repr(features) == f"Features('{span_model}', 1 layer of 64, {facts}, fp32)"
    found = features("the red fox")
    assert repr(found) == "TextFeatures('[CLS] the red fox [SEP]', 5 tokens, vectors of 64 numbers)"
    assert len(repr(features("the red fox " * 20))) < 150


def test_the_documentation_lists_the_options_of_questions():
    from tasks.predictors.question_answering import QuestionOptions

    text = str(ringbert.QuestionAnswering.__doc__)
    assert all(f"\n      {name}: " in text for name in QuestionOptions.__annotations__)


def test_folders_and_settings_that_are_refused(span_model, label_model, tmp_path):
    def refusal(door, *arguments, **options) -> str:
        with pytest.raises(InputError) as caught:
            door(*arguments, **options)
        assert "\n" not in str(caught.value)
        assert "--" not in str(caught.value)
        return str(caught.value)

    answers, classifier, vectors = ringbert.QuestionAnswering, ringbert.Classifier, ringbert.Features
    missing = refusal(answers, tmp_path / "nothing")
    assert missing.startswith(f"{tmp_path}/nothing: no such folder or checkpoint")
    assert refusal(answers, None).startswith("folder must be the path of a folder or a hub name, got None")
    assert "HF_HUB_OFFLINE is set" in refusal(answers, "nobody/nothing")
    assert f"folder {tmp_path} has no config.json or bert_config.json" in refusal(answers, tmp_path)
    (tmp_path / "run.json").write_text("{}")
    assert f"folder {tmp_path} is a run that has not saved a model yet" in refusal(answers, tmp_path)
    (tmp_path / "seed-1").mkdir()
    assert f"give one of them, such as {tmp_path}/seed-1" in refusal(answers, tmp_path)
    headless = f"folder {span_model} holds a model without the head for this task (output_weights is missing)"
    use = "it answers questions: use ringbert.QuestionAnswering, or train one with bert-classifier"
    assert refusal(classifier, span_model) == f"{headless}: {use}"
    use = "it labels texts: use ringbert.Classifier, or train one with bert-squad"
    assert use in refusal(answers, label_model)
    assert "precision must be one of fp32, bf16, fp16, got 'fp8'" in refusal(answers, span_model, precision="fp8")
    assert "batch_size must be an integer from 1" in refusal(answers, span_model, batch_size=0)
    assert "max_seq_length must be at most the model's 128" in refusal(answers, span_model, max_seq_length=129)
    assert "max_seq_length 40 must exceed max_query_length + 3" in refusal(answers, span_model, max_seq_length=40)
    assert "doc_stride must be an integer" in refusal(answers, span_model, doc_stride="4")
    assert "unknown argument docstride; did you mean doc_stride?" in refusal(answers, span_model, docstride=4)
    assert "unknown argument precison; did you mean precision?" in refusal(answers, span_model, precison="bf16")
    batch = "has no argument batchsize; did you mean batch_size?"
    assert refusal(classifier, span_model, batchsize=4) == f"Classifier {batch}"
    assert refusal(vectors, span_model, batchsize=4) == f"Features {batch}"
    assert refusal(vectors).startswith("Features: missing a required argument: 'folder'; its arguments are folder")
    assert "layer must be an integer from -1 to 0, got 1" in refusal(vectors, span_model, layer=1)
    assert "pooling must be one of mean, cls" in refusal(vectors, span_model, pooling="max")
    qa = answers(span_model, **LENGTHS)
    assert "top_k must be an integer from 1 to n_best_size 20, got 21" in refusal(qa, "q", "c", top_k=21)
