"""Training vocabularies: the same files each time, loadable everywhere, against the libraries' own
trainers."""

import multiprocessing
import unicodedata
from functools import partial

import pytest
from harness.program_runs import files_in
from harness.real_data import real
from harness.real_tokenizers import nsmc
from harness.refusals import refused
from harness.texts import SPECIAL_TOKENS
from tokenizers import (
    ByteLevelBPETokenizer,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import AutoTokenizer

from bert.settings import VocabularySettings
from bert.text import tokenizer, vocabulary
from ringbase.errors import InputError

KINDS = ["wordpiece", "unigram", "bpe", "byte_bpe"]
# Thirteen scripts and emoji; the vocabulary is English.
SCRIPTS = [
    "a very fine film",
    "Ελληνικά",
    "русский фильм",
    "հայերեն",
    "עברית טובה",
    "العربية جيدة",
    "हिन्दी फ़िल्म",
    "ภาพยนตร์ดีมาก",
    "မြန်မာ ရုပ်ရှင်",
    "한국어 영화가 좋다",
    "日本語の映画 カタカナ",
    "中文电影很好",
    "አማርኛ",
    "cafe\u0301 😀👩\u200d👩\u200d👧 \u00ad x",
]


@pytest.fixture(scope="module")
def english():
    text = real("text/british_fiction/Austen_Emma.txt").read_text(encoding="utf-8")
    return [line for line in text.split("\n") if line.strip()][:3000]


def train(texts, folder, kind, vocab_size, do_lower_case=False, **options):
    options |= {"kind": kind, "vocab_size": vocab_size, "do_lower_case": do_lower_case}
    return vocabulary.train(texts, folder, VocabularySettings(**options))


@pytest.mark.parametrize(
    ("kind", "lower_case"),
    [
        ("wordpiece", True),
        ("unigram", False),
        ("bpe", True),
        ("byte_bpe", False),
        ("byte_bpe", True),
    ],
)
def test_it_works_everywhere(english, tmp_path, kind, lower_case):
    folder = tmp_path / "words"
    path = train(iter(english), folder, kind, 3000, lower_case)
    ours = tokenizer.load(folder=folder)
    assert (ours.vocab_size, ours.lower_case) == (3000, lower_case)
    assert ours.pieces(range(5)) == SPECIAL_TOKENS
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (0, 1, 2, 3, 4)
    texts = [*english[:500], "CAFÉ ﬁsh [MASK]"]
    ids = [x.tolist() for x in ours.encode_ids(texts)]
    is_spm = path.name == "spiece.model"
    given = {"spm_model_file" if is_spm else "vocab_file": str(path)}
    assert tokenizer.load(do_lower_case=lower_case, **given).digest == ours.digest
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs(texts[:-1], add_special_tokens=False).input_ids == ids[:-1]
    # A vocabulary of English words it is: fewer than two pieces a word.
    assert sum(map(len, ids)) < 2 * sum(len(text.split()) for text in texts)


def train_each(texts, folder):
    for kind in KINDS:
        train(texts, folder / kind, kind, 2000, kind != "wordpiece")


@pytest.mark.slow
def test_two_processes_give_the_same_files(tmp_path, capfd, monkeypatch):
    """The libraries' hash tables start from other random numbers in each process."""
    # else a harness's import of TensorFlow says that it is on
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    texts = nsmc()  # skips the test where the data is absent, which a process of the pool cannot
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(
            train_each, [(texts, tmp_path / "one"), (texts, tmp_path / "two")], chunksize=1
        )
    assert capfd.readouterr().err == ""  # without SentencePiece's log
    for kind in KINDS:
        assert files_in(tmp_path / "one" / kind) == files_in(tmp_path / "two" / kind)


def test_wordpiece_is_the_library_s_own_but_for_ties(english, tmp_path):
    """The library's trainer on the sentences themselves: its choice between equally frequent pairs
    varies."""
    path = train(english, tmp_path / "words", "wordpiece", 2500, True, character_coverage=1.0)
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer()
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    options = {"vocab_size": 2500, "min_frequency": 2, "special_tokens": SPECIAL_TOKENS}
    theirs.train_from_iterator(english, trainers.WordPieceTrainer(**options, show_progress=False))
    assert len(lines) == len(set(lines)) == len(theirs.get_vocab()) == 2500
    assert len(set(theirs.get_vocab()) & set(lines)) > 0.97 * 2500


def test_byte_level_bpe_is_the_library_s_own_and_knows_every_script(english, tmp_path):
    """The library's tokenizer of this kind, trained by itself; and transformers on our files."""
    train(english, tmp_path / "words", "byte_bpe", 1500)
    ours = tokenizer.load(folder=tmp_path / "words")
    theirs = ByteLevelBPETokenizer(add_prefix_space=True, unicode_normalizer="nfc")
    options = {"vocab_size": 1500, "min_frequency": 2, "special_tokens": SPECIAL_TOKENS}
    theirs.train_from_iterator(english, **options, show_progress=False)
    elsewhere = AutoTokenizer.from_pretrained(tmp_path / "words")
    texts = [*SCRIPTS, *english[:300]]
    for text, ids in zip(texts, ours.encode_ids(texts), strict=True):
        assert ids.tolist() == theirs.encode(text, add_special_tokens=False).ids
        assert elsewhere(text).input_ids == [ours.cls_id, *ids, ours.sep_id]
        assert ours.unk_id not in ids
        assert ours.text_of(ids).strip() == unicodedata.normalize("NFC", text).strip()
    # the blank before [MASK] is no token of its own, as in a row whose word is masked
    filled = elsewhere("the [MASK] of").input_ids
    the, of = (ours.encode_ids([text])[0] for text in ("the", "of"))
    assert filled == [ours.cls_id, *the, ours.mask_id, *of, ours.sep_id]


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_trained_is_refused_and_leaves_nothing(tmp_path, kind):
    def broken():
        yield from ["some text"] * 100
        raise InputError("corpus.txt: line 101 is not UTF-8")

    for texts, size, named in (
        (nsmc()[:300], 500_000, "--vocab_size"),
        (nsmc()[:300], 30, "--vocab_size"),
        (["", "  "], 1000, ""),
        (broken(), 300, "corpus.txt: line 101"),
    ):
        refused(partial(train, iter(texts), tmp_path / "words", kind, size), named)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(english, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    train(english, tmp_path, "wordpiece", 1000)
    before = files_in(tmp_path)
    assert sorted(before) == ["notes.txt", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    refused(lambda: train(english, tmp_path, "wordpiece", 2000), tmp_path, "vocab.txt")
    notes = tmp_path / "notes.txt"
    refused(lambda: train(english, notes, "bpe", 2000), "--output_dir", notes)
    assert files_in(tmp_path) == before


def test_lower_case_strips_accents_and_keeps_hangul(tmp_path):
    texts = ["École CAFÉ 한국어를 배운다", "한국어 배운다 école café"] * 50
    for kind, size in (("unigram", 22), ("bpe", 30)):
        train(texts, tmp_path / kind, kind, size, True)
        upper, lower = tokenizer.load(folder=tmp_path / kind).encode_ids(
            ["ÉCOLE 한국어", "ecole 한국어"]
        )
        assert upper.tolist() == lower.tolist()
    # BERT's own lower-casing takes syllables apart; a name in an English text stops nothing.
    refused(lambda: train(texts, tmp_path / "words", "wordpiece", 50, True), "--nodo_lower_case")
    train([*texts, *["plain english words here"] * 5000], tmp_path / "few", "wordpiece", 70, True)
    assert "한" in train(texts, tmp_path / "words", "wordpiece", 40).read_text(encoding="utf-8")
