"""BERT's encoder (Devlin et al. 2018, google-research/bert `modeling.py`), and the model: encoder
and head.

Shapes, as suffixes: R rows of the hidden state, one for each token; B rows of T places in
attention; H hidden size, N attention heads, D = H / N, I intermediate size, V vocabulary, L labels,
M gathered tokens. bert/batch.py describes the input and its padding.

Every variable has its name in Google's checkpoints, with `.` for `/` because Keras refuses slashes.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from bert import ops, ops_cpu, ops_gpu
from bert.batch import Batch, is_fixed
from bert.configuration import BertConfig
from bert.heads import FEATURES, Head
from bert.layers import Shapes, Tensors, dense_shapes, norm_shapes, normalized, product
from bert.ops import ACTIVATIONS, Dropout

COMPILED_WIDTH = 256  # the smallest hidden size for which compiled operations are faster
ENCODER = ("bert/embeddings", "bert/encoder/")
MASKED_SCORE = -10000.0  # google-research/bert modeling.py, attention_layer

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


def encoder_shapes(config: BertConfig) -> Shapes:
    """The tensors of the encoder. The order stays: checkpoints number the optimizer's moments by
    it."""
    hidden, inner = config.hidden_size, config.intermediate_size
    width = config.embedding_size or hidden
    tables = {
        "word": config.vocab_size,
        "token_type": config.num_token_types,
        "position": config.max_position_embeddings,
    }
    shapes: Shapes = {
        f"bert/embeddings/{name}_embeddings": (size, width) for name, size in tables.items() if size
    }
    shapes |= norm_shapes("bert/embeddings", width)
    if width != hidden:
        shapes |= dense_shapes("bert/embeddings_project", width, hidden)
    for layer in (f"bert/encoder/layer_{number}" for number in range(config.num_hidden_layers)):
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            shapes |= dense_shapes(f"{layer}/attention/{part}", hidden, hidden)
        shapes |= norm_shapes(f"{layer}/attention/output", hidden)
        shapes |= dense_shapes(f"{layer}/intermediate/dense", hidden, inner)
        shapes |= dense_shapes(f"{layer}/output/dense", inner, hidden)
        shapes |= norm_shapes(f"{layer}/output", hidden)
    return shapes


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

    def in_places(self, x_RW: tf.Tensor) -> list[tf.Tensor]:
        return in_places(x_RW, self.batch)

    def dropped(self, x: tf.Tensor, number: int) -> tf.Tensor:
        """x after the head's dropout of this number, behind those of the layers."""
        rate = self.config.classifier_dropout
        if rate is None:
            rate = self.config.hidden_dropout_prob
        return Dropout(rate, self.dropout_key, 1 + 3 * self.config.num_hidden_layers + number)(x)

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


@dataclass(frozen=True)
class Tracing:
    """How a pass becomes a graph."""

    recomputes: bool = False  # the backward pass computes the activations within layers again
    copies_layers: bool = True  # a training graph has a copy of the layer for each of its calls
    compiles: bool = True  # XLA may compile parts of predictions on CPUs, for each size of a batch


class Bert(keras.Model):
    """BERT's encoder with a head of bert/heads.py.

    The Keras dtype policy at construction decides the precision; variables, LayerNorm, softmax and
    scores are float32. The values are those of `initialize(seed)`, with seed None zeros, until
    weights are loaded. `model(batch, dropout_key=key)` gives the head's scores of bert/batch.py's
    batches; without a key, int32 [2], there is no dropout.
    """

    def __init__(self, config: BertConfig, head: Head = FEATURES, seed: int | None = 0):
        super().__init__(name="bert_" + head.name)
        self.config, self.head = config, head
        for name, shape in (encoder_shapes(config) | head.shapes(config)).items():
            self.add_weight(shape, "zeros", name=name.replace("/", "."))
        self.built = True
        if seed is not None:
            self.initialize(seed)

    def initialize(self, seed: int, is_loaded: bool = False) -> None:
        """Gives the variables their initial values; with `is_loaded` the encoder, whose weights
        will be loaded, gets none."""
        tensors = self.named_tensors()
        drawn = [name for name in tensors if not name.endswith(("gamma", "beta", "bias"))]
        drawn.sort(key=lambda name: name.endswith("output_weights"))  # these take the last seeds
        seeds = {name: number for number, name in enumerate(drawn, seed * 100_003 + 1)}
        for name, variable in tensors.items():
            initializer: Any = keras.initializers.Zeros()
            if name.endswith("gamma"):
                initializer = keras.initializers.Ones()
            elif name in seeds and not (is_loaded and name.startswith(ENCODER)):
                initializer = keras.initializers.TruncatedNormal(
                    stddev=self.config.initializer_range, seed=seeds[name]
                )
            variable.assign(initializer(variable.shape, variable.dtype))

    def named_tensors(self) -> dict[str, keras.Variable]:
        """Google's tensor name -> variable."""
        return {variable.name.replace(".", "/"): variable for variable in self.trainable_variables}

    def __call__(
        self,
        batch: Batch,
        dropout_key: tf.Tensor | None = None,
        tensors: Tensors | None = None,
        tracing: Tracing = Tracing(),
    ) -> Any:
        """The head's scores. `tensors` are values in place of those of the variables."""
        if dropout_key is not None:
            # Unless XLA compiles the whole pass, the generators take seeds from the host, which
            # would wait at every place of the model for a number that a GPU has drawn.
            with contextlib.nullcontext() if is_fixed(batch) else tf.device("CPU:0"):
                dropout_key = tf.random.stateless_uniform([], dropout_key, None, None, tf.int32)
        values = self._values() | (tensors or {})
        one_pass = self._pass(batch, dropout_key, tracing)
        reads = self.head.reads
        rows = None if reads is None else tf.concat([batch[name] for name in reads], 0)
        hidden = self._states(one_pass, values, tracing, rows)[-1]
        states = [hidden]
        if reads is not None and len(reads) > 1:
            states = tf.split(hidden, [tf.shape(batch[name])[0] for name in reads])
        return self.head.scores(states, values, one_pass)

    def hidden_states(self, batch: Batch, tracing: Tracing = Tracing()) -> list[tf.Tensor]:
        """The embeddings and every layer's output, each [R, H] in the compute dtype, without
        dropout."""
        return self._states(self._pass(batch, None, tracing), self._values(), tracing)

    def _values(self) -> Tensors:
        return {name: variable.value for name, variable in self.named_tensors().items()}

    def _pass(self, batch: Batch, key: tf.Tensor | None, tracing: Tracing) -> Pass:
        return Pass(self.config, batch, self.compute_dtype, self._ops(batch, key, tracing), key)

    def _ops(self, batch: Batch, key: tf.Tensor | None, tracing: Tracing) -> ModuleType:
        """The operations that are fastest for one pass."""
        is_training = key is not None
        if is_fixed(batch):
            return ops_gpu if is_training else ops
        # In float32 oneDNN fuses bias and GELU into its products. Without dropout that is the
        # fastest.
        pays = is_training or (tracing.compiles and self.compute_dtype == "bfloat16")
        is_wide = self.config.hidden_size >= COMPILED_WIDTH
        return ops_cpu if pays and ops.on_cpu() and is_wide else ops

    def _states(
        self, one_pass: Pass, tensors: Tensors, tracing: Tracing, rows: tf.Tensor | None = None
    ) -> list[tf.Tensor]:
        """The embeddings and every layer's output; of the last one only these rows, if any are
        named."""
        states, layer = [one_pass.embedded(tensors)], one_pass.layer
        is_training = one_pass.dropout_key is not None
        recomputes = tracing.recomputes and is_training
        if not (recomputes or is_fixed(one_pass.batch) or tf.executing_eagerly()):
            # TensorFlow traces the layer and its gradient once for all layers. Training graphs then
            # get a copy for each call, and are optimized as a whole; or the calls share their code,
            # which starts faster.
            is_copied = tracing.copies_layers or not is_training
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
