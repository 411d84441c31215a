"""What flags print: help, commands, versions; once per job."""

import os
import subprocess
import sys
import time
from typing import Any

import pytest
from mpi import ROOT
from parsing import Plain, Small, Words, parse

import ringbert
from distributed.launcher.mpirun import build_command, find_mpi
from distributed.launcher.options import Options
from tasks import flags

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


# -- commands -----------------------------------------------------------------------------------------------------


def command(*argv: str) -> tuple[str, Any]:
    return flags.parse_command({"build": Small, "verify": Plain}, argv, prog="bert-corpus", description="Corpora.")


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("build", "--output_dir=x") == ("build", Small(output_dir="x"))
    assert command("verify", "--do_train") == ("verify", Plain(do_train=True))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["biuld"], "bert-corpus: error: unknown command biuld; did you mean build?"),
        (["--do_train"], "bert-corpus: error: unknown command --do_train; the commands are build, verify"),
        (["build", "--do_trian"], "bert-corpus build: error: unknown flag --do_trian; did you mean --do_train?"),
    ],
)
def test_refusals_of_commands(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command(*argv)
    assert capsys.readouterr() == ("", f"{message}\n")


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ([], ["usage: bert-corpus COMMAND", "Corpora.", "  build\n        The settings of a small program."]),
        (["--help"], ["usage: bert-corpus COMMAND"]),
        (["build", "--help"], ["usage: bert-corpus build ", "The settings of a small program.", "--output_dir"]),
        (["--version"], [f"ringbert {ringbert.__version__}\n"]),
    ],
)
def test_help_of_commands(argv: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command(*argv)
    printed = capsys.readouterr().out
    assert all(part in printed for part in parts), printed


# -- help and version ---------------------------------------------------------------------------------------------


def help_text(capsys: pytest.CaptureFixture[str], *argv: str, config_class: type = Small) -> str:
    with pytest.raises(SystemExit) as exit:
        parse(*(argv or ("--help",)), config_class=config_class, output_dir=None)
    assert exit.value.code == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def test_help_lists_flags_by_group(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a group first, then in the order of settings.GROUPS, then the other groups."""
    monkeypatch.setenv("COLUMNS", "200")
    text = help_text(capsys)
    listed = """
  -h, --help
        print this help and exit
  --version
        print the version and exit
  --config FILE.toml
        read flags from the lines `flag = value` of a file; the command line wins over it
  --flagfile FILE
        read flags from the lines `--flag=value` of a file, as if they stood on the command line
  --layers TEXT
        which layers, 100 % by number (default: -1)

data:
  --[no]do_lower_case
        lower case (default: true)

training:
  --max_seq_length N
        tokens in a row (default: 384)
  --learning_rate X
        peak rate (default: 5e-05)
  --num_train_steps N
        steps (default: three epochs)
  --[no]do_train
        train (default: false)

machine:
  --precision fp32|bf16|fp16
        numbers (default: fp32)

files:
  --output_dir TEXT
        where the run is written (required)
  --model TEXT, --model_name_or_path TEXT
        name or folder

"""
    assert listed in text
    assert text.startswith("usage: bert-squad [--config FILE.toml] [--flag=value ...]\n\nFine-tune on SQuAD.\n\n")
    assert "ignored: use_tpu tpu_name" in text
    assert max(map(len, text.splitlines())) <= 100


def test_help_names_positional_fields(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = help_text(capsys, config_class=Words)
    assert text.startswith("usage: bert-squad FOLDER QUESTION [--config FILE.toml] [--flag=value ...]\n")
    assert "  FOLDER, --folder TEXT\n        where it is (required)\n" in text


def test_help_fits_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    text = help_text(capsys)
    assert "        read flags from the lines `flag = value`\n        of a file; the command line wins" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("usage")) <= 50


def test_help_without_groups_and_texts(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(capsys, config_class=Plain)
    places = [text.index(f"  --{name}") for name in ("learning_rate", "max_seq_length", "[no]do_train")]
    assert places == sorted(places)
    assert "  --max_seq_length N\n        (default: 128)\n" in text
    assert "precision" not in text


@pytest.mark.parametrize("argv", [["-h"], ["-help"], ["--do_train", "--help", "--nonsense"]])
def test_help_by_other_ways(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert help_text(capsys, *argv).startswith("usage: bert-squad ")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert help_text(capsys, "--version") == f"ringbert {ringbert.__version__}\n"


# -- many processes, one line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "prints"),
    [
        ({}, True),
        ({"OMPI_COMM_WORLD_RANK": "0"}, True),
        ({"OMPI_COMM_WORLD_RANK": "3"}, False),
        ({"PMI_RANK": "0"}, True),
        ({"PMI_RANK": "1"}, False),
        ({"PMIX_RANK": "0"}, True),
        ({"PMIX_RANK": "2"}, False),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, False),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, True),
        ({"SLURM_PROCID": "1"}, True),  # a plain shell of sbatch
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "1"}, True),
        # mpirun inside a Slurm step: mpirun's rank counts.
        ({"OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, False),
        ({"OMPI_COMM_WORLD_RANK": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, True),
    ],
)
def test_only_the_first_process_prints(
    environment: dict[str, str],
    prints: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    outcomes = []
    for argv in (["--lerning_rate=1"], ["--max_seq_length=513"], ["--help"], ["--version"]):
        with pytest.raises(SystemExit) as exit:
            parse(*argv)
        outcomes.append((exit.value.code, any(capsys.readouterr())))
    parse("--horovod")
    outcomes.append((None, any(capsys.readouterr())))
    # A rank that is still alive after the wait has an error that the first rank does not have, and prints it.
    assert outcomes == [(2, True), (2, True), (0, prints), (0, prints), (None, prints)]
    assert len(waits) == (0 if prints else 2)  # before each failure, not before help


PROGRAM = """
import dataclasses, sys
from tasks.flags import parse

@dataclasses.dataclass(frozen=True)
class Config:
    output_dir: str = "out"

try:
    parse(Config, prog="bert-squad", description="")
finally:
    heavy = {"tensorflow", "keras", "mpi4py", "transformers", "torch", "numpy"} & sys.modules.keys()
    assert not heavy, heavy
"""


def run(*argv: str, num_ranks: int = 1, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    command = [sys.executable, "-c", PROGRAM, *argv]
    if num_ranks > 1:
        options = Options(tuple(command), num_ranks)
        is_root = os.geteuid() == 0
        launched = build_command(find_mpi(), options, environment, cores=1, is_root=is_root)
        command, environment = list(launched.argv), environment | launched.environment
    return subprocess.run(
        command, cwd=ROOT, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60
    )


@pytest.mark.parametrize(("flag", "code"), [("--lerning_rate=1", 2), ("--horovod", 0), ("--version", 0)])
def test_one_line_from_three_real_processes(flag: str, code: int) -> None:
    done = run(flag, num_ranks=3)
    assert done.returncode == code
    ours = ("bert-squad: error: ", "--horovod is ignored", "ringbert ")
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(ours)]
    assert len(lines) == 1, done.stdout + done.stderr


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    times_s = []
    for _ in range(4):
        start_s = time.perf_counter()
        done = run("--help")
        times_s.append(time.perf_counter() - start_s)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("usage: bert-squad ")
    assert min(times_s) < 0.5, times_s  # the best of four: the machine may be busy


def test_help_into_a_closed_pipe() -> None:
    """As with `--help | head -3`, when head has already ended."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = run("--help", stdout=write_end)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_ends_with_status_2_and_one_line() -> None:
    done = run("--max_seq_lenght=1")
    assert done.returncode == 2
    assert done.stderr == "bert-squad: error: unknown flag --max_seq_lenght; --help lists all flags\n"
    assert done.stdout == ""
