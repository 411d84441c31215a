"""How many images per second ResNet-101 trains on, per rank and over all ranks. The images are
random numbers.

    bert-launch -np 2 -- python examples/resnet_synthetic.py
    bert-launch -np 8 -- python examples/resnet_synthetic.py --batch_size 64 --image_size 224
      --num_iters 10

The figures are mean +- 1.96 standard deviations, as in Horovod's synthetic benchmarks.
"""

import argparse
import time

import ringbert.horovod as hvd

import keras
import numpy as np
import tensorflow as tf


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="ResNet101", help="a model of keras.applications")
    parser.add_argument("--batch_size", type=int, default=8, help="images per rank and step")
    parser.add_argument(
        "--image_size", type=int, default=32, help="pixels of an image's side; at least 32"
    )
    parser.add_argument(
        "--num_warmup_batches", type=int, default=2, help="steps before the first iteration"
    )
    parser.add_argument("--num_batches_per_iter", type=int, default=2, help="steps of an iteration")
    parser.add_argument(
        "--num_iters", type=int, default=3, help="iterations, each of which is timed"
    )
    parser.add_argument(
        "--fp16_allreduce", action="store_true", help="send half the bytes between machines"
    )
    return parser.parse_args()


def measure(options: argparse.Namespace) -> list[float]:
    """Images/s of this rank in each iteration."""
    shape = [options.batch_size, options.image_size, options.image_size, 3]
    images = tf.random.uniform(shape)
    labels = tf.random.uniform(shape[:1], maxval=1000, dtype=tf.int32)
    model = getattr(keras.applications, options.model)(weights=None, input_shape=shape[1:])
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none

    @tf.function
    def step() -> None:
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
            probabilities = model(images, training=True)
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(labels, probabilities)
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    say(f"Model: {options.model}, {model.count_params() / 1e6:.1f} million parameters")
    say(f"Batch size: {options.batch_size} images of {options.image_size} x {options.image_size}")
    say(f"Number of ranks: {hvd.size()}\nRunning warmup...")
    for _ in range(options.num_warmup_batches):
        step()
    say("Running benchmark...")
    rates = []
    for number in range(options.num_iters):
        start_s = time.perf_counter()
        for _ in range(options.num_batches_per_iter):
            step()
        rates.append(
            options.batch_size * options.num_batches_per_iter / (time.perf_counter() - start_s)
        )
        say(f"Iter #{number}: {rates[-1]:.1f} img/sec per rank")
    return rates


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    options = parse()
    hvd.init()
    rates = measure(options)
    mean, deviation = np.mean(rates), 1.96 * np.std(rates)
    say(f"Img/sec per rank: {mean:.1f} +-{deviation:.1f}")
    say(
        f"Total img/sec on {hvd.size()} rank(s): {hvd.size() * mean:.1f}"
        f" +-{hvd.size() * deviation:.1f}"
    )
