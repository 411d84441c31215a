"""A fine-tuning changes the word embeddings of the tokens in its data, and of no others."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert.batch import Batch
from bert.model import Bert, Stage, Tracing, no_stage

WORDS = "bert/embeddings/word_embeddings"


class AllWords:
    """The model's own variables, all of which are trained, but for the tensors with `frozen` names,
    which have no gradient, no sum over ranks and no moments. `names` are those of `variables`."""

    read: tuple[keras.Variable, ...] = ()  # of the model, whose values the training only reads

    def __init__(self, model: Bert, tracing: Tracing, frozen: Collection[str] = ()):
        self._model = model
        self._tracing = tracing
        tensors = model.named_tensors()
        # in the model's order, on all ranks, whatever that of `frozen`
        self._frozen = {name: each for name, each in tensors.items() if name in frozen}
        self.read = tuple(self._frozen.values())
        self.names = [name for name in tensors if name not in self._frozen]
        self.variables = [tensors[name] for name in self.names]

    def scores(self, batch: Batch, dropout_key: tf.Tensor, stage: Stage = no_stage) -> Any:
        """The model's scores in training, with a stage before each layer."""
        # A gradient tape records nothing that depends on these alone: the backward pass ends there.
        constant = {name: tf.stop_gradient(each.value) for name, each in self._frozen.items()}
        return self._model(batch, dropout_key, constant, replace(self._tracing, stage=stage))

    def take(self) -> None:
        """Takes the values of the model."""

    def write_back(self) -> None:
        """Gives the model the values that were trained."""


class TrainedWords(AllWords):
    """The rows of a model's word embeddings for these ids, int [n], in a variable of their own,
    [U, E].

    Only `trained` has a gradient, a sum over ranks and moments. The other rows keep their values;
    in Google's code they decay: each step multiplies them by 1 - rate * weight decay.
    """

    def __init__(self, model: Bert, ids: np.ndarray, tracing: Tracing):
        super().__init__(model, tracing)
        self._table = model.named_tensors()[WORDS]
        self.read = (self._table,)
        num_words, width = self._table.shape
        is_trained = np.zeros(num_words, bool)
        is_trained[ids[ids < num_words]] = True  # others are an error when a batch has them
        is_trained[0] = True  # the id in rows of the hidden state without a token
        self._ids = np.flatnonzero(is_trained)
        places = np.full(num_words, -1)
        places[self._ids] = np.arange(len(self._ids))
        self._places = tf.constant(places, tf.int32)
        zeros = np.zeros((len(self._ids), width), np.float32)
        self._trained = keras.Variable(zeros, dtype=self._table.dtype, name=self._table.name)
        for number, variable in enumerate(self.variables):
            if variable is self._table:
                self.variables[number] = self._trained

    def scores(self, batch: Batch, dropout_key: tf.Tensor, stage: Stage = no_stage) -> Any:
        places = tf.gather(self._places, batch["input_ids"])
        batch = batch | {"input_ids": places}
        words = {WORDS: tf.convert_to_tensor(self._trained.value)}
        return self._model(batch, dropout_key, words, replace(self._tracing, stage=stage))

    def take(self) -> None:
        self._trained.assign(tf.gather(tf.convert_to_tensor(self._table.value), self._ids))

    def write_back(self) -> None:
        # Not in place: each later read of the variable would then copy it.
        updated = tf.tensor_scatter_nd_update(
            self._table.value, self._ids[:, None], self._trained.value
        )
        self._table.assign(updated)
