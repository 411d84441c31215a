"""Whole fine-tunings of classifiers, from the command to the score: ours and PyTorch's. For compare.py."""

import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.phases import VARIABLE
from tasks.bench.timing import in_turn, medians, ratio

if TYPE_CHECKING:
    from benchmarks.compare import Contest

PROGRAM = Path(__file__).with_name("torch_jobs.py")
RATE, LENGTH, SEED = 5e-5, 128, 42


class Job(NamedTuple):
    """A fine-tuning: the task's folder among GLUE's, how many training examples are used, and the epochs."""

    folder: str
    examples: int
    epochs: int


JOBS = {"mrpc": Job("MRPC", 3668, 3), "sst-2": Job("SST-2", 10_000, 1)}


def compare_job(contest: "Contest", name: str) -> dict[str, Any]:
    """Seconds from the command to the scores, and to the second step; accuracies; the ratio of the seconds."""
    job = JOBS[name]
    contenders = {"ours": partial(ours, contest, job), "pytorch": partial(pytorchs, contest, name, job)}
    runs = in_turn(contenders, contest.config.turns.repeat)
    contest.say(f"{name}: {job.examples:,} examples, {job.epochs} epochs; from the command to the score")
    for who, turns in runs.items():
        middle = medians(turns, ("seconds", "second_step"))
        scores = " ".join(f"{turn['accuracy']:.4g}" for turn in turns)
        second = f"second step after {middle['second_step']:.1f} s"
        contest.say(f"  {who}: {middle['seconds']:.1f} s, {second}; scores {scores}")
    times = ratio(*([turn["seconds"] for turn in runs[who]] for who in ("pytorch", "ours")))
    contest.say(f"  ours is {times.median:.2f} times as fast ({times.lowest:.2f} to {times.highest:.2f})")
    return {**runs, "ratio": times.median}


def ours(contest: "Contest", job: Job) -> dict[str, float]:
    """Trains and scores with bert-classifier, with an empty cache."""
    config, folder = contest.config, Path(tempfile.mkdtemp(dir=contest.folder))
    variables = {"RINGBERT_CACHE": str(folder / "cache"), VARIABLE: str(folder / "phases")}
    start_s = time.time()
    contest.run_ours(
        "tasks.classifier", "--do_train", "--do_eval", f"--model={config.model}", f"--task_name={job.folder}",
        f"--data_dir={config.glue_dir}", f"--max_train_examples={job.examples}", f"--max_seq_length={LENGTH}",
        f"--global_batch_size={config.batch_size}", f"--learning_rate={RATE}", f"--num_train_epochs={job.epochs}",
        "--device=cpu", f"--precision={config.precision}", f"--seed={SEED}", f"--output_dir={folder}/run",
        variables=variables,
    )  # fmt: skip
    seconds = time.time() - start_s
    phases = [json.loads(line) for line in (folder / "phases").read_text().splitlines()]
    second_step = min(phase["time"] for phase in phases if phase["phase"] == "second_step") - start_s
    scores = json.loads((folder / "run/result.json").read_text())["scores"]
    return {"seconds": seconds, "second_step": second_step, "accuracy": scores["eval_accuracy"]}


def pytorchs(contest: "Contest", name: str, job: Job) -> dict[str, float]:
    """The same in PyTorch. Raises Absent: it is not installed."""
    config, start_s = contest.config, time.time()
    settings = {
        "task": name, "model": str(Path(config.model).expanduser().resolve()), "seed": SEED,
        "data_dir": f"{config.glue_dir}/{job.folder}", "max_train_examples": job.examples,
        "num_epochs": job.epochs, "learning_rate": RATE, "batch_size": config.batch_size, "max_seq_length": LENGTH,
        "precision": config.precision,
    }  # fmt: skip
    report = contest.run_rival(PROGRAM, "torch", settings)
    return report | {"seconds": time.time() - start_s}
