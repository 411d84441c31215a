"""bert-corpus vocab --extend: a model with words of a text as new entries, against transformers and
NumPy; and a training that continues it."""

import json
from functools import partial

import numpy as np
import pytest
from harness.program_runs import bert, refusal
from harness.texts import write_model
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoTokenizer

from bert import configuration, weights
from bert.heads import MASKED_WORDS, PRETRAINING
from bert.model import Bert
from bert.text import tokenizer
from tasks.corpus.__main__ import main as bert_corpus

NEW = ["zorblatt", "Quuxian", "한국어영화", "हिन्दी"]
LINES = [
    "the zorblatt saw the fox, and the zorblatt ran.",
    "A Quuxian fox and a zorblatt.",
    "Quuxian zorblatt 한국어영화 한국어영화",
    "हिन्दी हिन्दी zorblatt Quuxian हिन्दी 한국어영화",
    "wrench once-only",
]
TABLES = {
    "wordpiece": ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"),
    "bytes": ("model.embeddings.tok_embeddings.weight", "decoder.bias"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a text, and a model of each kind in it, whose biases are not zero."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "text.txt").write_text("\n".join(LINES * 3))
    text = f"--input_file={folder}/text.txt", "--document_separator=line"
    (folder / "words.txt").write_text("the fox saw a wrench and ran\n" * 9)
    kind = "--kind=byte_bpe", "--vocab_size=275"
    bert_corpus(["vocab", f"--input_file={folder}/words.txt", *kind, f"--output_dir={folder}/bpe"])
    write_model(folder / "small", num_layers=1)
    small = json.loads((folder / "small/bert_config.json").read_text())
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    modern = {"model_type": "modernbert", "vocab_size": 288, "intermediate_size": 48} | sizes
    for name, values, head, words in (
        ("wordpiece", small, PRETRAINING, tokenizer.load(str(folder / "small/vocab.txt"))),
        ("bytes", modern, MASKED_WORDS, tokenizer.load(folder=folder / "bpe")),
    ):
        model = Bert(configuration.config_of(values), head, seed=2)
        for tensor, variable in model.named_tensors().items():
            if tensor.endswith("predictions/output_bias"):
                variable.assign(np.random.default_rng(3).standard_normal(variable.shape))
        weights.copied(model, words)(folder / name)
    return folder, text


def extend(models, kind, into, *flags):
    folder, text = models
    model = f"--extend={folder}/{kind}"
    bert_corpus(["vocab", *text, model, f"--output_dir={into}", *flags])


@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
def test_new_words_are_one_token_and_begin_as_the_mean_of_their_pieces(models, kind, tmp_path):
    folder, _ = models
    extend(models, kind, tmp_path / "more", "--new_words=4")
    before, after = (
        AutoTokenizer.from_pretrained(place) for place in (folder / kind, tmp_path / "more")
    )
    is_wordpiece = kind == "wordpiece"
    # the model's own normalization takes Hangul and accents apart
    lowered = before.backend_tokenizer.normalizer.normalize_str
    new = [lowered(word) for word in NEW] if is_wordpiece else NEW
    first = len(before)
    old = {name: value for name, value in load_file(folder / kind / "model.safetensors").items()}
    found = load_file(tmp_path / "more/model.safetensors")
    assert found.keys() == old.keys()
    size = len(old[TABLES[kind][0]])
    assert size == (first if is_wordpiece else 288)
    last = max(size, first + 4)
    assert AutoConfig.from_pretrained(tmp_path / "more").vocab_size == last
    ids = {word: after.convert_tokens_to_ids(word) for word in new}
    assert sorted(ids.values()) == [*range(first, first + 4)]
    for name, value in old.items():
        if name not in TABLES[kind]:
            np.testing.assert_array_equal(found[name], value)
            continue
        assert len(found[name]) == last
        np.testing.assert_array_equal(found[name][:first], value[:first])
        for word, number in ids.items():
            pieces = before(f"the {word}", add_special_tokens=False).input_ids
            pieces = pieces[len(before("the", add_special_tokens=False).input_ids) :]
            assert len(pieces) > 1 or pieces == [before.unk_token_id]
            mean = sum(value[piece] for piece in pieces) / len(pieces)
            np.testing.assert_allclose(found[name][number], mean, rtol=1e-5, atol=1e-7)
    ours = tokenizer.load(folder=tmp_path / "more")
    for line, found_ids in zip(LINES, ours.encode_ids(LINES), strict=True):
        assert found_ids.tolist() == after(line, add_special_tokens=False).input_ids
        text = lowered(line) if is_wordpiece else line
        expected = {ids[word] for word in new if word in text}
        assert set(found_ids.tolist()) & set(ids.values()) == expected
    # other texts are as before
    other = "the fox saw a zorbla wrench"
    assert after(other).input_ids == before(other).input_ids


def test_those_that_save_most_tokens_come_first(models, tmp_path, capsys):
    """Of a WordPiece that knows letters: how often, times the pieces but for one."""
    extend(models, "wordpiece", tmp_path / "more", "--new_words=2")
    printed = capsys.readouterr().out
    assert "2 of them new: zorblatt quuxian" in printed  # 15 x 7 and 9 x 6


def test_a_training_continues_with_the_new_words(models, tmp_path):
    _, text = models
    extend(models, "wordpiece", tmp_path / "more", "--new_words=4")
    model = f"--model={tmp_path}/more"
    sizes = "--max_seq_length=32", "--nonext_sentence", "--allow_unknown"
    bert_corpus(["build", *text, model, *sizes, f"--output_dir={tmp_path}/shards"])
    shards = f"--input_file={tmp_path}/shards", "--max_seq_length=32", "--do_train"
    steps = "--num_train_steps=3", "--global_batch_size=2"
    assert not bert("pretraining", tmp_path / "run", model, *shards, *steps)
    written = tokenizer.load(folder=tmp_path / "run/model")
    assert written.digest == tokenizer.load(folder=tmp_path / "more").digest


def test_what_cannot_be_extended_is_one_line(models, tmp_path, capsys):
    folder, _ = models
    refused = partial(refusal, capsys, "bert-corpus vocab")
    into = tmp_path / "more"
    refused(lambda: extend(models, "wordpiece", into, "--new_words=50"), "--new_words 50", "only")
    refused(lambda: extend(models, "bpe", into), "--extend", "config.json")
    refused(lambda: extend(models, "wordpiece", folder / "wordpiece"), "--output_dir", "vocab.txt")
    assert not into.exists()
