"""bert-bench start: the time from the command to the first and the second training step, phase by phase.

Each training runs twice, in processes of its own: cold, with an empty RINGBERT_CACHE, and warm, with the cache
that the first run has filled. The programs record when each phase ends (`distributed.phases`).

    launch       interpreter and flags; with several ranks, bert-launch and mpirun too
    imports      TensorFlow
    ranks        the ranks join MPI and take their cores or GPUs
    backend      what sums gradients, the folder of the run
    data         configuration, vocabulary, tokenizing or its result from the cache
    model        variables, weights, optimizer; all ranks get the same values
    first_step   tracing, compiling and computing
    second_step  about what every later step takes

A phase ends when the last rank has ended it, so the phases add up to the totals.
"""

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distributed.phases import PHASES, VARIABLE
from ringbase.errors import InputError
from ringbase.settings import MOST_ROWS, check_at_least, check_at_most, setting
from tasks.bench.process import ROOT, last_error, on_ranks
from tasks.bench.scaling import MOST_RANKS
from tasks.bench.settings import TurnSettings
from tasks.bench.start_inputs import PROGRAMS, InputSettings, write_inputs
from tasks.bench.timing import in_turn, medians
from tasks.settings import ComputeSettings

if TYPE_CHECKING:
    from distributed.world import World

Seconds = dict[str, float]
CACHES = ("cold", "warm")
NUM_STEPS = 2
TOTALS = {"first_step": "to_first_step_s", "second_step": "to_second_step_s"}
NAMES = (*(f"{phase}_s" for phase in PHASES), *TOTALS.values())


@dataclass(frozen=True, kw_only=True)
class StartConfig(InputSettings, ComputeSettings, TurnSettings):
    """Time from the command to the first training steps, with an empty and with a filled cache."""

    programs: str = setting(",".join(PROGRAMS), "trainings to start, separated by commas", "load")
    ranks: str = setting("1,2", "numbers of ranks to start them on, separated by commas", "load")
    batch_size: int = setting(8, "rows per rank and step", "load")
    xla: Literal["auto", "on", "off"] = setting("auto", "let XLA compile the whole gradient", "machine")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "batch_size")
        check_at_most(self, MOST_ROWS, "batch_size")
        programs = programs_of(self)
        for program, flag in (("squad", "train_file"), ("classifier", "data_dir")):
            if getattr(self, flag) and program not in programs:
                raise ValueError(f"--{flag} is for {program}, which is missing in --programs {self.programs}")
        ranks_of(self)


def programs_of(config: StartConfig) -> list[str]:
    """The names of the trainings. Raises ValueError: unknown, or twice the same."""
    names = config.programs.split(",")
    if not set(names) <= set(PROGRAMS) or len(set(names)) < len(names):
        raise ValueError(
            f"--programs must be different names out of {', '.join(PROGRAMS)}, separated by commas, got "
            f"{config.programs!r}"
        )
    return names


def ranks_of(config: StartConfig) -> list[int]:
    """The numbers of ranks. Raises ValueError: not positive, too many, or twice the same."""
    words = config.ranks.split(",")
    numbers = [int(word) for word in words if re.fullmatch("[0-9]{1,4}", word)]
    if len(set(numbers)) < len(words) or not 1 <= min(numbers) <= max(numbers) <= MOST_RANKS:
        raise ValueError(
            f"--ranks must be different numbers from 1 to {MOST_RANKS:,}, separated by commas, got "
            f"{config.ranks!r}"
        )
    return numbers


def bench_start(config: StartConfig, world: "World") -> dict[str, Any]:
    """Starts every training on every number of ranks in turn, prints the medians as tables and returns them.

    Raises InputError: a program failed.
    """
    figures: dict[str, Any] = {}
    for program in programs_of(config):
        with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
            flags = [*write_inputs(config, program, Path(folder)), *training_flags(config)]
            starts = {str(size): partial(start_twice, program, flags, size) for size in ranks_of(config)}
            turns = in_turn(starts, config.repeat)
        figures[program] = {
            size: {cache: medians([pair[cache] for pair in pairs], NAMES) for cache in CACHES}
            for size, pairs in turns.items()
        }
        world.say(
            f"bert-{program}, {config.model or config.model_size}, {config.batch_size} rows of at most "
            f"{config.length_of(program)} tokens per rank, {config.precision}; seconds, "
            f"{f'medians of {config.repeat} turns' if config.repeat > 1 else 'one turn'}"
        )
        world.say("\n".join(table(figures[program])))
    return figures


def training_flags(config: StartConfig) -> list[str]:
    """The flags of all programs, besides their inputs, the number of steps and the folder of the run."""
    names = [*(field.name for field in fields(ComputeSettings)), "xla"]
    machine = [f"--{name}={getattr(config, name)}" for name in names]
    return ["--do_train", f"--train_batch_size={config.batch_size}", "--num_warmup_steps=0", *machine]


def start_twice(program: str, flags: Sequence[str], num_ranks: int) -> dict[str, Seconds]:
    """The seconds of the phases with an empty cache, and with the cache that this run has filled."""
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        return {cache: start_once(program, flags, num_ranks, Path(folder), cache) for cache in CACHES}


def start_once(program: str, flags: Sequence[str], num_ranks: int, folder: Path, name: str) -> Seconds:
    """Trains with the cache in `folder` and returns the seconds of the phases. Raises InputError: it failed."""
    command = [sys.executable, "-m", f"tasks.{program}", *flags, f"--output_dir={folder / name}"]
    command.append(f"--num_train_steps={NUM_STEPS * num_ranks}")  # of one rank
    record = folder / f"{name}.jsonl"
    variables = {"PYTHONPATH": str(ROOT), "RINGBERT_CACHE": str(folder / "cache"), VARIABLE: str(record)}
    start_s = time.time()
    done = subprocess.run(
        on_ranks(command, num_ranks), env={**os.environ, **variables}, capture_output=True, text=True
    )
    if done.returncode:
        ranks = f"{num_ranks} rank{'s' * (num_ranks > 1)}"
        raise InputError(f"the {name} start of bert-{program} on {ranks} failed: {last_error(done)}")
    return seconds_of_phases(start_s, record.read_text(), num_ranks)


def seconds_of_phases(start_s: float, record: str, num_ranks: int) -> Seconds:
    """The seconds of each phase and in total, from the lines that the ranks have written.

    A phase lasts from the end of the one before, on its slowest rank, to its own end on its slowest rank.
    """
    ends: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for line in record.splitlines():
        entry = json.loads(line)
        ends[entry["phase"]].append(entry["time"])
    assert all(len(times) == num_ranks for times in ends.values()), record
    edges = [start_s, *(max(ends[phase]) for phase in PHASES)]
    seconds = {
        f"{phase}_s": end - begin for phase, (begin, end) in zip(PHASES, itertools.pairwise(edges), strict=True)
    }
    return seconds | {name: max(ends[phase]) - start_s for phase, name in TOTALS.items()}


def table(figures: Mapping[str, Mapping[str, Seconds]]) -> list[str]:
    """Lines with a row for each phase, and a column for each number of ranks and state of the cache."""
    sizes = "".join(f"{f'{size} rank' + 's' * (size != '1'):>18s}" for size in figures)
    lines = [f"{'':20s}{sizes}", " " * 20 + f"{'cold':>9s}{'warm':>9s}" * len(figures)]
    columns = [figures[size][cache] for size in figures for cache in CACHES]
    for phase in PHASES:
        for name in (f"{phase}_s", TOTALS.get(phase)):
            if name:
                label = name.removesuffix("_s").replace("_", " ")
                lines.append(f"{label:20s}" + "".join(f"{column[name]:9.2f}" for column in columns))
    return lines
