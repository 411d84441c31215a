"""LeNet on handwritten digits by a training loop of one's own.

    bert-launch -np 2 -- python examples/lenet_loop.py

The digits and the network are those of lenet_fit.py. hvd.DistributedGradientTape averages the
gradients over ranks. With N ranks a step has N times as many digits and N times the rate, and there
are N times fewer steps.
"""

import argparse

import ringbert.horovod as hvd
from lenet_fit import load, make_lenet

import keras
import numpy as np
import tensorflow as tf


def train(
    model: keras.Model, images: np.ndarray, labels: np.ndarray, options: argparse.Namespace
) -> None:
    loss_of = keras.losses.SparseCategoricalCrossentropy()
    optimizer = keras.optimizers.Adam(options.learning_rate * hvd.size())
    optimizer.build(model.trainable_variables)
    # All ranks start from rank 0's weights.
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    steps = options.epochs * len(images) // options.batch_size // hvd.size()
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shard(hvd.size(), hvd.rank())
    data = data.shuffle(len(images), seed=1).repeat().batch(options.batch_size)
    for number, (some_images, some_labels) in enumerate(data.take(steps), 1):
        loss = hvd.allreduce(step(some_images, some_labels), name="loss")
        if hvd.rank() == 0 and (number == 1 or number % 10 == 0 or number == steps):
            print(f"step {number} of {steps}: loss {loss:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=32, help="digits per rank and step")
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="of one rank")
    options = parser.parse_args()
    hvd.init()
    images, test_images, labels, test_labels = load()
    model = make_lenet()
    train(model, images, labels, options)

    mine = slice(hvd.rank(), None, hvd.size())  # each rank tests its part
    is_right = np.argmax(model.predict(test_images[mine], verbose=0), axis=-1) == test_labels[mine]
    right, tested = hvd.allreduce(
        np.array([is_right.sum(), is_right.size]), op=hvd.Sum, name="test"
    ).numpy()
    if hvd.rank() == 0:
        print(f"{hvd.size()} rank(s): {right / tested:.2%} of {tested} digits are right")


if __name__ == "__main__":
    main()
