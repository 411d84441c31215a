"""The programs of tasks/ on the ranks of a test of tests/spmd, and on one rank for comparison."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import classifier_runs, texts
from harness.program_runs import in_world
from harness.squad_files import make_entries, write_squad
from safetensors.numpy import load_file

from distributed.collectives import Collectives
from distributed.world import World
from ringbase.settings import made
from tasks.corpus.program import build
from tasks.corpus.settings import BuildConfig


@functools.cache
def data() -> Path:
    """A tiny model's files, questions, labelled texts and a corpus; made once by the process that asks."""
    folder = Path(tempfile.mkdtemp(prefix="ringbert-data-"))
    classifier_runs.write_data(folder)
    write_squad(folder / "squad.json", make_entries(60, 1))
    write_squad(folder / "squad-dev.json", make_entries(30, 2))
    words = [word for kind in texts.KINDS for word in texts.WORDS[kind]]
    chance = np.random.default_rng(3)
    documents = [[" ".join(chance.choice(words, 9)) for _ in range(8)] for _ in range(30)]
    (folder / "text.txt").write_text("\n\n".join("\n".join(lines) for lines in documents))
    settings = {"input_file": f"{folder}/text.txt", "vocab_file": f"{folder}/vocab.txt", "num_shards": 2}
    settings |= {"output_dir": f"{folder}/corpus", "max_seq_length": 32, "max_predictions_per_seq": 5}
    build(made(BuildConfig, {**settings, "num_workers": 1}), World())
    return folder


def arguments(program: str, data: Path, output_dir: Path) -> list[str]:
    """The flags that all runs of a program have here."""
    model = [f"--bert_config_file={data}/bert_config.json", "--log_steps=1", f"--output_dir={output_dir}"]
    match program:
        case "squad":
            return [*model, f"--vocab_file={data}/vocab.txt", f"--train_file={data}/squad.json",
                    f"--predict_file={data}/squad-dev.json", "--max_seq_length=40", "--max_query_length=16",
                    "--doc_stride=12"]  # fmt: skip
        case "classifier":
            return [*model, *classifier_runs.model_flags(data), *classifier_runs.own_files(data)]
        case "pretraining":
            return [*model, f"--input_file={data}/corpus/*.arrow", f"--eval_input_file={data}/corpus/*.arrow",
                    "--max_seq_length=32", "--max_predictions_per_seq=5"]  # fmt: skip
    raise ValueError(program)


def run(program: str, world: World, collectives: Any, data: Path, output_dir: Path, *more: str) -> Any:
    """What bert-PROGRAM does after it has joined its ranks; what it returns."""
    return in_world(world, collectives, program, output_dir, *arguments(program, data, output_dir), *more)


def run_alone(program: str, data: Path, output_dir: Path, *more: str) -> Any:
    """The same on one rank, whatever ranks there are around it."""
    return run(program, World(), Collectives(), data, output_dir, *more)


def losses(output_dir: Path) -> np.ndarray:
    """The losses of the logged steps."""
    lines = map(json.loads, (output_dir / "metrics.jsonl").read_text().splitlines())
    return np.array([line["loss"] for line in lines if "loss" in line and "learning_rate" in line])


def checkpoints(output_dir: Path) -> list[Path]:
    return sorted((output_dir / "checkpoints").glob("rows-*"))


def weights(checkpoint: Path) -> np.ndarray:
    """All weights of a checkpoint as one vector."""
    tensors = load_file(checkpoint / "model.safetensors")
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


def assert_same_training(folder: Path, reference: Path, tolerance: float = 1e-4) -> None:
    """Two runs moved the weights alike between their first and last checkpoint, and had the same losses.

    In float32 the sums of other shares round otherwise: measured up to 1.4e-5 of the movement, where a rate that
    is off by 0.1 % gives 1e-3.
    """
    names = [path.name for path in checkpoints(reference)]
    assert [path.name for path in checkpoints(folder)] == names
    first, last = weights(reference / "checkpoints" / names[0]), weights(reference / "checkpoints" / names[-1])
    movement = np.linalg.norm(last - first)
    assert movement > 0
    difference = np.linalg.norm(weights(folder / "checkpoints" / names[-1]) - last) / movement
    assert difference <= tolerance, f"weights differ by {difference:.1e} of the movement"
    np.testing.assert_allclose(losses(folder), losses(reference), rtol=tolerance)
