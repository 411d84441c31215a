"""bert-export: a trained model as a TensorFlow SavedModel.

    bert-export squad_output exported

A SavedModel takes token ids and needs only TensorFlow; its tokenizer is beside it. A run's `model/`
itself is a folder that transformers loads.

Shapes, as suffixes: B rows, T tokens of the longest row, L labels, H hidden size. Ids are int32,
scores float32.
"""

import importlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert import weights
from bert.heads import FEATURES, POOLER, Head, head_in
from bert.model import Bert
from bert.text.tokenizer import Tokenizer
from ringbase.errors import InputError
from ringbase.files import replace_folder, write_json
from tasks.export.__main__ import ExportConfig
from tasks.features.task import FeaturesTask
from tasks.programs import COMMANDS
from tasks.runs import flags
from tasks.runs.execute.load import about_arguments, find_model, load_model
from tasks.runs.remote import is_remote
from tasks.runs.resolve.spec import Start
from tasks.runs.task import Task

ASSETS = "assets.extra"  # the folder of a SavedModel that TensorFlow leaves to its users
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
POOLER_TENSORS = (f"{POOLER}/kernel", f"{POOLER}/bias")


def task_of_model(head: Head, start: Start) -> Task:
    """The task that names the outputs of a model with this head, by `Task.outputs`."""
    for command in COMMANDS:
        of_model = importlib.import_module(f"{command.package}.task").of_model
        if task := of_model(head, start):
            return task
    return FeaturesTask(start.bert_config.num_positions)


def run(config: ExportConfig) -> None:
    with flags.reporting("bert-export"):
        lines = export(config.folder, config.out, None, config.model_revision)
    flags.stop("\n".join(lines), 0)


def export(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    task_of: Callable[[Mapping], Task] | None = None,
    model_revision: str | None = None,
) -> list[str]:
    """Writes a trained model as a SavedModel into the new folder `out`, and returns its signature
    as lines. `task_of`: of a model with a task of one's own, as for `TaskPredictor`. Raises
    InputError: there is no model in `folder`, or `out` exists.

    >>> for line in export("reviews", "exported"):
    ...     print(line)
    exported: a SavedModel, its tokenizer in assets.extra
      input_ids, token_type_ids, attention_mask -> label, logits, probabilities
    """
    name = os.fspath(folder)
    path = Path(out).expanduser()
    if is_remote(os.fspath(out)):
        raise InputError(f"OUT {out} must be a local folder: upload it when it is written")
    if path.exists():
        raise InputError(f"OUT {path} exists already: give a new folder")
    with about_arguments(name):
        start = find_model(name, model_revision)
        assert start.weights is not None
        config = start.bert_config
        tensors = weights.read(start.weights, config.architecture)
        if task_of:
            task = task_of({"max_seq_length": config.num_positions, **start.saved})
        else:
            task = task_of_model(head_in(tensors, config), start)
        model = load_model(start, task.head)
    pooler = [tensors[name] for name in POOLER_TENSORS if name in tensors]
    return save_model(Exported(model, task, pooler), start.words, path)


class Exported(tf.Module):
    """A model as the function of a SavedModel, which needs nothing of ours. `pooler` holds the
    kernel [H, H] and the bias [H] of an encoder that has one."""

    def __init__(self, model: Bert, task: Task, pooler: Sequence[np.ndarray]):
        super().__init__(name="bert")
        # Keras' own parts of the model would be saved too
        object.__setattr__(self, "_model", model)
        object.__setattr__(self, "task", task)
        self.num_positions = model.config.num_positions
        # keeps them in the file
        self.weights = [variable.value for variable in model.trainable_variables]
        self.pooler = [tf.Variable(value) for value in pooler if model.head is FEATURES]
        outputs = tf.function(self.outputs, autograph=False)
        specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in INPUTS}
        self.function = outputs.get_concrete_function(**specs)

    def outputs(
        self, input_ids: tf.Tensor, token_type_ids: tf.Tensor, attention_mask: tf.Tensor
    ) -> dict:
        """What the model says about rows [B, T]; `attention_mask` is 0 for padding, else 1."""
        most = self.num_positions
        num_rows, length = tf.unstack(tf.shape(input_ids))
        message = f"a row has more tokens than the model's {most} positions"
        fits = tf.debugging.assert_less_equal(length, most, message)
        with tf.control_dependencies([fits]):
            position_ids = tf.tile(tf.range(length), [num_rows])
        batch = {"position_ids": position_ids}
        for name, values_BT in zip(
            INPUTS, (input_ids, token_type_ids, attention_mask), strict=True
        ):
            batch[name] = tf.reshape(values_BT, [-1])
        batch["groups"] = (tf.stack([num_rows, length]),)
        batch["first_tokens"] = tf.range(num_rows) * length
        scores = self._model(batch)
        if self._model.head.per == "token":
            scores = tf.reshape(scores, [num_rows, length, scores.shape[-1]])
        outputs = self.task.outputs(scores)
        if self.pooler:
            kernel, bias = self.pooler
            first_BH = scores[:, 0]
            outputs["pooled_output"] = tf.math.tanh(tf.matmul(first_BH, kernel) + bias)
        return outputs


def save_model(exported: Exported, tokenizer: Tokenizer, folder: Path) -> list[str]:
    """Writes the SavedModel, with its tokenizer and the labels' names. Returns its signature as
    lines."""
    with tempfile.TemporaryDirectory() as assets:
        labels = exported.task.labels
        if labels:
            path = Path(assets) / "labels.txt"
            path.write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
            exported.labels_file = tf.saved_model.Asset(str(path))

        def fill(new):
            signatures = dict.fromkeys(("serving_default", "ids"), exported.function)
            tf.saved_model.save(exported, str(new), signatures)
            tokenizer.save(new / ASSETS, num_positions=exported.num_positions)
            for name, value in exported.task.assets.items():
                write_json(new / ASSETS / name, value)

        replace_folder(folder, fill)
    outputs = ", ".join(sorted(exported.function.structured_outputs))
    return [
        f"{folder}: a SavedModel, its tokenizer in {ASSETS}",
        f"  {', '.join(INPUTS)} -> {outputs}",
    ]
