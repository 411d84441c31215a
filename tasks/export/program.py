"""bert-export: a trained model as a TensorFlow SavedModel.

    bert-export squad_output exported

A SavedModel takes token ids and needs only TensorFlow; its tokenizer is beside it. A run's `model/`
itself is a folder that transformers loads.

Shapes, as suffixes: B rows, T tokens of the longest row, L labels, H hidden size. Ids are int32,
scores float32.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert import weights
from bert.heads import CLASSIFIER, FEATURES, POOLER, SPAN, TAGGER, head_in
from bert.model import Bert
from bert.text.tokenizer import Tokenizer
from ringbase.errors import InputError
from ringbase.files import replace_folder
from tasks import flags
from tasks.classifier.task import CLASSIFICATION, labels_of
from tasks.export.__main__ import ExportConfig
from tasks.predictors.loading import about_arguments, find_model, load

ASSETS = "assets.extra"  # the folder of a SavedModel that TensorFlow leaves to its users
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
POOLER_TENSORS = (f"{POOLER}/kernel", f"{POOLER}/bias")

Tensors = Mapping[str, np.ndarray]


def run(config: ExportConfig) -> None:
    folder = Path(config.out).expanduser()
    with flags.reporting("bert-export"):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"OUT {folder} exists already: give a new folder")
        with about_arguments(config.folder):
            start = find_model(config.folder, config.model_revision)
            assert start.weights is not None
            there = weights.read(start.weights, start.bert_config.architecture)
            model = load(start, head_in(there, start.bert_config))
        pooler = {name: there[name] for name in POOLER_TENSORS if name in there}
        lines = save_model(Exported(model, pooler), start.words, folder)
    flags.stop("\n".join(lines), 0)


class Exported(tf.Module):
    """A model as the function of a SavedModel, which needs nothing of ours. `pooler` holds the
    kernel [H, H] and the bias [H] of an encoder that has one."""

    def __init__(self, model: Bert, pooler: Tensors):
        super().__init__(name="bert")
        self._head, self._config = model.head, model.config
        object.__setattr__(self, "_model", model)  # Keras' own parts of it would be saved too
        # keeps them in the file
        self.weights = [variable.value for variable in model.trainable_variables]
        self.pooler = [
            tf.Variable(pooler[name])
            for name in POOLER_TENSORS
            if self._head is FEATURES and name in pooler
        ]
        self.labels = (
            labels_of(self._config) if self._head in (CLASSIFIER, TAGGER) else None
        ) or ()
        specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in INPUTS}
        self.function = tf.function(self.outputs, autograph=False).get_concrete_function(**specs)

    def outputs(
        self, input_ids: tf.Tensor, token_type_ids: tf.Tensor, attention_mask: tf.Tensor
    ) -> dict:
        """What the model says about rows [B, T]; `attention_mask` is 0 for padding, else 1."""
        most = self._config.num_positions
        batch, length = tf.unstack(tf.shape(input_ids))
        message = f"a row has more tokens than the model's {most} positions"
        with tf.control_dependencies([tf.debugging.assert_less_equal(length, most, message)]):
            position_ids = tf.tile(tf.range(length), [batch])
        given = zip(INPUTS, (input_ids, token_type_ids, attention_mask), strict=True)
        scores = self._model(
            {
                **{name: tf.reshape(values_BT, [-1]) for name, values_BT in given},
                "position_ids": position_ids,
                "groups": (tf.stack([batch, length]),),
                "first_tokens": tf.range(batch) * length,
            }
        )
        if self._head is SPAN:
            start_BT, end_BT = tf.unstack(tf.reshape(scores, [batch, length, 2]), axis=2)
            return {"start_logits": start_BT, "end_logits": end_BT}
        if self._head is FEATURES:
            outputs = {
                "sequence_output": tf.reshape(scores, [batch, length, self._config.hidden_size])
            }
            if self.pooler:
                kernel, bias = self.pooler
                first_BH = outputs["sequence_output"][:, 0]
                outputs["pooled_output"] = tf.math.tanh(tf.matmul(first_BH, kernel) + bias)
            return outputs
        if not self.labels:
            return {"value": scores[:, 0]}
        if self._config.problem_type == CLASSIFICATION[1]:
            return {"probabilities": tf.math.sigmoid(scores), "logits": scores}
        if self._head is TAGGER:  # for each token
            scores = tf.reshape(scores, [batch, length, len(self.labels)])
        label = tf.gather(tf.constant(self.labels), tf.argmax(scores, -1))
        return {"probabilities": tf.nn.softmax(scores), "logits": scores, "label": label}


def save_model(exported: Exported, tokenizer: Tokenizer, folder: Path) -> list[str]:
    """Writes the SavedModel, with its tokenizer and the labels' names. Returns its signature as
    lines."""
    with tempfile.TemporaryDirectory() as assets:
        if exported.labels:
            path = Path(assets) / "labels.txt"
            path.write_text("".join(f"{label}\n" for label in exported.labels), encoding="utf-8")
            exported.labels_file = tf.saved_model.Asset(str(path))

        def fill(new: Path) -> None:
            signatures = dict.fromkeys(("serving_default", "ids"), exported.function)
            tf.saved_model.save(exported, str(new), signatures)
            tokenizer.save(new / ASSETS)

        replace_folder(folder, fill)
    outputs = ", ".join(sorted(exported.function.structured_outputs))
    return [
        f"{folder}: a SavedModel, its tokenizer in {ASSETS}",
        f"  {', '.join(INPUTS)} -> {outputs}",
    ]
