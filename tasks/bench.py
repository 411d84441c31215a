"""bert-bench: how fast one training step and its parts are here, over all ranks; what else takes time.

    mpirun -np 2 bert-bench step --model_size minilm --batch_size 8 --seq_length 384 --precision bf16
    mpirun -np 2 bert-bench step --model MINILM_FOLDER --train_file train-v1.1.json --precision bf16
    bert-bench scaling --model_size minilm --picture scaling.png
    mpirun -np 2 bert-bench update --model_size base
    mpirun -np 2 bert-bench allreduce
    bert-bench compare --model MINILM_FOLDER --train_file train-v1.1.json
    bert-bench prepare --model MINILM_FOLDER --train_file train-v1.1.json
    bert-bench corpus --input_file 'text/*.txt' --vocab_file vocab.txt --google_dir bert

What Horovod's synthetic benchmark printed for ResNet: examples per second of a rank and in total.
"""

import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bert import InputError
from tasks import flags, start
from tasks.bench_compare import CompareConfig, bench_compare
from tasks.bench_corpus import CorpusConfig, measure
from tasks.bench_load import SIZES, model_config
from tasks.bench_prepare import PrepareConfig, bench_prepare
from tasks.bench_scaling import ScalingConfig, bench_scaling
from tasks.bench_step import StepConfig, bench_step, line_up, positive_numbers
from tasks.bench_update import UpdateConfig, bench_update

if TYPE_CHECKING:
    from distributed.world import World


@dataclass(frozen=True)
class AllreduceConfig:
    """bert-bench allreduce: float32 sums over all ranks, beside one plain Allreduce of the whole."""

    megabytes: str = flags.flag("1,16,88,440", "sizes of the buffer, separated by commas (10^6 bytes)", "load")
    repeat: int = flags.flag(7, "pairs measured per size; medians are printed", "load")
    device: Literal["auto", "gpu", "cpu"] = flags.flag("cpu", "where the buffer lies", "machine")
    share_gpus: bool = flags.flag(False, "allow more ranks than GPUs", "machine")
    backend: Literal["auto", "mpi", "nccl", "ring"] = flags.flag("auto", "what sums the buffer", "machine")
    output_file: str | None = flags.flag(None, "write the figures as JSON too", "machine")
    sizes: tuple[float, ...] = field(default=(), init=False)

    def __post_init__(self):
        object.__setattr__(self, "sizes", positive_numbers("megabytes", self.megabytes))
        if self.repeat < 1:
            raise ValueError(f"--repeat is {self.repeat}, needed is at least 1")


def main(argv: Sequence[str] | None = None) -> None:
    commands: dict[str, type] = {
        "step": StepConfig,
        "scaling": ScalingConfig,
        "update": UpdateConfig,
        "allreduce": AllreduceConfig,
        "compare": CompareConfig,
        "prepare": PrepareConfig,
        "corpus": CorpusConfig,
    }
    config: Any
    name, config = flags.parse_command(commands, argv, prog="bert-bench", description=str(__doc__))
    start.check_packages()
    start.set_environment()
    if name in ("scaling", "compare", "prepare", "corpus"):
        in_processes(name, config)
        return
    start.import_tensorflow()
    from distributed.world import World

    with World.join(config.device, config.share_gpus, "bert-bench", (InputError,)) as world:
        figures: dict[str, Any]
        match name:
            case "step":
                figures = bench_step(config, world)
            case "update":
                figures = bench_update(config, model_config(config.model_size), world)
            case _:
                figures = bench_allreduce(config, world)
        if config.output_file:
            world.on_first(Path(config.output_file).expanduser().write_text, json.dumps(figures, indent=1) + "\n")


def in_processes(name: str, config: Any) -> None:
    """Measures programs that it starts itself; MPI is joined here for bench corpus' training step alone."""
    from distributed.world import LAUNCHER_SIZES, World

    with World(program="bert-bench", user_errors=(InputError, OSError)) as world:
        if any(os.environ.get(size, "1") not in ("", "1") for size in LAUNCHER_SIZES):
            raise InputError(f"bert-bench {name} is one process: start it without mpirun or srun")
        match name:
            case "scaling":
                figures = bench_scaling(config, world.say)
            case "compare":
                figures = bench_compare(config, world.say)
            case "prepare":
                figures = bench_prepare(config, world)
            case _:
                figures = measure(config, SIZES[config.model_size], world.say)
        if config.output_file:
            Path(config.output_file).expanduser().write_text(json.dumps(figures, indent=1) + "\n")


def bench_allreduce(config: AllreduceConfig, world: "World") -> dict[str, object]:
    """Times the backend's sum and one plain Allreduce in turn, on buffers fresh from an operation; medians."""
    import numpy as np
    import tensorflow as tf

    from distributed.collectives import open_collectives
    from distributed.collectives.mpi import MpiCollectives

    if world.size == 1:
        raise InputError("bert-bench allreduce needs several ranks: mpirun -np 2 bert-bench allreduce")
    ours = open_collectives(world, config.backend)
    plain = MpiCollectives(world.comm, piece_bytes=1 << 40)
    figures: dict[str, object] = {}
    world.say(
        f"sum of float32 over {world.size} ranks, buffers fresh from an operation, "
        f"medians of {config.repeat} pairs"
    )
    for size in config.sizes:
        base = tf.random.stateless_normal([int(size * 1e6) // 4], [world.rank, 1])
        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        backends = {"ours": ours, "plain": plain}
        sums = []
        for turn in range(config.repeat + 1):
            for name in sorted(backends, reverse=bool(turn % 2)):
                fresh = base * 1.0
                fresh[:1].numpy()  # a GPU still works on it when Python goes on
                line_up(world)
                began = time.perf_counter()
                total = backends[name].all_reduce_sum(fresh)
                total[:1].numpy()
                elapsed = max(world.all_gather(time.perf_counter() - began))
                if turn:  # the first ones fill buffers
                    seconds[name].append(elapsed)
                else:
                    sums.append(np.array(total))
        if not np.allclose(sums[0], sums[1], rtol=1e-5, atol=1e-5):
            raise AssertionError("the two sums differ")
        ratio = statistics.median(b / a for a, b in zip(seconds["ours"], seconds["plain"], strict=True))
        slow, fast = (statistics.median(seconds[name]) for name in ("plain", "ours"))
        world.say(
            f"{size:7g} MB: {ours.name} {fast * 1e3:7.1f} ms ({size / 1e3 / fast:5.2f} GB/s), "
            f"one Allreduce {slow * 1e3:7.1f} ms ({size / 1e3 / slow:5.2f} GB/s), ratio {ratio:.2f}"
        )
        figures[f"{size:g}"] = {"ours_s": fast, "plain_s": slow, "ratio": ratio}
    ours.close()
    return figures


if __name__ == "__main__":
    main()
