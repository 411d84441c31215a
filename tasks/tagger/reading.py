"""Tagged sentences: CoNLL columns, or the tables of JSON lines, of Parquet and of the hub."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bert.hub import load_data_set
from ringbase.errors import InputError
from ringbase.files import lines_of, read_text
from ringbase.settings import shown
from tasks.runs.tables import Table, ending_of, of_data_set, open_table
from tasks.tagger.settings import FileSettings

TAG = re.compile(r"O|[BIES]-\S(.*\S)?")
NO_TAGS = {"", "_", "-", "?", "-1"}  # what stands for the tags of a file that has none
SPLITS = {"train": "train", "dev": "validation", "predict": "test"}
DOCUMENT = "-DOCSTART-"  # the line of CoNLL-2003's files that begins a document
# "# id …" of MultiCoNER, "## klue-ner-…", "# text = …" of CoNLL-U
COMMENT = re.compile("#+([ \\t]|$)")
BLANKS = " \t"  # between columns; all other white space belongs to words
NOT_IN_WORDS = re.compile("[\t\n\r]")  # predictions.conll could not hold them
# Other schemes than BIO and BIOES, by the letters that these lack: how to write their tags.
OTHER_SCHEMES = {"L": "E-", "U": "S-", "M": "I-"}  # BILOU's and BMES's
OTHER_SCHEMES_OF_CHARACTERS = {"M": "I-", "E": "I-", "L": "I-", "S": "B-", "U": "B-"}
TAG_COLUMNS = ("ner_tags", "tags", "labels")


class Sentence(NamedTuple):
    """Words, or characters; a tag for each, if they are known; the number of the document."""

    words: Sequence[str]
    tags: Sequence[str] | None = None
    document: int = 0
    place: str = ""  # in the file


@dataclass(frozen=True)
class Source:
    """The "train", "dev" or "predict" sentences of the settings."""

    files: FileSettings
    kind: str

    def __str__(self) -> str:
        return (
            f"--{self.kind}_file {self.path}"
            if self.path
            else f"--dataset_name {self.files.dataset_name}"
        )

    @property
    def path(self) -> Path | None:
        path = getattr(self.files, f"{self.kind}_file")
        return Path(path).expanduser() if path else None

    @property
    def limit(self) -> int | None:
        return (
            self.files.max_train_examples
            if self.kind == "train"
            else self.files.max_predict_examples
        )


def read(source: Source, characters: bool, labels: Sequence[str] = ()) -> list[Sentence]:
    """The sentences of a source; those to train on or to evaluate have tags, of `labels` if these
    are known. Raises InputError, with the line: a damaged file, an empty one, or a tag that is
    none."""
    sentences = list[Sentence]()
    for each in _sentences(source, characters):
        if source.limit == len(sentences):
            break
        if source.kind == "predict" and NO_TAGS.issuperset(each.tags or ()):
            each = each._replace(tags=None)
        where = f"{source}: {each.place}"
        _check_words(each.words, characters, where)
        if each.tags is None and source.kind != "predict":
            raise InputError(f"{where}: there are no tags")
        if each.tags is not None:
            _check_tags(each.words, each.tags, characters, labels, where)
        sentences.append(each)
    if not sentences:
        raise InputError(f"{source}: there is no sentence in it")
    if max(len(each.words) for each in sentences) > 1 and all(map(_is_counted, sentences)):
        raise InputError(
            f"{source}: the first column counts the words, as in CoNLL-U: the word must be the"
            " first column"
        )
    if (
        source.kind == "train"
        and not characters
        and all(len(word) == 1 for each in sentences for word in each.words)
    ):
        raise InputError(f"{source}: each word is a single character: give --characters")
    return sentences


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


def _check_tags(
    words: Sequence[str], tags: Sequence[str], characters: bool, labels: Sequence[str], where: str
) -> None:
    if len(tags) != len(words):
        raise InputError(f"{where}: {len(words)} words have {len(tags)} tags")
    known = set(labels)
    kinds, other_schemes = "B-, I-, E- or S-", OTHER_SCHEMES
    if characters:
        kinds, other_schemes = "B- or I-", OTHER_SCHEMES_OF_CHARACTERS
    for number, (word, tag) in enumerate(zip(words, tags, strict=True), 1):
        is_tag = TAG.fullmatch(tag) and not (characters and tag[0] in "ES")
        if is_tag and (not known or tag in known):
            continue
        expected = f"one of {', '.join(labels)}" if known else f"O, or {kinds} and a type"
        advice = ""
        if not is_tag and tag[1:2] == "-" and tag[0] in other_schemes:
            advice = ": write " + ", ".join(
                f"{old}- as {new}" for old, new in other_schemes.items()
            )
        raise InputError(
            f"{where}: the tag of word {number}, {word!r:.40}, must be {expected}, got"
            f" {tag!r:.40}{advice}"
        )


def _is_counted(sentence: Sentence) -> bool:
    """Whether the words are 1, 2, 3, …"""
    return all(word == str(number) for number, word in enumerate(sentence.words, 1))


def text_of(words: Sequence[str], characters: bool) -> tuple[str, list[int]]:
    """The text of a sentence, and where each word starts in it."""
    gap = "" if characters else " "
    ends = itertools.accumulate((len(word) + len(gap) for word in words), initial=0)
    return gap.join(words), [*ends][:-1]


def goes_on(before: str, tag: str) -> bool:
    """Whether a tag goes on with the entity of the tag before it."""
    return before[0] in "BI" and tag[0] in "IE" and before[2:] == tag[2:]


def illegal(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The sentences whose tags contradict their scheme, which is BIOES if there is an E- or S-,
    else BIO."""
    is_bioes = any(tag[0] in "ES" for each in sentences for tag in each.tags or ())

    def is_broken(before: str, tag: str) -> bool:
        return not goes_on(before, tag) and (tag[0] in "IE" or (is_bioes and before[0] in "BI"))

    return [
        each
        for each in sentences
        if each.tags and any(map(is_broken, ["O", *each.tags], [*each.tags, "O"]))
    ]


# -- files to sentences ----------------------------------------------------------------------------


def _sentences(source: Source, characters: bool) -> Iterator[Sentence]:
    path, where, files = source.path, str(source), source.files
    if path is None:
        data = load_data_set(
            str(files.dataset_name), None, SPLITS[source.kind], where, files.dataset_revision
        )
        return _of_table(of_data_set(data, where, TAG_COLUMNS))
    if ending_of(path) in (".jsonl", ".json", ".parquet"):
        return _of_table(open_table(path, where, ("tokens", *TAG_COLUMNS)))
    return _of_columns(path, where, characters)


def _of_columns(path: Path, where: str, characters: bool) -> Iterator[Sentence]:
    lines = lines_of(read_text(path, where))
    sizes = (
        len(_columns(line))
        for line in lines
        if not line.startswith(DOCUMENT) and not COMMENT.match(line)
    )
    num_columns = next(filter(None, sizes), 0)
    rows, document, place = list[list[str]](), 0, ""
    for number, line in enumerate([*lines, ""], 1):
        row = line.split("\t")
        is_blank_character = characters and row[0] == " " and len(row) == num_columns
        if not is_blank_character:
            row = _columns(line)
        if not row or line.startswith(DOCUMENT):
            if rows:
                yield _of_rows(rows, document, place)
            rows = []
            document += line.startswith(DOCUMENT)
            continue
        if not rows and _is_comment(line, row, num_columns):
            continue
        if len(row) != num_columns:
            raise InputError(
                f"{where}: line {number} has {len(row)} columns, {num_columns} are needed"
            )
        if not row[0]:
            raise InputError(f"{where}: line {number}: the word, its first column, is empty")
        place = place if rows else f"line {number}"
        rows.append(row)


def _columns(line: str) -> list[str]:
    """Those between tabs, else between runs of blanks; none in a blank line."""
    if not line.strip(BLANKS):
        return []
    return line.split("\t") if "\t" in line else [*filter(None, line.split(" "))]


def _is_comment(line: str, row: Sequence[str], num_columns: int) -> bool:
    """Whether a line before the first word of a sentence is a comment: it begins with # and a
    blank, and is no row of this file, whose first word may be a #."""
    is_row = len(row) == num_columns and (
        num_columns == 1 or TAG.fullmatch(row[-1]) or row[-1] in NO_TAGS
    )
    return bool(COMMENT.match(line)) and not is_row


def _of_rows(rows: Sequence[Sequence[str]], document: int, place: str) -> Sentence:
    tags = [row[-1].strip() for row in rows] if len(rows[0]) > 1 else None
    return Sentence([row[0] for row in rows], tags, document, place)


def _of_table(table: Table) -> Iterator[Sentence]:
    if table.header:  # none in an empty file, which holds no sentence
        table.find("tokens")
    for place, row in table.rows:
        tag_column = next((name for name in TAG_COLUMNS if name in row), None)
        for name in ("tokens", tag_column):
            texts = row.get(name)
            is_list = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
            is_missing = not texts and name == tag_column
            if not is_missing and not (texts and is_list):
                raise InputError(
                    f"{table.where}: {place} must have `tokens`, a list of words, and perhaps"
                    f" `ner_tags`, a list of tags such as B-PER: `{name}` is {shown(texts)} in"
                    f" {shown(row)}"
                )
        yield Sentence(row["tokens"], row.get(tag_column) or None, place=place)
