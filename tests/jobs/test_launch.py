"""bert-launch: the command that it builds for each MPI and batch system, its errors, and a run."""

import os
import shlex
import sys

import pytest
from harness.jobs import launch, run, started

from distributed.launch import main

VERSIONS = {  # the first lines of mpirun --version
    "Open MPI 5": "mpirun (Open MPI) 5.0.11",
    "Open MPI 4": "mpirun (Open MPI) 4.1.4",
    "Debian's Open MPI": "mpirun.openmpi (OpenRTE) 4.1.4",
    "MPICH": "HYDRA build details:\n    Version:                                 4.2.3",
    "Intel MPI": "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)",
}
OPEN_MPI = ["Open MPI 4", "Open MPI 5"]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes the only mpirun of a machine of 8 cores, of which the user is not root and has set nothing."""

    def make(version, **environment):
        path = tmp_path / "mpirun"
        if version is not None:
            path.write_text(f"#!/bin/sh\ncat <<'END'\n{version}\nEND\n")
            path.chmod(0o755)
        for name in os.environ:
            monkeypatch.delenv(name)
        for name, value in {"PATH": f"{tmp_path}:/bin:/usr/bin", **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1000 + core for core in range(8)})
        monkeypatch.setattr(os, "geteuid", lambda: int(environment.get("UID", 1000)))
        return str(path)

    return make


MEMORY = {  # ranks on one machine exchange messages in its memory, and open no port
    "Open MPI 4": "OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader",
    "Open MPI 5": "OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm",
    "MPICH": "FI_PROVIDER=shm UCX_TLS=self,sysv,posix,cma",
    "Intel MPI": "I_MPI_FABRICS=shm",
}
SSH_PORT = {
    "Open MPI 4": "--mca plm_rsh_args '-p 2222'",
    "Open MPI 5": "--prtemca plm_ssh_args '-p 2222'",
    "MPICH": "'HYDRA_LAUNCHER_EXTRA_ARGS=-p 2222'",
    "Intel MPI": "'I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS=-p 2222'",
}
UNBOUND = {"MPICH": "-bind-to none", "Intel MPI": "-genv I_MPI_PIN 0"} | dict.fromkeys(OPEN_MPI, "--bind-to none")
FORWARDED = {"PYTHONPATH": "p", "HF_TOKEN": "secret", "OMP_NUM_THREADS": "4", "HOME": "/home/me", "EDITOR": "vi"}


def command_lines():
    """MPI, arguments, environment, what the line has, what it has not."""
    for mpi in MEMORY:
        is_open_mpi, two_hosts = mpi in OPEN_MPI, "-np 6 -H node1:2,node2:4"
        named = "-H node1:2,node2:4" if is_open_mpi else "-hosts node1:2,node2:4"
        each = "-x HF_TOKEN -x OMP_NUM_THREADS -x PATH -x PYTHONPATH"
        each = each if is_open_mpi else "-genvlist HF_TOKEN,OMP_NUM_THREADS,PATH,PYTHONPATH"
        yield mpi, "-np 4", {}, ["-np 4", MEMORY[mpi], UNBOUND[mpi]], ["root", "yield"]
        yield mpi, "-np 4 -H localhost:4", {}, [MEMORY[mpi]], []
        yield mpi, two_hosts, {}, [named, "-np 6"], [MEMORY[mpi], "--oversubscribe"]
        yield mpi, f"{two_hosts} -p 2222", {}, [SSH_PORT[mpi], named], []
        yield mpi, "-np 2", FORWARDED, [each], ["secret", "EDITOR", "HOME"]
        yield mpi, "-np 2 --mpi-args '--tag-output -x A'", {}, ["--tag-output -x A"], []
    for batch in "SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE":
        yield "Open MPI 5", "-np 64", {batch: "nodes"}, ["-np 64"], ["--oversubscribe", "yield", "OMPI_MCA"]
    for mpi in OPEN_MPI:
        yield mpi, "-np 9", {}, ["--oversubscribe --mca mpi_yield_when_idle 1"], []
        yield mpi, "-np 9 -H localhost:9", {}, ["--mca mpi_yield_when_idle 1"], ["--oversubscribe"]
        yield mpi, "-np 64 --mpi-args '--hostfile hosts'", {}, ["--hostfile hosts"], ["--oversubscribe"]
        yield mpi, "-np 2 --mpi-args '--bind-to core'", {}, ["--bind-to core"], ["--bind-to none"]
        yield mpi, "-np 2", {"OMPI_MCA_pml": "ucx"}, [], ["ob1", "btl"]
    yield "Open MPI 5", "-np 2", {"UID": "0"}, ["--allow-run-as-root"], []
    yield "Open MPI 5", "-np 2 --elastic", {}, ["--with-ft ulfm"], []
    yield "Debian's Open MPI", "-np 2", {}, [MEMORY["Open MPI 4"]], []


@pytest.mark.parametrize(("mpi", "arguments", "environment", "has", "has_not"), list(command_lines()))
def test_the_command_for_each_mpi(machine, capsys, mpi, arguments, environment, has, has_not):
    path = machine(VERSIONS[mpi], **environment)
    assert main([*shlex.split(arguments), "--dry-run", "--", "bert-squad", "--output_dir", "my out"]) == 0
    line, errors = capsys.readouterr()
    assert errors == ""
    assert f"{path} " in line
    assert line.endswith(" bert-squad --output_dir 'my out'\n")
    for words in has:
        assert f" {words} " in f" {line}"
    for words in has_not:
        assert words not in line.replace(str(path), "")


def test_one_rank_here_is_started_without_mpirun(machine, capsys):
    machine("no MPI at all")
    assert main(["-np", "1", "--dry-run", "--", "bert-squad", "--x=a b"]) == 0
    assert capsys.readouterr().out == "bert-squad '--x=a b'\n"


@pytest.mark.parametrize("in_venv", [True, False])
def test_a_virtual_environments_own_mpirun_goes_first(machine, tmp_path, monkeypatch, capsys, in_venv):
    beside = tmp_path / "venv" / "mpirun"
    on_path = machine(VERSIONS["Open MPI 5"])
    beside.parent.mkdir()
    beside.symlink_to(on_path)
    monkeypatch.setattr(sys, "executable", str(beside.with_name("python")))
    monkeypatch.setattr(sys, "base_prefix", "/usr" if in_venv else sys.prefix)
    main(["-np", "2", "--dry-run", "--", "bert-squad"])
    assert f"{beside if in_venv else on_path} -np 2" in capsys.readouterr().out


REFUSED = {
    "-np 2 bert-squad": "--",
    "-np 2 --": "--",
    "-- bert-squad": "-np",
    "-np 0 -- bert-squad": "-np",
    "-np two -- bert-squad": "two",
    "-np 2 --nope -- bert-squad": "--nope",
    "-np 2 -H node1: -- bert-squad": "-H",
    "-np 2 -H node1:0 -- bert-squad": "-H",
    "-np 2 -H -oProxyCommand=x:2 -- bert-squad": "-H",  # ssh would take it for an option
    "-np 2 -H node1:1,node1:1 -- bert-squad": "node1",
    "-np 5 -H node1:2,node2:2 -- bert-squad": "-np",
    "-np 2 -p 0 -- bert-squad": "-p",
    '-np 2 --mpi-args "\'" -- bert-squad': "--mpi-args",
}


def the_error(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bert-launch: error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(("arguments", "named"), REFUSED.items())
def test_bad_arguments_are_one_line_and_status_2(arguments, named, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(shlex.split(arguments))
    assert named in the_error(capsys)


@pytest.mark.parametrize(
    ("version", "arguments", "named"),
    [
        ("something else", ["-np", "2"], "something else"),
        (None, ["-np", "2"], "pip install"),
        (VERSIONS["Open MPI 4"], ["-np", "2", "--elastic"], "--elastic"),
    ],
)
def test_an_mpirun_that_will_not_do_is_one_line_and_status_1(machine, capsys, version, arguments, named):
    machine(version)
    assert main([*arguments, "--", "bert-squad"]) == 1
    assert named in the_error(capsys)


def test_output_and_exit_status_pass_through():
    ranks = len(os.sched_getaffinity(0)) + 1  # more than the cores: mpirun refuses without --oversubscribe
    done = run(launch(ranks, "sh", "-c", "echo a rank"))
    assert done.status == 0, done
    assert done.stdout == "a rank\n" * ranks
    assert done.stderr.count("\n") == 1, "the command, for those who would use it themselves"
    assert run(launch(2, "sh", "-c", "exit 7")).status == 7


@pytest.mark.slow
def test_ctrl_c_ends_a_job_that_has_nothing_to_save(tmp_path):
    with started(launch(2, "sh", "-c", f"touch {tmp_path}/$$; exec sleep 1000")) as job:
        job.wait_for(lambda: len(os.listdir(tmp_path)) == 2)
        job.press_ctrl_c()
        assert job.end().status not in (0, 75)
