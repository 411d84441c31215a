"""bert-bench start: the time from the command to bert-squad's first and second training step, phase by phase.

The training runs twice, in processes of its own: cold, with an empty RINGBERT_CACHE, and warm, with the cache
that the first run has filled. All programs record when each phase ends (`distributed.phases`).

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
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from distributed.phases import PHASES, VARIABLE
from distributed.world import World
from ringbase.settings import flat
from tasks.bench.inputs import model_config, write_inputs
from tasks.bench.settings import MOST_RANKS, StartConfig, numbers
from tasks.bench.timing import in_turn, medians
from tasks.bench.worlds import alone, run_module

Seconds = dict[str, float]
CACHES = ("cold", "warm")
NUM_STEPS = 2
TOTALS = {"first_step": "to_first_step_s", "second_step": "to_second_step_s"}
NAMES = [name for phase in PHASES for name in (f"{phase}_s", TOTALS.get(phase)) if name]


def run(config: StartConfig) -> None:
    alone(config.turns, partial(bench_start, config))


def bench_start(config: StartConfig, world: World) -> dict[str, Any]:
    """Starts the training on every number of ranks in turn, prints the medians as a table and returns them.

    Raises InputError: a program failed.
    """
    shape, repeat = config.shape, config.turns.repeat
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        model = model_config(shape.model_size, shape.seq_length)
        values = {
            **write_inputs(Path(folder), model, config.num_examples), **flat(shape.machine),
            "max_seq_length": shape.seq_length, "max_query_length": min(64, shape.seq_length - 4),
            "xla": config.xla, "train_batch_size": shape.batch_size, "num_warmup_steps": 0, "do_train": True,
        }  # fmt: skip
        flags = [f"--{name}={value}" for name, value in values.items()]
        counts = numbers("ranks", config.ranks, int, MOST_RANKS)
        turns = in_turn({str(ranks): partial(start_twice, flags, int(ranks)) for ranks in counts}, repeat)
    figures = {
        ranks: {cache: medians([pair[cache] for pair in pairs], NAMES) for cache in CACHES}
        for ranks, pairs in turns.items()
    }
    world.say(
        f"bert-squad, {shape.model_size}, {shape.batch_size} rows of at most {shape.seq_length} tokens per rank, "
        f"{shape.machine.precision}; seconds, medians of {repeat} turns"
    )
    world.say("\n".join(table(figures)))
    return figures


def start_twice(flags: Sequence[str], num_ranks: int) -> dict[str, Seconds]:
    """The seconds of the phases with an empty cache, and with the cache that this run has filled."""
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        return {cache: start_once(flags, num_ranks, Path(folder), cache) for cache in CACHES}


def start_once(flags: Sequence[str], num_ranks: int, folder: Path, name: str) -> Seconds:
    """Trains with the cache in `folder`. Returns the seconds of each phase and in total.

    A phase lasts from the end of the one before, on its slowest rank, to its own end on its slowest rank. Raises
    InputError: the training failed."""
    record = folder / f"{name}.jsonl"
    steps = f"--num_train_steps={NUM_STEPS * num_ranks}"  # of one rank
    variables = {"RINGBERT_CACHE": str(folder / "cache"), VARIABLE: str(record)}
    start_s = time.time()
    what = f"the {name} start of bert-squad, ranks: {num_ranks},"
    run_module(what, ["tasks.squad", *flags, f"--output_dir={folder / name}", steps], num_ranks, variables)
    ends: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for line in record.read_text().splitlines():
        entry = json.loads(line)
        ends[entry["phase"]].append(entry["time"])
    assert all(len(times) == num_ranks for times in ends.values()), ends
    edges = [start_s, *map(max, ends.values())]
    pairs = zip(PHASES, itertools.pairwise(edges), strict=True)
    seconds = {f"{phase}_s": end - begin for phase, (begin, end) in pairs}
    return seconds | {name: max(ends[phase]) - start_s for phase, name in TOTALS.items()}


def table(figures: Mapping[str, Mapping[str, Seconds]]) -> list[str]:
    """Lines with a row for each phase, and a column for each number of ranks and state of the cache."""
    sizes = "".join(f"{f'{size} rank' + 's' * (size != '1'):>18s}" for size in figures)
    lines = [f"{'':20s}{sizes}", " " * 20 + f"{'cold':>9s}{'warm':>9s}" * len(figures)]
    columns = [figures[size][cache] for size in figures for cache in CACHES]
    for name in NAMES:
        label = name.removesuffix("_s").replace("_", " ")
        lines.append(f"{label:20s}" + "".join(f"{column[name]:9.2f}" for column in columns))
    return lines
