"""The heads of BERT: what a model adds to the encoder, an object for each.

A new one is a class and an entry in HEADS, and, for tensors of other names, entries in the tables
of bert/weights.py. Shapes, as suffixes, are those of bert/model.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf
from tensorflow import Tensor

from bert import ops
from bert.batch import Batch
from bert.configuration import BertConfig
from bert.layers import (
    Shapes,
    Tensors,
    dense_shapes,
    in_places,
    norm_shapes,
    normalized,
    product,
    score_shapes,
    scores,
    split_groups,
)
from bert.ops import ACTIVATIONS
from bert.passes import Pass

POOLER, POOLER_NORM = "bert/pooler/dense", "bert/pooler"
TRANSFORM, WORDS_BIAS = "cls/predictions/transform", "cls/predictions/output_bias"


@dataclass(frozen=True, kw_only=True)
class Head:
    """What stands above the encoder. This one adds nothing: its output is the last hidden state
    [R, H], in the compute dtype."""

    name: str
    transformers: str  # how the name of the class ends that loads such a model there
    pipeline: str  # what such a model is for, by the hub's name
    reads: tuple[str, ...]  # the batch's arrays with the rows that it reads; none: all rows
    per: Literal["token", "example"]  # what an output belongs to
    reads_words: bool = False  # its scores need the embeddings of all words
    library: str = "transformers"  # which loads the folder of such a model
    program: str = ""  # of ringbert, which trains such models and predicts with them
    predictor: str = ""  # the same in Python

    def shapes(self, config: BertConfig) -> Shapes:
        """Its tensors: new when a training starts, and unused by models with other heads."""
        return {}

    def read_by(self, config: BertConfig) -> tuple[str, ...]:
        """`reads` in a model with this configuration."""
        return self.reads

    def scores(self, states: Sequence[Tensor], tensors: Tensors, one_pass: Pass) -> Any:
        """Float32 scores, from the rows of the last hidden state that are named in `reads`."""
        return states[0]


@dataclass(frozen=True, kw_only=True)
class Embedding(Head):
    """A vector for each text [B, H]; of length 1 if `normalizes`. `pool` makes it of the states of
    the tokens, [CLS] and [SEP] too; None: it is the state of [CLS], the only one that is read."""

    pool: Callable[[Tensor, Batch], Tensor] | None = None
    normalizes: bool = True

    def scores(self, states, tensors, one_pass):
        vectors_BH = tf.cast(states[0], tf.float32)
        if self.pool:
            vectors_BH = self.pool(vectors_BH, one_pass.batch)
        return tf.math.l2_normalize(vectors_BH, -1) if self.normalizes else vectors_BH


class Span(Head):
    """Start and end of each token [R, 2] (google-research/bert `run_squad.py`)."""

    def shapes(self, config):
        shapes = score_shapes(self.scope(config), 2, config.hidden_size)
        return shapes | pooler_of_tokens_shapes(config)

    def scope(self, config: BertConfig) -> str:
        return "" if config.architecture.pooler.of_tokens else "cls/squad/"

    def scores(self, states, tensors, one_pass):
        states_RH = states[0]
        if one_pass.config.architecture.pooler.of_tokens:
            pooled_RH = pooled(states_RH, tensors, one_pass)
            states_RH = one_pass.dropped(pooled_RH, 0)
        return scores(states_RH, tensors, self.scope(one_pass.config))


class Tagger(Head):
    """The labels of each token [R, L]."""

    def shapes(self, config):
        shapes = score_shapes("", len(config.labels), config.hidden_size)
        return shapes | pooler_of_tokens_shapes(config)

    def scores(self, states, tensors, one_pass):
        states_RH = states[0]
        if one_pass.config.architecture.pooler.of_tokens:
            states_RH = pooled(states_RH, tensors, one_pass)
        dropped_RH = one_pass.dropped(states_RH, 0)
        return scores(dropped_RH, tensors, "")


class Classifier(Head):
    """The labels of each example [B, L] (google-research/bert `run_classifier.py`)."""

    def shapes(self, config):
        shapes = score_shapes("", len(config.labels), config.hidden_size)
        return shapes | pooler_shapes(config)

    def read_by(self, config):
        return () if config.classifier_pooling == "mean" else self.reads

    def scores(self, states, tensors, one_pass):
        first_BH = states[0]
        if one_pass.config.classifier_pooling == "mean":
            means_BH = mean_of_tokens(ops.wide(first_BH), one_pass.batch)
            first_BH = tf.cast(means_BH, first_BH.dtype)
        pooled_BH = pooled(first_BH, tensors, one_pass)
        dropped_BH = one_pass.dropped(pooled_BH, 0)
        return scores(dropped_BH, tensors, "")


class Pretraining(Head):
    """Masked words and next sentences (`run_pretraining.py`): {"mlm": [M, V], "nsp": [B, 2]}."""

    def shapes(self, config):
        hidden = config.hidden_size
        shapes: Shapes = {WORDS_BIAS: (config.vocab_size,)}
        shapes |= score_shapes("cls/seq_relationship/", 2, hidden)
        shapes |= dense_shapes(f"{TRANSFORM}/dense", hidden, hidden)
        shapes |= norm_shapes(TRANSFORM, hidden)
        return shapes | dense_shapes(POOLER, hidden, hidden)

    def scores(self, states, tensors, one_pass):
        masked_MH, first_BH = states
        config, dtype = one_pass.config, masked_MH.dtype
        pooled_BH = pooled(first_BH, tensors, one_pass)
        masked_MH, bias_H = product(masked_MH, tensors, f"{TRANSFORM}/dense")
        masked_MH = ops.activated(masked_MH, bias_H, ACTIVATIONS[config.hidden_act])
        masked_MH = normalized(masked_MH, tensors, TRANSFORM, config.layer_norm_eps)
        masked_MH = tf.cast(masked_MH, dtype)
        return {
            "mlm": scores_of_words(masked_MH, tensors),
            "nsp": scores(pooled_BH, tensors, "cls/seq_relationship/"),
        }


class MaskedWords(Head):
    """Masked words alone, behind the pooler of tokens: {"mlm": [M, V]}."""

    def shapes(self, config):
        shapes: Shapes = {WORDS_BIAS: (config.vocab_size,)}
        return shapes | pooler_of_tokens_shapes(config)

    def scores(self, states, tensors, one_pass):
        masked_MH = pooled(states[0], tensors, one_pass)
        return {"mlm": scores_of_words(masked_MH, tensors)}


def scores_of_words(masked_MH: Tensor, tensors: Tensors) -> Tensor:
    """float32 [M, V]. The embeddings of words are the weights."""
    words_VH = tf.cast(tensors["bert/embeddings/word_embeddings"], masked_MH.dtype)
    scores_MV = tf.matmul(masked_MH, words_VH, transpose_b=True)
    return ops.wide(scores_MV) + tensors[WORDS_BIAS]


def mean_of_tokens(states_RH: Tensor, batch: Batch) -> Tensor:
    """The mean of the states of each row of attention [B, H]; 0 for one without a token."""
    mask_P1 = tf.cast(batch["attention_mask"], states_RH.dtype)[:, None]
    masks = split_groups(mask_P1, batch)
    states = in_places(states_RH, batch)
    means = []
    for states_BTH, mask_BT1 in zip(states, masks, strict=True):
        sums_BH = tf.reduce_sum(states_BTH * mask_BT1, 1)
        counts_B1 = tf.reduce_sum(mask_BT1, 1)
        means.append(sums_BH / tf.maximum(counts_B1, 1.0))
    return tf.concat(means, 0)


def pooler_shapes(config: BertConfig) -> Shapes:
    hidden, pooler = config.hidden_size, config.architecture.pooler
    shapes = dense_shapes(POOLER, hidden, hidden, has_bias=not pooler.is_normalized)
    if pooler.is_normalized:
        shapes |= norm_shapes(POOLER_NORM, hidden, has_bias=False)
    return shapes


def pooler_of_tokens_shapes(config: BertConfig) -> Shapes:
    return pooler_shapes(config) if config.architecture.pooler.of_tokens else {}


def pooled(first_BH: Tensor, tensors: Tensors, one_pass: Pass) -> Tensor:
    """The pooler's output for each example, or for each token."""
    config, dtype = one_pass.config, first_BH.dtype
    pooler = config.architecture.pooler
    if pooler.drops_first:
        first_BH = one_pass.dropped(first_BH, 1)
    product_BH, bias_H = product(first_BH, tensors, POOLER)
    activation = ACTIVATIONS[pooler.activation or config.classifier_activation]
    result_BH = activation(ops.biased(product_BH, bias_H))
    if pooler.is_normalized:
        normed_BH = normalized(result_BH, tensors, POOLER_NORM, config.layer_norm_eps)
        result_BH = tf.cast(normed_BH, dtype)
    return result_BH


FEATURES = Head(
    name="features",
    transformers="Model",
    pipeline="feature-extraction",
    reads=(),
    per="token",
)
SPAN = Span(
    name="span",
    transformers="ForQuestionAnswering",
    pipeline="question-answering",
    reads=(),
    per="token",
    program="bert-squad",
    predictor="QuestionAnswering",
)
TAGGER = Tagger(
    name="tagger",
    transformers="ForTokenClassification",
    pipeline="token-classification",
    reads=(),
    per="token",
    program="bert-tagger",
    predictor="Tagger",
)
CLASSIFIER = Classifier(
    name="classifier",
    transformers="ForSequenceClassification",
    pipeline="text-classification",
    reads=("first_tokens",),
    per="example",
    program="bert-classifier",
    predictor="Classifier",
)
PRETRAINING = Pretraining(
    name="pretraining",
    transformers="ForPreTraining",
    pipeline="fill-mask",
    reads=("masked_tokens", "first_tokens"),
    per="example",
    reads_words=True,
)
MASKED_WORDS = MaskedWords(
    name="masked",
    transformers="ForMaskedLM",
    pipeline="fill-mask",
    reads=("masked_tokens",),
    per="example",
    reads_words=True,
)
# how the states of tokens become a vector, by the names of --pooling
POOLINGS: Mapping[str, Callable[[Tensor, Batch], Tensor] | None] = {
    "mean": mean_of_tokens,
    "cls": None,
}
# by the name of the pooling, and whether a vector has length 1
EMBEDDINGS = {
    (pooling, normalizes): Embedding(
        name=f"embedding_{pooling}{'' if normalizes else '_of_any_length'}",
        transformers="Model",
        pipeline="sentence-similarity",
        library="sentence-transformers",
        reads=() if pool else ("first_tokens",),
        per="example",
        pool=pool,
        normalizes=normalizes,
        program="bert-embedder",
        predictor="Embedder",
    )
    for pooling, pool in POOLINGS.items()
    for normalizes in (True, False)
}
_ALL = FEATURES, SPAN, TAGGER, CLASSIFIER, PRETRAINING, MASKED_WORDS, *EMBEDDINGS.values()
HEADS = {head.name: head for head in _ALL}


def head_in(names: Iterable[str], config: BertConfig) -> Head:
    """The head that can predict with tensors of these names; FEATURES without one. Where several
    have the same tensors, config.json names the class."""
    present = set(names)
    candidates = SPAN, CLASSIFIER, TAGGER
    heads = [head for head in candidates if present.issuperset(head.shapes(config))]
    named = kind_in(config)
    if named in heads:
        return named
    return heads[0] if heads else FEATURES


def kind_in(config: BertConfig) -> Head | None:
    """The head that config.json names; None for a model that is no span model, classifier or
    tagger, or where it names no class."""
    for head in (SPAN, CLASSIFIER, TAGGER):
        if config.class_name.endswith(head.transformers):
            return head
    return None
