"""SentencePiece models as tokenizers, against the `sentencepiece` library itself."""

import json
import random
import re
import unicodedata

import numpy as np
import pytest
import sentencepiece as library
from real_data import real
from real_tokenizers import CHANGING, albert, contexts, kobert, nsmc, processor, train
from squad_files import open_windows

from bert.text import tokenizer
from tasks.squad.reading import Source, read
from tasks.squad.settings import WindowSettings


def preprocessed(text: str) -> str:
    """google-research/albert tokenization.py, preprocess_text(lower=True), written out."""
    text = unicodedata.normalize("NFKD", " ".join(text.strip().split()))
    return "".join(c for c in text if not unicodedata.combining(c)).lower()


def differing(ours, texts, expected) -> list[tuple[list[int], list[int]]]:
    """Ids of ours and of the library where they are not the same, over all texts."""
    pairs = ((ids.tolist(), expected(text)) for text, ids in zip(texts, ours.encode(texts)[0], strict=True))
    return [pair for pair in pairs if pair[0] != pair[1]]


# -- ids ----------------------------------------------------------------------------------------------------------


def test_kobert_gives_the_ids_of_its_library_and_vocabulary():
    ours = kobert()
    ids_of = json.loads(real("vocab/kobert_vocab.json").read_text(encoding="utf-8"))["token_to_idx"]
    model = processor("kobert")
    score = {ids_of.get(model.id_to_piece(i), 0): model.get_score(i) for i in range(model.get_piece_size())}

    different = differing(ours, nsmc(), lambda text: [ids_of.get(p, 0) for p in model.encode(text, out_type=str)])
    # Only where two ways have the same score ("...." as "..." + "."): the library's choice hangs on the rounding
    # of a float32 sum that runs from the beginning of the text.
    assert len(different) <= 0.005 * len(nsmc())
    for own, their in different:
        assert sorted(own) == sorted(their)
        assert sum(score[i] for i in own) == pytest.approx(sum(score[i] for i in their), abs=1e-6)
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (1, 0, 2, 3, 4)
    assert (ours.vocab_size, ours.kind, ours.lower_case) == (8002, "sentencepiece", False)
    assert ours.special_ids == (0, 1, 2, 3, 4)


def test_a_text_file_gives_the_same_ids_as_json(tmp_path):
    lines = json.loads(real("vocab/kobert_vocab.json").read_text(encoding="utf-8"))["idx_to_token"]
    (tmp_path / "vocab.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "mapping.json").write_text(json.dumps({line: i for i, line in enumerate(lines)}), encoding="utf-8")
    (tmp_path / "list.json").write_text(json.dumps(lines), encoding="utf-8")
    for name in ("vocab.txt", "mapping.json", "list.json"):
        same = tokenizer.load(str(tmp_path / name), spm_model_file=str(real("vocab/kobert.model")))
        assert same.digest == kobert().digest


def test_albert_alone_gives_the_ids_of_its_library():
    ours = albert()
    assert differing(ours, [*contexts(), *nsmc(500)], processor("albert_base_v1").encode) == []
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (0, 1, 2, 3, 4)
    assert ours.vocab_size == 30000


def test_lower_case_is_google_s_and_keeps_characters():
    lowered = albert(do_lower_case=True)
    texts = [*contexts(), "Café ÅNGSTRÖM — Ünïcode ÉCOLE"]
    assert differing(lowered, texts, lambda text: processor("albert_base_v1").encode(preprocessed(text))) == []
    (ids,), (spans,) = lowered.encode(["  An École, Re\u0301sume\u0301!"])
    assert lowered.pieces(ids) == ["▁an", "▁ecole", ",", "▁resume", "!"]
    shown = ["  An École, Re\u0301sume\u0301!"[a:b] for a, b in spans]
    assert shown == ["An", "École", ",", "Re\u0301sume\u0301", "!"]
    assert (albert().lower_case, lowered.lower_case) == (False, True)
    assert albert().digest != lowered.digest


def test_lower_case_keeps_hangul_whole():
    lowered = tokenizer.load(
        str(real("vocab/kobert_vocab.json")), spm_model_file=str(real("vocab/kobert.model")), do_lower_case=True
    )
    texts = [text for text in nsmc(500) if unicodedata.normalize("NFC", preprocessed(text)) == text]
    assert len(texts) > 100
    texts += ["한국어를 배운다. 굳 ㅋ", unicodedata.normalize("NFD", "한국어를 배운다")]
    for own, plain in zip(lowered.encode(texts)[0], kobert().encode(texts)[0], strict=True):
        assert own.tolist() == plain.tolist()
    assert lowered.encode(["한국어를 배운다"])[0][0].tolist() == lowered.encode([texts[-1]])[0][0].tolist()
    assert lowered.case_problem == ""


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byte_fallback": True, "vocab_size": 1900},
        {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "normalization_rule_name": "identity"},
        {"user_defined_symbols": ["영화", "the", "(("], "split_by_whitespace": False},
    ],
    ids=["plain", "bytes", "identity", "symbols"],
)
def test_trained_models_give_the_ids_of_the_library(kind, options, tmp_path):
    path = train(tmp_path, kind, **options)
    ours, theirs = tokenizer.load(spm_model_file=str(path)), library.SentencePieceProcessor(model_file=str(path))
    texts = [*nsmc()[:1000], *contexts()[500:2000], "((the영화 theme))", "☃☃ é", "a  b"]
    different = differing(ours, texts, theirs.encode)
    # Ties, as above; of BPE pairs that overlap with themselves ("ㅋㅋㅋ") too.
    assert len(different) <= 0.01 * len(texts), [(ours.pieces(a), ours.pieces(b)) for a, b in different[:3]]


def test_special_tokens_written_in_a_text_are_text(tmp_path):
    symbols = train(
        tmp_path, control_symbols=[], user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"]
    )  # often done so
    bytes_too = train(tmp_path, byte_fallback=True, vocab_size=1900)
    loaded = [tokenizer.load(spm_model_file=str(path)) for path in (symbols, bytes_too)]
    text = "the [MASK] and[CLS][SEP] [PAD]<pad> ［ＭＡＳＫ］ <0x41> <s></s>[MASK]"
    for ours in (kobert(), albert(), *loaded):
        (ids,), (spans,) = ours.encode([text])
        assert not {ours.mask_id, ours.cls_id, ours.sep_id, ours.pad_id} & set(ids.tolist())
        assert "".join(text[a:b] for a, b in spans).count("MASK") == 2
        assert not any(piece.startswith("<0x41>") for piece in ours.pieces(ids))
    assert albert().encode([text])[0][0].tolist() == processor("albert_base_v1").encode(text)


# -- characters ---------------------------------------------------------------------------------------------------


def test_spans_are_the_original_characters():
    (ids,), (spans,) = albert().encode([CHANGING])
    found = [(piece, CHANGING[a:b]) for piece, (a, b) in zip(albert().pieces(ids), spans, strict=True)]
    assert found == [
        ("▁", "T"), ("<unk>", "T"), ("he", "he"), ("▁first", "ﬁrst"), ("▁", "…"), *[(".", "…")] * 3,
        ("▁offer", "oﬀer"), ("12", "①②"), ("▁of", "of"), ("▁full", "ｆｕｌｌ"), ("▁width", "ｗｉｄｔｈ"),
        ("▁ca", "ca"), ("f", "f"), ("<unk>", "e\u0301"), ("▁costs", "costs"), ("▁5", "5"), ("kg", "㎏"),
        ("▁1", "½"), ("<unk>", "½"), ("2", "½"), *[("▁", "ﷺ"), ("<unk>", "ﷺ")] * 4,
        ("▁", "☃"), ("<unk>", "☃"), ("▁x", "x"), (".", "."),
    ]  # fmt: skip


def test_spans_of_real_and_random_text_hold_their_pieces():
    """A span's characters, normalized by Unicode's own rules, are the piece."""
    draw = random.Random(5)
    pool = [*"aeiou thn ." * 9, *"ﬁﬀ①②…㎏½Ａｂ　한국어①\u00a0\u200b\t\x07\x01", *map(chr, range(0xFF10, 0xFF5E))]
    texts = ["".join(draw.choices(pool, k=draw.randint(1, 40))) for _ in range(1500)]
    for ours in (kobert(), albert()):
        for text, ids, spans in zip(
            texts + nsmc(300) + contexts()[:100], *ours.encode(texts + nsmc(300) + contexts()[:100]), strict=True
        ):
            assert spans.dtype == np.int32
            assert spans.shape == (len(ids), 2)
            assert (np.diff(spans[:, 0]) >= 0).all()
            assert (spans[:, 0] < spans[:, 1]).all()
            assert spans.max(initial=0) <= len(text)
            for number, piece, (start, stop) in zip(ids, ours.pieces(ids), spans, strict=True):
                shown = text[start:stop]
                assert len(shown) == 1 or shown == shown.strip(" \t\u200b\u3000\u00a0"), (text, piece, shown)
                if number != ours.unk_id and piece != "▁":
                    held = re.sub(r"[\s\u200b]|[\x00-\x1f]", "", unicodedata.normalize("NFKC", shown))
                    assert piece.removeprefix("▁").replace("▁", "") in held, (text, piece, shown)


def test_answers_have_the_exact_characters(tmp_path, run):
    """Through bert-squad's own rows: the tokens of an answer lead back to its characters."""
    context = CHANGING
    answers = [
        "ﬁrst …",
        "oﬀer①②",
        "ｗｉｄｔｈ",
        "cafe\u0301",
        "5㎏\x07",
        "½",
        "☃",
        "ｆｕｌｌ ｗｉｄｔｈ cafe\u0301",
    ]
    qas = [
        {"id": f"q{i}", "question": "Which?", "answers": [{"text": text, "answer_start": context.index(text)}]}
        for i, text in enumerate(answers)
    ]
    data = {"version": "1.1", "data": [{"title": "", "paragraphs": [{"context": context, "qas": qas}]}]}
    (tmp_path / "train.json").write_text(json.dumps(data), encoding="utf-8")
    examples = read(Source(str(tmp_path / "train.json"), "--train_file", is_training=True))
    settings = WindowSettings(max_seq_length=128, doc_stride=64, max_query_length=16, allow_unknown=True)
    rows, paragraphs = open_windows(settings, examples, albert(), tmp_path / "cache", run)
    spans = paragraphs.column("spans")[0].reshape(-1, 2)
    heads, first, last = (rows.column(c) for c in ("question_tokens", "start_position", "end_position"))
    assert len(rows) == len(answers)
    for text, head, start, end in zip(answers, heads, first, last, strict=True):
        begin, stop = spans[start - head, 0], spans[end - head, 1]
        # run_squad.py marks whole words; \x07 is no character of any piece
        assert context[begin:stop] == text.rstrip("\x07")


def test_pieces_that_continue_words():
    for ours in (kobert(), albert()):
        flags = ours.continues_word
        (ids,), _ = ours.encode(["unbelievablenesses 영화관에서 [MASK]"])
        assert flags.shape == (ours.vocab_size,)
        assert flags.dtype == bool
        assert [bool(flags[i]) for i in ids] == [
            not piece.startswith("▁") and i != ours.unk_id for i, piece in zip(ids, ours.pieces(ids), strict=True)
        ]
        assert not flags[list(ours.special_ids)].any()
        assert flags.any()
        assert not flags.all()
