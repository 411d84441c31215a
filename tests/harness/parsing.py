"""Command lines as the programs read them. No other test knows where the settings of a program
stand."""

import contextlib
import importlib
import io
import re
import sys
import tomllib
from pathlib import Path

import pytest
from harness import refusals

from ringbase.settings import flat
from tasks import programs
from tasks.runs import flags

ROOT = Path(__file__).resolve().parents[2]
TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = TABLE["project"]
PACKAGES = [name.rstrip("*") for name in TABLE["tool"]["setuptools"]["packages"]["find"]["include"]]
# A command -> its settings, and the fewest flags with which it does something.
LEAST_FLAGS = {
    "bert-classifier": "--output_dir=o --do_train --train_file=t --dev_file=d",
    "bert-pretraining": "--output_dir=o --input_file=i --do_train",
}
OF_PROGRAMS = {
    command.name: (
        f"{command.package}.settings:{command.config.__name__}",
        LEAST_FLAGS.get(command.name, "--output_dir=o --do_train --train_file=t"),
    )
    for command in programs.COMMANDS
}
COMMANDS = OF_PROGRAMS | {
    "bert-corpus build": ("tasks.corpus.settings:BuildConfig", "--output_dir=o --input_file=i"),
    "bert-corpus vocab": ("tasks.corpus.settings:VocabConfig", "--output_dir=o --input_file=i"),
    "bert-corpus verify": ("tasks.corpus.settings:VerifyConfig", "--input_dir=i"),
    "bert-features": (
        "tasks.features.__main__:FeaturesConfig",
        "--input_file=i --output_file=o --model=m",
    ),
    "bert-ask": ("ringbert.ask:Config", "folder question context"),
    "bert-export": ("tasks.export.__main__:ExportConfig", "folder out"),
    "bert-doctor": ("tasks.doctor.__main__:DoctorConfig", ""),
    "bert-bench step": ("tasks.bench.settings:StepConfig", ""),
    "bert-search": ("ringbert.searching.__main__:Config", "space.toml"),
    "bert-report": ("tasks.runs.report.page:ReportConfig", "folder other"),
}
SETTINGS = {command: settings for command, (settings, _) in COMMANDS.items()}
LEAST = {command: tuple(flags.split()) for command, (_, flags) in COMMANDS.items()}


def named(place):
    """What `module:name` names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def parsed(command, *argv):
    """The value of every setting of `command`, a program with its subcommand."""
    return flat(flags.parse(named(SETTINGS[command]), argv, prog=command))


def refusal(capsys, command, *argv):
    """The one line, without the program's name, with which it ends with status 2 because of its
    flags."""
    return refusals.refusal(
        capsys, command, lambda: parsed(command, *argv), status=2, is_alone=True
    )


def main_of(program):
    """The function that pyproject.toml names for a program."""
    return named(PROJECT["scripts"][program])


def help_of(command, main=None):
    """What `command --help` prints; of a program of benchmarks/, `benchmarks.NAME`, too."""
    program, *words = command.split()
    if program.startswith("benchmarks."):
        main = named(f"{program}:main")
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "argv", [program, *words, "--help"])
        with contextlib.suppress(SystemExit):
            (main or main_of(program))()
    return output.getvalue()


def flags_of(command):
    """The flags in a command's help, and what stands there for the value: `N`, `X`, a choice; ""
    for a boolean."""
    # "--a X, --b X"; in Python 3.13 "--a, --b X"
    lines = re.findall(r"^  (-.*?)( [^-\n]*)?$", help_of(command), re.MULTILINE)
    return {
        name: value.strip()
        for names, value in lines
        for name in re.findall(r"--?(?:\[no\])?(\w+)", names)
    }
