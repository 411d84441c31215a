"""The command bert-features: names and defaults of extract_features.py, and some more."""

import re
from functools import partial

from ringbase.settings import LONGEST_ROW, MOST_ROWS, Settings, setting
from tasks.runs.commands import Command
from tasks.runs.environment import run_command
from tasks.runs.settings import MachineSettings, ModelSettings


class FeaturesConfig(Settings):
    """Hidden-state vectors of texts over all MPI ranks."""

    model: ModelSettings
    machine: MachineSettings
    input_file: str = setting(
        help="UTF-8 text, one text or pair `text ||| text` per line", group="data", reads="machine"
    )
    output_file: str = setting(help="JSON lines, or Parquet if it ends in .parquet", group="data")
    layers: str = setting(
        "-1,-2,-3,-4", "layer numbers, separated by commas; -1 is the last layer", "data"
    )
    max_seq_length: int = setting(
        128, "maximum number of tokens per line", "data", at_least=4, at_most=LONGEST_ROW
    )
    allow_unknown: bool = setting(
        False, "continue even if more than 10 % of the tokens are [UNK]", "data"
    )
    batch_size: int = setting(32, "lines per batch", "machine", at_least=1, at_most=MOST_ROWS)

    def check(self) -> None:
        if not (self.model.init_checkpoint or self.model.model):
            raise ValueError(
                "weights are needed: give --init_checkpoint, or --model with a folder or hub name"
            )
        if "://" in self.output_file:
            raise ValueError(f"--output_file must be a local file, got {self.output_file[:80]}")
        if not re.fullmatch(r"-?\d{1,4}(,-?\d{1,4})*", self.layers):
            raise ValueError(
                f"--layers must be integers separated by commas, got {self.layers[:80]}"
            )


main = partial(run_command, Command("bert-features", FeaturesConfig))

if __name__ == "__main__":
    main()
