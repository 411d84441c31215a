"""Whole fine-tunings and predictions, from the command to the scores: ours and PyTorch's. For compare.py."""

import json
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.bench.timing import in_turn, medians, ratios

if TYPE_CHECKING:
    from benchmarks.compare import Contest

PROGRAM = Path(__file__).with_name("torch_jobs.py")
RATE, SEED, LENGTH = 5e-5, 42, 128


@dataclass(frozen=True)
class Job:
    """A fine-tuning on a folder of GLUE's; `examples` is the number of training examples that are used."""

    task: str
    folder: str
    examples: int
    epochs: int


JOBS = {"mrpc": Job("mrpc", "MRPC", 3668, 3), "sst-2": Job("sst-2", "SST-2", 10_000, 1)}


def compare_job(contest: "Contest", name: str) -> dict[str, Any]:
    """Seconds from the command to the scores, and to the second step; scores; the ratio of the seconds."""
    job = JOBS[name]
    contenders = {"ours": partial(ours, contest, job), "pytorch": partial(pytorchs, contest, job)}
    runs = in_turn(contenders, contest.config.turns.repeat)
    contest.say(f"{name}: {job.examples:,} examples, {job.epochs} epochs; from the command to the score")
    for who, turns in runs.items():
        middle = medians(turns, ("seconds", "second_step"))
        scores = " ".join(f"{turn['accuracy']:.4g}" for turn in turns)
        second = f"second step after {middle['second_step']:.1f} s"
        contest.say(f"  {who}: {middle['seconds']:.1f} s, {second}; accuracy {scores}")
    times = ratios(*([turn["seconds"] for turn in runs[who]] for who in ("pytorch", "ours")))
    return {**runs, "ratio": said_ratio(contest, times)}


def said_ratio(contest: "Contest", times: list[float]) -> float:
    """Prints and returns how many times as fast ours is, the median over the turns."""
    middle = statistics.median(times)
    contest.say(f"  ours is {middle:.2f} times as fast ({times[0]:.2f} to {times[-1]:.2f})")
    return middle


def ours(contest: "Contest", job: Job) -> dict[str, float]:
    """Trains and scores with bert-classifier, with an empty cache."""
    config, folder = contest.config, Path(tempfile.mkdtemp(dir=contest.folder))
    flags = [
        "--do_train", "--do_eval", f"--task_name={job.task.upper()}", f"--data_dir={config.glue_dir}/{job.folder}",
        f"--model={config.model}", f"--max_train_examples={job.examples}", f"--max_seq_length={LENGTH}",
        f"--global_batch_size={config.batch_size}", f"--learning_rate={RATE}", f"--num_train_epochs={job.epochs}",
        f"--seed={SEED}", "--device=cpu", f"--precision={config.precision}", f"--output_dir={folder}/run",
    ]  # fmt: skip
    variables = {"RINGBERT_CACHE": str(folder / "cache"), "RINGBERT_PHASES": str(folder / "phases")}
    start_s, start = time.perf_counter(), time.time()
    contest.run_ours("tasks.classifier", *flags, variables=variables)
    seconds = time.perf_counter() - start_s
    phases = [json.loads(line) for line in (folder / "phases").read_text().splitlines()]
    second = min(phase["time"] - start for phase in phases if phase["phase"] == "second_step")
    scores = json.loads((folder / "run/result.json").read_text())["scores"]
    shutil.rmtree(folder)
    return {"seconds": seconds, "second_step": second, "accuracy": scores["eval_accuracy"]}


def settings_of(contest: "Contest", model: str) -> dict[str, Any]:
    """The settings of torch_jobs.py that all jobs have."""
    path = str(Path(model).expanduser().resolve())
    return {"model": path, "batch_size": contest.config.batch_size, "precision": contest.config.precision}


def pytorchs(contest: "Contest", job: Job) -> dict[str, float]:
    """The same in PyTorch. Raises Absent: it is not installed."""
    settings = settings_of(contest, contest.config.model) | asdict(job) | {
        "data_dir": f"{contest.config.glue_dir}/{job.folder}", "max_seq_length": LENGTH, "learning_rate": RATE,
        "seed": SEED,
    }  # fmt: skip
    start_s = time.perf_counter()
    report = contest.run_rival(PROGRAM, "torch", settings)
    seconds = time.perf_counter() - start_s
    return {"seconds": seconds, "second_step": report["phases"]["second_step"], "accuracy": report["accuracy"]}


# -- prediction ---------------------------------------------------------------------------------------------------


def compare_prediction(contest: "Contest") -> dict[str, Any]:
    """Windows per second of SQuAD's dev set, and what follows the last window; ours and PyTorch's."""
    config = contest.config
    folder = Path(tempfile.mkdtemp(dir=contest.folder))
    machine = ["--device=cpu", f"--precision={config.precision}"]
    data = [f"--predict_file={config.predict_file}", f"--max_predict_examples={config.max_predict_examples}"]
    contest.run_ours(
        "tasks.squad", "--do_train", f"--num_train_steps={contest.num_ranks}", f"--model={config.model}",
        f"--train_file={config.train_file}", "--max_train_examples=64", f"--output_dir={folder}/run", *machine,
    )  # fmt: skip

    def our_prediction() -> dict[str, float]:
        start_s = time.perf_counter()
        place = [f"--model={folder}/run/model", f"--output_dir={folder}/predicted"]
        contest.run_ours("tasks.squad", "--do_predict", *data, *machine, *place)
        seconds = time.perf_counter() - start_s
        result = json.loads((folder / "predicted/predict_result.json").read_text())
        return result["prediction"] | {"command_s": seconds}

    def pytorchs_prediction() -> dict[str, float]:
        settings = settings_of(contest, f"{folder}/run/model") | {
            "task": "squad", "max_seq_length": 384, "predict_file": config.predict_file,
            "max_predict_examples": config.max_predict_examples,
        }  # fmt: skip
        start_s = time.perf_counter()
        report = contest.run_rival(PROGRAM, "torch", settings)
        return {
            "windows": report["windows"], "seconds": report["prediction_s"],
            "files_s": report["phases"]["scored"] - report["phases"]["predicted"],
            "command_s": time.perf_counter() - start_s,
        }  # fmt: skip

    turns = in_turn({"ours": our_prediction, "pytorch": pytorchs_prediction}, config.turns.repeat)
    rates = {who: [turn["windows"] / turn["seconds"] for turn in each] for who, each in turns.items()}
    contest.say(f"prediction of {turns['ours'][0]['windows']:,} windows")
    for who, each in turns.items():
        middle = medians(each, ("files_s", "command_s"))
        speed = f"{statistics.median(rates[who]):.1f} windows/s; {middle['command_s']:.1f} s in all"
        contest.say(f"  {who}: {speed}, answers and scores {middle['files_s']:.2f} s after the last window")
    shutil.rmtree(folder)
    return {**turns, "ratio": said_ratio(contest, ratios(rates["ours"], rates["pytorch"]))}
