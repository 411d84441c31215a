"""Tokens that users added to a vocabulary: transformers' ids, from the files of its versions and
from ours, in training as in prediction; and types of tokens, where the tokenizer gives some."""

import json
import pickle

import numpy as np
import pytest
from harness.refusals import refused
from harness.texts import ALL_WORDS, FILLING, SPECIAL_TOKENS, write_vocabulary
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from bert.corpus.words import Encoder
from bert.text import tokenizer

MARKS = ["[E1]", "[/E1]", "<URL>"]
TEXTS = [
    "[E1] the fox [/E1] saw a <URL>",
    "the[E1]fox[/E1]",
    "a fox Red-Fox red-fox red fox",
    "<URL>",
    "<url> [e1]",
]
DECODED = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
LETTERS = "bcdefghijklmnopqrstuvwxyz0123456789"
WORDS = [*FILLING, *ALL_WORDS, *"[]<>/-", *LETTERS]


def stated(folder, **content):
    (folder / "config.json").write_text('{"model_type": "bert"}')
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **content}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def wordpiece(folder):
    pieces = [*WORDS, *(f"##{letter}" for letter in f"a{LETTERS}")]
    write_vocabulary(folder, *pieces)
    stated(folder)
    return len(SPECIAL_TOKENS) + len(pieces)


def fast(folder, made, special):
    """A folder as PreTrainedTokenizerFast writes it, with `added` tokens."""
    made.train_from_iterator([" ".join(WORDS), *TEXTS], special)
    names = special.special_tokens
    _, _, cls, sep, _ = (token.content for token in names)
    made.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(name, made.token_to_id(name)) for name in (cls, sep)],
    )
    made.add_special_tokens([AddedToken(mark) for mark in MARKS[:2]])
    made.add_special_tokens([AddedToken(MARKS[2], lstrip=True)])
    made.add_tokens([AddedToken("Red-Fox")])
    made.save(str(folder / "tokenizer.json"))
    kinds = ("pad", "unk", "cls", "sep", "mask")
    of_kinds = {f"{kind}_token": token.content for kind, token in zip(kinds, names, strict=True)}
    stated(folder, **of_kinds, tokenizer_class="PreTrainedTokenizerFast")


def byte_level(folder):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fast(
        folder, made, trainers.BpeTrainer(special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet)
    )


def unigram(folder):
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    fast(folder, made, trainers.UnigramTrainer(special_tokens=special, unk_token="<unk>"))


def saved_by_transformers(folder):
    wordpiece(folder)
    theirs = AutoTokenizer.from_pretrained(folder)
    theirs.add_special_tokens({"additional_special_tokens": MARKS})
    theirs.add_tokens(["Red-Fox"])
    theirs.save_pretrained(folder)


def numbered(folder):
    """As transformers 4 writes it without tokenizer.json."""
    size = wordpiece(folder)
    ids = {mark: size + number for number, mark in enumerate(MARKS)}
    (folder / "added_tokens.json").write_text(json.dumps(ids))


def decoded(folder):
    size = wordpiece(folder)
    tokens = {
        str(size + number): {"content": mark, "special": True, **DECODED}
        for number, mark in enumerate(MARKS)
    }
    stated(folder, added_tokens_decoder=tokens)


def named(folder):
    """Without ids: one is in the vocabulary."""
    wordpiece(folder)
    stated(folder, additional_special_tokens=[*MARKS, "fox"])


FORMS = [saved_by_transformers, numbered, decoded, named, byte_level, unigram]


@pytest.mark.parametrize("make", FORMS)
def test_added_tokens_are_those_of_transformers(make, tmp_path):
    make(tmp_path)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), tokenizer.load(folder=tmp_path)
    expected = theirs(TEXTS, add_special_tokens=False)["input_ids"]
    marks = {theirs.convert_tokens_to_ids(mark) for mark in ours.added_tokens}
    assert len(marks) >= len(MARKS)
    assert marks & {*expected[0]}
    ours.save(tmp_path / "saved")
    again = tokenizer.load(folder=tmp_path / "saved")
    assert again.digest == ours.digest
    for each in (ours, again, pickle.loads(pickle.dumps(ours))):
        assert [ids.tolist() for ids in each.encode(TEXTS)[0]] == expected
        assert [ids.tolist() for ids in each.encode_ids(TEXTS)] == expected
    values, counts = Encoder(ours)(TEXTS)
    assert values.tolist() == [number for ids in expected for number in ids]
    assert counts.tolist() == [*map(len, expected)]
    written = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert written(TEXTS, add_special_tokens=False)["input_ids"] == expected
    assert not set(MARKS) & set(written.decode(expected[0], skip_special_tokens=True).split())
    # whole words end before a mark
    assert not ours.continues_word[sorted(marks)].any()


@pytest.mark.parametrize("make", FORMS)
def test_markers_of_the_model_in_a_text_stay_text(make, tmp_path):
    make(tmp_path)
    ours = tokenizer.load(folder=tmp_path)
    markers = {ours.pad_id, ours.cls_id, ours.sep_id, ours.mask_id}
    text = "[E1] the [MASK] [SEP] <mask> </s> [/E1]"
    (ids,), (spans,) = ours.encode([text])
    assert not markers & {*ids.tolist()}
    assert "MASK" in "".join(text[start:stop] for start, stop in spans.tolist())
    assert [text[start:stop].strip() for start, stop in spans[[0, -1]].tolist()] == [
        "[E1]",
        "[/E1]",
    ]


@pytest.mark.parametrize(
    ("file", "content", "names"),
    [
        ("added_tokens.json", {"[E1]": 7}, "[E1]"),
        ("added_tokens.json", {"[E1]": "7"}, "[E1]"),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "added_tokens_decoder"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": "[E1]"}}, "added_tokens_decoder"),
        ("tokenizer_config.json", {"additional_special_tokens": "[E1]"}, "additional_special"),
        ("special_tokens_map.json", {"additional_special_tokens": [1]}, "content"),
    ],
)
def test_damaged_added_tokens_are_refused(file, content, names, tmp_path):
    wordpiece(tmp_path)
    (tmp_path / file).write_text(json.dumps(content))
    refused(lambda: tokenizer.load(folder=tmp_path), "--model", str(tmp_path), names)


# -- types of tokens -------------------------------------------------------------------------------

WITHOUT = ["input_ids", "attention_mask"]
WITH = ["input_ids", "token_type_ids", "attention_mask"]


@pytest.mark.parametrize(
    ("make", "content"),
    [
        (wordpiece, {}),
        (wordpiece, {"model_input_names": WITHOUT}),
        (wordpiece, {"tokenizer_class": "DistilBertTokenizer"}),
        (unigram, {"model_input_names": WITH}),
        (unigram, {"model_input_names": WITHOUT}),
        (unigram, {"tokenizer_class": "XLMRobertaTokenizer", "model_input_names": WITHOUT}),
    ],
)
def test_types_are_those_of_transformers(make, content, tmp_path):
    make(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **content}))
    ours, theirs = tokenizer.load(folder=tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.has_types == (1 in theirs("a fox", "the fox").get("token_type_ids", []))
    ours.save(tmp_path / "saved")
    written = AutoTokenizer.from_pretrained(tmp_path / "saved")("a fox", "the fox")
    assert (1 in written.get("token_type_ids", [])) == ours.has_types
    assert tokenizer.load(folder=tmp_path / "saved").has_types == ours.has_types


def test_a_template_without_types_gives_none(tmp_path):
    """As XLM-R's, with transformers' general class."""
    unigram(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    for part in content["post_processor"]["pair"]:
        for item in part.values():
            item["type_id"] = 0
    path.write_text(json.dumps(content))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    stated(tmp_path, **config | {"model_input_names": WITH})
    theirs = AutoTokenizer.from_pretrained(tmp_path)("a fox", "the fox")
    assert not np.any(theirs["token_type_ids"])
    assert not tokenizer.load(folder=tmp_path).has_types
