"""SentencePiece models as tokenizers, against the `sentencepiece` library itself and transformers."""

import functools
import io
import json
import pickle
import random
import re
import unicodedata

import numpy as np
import pytest
import sentencepiece as library
from real_data import real
from sentencepiece import sentencepiece_model_pb2
from transformers import AutoTokenizer

from bert.text import sentencepiece, tokenizer
from ringbert.errors import InputError
from tasks.squad import windows as squad_data

CONTROLS = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_piece": "[PAD]", "unk_piece": "[UNK]"}
CHANGING = "  The ﬁrst …  oﬀer①② of ｆｕｌｌ ｗｉｄｔｈ cafe\u0301 costs\u30005㎏\x07 ½ \u200bﷺ ☃ x. "


@functools.cache
def nsmc(lines: int = 2000) -> list[str]:
    rows = real("nsmc/ratings_train.txt").read_text(encoding="utf-8").split("\n")[1 : lines + 1]
    return [row.split("\t")[1] for row in rows]


@functools.cache
def contexts() -> list[str]:
    """500 contexts of SQuAD and 3,000 lines of a novel."""
    squad = squad_data.read(
        str(real("squad/dev-v1.1.json")), "--predict_file", training=False, allow_impossible=False, most=3000
    )
    novel = sorted(real("text/british_fiction").glob("*.txt"))[0].read_text(encoding="utf-8").split("\n")
    return [*squad.paragraphs[:500], *novel[:3000]]


@pytest.fixture(scope="module")
def kobert():
    return tokenizer.load(str(real("vocab/kobert_vocab.json")), spm_model_file=str(real("vocab/kobert.model")))


@pytest.fixture(scope="module")
def albert():
    return tokenizer.load(spm_model_file=str(real("vocab/albert_base_v1.model")))


@pytest.fixture(scope="module")
def processors():
    """The library's own objects."""
    names = {"kobert": "vocab/kobert.model", "albert": "vocab/albert_base_v1.model"}
    return {name: library.SentencePieceProcessor(model_file=str(real(path))) for name, path in names.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains a model with the library on 300 lines of NSMC and 600 of a novel; returns its path."""

    def train(kind="unigram", vocab_size=1600, **options):
        options = {"control_symbols": ["[CLS]", "[SEP]", "[MASK]"], **CONTROLS, **options}
        written = io.BytesIO()
        library.SentencePieceTrainer.train(
            sentence_iterator=iter([*nsmc()[:300], *contexts()[500:1100]]), model_writer=written, model_type=kind,
            vocab_size=vocab_size, minloglevel=3, **options,
        )  # fmt: skip
        path = tmp_path_factory.mktemp("model") / "some.model"
        path.write_bytes(written.getvalue())
        return path

    return train


def preprocessed(text: str) -> str:
    """google-research/albert tokenization.py, preprocess_text(lower=True), written out."""
    text = unicodedata.normalize("NFKD", " ".join(text.strip().split()))
    return "".join(c for c in text if not unicodedata.combining(c)).lower()


def differing(ours, texts, expected) -> list[tuple[list[int], list[int]]]:
    """Ids of ours and of the library where they are not the same, over all texts."""
    pairs = ((ids.tolist(), expected(text)) for text, ids in zip(texts, ours.encode(texts)[0], strict=True))
    return [pair for pair in pairs if pair[0] != pair[1]]


# -- ids ----------------------------------------------------------------------------------------------------------


def test_kobert_gives_the_ids_of_its_library_and_vocabulary(kobert, processors):
    ids_of = json.loads(real("vocab/kobert_vocab.json").read_text(encoding="utf-8"))["token_to_idx"]
    model = processors["kobert"]
    score = {ids_of.get(model.id_to_piece(i), 0): model.get_score(i) for i in range(model.get_piece_size())}

    different = differing(
        kobert, nsmc(), lambda text: [ids_of.get(p, 0) for p in model.encode(text, out_type=str)]
    )
    # Only where two ways have the same score ("...." as "..." + "."): the library's choice hangs on the rounding
    # of a float32 sum that runs from the beginning of the text.
    assert len(different) <= 0.005 * len(nsmc())
    for own, their in different:
        assert sorted(own) == sorted(their)
        assert sum(score[i] for i in own) == pytest.approx(sum(score[i] for i in their), abs=1e-6)
    assert (kobert.pad_id, kobert.unk_id, kobert.cls_id, kobert.sep_id, kobert.mask_id) == (1, 0, 2, 3, 4)
    assert (kobert.vocab_size, kobert.kind, kobert.lower_case) == (8002, "sentencepiece", False)
    assert kobert.special_ids == (0, 1, 2, 3, 4)


def test_a_text_file_gives_the_same_ids_as_json(kobert, tmp_path):
    lines = json.loads(real("vocab/kobert_vocab.json").read_text(encoding="utf-8"))["idx_to_token"]
    (tmp_path / "vocab.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "mapping.json").write_text(json.dumps({line: i for i, line in enumerate(lines)}), encoding="utf-8")
    (tmp_path / "list.json").write_text(json.dumps(lines), encoding="utf-8")
    for name in ("vocab.txt", "mapping.json", "list.json"):
        same = tokenizer.load(str(tmp_path / name), spm_model_file=str(real("vocab/kobert.model")))
        assert same.digest == kobert.digest


def test_albert_alone_gives_the_ids_of_its_library(albert, processors):
    assert differing(albert, contexts(), processors["albert"].encode) == []
    assert differing(albert, nsmc(500), processors["albert"].encode) == []
    assert (albert.pad_id, albert.unk_id, albert.cls_id, albert.sep_id, albert.mask_id) == (0, 1, 2, 3, 4)
    assert albert.vocab_size == 30000


def test_lower_case_is_google_s_and_keeps_characters(albert, processors):
    lowered = tokenizer.load(spm_model_file=str(real("vocab/albert_base_v1.model")), do_lower_case=True)
    texts = [*contexts(), "Café ÅNGSTRÖM — Ünïcode ÉCOLE"]
    assert differing(lowered, texts, lambda text: processors["albert"].encode(preprocessed(text))) == []
    (ids,), (spans,) = lowered.encode(["  An École, Re\u0301sume\u0301!"])
    assert lowered.pieces(ids) == ["▁an", "▁ecole", ",", "▁resume", "!"]
    shown = ["  An École, Re\u0301sume\u0301!"[a:b] for a, b in spans]
    assert shown == ["An", "École", ",", "Re\u0301sume\u0301", "!"]
    assert (albert.lower_case, lowered.lower_case) == (False, True)
    assert albert.digest != lowered.digest


def test_lower_case_keeps_hangul_whole(kobert):
    lowered = tokenizer.load(
        str(real("vocab/kobert_vocab.json")), spm_model_file=str(real("vocab/kobert.model")), do_lower_case=True
    )
    texts = [text for text in nsmc(500) if unicodedata.normalize("NFC", preprocessed(text)) == text]
    assert len(texts) > 100
    texts += ["한국어를 배운다. 굳 ㅋ", unicodedata.normalize("NFD", "한국어를 배운다")]
    for own, plain in zip(lowered.encode(texts)[0], kobert.encode(texts)[0], strict=True):
        assert own.tolist() == plain.tolist()
    assert lowered.encode(["한국어를 배운다"])[0][0].tolist() == lowered.encode([texts[-1]])[0][0].tolist()
    assert not tokenizer.splits_hangul(lowered)


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
def test_trained_models_give_the_ids_of_the_library(trained, kind, options):
    path = trained(kind, **options)
    ours, theirs = tokenizer.load(spm_model_file=str(path)), library.SentencePieceProcessor(model_file=str(path))
    texts = [*nsmc()[:1000], *contexts()[500:2000], "((the영화 theme))", "☃☃ é", "a  b"]
    different = differing(ours, texts, theirs.encode)
    # Ties, as above; of BPE pairs that overlap with themselves ("ㅋㅋㅋ") too.
    assert len(different) <= 0.01 * len(texts), [(ours.pieces(a), ours.pieces(b)) for a, b in different[:3]]


def test_special_tokens_written_in_a_text_are_text(kobert, albert, trained, processors):
    symbols = trained(control_symbols=[], user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"])  # often done so
    bytes_too = trained(byte_fallback=True, vocab_size=1900)
    loaded = [tokenizer.load(spm_model_file=str(path)) for path in (symbols, bytes_too)]
    text = "the [MASK] and[CLS][SEP] [PAD]<pad> ［ＭＡＳＫ］ <0x41> <s></s>[MASK]"
    for ours in (kobert, albert, *loaded):
        (ids,), (spans,) = ours.encode([text])
        assert not {ours.mask_id, ours.cls_id, ours.sep_id, ours.pad_id} & set(ids.tolist())
        assert "".join(text[a:b] for a, b in spans).count("MASK") == 2
        assert not any(piece.startswith("<0x41>") for piece in ours.pieces(ids))
    assert albert.encode([text])[0][0].tolist() == processors["albert"].encode(text)


# -- characters ---------------------------------------------------------------------------------------------------


def test_spans_are_the_original_characters(albert):
    (ids,), (spans,) = albert.encode([CHANGING])
    found = [(piece, CHANGING[a:b]) for piece, (a, b) in zip(albert.pieces(ids), spans, strict=True)]
    assert found == [
        ("▁", "T"), ("<unk>", "T"), ("he", "he"), ("▁first", "ﬁrst"), ("▁", "…"), *[(".", "…")] * 3,
        ("▁offer", "oﬀer"), ("12", "①②"), ("▁of", "of"), ("▁full", "ｆｕｌｌ"), ("▁width", "ｗｉｄｔｈ"),
        ("▁ca", "ca"), ("f", "f"), ("<unk>", "e\u0301"), ("▁costs", "costs"), ("▁5", "5"), ("kg", "㎏"),
        ("▁1", "½"), ("<unk>", "½"), ("2", "½"), *[("▁", "ﷺ"), ("<unk>", "ﷺ")] * 4,
        ("▁", "☃"), ("<unk>", "☃"), ("▁x", "x"), (".", "."),
    ]  # fmt: skip


def test_spans_of_real_and_random_text_hold_their_pieces(kobert, albert):
    """A span's characters, normalized by Unicode's own rules, are the piece."""
    draw = random.Random(5)
    pool = [*"aeiou thn ." * 9, *"ﬁﬀ①②…㎏½Ａｂ　한국어①\u00a0\u200b\t\x07\x01", *map(chr, range(0xFF10, 0xFF5E))]
    texts = ["".join(draw.choices(pool, k=draw.randint(1, 40))) for _ in range(1500)]
    for ours in (kobert, albert):
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


def test_answers_have_the_exact_characters(albert, tmp_path, run):
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
    examples = squad_data.read(str(tmp_path / "train.json"), "--train_file", training=True, allow_impossible=False)
    key = squad_data.windows(
        examples, albert, tmp_path / "cache", max_seq_length=128, doc_stride=64, max_query_length=16,
        allow_unknown=True, run=run,
    )  # fmt: skip
    windows = squad_data.Rows.open(tmp_path / "cache" / key / "windows.arrow")
    paragraphs = squad_data.Rows.open(tmp_path / "cache" / key / "paragraphs.arrow")
    spans = paragraphs.column("spans")[0].reshape(-1, 2)
    heads, first, last = (windows.column(c) for c in ("question_tokens", "start_position", "end_position"))
    assert len(windows) == len(answers)
    for text, head, start, end in zip(answers, heads, first, last, strict=True):
        begin, stop = spans[start - head, 0], spans[end - head, 1]
        # run_squad.py marks whole words; \x07 is no character of any piece
        assert context[begin:stop] == text.rstrip("\x07")


def test_pieces_that_continue_words(kobert, albert):
    for ours in (kobert, albert):
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


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kobert", "albert", "lowered", "bpe"])
@pytest.mark.parametrize("with_config", [False, True])
def test_a_saved_tokenizer_gives_the_same_ids(request, tmp_path, name, with_config, trained):
    if name == "lowered":
        ours = tokenizer.load(spm_model_file=str(real("vocab/albert_base_v1.model")), do_lower_case=True)
    elif name == "bpe":
        ours = tokenizer.load(spm_model_file=str(trained("bpe")))
    else:
        ours = request.getfixturevalue(name)
    texts = [*nsmc(200), *contexts()[:50], CHANGING]
    ids = [x.tolist() for x in ours.encode(texts)[0]]
    ours.save(tmp_path)
    if with_config:
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "config.json") == [
        "spiece.model",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    again = tokenizer.load(folder=tmp_path)
    assert (again.digest, again.lower_case, again.kind) == (ours.digest, ours.lower_case, "sentencepiece")
    assert (again.pad_id, again.unk_id, again.cls_id, again.sep_id, again.mask_id, again.special_ids) == (
        ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id, ours.special_ids,
    )  # fmt: skip
    assert [ids.tolist() for ids in ours.encode_ids(texts)] == [ids.tolist() for ids in ours.encode(texts)[0]]
    for a, b in zip(again.encode(texts), ours.encode(texts), strict=True):
        for here, there in zip(a, b, strict=True):
            np.testing.assert_array_equal(here, there)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(texts, add_special_tokens=False).input_ids == ids
    pair = theirs("the", "cat")
    sides = [x.tolist() for x in ours.encode(["the", "cat"])[0]]
    assert pair.input_ids == [ours.cls_id, *sides[0], ours.sep_id, *sides[1], ours.sep_id]
    assert pair.token_type_ids == [0] * (len(sides[0]) + 2) + [1] * (len(sides[1]) + 1)
    assert theirs.pad_token_id == ours.pad_id
    assert theirs.mask_token_id == ours.mask_id
    again.save(tmp_path / "twice")
    assert (tmp_path / "twice" / "spiece.model").read_bytes() == (tmp_path / "spiece.model").read_bytes()
    assert (tmp_path / "twice" / "tokenizer.json").read_text() == (tmp_path / "tokenizer.json").read_text()


def test_folders_with_a_model(kobert, albert, tmp_path):
    """A folder as KoBERT's users publish it: some.model and a vocab.txt; one with ALBERT's model alone."""
    lines = json.loads(real("vocab/kobert_vocab.json").read_text(encoding="utf-8"))["idx_to_token"]
    (tmp_path / "vocab.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "tokenizer_78b3253a26.model").write_bytes(real("vocab/kobert.model").read_bytes())
    assert tokenizer.load(folder=tmp_path).digest == kobert.digest
    (tmp_path / "other.model").write_bytes(b"")
    with pytest.raises(
        InputError, match=r"has 2 SentencePiece models \(other\.model, .*\): give --spm_model_file"
    ):
        tokenizer.load(folder=tmp_path)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "spiece.model").write_bytes(real("vocab/albert_base_v1.model").read_bytes())
    assert tokenizer.load(folder=alone).digest == albert.digest
    (alone / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert tokenizer.load(folder=alone).lower_case
    with pytest.raises(
        InputError, match=r"--do_lower_case=False, but the tokenizer of .* says do_lower_case=True"
    ):
        tokenizer.load(folder=alone, do_lower_case=False)


def test_somebody_else_s_file_is_guarded_too(albert, tmp_path):
    """A tokenizer.json without our cuts, as transformers writes it: literal special tokens are still text."""
    albert.save(tmp_path)
    values = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    values["pre_tokenizer"] = values["pre_tokenizer"]["pretokenizers"][0]
    (tmp_path / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    ours = tokenizer.load(folder=tmp_path)
    text = "a [MASK] and <pad>[SEP]"
    assert ours.encode([text])[0][0].tolist() == albert.encode([text])[0][0].tolist()


def test_a_tokenizer_sent_to_another_rank_gives_the_same_ids(kobert):
    assert kobert.continues_word.any()
    sent = pickle.loads(pickle.dumps(kobert))
    for here, there in zip(
        kobert.encode([*nsmc(50), "[MASK]"])[0], sent.encode([*nsmc(50), "[MASK]"])[0], strict=True
    ):
        assert here.tolist() == there.tolist()
    assert sent.digest == kobert.digest
    assert (sent.continues_word == kobert.continues_word).all()


# -- faults -------------------------------------------------------------------------------------------------------


def test_models_that_cannot_be_used(trained, tmp_path):
    kobert, albert = str(real("vocab/kobert.model")), real("vocab/albert_base_v1.model")
    with pytest.raises(
        InputError, match=r"kobert\.model has no \[PAD\], \[CLS\], \[SEP\], \[MASK\]: give a --vocab_file"
    ) as caught:
        tokenizer.load(spm_model_file=kobert)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"some\.model has no \[MASK\]: give a --vocab_file that lists it"):
        tokenizer.load(spm_model_file=str(trained(control_symbols=["[CLS]", "[SEP]"])))
    (tmp_path / "short.model").write_bytes(albert.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"short\.model: .*--spm_model_file"):
        tokenizer.load(spm_model_file=str(tmp_path / "short.model"))
    (tmp_path / "text.model").write_text("no model\n")
    with pytest.raises(InputError, match=r"text\.model: .*--spm_model_file"):
        tokenizer.load(spm_model_file=str(tmp_path / "text.model"))
    (tmp_path / "empty.model").write_bytes(b"")
    with pytest.raises(InputError, match=r"empty\.model: a SentencePiece model without pieces"):
        tokenizer.load(spm_model_file=str(tmp_path / "empty.model"))
    with pytest.raises(InputError, match=r"nowhere\.model: No such file or directory \(--spm_model_file\)"):
        tokenizer.load(spm_model_file=str(tmp_path / "nowhere.model"))
    with pytest.raises(InputError, match=r"model type 4 is neither"):
        tokenizer.load(spm_model_file=str(trained("char", 1000)))
    parsed = sentencepiece_model_pb2.ModelProto()
    parsed.ParseFromString(albert.read_bytes())
    parsed.pieces[100].type = sentencepiece.UNUSED
    (tmp_path / "unused.model").write_bytes(parsed.SerializeToString())
    with pytest.raises(InputError, match=r"1 of 30000 pieces are marked unused"):
        tokenizer.load(spm_model_file=str(tmp_path / "unused.model"))


def test_vocabularies_that_do_not_fit(tmp_path):
    lines = json.loads(real("vocab/kobert_vocab.json").read_text(encoding="utf-8"))["idx_to_token"]
    path = tmp_path / "vocab.json"

    def load(values):
        path.write_text(json.dumps(values), encoding="utf-8")
        return tokenizer.load(str(path), spm_model_file=str(real("vocab/kobert.model")))

    with pytest.raises(
        InputError, match=r"lacks 2 of the 7997 pieces of .*kobert\.model, .*do not belong together"
    ):
        load(lines[:-2])
    with pytest.raises(
        InputError, match=r"vocab\.json \(ids for .*kobert\.model\) has no \[MASK\]: --vocab_file must"
    ):
        load([line for line in lines if line != "[MASK]"])
    with pytest.raises(InputError, match=r"8003 lines, 8002 pieces: '\[PAD\]' twice"):
        load([*lines, "[PAD]"])
    with pytest.raises(
        InputError, match=r"ids must be 0 to 8001 for its 8002 pieces, each once; they are 1 to 8002"
    ):
        load({line: number + 1 for number, line in enumerate(lines)})
    with pytest.raises(InputError, match="neither a list of pieces nor an object"):
        load({"version": "1"})
    path.write_text('["a", ')
    with pytest.raises(InputError, match=r"vocab\.json: truncated or not JSON \(--vocab_file\)"):
        tokenizer.load(str(path), spm_model_file=str(real("vocab/kobert.model")))
    with pytest.raises(InputError, match=r"vocab\.json: no WordPiece vocabulary; .*--spm_model_file"):
        tokenizer.load(str(path))
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}}')
    with pytest.raises(InputError, match="a BPE tokenizer is neither WordPiece nor SentencePiece"):
        tokenizer.load(folder=tmp_path)


def test_case_of_vocabularies(albert, kobert):
    """ALBERT's has no capital letters; multilingual BERT's whole Korean syllables, which lower-casing splits."""
    lowered = tokenizer.load(spm_model_file=str(real("vocab/albert_base_v1.model")), do_lower_case=True)
    assert [tokenizer.lacks_capitals(x) for x in (albert, lowered, kobert)] == [True, False, False]
    assert tokenizer.unknown_share(albert.encode(contexts())[0], albert.unk_id) > 0.05
    assert tokenizer.unknown_share(lowered.encode(contexts())[0], lowered.unk_id) < 0.005
    path = str(real("vocab/bert-base-multilingual-cased.txt"))
    assert tokenizer.splits_hangul(tokenizer.load(path))
    assert not tokenizer.splits_hangul(tokenizer.load(path, do_lower_case=False))
    assert not tokenizer.splits_hangul(tokenizer.load(str(real("vocab/bert-base-uncased.txt"))))
    assert not tokenizer.splits_hangul(kobert)
