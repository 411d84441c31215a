"""The shape of Horovod's tensorflow2_keras_synthetic_benchmark.py: images/s of `fit`, 16-bit gradients."""

import argparse
from timeit import default_timer as timer

import numpy as np
import tensorflow as tf
from synthetic import report

import horovod.tensorflow.keras as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-allreduce", action="store_true", default=True)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--num-batches-per-iter", type=int, default=3)
parser.add_argument("--num-iters", type=int, default=3)
args = parser.parse_args()
device = "CPU"

hvd.init()
model = tf.keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3), alpha=0.35, classes=100)
opt = tf.optimizers.SGD(0.01)
data = tf.random.uniform([args.batch_size, 32, 32, 3])
target = tf.random.uniform([args.batch_size, 1], minval=0, maxval=99, dtype=tf.int64)
dataset = tf.data.Dataset.from_tensor_slices((data, target)).cache().repeat().batch(args.batch_size)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
opt = hvd.DistributedOptimizer(opt, compression=compression)
model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]


class TimingCallback(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.img_secs = []

    def on_train_end(self, logs=None):
        img_sec_mean, img_sec_conf = np.mean(self.img_secs), 1.96 * np.std(self.img_secs)
        print("Img/sec per %s: %.1f +-%.1f" % (device, img_sec_mean, img_sec_conf))
        print("Total img/sec on %d %s(s): %.1f" % (hvd.size(), device, hvd.size() * img_sec_mean))

    def on_epoch_begin(self, epoch, logs=None):
        self.starttime = timer()

    def on_epoch_end(self, epoch, logs=None):
        img_sec = args.batch_size * args.num_batches_per_iter / (timer() - self.starttime)
        if epoch > 0:
            self.img_secs.append(img_sec)


if hvd.rank() == 0:
    timing = TimingCallback()
    callbacks.append(timing)
history = model.fit(
    dataset, batch_size=args.batch_size, steps_per_epoch=args.num_batches_per_iter, callbacks=callbacks,
    epochs=args.num_iters, verbose=0,
)  # fmt: skip
assert np.isfinite(history.history["loss"]).all()
report(hvd.rank(), "synthetic_fit", epochs=len(history.history["loss"]))
