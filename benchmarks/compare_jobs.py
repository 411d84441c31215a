"""Whole fine-tunings from the command to the scores, and predictions: ours and PyTorch's. For compare.py."""

import json
import statistics
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
    seconds = {who: [turn["seconds"] for turn in turns] for who, turns in runs.items()}
    return {**runs, "ratio": say_ratio(contest, seconds["pytorch"], seconds["ours"])}


def say_ratio(contest: "Contest", numerators: list[float], denominators: list[float]) -> float:
    times = ratio(numerators, denominators)
    contest.say(f"  ours is {times.median:.2f} times as fast ({times.lowest:.2f} to {times.highest:.2f})")
    return times.median


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


# -- prediction ---------------------------------------------------------------------------------------------------


def compare_prediction(contest: "Contest") -> dict[str, Any]:
    """Windows per second of SQuAD's dev set, and the seconds of the answers after the last; ours and PyTorch's."""
    config, run = contest.config, contest.folder / "prediction"
    machine = ["--device=cpu", f"--precision={config.precision}", f"--output_dir={run}"]
    questions = [f"--predict_file={config.predict_file}", f"--max_predict_examples={config.max_predict_examples}"]
    steps = f"--num_train_steps={contest.num_ranks}"
    data = [f"--model={config.model}", f"--train_file={config.train_file}", "--max_train_examples=64"]
    contest.run_ours("tasks.squad", "--do_train", steps, *data, *machine)

    def our_prediction() -> dict[str, float]:
        contest.run_ours("tasks.squad", "--do_predict", *questions, *machine)
        return json.loads((run / "predict_result.json").read_text())["prediction"]

    def pytorchs_prediction() -> dict[str, float]:
        settings = {
            "task": "squad", "model": f"{run}/model", "predict_file": config.predict_file, "max_seq_length": 384,
            "max_predict_examples": config.max_predict_examples, "precision": config.precision,
        }  # fmt: skip
        return contest.run_rival(PROGRAM, "torch", settings)

    turns = in_turn({"ours": our_prediction, "pytorch": pytorchs_prediction}, config.turns.repeat)
    rates = {who: [turn["windows"] / turn["seconds"] for turn in each] for who, each in turns.items()}
    contest.say(f"prediction of {turns['ours'][0]['windows']:,} windows")
    for who, each in turns.items():
        rate, files_s = statistics.median(rates[who]), statistics.median(turn["files_s"] for turn in each)
        contest.say(f"  {who}: {rate:.1f} windows/s, answers {files_s:.2f} s after the last window")
    return {**turns, "ratio": say_ratio(contest, rates["ours"], rates["pytorch"])}
