"""Small data, the same weights for every version of Keras, and the line of JSON in which a script
reports."""

import json

import numpy as np
import tensorflow as tf

REPORTS = {}


def digits(number, seed=0):
    """Images [number, 8, 8, 1] of ten noisy patterns, float32, and their labels, int64."""
    random = np.random.default_rng(seed)
    patterns = np.random.default_rng(99).random((10, 8, 8, 1))
    labels = random.integers(0, 10, number)
    return (patterns[labels] + 0.3 * random.standard_normal((number, 8, 8, 1))).astype(
        np.float32
    ), labels


def sentences(number, length=12, vocabulary=50, seed=0):
    """Token ids [number, length], int32, and labels: whether low ids are in the majority, int64."""
    ids = np.random.default_rng(seed).integers(0, vocabulary, (number, length)).astype(np.int32)
    return ids, ((ids < vocabulary // 2).sum(1) > length // 2).astype(np.int64)


def set_weights(model, seed=0):
    """Numbers that do not depend on Keras' initializers. Statistics of batch normalization keep
    their values."""
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        shape = tuple(variable.shape)
        variable.assign(
            (random.standard_normal(shape) / max(1, np.prod(shape[:-1])) ** 0.5).astype(np.float32)
        )


def perceptron():
    """Images -> probabilities of the ten digits, with the weights of `set_weights`."""
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(8, 8, 1)),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax", dtype="float32"),
        ]
    )
    set_weights(model)
    return model


def fingerprint(arrays):
    """One number for each array, to which each of its elements contributes with a factor of its
    own."""
    prints = []
    for array in arrays:
        values = np.asarray(array, np.float64).ravel()
        prints.append(
            float(values @ np.random.default_rng(values.size).standard_normal(values.size))
        )
    return prints


def report(rank, name, **numbers):
    """Prints the numbers of rank 0 as JSON, and keeps them for the program that runs many
    scripts."""
    REPORTS[name] = json.loads(json.dumps(numbers, default=float))
    if rank == 0:
        print(json.dumps({name: REPORTS[name]}), flush=True)
