"""google-research/bert `optimization.py` in NumPy."""

import numpy as np


def google_rate(step: int, rate: float, train_steps: int, warmup_steps: int) -> np.float32:
    """`create_optimizer`: polynomial decay of power 1 to 0 without cycles, warmup in front of it."""
    global_step = np.float32(min(step, train_steps))
    decayed = np.float32(rate) * (np.float32(1) - global_step / np.float32(train_steps))
    if warmup_steps and step < warmup_steps:
        return np.float32(rate) * (np.float32(step) / np.float32(warmup_steps))
    return decayed


def google_step(param, gradient, m, v, rate, decays: bool):
    """`AdamWeightDecayOptimizer.apply_gradients`, in float32."""
    f = np.float32
    next_m = f(0.9) * m + f(1.0 - 0.9) * gradient
    next_v = f(0.999) * v + f(1.0 - 0.999) * np.square(gradient)
    update = next_m / (np.sqrt(next_v) + f(1e-6))
    if decays:
        update += f(0.01) * param
    return param - rate * update, next_m, next_v
