"""The shape of scripts for Horovod 0.24 and later: a compressor of one's own, tensors in groups,
names of inner modules, and parts that only other frameworks have behind `try`."""

import tensorflow as tf
from synthetic import digits, fingerprint, perceptron, report

import horovod
import horovod.tensorflow as hvd
from horovod.tensorflow.compression import Compressor
from horovod.tensorflow.mpi_ops import Average

try:
    import horovod.torch as hvd_torch
except ImportError:
    hvd_torch = None
assert hvd_torch is None and horovod.__version__ >= "0.24"


class Halving(Compressor):
    """Sends half of each value."""

    @staticmethod
    def compress(tensor):
        return tensor / 2, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor * 2


hvd.init()
images, labels = digits(128)
images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
each = 16 // hvd.size()
model = perceptron()
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.keras.optimizers.SGD(0.1)


def step(images, labels):
    with tf.GradientTape() as tape:
        value = loss(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape, compression=Halving, op=Average, num_groups=1)
    opt.apply_gradients(
        zip(tape.gradient(value, model.trainable_variables), model.trainable_variables)
    )
    return value


run = tf.function(step)
losses = [run(images[n * each :][:each], labels[n * each :][:each]) for n in range(8)]
means = hvd.grouped_allreduce(losses, average=True, name="losses")
weights = hvd.broadcast_object(model.get_weights(), root_rank=0, session=None, name="weights")
report(
    hvd.rank(),
    "year_2022",
    weights=fingerprint(weights),
    loss=[float(mean) for mean in means],
)
