"""From a source to examples, and from these to rows of tokens. Without TensorFlow."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from bert.text.tokenizer import Tokenizer
from ringbase.errors import InputError
from ringbase.files import digest
from tasks.runs.rows.cache import Tables
from tasks.runs.rows.texts import Tokenization

Examples = TypeVar("Examples")


class Source(Protocol):
    """Where examples are; its text names the flag and the file, for messages."""

    @property
    def kind(self) -> str:
        """Of what is read: "train", "dev" or "predict"."""

    @property
    def commit(self) -> str | None:
        """The hub's, of a data set."""

    @property
    def suffix(self) -> str:
        """Of the files of predictions, where a task has several sets."""

    @property
    def is_printed(self) -> bool:
        """Whether its predictions go to standard output only: those of standard input."""


class Reader(Generic[Examples]):
    """What reads the examples of a task and makes rows of them."""

    name: ClassVar[str]
    # increase when `read` or `tables` makes something else: old rows are not used
    version: ClassVar[int] = 1
    table: ClassVar[str] = "rows"  # whose rows are predicted
    train_table: ClassVar[str | None] = None  # whose rows are trained on, if they are others

    # For type checkers only. Subclasses have these as fields or properties, and a dataclass would
    # take a property of its base for the default of a field.
    if TYPE_CHECKING:

        @property
        def labels(self) -> Sequence[str] | None:
            """The names of the model's outputs, if they have names."""

        @property
        def settings(self) -> Mapping[str, Any]:
            """What prediction must know, by flag; kept beside the model."""

        @property
        def max_seq_length(self) -> int:
            """The most tokens of a row."""

    else:
        labels = ()

    def read(self, source: Any) -> Examples:
        """The examples of a source. Raises InputError, which names the place."""
        raise NotImplementedError

    def is_read_alike(self, examples: Examples) -> bool:
        """Whether a reader without `labels`, which has read these examples, has read what this one
        would."""
        return True

    def key(self, source: Any, read: Callable[[], Examples]) -> object:
        """All that the rows of a source depend on, besides the tokenizer: `settings` have all that
        `tables` reads. `read` reads the source."""
        return self.settings, self.max_seq_length, self.labels, read()

    def tables(self, examples: Examples, tokenization: Tokenization) -> Tables:
        """The rows of examples, with the facts "notes", to be printed, and those of
        `Tokenization.fit`."""
        raise NotImplementedError

    def rows_of(self, examples: Examples) -> tuple[int, bool]:
        """How many rows to train on the examples make without counting tokens, and whether it is
        exact: an estimate where long texts become several rows."""
        return len(examples), False  # type: ignore[arg-type]


class Readings:
    """The examples that this process has read: each source is read once."""

    def __init__(self) -> None:
        self._read: list[tuple[object, Any]] = []  # sources cannot be hashed

    def of(self, reader: Reader[Examples], source: object) -> Examples:
        """The examples of a source. Raises InputError as `Reader.read`."""
        for known, examples in self._read:
            if known == source and reader.is_read_alike(examples):
                return examples
        self.forget(source)
        examples = reader.read(source)
        self._read.append((source, examples))
        return examples

    def forget(self, source: object) -> None:
        """Frees the memory of a source whose examples nobody needs again."""
        self._read = [each for each in self._read if each[0] != source]


def rows_key(
    reader: Reader[Examples], source: object, tokenizer: Tokenizer, readings: Readings
) -> str:
    """The digest of all that the rows of a source depend on. Raises InputError as `Reader.read`."""
    key = reader.key(source, partial(readings.of, reader, source))
    try:
        return digest(reader.name, reader.version, tokenizer.digest, key)
    except TypeError as error:
        raise InputError(
            f"{reader.name}: the rows depend on something of which no digest can be made ({error}):"
            " settings and examples must consist of text, numbers, lists, dataclasses or arrays"
        ) from None
