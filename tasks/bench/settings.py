"""The flags of bert-bench, without TensorFlow."""

from typing import Literal

from bert.settings import DropoutSettings
from bert.sizes import ModelSize
from ringbase.settings import LONGEST_ROW, MOST_ROWS, MOST_STEPS, Settings, setting
from tasks.runs.settings import MachineSettings, StepSettings


class LoadSettings(Settings):
    """What a measured step computes: a model without trained weights, on full rows."""

    model_size: ModelSize = setting("minilm", "published model size", "model")
    bert_config_file: str | None = setting(
        None, "JSON file with a BERT configuration, instead of --model_size", "model"
    )
    batch_size: int = setting(
        8, "rows per rank and micro-batch", "load", at_least=1, at_most=MOST_ROWS
    )
    seq_length: int = setting(
        384, "tokens per row", "load", aliases=("max_seq_length",), at_least=8, at_most=LONGEST_ROW
    )
    gradient_accumulation_steps: int = setting(
        1, "micro-batches per step", "load", at_least=1, at_most=MOST_ROWS
    )
    num_warmup: int = setting(
        3, "steps before the measurement", "load", at_least=0, at_most=MOST_STEPS
    )
    num_steps: int = setting(10, "measured steps", "load", at_least=1, at_most=MOST_STEPS)
    xla: Literal["on", "off"] = setting("off", "let XLA compile the whole gradient", "machine")
    dropout: DropoutSettings
    step: StepSettings
    machine: MachineSettings

    def __str__(self) -> str:
        rows = self.batch_size * self.gradient_accumulation_steps
        name = self.bert_config_file or self.model_size
        return f"{name}, {rows} x {self.seq_length} tokens per rank, {self.machine.precision}"


class StepConfig(Settings):
    """SQuAD training steps on full rows of random tokens."""

    load: LoadSettings
    output_file: str | None = setting(None, "JSON file to write the figures to", "machine")
