"""WordPiece against transformers' and Google's (the Python one that transformers keeps as its legacy form)."""

import functools
from pathlib import Path

import numpy as np
import pytest
from real_data import real
from real_tokenizers import multilingual, uncased
from texts import SPECIAL_TOKENS, write_vocabulary
from transformers import AutoTokenizer, BertTokenizer
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from bert.text import tokenizer
from ringbert.errors import InputError
from tasks.squad.reading import Source, read

ODD = [
    "Café naïve ÅNGSTRÖM \u202fx\u00a0y\u3000z",
    "한국어를 배운다. 굳 ㅋ",
    "smile 😀! 👩‍👩‍👧 \U0001f1f0\U0001f1f7",
    "tab\tnew\nline\r\x00null\ufffd soft\u00adhyphen zero\u200bwidth \x07bell",
    "北京2008 カタカナ, don't U.S. $5.00 (1999)—“quoted” a/b",
    "",
    "   ",
]


@functools.cache
def real_texts() -> list[str]:
    """200 contexts and 300 questions of SQuAD, 500 lines of NSMC, and the odd ones."""
    squad = read(Source(str(real("squad/dev-v1.1.json")), "--predict_file", is_training=False, limit=2500))
    lines = real("nsmc/ratings_test.txt").read_text(encoding="utf-8").split("\n")[1:501]
    return [
        *squad.paragraphs[:200],
        *(q.text for q in squad.questions[:300]),
        *(x.split("\t")[1] for x in lines),
        *ODD,
    ]


# -- ids and places -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [uncased, multilingual])
def test_ids_are_those_of_transformers_and_of_google(load):
    ours, texts = load(), real_texts()
    ids, _ = ours.encode(texts)
    path = ours.source
    theirs = BertTokenizer.from_pretrained(
        path if Path(path).is_dir() else str(Path(path).parent), vocab_file=path, do_lower_case=ours.lower_case
    )
    google = BertTokenizerLegacy(path, do_lower_case=ours.lower_case)
    google.wordpiece_tokenizer.max_input_chars_per_word = 200
    assert all(np.array_equal(own, fast) for own, fast in zip(ids, ours.encode_ids(texts), strict=True))
    for text, own, their in zip(texts, ids, theirs(texts, add_special_tokens=False).input_ids, strict=True):
        assert own.dtype == np.int32
        assert own.tolist() == their, text
        assert own.tolist() == google.convert_tokens_to_ids(google.tokenize(text)), text


def test_spans_give_back_the_characters():
    """A token's span of the text is the token, but for what the tokenizer drops from the text."""
    texts, cased = real_texts(), multilingual()
    tokens = dict(map(reversed, cased._fast.get_vocab().items()))
    for text, ids, spans in zip(texts, *cased.encode(texts), strict=True):
        assert spans.dtype == np.int32
        assert spans.shape == (len(ids), 2)
        assert (np.diff(spans[:, 0]) >= 0).all()
        assert (spans[:, 0] < spans[:, 1]).all()
        for number, (start, stop) in zip(ids, spans, strict=True):
            piece = text[start:stop]
            if number == cased.unk_id:
                assert piece.strip() == piece
                continue
            kept = "".join(c for c in piece if c not in "\x00\ufffd\x07\u00ad\u200b\u200d")
            assert kept == tokens[number].removeprefix("##"), (piece, tokens[number])


def test_spans_under_accents_and_hangul(tmp_path):
    words = ["cafe", "na", "##ive", "ᄒ", "##ᅡ", "##ᆫ", "x", "##y", "bell"]
    ours = tokenizer.load(str(write_vocabulary(tmp_path, *words)))
    text = "Café\u202fNAïVE 한 e\u0301? x\x07y \x07bell"
    ids, spans = (array[0] for array in ours.encode([text]))
    pieces = [text[start:stop] for start, stop in spans]
    assert ours._fast.convert_ids_to_tokens(ids.tolist()) == [
        "cafe", "na", "##ive", "ᄒ", "##ᅡ", "##ᆫ", "[UNK]", "[UNK]", "x", "##y", "bell"
    ]  # fmt: skip
    assert pieces[:6] == ["Café", "NA", "ïVE", "한", "한", "한"]
    assert pieces[7:] == ["?", "x", "y", "bell"]
    assert pieces[6] in ("e", "e\u0301")


def test_long_words(tmp_path):
    """200 characters are a word, as in Google's code; 201 are [UNK]; transformers' own limit is 100."""
    ours = tokenizer.load(str(write_vocabulary(tmp_path, "a", "##a")))
    texts = ["a" * 200, "a" * 201]
    assert [len(ids) for ids in ours.encode(texts)[0]] == [200, 1]
    assert ours.encode(texts)[0][1].tolist() == [ours.unk_id]
    ours.save(tmp_path / "saved")
    again = tokenizer.load(folder=tmp_path / "saved")
    assert [len(ids) for ids in again.encode(texts)[0]] == [200, 1]
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")  # by its class, BertTokenizer, it would say 100
    assert [len(ids) for ids in theirs(texts, add_special_tokens=False).input_ids] == [200, 1]
    # beside a model's configuration, where transformers chooses the class by its type
    (tmp_path / "saved" / "config.json").write_text('{"model_type": "bert"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert [len(ids) for ids in theirs(texts, add_special_tokens=False).input_ids] == [200, 1]
    assert theirs("a", "a").token_type_ids == [0, 0, 0, 1, 1]


def test_neither_truncation_nor_padding():
    ours = uncased()
    ids, _ = ours.encode(["the " * 2000, "the"])
    assert [len(x) for x in ids] == [2000, 1]
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (0, 100, 101, 102, 103)
    assert ours.vocab_size == 30522


def test_unknown_share():
    assert tokenizer.unknown_share([np.array([1, 2, 1]), np.array([3])], 1) == 0.5
    assert tokenizer.unknown_share([], 1) == 0.0


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [uncased, pytest.param(multilingual, marks=pytest.mark.slow)])
def test_a_saved_tokenizer_gives_the_same_ids(tmp_path, load):
    ours, texts = load(), real_texts()
    ours.save(tmp_path)
    ids = [x.tolist() for x in ours.encode(texts)[0]]
    again = tokenizer.load(folder=tmp_path)
    assert [x.tolist() for x in again.encode(texts)[0]] == ids
    assert (again.digest, again.lower_case) == (ours.digest, ours.lower_case)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(texts, add_special_tokens=False).input_ids == ids
    assert (tmp_path / "vocab.txt").read_text(encoding="utf-8") == Path(ours.source).read_text(encoding="utf-8")


def test_a_hugging_face_folder():
    folder = real("minilm/tokenizer.json").parent
    ours = tokenizer.load(folder=folder)
    texts = real_texts()
    for a, b in zip(ours.encode(texts)[0], uncased().encode(texts)[0], strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_token_listed_twice_keeps_its_last_id(tmp_path):
    ours = tokenizer.load(str(write_vocabulary(tmp_path, "a", "b", "a", "c")))
    assert ours.encode(["a b c"])[0][0].tolist() == [7, 6, 8]
    ours.save(tmp_path / "saved")
    (tmp_path / "saved" / "tokenizer.json").unlink()
    assert tokenizer.load(folder=tmp_path / "saved").encode(["a b c"])[0][0].tolist() == [7, 6, 8]


def test_bad_vocabularies(tmp_path):
    with pytest.raises(InputError, match=r"^--vocab_file .*nowhere\.txt: no such file$"):
        tokenizer.load(str(tmp_path / "nowhere.txt"))
    with pytest.raises(InputError, match="no vocabulary: give --vocab_file"):
        tokenizer.load()
    with pytest.raises(InputError, match=r"vocab\.txt: no such file"):
        tokenizer.load(folder=tmp_path)
    for name, words, special, message in (
        ("few.txt", (), ["a", "b", "c"], "3 lines, too few for a WordPiece vocabulary"),
        ("lacks.txt", "abc", ["[PAD]", "[UNK]", "[SEP]"], r"the vocabulary has no \[CLS\], \[MASK\] "),
        ("bom.txt", "a", ["\ufeff[PAD]", *SPECIAL_TOKENS[1:]], r"the vocabulary has no \[PAD\] "),
    ):
        path = write_vocabulary(tmp_path, *words, special=special, name=name)
        with pytest.raises(InputError, match=rf"{name}: {message}"):
            tokenizer.load(str(path))
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match=r"binary\.txt: line 2 is not UTF-8"):
        tokenizer.load(str(tmp_path / "binary.txt"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(InputError, match=r"tokenizer\.json: "):
        tokenizer.load(folder=tmp_path / "folder")
    (tmp_path / "folder" / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(InputError, match=r"tokenizer\.json: "):
        tokenizer.load(folder=tmp_path / "folder")


def test_pieces_that_continue_words(tmp_path):
    ours = tokenizer.load(str(write_vocabulary(tmp_path, "play", "##ing", "##s", "#")))
    assert ours.kind == "wordpiece"
    assert ours.special_ids == (0, 1, 2, 3, 4)
    assert ours.continues_word.dtype == bool
    assert ours.continues_word.tolist() == [False] * 6 + [True, True, False]
    (ids,), _ = ours.encode(["playings #"])
    assert ours.pieces(ids) == ["play", "##ing", "##s", "#"]
    other = tokenizer.load(
        str(write_vocabulary(tmp_path, "a", special=["a", *reversed(SPECIAL_TOKENS)], name="other.txt"))
    )
    assert other.special_ids == (1, 2, 3, 4, 5)
    ours.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / "spiece.model").exists()
    again = tokenizer.load(folder=tmp_path / "saved")
    assert again.continues_word.tolist() == ours.continues_word.tolist()
    assert again.special_ids == ours.special_ids


def test_special_tokens_written_in_a_text_are_text():
    words = uncased()
    (ids,), _ = words.encode(["the [SEP] and [MASK] tokens"])
    assert not {words.sep_id, words.mask_id} & set(ids.tolist())
    # google-research/bert's BasicTokenizer splits at punctuation and lower-cases: "[", "sep", "]"
    (parts,), _ = words.encode(["the [ sep ] and [ mask ] tokens"])
    assert ids.tolist() == parts.tolist()


def test_a_tokenizer_sent_to_another_rank_gives_the_same_ids():
    import pickle

    words = uncased()
    sent = pickle.loads(pickle.dumps(words))
    texts = ["the [SEP] and [MASK] tokens", "x" * 150, "Plain text, nothing else."]
    for here, there in zip(words.encode(texts)[0], sent.encode(texts)[0], strict=True):
        assert here.tolist() == there.tolist()
    assert sent.digest == words.digest
