"""Rows of tokens -> what a model computes of them as a batch; the one place that knows how a batch
is made."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import tensorflow as tf

from bert import batch as batches
from bert.batch import by_length, in_one_group, rounded_up
from bert.heads import MASKED_WORDS
from bert.model import Tracing
from distributed.gradient import traced_once
from ringbase.ragged import joined
from tasks.classifier.task import LabelTask
from tasks.pretraining.task import MaskedTask
from tasks.runs.task import Trainable
from tasks.squad.task import SpanTask
from tasks.tagger.task import TagTask

TASKS: dict[str, Trainable] = {
    "span": SpanTask(),
    "classifier": LabelTask(),
    "tagger": TagTask(),
    "pretraining": MaskedTask(0, None, 1, max_predictions_per_seq=1 << 16),
    "masked": MaskedTask(0, None, 1, 1 << 16, has_next_sentence=False, head=MASKED_WORDS),
}


@dataclass(frozen=True)
class Row:
    """The tokens of an example, with targets for every head."""

    input_ids: Sequence[int]
    num_first: int  # tokens of the first text, whose type is 0
    span: tuple[int, ...] = (0, 0)  # the first and the last token of the answer
    label: int = 0  # of the classifier, and whether the next sentence is a random one
    masked: dict[int, int] = field(default_factory=dict)  # position -> id
    tags: Sequence[int] = ()  # of each token, -1 for none


@dataclass(frozen=True)
class Computed:
    """What a model computes of a batch. The scores of a row are float32 [tokens, 2], without a head
    [tokens, H], [labels], or those of the masked tokens and of the next sentence side by side."""

    scores: list[np.ndarray]
    loss: float  # the sum of the terms' means
    gradients: dict[str, np.ndarray]  # by Google's names; empty without a head


def random_rows(lengths, vocab_size):
    chance = np.random.default_rng(len(lengths))
    made = []
    for length in lengths:
        places = chance.permutation(length)[: 1 + length // 7].tolist()
        span = tuple(int(place) for place in np.sort(chance.integers(0, length, 2)))
        ids, masked = chance.integers(0, vocab_size, (2, length)).tolist()
        masked = {place: masked[place] for place in sorted(places)}
        made.append(
            Row(ids, int(chance.integers(1, length + 1)), span, int(chance.integers(2)), masked)
        )
    return made


def grouping_of(name):
    """Row lengths -> the order of the rows in the batch, and its groups: "padded", "by length", or
    "compiled" by XLA, in shapes with room to spare."""

    def fixed(lengths):
        longest, second = rounded_up(np.sort(lengths)[::-1][:2])
        order = np.argsort(-np.asarray(lengths), kind="stable")
        return order, ((1, int(longest)), (len(lengths), int(second)))  # the last row is empty

    return {"padded": in_one_group, "by length": by_length, "compiled": fixed}[name]


def batch_of(head, rows, grouping="padded"):
    """The batch of a task with this head, with targets."""

    def array(values):
        return np.array(list(values), np.int32)

    def ragged(lists):
        return joined(map(array, lists))

    heads = array(row.num_first for row in rows)
    labels = array(row.label for row in rows)
    fields = {
        "input_ids": ragged(row.input_ids for row in rows),
        "sentence_a_tokens": heads,
        "question_tokens": heads,
        "label": labels,
        "start_position": array(row.span[0] for row in rows),
        "end_position": array(row.span[1] for row in rows),
        "masked_lm_positions": ragged(row.masked for row in rows),
        "masked_lm_ids": ragged(row.masked.values() for row in rows),
        "tags": ragged(row.tags or [0] * len(row.input_ids) for row in rows),
    }
    if head == "pretraining":
        fields["is_random_next"] = labels
    make = TASKS[head].batch if head in TASKS else lambda *rows: batches.batch_of(*rows)[1]
    return make(fields, grouping_of(grouping))


class Computer:
    """Computes scores, loss and gradients of a model in graphs, as training does; `more` is added
    to batches."""

    def __init__(self, model, tracing=None, **more):
        self.model, self.head, self.more = model, model.head.name, more
        self._tracing = tracing or Tracing()
        self._functions: dict = {}

    def __call__(self, rows, grouping="padded", key=None):
        """`key` is that of dropout, int32 [2]; with None the model predicts."""
        batch = batch_of(self.head, rows, grouping)
        weights = {} if self.head == "features" else TASKS[self.head].weights(batch)
        inverse = tf.constant([1 / weight for weight in weights.values()], tf.float32)
        of_key = () if key is None else (tf.constant(key, tf.int32),)
        kind = grouping, key is not None
        if kind not in self._functions:  # with unknown dimensions, or compiled for these
            by_xla = partial(tf.function, jit_compile=True, autograph=False)
            self._functions[kind] = (by_xla if grouping == "compiled" else traced_once)(
                self._compute
            )
        scores, loss, gradients = self._functions[kind](batch, inverse, *of_key)
        names = self.model.named_tensors() if self.head != "features" else ()
        return Computed(
            self._by_row(rows, scores, batch, grouping),
            float(loss),
            {
                name: tf.convert_to_tensor(part).numpy()
                for name, part in zip(names, gradients, strict=True)
            },
        )

    def _compute(self, batch, inverse, key=None):
        if self.head == "features":
            states = self.model(batch | self.more, dropout_key=key, tracing=self._tracing)
            return states, tf.zeros([]), []
        with tf.GradientTape() as tape:
            scores = self.model(batch | self.more, dropout_key=key, tracing=self._tracing)
            total = tf.reduce_sum(
                tf.stack([*TASKS[self.head].loss(scores, batch).values()]) * inverse
            )
        variables = [variable.value for variable in self.model.named_tensors().values()]
        return scores, total, tape.gradient(total, variables, unconnected_gradients="zero")

    def _by_row(self, rows, scores, batch, grouping):
        order, _ = grouping_of(grouping)(np.array([len(row.input_ids) for row in rows]))
        found: dict[int, np.ndarray] = {}
        masked = 0
        for place, number in enumerate(order.tolist()):
            if isinstance(scores, dict):
                here = scores["mlm"][masked : masked + len(rows[number].masked)].numpy()
                next_sentence = scores["nsp"][place] if "nsp" in scores else here[:0, 0]
                found[number] = np.concatenate([here.ravel(), next_sentence])
                masked += len(here)
            elif self.model.head.per == "example":
                found[number] = scores[place].numpy()
            else:
                first = batch["first_tokens"][place]
                found[number] = scores[first : first + len(rows[number].input_ids)].numpy()
        return [found[number] for number in range(len(rows))]
