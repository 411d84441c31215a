"""Which operations a pass computes with, and the whole model with them: scores, gradients, recomputation."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from models import KEY, error, wide_model

from bert import ops, ops_cpu, ops_gpu, ops_xla
from bert.model import COMPILED_WIDTH, Bert
from bert.packing import FixedGroups, Groups

# The plain operations with the padding and the random numbers of those for CPUs, on which the masks depend.
PLAIN_WITH_SAME_DRAWS = SimpleNamespace(
    padding_rows=ops_cpu.padding_rows, random_words=ops_cpu.random_words, biased=ops.biased,
    activated=ops.activated, residual=ops.residual, attention=ops.attention,
)  # fmt: skip


def use(module, monkeypatch) -> None:
    """Whatever the pass."""
    monkeypatch.setattr(Bert, "_ops", lambda self, inputs, is_training: module)


def test_operations_are_chosen_by_device_size_precision_and_shapes(monkeypatch):
    models = {precision: wide_model(precision, num_hidden_layers=1) for precision in ("float32", "mixed_bfloat16")}
    whole, fixed = {}, {"groups": FixedGroups(((3, 8),))}
    grouped = {"groups": Groups((np.array([3, 8], np.int32),))}
    for is_on_cpu, tuned in ((True, ops_cpu), (False, ops_xla)):
        monkeypatch.setattr(ops, "on_cpu", lambda is_on_cpu=is_on_cpu: is_on_cpu)
        for precision, model in models.items():
            for inputs in (whole, grouped):
                assert model._ops(inputs, is_training=True) is tuned
                pays = is_on_cpu and precision == "mixed_bfloat16"
                assert model._ops(inputs, is_training=False) is (ops_cpu if pays else ops)
            assert model._ops(fixed, is_training=True) is ops_gpu
            assert model._ops(fixed, is_training=False) is ops
            monkeypatch.setattr("bert.model.COMPILED_WIDTH", COMPILED_WIDTH + 1)
            assert model._ops(whole, is_training=True) is ops
            monkeypatch.setattr("bert.model.COMPILED_WIDTH", COMPILED_WIDTH)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_prediction_is_the_same_with_all_operations(precision, monkeypatch):
    model = wide_model(precision)
    place = np.tile(np.arange(20, dtype=np.int32), (3, 1))
    inputs = {
        "input_ids": np.random.default_rng(0).integers(0, 50, (3, 20), dtype=np.int32),
        "token_type_ids": (place > 10).astype(np.int32),
        "position_ids": place,
        "example_ids": (place < np.array([[20], [15], [8]])).astype(np.int32),
    }
    inside = inputs["example_ids"].astype(bool)
    exact = wide_model("float32")(inputs)[inside]
    chosen = tf.function(lambda: model(inputs))()[inside]
    use(ops, monkeypatch)
    plain = tf.function(lambda: model(inputs))()[inside]
    tolerances = (1e-6, 1e-6) if precision == "float32" else (3e-2, 5e-2)  # bfloat16 rounds to 2^-8
    assert error(chosen, plain) < tolerances[0]
    assert error(chosen, exact) < tolerances[1]


@pytest.mark.parametrize(
    ("precision", "activation", "rate", "num_layers"),
    [
        ("float32", "gelu", 0.1, 1),
        ("mixed_bfloat16", "gelu_new", 0.0, 1),
        pytest.param("float32", "gelu_new", 0.0, 2, marks=pytest.mark.slow),
        pytest.param("mixed_bfloat16", "gelu", 0.1, 2, marks=pytest.mark.slow),
    ],
)
def test_training_is_the_same_with_all_operations(precision, activation, rate, num_layers, monkeypatch):
    """The scores and every gradient of a model that is wide enough for XLA."""
    model = wide_model(
        precision, hidden_act=activation, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate,
        num_hidden_layers=num_layers,
    )  # fmt: skip
    generator = np.random.default_rng(0)
    shapes = (np.array([3, 40], np.int32), np.array([0, 8], np.int32), np.array([9, 24], np.int32))
    rows = sum(int(count * length) for count, length in shapes)  # 336: with padding 384
    place = np.concatenate([np.tile(np.arange(length, dtype=np.int32), count) for count, length in shapes])
    inputs = {
        "input_ids": generator.integers(0, 50, rows, dtype=np.int32),
        "token_type_ids": (place > 10).astype(np.int32),
        "position_ids": place,
        "example_ids": (place < 22).astype(np.int32),
        "groups": Groups(shapes),
    }
    target = tf.constant(generator.normal(size=(rows, 2)).astype(np.float32))

    def run():
        with tf.GradientTape() as tape:
            scores = model(inputs, dropout_key=KEY)
            loss = tf.reduce_sum(scores * target)
        return scores, tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    monkeypatch.setattr(ops_cpu, "IN_TURNS_FROM", 40)  # one of the groups
    compiled_scores, compiled = tf.function(run)()
    use(PLAIN_WITH_SAME_DRAWS if rate else ops, monkeypatch)
    scores, gradients = tf.function(run)()
    tolerance = 2e-5 if precision == "float32" else 3e-2  # bfloat16 rounds to 2^-8, in other places
    assert error(compiled_scores, scores) < tolerance
    for variable, one, other in zip(model.trainable_variables, compiled, gradients, strict=True):
        if variable.name.endswith("key.bias"):
            continue  # it adds the same to all scores of a row: its gradient is 0 but for rounding
        one, other = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
        assert float(tf.norm(one - other)) < tolerance * float(tf.norm(other)), variable.name


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_training_in_groups_of_fixed_shape_is_the_same_with_the_operations_for_gpus(rate, monkeypatch):
    """The whole gradient compiled by XLA. Dropout differs, so with it only the seed is checked."""
    model = wide_model("float32", hidden_dropout_prob=rate, attention_probs_dropout_prob=rate, num_hidden_layers=1)
    shapes = ((2, 16), (3, 8))
    rows = sum(count * length for count, length in shapes)
    place = np.concatenate([np.tile(np.arange(length, dtype=np.int32), count) for count, length in shapes])
    inputs = {
        "input_ids": np.random.default_rng(0).integers(0, 50, rows, dtype=np.int32),
        "token_type_ids": (place > 10).astype(np.int32), "position_ids": place,
        "example_ids": (place < 13).astype(np.int32), "groups": FixedGroups(shapes),
    }  # fmt: skip

    def gradients(key):
        @tf.function(jit_compile=True, autograph=False)
        def run(key):
            with tf.GradientTape() as tape:
                scores = model(inputs, dropout_key=key)
                loss = tf.reduce_sum(tf.square(scores))
            values = [variable.value for variable in model.trainable_variables]
            return [scores, *map(tf.convert_to_tensor, tape.gradient(loss, values))]

        return [tensor.numpy() for tensor in run(tf.constant(key, tf.int32))]

    ours = gradients([3, 5])
    if rate:
        for one, again in zip(ours, gradients([3, 5]), strict=True):
            assert one.tobytes() == again.tobytes()
        assert error(ours[0], gradients([3, 6])[0]) > 1e-3
        return
    use(ops, monkeypatch)
    for one, other, variable in zip(ours, gradients([3, 5]), [None, *model.trainable_variables], strict=True):
        if variable is None or not variable.name.endswith("key.bias"):  # whose gradient is 0 but for rounding
            assert error(one, other) < 2e-5


def num_products(nodes, functions) -> int:
    """The matrix products of a graph, with those of the functions that it calls, for each call."""
    bodies = {function.signature.name: function.node_def for function in functions}

    @functools.cache
    def of_body(name: str) -> int:
        return of_nodes(bodies[name])

    def of_nodes(nodes) -> int:
        called = [attribute.func.name for node in nodes for attribute in node.attr.values()]
        products = sum(node.op in ("MatMul", "BatchMatMulV2") for node in nodes)
        return products + sum(of_body(name) for name in called if name)

    return of_nodes(nodes)


@pytest.mark.parametrize("num_layers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_recomputed_layers_give_the_same_bits(num_layers):
    """Scores and gradients with dropout; the layers' products are in the graph twice."""
    model = wide_model("float32", num_hidden_layers=num_layers)
    ids = np.random.default_rng(0).integers(0, 50, (4, 16), dtype=np.int32)
    inputs = {
        "input_ids": ids, "token_type_ids": np.zeros_like(ids), "example_ids": np.ones_like(ids),
        "position_ids": np.tile(np.arange(16, dtype=np.int32), (4, 1)),
    }  # fmt: skip
    results, products = {}, {}
    for recomputes in (False, True):
        model.recomputes = recomputes

        @tf.function(autograph=False)
        def step():
            with tf.GradientTape() as tape:
                scores = model(inputs, dropout_key=KEY)
                loss = tf.reduce_sum(tf.square(scores))
            return scores, tape.gradient(loss, [variable.value for variable in model.trainable_variables])

        graph = step.get_concrete_function().graph.as_graph_def()
        products[recomputes] = num_products(graph.node, graph.library.function)
        results[recomputes] = [tf.convert_to_tensor(tensor).numpy() for tensor in tf.nest.flatten(step())]
    for kept, again in zip(results[False], results[True], strict=True):
        assert kept.tobytes() == again.tobytes()
    # For each layer: QKV, scores, output, up, down, and the context twice, of long rows and of others.
    assert products[True] >= products[False] + num_layers * 7
