"""The formats of files are those of tests/goldens/runs: what is written has them, and what has them
is read. Runs go on, models predict, a corpus trains, exports load.

A change of a format is seen here. If it is wanted, say it in CHANGELOG.md, and make the folder
anew: `PYTHONPATH=.:tests python scripts/make_goldens.py --only runs`.
"""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from harness import golden_runs
from harness.golden_runs import FOLDER as GOLDEN
from harness.golden_runs import call, run
from harness.program_runs import metrics_in, objects_in
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers import AutoTokenizer

import ringbert
from ringbase.files import read_json

pytestmark = pytest.mark.slow

# flags of a run, and sections of its page: there are often new ones
OF_NO_FORMAT = ("config", "report")


@pytest.fixture(scope="module", autouse=True)
def copy(tmp_path_factory):
    """A copy of the golden folder, in which the tests work."""
    folder = shutil.copytree(GOLDEN, tmp_path_factory.mktemp("golden") / "copy")
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGBERT_CACHE", str(folder / "cache"))
        yield folder


def shape_of(value):
    """A value of JSON as its keys and types; of a list each kind of element once."""
    if isinstance(value, dict):
        return {name: shape_of(part) for name, part in value.items() if name not in OF_NO_FORMAT}
    if isinstance(value, list):
        return sorted({str(shape_of(part)) for part in value})
    return "number" if type(value) in (int, float) else type(value).__name__


def format_of(path):
    """What a file holds besides its values; None where we decide nothing about it."""
    if path.suffix == ".json" and path.name != "tokenizer.json":
        return shape_of(read_json(path))
    if path.suffix == ".jsonl":
        return shape_of(objects_in(path))
    if path.suffix == ".safetensors":
        with safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
            return file.metadata(), {
                name: (each.get_dtype(), each.get_shape()) for name, each in slices.items()
            }
    if path.suffix == ".arrow":
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).schema.to_string()
    return None


def test_what_is_written_has_the_golden_formats(tmp_path):
    golden_runs.make(tmp_path / "new")
    of_new, of_golden = (
        {
            path.relative_to(folder).as_posix(): format_of(path)
            for path in folder.rglob("*")
            if path.is_file()
        }
        for folder in (tmp_path / "new", GOLDEN)
    )
    assert of_new.keys() == of_golden.keys()
    for name, expected in of_golden.items():
        assert of_new[name] == expected, name


# On one kind of CPU the bits are equal. 1e-3 is for sums of another order: other packing or CPU
# instructions changed weights by up to 2.5e-4; a batch that is left out by 2e-2 or more, lost
# moments by 5e-3.
@pytest.mark.parametrize(
    ("kind", "of_model"),
    [("squad", "."), ("pretraining", "."), ("classifier", "."), ("seeds", "seed-2")],
)
def test_a_resumed_run_ends_as_one_without_a_break(copy, kind, of_model):
    run(kind, f"{kind}/interrupted")
    broken, finished = copy / kind / "interrupted" / of_model, GOLDEN / kind / "finished" / of_model
    # with its time: the run did not begin anew
    assert metrics_in(broken)[0] == metrics_in(finished)[0]
    found = load_file(broken / "model" / "model.safetensors")
    expected = load_file(finished / "model" / "model.safetensors")
    for name in found.keys() | expected.keys():
        # The gradients of the keys' biases are 0 but for rounding, of which Adam makes whole steps.
        atol = 5e-3 if name.endswith("key.bias") else 1e-3
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=atol, err_msg=name)
    if kind == "seeds":
        newest = max((broken / "checkpoints").glob("*/optimizer.safetensors"))
        # all 30 steps, 20 before the break
        assert load_file(newest)["loss_scale"].tolist() == [2**15, 30]


def test_a_trained_model_answers_as_before(copy):
    run("squad", "squad/predicted", "--nodo_train", "--init_checkpoint=squad/finished/model")
    for name in ("null_odds.json", "predictions.json"):
        folders = copy / "squad/predicted", GOLDEN / "squad/finished"
        found, expected = (read_json(folder / name) for folder in folders)
        assert found == pytest.approx(expected, abs=1e-4)  # strings must be equal
    paragraphs = read_json(Path("data/squad_dev.json"))["data"][0]["paragraphs"]
    asked = [
        (question["question"], each["context"]) for each in paragraphs for question in each["qas"]
    ]
    answers = ringbert.QuestionAnswering("squad/finished")(*zip(*asked, strict=True))
    assert [answer.text for answer in answers] == list(expected.values())


@pytest.mark.parametrize("folder", ["classifier/finished", "exported"])
def test_a_trained_model_labels_as_before(folder):
    pairs = [(line["text"], line["more"]) for line in objects_in(Path("data/test.jsonl"))]
    if folder == "exported":
        tokenizer = AutoTokenizer.from_pretrained(f"{folder}/assets.extra")
        ids = {
            name: tf.constant(value, tf.int32)
            for name, value in tokenizer(pairs, padding=True).items()
        }
        found = tf.saved_model.load(folder).signatures["ids"](**ids)["probabilities"].numpy()
    else:
        found = [list(label.probabilities.values()) for label in ringbert.Classifier(folder)(pairs)]
    expected = np.loadtxt(GOLDEN / "classifier/finished/test_results.tsv")
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_corpus_and_runs_are_read():
    call("bert-corpus", "verify", "--input_dir=corpus")
    call("bert-report", "classifier/finished", "squad/finished")
