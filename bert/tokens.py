"""The tokens of padded rows without their padding.

On CPUs most of a step's time goes into the products of linear layers, where padding costs as much as text. There,
the hidden state has a row for each token only, and attention alone sees the places of padded rows.

P places, R rows of the hidden state; the other shapes are those of bert/model.py.
"""

from dataclasses import dataclass

import tensorflow as tf

from bert import ops
from bert.inputs import example_numbers, is_fixed


def leaves_padding_out(inputs: dict) -> bool:
    """Whether the model computes these inputs, rows in groups of similar length, without their padding.

    A GPU would let the host wait for the number of tokens, and XLA compiles for fixed shapes.
    """
    return "groups" in inputs and not is_fixed(inputs) and ops.on_cpu()


@dataclass(frozen=True)
class Tokens:
    """Which places of a batch's padded rows hold a token.

    The hidden state has a row for each of them, in order, and at least one row of padding at its end.

    Attributes:
      count: int32 [], the number of tokens.
      row_of_place: int32 [P + 1], the row of each place's token; the first row of padding where there is none, and
        at the end.
      place_of_row: int32 [R], the place of each row's token; P for the rows of padding.
    """

    count: tf.Tensor
    row_of_place: tf.Tensor
    place_of_row: tf.Tensor

    @classmethod
    def of(cls, inputs: dict[str, tf.Tensor]) -> "Tokens":
        """The tokens of the inputs, without rows of padding."""
        holds_token = tf.reshape(example_numbers(inputs), [-1]) > 0
        place_of_row = tf.reshape(tf.cast(tf.where(holds_token), tf.int32), [-1])
        count = tf.size(place_of_row)
        row_of_place = tf.where(holds_token, tf.cumsum(tf.cast(holds_token, tf.int32)) - 1, count)
        return cls(count, tf.concat([row_of_place, [count]], 0), place_of_row)

    def padded(self, padding_rows: tf.Tensor | int) -> "Tokens":
        """The same for a hidden state that ends with `padding_rows` rows of padding."""
        places = tf.fill([padding_rows], tf.size(self.row_of_place) - 1)
        return Tokens(self.count, self.row_of_place, tf.concat([self.place_of_row, places], 0))

    def ids(self, ids: tf.Tensor) -> tf.Tensor:
        """Of the numbers of all places, [P] or [B, T], those of the tokens."""
        return tf.gather(tf.reshape(ids, [-1]), self.place_of_row[: self.count])

    def rows(self, places: tf.Tensor) -> tf.Tensor:
        """The rows of these places, int32 [M] both."""
        return tf.gather(self.row_of_place, places)

    def in_places(self, x: tf.Tensor) -> tf.Tensor:
        """[R, W] -> [P, W]. Places without a token get the numbers of a row of padding."""
        return tf.gather(x, self.row_of_place[:-1])

    def in_attention(self, x: tf.Tensor) -> tf.Tensor:
        """[R, W] -> [P + 1, W], as `in_places`; the last place has no token.

        The gradient must be 0 in the last place. It is not used in the others that have no token.
        """
        return _gathered(x, self.row_of_place, self.place_of_row)

    def from_attention(self, x: tf.Tensor) -> tf.Tensor:
        """[P + 1, W] -> [R, W]. Rows of padding get the numbers of the last place."""
        return _gathered(x, self.place_of_row, self.row_of_place)


def _gathered(x: tf.Tensor, there: tf.Tensor, back: tf.Tensor) -> tf.Tensor:
    """The rows `there` of x, with a gradient that is gathered too. TensorFlow's own would add up rows of zeros."""

    @tf.custom_gradient
    def differentiable(x):
        return tf.gather(x, there), lambda gradient: tf.gather(gradient, back)

    return differentiable(x)
