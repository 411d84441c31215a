"""What bert-embedder is, before anything costly happens. Without TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ringbase.settings import flat
from tasks.embedder.pooling import said_by, unheeded_in
from tasks.embedder.reader import PairReader
from tasks.embedder.reading import Source, files_and_columns
from tasks.embedder.settings import COMMAND, DEFAULTS, EmbedderConfig, VectorSettings
from tasks.runs.resolve.command import Program, Say
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.reader import Readings
from tasks.runs.trained import saved_settings


class Embedder(Program[EmbedderConfig]):
    name = COMMAND.name

    def length(self, config: EmbedderConfig) -> int:
        length = config.vectors.max_seq_length
        assert length is not None  # `settled` has given it a value
        return length

    def settled(self, config: EmbedderConfig, start: Start, say: Say) -> EmbedderConfig:
        for line in unheeded_in(start.weights, start.words.lower_case):
            say(f"warning: {line}")
        return replace(config, vectors=vectors_of(config, start))

    def sources(self, config: EmbedderConfig, start: Start) -> Mapping[str, Sequence[Source]]:
        pairs = files_and_columns(config.pairs)
        return {kind: [Source(pairs, kind)] for kind in config.wanted_sets}

    def reader(self, config: EmbedderConfig, start: Start) -> PairReader:
        return PairReader(config.vectors, saved_settings(config))

    def loss(self, config: EmbedderConfig, start: Start, readings: Readings) -> str:
        (source,) = self.sources(config, start)["train"]
        pairs = readings.of(self.reader(config, start), source)
        return config.loss.in_words(bool(pairs.scores))


PROGRAM = Embedder()


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
