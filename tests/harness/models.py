"""Models that several test files compute with, and how far two results are apart."""

from dataclasses import replace

import numpy as np
import tensorflow as tf
from harness import texts

from bert import configuration, weights
from bert.heads import HEADS
from bert.model import Bert
from bert.text import tokenizer

KEY = tf.constant([3, 5], tf.int32)


def error(ours, theirs):
    """The largest difference, as a share of the largest value."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def weights_of(model):
    """All weights of a Keras model as one vector."""
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def same_weights(hvd, model):
    """The weights of all ranks, which must have the same bits."""
    own = weights_of(model)
    bits = {weights.tobytes() for weights in hvd.allgather_object(own)}
    assert len(bits) == 1, "the ranks' weights differ"
    return own


def save_model(folder, head, **changes):
    """A Hugging Face folder of a tiny BERT with this head and random weights; `changes` are those
    of its configuration."""
    texts.write_model(folder / "source", num_layers=1)
    words = tokenizer.load(str(folder / "source/vocab.txt"))
    config = configuration.config_from_file(folder / "source/bert_config.json")
    weights.copied(Bert(replace(config, **changes), HEADS[head], seed=3), words)(folder / "model")
    return folder / "model"
