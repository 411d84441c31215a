"""The BERT encoder and its heads (Devlin et al. 2018, google-research/bert `modeling.py`), whole, in Keras 3.

Shapes, as suffixes: B rows, T positions of a row, R = B*T tokens, H hidden size, N attention heads, D = H / N,
I intermediate size, V vocabulary, L labels, M gathered tokens. Between attentions the hidden state is a matrix
[R, H], so that the linear layers see the tokens of all rows at once. On CPUs they may see the tokens alone; then R
is their number (bert/tokens.py). bert/inputs.py describes the inputs.

Every variable has its name in Google's checkpoints, with `.` for `/` because Keras refuses slashes.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import keras
import tensorflow as tf
from transformers import BertConfig

from bert import ops, ops_cpu, ops_gpu, ops_xla
from bert.dropout import Dropout, folded
from bert.forward import ForwardPass, Group, forward_pass
from bert.inputs import is_fixed
from bert.layers import Initializer, LayerNorm, Linear, ScopedLayer
from bert.ops import ACTIVATIONS
from bert.tokens import Tokens, leaves_padding_out

HEADS = ("span", "classifier", "pretraining", "features")
EMBEDDED = ("input_ids", "token_type_ids", "position_ids")
INDICES = ("first_tokens", "masked_tokens")  # inputs that are indices into B*T
COMPILED_WIDTH = 256  # the smallest hidden size for which compiled operations are faster


class Embeddings(ScopedLayer):
    """Word, token type and position embeddings, summed and normalised, in float32 -> [B*T, H]."""

    def __init__(self, config: BertConfig, init: Initializer):
        super().__init__("bert/embeddings", dtype="float32")  # so that no step casts the whole vocabulary
        hidden = config.hidden_size
        self.word = self.tensor("word_embeddings", (config.vocab_size, hidden), init())
        self.token_type = self.tensor("token_type_embeddings", (config.type_vocab_size, hidden), init())
        self.position = self.tensor("position_embeddings", (config.max_position_embeddings, hidden), init())
        self.norm = LayerNorm("bert/embeddings/LayerNorm", hidden, config.layer_norm_eps)

    def call(self, inputs, padding_rows=0):
        """[R + padding_rows, H]; the padding rows embed id 0."""
        parts = ((self.word, "input_ids"), (self.token_type, "token_type_ids"), (self.position, "position_ids"))
        ids = {name: tf.pad(tf.reshape(inputs[name], [-1]), [[0, padding_rows]]) for _, name in parts}
        return self.norm(tf.add_n([tf.gather(table.value, ids[name]) for table, name in parts]))


class SelfAttention(ScopedLayer):
    """Multi-head attention within each example (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, scope: str, config: BertConfig, init: Initializer):
        super().__init__(scope, autocast=False)
        hidden = config.hidden_size
        self.query, self.key, self.value = (
            Linear(f"{scope}/{part}", hidden, hidden, init) for part in ("query", "key", "value")
        )
        self.num_heads, self.rate = config.num_attention_heads, config.attention_probs_dropout_prob

    def call(self, hidden_RH, forward: ForwardPass, place):
        """The context [R, H]; 0 in the rows after those of the masks. `place` is that of the dropout."""
        dropout = forward.attention_dropout(self.rate, place)
        joined_R3H = self._query_key_value(hidden_RH, forward)
        if forward.tokens is not None:
            joined_R3H = forward.tokens.in_attention(joined_R3H)
        *parts, _ = tf.split(joined_R3H, forward.sizes)
        draws = dropout.draws() if dropout.is_on and dropout.words else None
        contexts_RH = []
        for k, (part, group) in enumerate(zip(parts, forward.groups, strict=True)):
            split = tf.reshape(part, group.heads_shape)
            query, key, value = tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))  # each [B, N, T, D]
            draws_BNTT = None if draws is None else group_draws(draws, group)
            context_BNTD = forward.ops.attention(
                query, key, value, group.mask, draws_BNTT, replace(dropout, group=k)
            )
            context_BTND = tf.transpose(context_BNTD, [0, 2, 1, 3])
            contexts_RH.append(tf.reshape(context_BTND, [-1, hidden_RH.shape[-1]]))
        context_RH = tf.concat([*contexts_RH, forward.padding], 0)
        if forward.tokens is not None:
            context_RH = forward.tokens.from_attention(context_RH)
        return context_RH * tf.cast(dropout.scale, self.compute_dtype)

    def _query_key_value(self, hidden_RH, forward: ForwardPass) -> tf.Tensor:
        """Query, key and value side by side, [R, 3H], from one matrix product."""
        parts = (self.query, self.key, self.value)
        kernel = tf.concat([tf.cast(part.kernel.value, self.compute_dtype) for part in parts], 1)
        bias = tf.concat([tf.cast(part.bias.value, self.compute_dtype) for part in parts], 0)
        return forward.ops.biased(tf.matmul(hidden_RH, kernel), bias)


def group_draws(draws: tf.Tensor, group: Group) -> tf.Tensor:
    """The draws of a group, [B, N, T, T]. By slices: GPUs have no kernel that splits int8."""
    return tf.reshape(tf.strided_slice(draws, *group.draws), group.scores_shape)


class EncoderLayer(keras.layers.Layer):
    """Attention and feed-forward, each with dropout, residual and post-normalisation."""

    def __init__(self, number: int, config: BertConfig, init: Initializer):
        scope, hidden = f"bert/encoder/layer_{number}", config.hidden_size
        super().__init__(name=scope.replace("/", "."), autocast=False)
        self.first_place = 1 + 3 * number
        self.attention = SelfAttention(f"{scope}/attention/self", config, init)
        self.attention_output = Linear(f"{scope}/attention/output/dense", hidden, hidden, init)
        self.attention_norm = LayerNorm(f"{scope}/attention/output/LayerNorm", hidden, config.layer_norm_eps)
        self.intermediate = Linear(f"{scope}/intermediate/dense", hidden, config.intermediate_size, init)
        self.output_dense = Linear(f"{scope}/output/dense", config.intermediate_size, hidden, init)
        self.output_norm = LayerNorm(f"{scope}/output/LayerNorm", hidden, config.layer_norm_eps)
        self.activation, self.rate = ACTIVATIONS[config.hidden_act], config.hidden_dropout_prob
        self.built = True

    def call(self, hidden_RH, forward: ForwardPass, first_place=None):
        """[R, H] -> [R, H]. `first_place` is that of its dropouts if it computes with another layer's weights."""
        place = self.first_place if first_place is None else first_place
        context_RH = self.attention(hidden_RH, forward=forward, place=place)
        branch_RH, bias = self.attention_output.product_and_bias(context_RH)
        dropout = forward.dropout(self.rate, place + 1)
        hidden_RH = forward.ops.residual(hidden_RH, branch_RH, bias, *self.attention_norm.parameters, dropout)

        expanded_RI, bias = self.intermediate.product_and_bias(hidden_RH)
        activated_RI = forward.ops.activated(expanded_RI, bias, self.activation)
        branch_RH, bias = self.output_dense.product_and_bias(activated_RI)
        dropout = forward.dropout(self.rate, place + 2)
        return forward.ops.residual(hidden_RH, branch_RH, bias, *self.output_norm.parameters, dropout)


def traced_once(layer: EncoderLayer, forward: ForwardPass, is_copied: bool) -> Callable[..., tf.Tensor]:
    """A function of (hidden_RH, values, first_place): the layer with these values of its variables.

    All encoder layers of a graph can call it. TensorFlow traces it, and its gradient, once for all of them. If it
    `is_copied`, TensorFlow then puts a copy in the place of each call, and optimizes the whole graph. Otherwise
    the layers call the same code, which starts faster.
    """

    def call(hidden_RH, values, first_place):
        with keras.StatelessScope(list(zip(layer.variables, values, strict=True))):
            return layer(hidden_RH, forward=forward, first_place=first_place)

    attributes = None if is_copied else {"_noinline": True}
    return tf.function(call, autograph=False, experimental_attributes=attributes)


class SpanHead(ScopedLayer):
    """Start and end scores of every token (google-research/bert `run_squad.py`) -> float32 [B, T, 2] or [R, 2]."""

    def __init__(self, config: BertConfig, init: Initializer):
        super().__init__("cls/squad", dtype="float32")
        self.kernel = self.tensor("output_weights", (2, config.hidden_size), init())
        self.bias = self.tensor("output_bias", (2,), "zeros")

    def call(self, hidden_RH, inputs, folded_key):
        scores_R2 = tf.matmul(hidden_RH, self.kernel, transpose_b=True) + self.bias
        shape = [-1] if "groups" in inputs else tf.shape(inputs["input_ids"])
        return tf.reshape(scores_R2, tf.concat([shape, [2]], 0))


def pooler(config: BertConfig, init: Initializer) -> Linear:
    """The dense layer of tanh(W x + b) over the first token of each example. `first_tokens` is int32 [M],
    indices into B*T."""
    return Linear("bert/pooler/dense", config.hidden_size, config.hidden_size, init)


class ClassifierHead(ScopedLayer):
    """Label scores of each example (google-research/bert `run_classifier.py`) -> float32 [M, L]."""

    def __init__(self, config: BertConfig, init: Initializer):
        super().__init__("", dtype="float32")
        self.pooler = pooler(config, init)
        self.kernel = self.tensor("output_weights", (config.num_labels, config.hidden_size), init())
        self.bias = self.tensor("output_bias", (config.num_labels,), "zeros")
        rate = config.classifier_dropout
        self.rate = config.hidden_dropout_prob if rate is None else rate
        self.place = 1 + 3 * config.num_hidden_layers

    def call(self, hidden_RH, inputs, folded_key):
        pooled_MH = tf.math.tanh(self.pooler(tf.gather(hidden_RH, inputs["first_tokens"])))
        pooled_MH = Dropout(self.rate, folded_key, self.place)(pooled_MH)
        pooled_MH = tf.cast(pooled_MH, self.compute_dtype)
        return tf.matmul(pooled_MH, self.kernel, transpose_b=True) + self.bias


class PretrainingHead(ScopedLayer):
    """Vocabulary scores of `masked_tokens` (int32 [M], indices into B*T) and next-sentence scores of
    `first_tokens` -> {"mlm": float32 [M, V], "nsp": float32 [examples, 2]} (`run_pretraining.py`)."""

    def __init__(self, config: BertConfig, init: Initializer, word_embeddings: keras.Variable):
        super().__init__("cls", dtype="float32")
        hidden = config.hidden_size
        self.transform = Linear("cls/predictions/transform/dense", hidden, hidden, init)
        self.norm = LayerNorm("cls/predictions/transform/LayerNorm", hidden, config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.word_embeddings = [word_embeddings]  # in a list: the embeddings layer owns the variable
        self.vocabulary_bias = self.tensor("predictions/output_bias", (config.vocab_size,), "zeros")
        self.pooler = pooler(config, init)
        self.kernel = self.tensor("seq_relationship/output_weights", (2, hidden), init())
        self.bias = self.tensor("seq_relationship/output_bias", (2,), "zeros")

    def call(self, hidden_RH, inputs, folded_key):
        masked_MH = self.activation(self.transform(tf.gather(hidden_RH, inputs["masked_tokens"])))
        product_dtype = self.transform.compute_dtype  # the one large product follows the policy
        words_VH = tf.cast(self.word_embeddings[0].value, product_dtype)
        scores_MV = tf.matmul(tf.cast(self.norm(masked_MH), product_dtype), words_VH, transpose_b=True)
        pooled_MH = tf.math.tanh(self.pooler(tf.gather(hidden_RH, inputs["first_tokens"])))
        return {
            "mlm": tf.cast(scores_MV, self.compute_dtype) + self.vocabulary_bias,
            "nsp": tf.matmul(tf.cast(pooled_MH, self.compute_dtype), self.kernel, transpose_b=True) + self.bias,
        }


class Bert(keras.Model):
    """BERT with one of the published heads: "span", "classifier", "pretraining", or no head ("features").

    The Keras dtype policy at construction decides the precision; variables, LayerNorm, softmax and scores are
    float32. `seed` decides the initial values. Keras' functional call: `model(inputs, dropout_key=key)`; without
    a key there is no dropout.
    """

    def __init__(self, config: BertConfig, head: str = "features", seed: int = 0):
        super().__init__(name="bert_" + head)
        if config.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act must be one of {', '.join(ACTIVATIONS)}, got {config.hidden_act!r}")
        init = Initializer(config.initializer_range, seed * 100_003)
        self.config, self.head_name = config, head
        self.recomputes = False  # whether the backward pass recomputes the activations within layers
        self.copies_layers = True  # whether training graphs have a copy of the traced layer for each of its calls
        self.compiles_parts = True  # whether XLA may compile parts of a pass, once for each size of a batch
        self.head: keras.layers.Layer | None
        self.embeddings = Embeddings(config, init)
        self.encoder = [EncoderLayer(number, config, init) for number in range(config.num_hidden_layers)]
        match head:
            case "span":
                self.head = SpanHead(config, init)
            case "classifier":
                self.head = ClassifierHead(config, init)
            case "pretraining":
                self.head = PretrainingHead(config, init, self.embeddings.word)
            case "features":
                self.head = None
            case _:
                raise ValueError(f"head must be one of {', '.join(HEADS)}, got {head!r}")

        self.built = True

    def named_tensors(self) -> dict[str, keras.Variable]:
        """Google's tensor name -> variable."""
        return {variable.name.replace(".", "/"): variable for variable in self.trainable_variables}

    @property
    def compiles(self) -> bool:
        """Whether it uses compiled operations, which pad the rows of a batch: the model must be wide enough."""
        return self.compiles_parts and self.config.hidden_size >= COMPILED_WIDTH

    def _ops(self, inputs: dict[str, tf.Tensor], is_training: bool) -> ModuleType:
        """The operations that are fastest for one pass."""
        if is_fixed(inputs) and is_training:
            return ops_gpu
        if not self.compiles or is_fixed(inputs):
            return ops
        if not ops.on_cpu():
            return ops_xla if is_training else ops
        # In float32 oneDNN fuses bias and GELU into its products. Without dropout that is the fastest.
        return ops_cpu if is_training or self.compute_dtype == "bfloat16" else ops

    def hidden_states(self, inputs: dict[str, tf.Tensor], folded_key: tf.Tensor | None = None) -> list[tf.Tensor]:
        """The embeddings and every layer's output, each [B*T, H] in the compute dtype.

        `folded_key` is int32 [], from `bert.dropout.folded`; None for no dropout.
        """
        states, tokens = self._states(inputs, folded_key)
        places = tf.size(inputs["input_ids"])
        return [state[:places] if tokens is None else tokens.in_places(state) for state in states]

    def _states(
        self, inputs: dict[str, tf.Tensor], folded_key: tf.Tensor | None
    ) -> tuple[list[tf.Tensor], Tokens | None]:
        """The embeddings and every layer's output, [R, H]: a row for each place or, if tokens are returned, for
        each of those; then rows of padding."""
        chosen = self._ops(inputs, is_training=folded_key is not None)
        tokens = Tokens.of(inputs) if leaves_padding_out(inputs) else None
        if tokens is None:
            num_padding = chosen.padding_rows(tf.size(inputs["input_ids"]))
            embedded_RH = self.embeddings(inputs, padding_rows=num_padding)
        else:
            num_padding = 1 + chosen.padding_rows(tokens.count + 1)
            embedded_RH = self.embeddings(
                {name: tokens.ids(inputs[name]) for name in EMBEDDED}, padding_rows=num_padding
            )
            tokens = tokens.padded(num_padding)
        forward = forward_pass(chosen, self.config, inputs, self.compute_dtype, num_padding, folded_key, tokens)
        embedding_dropout = Dropout(self.config.hidden_dropout_prob, folded_key, 0, extent=forward.hidden_extent)
        states = [embedding_dropout(tf.cast(embedded_RH, self.compute_dtype))]
        recomputes = self.recomputes and folded_key is not None
        shares_trace = not (recomputes or is_fixed(inputs) or tf.executing_eagerly())
        if shares_trace:
            layer_function = traced_once(self.encoder[0], forward, self.copies_layers or folded_key is None)
        for layer in self.encoder:
            if shares_trace:
                values = [tf.convert_to_tensor(variable.value) for variable in layer.variables]
                states.append(layer_function(states[-1], values, tf.constant(layer.first_place)))
            else:
                call = functools.partial(layer.__call__, forward=forward)
                states.append((tf.recompute_grad(call) if recomputes else call)(states[-1]))
        return states, tokens

    def __call__(self, inputs, dropout_key=None):
        if "groups" in inputs:  # Keras does not accept Python numbers as inputs
            inputs = inputs | {"groups": tf.nest.map_structure(tf.convert_to_tensor, inputs["groups"])}
        return super().__call__(inputs, dropout_key=dropout_key)

    def call(self, inputs, dropout_key=None):
        folded_key = None if dropout_key is None else folded(dropout_key, on_host=not is_fixed(inputs))
        if self.head is None:
            return self.hidden_states(inputs, folded_key)[-1]
        states, tokens = self._states(inputs, folded_key)
        if tokens is None:
            return self.head(states[-1][: tf.size(inputs["input_ids"])], inputs, folded_key)
        rows = {name: tokens.rows(inputs[name]) for name in INDICES if name in inputs}
        last_RH = tf.reshape(states[-1], tf.shape(states[-1]))  # its gradient is dense, as recompute_grad needs
        scores = self.head(last_RH, inputs | rows, folded_key)
        return tokens.in_places(scores) if self.head_name == "span" else scores
