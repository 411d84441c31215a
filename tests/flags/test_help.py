"""What programs print before they start: help, versions, errors; once per job, and without heavy
imports."""

import os
import subprocess
import sys
import time
from functools import partial

import pytest
from harness.jobs import launch, shell
from harness.mpi import HANGS_S, ROOT
from harness.parsing import PROJECT, help_of, main_of
from harness.refusals import refusal

RANK_VARIABLES = """OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK SLURM_PROCID SLURM_STEP_NUM_TASKS
    PALS_RANKID ALPS_APP_PE MV2_COMM_WORLD_RANK JSM_NAMESPACE_RANK FLUX_TASK_RANK"""
SQUAD = (sys.executable, "-m", "tasks.squad")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in RANK_VARIABLES.split():
        monkeypatch.delenv(name, raising=False)


# -- help ------------------------------------------------------------------------------------------


def test_no_program_imports_anything_heavy_to_print_its_help():
    code = f"""
import importlib, sys
heavy = {{"tensorflow", "keras", "mpi4py", "transformers", "torch", "datasets", "matplotlib"}}
for program, place in {PROJECT["scripts"]}.items():
    module, _, name = place.partition(":")
    sys.argv[0] = program
    try:
        status = getattr(importlib.import_module(module), name)(["--help"])
    except SystemExit as stop:
        status = stop.code
    print(program, status or 0, *heavy & sys.modules.keys(), file=sys.stderr)
"""
    done = shell(sys.executable, "-c", code)
    assert done.stderr.splitlines() == [f"{program} 0" for program in PROJECT["scripts"]]
    assert [name for name in PROJECT["scripts"] if f"usage: {name}" not in done.stdout] == []
    # what may be left out is in brackets
    assert "usage: bert-search [SPACE] [--config" in done.stdout
    assert "usage: bert-export FOLDER OUT [--config" in done.stdout


def test_help_lists_each_flag_with_its_default_and_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = help_of("bert-squad")
    assert max(len(line) for line in text.splitlines() if not line.startswith("usage")) <= 60
    for flag, default in {
        "max_seq_length N": "384",
        "learning_rate X": "5e-05",
        "[no]do_train": "false",
    }.items():
        assert f"(default: {default})" in text.partition(f"  --{flag}\n")[2].partition("\n  -")[0]
    assert "FOLDER QUESTION CONTEXT" in " ".join(help_of("bert-ask").split())


def test_commands_have_help_and_a_version_and_unknown_ones_a_hint(capsys):
    usages = {
        "": "usage: bert-corpus COMMAND",
        "build --format=arrow --help --no": "usage: bert-corpus build ",
    }
    for line, text in {**usages, "--version": f"ringbert {PROJECT['version']}"}.items():
        with pytest.raises(SystemExit, match="0"):
            main_of("bert-corpus")(line.split())
        assert capsys.readouterr().out.startswith(text)
    for word in ("biuld", "--do_train"):
        call, line = partial(main_of("bert-corpus"), [word]), f"{word}; the commands are build, "
        refusal(capsys, "bert-corpus", call, line, status=2, is_alone=True)


def test_help_into_a_closed_pipe_is_no_error():  # `--help | head -3`, when head has already ended
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*SQUAD, "--help"], stdout=write_end, stderr=subprocess.PIPE, cwd=ROOT, timeout=HANGS_S
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


# -- errors: one line over all processes -----------------------------------------------------------


# sbatch's shell
FIRST = [
    "",
    "OMPI_COMM_WORLD_RANK=0",
    "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2",
    "SLURM_PROCID=1",
    "OMPI_COMM_WORLD_RANK=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2",
]
OTHERS = [
    "OMPI_COMM_WORLD_RANK=3",
    "PMI_RANK=1",
    "PMIX_RANK=2",
    "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2",
    "PALS_RANKID=1",
    "ALPS_APP_PE=2",
    "MV2_COMM_WORLD_RANK=1",
    "JSM_NAMESPACE_RANK=1",
    "FLUX_TASK_RANK=1",
]


@pytest.mark.parametrize("variables", [*FIRST, *OTHERS])
def test_only_the_first_process_prints(variables, monkeypatch, capsys):
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    is_first, waits = variables in FIRST, []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(SystemExit, match="0"):
        main_of("bert-squad")(["--help"])
    assert bool(capsys.readouterr().out) == is_first
    with pytest.raises(SystemExit, match="2"):
        main_of("bert-squad")(["--lerning_rate=1"])
    # Another rank that is still alive after a wait has an error that the first rank does not have,
    # and prints it.
    assert "--lerning_rate" in capsys.readouterr().err
    assert len(waits) == (not is_first)


def test_one_line_from_three_processes_and_status_2():
    done = shell(*launch(3, *SQUAD, "--lerning_rate=1"), status=2)
    (line,) = done.stderr.splitlines()[1:]  # after the command, and nothing of mpirun
    assert done.stdout == ""
    assert line.partition(";")[0] == "bert-squad: error: unknown flag --lerning_rate"
