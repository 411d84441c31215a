"""The trackers that `--report_to` names, by their names in transformers: TensorBoard, MLflow and
Weights & Biases. The libraries of the last two are the user's, and imported when they are named.

A tracker's server may be slow or gone, and a training does not wait for it: each has a thread of
its own, which gives up after the first error, and at the end the run waits a minute for it.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from pathlib import Path
from typing import Any, ClassVar

from distributed.trackers import TensorBoard, Tracker, TrackersOf
from ringbase.errors import InputError
from ringbase.files import read_object, write_json
from ringbase.secrets import masked

IDS = "trackers.json"  # in a run's folder: its number in each tracker, by which a run goes on
END_S = 60.0  # that the end of a run waits for a tracker
PROJECT = "ringbert"
# of MLflow's client, by default minutes of patience
IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class Remote:
    """A tracker that a thread of its own tells what there is."""

    name: ClassVar[str]

    def __init__(self, folder: Path):
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, self.name)
        self._told: list[Future] = []
        self._has_begun = False
        self._has_failed = False

    def begin(self, flags: Mapping[str, Any]) -> None:
        self._has_begun = True
        given = {name: value for name, value in flags.items() if value is not None}
        self._later(self.start, masked(given))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if not self._has_begun:  # after a death another rank is the first
            self.begin({})
        self._later(self.send, step, dict(values))

    def end(self, scores: Mapping[str, float], files: Sequence[Path]) -> None:
        if not self._has_begun:
            return
        self._later(self.finish, dict(scores), list(files))
        self._thread.shutdown(wait=False)
        until_s = time.monotonic() + END_S
        try:
            for told in self._told:
                told.result(max(until_s - time.monotonic(), 0))
        except TimeoutError:
            text = f"{self.name} did not take everything within {END_S:.0f} s"
            raise TimeoutError(text) from None

    def _later(self, call: Callable[..., None], *arguments: Any) -> None:
        """Calls on the thread; raises what an earlier call there has raised, once."""
        if self._has_failed:
            return
        done = [told for told in self._told if told.done()]
        self._told = [told for told in self._told if not told.done()]
        try:
            for told in done:
                told.result()
        except Exception:
            self._has_failed = True
            self._thread.shutdown(wait=False, cancel_futures=True)
            raise
        self._told.append(self._thread.submit(call, *arguments))

    def start(self, flags: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def send(self, step: int, values: Mapping[str, float]) -> None:
        raise NotImplementedError

    def finish(self, scores: Mapping[str, float], files: Sequence[Path]) -> None:
        raise NotImplementedError

    def _id(self) -> str | None:
        """The run's in this tracker, of an earlier start."""
        path = self._folder / IDS
        return read_object(path).get(self.name) if path.is_file() else None

    def _keep_id(self, value: str) -> None:
        path = self._folder / IDS
        ids = read_object(path) if path.is_file() else {}
        write_json(path, {**ids, self.name: value})


class MLflow(Remote):
    """Where MLFLOW_TRACKING_URI says, in the experiment MLFLOW_EXPERIMENT_NAME."""

    name: ClassVar[str] = "mlflow"

    def start(self, flags: Mapping[str, Any]) -> None:
        for name, value in IMPATIENT.items():
            os.environ.setdefault(name, value)
        import mlflow  # type: ignore[import-not-found]

        if "MLFLOW_EXPERIMENT_NAME" not in os.environ and "MLFLOW_EXPERIMENT_ID" not in os.environ:
            mlflow.set_experiment(PROJECT)
        before = self._id()
        run = mlflow.start_run(before, run_name=None if before else self._folder.name)
        self._run_id = run.info.run_id
        self._keep_id(self._run_id)
        if not before:  # MLflow keeps the first value of a parameter
            mlflow.log_params({name: str(value)[:500] for name, value in flags.items()})

    def send(self, step: int, values: Mapping[str, float]) -> None:
        import mlflow

        mlflow.log_metrics(dict(values), step=step, run_id=self._run_id)

    def finish(self, scores: Mapping[str, float], files: Sequence[Path]) -> None:
        import mlflow

        mlflow.log_metrics(dict(scores), run_id=self._run_id)
        for file in files:
            mlflow.log_artifact(str(file), run_id=self._run_id)
        mlflow.end_run()


class WandB(Remote):
    """In the project WANDB_PROJECT; WANDB_MODE=offline keeps it in the run's folder."""

    name: ClassVar[str] = "wandb"

    def start(self, flags: Mapping[str, Any]) -> None:
        import wandb  # type: ignore[import-not-found]

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self._folder.name,
            dir=str(self._folder),
            config=dict(flags),
            id=self._id(),
            resume="allow",
        )
        self._keep_id(self._run.id)

    def send(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, scores: Mapping[str, float], files: Sequence[Path]) -> None:
        self._run.summary.update(dict(scores))
        for file in files:
            self._run.save(str(file), base_path=str(self._folder), policy="now")
        self._run.finish()


TRACKERS: Mapping[str, Callable[[Path], Tracker]] = {
    TensorBoard.name: TensorBoard,
    MLflow.name: MLflow,
    WandB.name: WandB,
}


def trackers_named(names: Sequence[str]) -> TrackersOf:
    """Makes the trackers of a run. Raises InputError: the library of one is not installed."""
    for name in names:
        if name != TensorBoard.name and importlib.util.find_spec(name) is None:
            raise InputError(f"--report_to {name} needs its library: pip install {name}")
    return lambda folder: [TRACKERS[name](folder) for name in names]
