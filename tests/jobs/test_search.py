"""bert-search: what it finds, kills of all its parts, what it does on slots, GPUs and hosts. Its
trials are trainings without TensorFlow (programs/trial.py)."""

import contextlib
import itertools
import json
import os
import shlex
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness.classifier_runs import model_flags, own_files, write_data
from harness.hosts import NETWORK, TCP_ONLY, available, simulated_hosts
from harness.hosts import VARIABLES as OF_HOSTS
from harness.jobs import assert_gone, run, shell, started
from harness.mpi import ROOT
from harness.refusals import refusal, refused

import ringbert
from ringbase.files import read_json
from ringbert.searching.__main__ import main

TRIAL = ROOT / "tests/jobs/programs/trial.py"
pytestmark = pytest.mark.slow
VARIABLES = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
SPACE = {"rate": [0.1, 0.2, 0.3], "batch": [1, 2]}


def search(folder, *flags, space=SPACE, command=(), options=("-np=2",)):
    """The command line of a search."""
    folder.mkdir(exist_ok=True)
    file = folder.with_suffix(".toml")
    file.write_text("".join(f"{name} = {toml(values)}\n" for name, values in space.items()))
    start = [sys.executable, "-m", "ringbert.searching", *options, *flags, str(file)]
    return [*start, "--", str(TRIAL), f"--output_dir={folder}", *command]


def toml(values):
    if isinstance(values, dict):
        parts = [f"{name} = {str(value).lower()}" for name, value in values.items()]
        return f"{{{', '.join(parts)}}}"
    return json.dumps(values)


def trials_in(folder):
    files = sorted(folder.glob("trial-*/trial.json"))
    return {file.parent: read_json(file) for file in files}


def lines_in(file):
    return [*map(json.loads, file.read_text().splitlines())] if file.exists() else []


def scores_in(folder):
    return {
        trial["number"]: (trial["values"], trial["score"]) for trial in trials_in(folder).values()
    }


def assert_whole(folder, number=6):
    """Each trial has ended, was trained to its end, and no step of it twice."""
    trials = trials_in(folder)
    ends = [(trial["state"], trial["error"]) for trial in trials.values()]
    assert ends == number * [("complete", "")]
    for trial in trials:
        assert sorted(lines_in(trial / "steps")) == [0, 1, 2, 3, 4], trial
        assert len(lines_in(trial / "places")) == 1, trial


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search") / "undisturbed"
    done = shell(*search(folder, command=["--pause=0.1"]), **VARIABLES)
    return folder, done


def test_a_grid_has_all_combinations_and_finds_the_best(undisturbed):
    folder, done = undisturbed
    assert_whole(folder)
    product = [
        dict(zip(SPACE, values, strict=True)) for values in itertools.product(*SPACE.values())
    ]
    found = scores_in(folder)
    assert sorted((values for values, _ in found.values()), key=str) == sorted(product, key=str)
    for values, score in found.values():
        assert score == 1 - (values["rate"] - 0.3) ** 2 - values["batch"] / 100
    heads, best, *_ = done.stdout.splitlines()
    assert heads.split() == ["trial", "score", "state", "rate", "batch", "seconds"]
    assert best.split()[1:5] == ["0.9900", "complete", "0.3", "1"]
    names = [trial.name for trial in trials_in(folder)]
    assert all("rate=" in name and "batch=" in name for name in names)
    models = {
        trial["values"]["rate"]
        for path, trial in trials_in(folder).items()
        if (path / "model").exists()
    }
    assert models <= {0.2, 0.3}  # of six, the best three


def test_two_trials_at_a_time_have_a_slot_each(undisturbed):
    folder, _ = undisturbed
    places = [place for trial in trials_in(folder) for place in lines_in(trial / "places")]
    assert {place["slots"] for place in places} == {"0-0/2", "1-1/2"}
    overlaps = 0
    for one, other in itertools.combinations(places, 2):
        if one["began"] < other["ended"] and other["began"] < one["ended"]:
            overlaps += 1
            assert one["slots"] != other["slots"]
            assert not {*one["cores"]} & {*other["cores"]} or os.cpu_count() == 1
    assert overlaps


def test_best_has_the_model_and_the_command_that_makes_it_again(undisturbed, tmp_path):
    folder, _ = undisturbed
    best = read_json(folder / "best/trial.json")
    assert best["score"] == max(score for _, score in scores_in(folder).values())
    assert (folder / "best/model/weights").exists()
    python, *command = shlex.split((folder / "best/command.txt").read_text())
    assert python == "python"
    shell(sys.executable, *command, cwd=tmp_path, **VARIABLES)
    assert read_json(tmp_path / "again/result.json")["scores"] == best["scores"]


def test_the_same_command_twelve_times_repeats_nothing(undisturbed, tmp_path):
    """At once and one after the other: one of them searches, and the others say so."""
    folder = tmp_path / "search"
    command = search(folder, command=["--pause=0.1"])
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(started(command, **VARIABLES)) for _ in range(4)]
        ends = [job.end() for job in jobs]
    assert sorted(done.status for done in ends) == [0, 1, 1, 1]
    for done in ends:
        assert done.status == 0 or "belongs to a run that has not ended" in done.stderr
    for _ in range(8):
        assert run(command, **VARIABLES).stdout.splitlines()[1].split()[3] == "0.3"
    assert_whole(folder)
    assert scores_in(folder) == scores_in(undisturbed[0])


@pytest.mark.parametrize("whom", ["search", "trial", "launcher"])
def test_a_kill_loses_and_repeats_nothing(whom, undisturbed, tmp_path):
    folder = tmp_path / "search"
    command = search(folder, command=["--pause=0.1"])
    with started(command, **VARIABLES) as job:
        job.wait_for(lambda: len([*folder.glob("trial-*/count")]) >= 3)
        begun = max(folder.glob("trial-*/begun"), key=lambda file: file.stat().st_mtime)
        pid = lines_in(begun)[-1]["pid"]
        if whom == "launcher":
            status = Path(f"/proc/{pid}/stat").read_text()
            pid = int(status.rpartition(")")[2].split()[1])  # its parent's
        if whom == "search":
            job.process.kill()
        else:
            os.kill(pid, signal.SIGKILL)
            assert job.end().status == 0
    if whom == "search":  # at once, while the trials save
        done = shell(*command, **VARIABLES)
        assert "6 of 6" in done.stderr
    assert_whole(folder)
    assert scores_in(folder) == scores_in(undisturbed[0])


def test_ctrl_c_saves_and_the_same_command_goes_on(undisturbed, tmp_path):
    folder = tmp_path / "search"
    command = search(folder, command=["--pause=0.1"])
    with started(command, **VARIABLES) as job:
        job.wait_for(lambda: len([*folder.glob("trial-*/count")]) >= 2)
        job.press_ctrl_c()
        done = job.end()
    assert done.status == 75, done
    assert "the same command" in done.stderr
    assert [*folder.glob("trial-*/saved")]
    begun = [lines_in(file)[-1]["pid"] for file in folder.glob("trial-*/begun")]
    assert_gone(*begun)
    shell(*command, **VARIABLES)
    assert_whole(folder)
    assert scores_in(folder) == scores_in(undisturbed[0])


def test_trials_that_fail_are_marked_with_their_line(tmp_path):
    folder = tmp_path / "search"
    command = search(folder, "--restarts=1", space={"rate": [0.2, 2.0, -1.0]})
    done = run(command, **VARIABLES)
    assert done.status == 0, done
    states = {trial["values"]["rate"]: trial for trial in trials_in(folder).values()}
    assert {rate: trial["state"] for rate, trial in states.items()} == {
        0.2: "complete",
        2.0: "failed",
        -1.0: "failed",
    }
    assert states[2.0]["error"] == "--rate must be at most 1, got 2.0"
    assert "planned failure" in states[-1.0]["error"]
    assert done.stderr.count("broke off") == 1
    page = (folder / "report.html").read_text()
    assert "--rate must be at most 1, got 2.0" in page
    # none is tried again, unless its folder is removed
    again = run(command, **VARIABLES)
    assert "starts" not in again.stderr
    lonely = run(search(tmp_path / "lonely", space={"rate": [2.0, 3.0]}), **VARIABLES)
    assert lonely.status == 1
    assert lonely.stdout.count("failed: --rate must be at most 1") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_stops_the_search_which_goes_on_when_there_is_room(tmp_path):
    folder = tmp_path / "disk/search"
    folder.parent.mkdir()
    command = search(tmp_path / "search", command=["--bytes=400000"])
    command[-2] = f"--output_dir={folder}"
    full = f'mount -t tmpfs -o size=1m tmpfs {folder.parent}; "$@"; echo status $?; '
    full += f'mount -o remount,size=40m {folder.parent}; "$@"; cp -r {folder} {tmp_path}/copy'
    done = shell("unshare", "--mount", "sh", "-c", full, "sh", *command, **VARIABLES)
    assert "status 1" in done.stdout
    assert "make room in --output_dir; the same command then continues" in done.stderr
    assert "failed" not in done.stdout
    assert_whole(tmp_path / "copy")


def test_hopeless_trials_are_given_up(tmp_path):
    """By Optuna's median: of ten, one after the other, the last are the worst."""
    folder = tmp_path / "search"
    rates = [0.3, 0.31, 0.32, 0.33, 0.34, 0.9, 0.95]
    flags = ("--sampler=tpe", "--trials=14", "--prune")
    command = search(folder, *flags, space={"rate": rates}, command=["--pause=0.05"])
    with started(command, **VARIABLES) as job:
        job.wait_for(lambda: len([*folder.glob("trial-*/result.json")]) >= 6)
        job.process.kill()
    (folder / "optuna.journal").write_text("torn {")  # as by a full disk
    shell(*command, **VARIABLES)
    trials = trials_in(folder).values()
    assert len(trials) == 14
    assert {trial["state"] for trial in trials} <= {"complete", "pruned"}
    pruned = [trial for trial in trials if trial["state"] == "pruned"]
    assert pruned
    assert all(trial["score"] is None for trial in pruned)
    assert read_json(folder / "best/trial.json")["values"]["rate"] <= 0.34


def test_what_is_refused_at_once(tmp_path, capsys):
    def line(*words):
        return refusal(capsys, "bert-search", lambda: main(words), status=1)

    classifier = ["--", "bert-classifier", "--do_train", "--train_file=t", "--dev_file=d"]
    out = f"--output_dir={tmp_path}/out"
    assert "--do_eval" in line(*classifier, "--learning_rate=1e-5,2e-5", out)
    several = [*classifier, "--do_eval", out]
    assert "--learning_rate 2e-5,3e-5" in line(*several)
    assert "--learning_rate 1e-5,fast" in line(*several, "--learning_rate=1e-5,fast")
    assert "--ranks_per_trial 3" in line("--ranks_per_trial=3", *several, "--seed=1,2")
    assert "--resume" in line(*several, "--seed=1,2", "--resume=never")
    assert "--output_dir" in line(*classifier, "--seed=1,2")
    assert "--trials" in line("--sampler=random", *several, "--seed=1,2")
    assert "--trials 5" in line("--trials=5", *several, "--seed=1,2")
    assert "bert-corpus" in line("--", "bert-corpus", "build")
    assert not (tmp_path / "out").exists()


def test_another_search_in_the_same_folder_is_refused(undisturbed):
    folder, _ = undisturbed
    for flags, space, pause_s in (
        (["--seed=1"], SPACE, 0.1),
        ([], {"rate": [0.1]}, 0.1),
        ([], SPACE, 0.2),
    ):
        command = search(folder, *flags, space=space, command=[f"--pause={pause_s}"])
        done = run(command, **VARIABLES)
        assert (done.status, "another --output_dir" in done.stderr) == (1, True), done


def test_from_python(tmp_path, monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    job = ringbert.Script(TRIAL, output_dir=tmp_path / "search")
    found = ringbert.search(job, {"rate": [0.3, 0.1]}, ranks=2, progress=False)
    assert [trial.values["rate"] for trial in found.trials] == [0.3, 0.1]
    assert found.best.score == 1.0
    assert (found.model / "weights").exists()
    assert "<table>" in found._repr_html_()
    pandas = pytest.importorskip("pandas")
    frame = found.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame[["rate", "score", "state"]].to_numpy().tolist() == [
        [0.3, 1.0, "complete"],
        [0.1, 0.96, "complete"],
    ]
    refused(lambda: ringbert.search(job, {"rate": 3}), "rate", "low")
    refused(lambda: ringbert.search(job, {"rate": [1]}, ranks_per_trial=2), "ranks_per_trial", "1")


def test_three_gpus_are_seen_once_each(tmp_path):
    """On a machine that is made up (harness/fake_gpus.py)."""
    folder = tmp_path / "search"
    space = {"rate": [0.1, 0.2, 0.3]}
    variables = {**VARIABLES, "CUDA_VISIBLE_DEVICES": "0,1,2"}
    command = search(folder, space=space, command=["--gpus=3", "--pause=1"], options=("-np=3",))
    shell(*command, **variables)
    places = [place for trial in trials_in(folder) for place in lines_in(trial / "places")]
    assert sorted(place["gpus"] for place in places) == [[f"0000:0{n}:00.0"] for n in range(3)]
    few = search(tmp_path / "few", space={"rate": [0.1]}, command=["--gpus=2"], options=("-np=3",))
    done = run(few, **variables)
    assert done.status == 1
    assert "3 slots of this machine would share 2 GPUs" in done.stdout


@pytest.mark.skipif(available() is not None, reason=available() or "")
def test_six_slots_on_three_hosts_of_which_one_is_lost(tmp_path):
    folder = tmp_path / "search"
    space = {"rate": [0.1, 0.2, 0.3, 0.4, 0.5], "batch": [1, 2]}
    with simulated_hosts(3) as hosts:
        named = ",".join(f"{address}:2" for address in hosts.addresses)
        mpi_args = f"--mpi_args={TCP_ONLY} --prtemca plm_ssh_agent {hosts.folder}/agent"
        options = ("-H", named, mpi_args)
        command = search(folder, space=space, command=["--pause=1"], options=options)
        with ThreadPoolExecutor() as pool:
            job = pool.submit(hosts.run, 0, command, env={**OF_HOSTS, **VARIABLES})
            while len([*folder.glob("trial-*/begun")]) < 6 and not job.done():
                time.sleep(0.1)
            places = [place for file in folder.glob("trial-*/begun") for place in lines_in(file)]
            assert sorted((place["host"], place["slots"]) for place in places) == [
                (f"host{number}", slots) for number in (1, 2, 3) for slots in ("0-0/2", "1-1/2")
            ], job.result()
            hosts.lose(2, is_cut=False)
            done = job.result()
    assert done.status == 0, done
    assert f"{NETWORK}.3 is left out" in done.stderr
    assert_whole(folder, 10)


def test_a_classifier_s_trials_are_its_runs(tmp_path):
    """With two seeds each; the best one's scores are those of its command alone, to the bit."""
    data = write_data(tmp_path / "data")
    out = tmp_path / "search"
    flags = [*model_flags(data), *own_files(data), "--do_train", "--do_eval", "--seeds=1,2"]
    flags += ["--num_train_steps=6", "--log_steps=1", "--device=cpu", "--train_batch_size=16"]
    words = [sys.executable, "-m", "ringbert.searching", "-np=2", "--keep_models=1", "--"]
    words += ["bert-classifier", *flags, "--learning_rate", "1e-3,1e-6", f"--output_dir={out}"]
    shell(*words, OMP_NUM_THREADS="1")
    trials = trials_in(out)
    assert [trial["state"] for trial in trials.values()] == ["complete", "complete"]
    best = read_json(out / "best/trial.json")
    for folder, trial in trials.items():
        seeds = [read_json(folder / f"seed-{n}/result.json")["scores"] for n in (1, 2)]
        mean = sum(scores["eval_accuracy"] for scores in seeds) / 2
        assert trial["score"] == pytest.approx(mean, abs=1e-12)
        assert len([*folder.glob("seed-*/model")]) == 2 * (trial["number"] == best["number"])
    page = (out / "report.html").read_text()
    assert "The best 4 runs" in page
    assert page.count("<svg") > 1
    program, *argv = shlex.split((out / "best/command.txt").read_text())
    assert program == "bert-classifier"
    command = [sys.executable, "-m", "tasks.classifier", *argv]
    shell(*command, cwd=tmp_path, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    assert read_json(tmp_path / "again/result.json")["scores"] == best["scores"]
    again = ringbert.Classifier(out / "best/model")(("cat", "dog"))
    assert again.label in again.probabilities
