"""Writes ringbert/jobs.pyi: the jobs with each flag as a keyword of its type, for editors and type
checkers.

    python scripts/make_stubs.py
"""

import inspect
import types
import typing
from inspect import Parameter
from pathlib import Path
from typing import Any

from ringbert import jobs
from ringbert.job import CommandJob, arguments_of
from tasks import programs

PATH = "str | PathLike[str]"
STUB = Path(jobs.__file__).with_suffix(".pyi")
HEAD = '''"""Written by scripts/make_stubs.py from the flags of the programs."""

from os import PathLike
from typing import Any, Literal

from ringbert.job import CommandJob
from tasks.programs import CLASSIFIER, EMBEDDER, PRETRAINING, SQUAD, TAGGER
'''


def stub() -> str:
    """The content of the file."""
    classes = [value for value in vars(jobs).values() if isinstance(value, type)]
    made = [of_class(each) for each in classes if each is not CommandJob]
    return "\n".join([HEAD, *made])


def of_class(job: type[CommandJob]) -> str:
    parameters = inspect.signature(job).parameters.values()
    paths = {field.name for field in arguments_of(job.of.config) if field.reads}
    paths.add("output_dir")

    def kind_of(each: Parameter) -> str:
        kind = spelled(each.annotation)
        return kind.replace("str", PATH) if each.name in paths else kind

    (command,) = [name for name, value in vars(programs).items() if value is job.of]
    lines = [f"class {job.__name__}(CommandJob, of={command}):"]
    lines += [f"    {each.name}: {spelled(each.annotation)}" for each in parameters]
    lines += ["    def __init__(", "        self,", "        *,"]
    for each in sorted(parameters, key=lambda each: each.default is not Parameter.empty):
        default = "" if each.default is Parameter.empty else f" = {each.default!r}"
        lines.append(f"        {each.name}: {kind_of(each)}{default},")
    return "\n".join([*lines, "    ) -> None: ...", ""])


def spelled(annotation: Any) -> str:
    """A type as Python's source has it."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = sorted(typing.get_args(annotation), key=lambda part: part is types.NoneType)
        return " | ".join(map(spelled, parts))
    if typing.get_origin(annotation) is typing.Literal:
        return f"Literal[{', '.join(map(repr, typing.get_args(annotation)))}]"
    if annotation is types.NoneType:
        return "None"
    return "Any" if annotation is Any else annotation.__name__


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
