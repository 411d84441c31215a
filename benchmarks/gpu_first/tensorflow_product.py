"""Before anything else: one product on TensorFlow's GPU against NumPy's, `python -m …tensorflow_product`."""

import numpy as np
import tensorflow as tf

from benchmarks.gpu_first.findings import say

SIZE = 256


def main() -> None:
    gpus = tf.config.list_physical_devices("GPU")
    say("TensorFlow", f"{tf.__version__} sees {len(gpus)} GPUs", bool(gpus), version=tf.__version__)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    left, right = np.random.default_rng(0).standard_normal((2, SIZE, SIZE)).astype(np.float32)
    expected = left.astype(np.float64) @ right
    for name, function in (("plain", tf.matmul), ("XLA", tf.function(tf.matmul, jit_compile=True))):
        found = function(tf.constant(left), tf.constant(right))
        error = float(np.abs(found.numpy() - expected).max())
        # Rounding of sums of 256 products of order 1 gives up to 5e-5; TF32 would give 1e-2.
        say(f"product, {name}", f"on {found.device}: largest error {error:.2g}", error < 1e-4, error=error)


if __name__ == "__main__":
    main()
