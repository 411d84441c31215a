"""bert-export: what plain TensorFlow and Google's reader make of its files."""

import json
import random
import subprocess
import sys
from pathlib import Path
from string import ascii_letters

import numpy as np
import pytest
import tensorflow as tf
from real_tokenizers import contexts, kobert, multilingual, nsmc, uncased
from texts import SPECIAL_TOKENS, write_model
from weight_files import SIZES, published_shapes, values_of, write_hf

import ringbert
from bert import configuration, weights
from bert.model import Bert
from bert.text import tokenizer
from tasks.export.characters import why_not
from tasks.export.program import Config, export, main
from tasks.export.text_graph import TextGraph
from tasks.predictors.loading import policy

# Runs in a process that cannot import our packages: what the SavedModel in argv[1] says about the JSON of argv[2].
SERVER = """
import json, sys
sys.modules.update(dict.fromkeys(("ringbert", "bert", "distributed", "tasks", "keras", "transformers")))
import numpy as np, tensorflow as tf

loaded = tf.saved_model.load(sys.argv[1])
results = {}
for name, inputs in json.loads(sys.argv[2]).items():
    function = loaded.signatures[name]
    outputs = function(**{key: tf.constant(value) for key, value in inputs.items()})
    results[name] = {key: value.numpy().tolist() for key, value in outputs.items()}
decoded = lambda value: value.decode() if isinstance(value, bytes) else value
print(json.dumps(results, default=decoded))
"""
EXACT_GELU = "hidden_act gelu is exact, as in Google's first release; its last approximates it by tanh"
IDS = [[2, 5, 6, 7, 3], [2, 8, 3, 0, 0]]
IDS_INPUTS = {
    "input_ids": IDS,
    "token_type_ids": [[0, 0, 0, 1, 1], [0] * 5],
    "attention_mask": [[1] * 5, [1, 1, 1, 0, 0]],
}


def served(folder: Path, **inputs: dict) -> dict[str, dict]:
    """What a SavedModel's signatures say in a process of its own, without ours."""
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(folder), json.dumps(inputs)],
        capture_output=True, text=True, timeout=200, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Path]:
    """A folder for each head, as a run's model/: random weights of a tiny model."""
    base = tmp_path_factory.mktemp("trained")
    write_model(base, num_layers=1)
    words = tokenizer.load(str(base / "vocab.txt"))
    config = configuration.config_from_file(base / "bert_config.json")
    config.id2label, config.problem_type = {0: "neg", 1: "pos", 2: "모름"}, "single_label_classification"
    folders = {}
    for head in ("span", "classifier", "pretraining"):
        folders[head] = base / head
        with policy("fp32"):
            weights.save(Bert(config, head, seed=7), folders[head], words)
    return folders


# -- SavedModel ---------------------------------------------------------------------------------------------------


def model_inputs(inputs: dict[str, list]) -> dict[str, tf.Tensor]:
    rows, length = np.shape(inputs["input_ids"])
    named = {"input_ids": inputs["input_ids"], "token_type_ids": inputs["token_type_ids"]}
    more = {
        "example_ids": inputs["attention_mask"],
        "position_ids": [list(range(length))] * rows,
        "first_tokens": [row * length for row in range(rows)],
    }
    return {name: tf.constant(value, tf.int32) for name, value in (named | more).items()}


@pytest.mark.slow
def test_ids_give_the_models_scores_in_plain_tensorflow(trained, tmp_path):
    lines = export(Config(folder=str(trained["span"]), out=str(tmp_path / "out"), signature="ids"))
    assert lines[1] == "  serving_default: input_ids, token_type_ids, attention_mask -> end_logits, start_logits"
    assert (tmp_path / "out/assets.extra/tokenizer.json").exists()
    found = served(tmp_path / "out", ids=IDS_INPUTS)["ids"]
    with policy("fp32"):
        model = Bert(configuration.read_config(trained["span"]), "span")
    weights.load(model, trained["span"])
    expected = model(model_inputs(IDS_INPUTS)).numpy()
    for place, name in enumerate(("start_logits", "end_logits")):
        np.testing.assert_allclose(found[name], expected[:, :, place], rtol=1e-5, atol=1e-6)  # float32 sums
    assert np.ptp(expected) > 0.1


QUESTIONS = ["the animal", "the colour, or TOOL?"]
CONTEXTS = [
    "a crow and the red axe of two",
    "Ünknown  wörds: near the\u00a0brown\u3000fox ☃ 한국어 cat and the small white goat of the two",
]
LONG = " ".join(["crow"] * 200)


@pytest.mark.slow
def test_texts_give_what_the_predictors_give(trained, tmp_path):
    """For each head, in plain TensorFlow; also longer texts and pairs than the model has positions."""
    for head, folder in trained.items():
        export(Config(folder=str(folder), out=str(tmp_path / head), signature="texts"))

    texts, pairs = [*CONTEXTS, LONG, "x"], [(LONG, "a cat"), ("a cat", LONG), (LONG, LONG), ("a", "b")]
    pair_inputs = {"text": [first for first, _ in pairs], "text_pair": [second for _, second in pairs]}
    found = served(tmp_path / "classifier", serving_default={"text": texts}, pairs=pair_inputs)
    classifier = ringbert.Classifier(trained["classifier"])
    with pytest.warns(UserWarning, match="are cut to max_seq_length 128 tokens"):
        expected = {"serving_default": classifier(texts), "pairs": classifier(pairs)}
    for name, predictions in expected.items():
        assert found[name]["label"] == [prediction.label for prediction in predictions]
        rows = [list(prediction.probabilities.values()) for prediction in predictions]
        np.testing.assert_allclose(found[name]["probabilities"], rows, atol=1e-5)  # float32
    assert (tmp_path / "classifier/assets/labels.txt").read_text(encoding="utf-8") == "neg\npos\n모름\n"

    found = served(tmp_path / "span", serving_default={"question": QUESTIONS, "context": CONTEXTS})
    answers = ringbert.QuestionAnswering(trained["span"])(QUESTIONS, CONTEXTS)
    given = found["serving_default"]
    assert given["answer"] == [answer.text for answer in answers]
    assert all(given["answer"])
    assert given["answer_start"] == [answer.start for answer in answers]
    assert given["answer_end"] == [answer.end for answer in answers]
    np.testing.assert_allclose(given["score"], [answer.score for answer in answers], atol=1e-5)

    found = served(tmp_path / "pretraining", serving_default={"text": CONTEXTS})["serving_default"]
    vectors = ringbert.Features(trained["pretraining"])(CONTEXTS)
    tensors = weights.read(trained["pretraining"])
    for row, text in enumerate(vectors):
        last = np.asarray(found["sequence_output"][row])[: len(text.tokens)]
        np.testing.assert_allclose(last, text.vectors, atol=1e-5)
        pooled = np.tanh(last[0] @ tensors["bert/pooler/dense/kernel"] + tensors["bert/pooler/dense/bias"])
        np.testing.assert_allclose(found["pooled_output"][row], pooled, atol=1e-5)


@pytest.mark.slow
def test_a_context_that_does_not_fit_is_refused_by_the_graph(trained, tmp_path):
    export(Config(folder=str(trained["span"]), out=str(tmp_path / "out")))
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="cut the context into windows"):
        loaded.signatures["serving_default"](question=tf.constant(["who?"]), context=tf.constant([LONG]))


# -- the tokenizer as a graph -------------------------------------------------------------------------------------


def strange_texts(number: int) -> list[str]:
    """Random characters of all planes, many of them combining or invisible, and the limits of words."""
    chance = random.Random(5)
    special = [0x301, 0x345, 0x302E, 0x1D165, 0x1D16D, 0x20, 0xA0, 0xAD, 0x200D, 0xFEFF, 0xFFFD]
    planes = [(1, 0x250), (1, 0xD800), (0xE000, 0x110000)]

    def character() -> str:
        return chr(chance.choice(special) if chance.random() < 0.3 else chance.randrange(*chance.choice(planes)))

    texts = ["".join(character() for _ in range(chance.randrange(40))) for _ in range(number)]
    return [*texts, "", " ", "\ufeffa", "a" * 200, "a" * 201, "e\u0301" * 200, "[UNK][SEP]", "##ing", "a\0b"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uncased", "multilingual", "multilingual_lower"])
def test_the_graph_cuts_real_and_strange_texts_as_the_tokenizer_does(name):
    words = uncased() if name == "uncased" else multilingual(do_lower_case=name.endswith("lower"))
    graph = TextGraph(words)
    assert graph.difference(words) == ""  # every character of Unicode, every piece of the vocabulary
    pieces = tf.function(graph.pieces, input_signature=[tf.TensorSpec([None], tf.string)])
    texts = [*nsmc(20_000), *contexts()]
    for start in range(0, len(texts), 1000):
        some = texts[start : start + 1000]
        ids, spans = words.encode(some)
        found = pieces(tf.constant(some))
        assert found.ids.to_list() == [row.tolist() for row in ids]
        assert found.starts.to_list() == [row[:, 0].tolist() for row in spans]
        assert found.ends.to_list() == [row[:, 1].tolist() for row in spans]
    strange = strange_texts(5000)
    ids = words.encode_ids(strange)
    assert pieces(tf.constant(strange)).ids.to_list() == [row.tolist() for row in ids]
    assert sum(map(len, ids)) > 20_000


@pytest.mark.slow
def test_a_graph_that_cuts_in_another_way_is_found(trained):
    words = tokenizer.load(str(trained["span"].parent / "vocab.txt"))
    cased = tokenizer.load(str(trained["span"].parent / "vocab.txt"), do_lower_case=False)
    assert TextGraph(cased).difference(words).startswith("TensorFlow cuts ")


# -- TensorFlow 1 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["span", "classifier", "pretraining"])
def test_a_checkpoint_of_google_has_the_same_bits(trained, tmp_path, head):
    (line, *notes) = export(Config(folder=str(trained[head]), out=str(tmp_path / "out"), format="tf1"))
    there = weights.read(trained[head])
    names = [name for name in there if not name.startswith("cls/predictions/decoder")]
    assert line == f"{tmp_path}/out/bert_model.ckpt: {len(names)} tensors"
    assert notes == [
        "note: hidden_act gelu is exact, as in Google's first release; its last approximates it by tanh"
    ]
    reader = tf.train.load_checkpoint(str(tmp_path / "out" / "bert_model.ckpt"))
    assert sorted(reader.get_variable_to_shape_map()) == sorted(names)
    for name in names:
        np.testing.assert_array_equal(reader.get_tensor(name), there[name])
    # The names and shapes that google-research/bert gives its variables, for a model of these sizes.
    assert {name for name in names if name.startswith("bert/embeddings")} == {
        name for name in published_shapes() if name.startswith("bert/embeddings")
    }
    config = json.loads((tmp_path / "out" / "bert_config.json").read_text())
    assert config["hidden_size"] == 64
    assert (tmp_path / "out" / "vocab.txt").read_text() == (trained[head] / "vocab.txt").read_text()
    # And our own --init_checkpoint, or --model, reads it.
    source = weights.find(str(tmp_path / "out"))
    model = Bert(configuration.read_config(source), head, seed=1)
    weights.load(model, source)
    for name, variable in model.named_tensors().items():
        np.testing.assert_array_equal(variable.numpy(), there[name])
    if head == "classifier":
        assert model.config.id2label == {0: "neg", 1: "pos", 2: "모름"}


def test_an_encoder_keeps_its_pooler(tmp_path):
    tensors = values_of(published_shapes())
    folder = write_hf(tmp_path / "there", tensors)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *ascii_letters, *".,?", ""]))
    words = tokenizer.load(str(vocabulary))
    (folder / "config.json").write_text(json.dumps(SIZES | {"vocab_size": 60}))
    words.save(folder)
    export(Config(folder=str(folder), out=str(tmp_path / "out"), format="tf1"))
    reader = tf.train.load_checkpoint(str(tmp_path / "out" / "bert_model.ckpt"))
    assert sorted(reader.get_variable_to_shape_map()) == sorted(tensors)


# -- refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (["{span}"], 2, "OUT must be given"),
        (["{span}", "{span}"], 1, "OUT {span} exists already: give a new folder"),
        (["{span}x", "out"], 1, "{span}x: no such folder or checkpoint"),
        (["{span}", "out", "--format=onnx"], 2, '--format must be saved_model or tf1, got "onnx"'),
        (["{span}", "out", "--max_seq_length=500"], 1, "max_seq_length must be at most the model's 128 positions"),
    ],
)
def test_refusals(trained, tmp_path, monkeypatch, capsys, argv, status, message):
    monkeypatch.chdir(tmp_path)
    names = {head: str(folder) for head, folder in trained.items()}
    with pytest.raises(SystemExit) as ended:
        main([word.format(**names) for word in argv])
    printed = capsys.readouterr()
    assert ended.value.code == status
    assert printed.err.startswith(f"bert-export: error: {message.format(**names)}")
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert not (tmp_path / "out").exists()


def test_tokenizers_that_a_table_of_characters_does_not_describe(tmp_path):
    def of(*pieces: str) -> str:
        path = tmp_path / "vocab.txt"
        path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, ""]))
        return why_not(tokenizer.load(str(path)))

    assert of("a", "##b") == ""
    assert why_not(kobert()) == "its tokenizer is a SentencePiece model"
    assert "combining characters" in of("a\U0001d165")  # whose order NFD changes
