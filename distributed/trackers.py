"""What follows a training beside metrics.jsonl: TensorBoard's event files, and other objects of the
same form (tasks/runs/trackers.py)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from distributed.devices import imported_tensorflow
from ringbase.secrets import masked


class Tracker(Protocol):
    """Follows one run, on its first rank. What it raises is a warning, once."""

    name: ClassVar[str]

    def begin(self, flags: Mapping[str, Any]) -> None:
        """Tells the flags of a training that begins or goes on."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Tells the numbers of a step."""

    def end(self, scores: Mapping[str, float], files: Sequence[Path]) -> None:
        """Tells the scores of a complete training, hands over its page and card, and waits until
        all is sent."""


class TensorBoard:
    """Event files in the run's folder, with the flags for TensorBoard's table of runs."""

    name: ClassVar[str] = "tensorboard"

    def __init__(self, folder: Path):
        self._folder = folder / self.name
        self._events: Any = None

    def begin(self, flags: Mapping[str, Any]) -> None:
        from tensorboard.plugins.hparams import summary_v2  # comes with TensorFlow; 0.1 s

        given = {name: value for name, value in flags.items() if value is not None}
        self._write(summary_v2.hparams_pb(masked(given)), 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        summary = imported_tensorflow().compat.v1.Summary()
        # one operation for all: each takes TensorFlow 0.4 ms
        for name, value in values.items():
            summary.value.add(tag=name, simple_value=value)
        self._write(summary, step)

    def end(self, scores: Mapping[str, float], files: Sequence[Path]) -> None:
        pass

    def _write(self, event: Any, step: int) -> None:
        """Writes a protocol buffer."""
        tf = imported_tensorflow()
        if self._events is None:
            self._events = tf.summary.create_file_writer(str(self._folder))
        with self._events.as_default():
            tf.summary.experimental.write_raw_pb(event.SerializeToString(), step)
        self._events.flush()


# The trackers of the run in a folder.
TrackersOf = Callable[[Path], Sequence[Tracker]]


def event_files(folder: Path) -> Sequence[Tracker]:
    return [TensorBoard(folder)]
