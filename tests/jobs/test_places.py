"""Places where a job cannot start: small file systems and read-only ones, mounted for it alone.

Each ends with one line that says what to do, and is not repeated by --restarts.
"""

import json
import signal
import subprocess
import sys

import pytest
from harness import texts
from harness.classifier_runs import COLUMNS, model_flags, write_rows
from harness.hosts import available, simulated_hosts
from harness.jobs import launch, program, run
from harness.mpi import ENVIRONMENT

pytestmark = pytest.mark.slow
RESTARTS = ("--restarts=2",)
ELASTIC = (*RESTARTS, "--elastic")
FULL = "head -c 1m /dev/zero > {0}/file 2> {0}/errors"


def mounted(options, folder, command, then="true", **variables):
    """The end of a command for which a file system in memory lies over a folder, and what was done
    to it."""
    script = f'mount -t tmpfs {options} tmpfs {folder} && {{ {then.format(folder)}; exec "$@"; }}'
    return run(["unshare", "--mount", "sh", "-c", script, "sh", *command], **variables)


@pytest.fixture(scope="module", autouse=True)
def mounts():
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("mounts of its own need root")


def assert_no_restart(done):
    """Nothing behind the command speaks of one."""
    assert "restart" not in done.stderr.partition("\n")[2], done


def assert_one_line(done, *parts):
    """The last line is bert-launch's only error, and there was one start only."""
    assert done.status == 1, done
    *_, last = lines = done.stderr.splitlines()
    assert last.startswith("bert-launch: error: "), done
    assert sum("error:" in line for line in lines) == 1, done
    assert all(part in last for part in parts), done
    assert_no_restart(done)
    assert len(lines) < 20, done  # of mpirun alone come up to 60


@pytest.mark.parametrize("flags", [RESTARTS, ELASTIC], ids=["restarts", "elastic"])
def test_shared_memory_that_is_too_small(tmp_path, flags):
    job = launch(2, *program("work.py", tmp_path), flags=flags)
    done = mounted("-o size=1m", "/dev/shm", job)
    assert_one_line(done, "/dev/shm", "1048576", "16777216", "--shm-size", "emptyDir")
    assert mounted("-o size=33m", "/dev/shm", job).status == 0


@pytest.mark.parametrize("flags", [RESTARTS, ELASTIC], ids=["restarts", "elastic"])
def test_a_folder_for_temporary_files_that_is_read_only_or_full(tmp_path, flags):
    job = launch(2, *program("work.py", tmp_path), flags=flags)
    there = tmp_path / "temporary"
    there.mkdir()
    here = {"TMPDIR": str(there)}
    assert_one_line(mounted("-o ro", there, job, **here), str(there), "Read-only", "set TMPDIR")
    assert_one_line(mounted("-o size=64k", there, job, FULL, **here), "TMPDIR", "full")
    assert_one_line(mounted("-o nr_inodes=4", there, job, **here), "TMPDIR", "full")


def test_a_folder_for_temporary_files_that_becomes_full_while_mpirun_starts(tmp_path):
    job = launch(2, *program("work.py", tmp_path), flags=RESTARTS)
    here = tmp_path / "temporary"
    here.mkdir()
    fill = "head -c 8128k /dev/zero > {0}/file"
    done = mounted("-o size=8m", here, job, fill, TMPDIR=str(here))
    assert done.status == 128 + signal.SIGBUS, done  # of mpirun, which writes to a mapped file
    assert done.stderr.endswith("SIGBUS (is /dev/shm or TMPDIR full?)\n"), done
    assert_no_restart(done)


def test_a_program_that_is_not_there_or_cannot_be_executed(tmp_path):
    (tmp_path / "file").touch()
    for name in ("bert-squa", str(tmp_path / "file"), str(tmp_path)):
        assert_one_line(run(launch(2, name, flags=RESTARTS)), f"{name} cannot be started on ")
    alone = run([sys.executable, "-m", "distributed.launch", "-np=1", "--", "bert-squa"])
    assert_one_line(alone, "bert-squa: No such file")


def test_a_host_that_gives_no_answer(tmp_path):
    """Without --restarts too, and before anything is started."""
    for flags in (), RESTARTS:
        job = launch(2, *program("work.py", tmp_path), flags=("-H", "nowhere.invalid:2", *flags))
        assert_one_line(run(job), "nowhere.invalid", "`ssh -o BatchMode=yes nowhere.invalid true`")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(available() is not None, reason=available() or "")
def test_a_host_whose_temporary_files_cannot_be_written(tmp_path):
    with simulated_hosts(2) as hosts:
        agent = hosts.folder / "agent"
        agent.write_text(agent.read_text().replace('TMPDIR="$TMPDIR"', "TMPDIR=/proc/nowhere"))
        done = hosts.run(0, hosts.launch(1, *program("work.py", tmp_path), flags=RESTARTS))
    assert done.status == 213, done
    assert done.stderr.endswith("can TMPDIR be written there, and has it room?\n"), done
    assert_no_restart(done)


@pytest.mark.parametrize("options", ["-o ro", "-o size=16k"])
def test_a_home_folder_that_cannot_be_written_or_is_full(tmp_path, options):
    texts.write_model(tmp_path, num_layers=1)
    write_rows(tmp_path / "a.csv", COLUMNS, texts.make_examples(500, 1), ",")
    (tmp_path / "home").mkdir()
    command = [sys.executable, "-m", "tasks.classifier", *model_flags(tmp_path), "--do_train"]
    command += [f"--train_file={tmp_path}/a.csv", "--text_column=body", "--label_column=kind"]
    command += ["--num_train_steps=1", "--global_batch_size=8", f"--output_dir={tmp_path}/out"]
    here = {"HOME": f"{tmp_path}/home", "RINGBERT_CACHE": ""}
    done = mounted(options, tmp_path / "home", launch(2, *command, flags=RESTARTS), **here)
    assert done.status == 1, done
    (line,) = [line for line in done.stderr.splitlines() if "error:" in line]
    assert "set RINGBERT_CACHE to a folder that can be written and has room" in line
    assert f"(now {tmp_path}/home/.cache/ringbert)" in line
    assert_no_restart(done)


def test_the_doctor_finds_them(tmp_path):
    doctor = [sys.executable, "-m", "tasks.doctor", "--quick"]
    there = tmp_path / "temporary"
    there.mkdir()
    found = mounted("-o ro", there, doctor, TMPDIR=str(there))
    assert found.status == 1
    assert "XX TMPDIR " in found.stdout
    assert "set TMPDIR" in found.stdout
    small = mounted("-o size=1m", "/dev/shm", doctor)
    assert small.status == 1
    assert "XX /dev/shm " in small.stdout
    assert "--shm-size" in small.stdout
    lost = run(doctor, PATH="/usr/bin:/bin")
    assert lost.status == 0
    assert "bert-squad" in lost.stdout.partition("!! MPI ")[2], lost


# Imports TensorFlow once, before it looks at any device, and looks in a process for each of CASES:
# [the device files that appear, CUDA_VISIBLE_DEVICES].
LOOKS = """
import json, os, pathlib, sys
from distributed.devices import imported_tensorflow, visible_gpus
from ringbase.errors import InputError

def what_is_seen(names, variable):
    os.environ["CUDA_VISIBLE_DEVICES"] = variable
    for name in names:
        pathlib.Path("/dev", name).touch()
    try:
        return visible_gpus("auto")
    except InputError as error:
        return str(error)

imported_tensorflow()
for names, variable in json.loads(sys.argv[1]):
    if os.fork() == 0:
        print(json.dumps(what_is_seen(names, variable)), flush=True)
        os._exit(0)
    os.wait()
    for name in names:
        pathlib.Path("/dev", name).unlink()
"""


def test_a_gpu_that_does_not_answer_is_no_cpu():
    """Whichever device file a container was given, or WSL's; unless somebody hides it."""
    silent = ["nvidia3"], ["nvidia0", "nvidiactl"], ["nvidiactl"], ["dxg"]
    hiding = "", "-1", "NoDevFiles", "none", "void"
    cases = [(names, "0") for names in silent]
    cases += [(["nvidia0"], value) for value in hiding]
    cases += [(["nvidia-uvm"], "0")]  # of no GPU
    script = "mount -t tmpfs tmpfs /mnt"
    for name in "null", "zero", "urandom", "random":
        script += f" && touch /mnt/{name} && mount --bind /dev/{name} /mnt/{name}"
    script += ' && ln -s /proc/self/fd /mnt/fd && mount --move /mnt /dev && exec "$@"'
    python = [sys.executable, "-c", LOOKS, json.dumps(cases)]
    done = run(["unshare", "--mount", "sh", "-c", script, "sh", *python])
    assert done.status == 0, done
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(cases), done
    for names, error in zip(silent, found[: len(silent)], strict=True):
        assert f"cannot use the GPU /dev/{names[0]}" in error
    assert found[len(silent) :] == [[]] * (len(hiding) + 1)


def test_an_image_without_grep(tmp_path):
    script = 'for file in $(which -a grep); do mount --bind /dev/null $file; done; exec "$@"'
    join = "from distributed.devices import imported_tensorflow as tf; print(tf().__name__)"
    done = run(["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", join])
    assert (done.status, done.stdout) == (0, "tensorflow\n"), done


OWN_NETWORKS = {"docker": ("docker0", "172.17.0.1"), "same network": ("eth1", "192.168.7.{n}")}


@pytest.mark.skipif(available() is not None, reason=available() or "")
@pytest.mark.parametrize("kind", OWN_NETWORKS)
def test_networks_that_each_host_has_for_itself(tmp_path, kind):
    """Docker's bridge has the same address on all machines. Another such network is not known by
    its name: one line says what to do."""
    link, address = {
        "docker": ("docker0", "172.17.0.1"),
        "same network": ("eth1", "192.168.7.{n}"),
    }[kind]
    named = {"RINGBERT_NETWORK": "10.99.0.0/24"}
    sums = [sys.executable, "-c", SUM]
    with simulated_hosts(2) as hosts:
        for number in range(2):
            own = address.format(n=number + 1)
            made = f"ip link add {link} type bridge && ip address add {own}/24 dev {link}"
            assert hosts.run(number, ["sh", "-c", f"{made} && ip link set {link} up"]).status == 0
        for variables in named, {"RINGBERT_NETWORK": ""}:
            done = hosts.run(0, hosts.launch(1, *sums), env={**ENVIRONMENT, **variables})
            if kind == "docker" or variables is named:
                assert (done.status, done.stdout) == (0, "3.0\n3.0\n"), done
            else:
                assert done.status != 0
                assert "set RINGBERT_NETWORK to the network that joins them" in done.stderr, done


# without our code in the ranks: what bert-launch sets is enough
SUM = """
import numpy as np
from mpi4py import MPI
total = np.empty(300_000)
MPI.COMM_WORLD.Allreduce(np.full(300_000, MPI.COMM_WORLD.rank + 1.0), total)
print(total[0], flush=True)
"""


PLACES = """
from distributed.devices import number_on_machine
from distributed.world import World
with World.join(device=None, program="prog") as world:
    found = world.gather((world.local_rank, number_on_machine(world)))
    if world.rank == 0:
        print(found)
"""


@pytest.mark.skipif(available() is not None, reason=available() or "")
def test_containers_of_a_machine_that_share_no_memory_count_its_ranks_together():
    """Each would take GPU 0."""
    with simulated_hosts(2) as hosts:
        done = hosts.run(0, hosts.launch(2, sys.executable, "-c", PLACES))
    assert done.stdout == "[(0, 0), (1, 1), (0, 2), (1, 3)]\n", done
