"""SyncBatchNormalization: the moments of a batch over all ranks."""

import numpy as np
import tensorflow as tf
from synthetic import digits, report

import horovod.tensorflow as hvd

hvd.init()
whole = digits(32)[0] * np.float32(3) + np.float32(1)
mine = whole[hvd.rank() :: hvd.size()]
layer = hvd.SyncBatchNormalization(momentum=0.5, axis=-1)
normal = tf.function(lambda: layer(tf.constant(mine), training=True))()
np.testing.assert_allclose(normal, (mine - whole.mean()) / np.sqrt(whole.var() + 1e-3), rtol=1e-3, atol=1e-4)
report(hvd.rank(), "sync_batch_norm", mean=layer.moving_mean.numpy().tolist())
