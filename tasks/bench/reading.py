"""How long training steps wait for rows of a pretraining corpus; the last part of `bert-bench corpus`."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tasks import job as start

if TYPE_CHECKING:
    from bert.corpus.masking import Masking
    from bert.text.tokenizer import Tokenizer
    from distributed.rows import Rows
    from distributed.world import World

ALONE_S = 2.0  # how long the reader is measured without a training step
SEED = 42
PARTS = ("data_s", "compute_s", "reduce_s", "apply_s")


@dataclass(frozen=True)
class Load:
    """The training that reads: `model_shape` is hidden size, layers, heads and intermediate size."""

    model_shape: tuple[int, int, int, int]
    batch_size: int
    num_steps: int
    precision: Literal["fp32", "bf16"]
    device: str


def measure(shards: Path, tokenizer: "Tokenizer", load: Load, say: Callable[[str], None]) -> dict[str, float]:
    """Reads the Arrow shards of a folder without a model, then pretrains a fresh one from them; the figures."""
    start.set_environment()
    start.import_tensorflow()
    from bert.corpus import build as corpus
    from bert.corpus.masking import Masking
    from distributed.rows import Rows
    from distributed.world import World

    table, manifest = corpus.open_table(str(shards))
    rows = Rows(table)
    masking = Masking(tokenizer.vocab_size, tokenizer.mask_id, (tokenizer.cls_id, tokenizer.sep_id))
    rows_per_s = read_alone(rows, masking, load.batch_size)
    with World.join(load.device, program="bert-bench") as world:
        parts = train_on(rows, masking, tokenizer.vocab_size, load, world)
    step_s = sum(parts.values())
    wait = parts["data_s"] / step_s
    say(
        f"reading (order, shards, masks, arrays) on one thread, batches of {load.batch_size}: "
        f"{rows_per_s:,.0f} rows/s, {rows_per_s / load.batch_size * step_s:.0f} times what the next line needs"
    )
    (hidden, layers), length = load.model_shape[:2], manifest["settings"]["max_seq_length"]
    say(
        f"training {layers} layers x {hidden}, {load.batch_size} x {length} tokens, "
        f"{load.precision}, {world.device}: step {step_s * 1e3:.1f} ms, waiting for data "
        f"{parts['data_s'] * 1e3:.2f} ms, {wait:.2%}"
    )
    return {"reader_rows_per_s": rows_per_s, "step_s": step_s, "data_wait": wait, **parts}


def read_alone(rows: "Rows", masking: "Masking", batch_size: int) -> float:
    """Rows per second of the path of a training batch: order, shards, masks, arrays of the model's input."""
    import numpy as np

    from distributed.order import BlockOrder
    from tasks.pretraining.examples import collate

    order, position = BlockOrder(len(rows), SEED), 0
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < ALONE_S:
        indices = order.rows_at(position, position + batch_size)
        epochs = np.arange(position, position + batch_size) // len(rows)
        collate(rows.take(indices) | {"row": indices, "epoch": epochs}, masking, SEED)
        position += batch_size
    return position / elapsed


def train_on(rows: "Rows", masking: "Masking", vocab_size: int, load: Load, world: "World") -> dict[str, float]:
    """Pretrains by the loop of all training; seconds of the parts of a step, means of all but the first."""
    from transformers import BertConfig

    from bert.model import Bert
    from bert.optimizer import AdamWeightDecay
    from distributed.checkpoint import Checkpoints
    from distributed.collectives import open_collectives
    from distributed.feed import Feed
    from distributed.optimizer import AllreduceOptimizer
    from distributed.order import BlockOrder
    from distributed.plan import PlanSettings, make_plan
    from distributed.run import Run
    from distributed.settings import LoopSettings
    from distributed.train import Training, train
    from tasks.pretraining import examples as pretraining

    start.set_precision(load.precision)
    hidden, layers, heads, intermediate = load.model_shape
    model = Bert(
        BertConfig(
            vocab_size=vocab_size, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=intermediate,
        ),
        "pretraining",
    )  # fmt: skip
    collectives, steps = open_collectives(world), load.num_steps + 1
    optimizer = AllreduceOptimizer(
        AdamWeightDecay(1e-5), model.trainable_variables, world, collectives, loss_terms=("mlm", "nsp")
    )
    settings = PlanSettings(learning_rate=1e-5, train_batch_size=load.batch_size, num_train_steps=steps)
    plan = make_plan(settings, len(rows), 1)
    feed = Feed(
        rows=rows,
        order=BlockOrder(len(rows), SEED),
        collate=partial(pretraining.collate, masking=masking, seed=SEED),
        weights=pretraining.weights,
    )
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        run = Run.of(folder, world)
        training = Training(
            model=model,
            feed=feed,
            loss=lambda batch, key: pretraining.losses(model(batch, dropout_key=key), batch),
            settings={},
        )
        loop = LoopSettings(
            seed=SEED, log_steps=steps, xla="off"
        )  # the first step, which compiles, has its own line
        checkpoints = Checkpoints(run.folder / "checkpoints", world, lambda: lambda folder: None)
        train(loop, plan, training, optimizer, run, checkpoints)
        run.close()
        last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    collectives.close()
    return {name: last[name] for name in PARTS}
