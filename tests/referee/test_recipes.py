"""Schedules and optimizers beyond Google's, against transformers and PyTorch, whose values
scripts/torch_recipes.py has written."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from harness.batches import Row, batch_of
from harness.mpi import ROOT

from bert.configuration import config_of
from bert.heads import CLASSIFIER
from bert.model import Bert
from bert.optimizers.adamw import AdamWeightDecay
from bert.optimizers.choose import make_optimizer
from bert.optimizers.lamb import LAMB
from bert.optimizers.layers import LayerSettings
from bert.optimizers.rate import RateSchedule
from bert.optimizers.schedules import SCHEDULES, Form, Numbers
from bert.optimizers.settings import OptimizerSettings
from ringbase.files import read_json
from tasks.classifier.losses import Weighing, losses_of
from tasks.classifier.targets import OneLabel
from tasks.squad.task import SpanTask
from tasks.tagger.task import TagTask

GOLDEN = read_json(ROOT / "tests/goldens/recipes.json")
NUMBERS = Numbers(GOLDEN["steps"], GOLDEN["warmup"], GOLDEN["decay"])


@pytest.mark.parametrize("name", GOLDEN["rates"])
def test_each_step_has_the_rate_of_transformers(name):
    kind, _, other = name.partition(" ")
    lowest = other == "lowest"
    form = {
        "": Form(),
        "lowest": Form(min_ratio=GOLDEN["min_ratio"]),
        "power": Form(power=GOLDEN["power"]),
    }.get(other, Form(decay=other))
    schedule = RateSchedule(2.0, *NUMBERS[:2], kind, NUMBERS.decay_steps, form)
    again = RateSchedule.from_config(schedule.get_config())
    of_training = GOLDEN["rates"][name][: NUMBERS.train_steps + 1]
    for step, expected in enumerate(of_training):
        if lowest and kind == "wsd" and step < NUMBERS.warmup_steps:
            continue  # there transformers' warmup begins at the lowest rate, and ours at 0
        ours = float(schedule(tf.constant(step, tf.int64)))
        assert ours == pytest.approx(2 * expected, abs=2e-6), (name, step)
        assert float(again(step)) == ours


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_the_same_for_plans_and_for_trainings(name):
    """NumPy's and Keras'; it rises from 0 to the peak and never above."""
    steps = np.arange(NUMBERS.train_steps + 1, dtype=np.float32)
    form = Form(min_ratio=0.25)
    planned = SCHEDULES[name].part(steps, NUMBERS, form, np)
    rates = RateSchedule(1.0, *NUMBERS[:2], name, NUMBERS.decay_steps, form)
    np.testing.assert_allclose(planned, [float(rates(step)) for step in steps], atol=1e-6)
    assert planned[0] == 0
    assert planned.max() <= 1
    assert planned[NUMBERS.warmup_steps :].min() >= 0.25


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("name", SCHEDULES)
def test_short_plans_have_finite_rates(name, warmup):
    for steps in (1, 2):
        rates = RateSchedule(1.0, steps, warmup, name, 0)
        assert all(0 <= float(rates(step)) <= 1 for step in range(steps + 2)), (name, steps)


@pytest.mark.parametrize("large", [False, True])
def test_steps_with_bias_correction_are_those_of_pytorch(large):
    """Also in the code that XLA compiles for large variables."""
    golden = GOLDEN["adamw"]
    repeats = (128, 100) if large else (1, 1)
    start = np.tile(np.array(golden["start"], np.float32), repeats)
    beta1, beta2 = golden["betas"]
    settings = OptimizerSettings(
        weight_decay=golden["weight_decay"],
        adam_beta1=beta1,
        adam_beta2=beta2,
        adam_epsilon=golden["eps"],
        adam_bias_correction=True,
    )
    optimizer = make_optimizer("adamw", golden["lr"], settings)
    variable = keras.Variable(start, name="dense.kernel")
    optimizer.build([variable])
    for gradient, expected in zip(golden["gradients"], golden["values"], strict=True):
        tiled = np.tile(np.array(gradient, np.float32), repeats)
        optimizer.update_scaled([tf.constant(tiled)], 1.0, tf.constant(golden["lr"]))
        optimizer.iterations.assign_add(1)
        ours = variable.numpy()
        np.testing.assert_allclose(ours[:3, :4], expected, rtol=2e-6, atol=1e-6)
        assert np.ptp(ours.reshape(repeats[0], 3, repeats[1], 4), axis=(0, 2)).max() == 0


@pytest.mark.parametrize("kind", [AdamWeightDecay, LAMB])
def test_without_it_the_first_step_is_smaller(kind):
    """BERT's m and v are 1 - beta of the gradient and of its square after one step."""
    moves = []
    for corrects in (False, True):
        variable = keras.Variable(np.ones((2, 3)), name="dense.bias")  # no decay, no trust ratio
        optimizer = kind(1e-2, bias_correction=corrects)
        optimizer.build([variable])
        optimizer.apply([tf.ones((2, 3))])
        moves.append(float(1 - variable.numpy().max()))
    np.testing.assert_allclose(moves, [1e-2 * 0.1 / 0.001**0.5, 1e-2], rtol=1e-3)


def test_bias_correction_counts_updates_and_not_steps_of_the_schedule():
    """A training that takes over moments begins its schedule anew."""
    ends = []
    for moved in (False, True):
        variable = keras.Variable(np.ones(3, np.float32), name="dense.bias")
        optimizer = make_optimizer("adamw", 1e-2, OptimizerSettings(adam_bias_correction=True))
        optimizer.build([variable])
        for step in range(6):
            if moved and step == 4:
                optimizer.begin_at(0)
                assert int(optimizer.iterations.numpy()) == 0
            optimizer.apply([tf.constant([1.0, -2.0, 0.5 * step])])
        ends.append(variable.numpy())
    np.testing.assert_array_equal(*ends)


MODEL = {"vocab_size": 30, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
MODEL |= {"num_hidden_layers": 3}


@pytest.mark.parametrize("kind", ["bert", "modernbert", "electra"])
def test_each_part_has_its_rate(kind):
    """A table by hand: the top layer and what follows it within the encoder have 1, each layer
    below half of the one above, the head 30 times as much."""
    more = {"pad_token_id": 0, "model_type": kind}
    if kind == "electra":
        more["embedding_size"] = 6
    model = Bert(config_of(MODEL | more), CLASSIFIER)
    expected = {"embeddings": 1 / 8, "layer_0": 1 / 4, "layer_1": 1 / 2, "layer_2": 1, "head": 30}
    settings = LayerSettings(layer_lr_decay=0.5, head_learning_rate=3e-3)
    optimizer = make_optimizer("adamw", 1.0, rates=settings.rates(3, 1e-4))
    optimizer.build(model.trainable_variables)
    tensors = model.named_tensors()
    before = {name: variable.numpy() for name, variable in tensors.items()}
    optimizer.weight_decay_rate = 0.0
    gradients = [tf.ones(variable.shape) for variable in model.trainable_variables]
    optimizer.update_scaled(gradients, 1.0, tf.constant(1e-3))
    seen = set()
    for name, variable in tensors.items():
        part = next((part for part in expected if part in name), "head")
        if name.startswith("bert/encoder/LayerNorm"):  # ModernBERT's last norm
            part = "layer_2"
        seen.add(part)
        moved = (before[name] - variable.numpy()) / (1e-3 * 0.1 / 0.001**0.5)
        np.testing.assert_allclose(moved, expected[part], rtol=1e-3, err_msg=name)
    assert seen == {*expected}


def test_one_rate_for_all_costs_nothing():
    assert LayerSettings().rates(12, 1e-4) == ()
    assert LayerSettings(head_learning_rate=1e-4).rates(12, 1e-4) == ()


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [
        (None, set()),
        ("embeddings", {"embeddings"}),
        (2, {"embeddings", "layer_0", "layer_1"}),
        ("encoder", {"embeddings", "layer_0", "layer_1", "layer_2", "encoder/LayerNorm"}),
    ],
)
def test_what_is_frozen(freeze, frozen):
    config = config_of(MODEL | {"pad_token_id": 0, "model_type": "modernbert"})
    settings = LayerSettings(freeze=freeze)
    for name in Bert(config, CLASSIFIER, seed=None).named_tensors():
        assert settings.is_frozen(name, 3) == any(part in name for part in frozen), name


def test_smoothed_labels_have_pytorchs_loss():
    golden = GOLDEN["smoothing"]
    scores = tf.constant(golden["scores"])
    labels, share = golden["labels"], golden["factor"]
    target = OneLabel(("a", "b", "c"))
    for weights, expected in ((None, "losses"), (golden["weights"], "weighted")):
        of_label = None if weights is None else np.array(weights, np.float32)
        losses = losses_of(target, scores, tf.constant(labels), Weighing(of_label, share))
        np.testing.assert_allclose(losses, golden[expected], rtol=1e-5)
    total = sum(golden["losses"])
    tags = {"tags": np.array([*labels, -1], np.int32)}
    padded = tf.concat([scores, [[9.0, 8.0, 7.0]]], 0)
    loss = TagTask(smoothing=share).loss(padded, tags)["loss"]
    assert float(loss) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("grouping", ["padded", "by length", "compiled"])
def test_a_smoothed_answer_has_pytorchs_loss(grouping):
    """Over the tokens of its row, whatever padding stands beside them."""
    golden = GOLDEN["smoothing"]
    labels, share = golden["labels"], golden["factor"]
    # a token's id is the place of its score
    rows = [
        Row(range(1 + 3 * number, 4 + 3 * number), 1, span=(label, label))
        for number, label in enumerate(labels)
    ]
    rows.append(Row(range(20, 28), 1, span=(2, 2)))  # equal scores; others are padded to its length
    batch = batch_of("span", rows, grouping)
    scores = np.full(28, 50.0, np.float32)  # of padding, id 0, too
    scores[1:19] = np.ravel(golden["scores"])
    scores_R2 = np.stack([scores[batch["input_ids"]]] * 2, 1)
    batch = {name: tf.constant(value) for name, value in batch.items()}
    loss = SpanTask(smoothing=share).loss(tf.constant(scores_R2), batch)["loss"]
    assert float(loss) == pytest.approx(sum(golden["losses"]) + np.log(8), rel=1e-5)
