"""How long training steps wait for the rows of a pretraining corpus; the last part of `bert-bench corpus`."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from distributed.devices import DeviceSettings
from ringbase.settings import MOST_ROWS, MOST_STEPS, check_at_least, check_at_most, setting
from tasks import environment as start
from tasks.bench.load import model_config
from tasks.bench.settings import ModelSize
from tasks.bench.step import PARTS

if TYPE_CHECKING:
    from bert.corpus.masking import Masking
    from bert.text.tokenizer import Tokenizer
    from distributed.rows import BatchRows
    from distributed.world import World

ALONE_S = 2.0  # how long the reader is measured without a training step
SEED = 42


@dataclass(frozen=True, kw_only=True)
class ReadingSettings(DeviceSettings):
    """Settings of the training that reads the shards."""

    model_size: ModelSize = setting(
        "tiny", "size of the model trained on the shards; a small model waits for data sooner", "reading"
    )
    batch_size: int = setting(32, "rows per training step", "reading")
    num_steps: int = setting(30, "measured training steps", "reading")
    precision: Literal["fp32", "bf16"] = setting("fp32", "number format of matrix products", "reading")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "batch_size", "num_steps")
        check_at_most(self, MOST_ROWS, "batch_size")
        check_at_most(self, MOST_STEPS, "num_steps")


def bench_reading(
    settings: ReadingSettings, shards: Path, tokenizer: "Tokenizer", say: Callable[[str], None]
) -> dict[str, float]:
    """Reads the Arrow shards of a folder without a model, then pretrains a new model on them. Returns the
    figures."""
    start.import_tensorflow()
    from bert.corpus.masking import Masking
    from bert.corpus.shards import open_shards
    from distributed.rows import BatchRows
    from distributed.world import World

    opened, manifest = open_shards(str(shards))
    rows = BatchRows(opened)
    masking = Masking(tokenizer.vocab_size, tokenizer.mask_id, (tokenizer.cls_id, tokenizer.sep_id))
    rows_per_s = read_alone(rows, masking, settings.batch_size)
    with World.join(settings, "bert-bench") as world:
        parts = train_on(rows, masking, tokenizer.vocab_size, settings, world)
    step_s = sum(parts.values())
    say(
        f"reading (order, shards, masks, arrays) on one thread, batches of {settings.batch_size}: "
        f"{rows_per_s:,.0f} rows/s, {rows_per_s / settings.batch_size * step_s:.0f} times what the training below "
        "needs"
    )
    shape, length = model_config(settings.model_size), manifest["settings"]["max_seq_length"]
    say(
        f"training {shape.num_hidden_layers} layers x {shape.hidden_size}, {settings.batch_size} x {length} "
        f"tokens, {settings.precision}, {world.device.kind}: step {step_s * 1e3:.1f} ms, waiting for data "
        f"{parts['data_s'] * 1e3:.2f} ms, {parts['data_s'] / step_s:.2%}"
    )
    return {"reader_rows_per_s": rows_per_s, "step_s": step_s, "data_wait": parts["data_s"] / step_s, **parts}


def read_alone(rows: "BatchRows", masking: "Masking", batch_size: int) -> float:
    """Rows per second when only batches are made: order, shards, masks, arrays of the model's input."""
    import numpy as np

    from distributed.order import BlockOrder
    from tasks.pretraining.examples import collate

    order, position = BlockOrder(len(rows), SEED), 0
    start_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - start_s) < ALONE_S:
        indices = order.rows_at(position, position + batch_size)
        epochs = np.arange(position, position + batch_size) // len(rows)
        collate(rows.take(indices) | {"row": indices, "epoch": epochs}, masking, SEED)
        position += batch_size
    return position / elapsed_s


def train_on(
    rows: "BatchRows", masking: "Masking", vocab_size: int, settings: ReadingSettings, world: "World"
) -> dict[str, float]:
    """Pretrains with the usual training loop. Returns the mean seconds of each part of a step, without the
    first."""
    from bert.model import Bert
    from bert.optimizer import AdamWeightDecay
    from distributed.checkpoint import Checkpoints
    from distributed.collectives import open_collectives
    from distributed.feed import Feed
    from distributed.gradient import TrainingStep
    from distributed.optimizer import AllreduceOptimizer
    from distributed.order import BlockOrder
    from distributed.plan import PlanSettings, make_plan
    from distributed.run import Run
    from distributed.train import train
    from tasks.job import set_precision
    from tasks.pretraining import examples as pretraining

    set_precision(settings.precision)
    model = Bert(model_config(settings.model_size, vocab_size=vocab_size), "pretraining")
    collectives, steps = open_collectives(world), settings.num_steps + 1
    optimizer = AllreduceOptimizer(
        AdamWeightDecay(1e-5), model.trainable_variables, world, collectives, loss_terms=("mlm", "nsp")
    )
    plan_settings = PlanSettings(learning_rate=1e-5, train_batch_size=settings.batch_size, num_train_steps=steps)
    plan = make_plan(plan_settings, len(rows), 1)
    feed = Feed(
        rows=rows,
        order=BlockOrder(len(rows), SEED),
        collate=partial(pretraining.collate, masking=masking, seed=SEED),
        weights=pretraining.weights,
    )
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        run = Run.of(folder, world)
        step = TrainingStep(
            lambda batch, key: pretraining.losses(model(batch, dropout_key=key), batch),
            feed.weights,
            optimizer,
            SEED,
        )
        checkpoints = Checkpoints(run.folder / "checkpoints", world, lambda: lambda folder: None)
        # The first step, which includes compilation, has its own line in metrics.jsonl.
        train(step, feed, plan, checkpoints, run, log_steps=steps)
        run.close()
        last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    collectives.close()
    return {name: last[name] for name in PARTS}
