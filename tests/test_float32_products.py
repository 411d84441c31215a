"""--precision fp32 means float32 products on GPUs, and --tf32 less exact ones; CPUs compute as always."""

import re
from collections.abc import Iterator

import keras
import pytest
import tensorflow as tf

from distributed.devices import use_gpu
from tasks.job import set_precision

config = tf.config.experimental


@pytest.fixture(autouse=True)
def _settings_are_restored() -> Iterator[None]:
    policy, tf32 = keras.config.dtype_policy(), config.tensor_float_32_execution_enabled()
    yield
    keras.config.set_dtype_policy(policy)
    config.enable_tensor_float_32_execution(tf32)


def hlo_of_a_product() -> str:
    """What TensorFlow asks of XLA for a product of float32 matrices."""
    factor = tf.ones([8, 8])
    product = tf.function(lambda: factor @ factor, jit_compile=True)
    hlo = product.experimental_get_compiler_ir()(stage="hlo")
    return re.sub(r"__lambda__\d+", "", hlo)  # TensorFlow counts the functions of a process


@pytest.mark.parametrize(
    ("precision", "flag", "tf32"),
    [("fp32", False, False), ("fp32", True, True), ("bf16", False, True), ("fp16", False, True)],
)
def test_the_products_of_a_gpu(precision: str, flag: bool, tf32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is made up; XLA's precision of a product is the same request on all devices."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["GPU:0"])
    note = set_precision(precision, flag)
    assert config.tensor_float_32_execution_enabled() is tf32
    assert note is not None
    assert ("TF32" in note) is tf32
    assert bool(re.search(r"operand_precision=\{highest,highest\}", hlo_of_a_product())) is not tf32


def test_a_cpu_is_asked_for_what_it_always_was() -> None:
    before = hlo_of_a_product()
    assert set_precision("fp32") is None
    assert hlo_of_a_product() == before
    assert "highest" not in before


def test_a_cpu_needs_no_determinism() -> None:
    from tensorflow.python.framework.config import is_op_determinism_enabled

    assert use_gpu([], None, deterministic=True) == []
    assert not is_op_determinism_enabled()
