"""The sizes of published models, for new models of the same form."""

from collections.abc import Mapping
from typing import Any, Literal

from bert.configuration import BertConfig, config_of

ModelSize = Literal[
    "tiny",
    "minilm",
    "base",
    "large",
    "ettin-17m",
    "ettin-32m",
    "ettin-68m",
    "modernbert-base",
    "modernbert-large",
]
# Model type, hidden size, layers, heads, intermediate size. Ettin's encoders (Weller et al. 2025)
# are ModernBERTs, whose next size is modernbert-base.
SIZES: Mapping[ModelSize, tuple[str, int, int, int, int]] = {
    "tiny": ("bert", 128, 2, 2, 512),
    "minilm": ("bert", 384, 6, 12, 1536),
    "base": ("bert", 768, 12, 12, 3072),
    "large": ("bert", 1024, 24, 16, 4096),
    "ettin-17m": ("modernbert", 256, 7, 4, 384),
    "ettin-32m": ("modernbert", 384, 10, 6, 576),
    "ettin-68m": ("modernbert", 512, 19, 8, 768),
    "modernbert-base": ("modernbert", 768, 22, 12, 1152),
    "modernbert-large": ("modernbert", 1024, 28, 16, 2624),
}


def config_of_size(size: ModelSize, vocab_size: int, **others: Any) -> BertConfig:
    """The configuration of a new model of a published size with this vocabulary; `others` by the
    keys of config.json."""
    model_type, hidden_size, num_layers, num_heads, intermediate_size = SIZES[size]
    values = {
        "model_type": model_type,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "intermediate_size": intermediate_size,
    }
    return config_of(values | others)
