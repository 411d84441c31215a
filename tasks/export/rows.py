"""Rows of token ids from the pieces of texts, inside a graph: as tasks/texts.py and tasks/squad/windows.py do.

Shapes, as suffixes: B texts, T tokens of the longest row.
"""

from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from bert.text.tokenizer import Tokenizer
from tasks.export.text_graph import Pieces

LOWEST = -1e30


@dataclass(frozen=True)
class Limits:
    """Settings of the run: see tasks/squad/settings.py. `gives_no_answer`: questions may have no answer."""

    max_seq_length: int
    max_query_length: int = 64
    max_answer_length: int = 30
    gives_no_answer: bool = False
    null_score_diff_threshold: float = 0.0


class IdRows(NamedTuple):
    """The model's inputs, int32 [B, T]; `attention_mask` is 0 for padding, else 1."""

    input_ids: tf.Tensor
    token_type_ids: tf.Tensor
    attention_mask: tf.Tensor


def text_rows(first: tf.RaggedTensor, tokenizer: Tokenizer, limits: Limits) -> IdRows:
    """Rows `[CLS] first [SEP]`; longer texts are cut."""
    kept = tf.minimum(first.row_lengths(), limits.max_seq_length - 2)
    return _rows([_first_of(first, kept)], tokenizer)


def pair_rows(first: tf.RaggedTensor, second: tf.RaggedTensor, tokenizer: Tokenizer, limits: Limits) -> IdRows:
    """Rows `[CLS] first [SEP] second [SEP]`; pairs are cut as `tasks.texts.truncated` says."""
    room = tf.constant(limits.max_seq_length - 3, tf.int64)
    lengths = first.row_lengths(), second.row_lengths()
    kept = tf.minimum(lengths[1], tf.maximum(room // 2, room - lengths[0]))
    return _rows([_first_of(first, tf.minimum(lengths[0], room - kept)), _first_of(second, kept)], tokenizer)


class QuestionRows(NamedTuple):
    """Rows `[CLS] question [SEP] context [SEP]`.

    Attributes:
      starts, ends: int32 [B, T]: the characters of the context that a token stands for; 0 where `is_context` is
        False.
    """

    ids: IdRows
    is_context: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor

    def answers(self, context_B: tf.Tensor, start_BT: tf.Tensor, end_BT: tf.Tensor, limits: Limits) -> dict:
        """The best answer of each context [B] by the scores of its tokens.

        `answer` is its text, "" for none; `answer_start` and `answer_end` its characters in the context; `score`
        the sum of its start and end score; and `null_odds`, where there may be no answer, how much the score of
        none exceeds it.
        """
        masked = [tf.where(self.is_context, scores, LOWEST) for scores in (start_BT, end_BT)]
        length = tf.shape(start_BT)[1]
        band_TT = tf.linalg.band_part(
            tf.ones([length, length]), 0, tf.minimum(limits.max_answer_length, length) - 1
        )
        sums_BTT = tf.where(band_TT > 0, masked[0][:, :, None] + masked[1][:, None], 2 * LOWEST)
        flat = tf.reshape(sums_BTT, [-1, length * length])
        best_B = tf.argmax(flat, 1, output_type=tf.int32)
        score_B = tf.gather(flat, best_B, batch_dims=1)
        first_B = tf.gather(self.starts, best_B // length, batch_dims=1)
        last_B = tf.gather(self.ends, best_B % length, batch_dims=1)
        is_answer = tf.reduce_any(self.is_context, 1)
        extra = {}
        if limits.gives_no_answer:
            extra["null_odds"] = start_BT[:, 0] + end_BT[:, 0] - score_B
            is_answer &= extra["null_odds"] <= limits.null_score_diff_threshold
        first_B, last_B = (tf.where(is_answer, place, 0) for place in (first_B, last_B))
        text_B = tf.strings.substr(context_B, first_B, last_B - first_B, unit="UTF8_CHAR")
        return {"answer": text_B, "answer_start": first_B, "answer_end": last_B, "score": score_B, **extra}


def question_rows(
    question: tf.RaggedTensor, context: Pieces, tokenizer: Tokenizer, limits: Limits
) -> QuestionRows:
    """Rows of questions and contexts. Questions are cut; a context that does not fit is an error of the graph."""
    question = _first_of(question, tf.minimum(question.row_lengths(), limits.max_query_length))
    total = question.row_lengths() + context.ids.row_lengths() + 3
    message = (
        f"question and context have more than {limits.max_seq_length} tokens: cut the context into windows, as "
        "ringbert.QuestionAnswering does"
    )
    check = tf.debugging.assert_less_equal(total, tf.constant(limits.max_seq_length, tf.int64), message)
    with tf.control_dependencies([check]):
        rows = _rows([question, context.ids], tokenizer)
    zeros = question * 0

    def beside(values: tf.RaggedTensor) -> tf.Tensor:
        """The values of the context's tokens in the places of the rows, and 0 in the others."""
        return _joined([zeros, values], 0, 0).to_tensor()

    is_context = beside(tf.ones_like(context.ids)) > 0
    return QuestionRows(rows, is_context, beside(context.starts), beside(context.ends))


def _rows(parts: list[tf.RaggedTensor], tokenizer: Tokenizer) -> IdRows:
    """The model's inputs from one or two texts."""
    ids = _joined(parts, tokenizer.cls_id, tokenizer.sep_id)
    types = tf.concat([_joined(parts[:1], 0, 0) * 0, *(_ended(part * 0, 0) + 1 for part in parts[1:])], 1)
    return IdRows(ids.to_tensor(tokenizer.pad_id), types.to_tensor(), tf.ones_like(ids).to_tensor())


def _joined(parts: list[tf.RaggedTensor], first: int, end: int) -> tf.RaggedTensor:
    """`first`, then each part with `end` after it."""
    number = parts[0].nrows(tf.int32)
    return tf.concat([tf.fill([number, 1], first), *(_ended(part, end) for part in parts)], 1)


def _ended(part: tf.RaggedTensor, end: int) -> tf.RaggedTensor:
    return tf.concat([part, tf.fill([part.nrows(tf.int32), 1], end)], 1)


def _first_of(ragged: tf.RaggedTensor, kept: tf.Tensor) -> tf.RaggedTensor:
    """The first `kept` values of each row; `kept` is int64 [rows], at most the lengths."""
    places = tf.ragged.range(ragged.row_starts(), ragged.row_starts() + kept)
    return places.with_flat_values(tf.gather(ragged.flat_values, places.flat_values))
