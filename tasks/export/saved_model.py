"""A trained model as a TensorFlow SavedModel, which needs nothing of ours.

Shapes, as suffixes: B texts, T tokens of the longest row, L labels, H hidden size. Ids are int32, scores float32.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from tasks.classifier.labels import label_names
from tasks.export.rows import IdRows, Limits, pair_rows, question_rows, text_rows
from tasks.export.text_graph import TextGraph
from tasks.predictors.loading import Trained

TEXTS = tf.TensorSpec([None], tf.string)
IDS = tf.TensorSpec([None, None], tf.int32)
LABELS_FILE = "labels.txt"

Tensors = dict[str, tf.Tensor]


class Exported(tf.Module):
    """A model, and perhaps its tokenizer, as functions of a SavedModel.

    Args:
      kind: "span", "classifier" or "encoder".
      pooler: kernel [H, H] and bias [H] of an encoder that has one.
      graph: the tokenizer; None if texts cannot be taken.
    """

    def __init__(
        self,
        trained: Trained,
        kind: str,
        limits: Limits,
        graph: TextGraph | None,
        pooler: Mapping[str, np.ndarray] | None = None,
    ):
        super().__init__(name="bert")
        self._kind, self._limits = kind, limits
        object.__setattr__(self, "_model", trained.model)  # Keras' own parts of it would be saved too
        self._tokenizer, self._config = trained.tokenizer, trained.config
        self.graph = graph
        self.weights = [variable.value for variable in trained.model.trainable_variables]  # keeps them in the file
        self.pooler = {} if pooler is None else {name: tf.Variable(value) for name, value in pooler.items()}
        is_regression = self._config.problem_type == "regression" or self._config.num_labels == 1
        self.labels = label_names(self._config) if kind == "classifier" and not is_regression else ()
        self.functions = self._functions()

    def save(self, folder: Path, labels_folder: Path) -> None:
        """Writes the SavedModel, with the labels' names as an asset."""
        if self.labels:
            path = labels_folder / LABELS_FILE
            path.write_text("".join(f"{label}\n" for label in self.labels), encoding="utf-8")
            self.labels_file = tf.saved_model.Asset(str(path))
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(self, str(folder), self.functions, options)

    def _functions(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The functions by their names; "serving_default" takes texts if there is a tokenizer, else ids."""

        def of_ids(input_ids: tf.Tensor, token_type_ids: tf.Tensor, attention_mask: tf.Tensor) -> Tensors:
            return self._outputs(IdRows(input_ids, token_type_ids, attention_mask))

        ids = compiled(of_ids, input_ids=IDS, token_type_ids=IDS, attention_mask=IDS)
        if self.graph is None:
            return {"serving_default": ids, "ids": ids}
        graph, tokenizer, limits = self.graph, self._tokenizer, self._limits

        def of_texts(text: tf.Tensor) -> Tensors:
            return self._outputs(text_rows(graph.pieces(text).ids, tokenizer, limits))

        def of_pairs(text: tf.Tensor, text_pair: tf.Tensor) -> Tensors:
            first, second = graph.pieces(text).ids, graph.pieces(text_pair).ids
            return self._outputs(pair_rows(first, second, tokenizer, limits))

        def of_questions(question: tf.Tensor, context: tf.Tensor) -> Tensors:
            pieces = graph.pieces(context)
            rows = question_rows(graph.pieces(question).ids, pieces, tokenizer, limits)
            outputs = self._outputs(rows.ids)
            scores_BT = outputs["start_logits"], outputs["end_logits"]
            return outputs | rows.answers(context, *scores_BT, limits) | {"input_ids": rows.ids.input_ids}

        if self._kind == "span":
            return {"serving_default": compiled(of_questions, question=TEXTS, context=TEXTS), "ids": ids}
        texts, pairs = compiled(of_texts, text=TEXTS), compiled(of_pairs, text=TEXTS, text_pair=TEXTS)
        return {"serving_default": texts, "pairs": pairs, "ids": ids}

    def _outputs(self, rows: IdRows) -> Tensors:
        """What the model says about rows of ids."""
        most = int(self._config.max_position_embeddings)
        batch, length = tf.unstack(tf.shape(rows.input_ids))
        message = f"a row has more tokens than the model's {most} positions"
        with tf.control_dependencies([tf.debugging.assert_less_equal(length, most, message)]):
            position_ids = tf.tile(tf.range(length)[None], [batch, 1])
        inputs = {
            "input_ids": rows.input_ids,
            "token_type_ids": rows.token_type_ids,
            "position_ids": position_ids,
            "example_ids": rows.attention_mask,
            "first_tokens": tf.range(batch) * length,
        }
        if self._kind == "span":
            start_BT, end_BT = tf.unstack(self._model(inputs), axis=2)
            return {"start_logits": start_BT, "end_logits": end_BT}
        if self._kind == "classifier":
            return self._of_labels(self._model(inputs))
        hidden_BTH = tf.reshape(self._model(inputs), [batch, length, self._config.hidden_size])
        outputs = {"sequence_output": hidden_BTH}
        if self.pooler:
            pooled_BH = tf.matmul(hidden_BTH[:, 0], self.pooler["kernel"]) + self.pooler["bias"]
            outputs["pooled_output"] = tf.math.tanh(pooled_BH)
        return outputs

    def _of_labels(self, scores_BL: tf.Tensor) -> Tensors:
        if not self.labels:
            return {"value": scores_BL[:, 0]}
        best_B = tf.argmax(scores_BL, 1, output_type=tf.int32)
        return {
            "probabilities": tf.nn.softmax(scores_BL),
            "logits": scores_BL,
            "label": tf.gather(tf.constant(self.labels), best_B),
        }


def compiled(function: Callable[..., Tensors], **inputs: tf.TensorSpec) -> tf.types.experimental.ConcreteFunction:
    """A traced function whose inputs have these names."""
    named = {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in inputs.items()}
    return tf.function(function, autograph=False).get_concrete_function(**named)
