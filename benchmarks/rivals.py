"""Times training steps of other BERT implementations on bert-squad's windows, in a separate
process.

    python rivals.py SETTINGS.json REPORT.json

compare.py starts this file, possibly with another Python that has these packages but none of ours.
Each contender gets the same windows in the same order (except when they are grouped by length),
clips the gradient and updates the weights. The report has the seconds of each step.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("input_ids", "token_type_ids", "attention_mask", "start_position", "end_position")
Batch = dict[str, np.ndarray]
Step = Callable[[Batch], object]


def torch_step(settings: dict[str, Any], bf16: bool, is_compiled: bool) -> Step:
    """PyTorch and transformers: `AutoModelForQuestionAnswering`, with scaled_dot_product_attention
    and fused AdamW, trained as in run_qa.py."""
    import torch
    from transformers import AutoModelForQuestionAnswering as Model

    torch.set_num_threads(settings["num_threads"])
    model = Model.from_pretrained(settings["model"], dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    forward = torch.compile(model, dynamic=True) if is_compiled else model
    names = {
        "input_ids": "input_ids",
        "token_type_ids": "token_type_ids",
        "attention_mask": "attention_mask",
        "start_positions": "start_position",
        "end_positions": "end_position",
    }
    if model.config.model_type == "modernbert":
        del names["token_type_ids"]

    def step(batch: Batch) -> object:
        inputs = {
            theirs: torch.from_numpy(batch[ours].astype(np.int64)) for theirs, ours in names.items()
        }
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = forward(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def keras_hub_model(settings: dict[str, Any]) -> Any:
    """KerasHub's `BertBackbone` of the same size, with a dense layer for start and end, compiled
    with AdamW."""
    import keras
    import keras_hub

    if settings["precision"] == "bf16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    config = json.loads((Path(settings["model"]) / "config.json").read_text())
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        max_sequence_length=config["max_position_embeddings"],
    )
    scores = keras.layers.Dense(2, dtype="float32")(backbone.output["sequence_output"])
    model = keras.Model(backbone.input, [scores[..., 0], scores[..., 1]])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.AdamW(1e-5, global_clipnorm=1.0), [loss, loss], jit_compile=False
    )
    return model


def keras_hub_inputs(batch: Batch) -> tuple[Batch, list[np.ndarray]]:
    """A batch as inputs of KerasHub's model, and its targets: start and end."""
    names = {
        "token_ids": "input_ids",
        "segment_ids": "token_type_ids",
        "padding_mask": "attention_mask",
    }
    inputs = {theirs: batch[ours] for theirs, ours in names.items()}
    return inputs, [batch["start_position"], batch["end_position"]]


def keras_hub_step(settings: dict[str, Any]) -> Step:
    """Keras' own training step, in one process."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(settings["num_threads"])
    model = keras_hub_model(settings)
    return lambda batch: model.train_on_batch(*keras_hub_inputs(batch))


def mirrored_step(settings: dict[str, Any]) -> Step:
    """KerasHub's model under `MultiWorkerMirroredStrategy`. This process is one of `num_ranks` and
    takes its share of each batch. The step is written out because Keras' own training step fails
    under this strategy."""
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # reads TF_CONFIG; must come first
    with strategy.scope():
        model = keras_hub_model(settings)

    def replica_step(inputs, targets):
        with tf.GradientTape() as tape:
            parts = zip(targets, model(inputs, training=True), strict=True)
            losses = [
                keras.losses.sparse_categorical_crossentropy(*part, from_logits=True)
                for part in parts
            ]
            loss = tf.reduce_mean(losses)
        model.optimizer.apply(
            tape.gradient(loss, model.trainable_variables), model.trainable_variables
        )
        return loss

    @tf.function(reduce_retracing=True)
    def replicated_step(inputs, targets):
        return strategy.reduce(
            "mean", strategy.run(replica_step, args=(inputs, targets)), axis=None
        )

    rank, size = settings["rank"], settings["num_ranks"]

    def step(batch: Batch) -> object:
        share = {name: values[rank::size] for name, values in batch.items()}
        inputs, targets = keras_hub_inputs(share)
        converted = {name: tf.constant(values) for name, values in inputs.items()}
        return replicated_step(converted, [tf.constant(values) for values in targets]).numpy()

    return step


# The file of batches: padded to --max_seq_length, or grouped by length and padded to the longest
# row.
RIVALS: dict[str, tuple[str, Callable[[dict[str, Any]], Step]]] = {
    "torch_example": (
        "padded",
        lambda settings: torch_step(settings, bf16=False, is_compiled=False),
    ),
    "torch_grouped": (
        "grouped",
        lambda settings: torch_step(settings, bf16=True, is_compiled=False),
    ),
    "torch_grouped_compiled": (
        "grouped",
        lambda settings: torch_step(settings, bf16=True, is_compiled=True),
    ),
    "keras_hub": ("padded", keras_hub_step),
    "mirrored": ("padded", mirrored_step),
}


def main() -> None:
    settings_file, report_file = sys.argv[1:]
    settings = json.loads(Path(settings_file).read_text())
    name = settings["name"]
    if name == "mirrored" and "TF_CONFIG" not in os.environ:
        sys.exit(start_ranks(settings["num_ranks"], settings["num_threads"]))
    if name == "mirrored":
        settings["rank"] = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    batches, make_step = RIVALS[name]
    step, seconds = make_step(settings), []
    arrays = np.load(Path(settings["folder"], f"{batches}.npz"))
    for number in range(len(arrays) // len(NAMES)):
        batch = {name: arrays[f"{number}/{name}"] for name in NAMES}
        start_s = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - start_s)
    if not settings.get("rank"):
        Path(report_file).write_text(json.dumps(seconds[settings["num_warmup"] :]))


def start_ranks(number: int, num_threads: int) -> int:
    """Runs this program as `number` workers of a TensorFlow cluster, which share the threads. If
    one fails, the others are killed, because they would wait for it. Returns the highest exit
    status."""
    with contextlib.ExitStack() as sockets:
        listeners = [sockets.enter_context(socket.socket()) for _ in range(number)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        workers = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    ranks = []
    for index in range(number):
        cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        variables = {
            "TF_CONFIG": json.dumps(cluster),
            "TF_NUM_INTRAOP_THREADS": str(max(1, num_threads // number)),
        }
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=os.environ | variables))
    while any(rank.poll() is None for rank in ranks) and not any(rank.returncode for rank in ranks):
        time.sleep(0.1)
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    main()
