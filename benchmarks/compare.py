"""Compares bert-squad's training on real windows with other people's programs.

    python -m benchmarks.compare --model MINILM_FOLDER --train_file train-v1.1.json --rival_python
      PYTHON

Every contender trains the same model on the same windows, with the same number per step. Only
windows are counted, not padding. All run on CPUs, in turn. Contenders that are not installed are
named and skipped.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.compare_jobs import JOBS, compare_job, compare_prediction
from benchmarks.contest import Absent, Contest
from benchmarks.timing import TurnSettings, alone, in_turn, ratios
from bert.text import tokenizer
from distributed.order import Order
from distributed.rows import Rows
from distributed.run import Unwritten
from distributed.world import World
from ringbase.errors import InputError
from ringbase.settings import Settings, setting
from tasks.runs import flags
from tasks.runs.environment import set_environment
from tasks.runs.rows.sets import open_set
from tasks.runs.rows.texts import Tokenization
from tasks.squad.reading import Source
from tasks.squad.settings import QuestionSettings, WindowSettings
from tasks.squad.task import SpanTask

LABELS = {
    "ringbert": "bert-squad, packed",
    "torch_example": "PyTorch, float32, padded (transformers' example)",
    "torch_grouped": "PyTorch, bf16, batches of similar length",
    "torch_grouped_compiled": "PyTorch, bf16, batches of similar length, compiled",
    "keras_hub": "KerasHub, padded, same precision",
    "mirrored": "KerasHub under MultiWorkerMirroredStrategy, padded, same precision and ranks",
}
PARTS = ("training", "prediction", *JOBS)
RIVALS = Path(__file__).with_name("rivals.py")
SEED = 42
MEGABATCH = 50  # transformers' LengthGroupedSampler sorts within this many batches


class CompareConfig(Settings):
    """Training on SQuAD: windows per second, compared with PyTorch, KerasHub and
    MultiWorkerMirroredStrategy."""

    model: str = setting(help="folder of a model in Hugging Face layout", group="data")
    train_file: str = setting(help="SQuAD JSON to take windows from", group="data")
    max_train_examples: int = setting(2000, "use the first N questions", "data", at_least=1)
    parts: str = setting(
        "training", f"what to compare, separated by commas: {', '.join(PARTS)}", "load"
    )
    predict_file: str | None = setting(
        None, "SQuAD JSON to predict, for squad and prediction", "data"
    )
    max_predict_examples: int = setting(
        10_570, "predict the first N questions, for prediction", "data", at_least=1
    )
    glue_dir: str | None = setting(
        None, "folder of GLUE's tasks, for mrpc, seeds, sst-2 and sts-b", "data"
    )
    wnut_dir: str | None = setting(
        None, "folder of WNUT 2017's train.conll and dev.conll, for wnut", "data"
    )
    pairs_dir: str | None = setting(
        None, "folder of pairs, train.jsonl and dev.jsonl, for pairs", "data"
    )
    max_seq_length: int = setting(384, "maximum number of tokens per window", "data", at_least=8)
    batch_size: int = setting(32, "windows per step, over all ranks", "load", at_least=1)
    num_ranks: int | None = setting(
        None, "number of bert-squad's ranks", "load", shown_default="one for each core", at_least=1
    )
    num_warmup: int = setting(4, "steps before the measurement", "load", at_least=0)
    num_steps: int = setting(10, "measured steps", "load", at_least=1)
    precision: Literal["fp32", "bf16"] = setting(
        "bf16", "number format of bert-squad and KerasHub", "machine"
    )
    rival_python: str = setting(sys.executable, "Python that has the other programs", "machine")
    turns: TurnSettings

    def check(self) -> None:
        parts = self.parts.split(",")
        if unknown := set(parts) - set(PARTS):
            raise ValueError(f"--parts {unknown.pop()!r} is none of {', '.join(PARTS)}")
        for part in set(parts) - {"training"}:
            flags_of_parts = {
                "squad": "predict_file",
                "prediction": "predict_file",
                "wnut": "wnut_dir",
                "pairs": "pairs_dir",
            }
            flag = flags_of_parts.get(part, "glue_dir")
            if not getattr(self, flag):
                raise ValueError(f"--parts {part} needs --{flag}")


def main(argv: Sequence[str] | None = None) -> None:
    prog = "benchmarks.compare"
    config = flags.parse(CompareConfig, argv, prog=prog, description=str(__doc__))
    set_environment()
    alone(config.turns.output_file, partial(bench_compare, config), prog)


def bench_compare(config: CompareConfig, world: World) -> dict[str, Any]:
    """Measures all contenders in turn: windows per second or seconds, and the ratios of ours to
    theirs."""
    num_cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        contest = Contest(config, Path(folder), world.say, num_cores, config.num_ranks or num_cores)
        figures: dict[str, Any] = {}
        try:
            for part in config.parts.split(","):
                compare = {"training": compare_training, "prediction": compare_prediction}.get(part)
                figures[part] = compare(contest) if compare else compare_job(contest, part)
        except Absent as reason:
            raise InputError(f"the comparison with PyTorch: {reason}") from reason
    return figures


# -- training --------------------------------------------------------------------------------------


def compare_training(contest: Contest) -> dict[str, Any]:
    """Windows per second of every contender, and how many times as fast bert-squad is."""
    config, absent = contest.config, dict[str, str]()
    write_batches(config, contest.folder)
    settings = {
        "model": str(Path(config.model).expanduser().resolve()),
        "num_warmup": config.num_warmup,
        "precision": config.precision,
        "num_ranks": contest.num_ranks,
        "folder": str(contest.folder),
    }

    def windows_per_s(name: str) -> float:
        if name in absent:
            return 0.0
        try:
            if name == "ringbert":
                seconds = step_seconds(contest)
            else:
                package = "torch" if name.startswith("torch") else "keras_hub"
                seconds = contest.run_rival(RIVALS, package, settings | {"name": name})
        except Absent as reason:
            absent[name] = str(reason)
            return 0.0
        return config.batch_size * len(seconds) / sum(seconds)

    rates = in_turn({name: partial(windows_per_s, name) for name in LABELS}, config.turns.repeat)
    contest.say(
        f"{config.model}: {config.batch_size} windows per step, {config.num_steps} steps,"
        f" {contest.num_cores} cores, {contest.num_ranks} ranks, {config.precision}; medians of"
        f" {config.turns.repeat} turns"
    )
    figures: dict[str, Any] = {}
    for name, label in LABELS.items():
        if name in absent:
            contest.say(f"  {label}: left out: {absent[name]}")
            continue
        rate = statistics.median(rates[name])
        times = statistics.median(ratios(rates["ringbert"], rates[name]))
        figures[name] = {"windows_per_s": rate, "ratio": times}
        comparison = "" if name == "ringbert" else f", bert-squad is {times:.2f} times as fast"
        contest.say(f"  {label}: {rate:.2f} windows/s{comparison}")
    return figures


def step_seconds(contest: Contest) -> list[float]:
    """Runs bert-squad and returns the seconds of each measured step, from its metrics.jsonl."""
    config, output_dir = contest.config, tempfile.mkdtemp(dir=contest.folder)
    contest.run_ours(
        "tasks.squad",
        "--do_train",
        f"--model={config.model}",
        f"--train_file={config.train_file}",
        f"--max_train_examples={config.max_train_examples}",
        f"--max_seq_length={config.max_seq_length}",
        f"--global_batch_size={config.batch_size}",
        f"--num_train_steps={config.num_warmup + config.num_steps}",
        "--num_warmup_steps=0",
        "--learning_rate=1e-5",
        "--log_steps=1",
        "--device=cpu",
        f"--precision={config.precision}",
        f"--output_dir={output_dir}",
    )
    lines = [
        json.loads(line) for line in Path(output_dir, "metrics.jsonl").read_text().splitlines()
    ]
    rates = [line["examples_per_s"] for line in lines if "examples_per_s" in line]
    return [config.batch_size / rate for rate in rates[config.num_warmup :]]


# -- the rivals' batches ---------------------------------------------------------------------------


def write_batches(config: CompareConfig, folder: Path) -> None:
    """Writes the rivals' batches: in `padded.npz` those of bert-squad's first steps, padded to the
    full length, and in `grouped.npz` rows of similar length, padded to the longest one.

    Raises InputError: there is no such model or file, or there are fewer windows than the steps
    need.
    """
    length, size, num_steps = (
        config.max_seq_length,
        config.batch_size,
        config.num_warmup + config.num_steps,
    )
    settings = WindowSettings(max_seq_length=length, max_query_length=min(64, length - 4))
    questions = QuestionSettings(
        train_file=config.train_file, max_train_examples=config.max_train_examples
    )
    source = Source(questions, "train")
    words, run = tokenizer.load(None, Path(config.model).expanduser()), Unwritten()
    rows = open_set(SpanTask(settings), source, Tokenization(World(), run, words)).rows
    if len(rows) < num_steps * size:
        raise InputError(
            f"--max_train_examples gives {len(rows):,} windows, the steps need {num_steps * size:,}"
        )
    order = Order(len(rows), SEED)
    np.savez(
        folder / "padded.npz",
        **arrays(rows, order.rows_at(0, num_steps * size).reshape(-1, size), length),
    )
    # Sort many batches by length, and measure some that are spread evenly over the lengths.
    many = order.rows_at(0, min(max(MEGABATCH, num_steps) * size, len(rows) // size * size))
    many = many[np.argsort(-rows.lengths_at("input_ids", many), kind="stable")].reshape(-1, size)
    parts = [evenly(len(many), count) for count in (config.num_warmup, config.num_steps)]
    shuffled = [np.random.default_rng(0).permutation(part) for part in parts]
    np.savez(folder / "grouped.npz", **arrays(rows, many[np.concatenate(shuffled)], 0))


def evenly(number: int, count: int) -> np.ndarray:
    """`count` indices below `number`, each in the middle of one of `count` equal parts."""
    return ((np.arange(count) + 0.5) * number / max(count, 1)).astype(int)


def arrays(rows: Rows, batches: np.ndarray, length: int) -> dict[str, Any]:
    """The arrays of batches of these rows, [B, T] with T at least `length`, by "number/name"."""
    named: dict[str, Any] = {}
    for number, indices in enumerate(batches):
        batch = SpanTask().batch(rows.take(indices))
        shape, places = batch["groups"][0], batch["rows"]
        inputs = {
            name: batch[name][places].reshape(shape) for name in ("input_ids", "token_type_ids")
        }
        inputs["attention_mask"] = batch["attention_mask"].reshape(shape)
        padding = [(0, 0), (0, max(0, length - shape[1]))]
        named |= {f"{number}/{name}": np.pad(array, padding) for name, array in inputs.items()}
        named |= {f"{number}/{name}": batch[name] for name in ("start_position", "end_position")}
    return named


if __name__ == "__main__":
    main()
