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
import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from bert import ops, ops_cpu, ops_gpu
from bert.batch import Batch, is_fixed
from bert.configuration import BertConfig
from bert.heads import FEATURES, Head
from bert.layers import (
    Shapes,
    Tensors,
    dense_shapes,
    from_places,
    in_places,
    norm_shapes,
    norm_tensors,
    normalized,
    product,
    rows_of,
    split_groups,
)
from bert.ops import ACTIVATIONS, Dropout

COMPILED_WIDTH = 256  # the smallest hidden size for which compiled operations are faster
ENCODER = ("bert/embeddings", "bert/encoder/")
PROJECTION = "bert/embeddings_project"
MASKED_SCORE = -10000.0  # google-research/bert modeling.py, attention_layer

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
        shapes |= dense_shapes(PROJECTION, width, hidden)
    for number in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{number}"
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
        dropout_key: Tensor | None,
    ):
        self.config = config
        self.batch = batch
        self.dtype = dtype
        self.ops = ops
        self.dropout_key = dropout_key
        self.dropout = partial(Dropout, key=dropout_key, words=ops.random_words)
        masked_P = (1.0 - tf.cast(batch["attention_mask"], tf.float32)) * MASKED_SCORE
        masks = split_groups(tf.cast(masked_P, dtype), batch)
        self.masks = [mask_BT[:, None, None] for mask_BT in masks]  # added to the scores

    def dropped(self, x: Tensor, number: int) -> Tensor:
        """x after the head's dropout of this number, behind those of the layers."""
        rate = self.config.classifier_dropout
        if rate is None:
            rate = self.config.hidden_dropout_prob
        return Dropout(rate, self.dropout_key, 1 + 3 * self.config.num_hidden_layers + number)(x)

    def embedded(self, tensors: Tensors) -> Tensor:
        """Word, token type and position embeddings, summed, normalised in float32, and projected ->
        [R, H]."""
        config, batch = self.config, self.batch
        token_types = batch["token_type_ids"]
        if config.architecture.ignores_token_types:
            token_types = tf.zeros_like(token_types)
        ids = {
            "word": batch["input_ids"],
            "token_type": token_types,
            "position": batch["position_ids"] + config.first_position,
        }
        if not config.num_token_types:
            del ids["token_type"]
        parts = [
            tf.gather(tensors[f"bert/embeddings/{name}_embeddings"], rows)
            for name, rows in ids.items()
        ]
        sum_RE = normalized(tf.add_n(parts), tensors, "bert/embeddings", config.layer_norm_eps)
        dropout = Dropout(config.hidden_dropout_prob, self.dropout_key, 0)
        embedded_RE = dropout(tf.cast(sum_RE, self.dtype))
        if f"{PROJECTION}/kernel" not in tensors:
            return embedded_RE
        return ops.biased(*product(embedded_RE, tensors, PROJECTION))

    def layer(
        self,
        hidden_RH: Tensor,
        tensors: Tensors,
        place: int | Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Attention and feed-forward, each with dropout, residual and post-normalisation. `place`
        is that of the first of the layer's three dropouts. Returns all rows, or these, int32
        [S]."""
        config, fast = self.config, self.ops
        context_RH = self.attention(hidden_RH, tensors, place)
        if rows is not None:
            hidden_RH = rows_of(hidden_RH, rows)
            context_RH = rows_of(context_RH, rows)
            if not is_fixed(self.batch):
                fast = ops  # few rows, whose number changes: nothing to compile for

        def added(hidden_RH: Tensor, branch_RW: Tensor, scope: str, place: int | Tensor) -> Tensor:
            """LayerNorm(hidden + dropout(branch W + b))."""
            branch = product(branch_RW, tensors, f"{scope}/dense")
            norm = *norm_tensors(tensors, scope), config.layer_norm_eps
            dropout = self.dropout(config.hidden_dropout_prob, place=place)
            return fast.residual(hidden_RH, branch, norm, dropout)

        hidden_RH = added(hidden_RH, context_RH, "attention/output", place + 1)
        expanded_RI = product(hidden_RH, tensors, "intermediate/dense")
        activated_RI = fast.activated(*expanded_RI, ACTIVATIONS[config.hidden_act])
        return added(hidden_RH, activated_RI, "output", place + 2)

    def attention(self, hidden_RH: Tensor, tensors: Tensors, place: int | Tensor) -> Tensor:
        """Multi-head attention within each example (Vaswani et al. 2017, section 3.2) -> the
        context [R, H]."""
        config, batch = self.config, self.batch
        heads, hidden = config.num_attention_heads, config.hidden_size

        def joined(kind: str) -> Tensor:
            parts = [tensors[f"attention/self/{part}/{kind}"] for part in ("query", "key", "value")]
            return tf.concat([tf.cast(part, self.dtype) for part in parts], -1)

        product_R3H = tf.matmul(hidden_RH, joined("kernel"))
        parts = in_places(self.ops.biased(product_R3H, joined("bias")), batch)

        dropout = self.dropout(config.attention_probs_dropout_prob, place=place)
        draws_BNTT: Sequence[Tensor | None] = [None] * len(parts)
        if dropout.is_on and dropout.words is not None:
            # Not for each group: fewer calls of the generator. bert/ops_gpu.py computes its own.
            sizes = [(group[0], heads, group[1], group[1]) for group in batch["groups"]]
            draws_BNTT = dropout.draws(*sizes)

        contexts_BTH: list[Tensor] = []
        for number, group in enumerate(batch["groups"]):
            rows, length = group[0], group[1]
            split = tf.reshape(parts[number], [rows, length, 3, heads, hidden // heads])
            query_key_value = tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))  # each [B, N, T, D]
            context_BNTD = self.ops.attention(
                query_key_value,
                self.masks[number],
                draws_BNTT[number],
                replace(dropout, group=number),
                batch.get("longest"),
            )
            context_BTND = tf.transpose(context_BNTD, [0, 2, 1, 3])
            contexts_BTH.append(tf.reshape(context_BTND, [rows, length, hidden]))
        return from_places(contexts_BTH, batch) * tf.cast(dropout.scale, self.dtype)


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
        self.config = config
        self.head = head
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
            shape, dtype = variable.shape, variable.dtype
            value = np.full(shape, name.endswith("gamma"), dtype)
            if name in seeds and not (is_loaded and name.startswith(ENCODER)):
                value = keras.initializers.TruncatedNormal(
                    stddev=self.config.initializer_range, seed=seeds[name]
                )(shape, dtype)
            variable.assign(value)

    def named_tensors(self) -> dict[str, keras.Variable]:
        """Google's tensor name -> variable."""
        return {variable.name.replace(".", "/"): variable for variable in self.trainable_variables}

    def __call__(
        self,
        batch: Batch,
        dropout_key: Tensor | None = None,
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
        rows = tf.concat([batch[name] for name in reads], 0) if reads else None
        states = [self._states(one_pass, values, tracing, rows)[-1]]
        if len(reads) > 1:
            states = tf.split(states[0], [tf.shape(batch[name])[0] for name in reads])
        return self.head.scores(states, values, one_pass)

    def hidden_states(self, batch: Batch, tracing: Tracing = Tracing()) -> list[Tensor]:
        """The embeddings and every layer's output, each [R, H] in the compute dtype, without
        dropout."""
        return self._states(self._pass(batch, None, tracing), self._values(), tracing)

    def _values(self) -> Tensors:
        return {name: variable.value for name, variable in self.named_tensors().items()}

    def _pass(self, batch: Batch, key: Tensor | None, tracing: Tracing) -> Pass:
        """One pass, with the operations that are fastest for it."""
        dtype = self.compute_dtype
        is_training = key is not None
        is_wide = self.config.hidden_size >= COMPILED_WIDTH
        # In float32 oneDNN fuses bias and GELU into its products. Without dropout that is the
        # fastest.
        pays = is_training or (tracing.compiles and dtype == "bfloat16")
        fastest: ModuleType = ops
        if is_fixed(batch):
            fastest = ops_gpu if is_training else ops
        elif pays and is_wide and ops.on_cpu():
            fastest = ops_cpu
        return Pass(self.config, batch, dtype, fastest, key)

    def _states(
        self, one_pass: Pass, tensors: Tensors, tracing: Tracing, rows: Tensor | None = None
    ) -> list[Tensor]:
        """The embeddings and every layer's output; of the last one only these rows, if any are
        named."""
        states = [one_pass.embedded(tensors)]
        layer = one_pass.layer
        is_training = one_pass.dropout_key is not None
        recomputes = tracing.recomputes and is_training
        if not (recomputes or is_fixed(one_pass.batch) or tf.executing_eagerly()):
            # TensorFlow traces the layer and its gradient once for all layers. Training graphs then
            # get a copy for each call, and are optimized as a whole; or the calls share their code,
            # which starts faster.
            is_copied = tracing.copies_layers or not is_training
            attributes = None if is_copied else {"_noinline": True}
            layer = tf.function(layer, autograph=False, experimental_attributes=attributes)
        last = self.config.num_hidden_layers - 1
        for number in range(last + 1):
            scope = f"bert/encoder/layer_{number}/"
            own = {
                name.removeprefix(scope): tf.convert_to_tensor(value)
                for name, value in tensors.items()
                if name.startswith(scope)
            }
            needed = rows if number == last else None
            call = partial(layer, place=tf.constant(1 + 3 * number), rows=needed)
            if recomputes:
                call = tf.recompute_grad(call)
            states.append(call(states[-1], own))
        return states
