"""bert-launch: the command that it builds for each MPI and batch system, its errors, and a run."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from harness.jobs import launch, run, started
from harness.refusals import refusal

from distributed.launch import main

VERSIONS = {  # the first lines of mpirun --version
    "Open MPI 5": "mpirun (Open MPI) 5.0.11",
    "Open MPI 4": "mpirun.openmpi (OpenRTE) 4.1.4",  # Debian's
    "MPICH": "HYDRA build details:\n    Version:                                 4.2.3",
    "Intel MPI": (
        "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)"
    ),
}
OPEN_MPI = ["Open MPI 4", "Open MPI 5"]
ONE_HOST = {  # its ranks exchange messages in its memory, and open no port
    "Open MPI 4": "OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader",
    "Open MPI 5": "OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm",
    "MPICH": "FI_PROVIDER=shm UCX_TLS=self,sysv,posix,cma",
    "Intel MPI": "I_MPI_FABRICS=shm",
}
NAMED = ("-x HF_TOKEN -x PATH -x PYTHONPATH", "--bind-to none", "-H node1:2,node2:4")
OF_HYDRA = ("-genvlist HF_TOKEN,PATH,PYTHONPATH", "-hosts node1:2,node2:4")
TWO_HOSTS = {
    "Open MPI 4": [*NAMED, "--mca plm_rsh_args '-p 2222'"],
    "Open MPI 5": [*NAMED, "--prtemca plm_ssh_args '-p 2222'"],
    "MPICH": [*OF_HYDRA, "-bind-to none", "'HYDRA_LAUNCHER_EXTRA_ARGS=-p 2222'"],
    "Intel MPI": [
        *OF_HYDRA,
        "-genv I_MPI_PIN 0",
        "'I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS=-p 2222'",
    ],
}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes the only mpirun of a machine of 8 cores, of which the user is not root and has set
    nothing."""

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


def command_lines():
    """MPI, arguments, environment, what the line has, what it has not."""
    variables = {"PYTHONPATH": "p", "HF_TOKEN": "secret", "HOME": "/home/me", "EDITOR": "vi"}
    for mpi, memory in ONE_HOST.items():
        yield mpi, "-np 4", {}, ["-np 4", memory], ["root", "yield"]
        yield mpi, "-np 4 -H localhost:4", {}, [memory], []
        there = "-np 6 -H node1:2,node2:4 -p 2222 --mpi-args '--tag-output -x A'"
        has = [*TWO_HOSTS[mpi], "-np 6", "--tag-output -x A"]
        yield mpi, there, variables, has, [memory, "--oversubscribe", "secret", "EDITOR", "HOME"]
    alone = ["--oversubscribe", "yield", "OMPI_MCA_pml"]
    for batch in "SLURM_JOB_NODELIST", "PBS_NODEFILE":
        yield "Open MPI 5", "-np 64", {batch: "nodes"}, ["-np 64"], [*alone, "-H", "-hosts"]
    for lsf in (
        {"LSB_HOSTS": "node1 node2 node2 node1 node2 node2"},
        {"LSB_JOBID": "7", "LSB_HOSTS": "", "LSB_MCPU_HOSTS": "node1 2 node2 4"},
    ):
        yield "Open MPI 5", "-np 6", lsf, ["-H node1:2,node2:4"], alone
        yield "MPICH", "-np 6", lsf, ["-hosts node1:2,node2:4"], []
        yield "Open MPI 5", "-np 2 -H a:2", lsf, ["-H a:2"], ["node1"]  # the user's come first
    for mpi, name in (
        ("Open MPI 4", "OMPI_MCA_orte_default_hostfile"),
        ("Open MPI 5", "OMPI_MCA_orte_default_hostfile"),
        ("Open MPI 5", "PRTE_MCA_prte_default_hostfile"),
    ):
        yield mpi, "-np 4", {name: __file__}, [f"--hostfile {__file__}"], alone
        own = "-np 4 --mpi-args '--hostfile hosts'"
        yield mpi, own, {name: __file__}, ["--hostfile hosts"], [__file__]
    for mpi, name in ("MPICH", "HYDRA_HOST_FILE"), ("Intel MPI", "I_MPI_HYDRA_HOST_FILE"):
        yield mpi, "-np 4", {name: __file__}, [f"-f {__file__}"], [ONE_HOST[mpi]]
    for mpi in OPEN_MPI:  # between hosts
        there = "-np 2 -H a:1,b:1"
        named = {"RINGBERT_NETWORK": "10.0.0.0/24"}
        has = ["OMPI_MCA_btl_tcp_if_include=10.0.0.0/24", "PRTE_MCA_prte_if_include=10.0.0.0/24"]
        yield mpi, there, named, has, ["if_exclude"]
        yield mpi, there, {"OMPI_MCA_btl_tcp_if_include": "ib0"}, [], ["if_exclude", "include="]
        yield mpi, f"{there} --mpi-args '--mca btl_tcp_if_include ib0'", {}, [], ["if_exclude"]
    for mpi in OPEN_MPI:
        yield mpi, "-np 9", {}, ["--oversubscribe --mca mpi_yield_when_idle 1"], []
        yield mpi, "-np 9 -H localhost:9", {}, ["--mca mpi_yield_when_idle 1"], ["--oversubscribe"]
        hostfile = "-np 64 --mpi-args '--hostfile hosts'"
        yield mpi, hostfile, {}, ["--hostfile hosts"], ["--oversubscribe"]
        yield mpi, "-np 2 --mpi-args '--bind-to core'", {}, ["--bind-to core"], ["--bind-to none"]
        yield mpi, "-np 2", {"OMPI_MCA_pml": "ucx"}, [], ["ob1", "btl"]
    has = ["--allow-run-as-root", "--with-ft ulfm", "--mca coll '^han,hcoll,portals4'"]
    yield "Open MPI 5", "-np 2 --elastic", {"UID": "0"}, has, []
    own = "-np 2 --elastic --mpi-args '--mca coll ^han'"
    yield "Open MPI 5", own, {}, ["--mca coll '^han'"], ["portals4"]


@pytest.mark.parametrize(
    ("mpi", "arguments", "environment", "has", "has_not"), list(command_lines())
)
def test_the_command_for_each_mpi(machine, capsys, mpi, arguments, environment, has, has_not):
    path = machine(VERSIONS[mpi], **environment)
    command = ["bert-squad", "--output_dir", "my out"]
    assert main([*shlex.split(arguments), "--dry-run", "--", *command]) == 0
    line, errors = capsys.readouterr()
    assert errors == ""
    assert f"{path} " in line
    assert line.endswith(" bert-squad --output_dir 'my out'\n")
    for words in has:
        assert f" {words} " in f" {line}"
    for words in has_not:
        assert words not in line.replace(str(path), "")


@pytest.mark.parametrize(
    ("mpi", "arguments", "environment", "named"),
    [
        ("Open MPI 5", "-np 4", {"PE_HOSTFILE": "f"}, "Grid Engine (PE_HOSTFILE is set)"),
        ("Open MPI 5", "-np 4", {"OAR_NODEFILE": "f"}, "-H $(sort $OAR_NODEFILE | uniq -c"),
        ("MPICH", "-np 4", {"COBALT_NODEFILE": "f"}, "Cobalt"),
        ("Open MPI 4", "-np 4", {"FLUX_URI": "local:///run/flux"}, "flux run"),
        ("Open MPI 5", "-np 4", {"LSB_JOBID": "7", "LSB_HOSTS": ""}, "LSB_MCPU_HOSTS"),
        ("Open MPI 5", "-np 4", {"LSB_MCPU_HOSTS": "a", "LSB_JOBID": "7"}, "number of slots"),
        ("Open MPI 5", "-np 4", {"LSB_HOSTS": "a b"}, "has given this job 2 slots, on a, b"),
        ("MPICH", "-np 4", {"OMPI_MCA_orte_default_hostfile": "f"}, "this is MPICH"),
        ("Open MPI 5", "-np 4", {"PRTE_MCA_prte_default_hostfile": "/none"}, "/none cannot be"),
        ("Open MPI 5", "-np 2 -H a:1,b:1", {"RINGBERT_NETWORK": "eth0"}, "10.0.0.0/24"),
    ],
)
def test_lists_of_hosts_that_nobody_reads_are_refused(
    machine, capsys, mpi, arguments, environment, named
):
    """Never are all ranks of such a job on this machine. With -H they are where it says."""
    machine(VERSIONS[mpi], **environment)
    argv = [*shlex.split(arguments), "--dry-run", "--", "bert-squad"]
    refusal(capsys, "bert-launch", lambda: sys.exit(main(argv)), named, is_alone=True)
    if "-H" not in argv:
        assert main(["-H", "localhost:4", *argv]) == 0
        assert main(["-np", "1", *argv[2:]]) == 0


def test_a_way_to_exchange_messages_that_this_mpi_lacks_is_left_out(
    machine, tmp_path, monkeypatch, capfd
):
    site = {"OMPI_MCA_btl": "openib,self", "OMPI_MCA_mtl": "ofi", "OMPI_MCA_pml": "^ucx"}
    machine(VERSIONS["Open MPI 5"], **site)
    info = tmp_path / "ompi_info"
    info.write_text(
        "#!/bin/sh\nprintf 'mca:btl:self:version:a\\nmca:btl:tcp:version:a\\n"
        "mca:mtl:ofi:version:a\\nmca:pml:ob1:version:a\\n'\n"
    )
    info.chmod(0o755)
    assert main(["-np", "2", "-H", "a:1,b:1", "--dry-run", "--", "bert-squad"]) == 0
    said = capfd.readouterr().err
    assert said.startswith("bert-launch: OMPI_MCA_btl=openib,self is left out: Open MPI 5.0")
    assert said.endswith("has no openib\n")
    assert {name for name in site if name in os.environ} == {"OMPI_MCA_mtl", "OMPI_MCA_pml"}


@pytest.mark.parametrize("in_venv", [True, False])
def test_a_virtual_environments_own_mpirun_goes_first(
    machine, tmp_path, monkeypatch, capsys, in_venv
):
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
    "-np 0 -- bert-squad": "-np",
    "-np 2 --nope -- bert-squad": "--nope",
    "-np 2 --hostfile hosts -- bert-squad": "hosts cannot be read",
    "-np 2 -x A -- bert-squad": "--mpi-args '-x NAME'",
    "-np 2 --timeline-filename=a.json -- bert-squad": "keras.callbacks.TensorBoard",
    "-np 2 -H node1:0 -- bert-squad": "-H",
    "-np 2 -H -oProxyCommand=x:2 -- bert-squad": "-H",  # ssh would take it for an option
    "-np 2 -H node1:1,node1:1 -- bert-squad": "node1",
    "-np 2 -H ::1:2 -- bert-squad": "IPv6 need a name",
    "-np 2 -H [fe80::1%eth0]:1,[fe80::2%eth0]:1 -- bert-squad": "IPv6 need a name",
    "-np 5 -H node1:2,node2:2 -- bert-squad": "-np",
    "-np 2 -p 0 -- bert-squad": "-p",
    '-np 2 --mpi-args "\'" -- bert-squad': "--mpi-args",
}


# The flags in the help of horovodrun 0.28, and hidden ones, with what bert-launch makes of them.
HOROVODRUN = {
    "taken": """-np=2 --num-proc=2 -H=localhost:2 --hosts=localhost:2 -p=22 --ssh-port=22 --mpi
        --start-timeout=60 --mpi-args=-q --binding-args=-q -hostfile=FILE --hostfile=FILE
        --stall-check-warning-time-seconds=60 --stall-check-shutdown-time-seconds=0
        --no-stall-check --stall-check""",
    "note": """--disable-cache --verbose --fusion-threshold-mb=32 --cycle-time-ms=3.5
        --cache-capacity=1024 --hierarchical-allreduce --no-hierarchical-allreduce
        --hierarchical-allgather --no-hierarchical-allgather --autotune --no-autotune
        --autotune-log-file=a.csv --autotune-warmup-samples=3 --autotune-steps-per-sample=10
        --autotune-bayes-opt-max-samples=20 --autotune-gaussian-process-noise=0.8
        --timeline-mark-cycles --no-timeline-mark-cycles --mpi-threads-disable
        --no-mpi-threads-disable --num-nccl-streams=1 --thread-affinity=0
        --gloo-timeout-seconds=30 --log-level=INFO --log-with-timestamp --log-without-timestamp
        -prefix-timestamp --prefix-output-with-timestamp --log-hide-timestamp
        --no-log-hide-timestamp --gloo""",
    "refused": """-cb --check-build --network-interfaces=eth0,eth1 --network-interface=eth0
        --output-filename=out --config-file=c.yaml -i=id --ssh-identity-file=id --min-np=1
        --min-num-proc=1 --max-np=4 --max-num-proc=4 --slots-per-host=2 --elastic-timeout=60
        --reset-limit=3 --blacklist-cooldown-range=60 --timeline-filename=a.json --tcp
        --host-discovery-script=hosts.sh --jsrun""",
}


@pytest.mark.parametrize(
    ("word", "answer"), [(word, kind) for kind in HOROVODRUN for word in HOROVODRUN[kind].split()]
)
def test_every_flag_of_horovodrun_is_answered(word, answer, machine, capsys, tmp_path):
    machine(VERSIONS["Open MPI 5"])
    (tmp_path / "hosts").write_text("localhost slots=2  # this one\n\n")
    flag, *value = word.replace("FILE", str(tmp_path / "hosts")).split("=", 1)
    given = [word] if flag in ("--mpi-args", "--binding-args") else [flag, *value]
    argv = ["-np", "2", *given, "--dry-run", "--", "true"]
    if answer == "refused":
        refusal(capsys, "bert-launch", lambda: sys.exit(main(argv)), flag, status=2, is_alone=True)
        return
    assert main(argv) == 0
    line, notes = capsys.readouterr()
    assert line.endswith(" true\n")
    if answer == "note":
        assert notes.startswith(f"bert-launch: note: {flag} has no effect: ")
    assert notes.count("\n") == (answer == "note")
    if "hostfile" in flag:
        assert " -H localhost:2 " in line
    if "args" in flag:
        assert " -q " in line
    if "stall" in flag:
        assert f"_TIME_SECONDS={(*value, '0' if 'no' in flag else '60')[0]} " in line


def test_horovods_name_is_found_first_by_the_ranks(machine, capsys):
    machine(VERSIONS["Open MPI 5"], PYTHONPATH="/own")
    for flags, has_not in (["--horovod"], "always"), (["--horovod=always"], "nothing"):
        assert main([*flags, "-np", "2", "--dry-run", "--", "python", "train.py"]) == 0
        line = capsys.readouterr().out
        (path,) = re.findall(r"PYTHONPATH=(\S+):/own ", line)
        assert (Path(path) / "horovod" / "__init__.py").exists()
        assert " -x PYTHONPATH " in line
        assert has_not not in line


@pytest.mark.parametrize(("arguments", "named"), REFUSED.items())
def test_bad_arguments_are_one_line_and_status_2(arguments, named, capsys):
    refusal(
        capsys, "bert-launch", lambda: main(shlex.split(arguments)), named, status=2, is_alone=True
    )


def test_an_mpirun_that_will_not_do_is_one_line_and_status_1_and_one_rank_needs_none(
    machine, capsys
):
    for version, flags, named in (
        (None, (), "pip install"),
        ("something else", (), "something else"),
        (VERSIONS["Open MPI 4"], ("--elastic",), "--elastic"),
        (VERSIONS["Open MPI 5"], ("--", "bert-classifier", "--predict_file=-"), "no end"),
    ):
        machine(version)
        argv = ("-np", "2", *flags, *(() if "--" in flags else ("--", "bert-squad")))
        refusal(capsys, "bert-launch", lambda argv=argv: sys.exit(main(argv)), named, is_alone=True)
        assert main(["-np", "1", "--dry-run", "--", "bert-squad", "--x=a b"]) == 0
        assert capsys.readouterr().out == "bert-squad '--x=a b'\n"


def test_output_and_exit_status_pass_through():
    # more than the cores: mpirun refuses without --oversubscribe
    ranks = len(os.sched_getaffinity(0)) + 1
    done = run(launch(ranks, "sh", "-c", "echo a rank"))
    assert (done.status, done.stdout) == (0, "a rank\n" * ranks), done
    assert done.stderr.count("\n") == 1, "the command, for those who would use it themselves"
    assert run(launch(2, "sh", "-c", "exit 7")).status == 7


@pytest.mark.slow
@pytest.mark.slow
def test_a_loop_over_lines_keeps_them(tmp_path):
    (tmp_path / "seeds").write_text("1\n2\n3\n")
    job = shlex.join(launch(2, "echo", "job"))
    loop = f"while read -r seed; do {job} $seed; done < {tmp_path}/seeds"
    assert sorted(run(["sh", "-c", loop]).stdout.split("\n")) == [
        "",
        *(f"job {seed}" for seed in (1, 1, 2, 2, 3, 3)),
    ]
    alone = shlex.join(launch(1, "cat", "-"))
    assert run(["sh", "-c", f"{alone} < {tmp_path}/seeds"]).stdout == "1\n2\n3\n"


def test_ctrl_c_ends_a_job_that_has_nothing_to_save(tmp_path):
    with started(launch(2, "sh", "-c", f"touch {tmp_path}/$$; exec sleep 1000")) as job:
        job.wait_for(lambda: len(os.listdir(tmp_path)) == 2)
        job.press_ctrl_c()
        assert job.end().status not in (0, 75)
