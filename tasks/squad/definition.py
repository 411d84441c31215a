"""What bert-squad is, before anything costly happens. Without TensorFlow."""

from collections.abc import Mapping, Sequence

from tasks.runs.resolve.command import Program
from tasks.runs.resolve.spec import Start
from tasks.squad.reader import SpanReader
from tasks.squad.reading import Source
from tasks.squad.settings import COMMAND, SquadConfig


class Squad(Program[SquadConfig]):
    name = COMMAND.name

    def length(self, config: SquadConfig) -> int:
        return config.windows.max_seq_length

    def sources(self, config: SquadConfig, start: Start) -> Mapping[str, Sequence[Source]]:
        train = [Source(config.questions, "train")]
        dev = [Source(config.questions, "predict")]
        # what is predicted is also what a training is evaluated on
        of_kind = {"train": train, "dev": dev, "predict": dev}
        return {kind: of_kind[kind] for kind in config.wanted_sets}

    def reader(self, config: SquadConfig, start: Start) -> SpanReader:
        return SpanReader(config.windows)


PROGRAM = Squad()
