"""BERT and its heads (Devlin et al. 2018, google-research/bert `modeling.py`), whole.

Shapes, as suffixes: R rows of the hidden state, one for each token; B rows of T places in
attention; H hidden size, N attention heads, D = H / N, I intermediate size, V vocabulary, L labels,
M gathered tokens. bert/batch.py describes the input and its padding.

Every variable has its name in Google's checkpoints, with `.` for `/` because Keras refuses slashes.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from bert import ops, ops_cpu, ops_gpu
from bert.batch import Batch, is_fixed
from bert.configuration import BertConfig
from bert.ops import ACTIVATIONS, Dropout
from bert.weights import shapes

COMPILED_WIDTH = 256  # the smallest hidden size for which compiled operations are faster
ENCODER = ("bert/embeddings", "bert/encoder/")
# The rows of the last hidden state that a head reads, as arrays of the batch; the others read all
# rows.
READ_BY = {"classifier": ("first_tokens",), "pretraining": ("masked_tokens", "first_tokens")}
MASKED_SCORE = -10000.0  # google-research/bert modeling.py, attention_layer

# Google's names, or what follows the name of a layer -> values of variables
Tensors = dict[str, Any]


# -- between the rows of the hidden state and the rows of attention --------------------------------


def in_places(x_RW: tf.Tensor, batch: Batch) -> list[tf.Tensor]:
    """[R, W] -> for each group [B, T, W]. A place without a token gets the numbers of a row without
    one.

    Gradients of rows without a token are 0: nothing may depend on such rows but other such rows.
    """
    if "rows" not in batch:
        return split_groups(x_RW, batch)
    return tf.custom_gradient(
        lambda x: (_taken(x, batch), lambda *gradients: _put(gradients, batch))
    )(x_RW)


def from_places(parts: Sequence[tf.Tensor], batch: Batch) -> tf.Tensor:
    """For each group [B, T, W] -> [R, W]; rows without a token get zeros. The reverse of
    `in_places`."""
    if "rows" not in batch:
        return tf.concat([tf.reshape(part, [-1, part.shape[-1]]) for part in parts], 0)
    return tf.custom_gradient(
        lambda *p: (_put(p, batch), lambda gradient: _taken(gradient, batch))
    )(*parts)


def split_groups(x: tf.Tensor, batch: Batch) -> list[tf.Tensor]:
    """[P, …] -> for each group [B, T, …]."""
    groups = [(group[0], group[1]) for group in batch["groups"]]
    parts = tf.split(x, [rows * length for rows, length in groups]) if len(groups) > 1 else [x]
    return [
        tf.reshape(part, [*group, *x.shape[1:]]) for part, group in zip(parts, groups, strict=True)
    ]


def _taken(x_RW: tf.Tensor, batch: Batch) -> list[tf.Tensor]:
    return [tf.gather(x_RW, rows_BT) for rows_BT in split_groups(batch["rows"], batch)]


def _put(parts: Sequence[tf.Tensor], batch: Batch) -> tf.Tensor:
    width = parts[0].shape[-1]
    zeros = tf.zeros([1, width], parts[0].dtype)
    return tf.gather(
        tf.concat([*(tf.reshape(part, [-1, width]) for part in parts), zeros], 0), batch["places"]
    )


def rows_of(x_RW: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """The rows with these numbers. The gradient is dense, as recompute_grad needs it."""
    return tf.gather(tf.reshape(x_RW, tf.shape(x_RW)), rows)


# -- the encoder -----------------------------------------------------------------------------------


def product(x: tf.Tensor, tensors: Tensors, scope: str) -> tuple[tf.Tensor, tf.Tensor]:
    """x W of a linear layer, and its bias, which the next operation adds in its own pass over
    memory."""
    kernel, bias = (tf.cast(tensors[f"{scope}/{name}"], x.dtype) for name in ("kernel", "bias"))
    return tf.matmul(x, kernel), bias


def normalized(x: tf.Tensor, tensors: Tensors, scope: str, epsilon: float) -> tf.Tensor:
    """Layer normalisation in float32."""
    return ops.normalized(ops.wide(x), tensors[f"{scope}/gamma"], tensors[f"{scope}/beta"], epsilon)


class Pass:
    """One pass through the model: what its layers share, and what they compute.

    `dtype` is that of the hidden state and the matrix products, `ops` the module with the
    operations between the products: bert.ops, ops_cpu or ops_gpu. `dropout_key`, int32 [], is that
    of `Dropout`; None without dropout.
    """

    def __init__(
        self,
        config: BertConfig,
        batch: Batch,
        dtype: str,
        ops: ModuleType,
        dropout_key: tf.Tensor | None,
    ):
        self.config, self.batch, self.dtype, self.ops, self.dropout_key = (
            config,
            batch,
            dtype,
            ops,
            dropout_key,
        )
        self.dropout = partial(Dropout, key=dropout_key, words=ops.random_words)
        # added to the scores
        masked = (1.0 - tf.cast(batch["attention_mask"], tf.float32)) * MASKED_SCORE
        self.masks = [
            mask_BT[:, None, None] for mask_BT in split_groups(tf.cast(masked, dtype), batch)
        ]

    def embedded(self, tensors: Tensors) -> tf.Tensor:
        """Word, token type and position embeddings, summed, normalised in float32, and projected ->
        [R, H]."""
        ids = {"word": self.batch["input_ids"], "token_type": self.batch["token_type_ids"]}
        ids["position"] = self.batch["position_ids"] + self.config.first_position
        if self.config.architecture.ignores_token_types:
            ids["token_type"] = tf.zeros_like(ids["token_type"])
        elif not self.config.num_token_types:
            del ids["token_type"]
        rows = [
            tf.gather(tensors[f"bert/embeddings/{name}_embeddings"], rows)
            for name, rows in ids.items()
        ]
        sum_RE = normalized(
            tf.add_n(rows), tensors, "bert/embeddings/LayerNorm", self.config.layer_norm_eps
        )
        sum_RE = Dropout(self.config.hidden_dropout_prob, self.dropout_key, 0)(
            tf.cast(sum_RE, self.dtype)
        )
        projection = "bert/embeddings_project"
        return (
            ops.biased(*product(sum_RE, tensors, projection))
            if f"{projection}/kernel" in tensors
            else sum_RE
        )

    def layer(
        self,
        hidden_RH: tf.Tensor,
        tensors: Tensors,
        place: int | tf.Tensor,
        rows: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Attention and feed-forward, each with dropout, residual and post-normalisation. `place`
        is that of the first of the layer's three dropouts. Returns all rows, or these, int32
        [S]."""
        context_RH, fast = self.attention(hidden_RH, tensors, place), self.ops
        if rows is not None:
            hidden_RH, context_RH = rows_of(hidden_RH, rows), rows_of(context_RH, rows)
            # few rows, whose number changes: nothing to compile for
            fast = fast if is_fixed(self.batch) else ops

        branch = product(context_RH, tensors, "attention/output/dense")
        hidden_RH = self.residual(
            fast, hidden_RH, branch, tensors, "attention/output/LayerNorm", place + 1
        )
        expanded_RI = product(hidden_RH, tensors, "intermediate/dense")
        activated_RI = fast.activated(*expanded_RI, ACTIVATIONS[self.config.hidden_act])
        branch = product(activated_RI, tensors, "output/dense")
        return self.residual(fast, hidden_RH, branch, tensors, "output/LayerNorm", place + 2)

    def residual(
        self, fast, hidden_RH, branch, tensors: Tensors, norm: str, place: int | tf.Tensor
    ) -> tf.Tensor:
        """`fast` is the module of operations, `branch` a product and its bias."""
        weights = tensors[f"{norm}/gamma"], tensors[f"{norm}/beta"], self.config.layer_norm_eps
        dropout = self.dropout(self.config.hidden_dropout_prob, place=place)
        return fast.residual(hidden_RH, branch, weights, dropout)

    def attention(
        self, hidden_RH: tf.Tensor, tensors: Tensors, place: int | tf.Tensor
    ) -> tf.Tensor:
        """Multi-head attention within each example (Vaswani et al. 2017, section 3.2) -> the
        context [R, H]."""
        heads, hidden = self.config.num_attention_heads, self.config.hidden_size
        names = [f"attention/self/{part}" for part in ("query", "key", "value")]
        kernel = tf.concat([tf.cast(tensors[f"{name}/kernel"], self.dtype) for name in names], 1)
        bias = tf.concat([tf.cast(tensors[f"{name}/bias"], self.dtype) for name in names], 0)
        joined_R3H = self.ops.biased(tf.matmul(hidden_RH, kernel), bias)
        dropout = self.dropout(self.config.attention_probs_dropout_prob, place=place)
        shapes = [(group[0], heads, group[1], group[1]) for group in self.batch["groups"]]
        # Not for each group: fewer calls of the generator. bert/ops_gpu.py computes its own.
        has_draws = dropout.is_on and dropout.words is not None
        draws_BNTT = dropout.draws(*shapes) if has_draws else [None] * len(shapes)
        parts = in_places(joined_R3H, self.batch)
        contexts_BTH: list[tf.Tensor] = []
        for part, (rows, _, length, _), mask, draws in zip(
            parts, shapes, self.masks, draws_BNTT, strict=True
        ):
            split = tf.reshape(part, [rows, length, 3, heads, hidden // heads])
            query_key_value = tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))  # each [B, N, T, D]
            of_group = replace(dropout, group=len(contexts_BTH))
            longest = self.batch.get("longest")
            context_BNTD = self.ops.attention(query_key_value, mask, draws, of_group, longest)
            contexts_BTH.append(
                tf.reshape(tf.transpose(context_BNTD, [0, 2, 1, 3]), [rows, length, hidden])
            )
        return from_places(contexts_BTH, self.batch) * tf.cast(dropout.scale, self.dtype)


# -- the model -------------------------------------------------------------------------------------


class Bert(keras.Model):
    """BERT with one of the published heads: "span", "classifier", "tagger", "pretraining", or none
    ("features").

    The Keras dtype policy at construction decides the precision; variables, LayerNorm, softmax and
    scores are float32. `seed` decides the initial values, with `is_loaded` those of the head: the
    encoder's are zeros until a checkpoint is loaded. `model(batch, dropout_key=key)` gives the
    scores of bert/batch.py's batches; without a key, int32 [2], there is no dropout.
    """

    def __init__(
        self, config: BertConfig, head: str = "features", seed: int = 0, is_loaded: bool = False
    ):
        super().__init__(name="bert_" + head)
        self.config, self.head_name = config, head
        # whether the backward pass recomputes the activations within layers
        self.recomputes = False
        # whether training graphs have a copy of the traced layer for each of its calls
        self.copies_layers = True
        # whether XLA may compile parts of predictions, for each size of a batch
        self.compiles_predictions = True
        shape_of = shapes(config, head)
        drawn = [name for name in shape_of if not name.endswith(("gamma", "beta", "bias"))]
        # the last ones take the last seeds
        drawn.sort(key=lambda name: name.endswith("output_weights"))
        seeds = {name: number for number, name in enumerate(drawn, seed * 100_003 + 1)}
        for name, shape in shape_of.items():
            initializer: Any = "ones" if name.endswith("gamma") else "zeros"
            if name in seeds and not (is_loaded and name.startswith(ENCODER)):
                initializer = keras.initializers.TruncatedNormal(
                    stddev=config.initializer_range, seed=seeds[name]
                )
            self.add_weight(shape, initializer, name=name.replace("/", "."))
        self.built = True

    def named_tensors(self) -> dict[str, keras.Variable]:
        """Google's tensor name -> variable."""
        return {variable.name.replace(".", "/"): variable for variable in self.trainable_variables}

    def __call__(
        self, batch: Batch, dropout_key: tf.Tensor | None = None, tensors: Tensors | None = None
    ) -> Any:
        """The head's scores, float32, or the last hidden state [R, H].

        span: start and end of each token [R, 2] (google-research/bert `run_squad.py`). classifier:
        labels [B, L] (`run_classifier.py`). tagger: labels of each token [R, L]. pretraining:
        {"mlm": [M, V], "nsp": [B, 2]} for the batch's `masked_tokens`, int32 [M], rows of the
        hidden state (`run_pretraining.py`). `tensors` are values in place of those of the
        variables.
        """
        if dropout_key is not None:
            # Unless XLA compiles the whole pass, the generators take seeds from the host, which
            # would wait at every place of the model for a number that a GPU has drawn.
            with contextlib.nullcontext() if is_fixed(batch) else tf.device("CPU:0"):
                dropout_key = tf.random.stateless_uniform([], dropout_key, None, None, tf.int32)
        tensors, read = self._values() | (tensors or {}), READ_BY.get(self.head_name)
        rows = None if read is None else tf.concat([batch[name] for name in read], 0)
        hidden = self._states(batch, tensors, dropout_key, rows)[-1]
        if self.head_name == "features":
            return hidden
        if self.head_name == "span":
            return _scores(hidden, tensors, "cls/squad/")
        architecture, rate = self.config.architecture, self.config.classifier_dropout
        rate = self.config.hidden_dropout_prob if rate is None else rate
        place = 1 + 3 * self.config.num_hidden_layers
        if self.head_name == "tagger":
            return _scores(Dropout(rate, dropout_key, place)(hidden), tensors, "")
        num_masked = tf.shape(rows)[0] - tf.shape(batch["first_tokens"])[0]  # 0 for a classifier
        masked_MH, first_BH = hidden[:num_masked], hidden[num_masked:]
        if architecture.drops_first:
            first_BH = Dropout(rate, dropout_key, place + 1)(first_BH)
        pooled_BH = ACTIVATIONS[architecture.pooled](
            ops.biased(*product(first_BH, tensors, "bert/pooler/dense"))
        )
        if self.head_name == "classifier":
            return _scores(Dropout(rate, dropout_key, place)(pooled_BH), tensors, "")
        scope, epsilon = "cls/predictions/transform", self.config.layer_norm_eps
        masked_MH = product(masked_MH, tensors, f"{scope}/dense")
        masked_MH = ops.activated(*masked_MH, ACTIVATIONS[self.config.hidden_act])
        masked_MH = tf.cast(
            normalized(masked_MH, tensors, f"{scope}/LayerNorm", epsilon), hidden.dtype
        )
        words_VH = tf.cast(tensors["bert/embeddings/word_embeddings"], hidden.dtype)
        scores_MV = tf.cast(tf.matmul(masked_MH, words_VH, transpose_b=True), tf.float32)
        nsp_B2 = _scores(pooled_BH, tensors, "cls/seq_relationship/")
        return {"mlm": scores_MV + tensors["cls/predictions/output_bias"], "nsp": nsp_B2}

    def hidden_states(self, batch: Batch) -> list[tf.Tensor]:
        """The embeddings and every layer's output, each [R, H] in the compute dtype, without
        dropout."""
        return self._states(batch, self._values(), None)

    def _values(self) -> Tensors:
        return {name: variable.value for name, variable in self.named_tensors().items()}

    def _ops(self, batch: Batch, is_training: bool) -> ModuleType:
        """The operations that are fastest for one pass."""
        if is_fixed(batch):
            return ops_gpu if is_training else ops
        # In float32 oneDNN fuses bias and GELU into its products. Without dropout that is the
        # fastest.
        pays = is_training or (self.compiles_predictions and self.compute_dtype == "bfloat16")
        return (
            ops_cpu if pays and ops.on_cpu() and self.config.hidden_size >= COMPILED_WIDTH else ops
        )

    def _states(
        self, batch: Batch, tensors: Tensors, key: tf.Tensor | None, rows: tf.Tensor | None = None
    ) -> list[tf.Tensor]:
        """The embeddings and every layer's output; of the last one only these rows, if any are
        named."""
        one_pass = Pass(
            self.config, batch, self.compute_dtype, self._ops(batch, key is not None), key
        )
        states, layer = [one_pass.embedded(tensors)], one_pass.layer
        recomputes = self.recomputes and key is not None
        if not (recomputes or is_fixed(batch) or tf.executing_eagerly()):
            # TensorFlow traces the layer and its gradient once for all layers. Training graphs then
            # get a copy for each call, and are optimized as a whole; or the calls share their code,
            # which starts faster.
            is_copied = self.copies_layers or key is None
            attributes = None if is_copied else {"_noinline": True}
            layer = tf.function(one_pass.layer, autograph=False, experimental_attributes=attributes)
        last = self.config.num_hidden_layers - 1
        for number in range(last + 1):
            place, needed = tf.constant(1 + 3 * number), rows if number == last else None
            scope, call = f"bert/encoder/layer_{number}/", partial(layer, place=place, rows=needed)
            own = {
                name.removeprefix(scope): value
                for name, value in tensors.items()
                if name.startswith(scope)
            }
            own = tf.nest.map_structure(tf.convert_to_tensor, own)
            states.append((tf.recompute_grad(call) if recomputes else call)(states[-1], own))
        return states


def _scores(x: tf.Tensor, tensors: Tensors, scope: str) -> tf.Tensor:
    """float32 [rows, scores]."""
    weights, bias = tensors[f"{scope}output_weights"], tensors[f"{scope}output_bias"]
    return tf.matmul(tf.cast(x, tf.float32), weights, transpose_b=True) + bias
