"""An LSTM that tells whether a sentence praises or not. It must read in order: "not bad at all" is
praise.

    bert-launch -np 2 -- python examples/lstm_text.py

The rate of Adadelta is multiplied by the number of ranks, and the epochs are divided by it: in an
epoch each rank reads all sentences, in an order of its own.
"""

import argparse
import math
import random

import ringbert.horovod as hvd

import keras
import numpy as np
import tensorflow as tf

GOOD, BAD = (
    ["good", "clever", "funny", "moving", "lovely"],
    ["bad", "dull", "boring", "silly", "awful"],
)
TURNING, PLAIN = ["not", "never", "hardly"], ["very", "really", "quite", "so"]
START = ["the film was", "i found it", "this book is", "the actors were", "it seemed"]
END = ["at all", "in my opinion", "from start to end", "i think", ""]
WORDS = sorted(set(" ".join([*START, *TURNING, *PLAIN, *GOOD, *BAD, *END]).split()))


def make_sentences(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sentences, and 1 for each that praises, else 0."""
    chance, texts, labels = random.Random(seed), [], []
    for _ in range(number):
        is_good, is_turned = chance.random() < 0.5, chance.random() < 0.3
        words = [START, TURNING if is_turned else PLAIN, GOOD if is_good else BAD, END]
        texts.append(" ".join(chance.choice(choices) for choices in words))
        labels.append(is_good != is_turned)
    return np.array(texts), np.array(labels, np.float32)


def make_model() -> keras.Model:
    """From the numbers of words to the probability of praise."""
    layers = [keras.layers.Embedding(len(WORDS) + 2, 16, mask_zero=True), keras.layers.LSTM(32)]
    return keras.Sequential(
        [keras.Input([12], dtype="int32"), *layers, keras.layers.Dense(1, "sigmoid")]
    )


def train(
    model: keras.Model, data: tf.data.Dataset, test: tf.data.Dataset, options: argparse.Namespace
) -> None:
    optimizer = keras.optimizers.Adadelta(options.learning_rate * hvd.size())
    model.compile(hvd.DistributedOptimizer(optimizer), "binary_crossentropy", metrics=["accuracy"])
    model.fit(
        data.shuffle(options.sentences, seed=hvd.rank()).batch(options.batch_size),
        shuffle=False,  # the data are shuffled
        epochs=math.ceil(options.epochs / hvd.size()),
        validation_data=test.batch(100),
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=12, help="of one rank")
    parser.add_argument("--batch_size", type=int, default=32, help="sentences per rank and step")
    parser.add_argument("--learning_rate", type=float, default=1.0, help="of one rank")
    options = parser.parse_args()
    hvd.init()
    numbers_of = keras.layers.TextVectorization(vocabulary=WORDS, output_sequence_length=12)
    data, test = (
        tf.data.Dataset.from_tensor_slices((numbers_of(texts), labels))
        for texts, labels in (
            make_sentences(options.sentences, seed=1),
            make_sentences(500, seed=2),
        )
    )
    model = make_model()
    train(model, data, test, options)
    sentences = ["the film was very dull", "the film was not dull at all", "i found it never funny"]
    probabilities = model.predict(numbers_of(np.array(sentences)), verbose=0)[:, 0]
    if hvd.rank() == 0:
        print(
            "\n".join(
                f"{p:.2f} praise: {text}" for p, text in zip(probabilities, sentences, strict=True)
            )
        )


if __name__ == "__main__":
    main()
