"""Files of a run: checkpoints, metrics, results, and the page that is drawn of them."""

import json
import tempfile
from pathlib import Path

from distributed.run import Run
from fuzz.reader import rows, to_json
from ringbert import manifest
from ringbert.errors import InputError

STATE = {
    "position": 640,
    "step": 20,
    "steps": 100,
    "global_batch_size": 32,
    "settings": {"--seed": 42, "--learning_rate": 5e-5, "--num_train_steps": None},
    "evaluations": [[320, 0.5], [640, 0.75]],
}
PLAN = {"steps": 40, "size": 2, "global_batch_size": 64, "learning_rate": 1e-3, "rows": 100}
ENVIRONMENT = {
    "machine": "2 cores",
    "command": ["/venv/bin/bert-squad", "--do_train", "--train_file=my data.json"],
}
FIGURES = {"learning_rate": 1e-4, "gradient_norm": 1.0, "examples_per_s": 480.0, "compute_s": 0.1, "data_s": 0.0}
METRICS = rows(
    *({"step": step, "time": 1.5, "rows": 64 * step, "loss": 4 - step / 20, **FIGURES} for step in (1, 20, 40)),
    {"step": 20, "time": 2.5, "rows": 1280, "eval_accuracy": 0.5, "eval_loss": 1.5},
    {"step": 40, "time": 3.5, "rows": 2560, "eval_accuracy": 0.75, "eval_loss": 1.25},
)
RUN = {
    "run.json": (to_json({"config": {"seed": 42}, "plan": PLAN, "environment": ENVIRONMENT}), "json"),
    "metrics.jsonl": (METRICS, "jsonl"),
    "result.json": (to_json({"scores": {"exact_match": 81.25, "f1": 88.5, "total": 100}, "seconds": 5}), "json"),
}


def read_state(folder: Path, name: str) -> None:
    from distributed.state import read_state

    state = read_state(folder)
    assert 0 <= state.step <= state.steps
    assert type(state.position) is int
    assert state.global_batch_size >= 1
    assert state.best is None or state.best[0] >= 0
    dict(state.settings)


def read_manifest(folder: Path, name: str) -> None:
    position = manifest.position_of(folder)
    assert position is None or position >= 0
    try:
        manifest.check_intact(folder)
    except InputError as error:  # its callers name the folder
        raise InputError(f"{folder}: {error}") from error
    assert manifest.position_of(folder) is not None


def read_report(folder: Path, name: str) -> None:
    from tasks import report

    runs = report.read_runs([folder])
    report.score_table(runs)
    for run in runs:
        report.command_of(run)
        assert run.steps


def draw_report(folder: Path, name: str) -> None:
    from tasks import report

    page = report.make_page(report.read_runs([folder]))
    page.encode()
    assert "data:image/png;base64," in page


def rewind_metrics(folder: Path, name: str) -> None:
    run = Run(folder, is_writer=True)
    run.rewind_metrics(1300)
    for line in (folder / name).read_text(encoding="utf-8").split("\n")[:-1]:
        assert json.loads(line)["rows"] <= 1300


def sealed_manifest() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "state.json").write_bytes(to_json(STATE))
        manifest.seal(Path(name), 640)
        return (Path(name) / manifest.NAME).read_bytes()
