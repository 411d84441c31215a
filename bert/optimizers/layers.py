"""Which parts of a model train, and how fast, by the names of their tensors. Without TensorFlow.

The depth of a part is 0 for the embeddings, 1 to L for the layers of the encoder, and L + 1 for
what stands above it: pooler and head.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from ringbase.settings import Settings, setting

_LAYER = re.compile(r"bert[./]encoder[./]layer_([0-9]+)[./]")
MOST_LAYERS = 1000


class LayerSettings(Settings):
    """Which parts of the model train, and how fast."""

    layer_lr_decay: float = setting(
        1.0,
        "each layer's learning rate is this times that of the layer above; the top layer and the"
        " head have --learning_rate, the embeddings the lowest",
        "layers",
        at_least=0.01,
        at_most=1,
        changes="training",
    )
    head_learning_rate: float | None = setting(
        None,
        "peak learning rate of pooler and head, scaled as --learning_rate is",
        "layers",
        shown_default="--learning_rate",
        at_least=0,
        at_most=10,
        changes="training",
    )
    freeze: int | Literal["embeddings", "encoder"] | None = setting(
        None,
        "keep as they are: embeddings; a number N: these and the N layers above them; encoder: all"
        " but pooler and head. A step is faster and needs less memory",
        "layers",
        shown_default="nothing",
        at_least=1,
        at_most=MOST_LAYERS,
        changes="training",
    )
    reinit_layers: int = setting(
        0,
        "give pooler and the N top layers initial values instead of the model's (Zhang et al."
        " 2021)",
        "layers",
        at_least=0,
        at_most=MOST_LAYERS,
        changes="training",
    )

    def check_model(self, num_layers: int) -> None:
        """Raises ValueError: the model has fewer layers, or what is new would be frozen."""
        for name in ("freeze", "reinit_layers"):
            value = getattr(self, name)
            if isinstance(value, int) and value > num_layers:
                raise ValueError(f"--{name} {value}: the model has {num_layers} layers")
        if self.reinit_layers and self.num_frozen(num_layers) > num_layers - self.reinit_layers + 1:
            raise ValueError(
                f"--freeze {self.freeze} would keep initial values that --reinit_layers"
                f" {self.reinit_layers} gives: lower one"
            )

    def num_frozen(self, num_layers: int) -> int:
        """The parts below this depth are frozen."""
        if self.freeze is None:
            return 0
        if self.freeze == "embeddings":
            return 1
        return 1 + (num_layers if self.freeze == "encoder" else int(self.freeze))

    def is_frozen(self, name: str, num_layers: int) -> bool:
        return depth_of(name, num_layers) < self.num_frozen(num_layers)

    def is_new(self, name: str, num_layers: int) -> bool:
        """Whether a tensor keeps its initial values although the model's weights have it."""
        if not self.reinit_layers:
            return False
        is_pooler = name.startswith("bert/pooler")
        is_high = depth_of(name, num_layers) > num_layers - self.reinit_layers
        return is_pooler or (is_high and name.startswith("bert/encoder"))

    def rates(self, num_layers: int, learning_rate: float) -> tuple["PartRate", ...]:
        """The factors of the rate, from the bottom; none if all parts have the same rate."""
        head = 1.0
        if self.head_learning_rate is not None and learning_rate:
            head = self.head_learning_rate / learning_rate
        if head == 1 and self.layer_lr_decay == 1:
            return ()
        return tuple(self._rates(num_layers, head))

    def _rates(self, num_layers: int, head: float) -> Iterator["PartRate"]:
        decay = self.layer_lr_decay
        yield PartRate("embeddings", r"^bert\.embeddings", decay**num_layers)
        for number in range(num_layers):
            factor = decay ** (num_layers - 1 - number)
            yield PartRate(f"layer {number}", rf"^bert\.encoder\.layer_{number}\.", factor)
        yield PartRate("encoder's norm", r"^bert\.encoder\.", 1.0)
        yield PartRate("head", "", head)


class PartRate(NamedTuple):
    """The learning rate of variables whose name matches (regular-expression search) and matches
    none before: `factor` times the optimizer's."""

    part: str
    pattern: str
    factor: float


def depth_of(name: str, num_layers: int) -> int:
    """How far above the bottom a tensor with this name is."""
    if re.match(r"bert[./]embeddings", name):
        return 0
    if layer := _LAYER.match(name):
        return 1 + int(layer[1])
    # a norm behind all layers belongs to the last one
    return num_layers if re.match(r"bert[./]encoder[./]", name) else num_layers + 1
