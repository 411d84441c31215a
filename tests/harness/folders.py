"""Folders of models and runs as the programs leave them, made without training: a tiny BERT's
configuration and vocabulary, and bytes that stand for weights."""

import json
from dataclasses import asdict

from harness import texts

from distributed.found import folder_name
from distributed.plan import State
from ringbase.files import read_json, sha256, write_json
from ringbase.manifest import seal

BATCH = 32


def write_model(folder, weights="weights", saved=None, **config):
    """A folder with a model; `saved` are the settings that it was trained with, and `config` are
    more keys of its configuration."""
    texts.write_model(folder, num_layers=1)
    values = read_json(folder / "bert_config.json") | {"model_type": "bert"} | config
    (folder / "bert_config.json").unlink()
    write_json(folder / "config.json", values)
    (folder / "model.safetensors").write_text(weights)
    if saved is not None:
        write_json(folder / "task.json", saved)
    return folder


def write_checkpoint(run, step, steps=24, evaluations=(), fixed=None, **config):
    """A checkpoint of a run after a step."""
    folder = write_model(run / "checkpoints" / folder_name(step * BATCH), f"step {step}", **config)
    evaluated = [[position * BATCH, score] for position, score in evaluations]
    state = State(step * BATCH, step, steps, BATCH, fixed or {}, evaluated)
    write_json(folder / "state.json", asdict(state))
    seal(folder, state.position)
    return folder


def write_run(
    folder, steps=(8, 16, 24), flags=None, saved=None, scores=None, best=None, fixed=None, **config
):
    """A run that has these checkpoints. With `scores` it is complete; `best` is the step of its
    model then, and of its best evaluation."""
    evaluations = []
    for step in steps:
        if best:
            evaluations.append((step, 0.9 if step == best else 0.5))
        write_checkpoint(folder, step, 24, evaluations, fixed, **config)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"config": flags or saved or {}, "fixed": fixed or {}}
    (folder / "run.json").write_text(json.dumps(facts))
    if scores is not None:
        model = write_model(folder / "model", f"step {best or 24}", saved or {}, **config)
        result = {
            "scores": scores,
            "steps": best or 24,
            "sha256": sha256(model / "model.safetensors"),
        }
        write_json(folder / "result.json", result)
    return folder
