"""The BERT encoder and its heads (Devlin et al. 2018, google-research/bert `modeling.py`), whole, in Keras 3.

Shapes, as suffixes: B rows, T positions of a row, H hidden size, N attention heads, D = H / N, I intermediate
size, V vocabulary, L labels, M gathered tokens. Inside the encoder the hidden state is a matrix of B*T rows.

Inputs are a dict of int32 tensors [B, T]: `input_ids`; `token_type_ids`, 0 for sentence A and 1 for B;
`position_ids`, which restart at 0 for each example of a row; `example_ids`, 0 for padding and 1, 2, … for the
examples of a row. A token attends to the tokens of its own example and to nothing else. Rows of unlike lengths
come as K groups of like ones: then the four are flat [R], and `groups` holds K pairs, rows and length of each
(bert/packing.py); the linear layers see all R tokens at once, attention one group at a time. Pairs of Python's
numbers say that the caller compiles the whole for these groups.

Every variable bears the name of Google's checkpoints, with `.` for `/` because Keras refuses slashes.
"""

import functools

import keras
import tensorflow as tf
from transformers import BertConfig

from bert.attention import attention
from bert.elementwise import (
    COMPILED_WIDTH,
    activated,
    biased,
    draws,
    dropout,
    dropout_scale,
    highest_kept,
    more_rows,
    normalized,
    on_cpu,
    residual,
)

ACTIVATIONS = {
    # With erf: Google's first release and Hugging Face. tf.nn.gelu divides by sqrt(2), which takes twice as long.
    "gelu": lambda x: 0.5 * x * (1.0 + tf.math.erf(x * 0.5**0.5)),
    "gelu_new": lambda x: tf.nn.gelu(x, approximate=True),  # tanh: Google's last release
    "gelu_pytorch_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
    "tanh": tf.math.tanh,
    "linear": tf.identity,
}
HEADS = ("span", "classifier", "pretraining", "features")
MASKED_SCORE = -10000.0  # google-research/bert modeling.py, attention_layer


def in_groups(values: tf.Tensor, inputs: dict[str, tf.Tensor]) -> list[tf.Tensor]:
    """What belongs to the tokens, [R, …] or [B, T, …], as one tensor [B, T, …] for each group of the inputs."""
    if "groups" not in inputs:
        return [values]
    groups = [(pair[0], pair[1]) for pair in inputs["groups"]]
    parts = tf.split(values, [rows * length for rows, length in groups])
    rest = tf.shape(values)[1:]
    return [
        tf.reshape(part, tf.concat([[rows, length], rest], 0))
        for part, (rows, length) in zip(parts, groups, strict=True)
    ]


def is_example(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """Which of the rows that `first_tokens` names are no padding as a whole: float32 [M], 1 or 0."""
    first_M = tf.gather(tf.reshape(inputs["example_ids"], [-1]), inputs["first_tokens"])
    return tf.cast(first_M > 0, tf.float32)


def _mask(example_ids_BT: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What is added to the scores of attention, [B, 1, T, T]."""
    hidden_from_B1TT = example_ids_BT[:, None, :, None] != example_ids_BT[:, None, None, :]
    return tf.cast(hidden_from_B1TT, dtype) * MASKED_SCORE


class _Scope(keras.layers.Layer):
    """A layer whose variables are named after Google's scope; it creates them all when it is made."""

    def __init__(self, scope: str, **kwargs):
        super().__init__(name=scope.replace("/", ".") or None, **kwargs)
        self.scope = scope
        self.built = True

    def tensor(self, name: str, shape: tuple[int, ...], initializer: str | keras.Initializer) -> keras.Variable:
        full = f"{self.scope}/{name}" if self.scope else name
        return self.add_weight(shape, initializer, name=full.replace("/", "."))


class Initializer:
    """Truncated normal values of standard deviation `initializer_range`, one seed per tensor."""

    def __init__(self, stddev: float, seed: int):
        self.stddev, self.seed = stddev, seed

    def __call__(self) -> keras.Initializer:
        self.seed += 1
        return keras.initializers.TruncatedNormal(stddev=self.stddev, seed=self.seed)


class Linear(_Scope):
    """x W + b for x [rows, in_size]."""

    def __init__(self, scope: str, in_size: int, out_size: int, init: Initializer):
        super().__init__(scope)
        self.kernel = self.tensor("kernel", (in_size, out_size), init())
        self.bias = self.tensor("bias", (out_size,), "zeros")

    def call(self, x):
        return biased(*self.apart(x))

    def apart(self, x) -> tuple[tf.Tensor, tf.Tensor]:
        """x W, and b, which what comes next adds in its own pass over memory."""
        return tf.matmul(x, tf.cast(self.kernel.value, x.dtype)), tf.cast(self.bias.value, x.dtype)


class LayerNorm(_Scope):
    """Layer normalisation over the last axis, in float32 whatever the policy (Ba et al. 2016)."""

    def __init__(self, scope: str, size: int, epsilon: float):
        super().__init__(scope, dtype="float32")
        self.epsilon = epsilon
        self.gamma = self.tensor("gamma", (size,), "ones")
        self.beta = self.tensor("beta", (size,), "zeros")

    def call(self, x):
        return normalized(x, self.gamma, self.beta, self.epsilon)

    def residual(self, hidden, branch, bias, rate, key, place, is_compiled):
        """LayerNorm(hidden + dropout(branch + bias)), in the dtype of `hidden`."""
        gamma, beta = self.gamma.value, self.beta.value
        return residual(hidden, branch, bias, gamma, beta, self.epsilon, rate, key, place, is_compiled)


class Embeddings(_Scope):
    """Word, token type and position embeddings, summed and normalised, in float32 -> [B*T, H]."""

    def __init__(self, config: BertConfig, init: Initializer):
        super().__init__("bert/embeddings", dtype="float32")  # so that no step casts the whole vocabulary
        hidden = config.hidden_size
        self.word = self.tensor("word_embeddings", (config.vocab_size, hidden), init())
        self.token_type = self.tensor("token_type_embeddings", (config.type_vocab_size, hidden), init())
        self.position = self.tensor("position_embeddings", (config.max_position_embeddings, hidden), init())
        self.norm = LayerNorm("bert/embeddings/LayerNorm", hidden, config.layer_norm_eps)

    def call(self, inputs, more_rows=0):
        """`more_rows` rows of padding follow."""
        parts = ((self.word, "input_ids"), (self.token_type, "token_type_ids"), (self.position, "position_ids"))
        ids = {name: tf.pad(tf.reshape(inputs[name], [-1]), [[0, more_rows]]) for _, name in parts}
        return self.norm(tf.add_n([tf.gather(table.value, ids[name]) for table, name in parts]))


class SelfAttention(_Scope):
    """Multi-head attention within each example (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, scope: str, config: BertConfig, init: Initializer, place: int):
        super().__init__(scope, autocast=False)
        hidden, self.place = config.hidden_size, place
        self.query, self.key, self.value = (
            Linear(f"{scope}/{part}", hidden, hidden, init) for part in ("query", "key", "value")
        )
        self.num_heads, self.rate = config.num_attention_heads, config.attention_probs_dropout_prob

    def call(self, hidden_RH, masks, key, is_compiled=False):
        """`masks`: for each group [B, 1, T, T], what is added to the scores. Rows behind them give 0."""
        width = hidden_RH.shape[-1]
        head = width // self.num_heads
        shapes = [tf.unstack(tf.shape(mask_B1TT))[::3] for mask_B1TT in masks]
        sizes = [batch * length for batch, length in shapes]
        sizes.append(tf.shape(hidden_RH)[0] - tf.add_n(sizes))
        parts = (self.query, self.key, self.value)  # one product for the three
        kernel = tf.concat([tf.cast(part.kernel.value, self.compute_dtype) for part in parts], 1)
        bias = tf.concat([tf.cast(part.bias.value, self.compute_dtype) for part in parts], 0)
        joined = biased(tf.matmul(hidden_RH, kernel), bias, is_compiled)
        *of_groups, _ = tf.split(joined, sizes)
        matrices = [tf.stack([batch, self.num_heads, length, length]) for batch, length in shapes]
        draws_BNTT = self._draws(matrices, key, is_compiled)
        in_turns = is_compiled and on_cpu() and key is not None  # else there is nothing to compile in it
        contexts = []
        for mask, of_group, (batch, length), drawn in zip(masks, of_groups, shapes, draws_BNTT, strict=True):
            split = tf.reshape(of_group, [batch, length, 3, self.num_heads, head])
            query, key_, value = tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))  # each [B, N, T, D]
            context_BNTD = attention(query, key_, value, mask, drawn, highest_kept(self.rate), in_turns)
            contexts.append(tf.reshape(tf.transpose(context_BNTD, [0, 2, 1, 3]), [-1, width]))
        contexts.append(tf.zeros([sizes[-1], width], self.compute_dtype))
        scale = 1.0 if key is None else dropout_scale(self.rate)
        return tf.concat(contexts, 0) * tf.cast(scale, self.compute_dtype)

    def _draws(self, shapes: list[tf.Tensor], key: tf.Tensor | None, is_compiled: bool) -> list[tf.Tensor | None]:
        """For each group [B, N, T, T], drawn in one go for all of them; None without dropout."""
        if key is None or not self.rate:
            return [None] * len(shapes)
        sizes = [tf.reduce_prod(shape) for shape in shapes]
        drawn = draws(tf.stack([tf.add_n(sizes)]), self.rate, key, self.place, is_compiled)
        return [tf.reshape(part, shape) for part, shape in zip(tf.split(drawn, sizes), shapes, strict=True)]


class EncoderLayer(keras.layers.Layer):
    """Attention and feed-forward, each with dropout, residual and post-normalisation."""

    def __init__(self, number: int, config: BertConfig, init: Initializer):
        scope, hidden = f"bert/encoder/layer_{number}", config.hidden_size
        super().__init__(name=scope.replace("/", "."), autocast=False)
        self.first_place = 1 + 3 * number
        self.attention = SelfAttention(f"{scope}/attention/self", config, init, self.first_place)
        self.attention_output = Linear(f"{scope}/attention/output/dense", hidden, hidden, init)
        self.attention_norm = LayerNorm(f"{scope}/attention/output/LayerNorm", hidden, config.layer_norm_eps)
        self.intermediate = Linear(f"{scope}/intermediate/dense", hidden, config.intermediate_size, init)
        self.output_dense = Linear(f"{scope}/output/dense", config.intermediate_size, hidden, init)
        self.output_norm = LayerNorm(f"{scope}/output/LayerNorm", hidden, config.layer_norm_eps)
        self.activation, self.rate = ACTIVATIONS[config.hidden_act], config.hidden_dropout_prob
        self.built = True

    def call(self, hidden_RH, masks, key, is_compiled=False):
        context_RH = self.attention(hidden_RH, masks, key, is_compiled=is_compiled)
        attended_RH, bias = self.attention_output.apart(context_RH)
        place = self.first_place + 1
        hidden_RH = self.attention_norm.residual(hidden_RH, attended_RH, bias, self.rate, key, place, is_compiled)
        expanded_RI, bias = self.intermediate.apart(hidden_RH)
        activated_RI = activated(expanded_RI, bias, self.activation, is_compiled)
        output_RH, bias = self.output_dense.apart(activated_RI)
        return self.output_norm.residual(hidden_RH, output_RH, bias, self.rate, key, place + 1, is_compiled)


class SpanHead(_Scope):
    """Start and end scores of every token (google-research/bert `run_squad.py`) -> float32 [B, T, 2] or [R, 2]."""

    def __init__(self, config: BertConfig, init: Initializer):
        super().__init__("cls/squad", dtype="float32")
        self.kernel = self.tensor("output_weights", (2, config.hidden_size), init())
        self.bias = self.tensor("output_bias", (2,), "zeros")

    def call(self, hidden_RH, inputs, key):
        scores_R2 = tf.matmul(hidden_RH, self.kernel, transpose_b=True) + self.bias
        return tf.reshape(scores_R2, tf.concat([tf.shape(inputs["input_ids"]), [2]], 0))


def pooler(config: BertConfig, init: Initializer) -> Linear:
    """The dense layer of tanh(W x + b) over each example's first token, which `first_tokens` names: int32 [M],
    indices into B*T."""
    return Linear("bert/pooler/dense", config.hidden_size, config.hidden_size, init)


class ClassifierHead(_Scope):
    """Label scores of each example (google-research/bert `run_classifier.py`) -> float32 [M, L]."""

    def __init__(self, config: BertConfig, init: Initializer):
        super().__init__("", dtype="float32")
        self.pooler = pooler(config, init)
        self.kernel = self.tensor("output_weights", (config.num_labels, config.hidden_size), init())
        self.bias = self.tensor("output_bias", (config.num_labels,), "zeros")
        rate = config.classifier_dropout
        self.rate = config.hidden_dropout_prob if rate is None else rate
        self.place = 1 + 3 * config.num_hidden_layers

    def call(self, hidden_RH, inputs, key):
        pooled_MH = tf.math.tanh(self.pooler(tf.gather(hidden_RH, inputs["first_tokens"])))
        pooled_MH = dropout(pooled_MH, self.rate, key, self.place)
        pooled_MH = tf.cast(pooled_MH, self.compute_dtype)
        return tf.matmul(pooled_MH, self.kernel, transpose_b=True) + self.bias


class PretrainingHead(_Scope):
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

    def call(self, hidden_RH, inputs, key):
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
    """BERT with one of the published heads: "span", "classifier", "pretraining", or "features" for none.

    The Keras dtype policy at construction decides the precision; variables, LayerNorm, softmax and scores are
    float32. `seed` decides the initial values. Keras' functional call: `model(inputs, dropout_key=key)`; without
    a key there is no dropout.
    """

    def __init__(self, config: BertConfig, head: str = "features", seed: int = 0):
        super().__init__(name="bert_" + head)
        if config.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act {config.hidden_act!r} is none of {', '.join(ACTIVATIONS)}")
        init = Initializer(config.initializer_range, seed * 100_003)
        self.config, self.head_name = config, head
        self.recomputes = False  # layers in the backward pass, instead of keeping what is inside them
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
                raise ValueError(f"head {head!r} is none of {', '.join(HEADS)}")

        self.built = True

    @property
    def compiles(self) -> bool:
        """Whether XLA compiles parts of it, which then have `elementwise.more_rows`; see `hidden_states`."""
        return self.config.hidden_size >= COMPILED_WIDTH

    def named_tensors(self) -> dict[str, keras.Variable]:
        """Google's tensor name -> variable."""
        return {variable.name.replace(".", "/"): variable for variable in self.trainable_variables}

    def hidden_states(self, inputs: dict[str, tf.Tensor], dropout_key: tf.Tensor | None = None) -> list[tf.Tensor]:
        """The embeddings and every layer's output, each [B*T, H] in the compute dtype."""
        rows = tf.size(inputs["input_ids"])
        is_fixed = "groups" in inputs and isinstance(inputs["groups"][0], tuple)  # the caller compiles the whole
        # Without dropout it pays on CPUs in bfloat16: in float32 oneDNN adds bias and GELU to its products.
        pays = dropout_key is not None or (on_cpu() and self.compute_dtype == "bfloat16")
        is_compiled = self.compiles and pays and not is_fixed
        embedded_RH = self.embeddings(inputs, more_rows=more_rows(rows) if is_compiled else 0)
        embedded_RH = tf.cast(embedded_RH, self.compute_dtype)
        states = [dropout(embedded_RH, self.config.hidden_dropout_prob, dropout_key, 0)]
        masks = [_mask(ids_BT, self.compute_dtype) for ids_BT in in_groups(inputs["example_ids"], inputs)]
        for layer in self.encoder:
            call = functools.partial(layer.__call__, masks=masks, key=dropout_key, is_compiled=is_compiled)
            if self.recomputes and dropout_key is not None:
                call = tf.recompute_grad(call)
            states.append(call(states[-1]))
        return [state[:rows] for state in states]

    def __call__(self, inputs, dropout_key=None):
        if "groups" in inputs:  # Keras takes no numbers of Python
            inputs = inputs | {"groups": tf.nest.map_structure(tf.convert_to_tensor, inputs["groups"])}
        return super().__call__(inputs, dropout_key=dropout_key)

    def call(self, inputs, dropout_key=None):
        hidden_RH = self.hidden_states(inputs, dropout_key)[-1]
        return hidden_RH if self.head is None else self.head(hidden_RH, inputs, dropout_key)
