"""The command whose runs are a search's trials."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringbase.errors import InputError, shortened
from ringbase.settings import Field, alternatives, fields_of, from_text
from ringbert.job import PYTHON, LaunchedJob
from ringbert.searching.space import Choices, Space, Values
from tasks.programs import COMMANDS
from tasks.runs import flags
from tasks.runs.remote import is_remote

OF_SEARCH = ("output_dir", "resume", "plan")  # flags that no trial may have a value of its own for


@dataclass(frozen=True)
class TrialCommand:
    """A program that trains, with the flags that all trials have."""

    program: str
    start: Sequence[str]  # of what each rank runs, before the flags
    argv: Sequence[str]  # without --output_dir
    folder: Path  # --output_dir: the search's
    config: type | None  # its settings; None of a script, which knows its flags itself

    @property
    def fields(self) -> Sequence[Field] | None:
        return None if self.config is None else fields_of(self.config)

    def flags_of(self, values: Values, folder: str) -> list[str]:
        """The flags of a trial. The last value of a flag counts."""
        own = flags.argv_of({**values, "output_dir": folder}, self.fields)
        return [*self.argv, *own]

    def words(self, values: Values, folder: Path) -> list[str]:
        """What each rank of a trial runs."""
        return [*self.start, *self.flags_of(values, str(folder))]

    def shown(self, values: Values, folder: Path | str, ranks: int) -> str:
        """The same as a user types it."""
        start = [self.program] if self.config else ["python", self.start[-1]]
        words = [*start, *self.flags_of(values, str(folder))]
        launcher = ["bert-launch", "-np", str(ranks), "--"] if ranks > 1 else []
        return shlex.join([*launcher, *words])

    def check(self, values: Values) -> None:
        """Raises InputError: a trial with these values cannot be started, or would not be a
        training that is scored."""
        for name in OF_SEARCH:
            if name in values:
                raise InputError(f"--{name} belongs to the search: no trial has its own")
        if self.config is None:
            return
        assert self.fields is not None
        given = flags.read_command_line(self.flags_of(values, str(self.folder)), self.fields)
        config: Any = flags.configured(self.config, given)
        for wrong, fault in (
            (not config.do_train, "trials are trainings: give --do_train"),
            (
                not config.does_eval,
                "trials are compared by their scores: give --do_eval (bert-squad: --do_predict)",
            ),
            (config.plan, "--plan: give it to one of the runs, without bert-search"),
            (
                config.training.resume != "auto",
                "--resume: trials continue by themselves: leave it out",
            ),
        ):
            if wrong:
                raise InputError(fault)


def of_job(job: LaunchedJob) -> TrialCommand:
    """Of a job in Python."""
    settings = next((command.config for command in COMMANDS if command.name == job.program), None)
    start = job.command[: len(job.command) - len(job.argv)]
    argv, folder = without_folder(job.argv)
    return TrialCommand(job.program, start, argv, folder, settings)


def of_words(words: Sequence[str]) -> tuple[TrialCommand, Space]:
    """Of a command line, and the space of those of its flags that have several values. Raises
    InputError: it starts no program that trains."""
    name, *argv = words
    command = next((command for command in COMMANDS if command.name == Path(name).name), None)
    if command is not None:
        fields = fields_of(command.config)
        argv, space = several(argv, fields)
        start, settings = [*PYTHON, command.package], command.config
    elif name.endswith(".py") and Path(name).is_file():
        space, settings = Space(), None
        start = [sys.executable, "-P", name]
    else:
        names = shortened(command.name for command in COMMANDS)
        raise InputError(f"{name} is no program that trains: {names}, or a script, task.py")
    argv, folder = without_folder(argv)
    return TrialCommand(name, start, argv, folder, settings), space


def without_folder(argv: Sequence[str]) -> tuple[list[str], Path]:
    """The words of a command line without --output_dir, and that folder. Raises InputError: there
    is none, or it is remote."""
    words, kept, folder = [*argv], [], None
    while words:
        word = words.pop(0)
        name, equals, text = word.partition("=")
        if name.lstrip("-").replace("-", "_") != "output_dir" or not word.startswith("-"):
            kept.append(word)
        else:
            folder = text if equals or not words else words.pop(0)
    if not folder:
        raise InputError("--output_dir FOLDER must be given, in which each trial has a folder")
    if is_remote(folder):
        raise InputError(
            f"--output_dir {folder}: a search needs a folder on a disk that all of its hosts share"
        )
    return kept, Path(folder).expanduser().absolute()


def several(argv: Sequence[str], fields: Sequence[Field]) -> tuple[list[str], Space]:
    """The words of a command line without the flags that have several values, with commas between
    them, where a single one can hold no comma (numbers, choices), and these values."""
    known: Mapping[str, Field] = {name: field for field in fields for name in field.names}
    words, kept, space = [*argv], [], Space()
    while words:
        word = words.pop(0)
        name, equals, text = word.lstrip("-").partition("=")
        field = known.get(name.replace("-", "_"))
        if field is None or not word.startswith("-"):
            kept.append(word)
            continue
        if not equals and words and "," in words[0] and not flags.FLAG.match(words[0]):
            text, word = words[0], f"{word}={words.pop(0)}"
        values = _values(text, field)
        if values:
            space[field.name] = Choices(values)
        else:
            kept.append(word)
    return kept, space


def _values(text: str, field: Field) -> tuple[Any, ...]:
    """The several values that a text has for a flag; none if it is a single one."""
    if "," not in text or field.is_list or str in alternatives(field.type):
        return ()
    try:
        return tuple(from_text(part.strip(), field.type) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--{field.name} {text}: each value {error}") from None
