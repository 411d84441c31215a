"""bert-launch: the mpirun command it builds for each MPI, its errors, and one real run."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from distributed.launch import main
from distributed.launcher import mpirun
from distributed.launcher.mpirun import INTEL_MPI, MPICH, OPEN_MPI, Mpi, build_command
from distributed.launcher.options import LaunchError, Options

ROOT = Path(__file__).parent.parent

OPEN_MPI_4 = Mpi(OPEN_MPI, (4, 1), "/usr/bin/mpirun")
OPEN_MPI_5 = Mpi(OPEN_MPI, (5, 0), "/venv/bin/mpirun")
HYDRA = Mpi(MPICH, (4, 2), "/usr/bin/mpirun")
INTEL = Mpi(INTEL_MPI, (2021, 18), "/opt/intel/bin/mpirun")
ALL = pytest.mark.parametrize(
    "mpi", [OPEN_MPI_4, OPEN_MPI_5, HYDRA, INTEL], ids=lambda m: f"{m.implementation} {m.version[0]}"
)
OPEN = pytest.mark.parametrize("mpi", [OPEN_MPI_4, OPEN_MPI_5], ids=lambda m: f"{m.implementation} {m.version[0]}")

COMMAND = ("bert-squad", "--output_dir", "my out")
TWO_HOSTS = (("node1", 2), ("node2", 4))


def line(mpi, environment=None, *, cores=8, is_root=False, local_names=("localhost",), **options):
    """The command as one shell line."""
    wanted = Options(COMMAND, **options)
    return str(
        build_command(mpi, wanted, environment or {}, cores=cores, is_root=is_root, local_names=local_names)
    )


ON_ONE_MACHINE = {
    OPEN_MPI_4: "/usr/bin/mpirun -np 4 --bind-to none --mca pml ob1 --mca btl self,vader",
    OPEN_MPI_5: "/venv/bin/mpirun -np 4 --bind-to none --mca pml ob1 --mca btl self,sm",
    HYDRA: "/usr/bin/mpirun -bind-to none -genv FI_PROVIDER shm -genv UCX_TLS self,sysv,posix,cma -np 4",
    INTEL: "/opt/intel/bin/mpirun -genv I_MPI_PIN 0 -genv I_MPI_FABRICS shm -np 4",
}


@ALL
def test_on_one_machine_messages_keep_to_its_memory(mpi):
    assert line(mpi, num_ranks=4) == f"{ON_ONE_MACHINE[mpi]} bert-squad --output_dir 'my out'"


MEMORY = re.compile(r"btl self,|FI_PROVIDER|I_MPI_FABRICS")


@ALL
def test_on_several_machines_or_as_the_user_says_they_use_the_network(mpi):
    assert MEMORY.search(line(mpi, num_ranks=4, hosts=(("here", 4),), local_names=("here",)))
    assert not MEMORY.search(line(mpi, num_ranks=6, hosts=TWO_HOSTS, local_names=("node1",)))
    assert not MEMORY.search(line(mpi, {"SLURM_JOB_NODELIST": "a,b"}, num_ranks=4))
    assert not MEMORY.search(line(mpi, num_ranks=4, mpi_args=("--mca", "pml", "ucx")))
    assert "shm" not in line(mpi, {"UCX_TLS": "all"}, num_ranks=4)


def test_bars_move_where_mpirun_can_pass_parts_of_lines(monkeypatch, tmp_path):
    """Open MPI 5 passes only whole lines on, unless it is asked; not all of its releases can."""
    raw = replace(OPEN_MPI_5, can_pass_parts=True)
    assert " --output :raw " in line(raw, {"RINGBERT_TERMINAL": "1"}, num_ranks=2)
    assert "raw" not in line(raw, {"RINGBERT_TERMINAL": "0"}, num_ranks=2)
    assert "raw" not in line(OPEN_MPI_5, {"RINGBERT_TERMINAL": "1"}, num_ranks=2)
    tagged = line(raw, {"RINGBERT_TERMINAL": "1"}, num_ranks=2, mpi_args=("--tag-output",))
    assert "raw" not in tagged
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    fake_mpirun(tmp_path / "bin", "echo 'mpirun (Open MPI) 5.0.11'")
    assert not mpirun.find_mpi().can_pass_parts
    help_text = tmp_path / "share/prte/help-prterun.txt"
    help_text.parent.mkdir(parents=True)
    help_text.write_text('Supported qualifiers include "NOCOPY" and "RAW" (do not buffer)\n')
    assert mpirun.find_mpi().can_pass_parts


def test_one_rank_here_is_started_without_mpirun(only_path, capsys):
    assert main(["-np", "1", "--dry-run", "--", "bert-squad", "--x=a b"]) == 0
    assert capsys.readouterr().out == "bert-squad '--x=a b'\n"
    assert main(["-np", "1", "-H", "node1", "--", "bert-squad"]) == 1
    assert capsys.readouterr().err.startswith("bert-launch: error: no mpirun found")


def test_elastic_jobs_need_open_mpi_5(only_path, capsys):
    assert "--with-ft ulfm " in (elastic := line(OPEN_MPI_5, num_ranks=2, is_elastic=True))
    assert "-x RINGBERT_ELASTIC " in elastic
    assert elastic.startswith("RINGBERT_ELASTIC=1 ")
    fake_mpirun(only_path, "echo 'mpirun (Open MPI) 4.1.4'")
    assert main(["-np", "2", "--elastic", "--", "bert-squad"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("bert-launch: error: --elastic needs Open MPI 5 or newer, found Open MPI 4.1 (")
    assert err.endswith("); --restarts works with every MPI\n")


@OPEN
def test_root_is_allowed_only_to_root(mpi):
    assert "--allow-run-as-root" in line(mpi, num_ranks=2, is_root=True)
    assert "--allow-run-as-root" not in line(mpi, num_ranks=2)


@OPEN
def test_more_ranks_than_cores_share_them_and_yield(mpi):
    assert "--oversubscribe --mca mpi_yield_when_idle 1 " in line(mpi, num_ranks=9, cores=8)
    enough = line(mpi, num_ranks=8, cores=8)
    assert "--oversubscribe" not in enough
    assert "yield" not in enough


@OPEN
def test_slots_are_taken_at_their_word_but_a_crowded_local_host_yields(mpi):
    crowded = line(mpi, num_ranks=6, hosts=TWO_HOSTS, cores=3, local_names=("localhost", "node2"))
    assert "-H node1:2,node2:4 --mca mpi_yield_when_idle 1 " in crowded
    assert "--oversubscribe" not in crowded
    elsewhere = line(mpi, num_ranks=6, hosts=TWO_HOSTS, cores=1)
    assert "yield" not in elsewhere  # this machine's cores say nothing about theirs


@OPEN
@pytest.mark.parametrize("variable", ["SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE"])
def test_a_batch_job_has_slots_of_its_own(mpi, variable):
    built = line(mpi, {variable: "nodes"}, num_ranks=64, cores=8)
    assert "--oversubscribe" not in built
    assert "yield" not in built


@OPEN
def test_a_host_file_has_slots_of_its_own(mpi):
    assert "--oversubscribe" not in line(mpi, num_ranks=64, mpi_args=("--hostfile", "hosts"))


def test_ssh_port():
    at = {"num_ranks": 6, "hosts": TWO_HOSTS, "ssh_port": 2222}
    assert "-H node1:2,node2:4 --mca plm_rsh_args '-p 2222' bert-squad" in line(OPEN_MPI_4, **at)
    assert "-H node1:2,node2:4 --prtemca plm_ssh_args '-p 2222' bert-squad" in line(OPEN_MPI_5, **at)
    mpich, intel = line(HYDRA, **at), line(INTEL, **at)
    assert mpich.startswith("HYDRA_LAUNCHER_EXTRA_ARGS='-p 2222' /usr/bin/mpirun ")
    assert intel.startswith("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS='-p 2222' /opt/intel/bin/mpirun ")
    assert " -hosts node1:2,node2:4 " in mpich
    assert " -hosts node1:2,node2:4 " in intel


ENVIRONMENT = {
    "PATH": "/venv/bin:/bin",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "HF_TOKEN": "secret",
    "OMP_NUM_THREADS": "4",
    "OMPI_MCA_btl": "tcp",  # Open MPI's own, which it forwards itself
    "HOME": "/home/me",
    "EDITOR": "vi",
}
FORWARDED = ["HF_TOKEN", "OMP_NUM_THREADS", "PATH", "TF_CPP_MIN_LOG_LEVEL"]


@OPEN
def test_open_mpi_forwards_variables_by_name(mpi):
    built = line(mpi, ENVIRONMENT, num_ranks=2)
    words = shlex.split(built)
    assert [words[at + 1] for at, word in enumerate(words) if word == "-x"] == FORWARDED
    assert "secret" not in built


@pytest.mark.parametrize("mpi", [HYDRA, INTEL])
def test_hydra_forwards_variables_by_name(mpi):
    built = line(mpi, ENVIRONMENT, num_ranks=2)
    assert f" -genvlist {','.join(FORWARDED)} " in built
    assert "secret" not in built


@ALL
def test_mpi_args_come_verbatim_before_the_command(mpi):
    words = shlex.split(line(mpi, ENVIRONMENT, num_ranks=2, mpi_args=("--tag-output", "a b")))
    at = words.index("--tag-output")
    assert words[at + 1] == "a b"
    assert at < words.index("bert-squad")


@OPEN
def test_mpi_args_replace_what_open_mpi_takes_once(mpi):
    own = ("--bind-to", "core", "-x", "OMP_NUM_THREADS=1")
    words = shlex.split(line(mpi, ENVIRONMENT, num_ranks=2, mpi_args=own))
    assert words.count("--bind-to") == 1
    assert "OMP_NUM_THREADS" not in words
    assert "OMP_NUM_THREADS=1" in words


# The first lines of each `mpirun --version`.
VERSIONS = {
    "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/": (OPEN_MPI, (5, 0)),
    "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/": (OPEN_MPI, (4, 1)),
    "mpirun.openmpi (OpenRTE) 4.1.4\n": (OPEN_MPI, (4, 1)),
    "HYDRA build details:\n    Version:                                 4.2.3\n": (MPICH, (4, 2)),
    "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)": (
        INTEL_MPI,
        (2021, 18),
    ),
    "srun 23.02": None,
    "": None,
}


@pytest.mark.parametrize(("text", "expected"), VERSIONS.items())
def test_parse_version(text, expected):
    assert mpirun.parse_version(text) == expected


ERRORS = {
    "": "no -- before the command",
    "-np 2 bert-squad": "no -- before the command",
    "-np 2 --": "no command after --",
    "-- bert-squad": "-np",
    "-np 0 -- bert-squad": "-np must be at least 1, got 0",
    "-np -3 -- bert-squad": "-np must be at least 1, got -3",
    "-np two -- bert-squad": "invalid int value: 'two'",
    "-np 2 --nope -- bert-squad": "--nope",
    "-np 2 -H node1: -- bert-squad": "'node1:' is not host:slots",
    "-np 2 -H node1:0 -- bert-squad": "'node1:0' is not host:slots",
    "-np 2 -H node1:2,,node2:2 -- bert-squad": "'' is not host:slots",
    "-np 2 -H '' -- bert-squad": "'' is not host:slots",
    "-np 2 -H 'a b:2' -- bert-squad": "'a b:2' is not host:slots",
    "-np 2 -H -oProxyCommand=x:2 -- bert-squad": "-H",
    "-np 2 -H node1:1,node1:1 -- bert-squad": "node1 is named twice",
    "-np 5 -H node1:2,node2:2 -- bert-squad": "-np must be at most the 4 slots of -H, got 5",
    "-np 2 --restarts -1 -- bert-squad": "--restarts must be at least 0, got -1",
    "-np 2 -p 70000 -- bert-squad": "-p must be between 1 and 65535, got 70000",
    '-np 2 --mpi-args "\'" -- bert-squad': "--mpi-args ': No closing quotation",
}


@pytest.mark.parametrize(("arguments", "reason"), ERRORS.items())
def test_bad_arguments_are_one_line_and_status_2(arguments, reason, capsys):
    assert main(shlex.split(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bert-launch: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert reason in err


def test_no_mpirun_is_one_line_and_status_1(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert main(["-np", "2", "--", "bert-squad"]) == 1
    advice = "pip install '.[mpi]' in ringbert's checkout or load the cluster's MPI module"
    assert capsys.readouterr().err == f"bert-launch: error: no mpirun found: {advice}\n"


def fake_mpirun(folder, script):
    """An executable called mpirun, as the only one on PATH."""
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def only_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    return tmp_path


def test_an_unknown_mpirun_is_one_line_and_status_1(only_path, capsys):
    fake_mpirun(only_path, "echo something else; echo 2")
    assert main(["-np", "2", "--", "bert-squad"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--version says 'something else'" in err


def test_an_mpirun_that_cannot_start_is_one_line_and_status_1(only_path, capsys):
    fake_mpirun(only_path, "").write_bytes(b"\x7fELF")
    assert main(["-np", "2", "--", "bert-squad"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--version does not run" in err


def test_dry_run_prints_the_command_and_runs_nothing(only_path, capsys):
    mpirun = fake_mpirun(only_path, "echo 'mpirun (Open MPI) 5.0.11'")
    assert main(["-np", "1", "--dry-run", "--mpi-args", "--tag-output", "--", "bert-squad", "--x=a b"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"{mpirun} -np 1 ")
    assert out.endswith(" --tag-output bert-squad '--x=a b'\n")
    assert out.count("\n") == 1


@pytest.mark.parametrize(("in_venv", "expected"), [(True, "beside"), (False, "on_path")])
def test_a_virtual_environments_own_mpirun_goes_first(tmp_path, monkeypatch, in_venv, expected):
    for name in ("beside", "on_path"):
        (tmp_path / name).mkdir()
        fake_mpirun(tmp_path / name, "echo 'mpirun (Open MPI) 5.0.11'")
    monkeypatch.setenv("PATH", str(tmp_path / "on_path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python"))
    monkeypatch.setattr(sys, "base_prefix", "/usr" if in_venv else sys.prefix)
    assert mpirun.find_mpi().mpirun == str(tmp_path / expected / "mpirun")


def run_here(*arguments):
    """bert-launch as its own process."""
    start = [sys.executable, "-m", "distributed.launch", *arguments]
    return subprocess.run(start, capture_output=True, text=True, timeout=60, cwd=ROOT)


def test_help_imports_neither_tensorflow_nor_mpi():
    code = "import sys, distributed.launch; print({'tensorflow', 'keras', 'numpy', 'mpi4py'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert shown.stdout == "set()\n"
    helped = run_here("--help")
    assert helped.returncode == 0
    assert "-np" in helped.stdout


def mpi_is_here():
    try:
        mpirun.find_mpi()
    except LaunchError:
        return False
    return True


@pytest.mark.skipif(not mpi_is_here(), reason="no mpirun is installed")
def test_a_real_run_passes_output_and_exit_status():
    ranks = mpirun.num_cores() + 1  # more than the cores: mpirun refuses without --oversubscribe
    done = run_here("-np", str(ranks), "--", "sh", "-c", "echo a rank; exit 0")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a rank\n" * ranks
    (command,) = done.stderr.splitlines()
    assert command.endswith(" sh -c 'echo a rank; exit 0'")
    failed = run_here("-np", "2", "--restarts", "2", "--", "sh", "-c", "exit 7")
    assert failed.returncode == 7
    assert failed.stderr.splitlines()[1:] == ["bert-launch: rank 0 exited with status 7"]
