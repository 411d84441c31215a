"""A fine-tuning changes the word embeddings of the tokens in its data, and of no others."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert.batch import Batch
from bert.model import Bert

WORDS = "bert/embeddings/word_embeddings"


class TrainedWords:
    """The rows of a model's word embeddings for these ids, int [n], in a variable of their own, [U,
    E].

    Only `trained` has a gradient, a sum over ranks and moments. The other rows keep their values;
    in Google's code they decay: each step multiplies them by 1 - rate * weight decay.
    """

    def __init__(self, model: Bert, ids: np.ndarray):
        self._model, self.table = model, model.named_tensors()[WORDS]
        is_trained = np.zeros(self.table.shape[0], bool)
        is_trained[ids[ids < len(is_trained)]] = True  # others are an error when a batch has them
        is_trained[0] = True  # the id in rows of the hidden state without a token
        self.ids = np.flatnonzero(is_trained)
        self._places = tf.constant(np.where(is_trained, np.cumsum(is_trained) - 1, -1), tf.int32)
        size = len(self.ids), self.table.shape[1]
        self.trained = keras.Variable(
            np.zeros(size, np.float32), dtype=self.table.dtype, name=self.table.name
        )
        self.variables = [
            self.trained if each is self.table else each for each in model.trainable_variables
        ]

    def scores(self, batch: Batch, dropout_key: tf.Tensor) -> Any:
        """The model's scores in training."""
        rows = {"input_ids": tf.gather(self._places, batch["input_ids"])}
        return self._model(batch | rows, dropout_key, {WORDS: self.trained.value})

    def take(self) -> None:
        """Gives the trained rows the values of the model."""
        self.trained.assign(tf.gather(self.table.value, self.ids))

    def give_back(self) -> None:
        """Gives the model the values of the trained rows."""
        self.table.value.scatter_nd_update(self.ids[:, None], self.trained.value)
