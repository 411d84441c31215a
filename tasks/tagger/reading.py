"""Tagged sentences: CoNLL columns, or the tables of JSON lines, of Parquet and of the hub."""

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ringbase.errors import InputError
from ringbase.files import lines_of, read_text
from ringbase.settings import shown
from tasks.runs.rows.sources import Source
from tasks.runs.rows.tables import BINARY_FORMATS, Table, ending_of

PREFIXED = re.compile(r"[BIELMSU]-\S(.*\S)?")  # the tag of a word in an entity
PLAIN = re.compile(r"\S(.*\S)?")
SCHEMES = "BI", "BIES", "BILU", "BMES"  # the prefixes of BIO, BIOES, BILOU and BMES
AS_BIOES = {"L": "E", "U": "S", "M": "I"}
NO_TAGS = {"", "_", "-", "?", "-1"}  # what stands for the tags of a file that has none
MARKS = {"-", "?"}  # of these, those that are also plain tags where they are the words themselves
BARE = {"B", "I", "O", "E", "S", "L", "M", "U"}  # the prefixes of all schemes, without a type
BETWEEN_NUMBERS = re.compile(r"\d+[-.]\d+")  # 3-4 and 8.1 of CoNLL-U
DOCUMENT = "-DOCSTART-"  # the line of CoNLL-2003's files that begins a document
# "# id …" of MultiCoNER, "## klue-ner-…", "# text = …" of CoNLL-U
COMMENT = re.compile("#+([ \\t]|$)")
BLANKS = " \t"  # between columns; all other white space belongs to words
NOT_IN_WORDS = re.compile("[\t\n\r]")  # predictions.conll could not hold them
TAG_COLUMNS = ("ner_tags", "tags", "labels", "pos_tags", "upos")


class Sentence(NamedTuple):
    """Words, or characters; a tag for each, if they are known; the number of the document."""

    words: Sequence[str]
    tags: Sequence[str] | None = None
    document: int = 0
    place: str = ""  # in the file


Sentences = Sequence[Sentence]


def read(source: Source, characters: bool, labels: Sequence[str] = ()) -> list[Sentence]:
    """The sentences of a source; those to train on or to evaluate have tags (see `_with_tags`), of
    `labels` if these are known. Raises InputError, with the line: a damaged file, an empty one, or
    a tag that is none."""
    sentences: list[Sentence] = []
    no_tags = NO_TAGS.difference(labels)
    for sentence in _sentences(source, characters):
        if source.limit == len(sentences):
            break
        if source.kind == "predict" and no_tags.issuperset(sentence.tags or ()):
            sentence = sentence._replace(tags=None)
        where = f"{source}: {sentence.place}"
        _check_words(sentence.words, characters, where)
        if sentence.tags is None and source.kind != "predict":
            raise InputError(f"{where}: there are no tags")
        if sentence.tags is not None and len(sentence.tags) != len(sentence.words):
            raise InputError(f"{where}: {len(sentence.words)} words have {len(sentence.tags)} tags")
        sentences.append(sentence)
    if not sentences:
        raise InputError(f"{source}: there is no sentence in it")
    longest = max(len(sentence.words) for sentence in sentences)
    if longest > 1 and all(map(_is_counted, sentences)):
        raise InputError(
            f"{source}: the first column counts the words, as in CoNLL-U: the word must be the"
            " first column (docs/running.md has a command that makes such a file of it)"
        )
    words = itertools.chain.from_iterable(sentence.words for sentence in sentences)
    if source.kind == "train" and not characters and all(len(word) == 1 for word in words):
        raise InputError(f"{source}: each word is a single character: give --characters")
    return _with_tags(sentences, str(source), characters, labels)


def _check_words(words: Sequence[str], characters: bool, where: str) -> None:
    for number, word in enumerate(words, 1):
        if not word:
            raise InputError(f"{where}: word {number} is empty")
        if NOT_IN_WORDS.search(word):
            raise InputError(
                f"{where}: word {number} must not hold a tab or line end, which the columns of "
                f"predictions.conll cannot, got {word!r:.40}"
            )
        if characters and len(word) != 1:
            raise InputError(
                f"{where}: --characters needs a character in each line, got {word!r:.40}"
            )


def _with_tags(
    sentences: list[Sentence], where: str, characters: bool, labels: Collection[str]
) -> list[Sentence]:
    """The sentences with tags in BIO or BIOES, those of characters in BIO, as which other schemes
    are read; or with plain tags, if none has a prefix."""
    tags = tags_of(sentences)
    pattern = PREFIXED
    needed = "O, or B-, I-, E- or S- and a type, or no tag may have a prefix"
    if is_plain(labels or tags):
        pattern = PLAIN
        needed = "a tag"
    if labels:
        needed = f"one of {', '.join(labels)}"
    elif BARE.issuperset(tags) and tags >= {"B", "O"}:
        raise InputError(
            f"{where}: its tags {', '.join(sorted(tags))} have no types: write B-ENTITY for B and"
            " so on, or another type"
        )
    right = {"O", *filter(pattern.fullmatch, tags - NO_TAGS), *MARKS.intersection(labels)}
    if pattern is PLAIN:
        right |= MARKS - {tag for word, tag in tagged_words(sentences) if word != tag}
    _refuse(tags - right, sentences, where, needed)
    examples = {tag[0]: tag for tag in sorted(tags) if PREFIXED.fullmatch(tag)}
    if not any(examples.keys() <= set(scheme) for scheme in SCHEMES):
        raise InputError(
            f"{where}: {', '.join(examples.values())} are tags of several schemes: write all in"
            " one of BIO, BIOES, BILOU, BMES"
        )
    if examples.keys() - set("BI" if characters else "BIES"):
        sentences = [
            sentence._replace(tags=sentence.tags and in_bioes(sentence.tags, characters))
            for sentence in sentences
        ]
    if labels:
        _refuse(tags_of(sentences).difference(labels), sentences, where, needed)
    return sentences


def tags_of(sentences: Sentences) -> set[str]:
    return {tag for sentence in sentences for tag in sentence.tags or ()}


def tagged_words(sentences: Sentences) -> Iterator[tuple[str, str]]:
    for sentence in sentences:
        yield from zip(sentence.words, sentence.tags or (), strict=False)


def _refuse(wrong: set[str], sentences: list[Sentence], where: str, needed: str) -> None:
    """Raises InputError for the first of these tags, if there are any."""
    for sentence in sentences:
        for place, tag in enumerate(sentence.tags or ()):
            if tag in wrong:
                word = sentence.words[place]
                raise InputError(
                    f"{where}: {sentence.place}: the tag of word {place + 1}, {word!r:.40}, must be"
                    f" {needed}, got {tag!r:.40}"
                )


def is_plain(tags: Collection[str]) -> bool:
    """Whether each word has a tag of its own, such as a part of speech: of several tags none has a
    prefix."""
    return len(tags) > 1 and not any(map(PREFIXED.fullmatch, tags))


@cache
def parted(tag: str) -> tuple[str, str]:
    """The prefix of a tag, as in BIOES, and its type. A plain tag is the type of its word alone, as
    one with S- is."""
    if PREFIXED.fullmatch(tag):
        return AS_BIOES.get(tag[0], tag[0]), tag[2:]
    return ("O", "") if tag == "O" else ("S", tag)


def in_bioes(tags: Sequence[str], characters: bool = False) -> list[str]:
    """Tags of any scheme in BIOES; those of characters in BIO, because a token may hold the last
    one of an entity and others."""
    converted = []
    for before, tag in itertools.pairwise(["O", *tags]):
        prefix, kind = parted(tag)
        if characters:
            prefix = "I" if goes_on(before, tag) else "B"
        converted.append(f"{prefix}-{kind}" if kind else "O")
    return converted


def _is_counted(sentence: Sentence) -> bool:
    """Whether the words are 1, 2, 3, …, perhaps with CoNLL-U's ranges and empty nodes between
    them."""
    numbers = [word for word in sentence.words if not BETWEEN_NUMBERS.fullmatch(word)]
    return all(word == str(number) for number, word in enumerate(numbers, 1))


def text_of(words: Sequence[str], characters: bool) -> tuple[str, list[int]]:
    """The text of a sentence, and where each word starts in it."""
    gap = "" if characters else " "
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word) + len(gap))
    return gap.join(words), starts[:-1]


def goes_on(before: str, tag: str) -> bool:
    """Whether a tag goes on with the entity of the tag before it."""
    prefix, kind = parted(before)
    return prefix in "BI" and parted(tag) in (("I", kind), ("E", kind))


def illegal(sentences: Sentences) -> list[Sentence]:
    """The sentences whose tags contradict their scheme, which is BIOES if there is an E- or S-,
    else BIO."""
    is_bioes = any(parted(tag)[0] in "ES" for tag in tags_of(sentences))

    def is_broken(before: str, tag: str) -> bool:
        if goes_on(before, tag):
            return False
        return parted(tag)[0] in "IE" or (is_bioes and parted(before)[0] in "BI")

    broken = []
    for sentence in sentences:
        edges = itertools.pairwise(["O", *(sentence.tags or ()), "O"])
        if any(is_broken(*edge) for edge in edges):
            broken.append(sentence)
    return broken


# -- files to sentences ----------------------------------------------------------------------------


def _sentences(source: Source, characters: bool) -> Iterator[Sentence]:
    path = Path(source.file or "").expanduser()
    if not source.file or ending_of(path) in (".jsonl", ".json", *BINARY_FORMATS):
        return _of_table(source.table(("tokens", *TAG_COLUMNS), TAG_COLUMNS))
    return _of_columns(path, str(source), characters)


def _of_columns(path: Path, where: str, characters: bool) -> Iterator[Sentence]:
    lines = lines_of(read_text(path, where))
    words = [line for line in lines if not line.startswith(DOCUMENT) and not COMMENT.match(line)]
    columns = [*filter(None, map(_columns, words))]
    num_columns = len(columns[0]) if columns else 0
    tags = {"O", *NO_TAGS, *(row[-1] for row in columns)}
    rows: list[list[str]] = []
    document = 0
    place = ""
    for number, line in enumerate([*lines, ""], 1):
        row = line.split("\t")
        is_blank_character = characters and row[0] == " " and len(row) == num_columns
        row = row if is_blank_character else _columns(line)
        if not row or line.startswith(DOCUMENT):
            if rows:
                tags_of_rows = [row[-1].strip() for row in rows] if num_columns > 1 else None
                yield Sentence([row[0] for row in rows], tags_of_rows, document, place)
            rows = []
            document += line.startswith(DOCUMENT)
            continue
        if not rows and _is_comment(line, row, num_columns, tags):
            continue
        if len(row) != num_columns:
            raise InputError(
                f"{where}: line {number} has {len(row)} columns, {num_columns} are needed"
            )
        if not row[0]:
            raise InputError(f"{where}: line {number}: the word, its first column, is empty")
        if not rows:
            place = f"line {number}"
        rows.append(row)


def _columns(line: str) -> list[str]:
    """Those between tabs, else between runs of blanks; none in a blank line."""
    if not line.strip(BLANKS):
        return []
    return line.split("\t") if "\t" in line else [*filter(None, line.split(" "))]


def _is_comment(line: str, row: Sequence[str], num_columns: int, tags: set[str]) -> bool:
    """Whether a line before the first word of a sentence is a comment: it begins with # and a
    blank, and is no row of this file, with its tags, whose first word may be a #."""
    is_tagged = row[-1] in tags or PREFIXED.fullmatch(row[-1])
    is_row = len(row) == num_columns and (num_columns == 1 or is_tagged)
    return bool(COMMENT.match(line)) and not is_row


def _of_table(table: Table) -> Iterator[Sentence]:
    if table.header:  # none in an empty file, which holds no sentence
        table.find("tokens")
    for place, row in table.rows:
        words: Any = row.get("tokens")
        tags = next((row[name] for name in TAG_COLUMNS if name in row), None) or None
        for texts in (words, tags or ["O"]):
            is_list = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
            if not (texts and is_list):
                raise InputError(
                    f"{table.where}: {place} must have `tokens`, a list of words, and perhaps"
                    f" `ner_tags`, a list of tags such as B-PER, got {shown(texts)} in {shown(row)}"
                )
        yield Sentence(words, tags, place=place)
