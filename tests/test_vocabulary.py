"""Training vocabularies: the same files each time, loadable everywhere, against the libraries' own trainers."""

import hashlib
import os
import signal
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece
from real_data import real
from real_tokenizers import nsmc
from texts import SPECIAL_TOKENS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from bert.text import tokenizer, vocabulary
from bert.text.vocabulary import VocabularySettings
from ringbert.errors import InputError

KINDS = ["wordpiece", "unigram", "bpe"]


@pytest.fixture(scope="module")
def korean():
    return nsmc()


@pytest.fixture(scope="module")
def english():
    text = real("text/british_fiction/Austen_Emma.txt").read_text(encoding="utf-8")
    return [line for line in text.split("\n") if line.strip()][:3000]


def train(texts, folder: Path, kind: str, vocab_size: int, do_lower_case: bool = False, **options) -> Path:
    settings = VocabularySettings(kind=kind, vocab_size=vocab_size, do_lower_case=do_lower_case, **options)
    return vocabulary.train(texts, folder, settings)


def files(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("kind", "lower_case"),
    [
        ("wordpiece", True),
        ("unigram", False),
        ("bpe", True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in zip(KINDS, (False, True, False), strict=True)),
    ],
)
def test_it_works_everywhere(english, tmp_path, kind, lower_case):
    folder = tmp_path / "words"
    path = train(iter(english), folder, kind, 3000, lower_case)
    given = {"vocab_file": str(path)} if kind == "wordpiece" else {"spm_model_file": str(path)}
    ours = tokenizer.load(folder=folder)
    assert (ours.vocab_size, ours.lower_case) == (3000, lower_case)
    assert ours.pieces(range(5)) == SPECIAL_TOKENS
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (0, 1, 2, 3, 4)
    texts = [*english[:500], "CAFÉ ﬁsh [MASK]"]
    ids = [x.tolist() for x in ours.encode(texts)[0]]
    by_flag = tokenizer.load(do_lower_case=lower_case, **given)
    assert [x.tolist() for x in by_flag.encode(texts)[0]] == ids
    assert by_flag.digest == ours.digest
    assert AutoTokenizer.from_pretrained(folder)(texts[:-1], add_special_tokens=False).input_ids == ids[:-1]
    assert tokenizer.unknown_share([*ours.encode(english)[0]], ours.unk_id) < 0.005
    # A vocabulary of English words it is: fewer than two pieces a word.
    assert sum(map(len, ids)) < 2 * sum(len(text.split()) for text in texts)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_saved_tokenizer_gives_the_ids_of_the_model(korean, tmp_path, kind):
    path = train(iter(korean), tmp_path / "words", kind, 4000)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ids, _ = tokenizer.load(folder=tmp_path / "words").encode(korean)
    different = sum(own.tolist() != their for own, their in zip(ids, processor.encode(korean), strict=True))
    assert different <= 0.005 * len(korean)  # ties: test_sentencepiece.py


def test_two_processes_give_the_same_files(korean, tmp_path):
    """This process and another, in which the libraries' hash tables start from other random numbers."""
    (tmp_path / "text.txt").write_text("\n".join(text.replace("\n", " ") for text in korean), encoding="utf-8")
    program = f"""
import sys
from pathlib import Path
from bert.text.vocabulary import VocabularySettings, train
for kind in {KINDS}:
    with open({str(tmp_path / "text.txt")!r}, encoding="utf-8") as lines:
        settings = VocabularySettings(kind=kind, vocab_size=2000, do_lower_case=kind != "wordpiece")
        train(lines, Path(sys.argv[1]) / kind, settings, max_sentences=1000)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "theirs"],
        cwd=Path(vocabulary.__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert "trainer" not in done.stderr  # SentencePiece's log

    def train_here(name: str, kind: str, seed: int = 12345) -> dict[str, str]:
        settings = VocabularySettings(kind=kind, vocab_size=2000, do_lower_case=kind != "wordpiece")
        with (tmp_path / "text.txt").open(encoding="utf-8") as lines:
            vocabulary.train(lines, tmp_path / name / kind, settings, max_sentences=1000, seed=seed)
        return files(tmp_path / name / kind)

    for kind in KINDS:
        assert train_here("ours", kind) == files(tmp_path / "theirs" / kind)
        assert tokenizer.load(folder=tmp_path / "ours" / kind).case_problem == ""
    another = train_here("another seed", "unigram", seed=5)  # draws other texts
    assert another["spiece.model"] != files(tmp_path / "ours" / "unigram")["spiece.model"]


@pytest.mark.parametrize("lower_case", [True, False])
def test_wordpiece_is_the_library_s_own_but_for_ties(english, tmp_path, lower_case):
    """The library's trainer on the sentences themselves: its choice between equally frequent pairs varies."""
    path = train(english, tmp_path / "words", "wordpiece", 2500, lower_case, character_coverage=1.0)
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=2500, min_frequency=2, special_tokens=SPECIAL_TOKENS, show_progress=False
    )
    theirs.train_from_iterator(english, trainer)
    found = set(theirs.get_vocab())
    assert len(lines) == len(set(lines)) == len(found) == 2500
    assert lines[:5] == SPECIAL_TOKENS
    assert len(found & set(lines)) > 0.97 * 2500


def test_words_are_counted_as_bert_splits_them(korean, english):
    """Normalizing each different word once gives what normalizing the whole texts gives."""
    odd = [
        "a\u2028b c\x85d e\tf\r\ng x\x1cy",
        "北京2008 カタカナ, don't",
        "e\u0301 \u0301x \ufffd\x00",
        "\u00a0a\u3000b",
    ]
    for lower_case in (True, False):
        normalizer, split = normalizers.BertNormalizer(lowercase=lower_case), pre_tokenizers.BertPreTokenizer()
        texts = [*korean[:500], *english[:500], *odd]
        whole = Counter(
            word for text in texts for word, _ in split.pre_tokenize_str(normalizer.normalize_str(text))
        )
        assert vocabulary._words(vocabulary._counted(texts), normalizer, split) == whole


def test_character_coverage(tmp_path):
    texts = ["aaaa bbbb cccc"] * 300 + ["aaaaß"]  # one character in 3,605
    path = train(texts, tmp_path / "all", "wordpiece", 15, character_coverage=1.0)
    assert "##ß" in path.read_text(encoding="utf-8").split("\n")
    path = train(texts, tmp_path / "most", "wordpiece", 14)
    assert "ß" not in path.read_text(encoding="utf-8")
    assert "##a" in path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path):
    """A stream of ten times as many texts, read once: the same peak memory to 10 %."""
    program = """
import resource, sys
from pathlib import Path
from bert.text.vocabulary import VocabularySettings, train
most, folder = int(sys.argv[1]), Path(sys.argv[2])
words = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]
texts = (f"{words[i % 150]} {words[i * 7 % 150]} " * 20 for i in range(most))
train(texts, folder / "a", VocabularySettings(vocab_size=100))
texts = (f"{words[i % 150]} {words[i * 7 % 150]} " * 20 for i in range(most))
train(texts, folder / "b", VocabularySettings(kind="bpe", vocab_size=60, do_lower_case=True), max_sentences=1000)
assert next(texts, None) is None
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    peaks = []
    for most in (10_000, 100_000):  # 1.6 and 16 MB
        command = [sys.executable, "-c", program, str(most), tmp_path / str(most)]
        done = subprocess.run(
            command,
            cwd=Path(vocabulary.__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        )
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.1 * peaks[0]


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_trained(korean, tmp_path, kind):
    def refusal(texts, size):
        with pytest.raises(InputError) as caught:
            train(iter(texts), tmp_path / "words", kind, size)
        assert not list(tmp_path.iterdir())
        assert "\n" not in str(caught.value)
        return str(caught.value)

    few = "--vocab_size 500000 is more than the "
    message = refusal(korean[:300], 500_000)
    assert message.startswith(few)
    assert 1000 < int(message.removeprefix(few).split()[0]) < 20_000
    assert "--vocab_size 30 cannot hold the " in refusal(korean[:300], 30)
    assert "is empty" in refusal([], 1000)
    assert "is empty" in refusal(["", "  "], 1000)
    with pytest.raises(ValueError, match=r"^--character_coverage must be above 0 and at most 1, got 1\.5"):
        VocabularySettings(kind=kind, character_coverage=1.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_the_text_is_what_is_reported(tmp_path, kind):
    def texts():
        yield from ["some text"] * 100
        raise InputError("corpus.txt: line 101 is not UTF-8")

    with pytest.raises(InputError, match=r"^corpus\.txt: line 101 is not UTF-8$"):
        train(texts(), tmp_path / "words", kind, 100)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(english, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    train(english, tmp_path, "wordpiece", 1000)
    before = files(tmp_path)
    assert sorted(before) == ["notes.txt", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    with pytest.raises(InputError, match=r"already holds vocab\.txt, tokenizer_config\.json, tokenizer\.json"):
        train(english, tmp_path, "wordpiece", 2000)
    assert files(tmp_path) == before
    with pytest.raises(InputError, match=r"--output_dir .*notes\.txt is a file"):
        train(english, tmp_path / "notes.txt", "bpe", 2000)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_a_kill_leaves_no_half_vocabulary(tmp_path, kind):
    program = f"""
import itertools, sys
from pathlib import Path
from bert.text.vocabulary import VocabularySettings, train
def texts():
    for number in itertools.count():
        if number == 1000:
            print("reading", flush=True)
        yield f"text number {{number % 1000}}"
train(texts(), Path(sys.argv[1]), VocabularySettings(kind={kind!r}, vocab_size=100))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "words"],
        cwd=Path(vocabulary.__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "words").exists()
    texts = [f"text number {number}" for number in range(1000)]
    assert train(texts, tmp_path / "words", kind, 36).is_file()


def test_lower_case_strips_accents_and_keeps_hangul(tmp_path):
    texts = ["École CAFÉ 한국어를 배운다", "한국어 배운다 école café"] * 50
    for kind, size in (("unigram", 22), ("bpe", 30)):
        train(texts, tmp_path / kind, kind, size, True)
        words = tokenizer.load(folder=tmp_path / kind)
        assert words.encode(["ÉCOLE 한국어"])[0][0].tolist() == words.encode(["ecole 한국어"])[0][0].tolist()
        assert words.unk_id not in words.encode(["ÉCOLE 한국어"])[0][0]
        assert all(unicodedata.normalize("NFC", piece) == piece for piece in words._tokens)
    # BERT's own lower-casing takes syllables apart.
    with pytest.raises(InputError, match=r"50% of the words are Korean, .* apart into letters: give --nodo_lower"):
        train(texts, tmp_path / "wordpiece", "wordpiece", 50, True)
    assert not (tmp_path / "wordpiece").exists()
    train(texts, tmp_path / "wordpiece", "wordpiece", 40, False)
    words = tokenizer.load(folder=tmp_path / "wordpiece")
    assert any("한" in piece for piece in words._tokens)
    few = [*texts, *["plain english words here"] * 5000]  # a name in an English text stops nothing
    train(few, tmp_path / "few", "wordpiece", 70, True)
