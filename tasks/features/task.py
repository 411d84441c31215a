"""The task of bert-features and `ringbert.Features`: the hidden states of texts, which has no head
and is not trained.

Tensors have their shape as a suffix: B rows, T tokens, R of the hidden state, H hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of
from bert.heads import FEATURES
from bert.model import Bert, Tracing
from tasks.runs.rows.cache import Tables, with_facts
from tasks.runs.rows.texts import Pairs, Tokenization, rows_of_texts
from tasks.runs.task import Task


@dataclass(frozen=True)
class FeaturesTask(Task[Pairs, Sequence]):
    """Texts and pairs of texts."""

    max_seq_length: int
    name, head = "features", FEATURES

    def batch(self, fields: dict, grouping: Grouping | None = None) -> Batch:
        return batch_of(fields, grouping)[1]

    def tables(self, texts: Pairs, tokenization: Tokenization) -> Tables:
        columns, facts = rows_of_texts(tokenization, texts.first, texts.second, self.max_seq_length)
        return with_facts({"rows": columns}, facts)

    def outputs(self, states_BTH: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"sequence_output": states_BTH}


def states_of(model: Bert, layers: Sequence[int]) -> Callable[..., tf.Tensor]:
    """A function: batch -> hidden states, float32 [R, layers, H]; state 0 is the embeddings'
    output."""

    def forward(batch: dict[str, tf.Tensor], tracing: Tracing) -> tf.Tensor:
        states = model.hidden_states(batch, tracing)
        return tf.stack([tf.cast(states[layer], tf.float32) for layer in layers], 1)

    return forward
