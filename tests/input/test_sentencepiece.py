"""SentencePiece models as tokenizers: against the `sentencepiece` library, saved, published by
others, damaged."""

import json
import pickle
import random
import re
import unicodedata

import numpy as np
import pytest
import sentencepiece as library
from harness.google import preprocessed
from harness.real_data import real
from harness.real_tokenizers import (
    CHANGING,
    albert,
    contexts,
    kobert,
    nsmc,
    processor,
    strings,
    train,
    uncased,
)
from harness.refusals import refused
from transformers import AutoTokenizer

from bert.text import tokenizer

IDEOGRAPH = re.compile("[〃〈〉「」『』【】\u4e00-\u9fff\uf900-\ufaff]")


def differing(ours, texts, expected):
    """Ids of ours and of the library where they are not the same, over all texts."""
    pairs = (
        (ids.tolist(), expected(text))
        for text, ids in zip(texts, ours.encode(texts)[0], strict=True)
    )
    return [pair for pair in pairs if pair[0] != pair[1]]


def kobert_lines():
    return json.loads(real("vocab/kobert_vocab.json").read_text(encoding="utf-8"))["idx_to_token"]


def load_kobert(vocab_file, content):
    vocab_file.write_text(
        content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
    )
    return tokenizer.load(str(vocab_file), spm_model_file=str(real("vocab/kobert.model")))


def test_kobert_gives_the_ids_of_its_library_and_vocabulary():
    ours, model = kobert(), processor("kobert")
    ids_of = {piece: number for number, piece in enumerate(kobert_lines())}
    score = {
        ids_of.get(model.id_to_piece(i), 0): model.get_score(i)
        for i in range(model.get_piece_size())
    }

    def theirs(text):
        return [ids_of.get(piece, 0) for piece in model.encode(text, out_type=str)]

    different = differing(ours, nsmc(), theirs)
    # Only where two ways have the same score ("...." as "..." + "."): the library's choice hangs on
    # the rounding of a float32 sum that runs from the beginning of the text.
    assert len(different) <= 0.005 * len(nsmc())
    assert len(differing(ours, strings(2000), theirs)) <= 20
    for own, their in different:
        assert sorted(own) == sorted(their)
        assert sum(score[i] for i in own) == pytest.approx(sum(score[i] for i in their), abs=1e-6)
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (1, 0, 2, 3, 4)
    assert ours.vocab_size == 8002


def test_albert_gives_the_ids_of_its_library_and_of_google_s_lower_casing():
    texts = [*contexts()[:1500], *nsmc(500), "Café ÅNGSTRÖM — Ünïcode ÉCOLE"]
    ours, lowered, theirs = albert(), albert(do_lower_case=True), processor("albert_base_v1").encode
    assert differing(ours, texts, theirs) == []
    assert len(differing(ours, strings(2000), theirs)) <= 20  # ties
    assert differing(lowered, texts[:1500], lambda text: theirs(preprocessed(text))) == []
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (0, 1, 2, 3, 4)
    assert (ours.vocab_size, ours.lower_case, lowered.lower_case) == (30000, False, True)
    assert ours.digest != lowered.digest
    text = "  An École, Re\u0301sume\u0301!"
    (ids,), (spans,) = lowered.encode([text])
    assert lowered.pieces(ids) == ["▁an", "▁ecole", ",", "▁resume", "!"]
    assert [text[a:b] for a, b in spans] == ["An", "École", ",", "Re\u0301sume\u0301", "!"]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "options",
    [
        {"byte_fallback": True, "vocab_size": 1900},
        {
            "add_dummy_prefix": False,
            "remove_extra_whitespaces": False,
            "normalization_rule_name": "identity",
        },
        {"user_defined_symbols": ["영화", "the", "(("], "split_by_whitespace": False},
        {"user_defined_symbols": ["(("], "remove_extra_whitespaces": False},
    ],
)
def test_trained_models_give_the_ids_of_the_library(kind, options, tmp_path):
    path = train(tmp_path, kind, **options)
    ours = tokenizer.load(spm_model_file=str(path))
    theirs = library.SentencePieceProcessor(model_file=str(path))
    texts = [*nsmc()[:500], *contexts()[500:1200], "((the영화 theme))", "☃☃ é", "a  b"]
    # Ties, as above; of BPE pairs that overlap with themselves ("ㅋㅋㅋ") too.
    assert len(differing(ours, texts, theirs.encode)) <= 0.01 * len(texts)
    blanks = ["", " ", "   ", " the cat", "\tthe\n\n cat ", "\u3000영화 ((", " (( a ", "the  cat  "]
    assert differing(ours, blanks, theirs.encode) == []


def test_special_tokens_written_in_a_text_are_text(tmp_path):
    symbols = ["[CLS]", "[SEP]", "[MASK]"]  # often defined by the user
    own = {"control_symbols": [], "user_defined_symbols": symbols}
    path = train(tmp_path, **own, byte_fallback=True, vocab_size=1900)
    text = "the [MASK] and[CLS][SEP] [PAD]<pad> ［ＭＡＳＫ］ <0x41> <s></s>[MASK]"
    for ours in (uncased(), kobert(), albert(), tokenizer.load(spm_model_file=str(path))):
        (ids,), (spans,) = ours.encode([text])
        assert not {ours.mask_id, ours.cls_id, ours.sep_id, ours.pad_id} & set(ids.tolist())
        assert "".join(text[a:b] for a, b in spans).count("MASK") == 2
        assert not any(piece.startswith("<0x41>") for piece in ours.pieces(ids))
    assert albert().encode([text])[0][0].tolist() == processor("albert_base_v1").encode(text)


def test_spans_of_real_and_random_text_hold_their_pieces():
    """A span's characters, normalized by Unicode's own rules, are the piece."""
    draw = random.Random(5)
    pool = [
        *"aeiou thn ." * 9,
        *"ﬁﬀ①②…㎏½Ａｂ　한국어①\u00a0\u200b\t\x07\x01",
        *map(chr, range(0xFF10, 0xFF5E)),
    ]
    texts = (
        ["".join(draw.choices(pool, k=draw.randint(1, 40))) for _ in range(500)]
        + nsmc(300)
        + contexts()[:100]
    )
    for ours in (kobert(), albert()):
        pieces = ours.pieces(range(ours.vocab_size))
        # 0 to 4 are special; KoBERT has ideographs, which are words of their own
        continues = [
            n > 4 and not piece.startswith("▁") and not IDEOGRAPH.match(piece)
            for n, piece in enumerate(pieces)
        ]
        assert ours.continues_word.tolist() == continues
        for text, ids, spans in zip(texts, *ours.encode(texts), strict=True):
            assert (spans.dtype, spans.shape) == (np.int32, (len(ids), 2))
            assert (np.diff(spans[:, 0]) >= 0).all()
            assert (spans[:, 0] < spans[:, 1]).all()
            for number, piece, (start, stop) in zip(ids, ours.pieces(ids), spans, strict=True):
                shown = text[start:stop]
                case = text, piece, shown
                assert len(shown) == 1 or shown == shown.strip(" \t\u200b\u3000\u00a0"), case
                if number != ours.unk_id and piece != "▁":
                    held = unicodedata.normalize("NFKC", shown)
                    held = re.sub(r"[\s\u200b]|[\x00-\x1f]", "", held)
                    assert piece.replace("▁", "") in held, case


@pytest.mark.parametrize("name", ["wordpiece", "kobert", "lowered", "bpe"])
def test_a_saved_or_pickled_tokenizer_gives_the_same_ids(tmp_path, tmp_path_factory, name):
    """Also to transformers, with the template of pairs."""
    made = {"wordpiece": uncased, "kobert": kobert, "lowered": lambda: albert(do_lower_case=True)}
    made["bpe"] = lambda: tokenizer.load(
        spm_model_file=str(train(tmp_path_factory.mktemp("bpe"), "bpe"))
    )
    ours, texts = made[name](), [*nsmc(200), *contexts()[:50], CHANGING]
    ids, spans = ([x.tolist() for x in column] for column in ours.encode(texts))
    ours.save(tmp_path)
    folders = [tmp_path] + [real("minilm/tokenizer.json").parent] * (name == "wordpiece")
    for again in (
        *(tokenizer.load(folder=folder) for folder in folders),
        pickle.loads(pickle.dumps(ours)),
    ):
        for name in ("digest", "lower_case", "mask_id"):
            assert getattr(again, name) == getattr(ours, name)
        assert [[x.tolist() for x in column] for column in again.encode(texts)] == [ids, spans]
        assert [x.tolist() for x in again.encode_ids(texts)] == ids
    # by which transformers chooses the class
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(texts, add_special_tokens=False).input_ids == ids
    first, second = (x.tolist() for x in ours.encode_ids(["the", "cat"]))
    pair, expected = theirs("the", "cat"), [ours.cls_id, *first, ours.sep_id, *second, ours.sep_id]
    assert (pair.input_ids, sum(pair.token_type_ids)) == (expected, len(second) + 1)
    if ours.kind == "wordpiece":
        vocabulary = real("vocab/bert-base-uncased.txt")
        assert (tmp_path / "vocab.txt").read_bytes() == vocabulary.read_bytes()


def test_ids_come_from_a_vocabulary_in_two_forms_or_a_published_folder(tmp_path):
    """KoBERT's users publish some.model and a vocab.txt; others a model alone."""
    lines, alone = kobert_lines(), tmp_path / "alone"
    (tmp_path / "tokenizer_78b3253a26.model").write_bytes(real("vocab/kobert.model").read_bytes())
    text = "".join(f"{line}\n" for line in lines)
    for name, content in ("vocab.txt", text), ("list.json", lines):
        assert load_kobert(tmp_path / name, content).digest == kobert().digest
    assert tokenizer.load(folder=tmp_path).digest == kobert().digest
    alone.mkdir()
    (alone / "spiece.model").write_bytes(real("vocab/albert_base_v1.model").read_bytes())
    (alone / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert tokenizer.load(folder=alone).digest == albert(do_lower_case=True).digest
    refused(lambda: tokenizer.load(folder=alone, do_lower_case=False), "--do_lower_case", alone)


def test_what_cannot_be_used_is_refused(tmp_path):
    whole, path = real("vocab/albert_base_v1.model").read_bytes(), tmp_path / "a.model"
    for content, named in (
        (None, "--spm_model_file"),
        (real("vocab/kobert.model").read_bytes(), "[MASK]"),
        (whole[:5000], "--spm_model_file"),
        (train(tmp_path, "char", 1000).read_bytes(), "unigram and BPE"),
    ):
        if content is not None:
            path.write_bytes(content)
        refused(lambda: tokenizer.load(spm_model_file=str(path)), path, named)
    lines, path = kobert_lines(), tmp_path / "vocab.json"
    for content, *named in (
        (lines[:-2], "2 of the 7997", "kobert.model"),
        ([line for line in lines if line != "[MASK]"], "[MASK]"),
        ([*lines, "a", "a"], "'a'"),
        ({line: number for number, line in enumerate(lines)}, "idx_to_token"),
    ):
        refused(lambda content=content: load_kobert(path, content), path, *named)
