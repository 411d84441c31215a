"""A stop is a stop, wherever it comes: what can be saved is saved, and the next start goes on.

Signals come as terminals, `timeout`, batch systems and containers send them: to bert-launch, to the
ranks, twice.
"""

import os
import re
import signal
import sys
import time

import pytest
from harness.classifier_runs import COLUMNS, DEV, model_flags, own_files, write_data, write_rows
from harness.jobs import launch, program, ranks_of, run, shell, started
from harness.program_runs import command, metrics_in
from harness.texts import write_lines

from ringbase.files import read_json

pytestmark = pytest.mark.slow
PREDICTED = 6_000  # rows that take seconds


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """With a dev set whose evaluation takes seconds."""
    folder = write_data(tmp_path_factory.mktemp("data"))
    rows = [(each.first, each.second, each.kind) for each in DEV]
    write_rows(folder / "long.tsv", COLUMNS, (rows * (PREDICTED // len(rows) + 1))[:PREDICTED])
    return folder


@pytest.fixture(scope="module")
def flags(data):
    files = [*own_files(data), f"--dev_file={data}/long.tsv", f"--predict_file={data}/long.tsv"]
    train = ["--do_train", "--global_batch_size=8", "--log_steps=1", "--learning_rate=1e-3"]
    return [*model_flags(data), *files, *train]


def training(out, *flags, ranks=1):
    """The command line of a training."""
    return command("tasks.classifier", *flags, f"--output_dir={out}", ranks=ranks)


def steps_in(out):
    """The steps that are logged."""
    if not (out / "metrics.jsonl").exists():
        return []
    return [line["step"] for line in metrics_in(out) if "loss" in line]


def state_of(out, step):
    return read_json(out / f"checkpoints/rows-{8 * step:012}" / "state.json")


def has_saved(done, out, step):
    assert (done.status, "Traceback" in done.stderr) == (75, False), done
    assert f"saved after step {step}" in done.stderr, done
    return state_of(out, step)


@pytest.mark.parametrize(
    ("ranks", "stop"),
    [(1, lambda job: job.press_ctrl_c()), (2, lambda job: job.process.terminate())],
    ids=["Ctrl-C to one process", "SIGTERM to the launcher"],
)
def test_a_stop_in_an_evaluation_saves_and_the_evaluation_is_repeated(flags, tmp_path, ranks, stop):
    out = tmp_path / "out"
    flags = [*flags, "--do_eval", "--eval_steps=5", "--num_train_steps=6"]
    with started(training(out, *flags, ranks=ranks)) as job:
        job.wait_for(lambda: 5 in steps_in(out))  # after which it evaluates
        stop(job)
        state = has_saved(job.end(), out, 5)
    assert state["evaluated"] == 0
    shell(*training(out, *flags, ranks=ranks))
    evaluated = [line["step"] for line in metrics_in(out) if "eval_accuracy" in line]
    assert evaluated == [5, 6]


def test_sigterm_to_one_of_the_ranks_saves(flags, tmp_path):
    """As scancel, Slurm's preemption and Kubernetes send it, there to all."""
    out = tmp_path / "out"
    with started(training(out, *flags, "--num_train_steps=5000", ranks=2)) as job:
        job.wait_for(lambda: len(steps_in(out)) > 3)
        os.kill(ranks_of(out)[1], signal.SIGTERM)
        done = job.end()
    has_saved(done, out, max(steps_in(out)))


def test_timeouts_two_signals_are_one_request_also_where_standard_error_goes_elsewhere(
    flags, tmp_path
):
    """`timeout` signals its child, and then its group: the child again. Records, not what is
    printed, say that the ranks can save, and that they have."""
    out = tmp_path / "out"
    arguments = f"--mpi-args=--output file={tmp_path}/log"
    one = training(out, *flags, "--num_train_steps=5000")
    with started(launch(2, *one, flags=(arguments,))) as job:
        job.wait_for(lambda: len(steps_in(out)) > 3)
        job.process.terminate()
        time.sleep(0.1)  # else one signal may come of both
        job.process.terminate()
        done = job.end()
    assert done.status == 75, done
    assert state_of(out, max(steps_in(out)))


def test_a_repeated_signal_does_not_kill_what_has_stopped_and_is_ending(flags, tmp_path):
    """The program has then told its end, and its process has not ended yet."""
    out = tmp_path / "out"
    argv = training(out, *flags, "--do_predict", "--num_train_steps=2")
    with started([sys.executable, "-m", "distributed.launch", "-np=1", "--", *argv]) as job:
        job.wait_for((out / "model/config.json").exists)  # before it predicts
        job.process.terminate()
        job.wait_for(lambda: "stopped on request" in job.done().stderr)
        job.process.terminate()
        done = job.end()
    assert done.status == 75, done


def test_a_stop_in_a_prediction_ends_soon_and_the_next_start_predicts(flags, tmp_path):
    """Of a training that is saved, whatever its predictions lack."""
    out = tmp_path / "out"
    flags = [*flags, "--do_predict", "--num_train_steps=2"]
    with started(training(out, *flags, ranks=2)) as job:
        job.wait_for((out / "model/config.json").exists)  # before it predicts, for seconds
        job.process.terminate()
        done = job.end()
    assert done.status == 75, done
    assert "to continue, run the same command" in done.stderr, done
    assert not (out / "result.json").exists()
    shell(*training(out, *flags))
    assert (out / "result.json").exists()
    assert steps_in(out) == [1, 2]


def test_a_script_that_saves_nothing_ends_at_the_first_signal(tmp_path):
    script = tmp_path / "script.py"
    write_lines(
        script,
        "from harness import lean",
        "import ringbert.horovod as hvd, pathlib, sys, time",
        "hvd.init()",
        "pathlib.Path(sys.argv[1], str(hvd.rank())).touch()",
        "time.sleep(1000)",
    )
    (tmp_path / "here").mkdir()
    with started(launch(2, sys.executable, script, tmp_path / "here")) as job:
        job.wait_for(lambda: len(os.listdir(tmp_path / "here")) == 2)
        job.process.send_signal(signal.SIGINT)
        done = job.end()
    assert done.status not in (0, 75), done
    assert "SIGINT ends the ranks" in done.stderr, done


def test_a_scripts_own_handler_stays(tmp_path):
    script = tmp_path / "script.py"
    write_lines(
        script,
        "import signal, sys",
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))",
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(8))",
        "mine = [signal.getsignal(each) for each in (signal.SIGUSR1, signal.SIGTERM)]",
        "from harness import lean",
        "import ringbert.horovod as hvd",
        "hvd.init()",
        "now = [signal.getsignal(each) for each in (signal.SIGUSR1, signal.SIGTERM)]",
        "sys.exit(now != mine)",
    )
    shell(*launch(2, sys.executable, script))
    shell(sys.executable, script)


def test_a_users_lines_with_our_mark_are_shown(tmp_path):
    text = "a\x1eb\n\x1esaved it\n\x1ejoined"
    command = ("sh", "-c", 'printf "%s" "$0" >&2', text)
    shown = run([sys.executable, "-m", "distributed.launch", "-np=1", "--", *command])
    assert shown.stderr.endswith(text), shown


def test_programs_after_each_other_are_each_their_own(tmp_path):
    """What a script does with them is its own affair, and its status the job's."""
    script = f"'$@' {tmp_path}/a; '$@' {tmp_path}/b 'refuse()'; exit 5".replace("'$@'", '"$@"')
    line = ["sh", "-c", script, "sh", *program("work.py")]
    done = run([sys.executable, "-m", "distributed.launch", "-np=1", "--", *line])
    assert done.status == 5, done
    assert "broken in line 3" in done.stderr, done


def test_a_rank_that_hangs_before_it_trains_is_named(tmp_path):
    """Between MPI's start and the first message: in an import, or a driver."""
    folder = tmp_path / "tensorflow"
    folder.mkdir()
    write_lines(
        folder / "__init__.py",
        "import os, sys, time",
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '1': time.sleep(1000)",
        f"sys.path.remove({str(tmp_path)!r})",
        "del sys.modules['tensorflow']",
        "import tensorflow",
    )
    script = tmp_path / "join.py"
    write_lines(
        script,
        "from distributed.devices import DeviceSettings",
        "from distributed.watchdog import StallSettings",
        "from distributed.world import World",
        "stalls = StallSettings(stall_warning=2, stall_timeout=5)",
        "World.join(DeviceSettings(device='cpu'), 'prog', stalls)",
    )
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    with started(launch(2, sys.executable, script), PYTHONPATH=path) as job:
        done = job.fail()
    assert re.search("error: rank 1 did not arrive", done.stderr), done
