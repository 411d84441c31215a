"""What bert-squad adds to the resolution of its runs. Without TensorFlow."""

from tasks.runs.resolve.command import Program
from tasks.squad.settings import SquadConfig


class Squad(Program[SquadConfig]):
    name = "bert-squad"

    def length(self, config: SquadConfig) -> int:
        return config.windows.max_seq_length
