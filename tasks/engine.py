"""A model with what TensorFlow has traced and compiled for it. Several trainings of a process can share it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import BertConfig

    from bert.model import Bert
    from distributed.gradient import TrainingStep


@dataclass
class Engine:
    """The parts of a training that do not depend on its seed, rate, steps or rows.

    A program asks for a model by `bert`. The first training then makes the other parts and leaves them here. The
    next one takes them as they are, so that it neither traces nor compiles. Only trainings whose settings are
    equal in all that the functions contain may share an engine.
    """

    model: "Bert | None" = None
    step: "TrainingStep | None" = None
    forward: Callable[[dict[str, Any]], Any] | None = None

    def bert(self, config: "BertConfig", head: str, seed: int) -> "Bert":
        """The model with the initial values of `seed`: a new one, unless the last one had this configuration."""
        from bert.model import Bert

        fresh = Bert(config, head, seed)
        known = self.model
        if known is None or (known.head_name, known.config.to_dict()) != (head, config.to_dict()):
            self.model, self.step, self.forward = fresh, None, None
            return fresh
        for variable, value in zip(known.variables, fresh.variables, strict=True):
            variable.assign(value)
        return known

    @property
    def config(self) -> "BertConfig":
        """The model's configuration."""
        assert self.model is not None, "no model yet"
        return self.model.config

    def scores(self, batch: dict[str, Any]) -> Any:
        """The model's scores, without dropout."""
        from tasks.batches import traced_once

        if self.forward is None:
            assert self.model is not None, "no model yet"
            self.forward = traced_once(self.model)
        return self.forward(batch)
