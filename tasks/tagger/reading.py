"""Tagged sentences: CoNLL columns, JSON lines, or a data set of the hub."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bert.hub import load_data_set
from ringbase.errors import InputError
from ringbase.files import read_text
from ringbase.settings import shown
from tasks.tagger.settings import FileSettings
from tasks.texts import json_lines

TAG = re.compile(r"O|[BIES]-.+")
SPLITS = {"train": "train", "dev": "validation", "predict": "test"}
DOCUMENT, COMMENT = "-DOCSTART-", "## "  # lines of CoNLL-2003's files that begin a document, and of KLUE's
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
        return f"--{self.kind}_file {self.path}" if self.path else f"--dataset_name {self.files.dataset_name}"

    @property
    def path(self) -> Path | None:
        path = getattr(self.files, f"{self.kind}_file")
        return Path(path).expanduser() if path else None

    @property
    def limit(self) -> int | None:
        return self.files.max_train_examples if self.kind == "train" else self.files.max_predict_examples


def read(source: Source, characters: bool, labels: Sequence[str] = ()) -> list[Sentence]:
    """The sentences of a source; those to train on or to evaluate have tags, of `labels` if these are known.
    Raises InputError, with the line: a damaged file, an empty one, or a tag that is none."""
    sentences, known = list[Sentence](), set(labels)
    rows = _of_hub(source) if source.path is None else _of_file(source.path, str(source))
    for each in rows:
        if source.limit == len(sentences):
            break
        where = f"{source}: {each.place}"
        if each.tags is None and source.kind != "predict":
            raise InputError(f"{where}: there are no tags")
        if characters and (long := next((word for word in each.words if len(word) != 1), None)) is not None:
            raise InputError(f"{where}: --characters needs a character in each line, got {long!r:.40}")
        if each.tags is not None and len(each.tags) != len(each.words):
            raise InputError(f"{where}: {len(each.words)} words have {len(each.tags)} tags")
        for word, tag in zip(each.words, each.tags or (), strict=False):
            if not TAG.fullmatch(tag) or (characters and tag[0] in "ES") or (known and tag not in known):
                kinds = "B- or I-" if characters else "B-, I-, E- or S-"
                expected = f"one of {', '.join(labels)}" if known else f"O, or {kinds} and a type"
                raise InputError(f"{where}: the tag of {word!r:.40} must be {expected}, got {tag!r:.40}")
        sentences.append(each)
    if not sentences:
        raise InputError(f"{source}: there is no sentence in it")
    if (
        source.kind == "train"
        and not characters
        and all(len(word) == 1 for each in sentences for word in each.words)
    ):
        raise InputError(f"{source}: each word is a single character: give --characters")
    return sentences


def text_of(words: Sequence[str], characters: bool) -> tuple[str, list[int]]:
    """The text of a sentence, and where each word starts in it."""
    gap = "" if characters else " "
    ends = itertools.accumulate((len(word) + len(gap) for word in words), initial=0)
    return gap.join(words), [*ends][:-1]


def goes_on(before: str, tag: str) -> bool:
    """Whether a tag goes on with the entity of the tag before it."""
    return before[0] in "BI" and tag[0] in "IE" and before[2:] == tag[2:]


def illegal(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The sentences whose tags contradict their scheme, which is BIOES if there is an E- or S-, else BIO."""
    is_bioes = any(tag[0] in "ES" for each in sentences for tag in each.tags or ())

    def is_broken(before: str, tag: str) -> bool:
        return not goes_on(before, tag) and (tag[0] in "IE" or (is_bioes and before[0] in "BI"))

    return [
        each for each in sentences
        if each.tags and any(map(is_broken, ["O", *each.tags], [*each.tags, "O"]))
    ]  # fmt: skip


# -- files to sentences -------------------------------------------------------------------------------------------


def _of_file(path: Path, where: str) -> Iterator[Sentence]:
    text = read_text(path, where)
    if path.name.removesuffix(".gz").endswith((".json", ".jsonl")):
        for place, value in json_lines(text, where):
            yield _of_object(value, place, where)
        return
    rows, document, num_columns, place = list[list[str]](), 0, 0, ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        line = line.rstrip("\r")
        if line.strip() and not line.startswith((DOCUMENT, COMMENT)):
            row = line.split("\t") if "\t" in line else line.split()
            num_columns = num_columns or len(row)
            if len(row) != num_columns or not row[0]:
                raise InputError(f"{where}: line {number} has {len(row)} columns, {num_columns} are needed")
            place = place if rows else f"line {number}"
            rows.append(row)
        elif rows:
            tags = [row[-1] for row in rows] if num_columns > 1 else None
            yield Sentence([row[0] for row in rows], tags, document, place)
            rows = []
        document += line.startswith(DOCUMENT)


def _of_object(value: Mapping[str, Any], place: str, where: str) -> Sentence:
    words: Any = value.get("tokens")
    tags: Any = next((value[name] for name in TAG_COLUMNS if name in value), None)
    if not (words and are_texts(words) and all(words)) or not (tags is None or (tags and are_texts(tags))):
        expected = "`tokens`, a list of words, and perhaps `ner_tags`, a list of their tags, such as B-PER"
        raise InputError(f"{where}: {place}: it must have {expected}, got {shown(value)}")
    return Sentence(words, tags, place=place)


def are_texts(values: Any) -> bool:
    """Whether this is a list of texts."""
    return isinstance(values, list) and all(isinstance(each, str) for each in values)


def _of_hub(source: Source) -> Iterator[Sentence]:
    files, split = source.files, SPLITS[source.kind]
    table: Any = load_data_set(str(files.dataset_name), None, split, str(source), files.dataset_revision)
    tag_column = next((name for name in TAG_COLUMNS if name in table.column_names), None)
    if "tokens" not in table.column_names:
        raise InputError(f"{source} ({split}): no column 'tokens', only {', '.join(table.column_names)}")
    names = getattr(getattr(table.features.get(tag_column), "feature", None), "names", None)
    for number, row in enumerate(table, 1):
        words, tags = row["tokens"], row[tag_column] if tag_column else None
        if names and tags:
            tags = [names[tag] if tag in range(len(names)) else tag for tag in tags]
        if not are_texts(words) or not (tags is None or are_texts(tags)):
            raise InputError(
                f"{source} ({split}): row {number}: tokens must be a list of words, and {tag_column} a list "
                f"of texts such as B-PER, or of numbers that the data set has names for, got {shown(row)}"
            )
        yield Sentence(words, tags, 0, f"row {number}")
