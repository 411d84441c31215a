"""tests/goldens/runs: small runs as this version writes them, by which a change of a format is
seen.

`data` and the TOML files of flags are written by hand, and `make` makes all else. Paths are
relative to the folder, so that copies of it work.
"""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import keras
from harness.mpi import ROOT
from harness.parsing import main_of
from harness.program_runs import bert

from tasks.runs.execute.job import set_precision

FOLDER = ROOT / "tests" / "goldens" / "runs"
PROGRAMS = {
    "squad": "squad",
    "classifier": "classifier",
    "seeds": "classifier",
    "pretraining": "pretraining",
}
OF_BROKEN_RUN = ("checkpoints", "metrics.jsonl", "run.json")
# nothing reads them
NOT_KEPT = shutil.ignore_patterns("tensorboard", ".lock", "report.html", "step_times.json")


def run(kind, output_dir, *more):
    """A run with the flags of KIND.toml, in the working folder."""
    policy = keras.config.dtype_policy()
    set_precision("fp16" if kind == "seeds" else "fp32")
    bert(PROGRAMS[kind], Path(output_dir), f"--config={kind}.toml", *more)
    keras.config.set_dtype_policy(policy)


def call(program, *argv):
    """A program that returns its status or ends with it."""
    try:
        status = main_of(program)(list(argv))
    except SystemExit as end:
        status = end.code
    assert not status, (program, status)


def make(folder):
    """Makes a folder of what was written by hand, and of what the programs make of it."""
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        shutil.copytree(FOLDER / "data", "data")
        for flags in FOLDER.glob("*.toml"):
            shutil.copy(flags, ".")
        text = "--input_file=data/text.txt"
        sizes = "--max_seq_length=40", "--dupe_factor=3", "--num_shards=2", "--num_workers=1"
        masks = "--masked_lm_prob=0.15", "--max_predictions_per_seq=20"
        call("bert-corpus", "vocab", text, "--output_dir=vocab", "--vocab_size=80")
        call(
            "bert-corpus",
            "build",
            text,
            "--output_dir=corpus",
            "--vocab_file=vocab/vocab.txt",
            *sizes,
            *masks,
        )
        for kind in PROGRAMS:
            finished, broken = Path(kind, "finished"), Path(kind, "interrupted")
            run(kind, str(finished))
            shutil.copytree(finished, broken)
            break_off(broken)
            for checkpoints in finished.rglob("checkpoints"):
                shutil.rmtree(checkpoints)  # the broken run has them
        call("bert-export", "classifier/finished", "exported")
        for path in Path().rglob("run.json"):
            without_machine(path)
        shutil.copytree(".", folder, ignore=NOT_KEPT)


def break_off(folder):
    """Makes a finished run one that was killed after the checkpoint before its last; one with
    several seeds in the last of them."""
    (folder / "result.json").unlink()
    last = max([folder, *folder.glob("seed-*")])
    shutil.rmtree(max((last / "checkpoints").iterdir()))
    for path in last.iterdir():
        if path.is_dir() and path.name not in OF_BROKEN_RUN:
            shutil.rmtree(path)
        elif path.name not in OF_BROKEN_RUN:
            path.unlink()


def without_machine(path):
    """Takes out of a run.json what belongs to the machine and the moment."""
    facts = json.loads(path.read_text())
    unknown: dict[str, object] = {
        "python": "",
        "machine": "",
        "packages": {},
        "git_commit": None,
        "command": [""],
        "launched_by": None,
    }
    assert facts["environment"].keys() == unknown.keys()
    path.write_text(json.dumps(facts | {"environment": unknown}, indent=4) + "\n")


def write():
    """Makes FOLDER anew."""
    with tempfile.TemporaryDirectory() as work:
        made = Path(work, "runs")
        make(made)
        shutil.rmtree(FOLDER)
        shutil.copytree(made, FOLDER)
