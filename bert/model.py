"""The model: an encoder and a head.

Every variable has its name in Google's checkpoints, with `.` for `/` because Keras refuses slashes.
Shapes, as suffixes, are those of bert/encoder.py.
"""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from tensorflow import Tensor

from bert.batch import Batch, is_fixed
from bert.configuration import BertConfig
from bert.encoder import BertPass
from bert.heads import FEATURES, Head
from bert.kernels import ON_CPU, ON_GPU, PLAIN, Kernels
from bert.layers import Shapes, Tensors
from bert.modern import ModernPass
from bert.ops import on_cpu
from bert.passes import Pass

COMPILED_WIDTH = 256  # the smallest hidden size for which compiled operations are faster
ENCODER = ("bert/embeddings", "bert/encoder/")
ENCODERS: dict[str, type[Pass]] = {"bert": BertPass, "modern": ModernPass}


def encoder_shapes(config: BertConfig) -> Shapes:
    """The tensors of the encoder, in their order in checkpoints."""
    return ENCODERS[config.architecture.encoder].shapes(config)


# What stands before a layer: gets the hidden state and the layer's tensors by name, and returns the
# same values. Its gradient is where the layer's backward pass is done.
Stage = Callable[[Tensor, Tensors], tuple[Tensor, Tensors]]


def no_stage(hidden_RH: Tensor, tensors: Tensors) -> tuple[Tensor, Tensors]:
    """Nothing stands before a layer."""
    return hidden_RH, tensors


@dataclass(frozen=True)
class Tracing:
    """How a pass becomes a graph."""

    recomputes: bool = False  # the backward pass computes the activations within layers again
    copies_layers: bool = True  # a training graph has a copy of the layer for each of its calls
    compiles: bool = True  # XLA may compile parts of predictions on CPUs, for each size of a batch
    # Of passes that XLA compiles as a whole. None: ON_GPU in training, else PLAIN.
    in_xla: Kernels | None = None
    stage: Stage = no_stage


class Bert(keras.layers.Layer):
    """An encoder with a head of bert/heads.py.

    The Keras dtype policy at construction decides the precision; variables, LayerNorm, softmax and
    scores are float32. The values are those of `initialize(seed)`, with seed None zeros, until
    weights are loaded. `model(batch, dropout_key=key)` gives the head's scores of bert/batch.py's
    batches; without a key, int32 [2], there is no dropout.

    It is a Keras layer and not a `keras.Model`: it has no `fit` or `save`, because it takes rows of
    tokens without padding, and `bert.weights.copied` writes what `transformers` reads. A loop of
    one's own trains it:

    >>> import numpy as np
    >>> from bert.batch import batch_of
    >>> from bert.configuration import config_of
    >>> from bert.heads import CLASSIFIER
    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> config = config_of({"vocab_size": 30, "intermediate_size": 16, **sizes})
    >>> model = Bert(config, CLASSIFIER, seed=1)
    >>> tokens = np.array([2, 7, 3, 2, 8, 9, 3], np.int32), np.array([0, 3, 7])  # two texts
    >>> _, batch = batch_of({"input_ids": tokens, "sentence_a_tokens": np.array([3, 4])})
    >>> optimizer = keras.optimizers.Adam(1e-3)
    >>> losses = []
    >>> for step in range(3):
    ...     with tf.GradientTape() as tape:
    ...         scores = model(batch, dropout_key=tf.constant([1, step]))  # [2, 2]
    ...         loss = tf.nn.sparse_softmax_cross_entropy_with_logits([0, 1], scores)
    ...     variables = [variable.value for variable in model.trainable_variables]
    ...     optimizer.apply(tape.gradient(loss, variables), model.trainable_variables)
    ...     losses.append(float(tf.reduce_mean(loss)))
    >>> losses[-1] < losses[0]
    True
    """

    def __init__(self, config: BertConfig, head: Head = FEATURES, seed: int | None = 0):
        super().__init__(name="bert_" + head.name)
        self.config = config
        self.head = head
        self._encoder = ENCODERS[config.architecture.encoder]
        for name, shape in (self._encoder.shapes(config) | head.shapes(config)).items():
            self.add_weight(shape, "zeros", name=name.replace("/", "."))
        self.built = True
        if seed is not None:
            self.initialize(seed)

    def initialize(self, seed: int, needs: Callable[[str], bool] = lambda name: True) -> None:
        """Gives the variables their initial values; those of the encoder only where it `needs` the
        tensor of this name, because no weights will be loaded for it."""
        tensors = self.named_tensors()
        drawn = [name for name in tensors if not name.endswith(("gamma", "beta", "bias"))]
        drawn.sort(key=lambda name: name.endswith("output_weights"))  # these take the last seeds
        seeds = dict(zip(drawn, itertools.count(seed * 100_003 + 1)))
        for name, variable in tensors.items():
            if name.startswith(ENCODER) and not needs(name):
                continue
            if name in seeds:
                deviation = self._encoder.deviation(self.config, name)
                initializer = keras.initializers.TruncatedNormal(stddev=deviation, seed=seeds[name])
            else:
                initializer = keras.initializers.Constant(name.endswith("gamma"))
            variable.assign(initializer(variable.shape, variable.dtype))

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
            device = contextlib.nullcontext() if is_fixed(batch) else tf.device("CPU:0")
            with device:
                dropout_key = tf.random.stateless_uniform([], dropout_key, None, None, tf.int32)
        values = self._values() | (tensors or {})
        one_pass = self._pass(batch, dropout_key, tracing)
        reads = self.head.read_by(self.config)
        named = [batch[name] for name in reads]
        rows = tf.concat(named, 0) if named else None
        last = self._states(one_pass, values, tracing, rows)[-1]
        states = [last]
        if len(named) > 1:
            sizes = [tf.shape(numbers)[0] for numbers in named]
            states = tf.split(last, sizes)
        return self.head.scores(states, values, one_pass)

    def hidden_states(self, batch: Batch, tracing: Tracing = Tracing()) -> list[Tensor]:
        """The embeddings and every layer's output, each [R, H] in the compute dtype, without
        dropout."""
        one_pass = self._pass(batch, None, tracing)
        return self._states(one_pass, self._values(), tracing)

    def _values(self) -> Tensors:
        # Not the variables: when TensorFlow has gathered rows of one, each read copies all of it.
        return {name: tf.convert_to_tensor(v.value) for name, v in self.named_tensors().items()}

    def _pass(self, batch: Batch, key: Tensor | None, tracing: Tracing) -> Pass:
        """One pass, with the operations that are fastest for it."""
        dtype = self.compute_dtype
        is_training = key is not None
        is_wide = self.config.hidden_size >= COMPILED_WIDTH
        # In float32 oneDNN fuses bias and GELU into its products. Without dropout that is the
        # fastest.
        pays = is_training or (tracing.compiles and dtype == "bfloat16")
        fastest = PLAIN
        if is_fixed(batch):
            fastest = tracing.in_xla or (ON_GPU if is_training else PLAIN)
        elif pays and is_wide and on_cpu():
            fastest = ON_CPU
        return self._encoder(self.config, batch, dtype, fastest, key)

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
            named = {name: value for name, value in tensors.items() if name.startswith(scope)}
            hidden_RH, named = tracing.stage(states[-1], named)
            of_layer = {name.removeprefix(scope): value for name, value in named.items()}
            call: Callable[..., Tensor] = partial(
                layer,
                place=tf.constant(1 + 3 * number),
                rows=rows if number == last else None,
                is_local=one_pass.is_local(number),
            )
            if recomputes:
                call = tf.recompute_grad(call)
            states.append(call(hidden_RH, of_layer))
        states[-1] = one_pass.finished(states[-1], tensors)
        return states
