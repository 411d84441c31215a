"""The model where a run starts, and its values on every rank."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bert import weights
from bert.heads import EMBEDDINGS, Head, kind_in
from bert.hub import MODULES
from bert.model import Bert
from distributed.checkpoint import Write
from distributed.optimizer import broadcast_variables
from distributed.run import Run
from distributed.world import World
from ringbase.errors import InputError
from tasks.runs.history import History
from tasks.runs.resolve.spec import Start


def model_of(start: Start, head: Head) -> Bert:
    """A model of this configuration, without values: `load_trained`, or a training, gives it
    some."""
    return Bert(start.bert_config, head, seed=None)


def check_kind(start: Start, head: Head) -> None:
    """Raises InputError if a trained model is for other predictions than those of this head: a
    classifier's outputs have the names and shapes of a tagger's."""
    kind = kind_in(start.bert_config)
    if kind is None and start.weights and (start.weights / MODULES).is_file():
        kind = EMBEDDINGS["mean", True]  # any of them: they have one program
    needs_own_kind = bool(head.program)  # any model has features
    if kind and kind.program != head.program and needs_own_kind:
        raise InputError(
            f"{start.weights} is a model for {kind.pipeline} ({start.bert_config.class_name}), not"
            f" for {head.pipeline}: predict with {kind.program} or ringbert.{kind.predictor}, or"
            f" train it with {head.program}"
        )


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A model with its tokenizer as a part of a checkpoint."""

    model: Bert
    start: Start
    say: Callable[[str], None]

    def copied(self) -> Write:
        return weights.copied(self.model, self.start.tokenizer)

    def restore(self, folder: Path) -> None:
        loaded = weights.load(self.model, folder)
        self.say(f"weights: {loaded} ({self.start.reason})")


def load_trained(start: Start, model: Bert, history: History, run: Run) -> None:
    """Gives a model on every rank the trained weights, for predictions."""
    assert start.weights is not None
    check_kind(start, model.head)
    history.begin("prediction", start.reason, start.steps or 0)
    load_on_all(model, start.weights, history.world, run, start.reason)
    history.world.stops.from_now_on("finishing this batch of predictions")


def load_on_all(
    model: Bert, source: Path, world: World, run: Run, reason: str | None = None
) -> None:
    """Gives a model on every rank the weights in a folder or TensorFlow checkpoint. `reason`: why
    these, for the message."""

    def load():
        loaded = weights.load(model, source)
        run.say(f"weights: {loaded} ({reason})" if reason else f"weights: {loaded}")

    world.on_first(load)
    broadcast_variables(model.trainable_variables, world)
