"""What bert-embedder adds to the resolution of its runs: how texts become vectors. Without
TensorFlow."""

from collections.abc import Mapping
from dataclasses import replace

from ringbase.settings import flat
from tasks.embedder.pooling import said_by
from tasks.embedder.settings import DEFAULTS, EmbedderConfig, VectorSettings
from tasks.runs.resolve.command import Program
from tasks.runs.resolve.spec import Start


class Embedder(Program[EmbedderConfig]):
    name = "bert-embedder"

    def length(self, config: EmbedderConfig) -> int:
        length = config.vectors.max_seq_length
        assert length is not None  # `settled` has given it a value
        return length

    def settled(self, config: EmbedderConfig, start: Start) -> EmbedderConfig:
        return replace(config, vectors=vectors_of(config, start))


def vectors_of(config: EmbedderConfig, start: Start) -> VectorSettings:
    """The flags', else those of the model's folder, of which a new training takes over the pooling
    alone."""
    flags = config.vectors
    said: Mapping = {}
    if not (config.do_train and flags.pooling):
        said = said_by(start.weights, start.bert_config.num_positions, flags.pooling)
    if config.do_train:
        said = {name: value for name, value in said.items() if name == "pooling"}
    given = {name: value for name, value in flat(flags).items() if value is not None}
    return VectorSettings(**{**DEFAULTS, **said, **given})
