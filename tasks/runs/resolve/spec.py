"""A run as a value: complete before anything costly happens, and without behaviour."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bert.configuration import BertConfig
from bert.text.tokenizer import Tokenizer
from distributed.plan import State
from ringbase.files import digest
from ringbase.secrets import masked


@dataclass(frozen=True)
class Start:
    """Where a run starts: its model's configuration, tokenizer and weights, and what it goes on
    from."""

    bert_config: BertConfig
    tokenizer: Tokenizer | None = None  # None if the data are already token ids
    weights: Path | None = None  # a folder or a TensorFlow checkpoint; None for initial values
    checkpoint: Path | None = None  # to continue from, with its `state`
    state: State | None = None
    reason: str = "initial values"  # where the weights come from, for messages
    commit: str | None = None  # of the weights, if they are the hub's
    # which run has trained the weights that a new run begins with, if one has (past.py)
    origin: Mapping[str, Any] | None = None
    # which keep their initial values although `weights` has them
    fresh_tensors: tuple[str, ...] = ()
    moments: Path | None = None  # a checkpoint whose optimizer's moments a new run takes over
    # the settings that the weights were trained with, by flag; empty if nobody knows
    saved: Mapping[str, Any] = field(default_factory=dict)
    # of a training that goes on, or is complete: what must not have changed, by name
    fixed: Mapping[str, Any] | None = None
    # result.json of a training that is complete: `weights` are its model, which stays as it is
    result: Mapping[str, Any] | None = None
    steps: int | None = None  # that the weights were trained for, if a run's

    @property
    def words(self) -> Tokenizer:
        """The tokenizer of a program that needs one."""
        assert self.tokenizer is not None
        return self.tokenizer

    @property
    def is_complete(self) -> bool:
        """Whether the weights are the model of a training that has ended."""
        return self.result is not None

    @property
    def goes_on(self) -> bool:
        """Whether a training began earlier."""
        return self.checkpoint is not None or self.is_complete


@dataclass(frozen=True)
class RunSpec:
    """One run of a command. Rank 0 resolves it, and all ranks execute it."""

    program: str
    seed: int
    folder: Path
    does: tuple[str, ...]  # of "train", "eval" and "predict"
    config: Mapping[str, Any]  # the value of every flag, those of a trained model included
    start: Start
    starts: Sequence[dict[str, Any]] = ()  # of this run so far (tasks/runs/history.py)
    # the flags with other values than in the training before, [old, new] by name
    changed: Mapping[str, Any] = field(default_factory=dict)
    # the flags on which the rows to train on depend
    data: Mapping[str, Any] = field(default_factory=dict)
    # those that tell people most of its "model" and its "data"
    describes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def as_json(spec: RunSpec) -> dict[str, Any]:
    """What `--plan` prints of a run, and what its digest is made of."""
    start = spec.start
    tokenizer = start.tokenizer
    words = None
    if tokenizer:
        words = {"source": tokenizer.source, "digest": tokenizer.digest}
    model = {
        "configuration": json.loads(json.dumps(asdict(start.bert_config))),  # tuples are lists
        "tokenizer": words,
        "weights": str(start.weights) if start.weights else None,
        "from": start.reason,
        "commit": start.commit,
        "new_tensors": list(start.fresh_tensors),
    }
    progress = None
    if start.is_complete:
        progress = {"complete": True, "steps": start.steps}
    elif start.state:
        state = start.state
        progress = {"complete": False, "step": state.step, "steps": state.steps}
    return {
        "program": spec.program,
        "seed": spec.seed,
        "output_dir": str(spec.folder),
        "does": list(spec.does),
        "model": model,
        "goes_on_from": progress,
        "flags": masked(spec.config),
    }


def digest_of(spec: RunSpec) -> str:
    """A digest of all that a run is."""
    return digest(as_json(spec))
