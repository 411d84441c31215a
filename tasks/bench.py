"""bert-bench: how fast one training step and the all-reduce are here, over all ranks, on synthetic data; corpora.

    mpirun -np 2 bert-bench step --model_size minilm --batch_size 8 --seq_length 384 --precision bf16
    mpirun -np 2 bert-bench allreduce
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
from tasks.bench_corpus import CorpusConfig, measure

if TYPE_CHECKING:
    import numpy as np

    from distributed.world import World

# hidden size, layers, heads, intermediate size
SIZES = {
    "tiny": (128, 2, 2, 512),
    "minilm": (384, 6, 12, 1536),
    "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096),
}
VOCABULARY = 30522


@dataclass(frozen=True)
class StepConfig:
    """bert-bench step: SQuAD training steps on random tokens, every row full."""

    model_size: Literal["tiny", "minilm", "base", "large"] = flags.flag("minilm", "published sizes", "model")
    bert_config_file: str | None = flags.flag(None, "a configuration instead of --model_size", "model")
    batch_size: int = flags.flag(8, "rows per rank and micro-batch", "load")
    seq_length: int = flags.flag(384, "tokens per row", "load")
    gradient_accumulation_steps: int = flags.flag(1, "micro-batches per step", "load")
    num_warmup: int = flags.flag(3, "steps before the measurement", "load")
    num_steps: int = flags.flag(10, "steps measured", "load")
    precision: Literal["fp32", "bf16", "fp16"] = flags.flag("fp32", "as in training", "machine")
    device: Literal["auto", "gpu", "cpu"] = flags.flag("auto", "where to compute", "machine")
    share_gpus: bool = flags.flag(False, "allow more ranks than GPUs", "machine")
    backend: Literal["auto", "mpi", "nccl", "ring", "local"] = flags.flag(
        "auto", "what sums the gradients", "machine"
    )
    output_file: str | None = flags.flag(None, "write the figures as JSON too", "machine")

    def __post_init__(self):
        for name in ("batch_size", "seq_length", "gradient_accumulation_steps", "num_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}, needed is at least 1")


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
        try:
            sizes = tuple(float(size) for size in self.megabytes.split(","))
        except ValueError:
            sizes = ()
        if not sizes or min(sizes) <= 0 or self.repeat < 1:
            raise ValueError(f"--megabytes {self.megabytes} --repeat {self.repeat}: positive numbers are needed")
        object.__setattr__(self, "sizes", sizes)


def main(argv: Sequence[str] | None = None) -> None:
    commands: dict[str, type] = {"step": StepConfig, "allreduce": AllreduceConfig, "corpus": CorpusConfig}
    config: Any
    name, config = flags.parse_command(commands, argv, prog="bert-bench", description=str(__doc__))
    start.check_packages()
    start.set_environment()
    if name == "corpus":
        bench_corpus(config)
        return
    start.import_tensorflow()
    from distributed.world import World

    with World.join(config.device, config.share_gpus, "bert-bench", (InputError,)) as world:
        figures = bench_step(config, world) if name == "step" else bench_allreduce(config, world)
        if config.output_file:
            world.on_first(Path(config.output_file).write_text, json.dumps(figures, indent=1) + "\n")


def bench_corpus(config: CorpusConfig) -> None:
    """Measures in one process, and processes that it starts; MPI is joined for the training step alone."""
    from distributed.world import LAUNCHER_SIZES, World

    with World(program="bert-bench", user_errors=(InputError, OSError)) as world:
        if any(os.environ.get(name, "1") not in ("", "1") for name in LAUNCHER_SIZES):
            raise InputError("bert-bench corpus is one process: start it without mpirun or srun")
        figures = measure(config, SIZES[config.model_size], world.say)
        if config.output_file:
            Path(config.output_file).expanduser().write_text(json.dumps(figures, indent=1) + "\n")


def bench_step(config: StepConfig, world: "World") -> dict[str, object]:
    """Times whole training steps on every rank; the figures, the same on every rank."""
    import numpy as np
    from transformers import BertConfig

    from bert import weights
    from bert.model import Bert
    from bert.optimizer import AdamWeightDecay
    from distributed.collectives import open_collectives
    from distributed.optimizer import AllreduceOptimizer
    from distributed.rows import prefetched
    from distributed.train import Meter, dropout_key, gradient_function
    from tasks.squad import span_loss

    start.set_precision(config.precision)
    collectives = open_collectives(world, config.backend)
    if config.bert_config_file:
        bert_config = weights.config_from_file(config.bert_config_file)
    else:
        hidden, layers, heads, intermediate = SIZES[config.model_size]
        bert_config = BertConfig(
            vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=intermediate, max_position_embeddings=max(512, config.seq_length),
        )  # fmt: skip
    model = Bert(bert_config, "span")
    optimizer = AllreduceOptimizer(
        AdamWeightDecay(1e-5),
        model.trainable_variables,
        world,
        collectives,
        scales_loss=config.precision == "fp16",
    )
    optimizer.broadcast_variables()
    num_steps = config.num_warmup + config.num_steps

    def make_batch(step: int) -> "dict[str, np.ndarray]":
        seed = num_steps * world.rank + step
        return _random_batch(config.batch_size, config.seq_length, bert_config.vocab_size, seed)

    batches = prefetched(make_batch, range(num_steps))  # as in training

    def loss(batch, key):
        return {"loss": span_loss(model(batch, dropout_key=key), batch)}

    gradient = gradient_function(optimizer, loss, make_batch(0))
    rows = config.batch_size * config.gradient_accumulation_steps
    meter = Meter(rows * world.size)
    times: list[float] = []
    parts: dict[str, list[float]] = {}
    for step in range(num_steps):
        world.barrier()
        meter.skip()
        began = time.perf_counter()
        batch = next(batches)
        meter.mark("data_s")
        totals, _ = optimizer.reduce_weights({"loss": float(rows)})
        inverse, flat = optimizer.inverse_weights(totals), None
        for number in range(config.gradient_accumulation_steps):
            part = gradient(batch, inverse, dropout_key(0, step, number, world.rank))
            flat = part if flat is None else flat + part
        meter.mark("compute_s")
        flat = optimizer.all_reduce(flat)
        meter.mark("reduce_s")
        optimizer.update(flat, totals)
        meter.mark("apply_s")
        if step >= config.num_warmup:
            times.append(time.perf_counter() - began)
            for name, seconds in meter.read().items():
                parts.setdefault(name, []).append(seconds)
        else:
            meter.read()
    rates = [rows / seconds for seconds in times]
    of_ranks = world.all_gather((float(np.mean(rates)), float(np.std(rates))))
    total, deviation = sum(mean for mean, _ in of_ranks), sum(std for _, std in of_ranks)
    split = {name: statistics.median(parts[name]) for name in ("data_s", "compute_s", "reduce_s", "apply_s")}
    count = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    world.say(
        f"{config.bert_config_file or config.model_size}: {count / 1e6:.1f} M parameters, "
        f"batch {rows} x {config.seq_length} tokens per rank, {config.precision}, backend {collectives.name}, "
        f"{world.threads} threads per rank"
    )
    for rank, (mean, std) in enumerate(of_ranks):
        world.say(f"rank {rank}: {mean:.2f} +- {std:.2f} examples/sec")
    whole = sum(split.values())
    told = ", ".join(
        f"{name.removesuffix('_s')} {value * 1e3:.0f} ms ({value / whole:.0%})" for name, value in split.items()
    )
    world.say(f"step (median): {told}")
    world.say(f"total examples/sec: {total:.2f} +- {deviation:.2f} on {world.size} rank{'s' * (world.size > 1)}")
    collectives.close()
    return {
        "world_size": world.size, "examples_per_s": total, "deviation": deviation, "of_ranks": of_ranks,
        "parameters": count, **split,
    }  # fmt: skip


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
        for turn in range(config.repeat + 1):
            for name, backend in (("ours", ours), ("plain", plain)):
                fresh = base * 1.0
                fresh[:1].numpy()  # a GPU still works on it when Python goes on
                world.barrier()
                began = time.perf_counter()
                total = backend.all_reduce_sum(fresh)
                total[:1].numpy()
                elapsed = time.perf_counter() - began
                if turn:
                    seconds[name].append(elapsed)
                elif name == "ours":
                    kept = np.array(total)
                elif not np.allclose(kept, total, rtol=1e-5, atol=1e-5):
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


def _random_batch(rows: int, length: int, vocabulary: int, seed: int) -> "dict[str, np.ndarray]":
    import numpy as np

    generator = np.random.default_rng(seed)
    whole = np.zeros((rows, length), np.int32)
    return {
        "input_ids": generator.integers(0, vocabulary, (rows, length), dtype=np.int32),
        "token_type_ids": whole,
        "position_ids": whole + np.arange(length, dtype=np.int32),
        "example_ids": whole + 1,
        "start_position": generator.integers(0, length, rows, dtype=np.int32),
        "end_position": generator.integers(0, length, rows, dtype=np.int32),
    }


if __name__ == "__main__":
    main()
