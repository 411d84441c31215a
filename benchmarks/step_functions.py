"""The functions that step_export exports: gradients, a forward pass, an update, with arguments for one shape."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ringbase.settings import Settings, check_at_least, setting
from tasks.bench.load import SIZES, VOCABULARY, model_config

if TYPE_CHECKING:
    import keras
    from transformers import BertConfig

    from distributed.feed import Batch
    from distributed.optimizer import AllreduceOptimizer

Kind = Literal["squad", "pretraining", "step", "predict", "update"]
Precision = Literal["fp32", "bf16", "fp16"]
APPLYING = ("step", "update")  # the kinds that write variables
QUESTION_TOKENS, MASKED_SHARE = 6, 0.15
KEY = (1, 2)  # for dropout
NOISE = 0.02  # added to all variables: a bias that is 0 would hide faults


@dataclass(frozen=True, kw_only=True)
class ExportConfig(Settings):
    """What is exported, and its shapes."""

    kind: Kind = setting(
        "squad",
        "squad or pretraining: gradient and losses; step: SQuAD's gradient with clipping and update; predict: its "
        "forward pass; update: clipping and update alone",
        "model",
    )
    size: str = setting("base", "tiny, minilm, base or large, or a number of layers as wide as base's", "model")
    vocab_size: int = setting(VOCABULARY, "number of word embeddings", "model")
    batch_size: int = setting(32, "rows", "load")
    seq_length: int = setting(384, "tokens per row", "load")
    lengths: Literal["full", "mixed"] = setting(
        "full", "full rows, or rows of several lengths, padded to --seq_length", "load"
    )
    precision: Precision = setting("bf16", "precision of the matrix products", "model")
    dropout: float = setting(0.1, "dropout rate of the hidden states", "model")
    attention_dropout: float | None = setting(
        None, "dropout rate of the attention", "model", shown_default="--dropout"
    )
    values: Literal["none", "arguments", "all"] = setting(
        "none", "also write the arguments, or all parameters and TensorFlow's results in float32", "load"
    )
    output_file: str = setting("step", "path of the files to write, without .mlir, .json or .npz", "load")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "batch_size", "vocab_size")
        check_at_least(self, QUESTION_TOKENS + 2, "seq_length")
        if self.size not in SIZES and not (self.size.isdecimal() and int(self.size)):
            raise ValueError(f"--size must be {', '.join(SIZES)} or a number of layers, got {self.size!r}")

    @property
    def attention_rate(self) -> float:
        return self.dropout if self.attention_dropout is None else self.attention_dropout


class Functions(NamedTuple):
    """A Python function, its arguments, all variables of model and optimizer, and the parts of a gradient."""

    function: Callable
    arguments: tuple
    variables: "list[keras.Variable]"
    parts: list[tuple[str, int, int]]


def functions(config: ExportConfig) -> Functions:
    import tensorflow as tf

    from bert.model import Bert
    from distributed.gradient import TrainingStep, WholeStep
    from tasks.pretraining import examples
    from tasks.squad.program import span_loss

    is_pretraining = config.kind == "pretraining"
    model = Bert(bert_config(config), "pretraining" if is_pretraining else "span")
    for number, variable in enumerate(model.trainable_variables):
        variable.assign(variable + NOISE * tf.random.stateless_normal(variable.shape, [number, 0]))
    batch = batch_of(config)
    if config.kind == "predict":
        return Functions(lambda batch: model(batch), (batch,), model.variables, [])
    terms = ("mlm", "nsp") if is_pretraining else ("loss",)
    optimizer = _optimizer(config, model.trainable_variables, terms)
    variables = [*model.variables, optimizer.optimizer._learning_rate, *optimizer.state().values()]
    if config.kind == "update":
        shapes = [*(variable.shape for variable in optimizer.trainable), [len(terms)]]
        total = [1e-3 * tf.random.stateless_normal(shape, [number, 1]) for number, shape in enumerate(shapes)]
        return Functions(lambda *total: optimizer.apply(list(total)), tuple(total), variables, [])

    def loss(batch: "Batch", key: Any) -> dict[str, Any]:
        scores = model(batch, dropout_key=key)
        return examples.losses(scores, batch) if is_pretraining else {"loss": span_loss(scores, batch)}

    weights = examples.weights(batch) if is_pretraining else {"loss": float(config.batch_size)}
    arguments = (batch, optimizer.inverse_weights(weights), np.array(KEY, np.int32))
    if config.kind == "step":
        whole = WholeStep(loss, examples.weights, optimizer)
        return Functions(whole.in_graph, arguments, variables, [])
    step = TrainingStep(loss, examples.weights, optimizer)

    def gradient(*given: Any) -> Any:
        return tf.concat([tf.reshape(part, [-1]) for part in step.backward(*given)], 0)

    return Functions(gradient, arguments, variables, parts_of(optimizer))


def bert_config(config: ExportConfig) -> "BertConfig":
    size: Any = config.size if config.size in SIZES else "base"
    made = model_config(size, config.seq_length, config.vocab_size)
    if config.size not in SIZES:
        made.num_hidden_layers = int(config.size)
    made.hidden_dropout_prob, made.attention_probs_dropout_prob = config.dropout, config.attention_rate
    return made


def _optimizer(
    config: ExportConfig, variables: "list[keras.Variable]", terms: tuple[str, ...]
) -> "AllreduceOptimizer":
    import keras

    from bert.optimizer import AdamWeightDecay
    from distributed.collectives import open_collectives
    from distributed.devices import Device
    from distributed.optimizer import AllreduceOptimizer
    from distributed.world import World

    world = World(device=Device("gpu"))
    # A gradient needs no moments, and those of a large model take gigabytes.
    applies = config.kind in APPLYING
    inner = AdamWeightDecay(1e-4) if applies else keras.optimizers.SGD(1e-4)
    scales_loss = config.precision == "fp16"
    collectives = open_collectives(world, "local")
    return AllreduceOptimizer(inner, variables, world, collectives, terms, scales_loss=scales_loss)


def parts_of(optimizer: "AllreduceOptimizer") -> list[tuple[str, int, int]]:
    """The parts of the vector [gradients | loss sums]: their names, starts and ends."""
    names = [*(name_of(variable) for variable in optimizer.trainable), "loss sums"]
    sizes = [*(math.prod(variable.shape) for variable in optimizer.trainable), len(optimizer.loss_terms)]
    ends = list(itertools.accumulate(sizes))
    return list(zip(names, [0, *ends[:-1]], ends, strict=True))


def name_of(variable: "keras.Variable") -> str:
    """Google's name of a tensor of the model; Keras' path of the optimizer's variables."""
    return variable.path if variable.path.startswith("adam") else variable.name.replace(".", "/")


def flop_of(config: ExportConfig) -> float:
    """Operations of the model's matrix products, without the heads; 0 for an update alone."""
    from tasks.bench.products import model_flop

    if config.kind == "update":
        return 0.0
    trained = model_flop(bert_config(config), lengths_of(config))
    return trained / 3 if config.kind == "predict" else trained


def lengths_of(config: ExportConfig) -> np.ndarray:
    """The number of tokens of each row, int64 [batch_size], descending."""
    if config.lengths == "full":
        return np.full(config.batch_size, config.seq_length)
    lengths = np.random.default_rng(0).integers(QUESTION_TOKENS + 2, config.seq_length + 1, config.batch_size)
    return -np.sort(-lengths)


def batch_of(config: ExportConfig) -> "Batch":
    """One group of rows of random tokens, as the programs make it for XLA."""
    from bert.batch import fixed
    from tasks.pretraining import examples
    from tasks.squad import program

    rows, width = config.batch_size, config.seq_length
    generator = np.random.default_rng(1)
    lengths = lengths_of(config)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = generator.integers(0, config.vocab_size, offsets[-1], dtype=np.int32)
    answers = generator.integers(QUESTION_TOKENS, lengths).astype(np.int32)
    masked = np.maximum(1, (MASKED_SHARE * lengths).astype(np.int64))
    masked_offsets = np.concatenate([[0], np.cumsum(masked)])
    positions = np.concatenate([np.arange(count) for count in masked])
    question_tokens = np.full(rows, QUESTION_TOKENS, np.int32)
    fields = {
        "input_ids": (tokens, offsets), "question_tokens": question_tokens, "sentence_a_tokens": question_tokens,
        "start_position": answers, "end_position": answers, "is_random_next": answers % 2,
        "masked_lm_positions": (positions, masked_offsets),
        "masked_lm_ids": (tokens[: masked_offsets[-1]], masked_offsets),
    }  # fmt: skip

    grouping = fixed(((rows, width),))
    if config.kind == "pretraining":
        most = int(np.max(masked))
        return examples.collate(fields, None, 0, grouping, lambda length: most)
    return program.collate(fields, grouping)
