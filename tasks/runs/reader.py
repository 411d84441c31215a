"""From a source to examples, and what their rows depend on. Without TensorFlow."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar, Generic, TypeVar

from bert.text.tokenizer import Tokenizer
from ringbase.errors import InputError
from ringbase.files import digest

Examples = TypeVar("Examples")


class Reader(Generic[Examples]):
    """What reads the examples of a task."""

    name: ClassVar[str]
    # increase when `read` or `tables` makes something else: old rows are not used
    version: ClassVar[int] = 1
    table: ClassVar[str] = "rows"  # whose rows are predicted
    train_table: ClassVar[str | None] = None  # whose rows are trained on, if they are others
    # what prediction must know, by flag; kept beside the model
    settings: Any
    max_seq_length: Any  # the most tokens of a row
    labels: Any = ()  # the names of the model's outputs, if they have names

    def read(self, source: Any) -> Examples:
        """The examples of a source. Raises InputError, which names the place."""
        raise NotImplementedError

    def key(self, source: Any, read: Callable[[], Examples]) -> object:
        """All that the rows of a source depend on, besides the tokenizer: `settings` have all that
        `tables` reads. `read` reads the source."""
        return self.settings, self.max_seq_length, self.labels, read()

    def rows_of(self, examples: Examples) -> tuple[int, bool]:
        """How many rows to train on the examples make without counting tokens, and whether it is
        exact: an estimate where long texts become several rows."""
        return len(examples), False  # type: ignore[arg-type]


def rows_key(
    reader: Reader[Examples], source: Any, tokenizer: Tokenizer
) -> tuple[str, Callable[[], Examples]]:
    """The digest of all that the rows of a source depend on, and what gives its examples, which are
    read once."""
    read = cache(partial(reader.read, source))
    key = reader.key(source, read)
    try:
        return digest(reader.name, reader.version, tokenizer.digest, key), read
    except TypeError as error:
        raise InputError(
            f"{reader.name}: the rows depend on something of which no digest can be made ({error}):"
            " settings and examples must consist of text, numbers, lists, dataclasses or arrays"
        ) from None
