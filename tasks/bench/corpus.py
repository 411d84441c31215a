"""bert-bench corpus: how fast pretraining corpora are built and read, and how much memory that takes.

Every build runs in a separate process, whose start counts too. One MB is 10^6 bytes of the input files.
"""

import glob
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bert.corpus.masking import Masking
from bert.corpus.shards import open_shards
from bert.text import tokenizer
from distributed.order import BlockOrder
from distributed.rows import BatchRows
from distributed.world import World
from ringbase.errors import InputError
from tasks.bench.settings import CorpusConfig
from tasks.bench.timing import in_turn, ratio
from tasks.bench.worlds import alone, run_module
from tasks.pretraining.task import MaskedTask

MB = 1e6
READ_S = 2.0  # how long the reader is measured
SEED = 42


def run(config: CorpusConfig) -> None:
    alone(config.turns, partial(bench_corpus, config))


def bench_corpus(config: CorpusConfig, world: World) -> dict[str, Any]:
    """Builds the corpus on one core and on all in turn, then reads it. Raises InputError: no text."""
    files = [path for pattern in config.input_file.split(",") for path in glob.glob(os.path.expanduser(pattern))]
    megabytes = sum(os.path.getsize(path) for path in files) / MB
    if not megabytes:
        raise InputError(f"--input_file {config.input_file}: no text there")
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        output = Path(folder, "shards")
        contenders = {
            "one": partial(build, config, output, cores[:1]),
            "all": partial(build, config, output, cores),
        }
        seconds = in_turn(contenders if len(cores) > 1 else {"one": contenders["one"]}, config.turns.repeat)
        rates = {name: megabytes / statistics.median(times) for name, times in seconds.items()}
        peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / MB
        world.say(
            f"{megabytes:.3g} MB, medians of {config.turns.repeat} turns with start-up: {rates['one']:.2f} MB/s "
            f"on one core; the largest process had {peak_mb:.0f} MB of memory"
        )
        figures: dict[str, Any] = {"mb": megabytes, "mb_per_s": rates, "cores": len(cores), "peak_mb": peak_mb}
        if "all" in rates:
            figures["ratio"] = ratio(seconds["one"], seconds["all"]).median
            world.say(f"{rates['all']:.2f} MB/s on {len(cores)} cores, ratio {figures['ratio']:.2f}")
        figures["rows_per_s"] = rows_per_s(config, output)
    world.say(
        f"reading (order, shards, masks, arrays) on one thread, batches of {config.batch_size}: "
        f"{figures['rows_per_s']:,.0f} rows/s"
    )
    return figures


def build(config: CorpusConfig, output: Path, cores: Sequence[int]) -> float:
    """The seconds of `bert-corpus build` into an empty folder. Raises InputError: it failed."""
    shutil.rmtree(output, ignore_errors=True)
    flags = [f"--input_file={config.input_file}", f"--vocab_file={config.vocab_file}", f"--output_dir={output}"]
    if config.do_lower_case is not None:
        flags.append(f"--do_lower_case={config.do_lower_case}")
    start_s = time.perf_counter()
    program = ["tasks.corpus", "build", *flags, f"--num_workers={len(cores)}"]
    run_module("bert-corpus build", program, cores=cores)
    return time.perf_counter() - start_s


def rows_per_s(config: CorpusConfig, shards: Path) -> float:
    """How fast batches of bert-pretraining are made of the shards: order, shards, masks, arrays of the input."""
    words = tokenizer.load(config.vocab_file, None, config.do_lower_case)
    rows, position = BatchRows(open_shards(str(shards))[0]), 0
    masking = Masking(words.vocab_size, words.mask_id, (words.cls_id, words.sep_id))
    task = MaskedTask(0, masking, SEED, masking.num_predictions)
    order, start_s = BlockOrder(len(rows), SEED), time.perf_counter()
    while (elapsed_s := time.perf_counter() - start_s) < READ_S:
        numbers = order.rows_at(position, position + config.batch_size)
        epochs = np.arange(position, position + config.batch_size) // len(rows)
        task.batch(rows.take(numbers) | {"row": numbers, "epoch": epochs})
        position += config.batch_size
    return position / elapsed_s
