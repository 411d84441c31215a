"""Times a training step with the sum of its gradients over the ranks, and without it, in a separate
process.

    mpirun -np 2 python gradient_step.py PACKAGE MODEL RANKS THREADS PAIRS REPORT.json

PACKAGE is `horovod.tensorflow` or `ringbert.horovod`: horovod_sums.py starts this file with either,
possibly with another Python. The step has the variables of a published model. Its backward pass
yields their gradients one after the other, from the last variable to the first, with a product of
matrices before each, so that a package can sum while the rest is computed. The report has, for each
pair of steps, the seconds without and with the sum.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NUM_ROWS, WIDTH = 256, 384  # of the matrix that passes through the step
NUM_WARMUP = 4  # pairs before the measurement
RATE = 1e-6

Shape = tuple[int, ...]


def resnet50() -> Iterator[Shape]:
    """The trainable variables of ResNet-50 (He et al. 2016, table 1) for 1,000 classes: 161, 25.6 M
    numbers."""

    def convolution(size: int, inputs: int, outputs: int) -> Iterator[Shape]:
        yield size, size, inputs, outputs
        yield from ((outputs,), (outputs,))  # scale and offset of its batch normalization

    yield from convolution(7, 3, 64)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            if block == 0:
                yield from convolution(1, inputs, 4 * width)
            yield from convolution(1, inputs, width)
            yield from convolution(3, width, width)
            yield from convolution(1, width, 4 * width)
            inputs = 4 * width
    yield from ((inputs, 1000), (1000,))


def bert_base() -> Iterator[Shape]:
    """The variables of BERT-base, uncased, with its pooler (Devlin et al. 2019): 199, 109.5 M
    numbers."""
    width, norm = 768, ((768,), (768,))
    yield from ((30522, width), (2, width), (512, width), *norm)
    for _ in range(12):
        for _ in range(4):  # query, key, value, output
            yield from ((width, width), (width,))
        yield from norm
        yield from ((width, 4 * width), (4 * width,), (4 * width, width), (width,), *norm)
    yield from ((width, width), (width,))


SHAPES: dict[str, Callable[[], Iterator[Shape]]] = {"resnet50": resnet50, "bert_base": bert_base}


def seconds_of_pairs(hvd: Any, shapes: list[Shape], num_pairs: int) -> list[tuple[float, float]]:
    """Seconds of a step without the sum and of one with it, for each pair; every rank calls it.

    Both times end when all ranks have finished their step.
    """
    import tensorflow as tf

    variables = [
        tf.Variable(tf.random.stateless_normal(s, [n, 1]) * 0.01) for n, s in enumerate(shapes)
    ]
    mixing = tf.random.stateless_normal([WIDTH, WIDTH], [0, 2]) / WIDTH**0.5
    inputs = tf.random.stateless_normal([NUM_ROWS, WIDTH], [hvd.rank(), 3])
    optimizer = tf.keras.optimizers.SGD(RATE)
    optimizer.build(variables)

    def step_of(is_summed: bool) -> Callable[[], Any]:
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                hidden = inputs
                for variable in variables:
                    hidden = tf.tanh(tf.matmul(hidden, mixing)) * (1 + tf.reduce_mean(variable))
                loss = tf.reduce_mean(hidden)
            if is_summed:
                tape = hvd.DistributedGradientTape(tape)
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables))  # noqa: B905
            return loss

        return step

    def meet() -> None:  # Horovod 0.28.1 has no barrier for TensorFlow
        hvd.allreduce(tf.constant(0.0), name="meeting").numpy()

    def seconds(step: Callable[[], Any]) -> float:
        meet()
        start_s = time.perf_counter()
        step().numpy()
        meet()
        return time.perf_counter() - start_s

    plain, summed = step_of(False), step_of(True)
    pairs = []
    for number in range(NUM_WARMUP + num_pairs):
        if number % 2:
            with_sum, without = seconds(summed), seconds(plain)
        else:
            without, with_sum = seconds(plain), seconds(summed)
        pairs.append((without, with_sum))
    return pairs[NUM_WARMUP:]


def main() -> None:
    package, model, *counts, report_file = sys.argv[1:]
    num_ranks, num_threads, num_pairs = map(int, counts)
    os.environ.update(
        {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    )
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    hvd = importlib.import_module(package)
    hvd.init()
    if hvd.size() != num_ranks:
        sys.exit(f"{package} sees {hvd.size()} of {num_ranks} ranks: is mpirun that of its MPI?")
    pairs = seconds_of_pairs(hvd, list(SHAPES[model]()), num_pairs)
    if hvd.rank() == 0:
        Path(report_file).write_text(json.dumps(pairs))
    hvd.shutdown()


if __name__ == "__main__":
    main()
