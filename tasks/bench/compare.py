"""bert-bench compare: bert-squad's training on real windows, and sums of buffers, beside other people's, in turn.

Every contender trains the same model on the same windows with the same number per step; what is counted is
windows, never padding. All compute on the CPUs. Contenders that are not installed are named and left out.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ringbert.errors import InputError
from ringbert.settings import setting
from tasks.bench.load import windows_of
from tasks.bench.step import positive_numbers

LABELS = {
    "ringbert": "bert-squad, packed",
    "torch_example": "PyTorch, float32, padded (transformers' example)",
    "torch_grouped": "PyTorch, bf16, batches of like length",
    "torch_grouped_compiled": "PyTorch, bf16, batches of like length, compiled",
    "keras_hub": "KerasHub, padded, same precision",
    "mirrored": "KerasHub under MultiWorkerMirroredStrategy, padded, same precision and ranks",
}
ROOT = Path(__file__).resolve().parent.parent
RIVALS = Path(__file__).with_name("bench_rivals.py")
SUMS_REPEAT = 7
MOST_S = 20 * 60  # of one contender in one turn
TOOK_TOO_LONG = 124


@dataclass(frozen=True)
class CompareConfig:
    """bert-bench compare: training on SQuAD, windows per second beside PyTorch, KerasHub, MultiWorkerMirrored."""

    model: str = setting(help="folder of a model in Hugging Face layout", group="data")
    train_file: str = setting(help="SQuAD JSON to take windows from", group="data")
    max_train_examples: int = setting(2000, "the first N questions", "data")
    max_seq_length: int = setting(384, "tokens per window", "data")
    batch_size: int = setting(32, "windows per step, over all ranks", "load")
    num_ranks: int | None = setting(None, "ranks of bert-squad (one for each core); rivals get the cores", "load")
    num_warmup: int = setting(4, "steps before the measurement", "load")
    num_steps: int = setting(10, "steps measured", "load")
    repeat: int = setting(3, "turns; medians are printed", "load")
    precision: Literal["fp32", "bf16"] = setting("bf16", "of bert-squad and KerasHub", "machine")
    rival_python: str | None = setting(
        None, "a Python that has the rivals, jsonargparse and pyarrow (this one)", "machine"
    )
    megabytes: str = setting("88,440", "buffers to sum beside Horovod, separated by commas (10^6 bytes)", "load")
    output_file: str | None = setting(None, "write the figures as JSON too", "machine")

    def __post_init__(self):
        least = {"max_train_examples": 1, "batch_size": 1, "num_warmup": 0, "num_steps": 1, "repeat": 1}
        for name, needed in least.items():
            if getattr(self, name) < needed:
                raise ValueError(f"--{name} is {getattr(self, name)}, needed is at least {needed}")
        positive_numbers("megabytes", self.megabytes)


def bench_compare(config: CompareConfig, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures all contenders in turn: windows per second, seconds of a sum, the ratios of ours to the rivals'."""
    return compare_training(config, say) | {"sums": compare_sums(config, say)}


def compare_sums(config: CompareConfig, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Seconds to sum buffers over all ranks, ours and Horovod's; None where there is no Horovod."""
    cores = len(os.sched_getaffinity(0))
    num_ranks = config.num_ranks or cores
    python, sizes = config.rival_python or sys.executable, positive_numbers("megabytes", config.megabytes)
    if num_ranks == 1:
        say("Horovod's all-reduce: left out: it needs several ranks (--num_ranks)")
        return None
    if _run([python, "-c", "import horovod.torch"]).returncode:
        say(f"Horovod's all-reduce: left out: {python} has no horovod with torch (--rival_python)")
        return None
    found: dict[str, list[dict[str, float]]] = {"ringbert": [], "horovod": []}
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as name:
        settings, report = Path(name, "settings.json"), Path(name, "report.json")
        settings.write_text(
            json.dumps(
                {
                    "megabytes": sizes,
                    "repeat": SUMS_REPEAT,
                    "num_threads": max(1, cores // num_ranks),
                    "num_ranks": num_ranks,
                }
            )
        )
        programs = {
            "ringbert": [
                sys.executable, "-m", "tasks.bench", "allreduce", f"--megabytes={config.megabytes}",
                f"--repeat={SUMS_REPEAT}", f"--output_file={report}",
            ],
            "horovod": [python, str(RIVALS), "horovod", str(settings), str(report)],
        }  # fmt: skip
        launch = [sys.executable, "-m", "distributed.launch", "-np", str(num_ranks), "--"]
        for _ in range(config.repeat):
            for contender, program in programs.items():
                done = _run([*launch, *program])
                if done.returncode:
                    say(f"Horovod's all-reduce: left out: {contender} failed: {_last_line(done)}")
                    return None
                seconds = json.loads(report.read_text())
                if contender == "ringbert":
                    seconds = {size: figures["ours_s"] for size, figures in seconds.items()}
                found[contender].append(seconds)
    figures = {}
    say(f"sum of float32 over {num_ranks} ranks, medians of {config.repeat} turns of {SUMS_REPEAT}")
    for size in (f"{size:g}" for size in sizes):
        ours_s, theirs_s = (statistics.median(turn[size] for turn in found[who]) for who in found)
        ratio = statistics.median(
            theirs[size] / mine[size] for mine, theirs in zip(found["ringbert"], found["horovod"], strict=True)
        )
        figures[size] = {"ours_s": ours_s, "horovod_s": theirs_s, "ratio": ratio}
        say(
            f"  {size} MB: {ours_s * 1e3:.1f} ms, Horovod {theirs_s * 1e3:.1f} ms, "
            f"ours is {ratio:.2f} times as fast"
        )
    return figures


def compare_training(config: CompareConfig, say: Callable[[str], None]) -> dict[str, Any]:
    """Windows per second of every contender, in turn."""
    cores = len(os.sched_getaffinity(0))
    needed = (config.num_warmup + config.num_steps) * config.batch_size
    windows = windows_of(config.model, config.train_file, config.max_train_examples, config.max_seq_length, needed)
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as name:
        folder = Path(name)
        settings = {
            "windows": str(windows), "model": str(Path(config.model).expanduser().resolve()),
            "batch_size": config.batch_size, "max_seq_length": config.max_seq_length, "seed": 42,
            "num_warmup": config.num_warmup, "num_steps": config.num_steps, "num_threads": cores,
            "precision": config.precision, "num_ranks": config.num_ranks or cores,
        }  # fmt: skip
        (folder / "settings.json").write_text(json.dumps(settings))
        rates: dict[str, list[float]] = {}
        absent: dict[str, str] = {}
        for turn in range(config.repeat):
            for contender in LABELS:
                if contender in absent:
                    continue
                try:
                    if contender == "ringbert":
                        seconds = ours(config, folder / f"run-{turn}", config.num_ranks or cores)
                    else:
                        seconds = rival(config, contender, folder)
                except Absent as why:
                    absent[contender] = str(why)
                    continue
                rates.setdefault(contender, []).append(config.batch_size * len(seconds) / sum(seconds))
    say(
        f"{config.model}: {config.batch_size} windows per step, {config.num_steps} steps, {cores} cores, "
        f"{config.num_ranks or cores} ranks, {config.precision}; medians of {config.repeat} turns"
    )
    figures: dict[str, Any] = {}
    for contender, label in LABELS.items():
        if contender in absent:
            say(f"  {label}: left out: {absent[contender]}")
            continue
        pairs = zip(rates["ringbert"], rates[contender], strict=True)
        figures[contender] = {
            "windows_per_s": statistics.median(rates[contender]),
            "ratio": statistics.median(mine / other for mine, other in pairs),
        }
        told = (
            "" if contender == "ringbert" else f", bert-squad is {figures[contender]['ratio']:.2f} times as fast"
        )
        say(f"  {label}: {figures[contender]['windows_per_s']:.2f} windows/s{told}")
    return figures


class Absent(Exception):
    """A rival cannot run here; the reason."""


def ours(config: CompareConfig, output_dir: Path, num_ranks: int) -> list[float]:
    """Seconds of each step of the program itself, by its metrics.jsonl."""
    program = [
        sys.executable, "-m", "tasks.squad", "--do_train", f"--model={config.model}",
        f"--train_file={config.train_file}", f"--max_train_examples={config.max_train_examples}",
        f"--max_seq_length={config.max_seq_length}", f"--global_batch_size={config.batch_size}",
        f"--num_train_steps={config.num_warmup + config.num_steps}", "--num_warmup_steps=0",
        "--learning_rate=1e-5", "--log_steps=1", "--device=cpu", f"--precision={config.precision}",
        f"--output_dir={output_dir}",
    ]  # fmt: skip
    launch = [sys.executable, "-m", "distributed.launch", "-np", str(num_ranks), "--"] if num_ranks > 1 else []
    done = _run([*launch, *program])
    if done.returncode:
        raise InputError(f"bert-squad failed: {_last_line(done)}")
    told = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
    rates = [line["examples_per_s"] for line in told if "examples_per_s" in line]
    return [config.batch_size / rate for rate in rates[config.num_warmup :]]


def rival(config: CompareConfig, name: str, folder: Path) -> list[float]:
    """Seconds of each step of a rival. Raises Absent: it is not installed, or cannot run."""
    python, report = config.rival_python or sys.executable, folder / "report.json"
    package = "torch" if name.startswith("torch") else "keras_hub"
    if _run([python, "-c", f"import {package}"]).returncode:
        raise Absent(f"{python} has no {package} (--rival_python)")
    report.unlink(missing_ok=True)
    done = _run([python, str(RIVALS), name, str(folder / "settings.json"), str(report)])
    if done.returncode == TOOK_TOO_LONG:
        raise Absent(f"{config.num_warmup + config.num_steps} steps took more than {MOST_S / 60:.0f} minutes")
    if done.returncode or not report.is_file():
        raise Absent(f"it failed: {_last_line(done)}")
    return json.loads(report.read_text())


def _run(command: list[str]) -> subprocess.CompletedProcess:
    """Runs a program on the CPUs. After `MOST_S` all that it started is ended; its status is `TOOK_TOO_LONG`."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, told = process.communicate(timeout=MOST_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return subprocess.CompletedProcess(command, TOOK_TOO_LONG, "", "")
    return subprocess.CompletedProcess(command, process.returncode, out, told)


def _last_line(done: subprocess.CompletedProcess) -> str:
    """What a failed program said: the last line that names an error, or the last one."""
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"exit status {done.returncode}"])[-1]
