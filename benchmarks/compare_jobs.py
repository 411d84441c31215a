"""Whole fine-tunings and predictions, from the command to the scores: ours and PyTorch's. For
compare.py."""

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contest import Contest
from benchmarks.timing import in_turn, ratios
from tasks.bench.timing import medians
from tasks.squad.metrics import squad_v1
from tasks.squad.reading import Source, read
from tasks.squad.settings import QuestionSettings

PROGRAM = Path(__file__).with_name("torch_jobs.py")
NUM_SEEDS = 5


@dataclass(frozen=True)
class Job:
    """A fine-tuning. `examples` is the number of training examples that are used, `length` that of
    the tokens."""

    task: str
    examples: int
    epochs: int
    length: int
    seeds: tuple[int, ...] = (42,)
    rate: float = 5e-5


JOBS = {
    "mrpc": Job("mrpc", 3668, 3, 128),
    "seeds": Job("mrpc", 3668, 3, 128, tuple(range(1, NUM_SEEDS + 1))),
    "sst-2": Job("sst-2", 10_000, 1, 128),
    "wnut": Job("wnut", 3394, 2, 128, (1, 2), 7e-5),
    "squad": Job("squad", 2000, 1, 384),
    "pairs": Job("pairs", 2000, 1, 256, rate=2e-5),
    "sts-b": Job("sts-b", 5749, 1, 128, (1, 2, 3), 2e-5),
}
PROGRAMS = {
    "squad": "tasks.squad",
    "wnut": "tasks.tagger",
    "pairs": "tasks.embedder",
    "sts-b": "tasks.embedder",
}
SCORES = {
    "squad": "f1",
    "wnut": "eval_f1",
    "pairs": "eval_mrr@10",
    "sts-b": "eval_spearman",
}
TEMPERATURE = 0.05  # bert-embedder's
PREDICTED_QUESTIONS = 1000  # after the training of the job "squad"


def compare_job(contest: Contest, name: str) -> dict[str, Any]:
    """Seconds from the command to the scores, and to the second step; scores; the ratio of the
    seconds."""
    job = JOBS[name]
    contenders = {"ours": partial(ours, contest, job), "pytorch": partial(pytorchs, contest, job)}
    runs = in_turn(contenders, contest.config.turns.repeat)
    seeds = f", {len(job.seeds)} seeds" * (len(job.seeds) > 1)
    contest.say(
        f"{name}: {job.examples:,} examples, {job.epochs} epochs{seeds}; from the command to the"
        " score"
    )
    for who, turns in runs.items():
        middle = medians(turns, ("seconds", "second_step"))
        scores = " ".join(f"{score:.4g}" for turn in turns for score in turn["scores"])
        second = f"second step after {middle['second_step']:.1f} s"
        contest.say(f"  {who}: {middle['seconds']:.1f} s, {second}; scores {scores}")
    times = ratios(*([turn["seconds"] for turn in runs[who]] for who in ("pytorch", "ours")))
    return {**runs, "ratio": said_ratio(contest, times)}


def said_ratio(contest: Contest, times: list[float]) -> float:
    """Prints and returns how many times as fast ours is, the median over the turns."""
    middle = statistics.median(times)
    contest.say(f"  ours is {middle:.2f} times as fast ({times[0]:.2f} to {times[-1]:.2f})")
    return middle


def ours(contest: Contest, job: Job) -> dict[str, Any]:
    """Trains and scores with our program, with an empty cache; once for each seed where it has no
    --seeds."""
    if job.task == "wnut" and len(job.seeds) > 1:
        turns = [ours(contest, replace(job, seeds=(seed,))) for seed in job.seeds]
        scores = [turn["scores"][0] for turn in turns]
        return turns[0] | {"seconds": sum(turn["seconds"] for turn in turns), "scores": scores}
    config, folder = contest.config, Path(tempfile.mkdtemp(dir=contest.folder))
    flags = [
        "--do_train",
        f"--model={config.model}",
        f"--max_train_examples={job.examples}",
        f"--max_seq_length={job.length}",
        f"--global_batch_size={config.batch_size}",
        f"--learning_rate={job.rate}",
        f"--num_train_epochs={job.epochs}",
        "--device=cpu",
        f"--precision={config.precision}",
        f"--output_dir={folder}/run",
    ]
    if job.task == "squad":
        flags += [
            f"--train_file={config.train_file}",
            "--do_predict",
            f"--predict_file={config.predict_file}",
        ]
        flags += [f"--max_predict_examples={PREDICTED_QUESTIONS}"]
    elif job.task == "pairs":
        flags += ["--do_eval", f"--max_predict_examples={PREDICTED_QUESTIONS}"]
        flags += [f"--{name}_file={config.pairs_dir}/{name}.jsonl" for name in ("train", "dev")]
    elif job.task == "wnut":
        flags += ["--do_eval", f"--seed={job.seeds[0]}"]
        flags += [f"--{name}_file={config.wnut_dir}/{name}.conll" for name in ("train", "dev")]
    else:
        flags += ["--do_eval", f"--task_name={job.task.upper()}", f"--data_dir={config.glue_dir}"]
        flags.append(
            f"--seeds={','.join(map(str, job.seeds))}" if len(job.seeds) > 1 else "--seed=42"
        )
    program = PROGRAMS.get(job.task, "tasks.classifier")
    start_s, start = time.perf_counter(), time.time()
    contest.run_ours(program, *flags, variables={"RINGBERT_CACHE": str(folder / "cache")})
    seconds = time.perf_counter() - start_s
    lines = [
        json.loads(line) for path in folder.glob("run/**/metrics.jsonl") for line in path.open()
    ]
    second = [line["time"] - start for line in lines if line["step"] == 2]
    result = json.loads((folder / "run/result.json").read_text())
    each = list(result["seeds"].values()) if "seeds" in result else [result["scores"]]
    score = SCORES.get(job.task, "eval_accuracy")
    shutil.rmtree(folder)
    return {
        "seconds": seconds,
        "second_step": min(second),
        "scores": [scores[score] for scores in each],
    }


def settings_of(contest: Contest, job: Job) -> dict[str, Any]:
    """The settings of torch_jobs.py."""
    config, glue_dir = contest.config, contest.config.glue_dir or ""
    folders = {"wnut": config.wnut_dir, "pairs": config.pairs_dir}
    return {
        "task": job.task,
        "model": str(Path(config.model).expanduser().resolve()),
        "seeds": job.seeds,
        "data_dir": folders.get(job.task) or os.path.join(glue_dir, job.task.upper()),
        "train_file": config.train_file,
        "predict_file": config.predict_file,
        "max_train_examples": job.examples,
        # STS-B's dev set is scored whole, as by `ours`
        "max_predict_examples": None if job.task == "sts-b" else PREDICTED_QUESTIONS,
        "batch_size": config.batch_size,
        "num_epochs": job.epochs,
        "learning_rate": job.rate,
        "max_seq_length": job.length,
        "temperature": TEMPERATURE,
        "precision": config.precision,
    }


def pytorchs(contest: Contest, job: Job) -> dict[str, Any]:
    """The same in PyTorch. Raises Absent: it is not installed."""
    start_s = time.perf_counter()
    report = contest.run_rival(PROGRAM, "torch", settings_of(contest, job))
    seconds = time.perf_counter() - start_s
    scores = report.get("f1") or report.get("accuracy") or report.get("embeddings")
    if job.task == "squad":
        questions = QuestionSettings(
            predict_file=contest.config.predict_file, max_predict_examples=PREDICTED_QUESTIONS
        )
        examples = read(Source(questions, "predict"))
        scores = [squad_v1(examples.references, report["answers"])[0]["f1"]]
    return {"seconds": seconds, "second_step": report["phases"]["second_step"], "scores": scores}


# -- prediction ------------------------------------------------------------------------------------


def compare_prediction(contest: Contest) -> dict[str, Any]:
    """Windows per second of SQuAD's dev set, and seconds of the whole command; ours and
    PyTorch's."""
    config = contest.config
    folder = Path(tempfile.mkdtemp(dir=contest.folder))
    data = [
        f"--model={config.model}",
        f"--train_file={config.train_file}",
        "--max_train_examples=64",
    ]
    machine = ["--device=cpu", f"--precision={config.precision}", f"--output_dir={folder}/run"]
    contest.run_ours(
        "tasks.squad", "--do_train", f"--num_train_steps={contest.num_ranks}", *data, *machine
    )

    def our_prediction() -> dict[str, float]:
        start_s = time.perf_counter()
        flags = ["--do_predict", f"--predict_file={config.predict_file}"]
        contest.run_ours(
            "tasks.squad",
            *flags,
            *machine[:-1],
            f"--model={folder}/run/model",
            f"--output_dir={folder}/predicted",
            f"--max_predict_examples={config.max_predict_examples}",
        )
        seconds = time.perf_counter() - start_s
        result = json.loads((folder / "predicted/predict_result.json").read_text())
        return result["prediction"] | {"command_s": seconds}

    def pytorchs_prediction(is_frozen: bool) -> dict[str, float]:
        job = Job("squad", 64, 0, 384)
        settings = settings_of(contest, job) | {
            "model": f"{folder}/run/model",
            "max_predict_examples": config.max_predict_examples,
            "is_frozen": is_frozen,
        }
        variables = {"TORCHINDUCTOR_FREEZING": "1"} if is_frozen else {}
        start_s = time.perf_counter()
        report = contest.run_rival(PROGRAM, "torch", settings, variables)
        return {
            "rows": report["windows"],
            "seconds": report["prediction_s"],
            "command_s": time.perf_counter() - start_s,
        }

    contenders: dict[str, Callable[[], dict[str, float]]] = {
        "ours": our_prediction,
        "pytorch": partial(pytorchs_prediction, False),
        # its windows/s are those of a second prediction, after the first has compiled
        "pytorch_frozen": partial(pytorchs_prediction, True),
    }
    turns = in_turn(contenders, config.turns.repeat)
    rates = {who: [turn["rows"] / turn["seconds"] for turn in each] for who, each in turns.items()}
    contest.say(f"prediction of {turns['ours'][0]['rows']:,} windows")
    for who, each in turns.items():
        command_s = statistics.median(turn["command_s"] for turn in each)
        rate = statistics.median(rates[who])
        contest.say(f"  {who}: {rate:.1f} windows/s; the command {command_s:.1f} s")
    shutil.rmtree(folder)
    times = {}
    for who in ("pytorch", "pytorch_frozen"):
        contest.say(f"  beside {who}:")
        times[who] = said_ratio(contest, ratios(rates["ours"], rates[who]))
    return {**turns, "ratio": times["pytorch"], "ratio_frozen": times["pytorch_frozen"]}
