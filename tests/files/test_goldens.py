"""What version 0.1 wrote is still read: its runs go on, its models predict, its corpus trains, its exports load.

tests/goldens/0.1 was written by scripts/make_goldens_runs.sh; the data and flags of its runs lie beside them. A later
version may refuse some of it with one clear line. This one refuses nothing.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "goldens" / "0.1"
COMMANDS = {  # those of a group run in one process, because TensorFlow's start takes seconds
    "questions": [
        ["bert-squad", "--config=squad.toml", "--output_dir=squad/interrupted"],
        ["bert-squad", "--config=squad.toml", "--output_dir=squad/by-steps"],
        ["bert-squad", "--config=squad.toml", "--output_dir=squad/finished", "--nodo_train"],
        ["bert-corpus", "verify", "--input_dir=corpus"],
        ["bert-pretraining", "--config=pretraining.toml", "--output_dir=pretraining/interrupted"],
    ],
    "labels": [
        ["bert-classifier", "--config=classifier.toml", "--output_dir=classifier/killed"],
        ["bert-classifier", "--config=seeds.toml", "--output_dir=seeds/interrupted"],
        ["bert-report", "classifier/finished", "squad/finished"],
    ],
}
# argv: the programs, as in pyproject.toml; their command lines.
DRIVER = """
import importlib, json, sys

programs, seen = json.loads(sys.argv[1]), {"status": []}
for program, *argv in json.loads(sys.argv[2]):
    module, function = programs[program].split(":")
    try:
        status = getattr(importlib.import_module(module), function)(argv)
    except SystemExit as stop:
        status = stop.code
    seen["status"].append(status or 0)
import ringbert, tensorflow, transformers
"""
PREDICT = {
    "questions": """
paragraphs = json.load(open("data/squad_dev.json"))["data"][0]["paragraphs"]
asked = [(question["question"], each["context"]) for each in paragraphs for question in each["qas"]]
seen["answers"] = [answer.text for answer in ringbert.QuestionAnswering("squad/finished")(asked)]
""",
    "labels": """
pairs = [(line["text"], line["more"]) for line in map(json.loads, open("data/test.jsonl"))]
for folder in ("classifier/finished", "exported/tf1"):
    seen[folder] = [list(label.probabilities.values()) for label in ringbert.Classifier(folder)(pairs)]
tokenizer = transformers.AutoTokenizer.from_pretrained("exported/saved_model/assets.extra")
ids = tokenizer(*map(list, zip(*pairs)), padding=True, return_tensors="np")
exported = tensorflow.saved_model.load("exported/saved_model").signatures["ids"]
outputs = exported(**{name: tensorflow.constant(value, "int32") for name, value in ids.items()})
seen["exported/saved_model"] = outputs["probabilities"].numpy().tolist()
""",
}


def run_all(folder: Path, group: str) -> tuple[Path, dict]:
    """Copies the golden folder and runs a group's commands there; the copy, and what its process saw."""
    shutil.copytree(GOLDEN, folder)
    programs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    code = f'{DRIVER}{PREDICT[group]}\njson.dump(seen, open("seen.json", "w"))'
    environment = {"PYTHONPATH": str(ROOT), "RINGBERT_CACHE": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(programs), json.dumps(COMMANDS[group])],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    print(done.stderr)
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "seen.json").read_text())


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    """The name of a group -> what `run_all` returns, which runs it once."""
    return functools.cache(lambda group: run_all(tmp_path_factory.mktemp("golden") / "copy", group))


@pytest.mark.parametrize("group", COMMANDS)
def test_no_command_is_refused(after, group):
    assert after(group)[1]["status"] == [0] * len(COMMANDS[group])


# On one kind of CPU the bits are equal. 1e-3 is for sums of another order: with other CPU instructions or packing
# they changed weights by up to 2.5e-4, a batch that is taken twice by 2e-2 and more, lost moments by 0.1.
@pytest.mark.parametrize(
    ("group", "resumed", "finished", "tolerance"),
    [
        ("questions", "squad/interrupted", "squad/finished", 1e-3),
        ("questions", "squad/by-steps", "squad/by-steps-finished", 1e-3),
        ("questions", "pretraining/interrupted", "pretraining/finished", 1e-3),
        ("labels", "classifier/killed", "classifier/finished", 0),  # the best checkpoint, from before the kill
        ("labels", "seeds/interrupted/seed-1", "seeds/finished/seed-1", 0),  # was finished
        ("labels", "seeds/interrupted/seed-2", "seeds/finished/seed-2", 1e-3),
    ],
)
def test_a_resumed_run_ends_with_the_weights_of_one_without_a_break(after, group, resumed, finished, tolerance):
    runs = after(group)[0] / resumed, GOLDEN / finished
    found, expected = (load_file(run / "model" / "model.safetensors") for run in runs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)


def test_a_resumed_run_keeps_its_evaluations_and_its_loss_scale(after):
    folder, _ = after("labels")
    logs = (run / "classifier" / name for run, name in ((folder, "killed"), (GOLDEN, "finished")))
    lines = [map(json.loads, (log / "metrics.jsonl").read_text().splitlines()) for log in logs]
    found, expected = ({line["step"]: line["eval_loss"] for line in log if "eval_loss" in line} for log in lines)
    assert found == pytest.approx(expected, rel=1e-3)
    (newest,) = (folder / "seeds/interrupted/seed-2/checkpoints").glob("*/optimizer.safetensors")
    assert load_file(newest)["loss_scale"].tolist() == [2**15, 30]  # 30 finite steps, 11 of them after the break


def test_a_trained_model_gives_the_same_answers(after):
    folder, seen = after("questions")
    read = functools.partial(map, lambda file: json.loads(file.read_text()))
    files = ("predictions.json", "null_odds.json", "nbest_predictions.json")
    answers, odds, candidates = read(folder / "squad/finished" / name for name in files)
    golden_answers, golden_odds, golden_candidates = read(GOLDEN / "squad/finished" / name for name in files)
    assert answers == golden_answers
    assert seen["answers"] == list(golden_answers.values())
    assert odds == pytest.approx(golden_odds, abs=1e-4)
    for id_, listed in golden_candidates.items():
        assert [each["text"] for each in candidates[id_]] == [each["text"] for each in listed]


@pytest.mark.parametrize("folder", ["classifier/finished", "exported/tf1", "exported/saved_model"])
def test_a_trained_model_gives_the_same_probabilities(after, folder):
    expected = np.loadtxt(GOLDEN / "classifier/finished/test_results.tsv")
    np.testing.assert_allclose(after("labels")[1][folder], expected, atol=1e-5)
