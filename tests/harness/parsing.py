"""Parses flags as a program does, for the tests of flags."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from ringbert.settings import setting
from tasks import flags


@dataclass(frozen=True)
class Small:
    """The settings of a small program."""

    output_dir: str = setting(help="where the run is written", group="files")
    model: str | None = setting(None, "name or folder", "files", aliases=("model_name_or_path",))
    layers: str = setting("-1", "which layers, 100 % by number")
    max_seq_length: int = setting(384, "tokens in a row", "training")
    learning_rate: float = setting(5e-5, "peak rate", "training")
    num_train_steps: int | None = setting(None, "steps", "training", shown_default="three epochs")
    do_train: bool = setting(False, "train", "training")
    do_lower_case: bool = setting(True, "lower case", "data")
    precision: Literal["fp32", "bf16", "fp16"] = setting("fp32", "numbers", "machine")

    def __post_init__(self) -> None:
        if self.max_seq_length > 512:
            raise ValueError(f"--max_seq_length must be at most\n  512, got {self.max_seq_length}")


@dataclass(frozen=True)
class Plain:
    """No groups, no help, no precision."""

    learning_rate: float = 5e-5
    version: str = field(default="x", init=False)
    max_seq_length: int = 128
    do_train: bool = False


@dataclass(frozen=True)
class Words:
    """Two fields for words without a flag, and flags between them."""

    folder: str = setting(help="where it is", is_positional=True)
    question: str = setting(help="what is asked", is_positional=True)
    top_k: int = setting(1, "how many")
    json: bool = setting(False, "as JSON")


def parse(*argv: str, config_class: type = Small, output_dir: str | None = "out") -> Any:
    start = [f"--output_dir={output_dir}"] if output_dir and config_class is Small else []
    return flags.parse(config_class, [*start, *argv], prog="bert-squad", description="Fine-tune on SQuAD.")


def refusal(capsys: pytest.CaptureFixture[str], *argv: str, **options: Any) -> str:
    """The message of the one error line; checks status, prefix and that nothing else is printed."""
    with pytest.raises(SystemExit) as exit:
        parse(*argv, **options)
    assert exit.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    assert printed.err.endswith("\n")
    assert printed.err.startswith("bert-squad: error: ")
    return printed.err.removeprefix("bert-squad: error: ").strip()
