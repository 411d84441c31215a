"""SyncBatchNormalization: the moments of a batch over all ranks."""

import numpy as np
import tensorflow as tf
from synthetic import digits, report

import horovod.tensorflow as hvd

hvd.init()
images, _ = digits(32)
layer = hvd.SyncBatchNormalization(momentum=0.5, axis=-1)
mine = images[hvd.rank() :: hvd.size()] * np.float32(3) + np.float32(1)
normal = layer(tf.constant(mine), training=True)
whole = images * 3 + 1
np.testing.assert_allclose(normal, (mine - whole.mean()) / np.sqrt(whole.var() + 1e-3), rtol=1e-3, atol=1e-4)

model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(4, 3, input_shape=(8, 8, 1)),
    hvd.SyncBatchNormalization(name="between"),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(10, activation="softmax"),
])  # fmt: skip
model.compile(loss="sparse_categorical_crossentropy", optimizer=hvd.DistributedOptimizer(tf.optimizers.SGD(0.1)))
hvd.broadcast_variables(model.variables, root_rank=0)
history = model.fit(*digits(64, seed=hvd.rank()), batch_size=16, epochs=2, verbose=0).history
assert np.isfinite(history["loss"]).all()
moving = model.get_layer("between").moving_mean.numpy()
for gathered in hvd.allgather(tf.constant(moving[None])):
    assert np.shape(gathered) == (4,)
report(hvd.rank(), "sync_batch_norm", mean=layer.moving_mean.numpy().tolist())
