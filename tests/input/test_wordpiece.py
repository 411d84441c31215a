"""WordPiece against transformers' and Google's (the Python one that transformers keeps as its
legacy form), and what decides on lower-casing."""

import random
import resource
import unicodedata

import pytest
from harness.real_tokenizers import albert, contexts, kobert, multilingual, nsmc, strings, uncased
from harness.refusals import refused
from harness.texts import SPECIAL_TOKENS, write_vocabulary
from transformers import AutoTokenizer, BertTokenizer
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from bert.text import tokenizer
from ringbase.errors import InputError
from ringbase.files import read_json, write_json
from tasks.runs.rows.texts import MOST_TOKENS

ODD = [
    "Café naïve ÅNGSTRÖM \u202fx\u00a0y\u3000z",
    "smile 😀! 👩‍👩‍👧 \U0001f1f0\U0001f1f7 한국어를 배운다. 굳 ㅋ",
    "tab\tnew\nline\r\x00null\ufffd soft\u00adhyphen zero\u200bwidth \x07bell",
    "北京2008 カタカナ, don't U.S. $5.00 (1999)—“quoted” a/b",
    *("", "   "),
]
# Up to Cyrillic, where all versions of Unicode agree; Python lower-cases a Σ by its place in the
# word.
OLD = [c for c in map(chr, range(0x530)) if unicodedata.category(c) != "Cn" and c != "Σ"]


@pytest.mark.parametrize("load", [uncased, multilingual])
def test_ids_are_those_of_transformers_and_of_google(load):
    draw, pools = random.Random(1), (OLD, "ab ,.한국어北京カ😀")
    texts = ["".join(draw.choice(draw.choice(pools)) for _ in range(40)) for _ in range(500)]
    texts += [*contexts()[:150], *contexts()[500:700], *nsmc(400), *ODD]
    ids = [own.tolist() for own in load().encode(texts)[0]]
    assert ids == [own.tolist() for own in load().encode_ids(texts)]
    theirs, google = (
        made(load().source, do_lower_case=load().lower_case)
        for made in (BertTokenizer, BertTokenizerLegacy)
    )
    google.wordpiece_tokenizer.max_input_chars_per_word = 200
    assert ids == theirs(texts, add_special_tokens=False).input_ids
    odd = strings(10_000)
    assert [own.tolist() for own in load().encode_ids(odd)] == theirs(
        odd, add_special_tokens=False
    ).input_ids
    # the legacy form composes accents, as Google's program does not
    first = 0 if load is uncased else 500
    for text, own in zip(texts[first:], ids[first:], strict=True):
        assert own == google.convert_tokens_to_ids(google.tokenize(text)), text


def test_a_word_has_up_to_200_characters_as_google_s(tmp_path):
    """transformers' own limit is 100; what is saved keeps ours there, also beside a model's
    configuration."""
    ours, texts = (
        tokenizer.load(str(write_vocabulary(tmp_path, "a", "##a"))),
        ["a" * 200, "a" * 201],
    )
    ours.save(tmp_path)
    # by which transformers chooses the class
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)(texts, add_special_tokens=False).input_ids
    for ids in (ours.encode_ids(texts), tokenizer.load(folder=tmp_path).encode_ids(texts), theirs):
        assert [*map(len, ids)] == [200, 1]


def test_pieces_that_continue_words_and_a_token_listed_twice(tmp_path):
    """In a file with a byte order mark and the line ends of Windows."""
    special = ["a", *reversed(SPECIAL_TOKENS)]
    path = write_vocabulary(tmp_path, "play", "##ing", "##s", "#", "play", special=special)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    ours = tokenizer.load(str(path))
    assert ours.continues_word.tolist() == [False] * 7 + [True, True, False, False]
    ours.save(tmp_path / "saved")
    (tmp_path / "saved" / "tokenizer.json").unlink()  # vocab.txt says the same: the last id counts
    for words in (ours, tokenizer.load(folder=tmp_path / "saved")):
        assert words.encode(["playings #"])[0][0].tolist() == [10, 7, 8, 9]


def test_bad_vocabularies_are_refused(tmp_path):
    path = tmp_path / "vocab.txt"
    refused(tokenizer.load, "--vocab_file")
    for lines, named in (
        (None, ""),
        (["[PAD]", "[UNK]", "[SEP]", *"abc"], "[CLS], [MASK]"),
        ([*SPECIAL_TOKENS, "a", "", "b"], "line 7 "),
        ([*SPECIAL_TOKENS, "\udcff"], "UTF-8"),
    ):
        if lines:
            path.write_bytes("\n".join([*lines, ""]).encode("utf-8", "surrogateescape"))
        refused(lambda: tokenizer.load(str(path)), path, named)
    path = tmp_path / "tokenizer.json"
    for content in (
        '{"model": ',
        '{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}}',
    ):
        path.write_text(content)
        refused(lambda: tokenizer.load(folder=tmp_path), path)


def test_a_huge_id_is_refused_before_it_takes_memory(tmp_path):
    tokenizer.load(str(write_vocabulary(tmp_path, "a"))).save(tmp_path / "saved")
    path = tmp_path / "saved" / "tokenizer.json"
    saved = read_json(path)
    saved["model"]["vocab"]["a"] = 1 << 31
    write_json(path, saved)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(lambda: tokenizer.load(folder=path.parent), path, f"{1 << 31:,}")
    # once it took 8 GiB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak_kib + (1 << 20)


def test_lower_case_is_the_default_and_a_folder_s_word_counts(tmp_path):
    path, saved = str(write_vocabulary(tmp_path, "Ab", "ab")), tmp_path / "saved"

    def ids(**given):
        return tokenizer.load(**given).encode(["Ab"])[0][0].tolist()

    assert ids(vocab_file=path) == [6]
    assert ids(vocab_file=path, do_lower_case=False) == [5]
    tokenizer.load(path, do_lower_case=False).save(saved)
    assert ids(folder=saved) == ids(vocab_file=path, folder=saved) == [5]
    assert ids(vocab_file=str(saved / "vocab.txt")) == [5]  # as beside it
    assert ids(vocab_file=path, folder=saved, do_lower_case=True) == [6]
    refused(lambda: tokenizer.load(folder=saved, do_lower_case=True), "--do_lower_case", saved)
    # then vocab.txt alone
    for name, expected in (("tokenizer_config.json", 5), ("tokenizer.json", 6)):
        (saved / name).unlink()
        assert ids(folder=saved) == [expected]


PUBLISHED = [
    ("/data/uncased_L-24_H-1024_A-16/bert_model.ckpt", True),
    ("chinese_L-12_H-768_A-12/bert_model.ckpt", True),
    ("/data/uncased/cased_L-24_H-1024_A-16/bert_model.ckpt", False),
    ("google-bert/bert-base-multilingual-cased", False),
    *(
        (name, None)
        for name in ("", "model.ckpt-100", "runs/uncased-and-cased/x", "uppercased/bert_model.ckpt")
    ),
]


@pytest.mark.parametrize(("name", "lower_case"), PUBLISHED)
def test_the_published_names_tell_their_case(tmp_path, name, lower_case):
    """Google's `validate_case_matches_checkpoint`."""
    path = str(write_vocabulary(tmp_path, "a"))
    for chosen in (True, False):
        if lower_case in (None, chosen):
            assert tokenizer.load(path, None, chosen, name).lower_case == chosen
        else:
            expected = f"--do_lower_case={lower_case}"
            refused(lambda: tokenizer.load(path, None, not lower_case, name), name, expected)


SCRIPTS = """Übung macht den Meister, SCHÖN
Hà Nội là thủ đô
café naïve Ångström
ΑΘΉΝΑ πόλη
Ёлка МОЙ
東京は日本の首都です
北京2008年
한국어 문장
हिन्दी में
กรุงเทพฯ
العاصمةُ
יְרוּשָׁלַיִם
İstanbul ß ﬁ""".splitlines()
CONFIGURATIONS = [
    {},
    {"do_lower_case": True},
    {"do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True},
    {"tokenize_chinese_chars": False},
    {"strip_accents": False},
    {"do_lower_case": False, "strip_accents": None, "tokenizer_class": "BertTokenizer"},
    {"do_lower_case": True, "strip_accents": False, "tokenizer_class": "ElectraTokenizerFast"},
    {"do_lower_case": True, "strip_accents": False, "tokenizer_class": "PreTrainedTokenizerFast"},
    {"tokenizer_class": "TokenizersBackend"},
]


@pytest.mark.parametrize("stated", CONFIGURATIONS, ids=str)
def test_a_tokenizer_config_decides_as_for_transformers(tmp_path, stated):
    """With vocab.txt alone, beside tokenizer.json files that say otherwise, and after saving."""
    text = "".join(SCRIPTS)
    forms = [
        unicodedata.normalize(form, case)
        for form in ("NFC", "NFD")
        for case in (text, text.lower())
    ]
    characters = sorted({*"".join(forms)} - {" "})
    path = write_vocabulary(tmp_path, *characters, *(f"##{character}" for character in characters))
    vocabulary = tokenizer.load(str(path), do_lower_case=False)
    needs_json = stated.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend")
    for normalizer in (
        None,
        {"lowercase": False, "strip_accents": None},
        {"lowercase": True, "strip_accents": False},
    ):
        if normalizer is None and needs_json:
            continue
        folder = tmp_path / str(normalizer and normalizer["lowercase"])
        vocabulary.save(folder)
        if normalizer is None:
            (folder / "tokenizer.json").unlink()
        else:
            saved = read_json(folder / "tokenizer.json")
            saved["normalizer"] |= normalizer
            write_json(folder / "tokenizer.json", saved)
        names = {f"{word[1:-1].lower()}_token": word for word in SPECIAL_TOKENS}
        write_json(folder / "tokenizer_config.json", stated | names)
        (folder / "config.json").write_text('{"model_type": "bert"}')
        ours, theirs = tokenizer.load(folder=folder), AutoTokenizer.from_pretrained(folder)
        expected = theirs(SCRIPTS, add_special_tokens=False).input_ids
        assert [ids.tolist() for ids in ours.encode_ids(SCRIPTS)] == expected
        ours.save(folder / "again")
        by_file = tokenizer.load(str(folder / "again/vocab.txt"))
        assert tokenizer.load(folder=folder / "again").digest == by_file.digest == ours.digest


def test_a_tokenizer_of_other_code_is_refused(tmp_path):
    tokenizer.load(str(write_vocabulary(tmp_path, "a"))).save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    for content, named in (
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapaneseTokenizer"),
        ({"strip_accents": "yes"}, "strip_accents"),
    ):
        write_json(path, content)
        refused(lambda: tokenizer.load(folder=tmp_path), path, named)
        refused(lambda: tokenizer.load(str(tmp_path / "vocab.txt")), path, named)


def test_what_a_vocabulary_loses_by_its_case_is_said():
    """Both shares are also those of Google's own tokenizer (BertTokenizerLegacy) on these lines."""
    lost, kept = multilingual(do_lower_case=True), multilingual()
    shares = [
        tokenizer.unknown_share(words.encode_ids(nsmc()), words.unk_id) for words in (lost, kept)
    ]
    assert shares == pytest.approx([0.7536, 0.0164], abs=1e-4)
    with pytest.raises(InputError, match=r"75\.4%.*--do_lower_case"):
        tokenizer.check_unknown(shares[0], "ratings.txt", lost, allow_unknown=False)
    rates = [
        tokenizer.tokens_per_character(words.encode_ids(nsmc()), nsmc())
        for words in (uncased(), kept)
    ]
    assert [rate > MOST_TOKENS for rate in rates] == [True, False]  # Hangul in jamo
    assert "--do_lower_case" in albert().case_problem  # it has no capital letters
    assert {words.case_problem for words in (albert(True), kobert(), kept, uncased())} == {""}
