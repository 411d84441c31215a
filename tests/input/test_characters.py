"""Characters and words of many scripts, by Unicode's own rules (Annex #29); tokens at which words
begin."""

import re
import unicodedata

import numpy as np
import pytest
from harness.real_data import real
from harness.real_tokenizers import albert, kobert, multilingual, uncased
from transformers import PreTrainedTokenizerFast

from bert.text.characters import end_of_character, word_spans
from distributed.world import World
from tasks.runs.rows.cache import in_memory
from tasks.runs.rows.texts import Tokenization
from tasks.tagger.reading import Sentence
from tasks.tagger.settings import SentenceSettings
from tasks.tagger.task import TagTask


def nfd(text):
    return unicodedata.normalize("NFD", text)


WORDS = {
    "हम दिल्ली गए, कि.मी.": "हम|दिल्ली|गए|,|कि.मी.",
    "قَالَ مُحَمَّدٌ: نعم": "قَالَ|مُحَمَّدٌ|:|نعم",
    "می\u200cخواهم بروم": "می\u200cخواهم|بروم",
    "ฉันรักกรุงเทพ ๑๒๓": "ฉันรักกรุงเทพ|๑๒๓",
    nfd("수도는 서울이다."): nfd("수도는|서울이다|."),
    nfd("José, Málaga"): nfd("José|,|Málaga"),
    "我們 東京タワー": "我們|東京タワー",
    "👨\u200d👩\u200d👧 👍🏽❤\ufe0f 🇰🇷🇯🇵1\ufe0f\u20e3": (
        "👨\u200d👩\u200d👧|👍🏽|❤\ufe0f|🇰🇷|🇯🇵|1\ufe0f\u20e3"
    ),
    "don't a_b 3.5": "don|'|t|a_b|3.5",
    "\u200fשלום\u200f co\u00adop\u200b": "שלום|co\u00adop",
}


@pytest.mark.parametrize(("text", "words"), WORDS.items())
def test_words_hold_whole_characters(text, words):
    assert [text[start:end] for start, end in word_spans(text)] == words.split("|")


def cut(text):
    return [text[start:end] for start, end in word_spans(text)]


# As CoNLL-2003, OntoNotes and WNUT-17 have them in a line of their own.
KEPT = """O'Neill D\u2019Angelo U.S. U.K. e.g. J.K. AT&T S&P Procter&Gamble Jean-Luc Anne-Marie
Aix-en-Provence 20-year-old @ada_l #London ada@b.org example.com 4.5 1,000.50 12:30 1996-08-30 F-16
... -- !! http://t.co/a?b=1"""


def test_words_are_those_of_tagged_corpora():
    words = KEPT.split()
    for word in words:
        assert cut(word) == [word]
        assert cut(f'"{word}", ({word}) {word}') == ['"', word, '"', ",", "(", word, ")", word]
    assert cut(" ".join(words)) == words
    assert cut("Ada's co. It ended.Next l'Europe") == (
        ["Ada", "'s", "co", ".", "It", "ended", ".", "Next", "l", "'", "Europe"]
    )


def test_most_words_of_a_real_corpus_are_found_in_its_text():
    """WNUT-17's, whose text has a blank between words; 0.886 of them where all marks are words of
    their own, 0.958 with those that are joined."""
    found = total = 0
    for block in re.split(r"\n\s*\n", real("ner/wnut17/train.conll").read_text()):
        words = [line.split("\t")[0] for line in block.split("\n") if line]
        places = np.cumsum([0, *(len(word) + 1 for word in words)])
        spans = {(start, start + len(word)) for start, word in zip(places, words, strict=False)}
        found += len(spans & {*word_spans(" ".join(words))})
        total += len(words)
    assert found / total > 0.95


@pytest.mark.parametrize(
    ("text", "end", "whole"),
    [
        ("Jose\u0301.", 4, 5),
        ("abc", 2, 2),
        ("❤\ufe0f!", 1, 2),
        ("हिन्दी", 1, 2),
        ("القاهرةُ و", 7, 8),
        (nfd("서울"), 2, 2),
        (nfd("서울"), 3, 5),
        ("👩\u200d👧x", 1, 3),
        ("🇰🇷🇯🇵", 2, 2),
        ("a", 1, 1),
    ],
)
def test_a_character_ends_behind_its_marks(text, end, whole):
    assert end_of_character(text, end) == whole


ODD_WORDS = [
    "Paris",
    "\u200bParis",
    "\u200fשלום",
    "\u200eHaifa",
    "\ufeffParis",
    "\u00adParis",
    "\u200cسلام",
    "\u200dParis",
    "\u2060Paris",
    "\u2068Paris",
    "\u0002Paris",
    "\ufffdParis",
    "\u00a0Paris",
    "\u3000東京",
    "\u0301Paris",
    "\ufe0fParis",
    "10\u00a0000",
    "\u202aPer\u202c",
    "👍🏽",
    "दिल्ली",
    nfd("Málaga"),
    "10km",
    "don't",
]


@pytest.mark.parametrize(
    "load", [uncased, multilingual, lambda: multilingual(True), kobert, albert]
)
def test_a_word_begins_at_its_first_token(run, load):
    """As transformers counts the tokens of the same model for words given one by one
    (`word_ids`)."""
    tokenizer = load()
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend)
    sentences = [Sentence(["the", word, "end"], ["O", "B-x", "O"]) for word in ODD_WORDS]
    task = TagTask(SentenceSettings(), ("O", "B-x"))
    rows = task.tables(sentences, Tokenization(World(), run, tokenizer))["rows"].to_pylist()
    for sentence, row in zip(sentences, rows, strict=True):
        word_ids = theirs(
            sentence.words, is_split_into_words=True, add_special_tokens=False
        ).word_ids()
        assert len(row["words"]) == len(word_ids) + 2
        firsts = [row["words"].index(word) - 1 for word in range(3)]
        assert firsts == [word_ids.index(word) for word in range(3)], ascii(sentence.words)
        assert [tag for tag in row["tags"] if tag >= 0] == [0, 1, 0]


def test_words_that_leave_no_token_are_counted(run):
    sentences = [Sentence(["a", "\u00ad", "b", "\u200b"], place="line 7"), Sentence(["c"])]
    task = TagTask(labels=("O",))
    data = in_memory(task.tables(sentences, Tokenization(World(), run, uncased())))
    assert any(
        note.startswith("2 words") and "'\\xad' (line 7)" in note for note in data.facts["notes"]
    )
