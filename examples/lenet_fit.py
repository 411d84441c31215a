"""LeNet on handwritten digits by Keras `fit` and Horovod's callbacks.

    bert-launch -np 2 -- python examples/lenet_fit.py

Only rank 0 prints and saves. The saved model needs neither hvd nor MPI: plain Keras loads it.
"""

import argparse

import ringbert.horovod as hvd

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load() -> list[np.ndarray]:
    """Digits for training and for the test, enlarged from 8 x 8 pixels to LeNet's 32 x 32, and
    their labels."""
    digits = load_digits()
    images = np.repeat(np.repeat(digits.images, 4, axis=1), 4, axis=2)
    images = (images[..., np.newaxis] / 16).astype(np.float32)
    return train_test_split(images, digits.target, test_size=360, random_state=1)


def make_lenet() -> keras.Model:
    layers = keras.layers
    convolutions = [
        layers.Conv2D(6, 5, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(16, 5, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
    ]
    dense = [layers.Dense(120, activation="relu"), layers.Dense(84, activation="relu")]
    return keras.Sequential(
        [keras.Input([32, 32, 1]), *convolutions, *dense, layers.Dense(10, "softmax")]
    )


def train(
    model: keras.Model, data: tf.data.Dataset, test: tf.data.Dataset, options: argparse.Namespace
) -> None:
    rate = options.learning_rate * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    steps = len(data) // options.batch_size // hvd.size()  # per epoch
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),  # before the callbacks that use metrics
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=3, steps_per_epoch=steps),
    ]
    if hvd.rank() == 0:
        best = keras.callbacks.ModelCheckpoint(
            options.model_file, monitor="val_accuracy", save_best_only=True
        )
        callbacks.append(best)

    mine = data.shard(hvd.size(), hvd.rank()).shuffle(len(data), seed=1)
    model.fit(
        mine.repeat().batch(options.batch_size),
        shuffle=False,  # the data are shuffled
        validation_data=test,
        steps_per_epoch=steps,
        epochs=options.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=32, help="digits per rank and step")
    parser.add_argument("--learning_rate", type=float, default=0.01, help="of one rank")
    parser.add_argument("--model_file", default="digits.keras", help="where to save the best model")
    options = parser.parse_args()
    hvd.init()
    images, test_images, labels, test_labels = load()
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    test = tf.data.Dataset.from_tensor_slices((test_images, test_labels)).batch(64)
    train(make_lenet(), data, test, options)
    if hvd.rank() == 0:
        _, accuracy = keras.models.load_model(options.model_file).evaluate(test, verbose=0)
        print(f"{options.model_file}: {accuracy:.2%} of the test digits are right")


if __name__ == "__main__":
    main()
