"""The code of the documentation that is for several ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from harness.documented import blocks


def code_of(page, beginning):
    (code,) = [
        block.code for block in blocks() if block.file == page and block.code.startswith(beginning)
    ]
    return compile(code, page, "exec")


@pytest.mark.ranks(2, 3)
def test_the_test_of_contributing_passes(world, collectives):
    names = {"pytest": pytest, "tf": tf}
    exec(code_of("docs/contributing.md", "@pytest.mark.ranks"), names)
    names["test_a_sum"](world, collectives)


def test_the_scripts_of_horovod_train(hvd, tmp_path, monkeypatch):
    folder = hvd.broadcast_object(str(tmp_path))
    monkeypatch.chdir(folder)
    chance = np.random.default_rng(1)
    x, y = chance.normal(size=[64, 4]).astype("float32"), chance.integers(0, 3, 64)
    layers = [keras.Input([4]), keras.layers.Dense(3, activation="softmax")]
    names = {"x": x, "y": y, "validation": (x, y), "model": keras.Sequential(layers)}
    exec(code_of("docs/horovod.md", "import keras"), names)
    of_ranks = hvd.allgather_object(names["model"].get_weights()[0].tobytes())
    assert len(set(of_ranks)) == 1
    names["callbacks"] = []
    exec(code_of("docs/horovod.md", "if hvd.rank() == 0:"), names)
    assert len(names["callbacks"]) == (hvd.rank() == 0)
    if hvd.rank() == 0:
        keras.models.load_model(f"{folder}/model.keras")
