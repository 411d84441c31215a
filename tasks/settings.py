"""Settings that programs share. Without TensorFlow, so that `--help` answers at once."""

from dataclasses import dataclass
from typing import Any, Literal

from bert.settings import TokenizerSettings
from distributed.devices import DeviceSettings
from distributed.plan import LoopSettings, PlanSettings
from distributed.watchdog import StallSettings
from ringbase.settings import MOST_ROWS, MOST_STEPS, Settings, flat, setting

Precision = Literal["fp32", "bf16", "fp16"]
# Flags that must not change when a run is resumed; each program adds its own.
SCHEDULE = (
    "learning_rate",
    "lr_scaling",
    "num_train_epochs",
    "num_train_steps",
    "warmup_proportion",
    "num_warmup_steps",
    "global_batch_size",
    "optimizer",
    "seed",
)


def batch_size(rows: str, group: str) -> Any:
    """The setting of how many rows a batch of `group` ("evaluation" or "prediction") has."""
    help = f"{rows} of --max_seq_length tokens per {group} batch; more if they are shorter"
    return setting(8, help, group, at_least=1, at_most=MOST_ROWS)


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Configuration, vocabulary and weights: all at once by `--model`, or each by its own flag."""

    model: str | None = setting(
        None,
        "hub name or folder of a model: configuration, vocabulary and weights",
        "model",
        aliases=("model_name_or_path",),
    )
    model_revision: str | None = setting(
        None,
        "commit, tag or branch of the hub model that --model names",
        "model",
        shown_default="main",
    )
    bert_config_file: str | None = setting(
        None, "JSON file with the BERT configuration", "model", shown_default="the model's own"
    )
    init_checkpoint: str | None = setting(
        None, "weights: bert_model.ckpt or a Hugging Face folder", "model"
    )
    tokenizer: TokenizerSettings

    def check(self) -> None:
        if self.model_revision and (self.init_checkpoint or not self.model):
            raise ValueError(
                "--model_revision needs --model with a hub name, and no --init_checkpoint"
            )


@dataclass(frozen=True, kw_only=True)
class MachineSettings(Settings):
    """Where and how a program computes."""

    device: DeviceSettings
    precision: Precision = setting(
        "fp32",
        "number format of matrix products; weights and sums are always float32, and fp16 scales the"
        " loss",
        "machine",
    )
    tf32: bool = setting(
        False,
        "let GPUs round the factors of float32 matrix products to 10 bits (TF32), which is faster",
        "machine",
    )
    stalls: StallSettings


@dataclass(frozen=True, kw_only=True)
class StepSettings(Settings):
    """How a training step computes its passes and sums."""

    packing: Literal["auto", "off"] = setting(
        "auto",
        "train rows of like length in groups instead of padding all to the longest of a batch",
        "training",
    )
    recompute: bool = setting(
        False,
        "keep only the layers' outputs and compute the rest again in the backward pass, which saves"
        " memory",
        "machine",
    )
    compression: Literal["none", "bf16"] = setting(
        "none",
        "bf16 sends gradients between machines in 2 bytes per number, for slow networks",
        "machine",
    )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """How a program trains: names and defaults of Google's scripts, and some more."""

    plan: PlanSettings
    optimizer: Literal["adamw", "lamb"] = setting(
        "adamw",
        "adamw is BERT's AdamWeightDecay; lamb is for global batches of thousands of rows",
        "training",
    )
    step: StepSettings
    loop: LoopSettings
    resume: str = setting("auto", "auto, never, or the folder of a run to continue", "training")

    def schedule(self) -> dict[str, object]:
        """Flag -> value for what must stay the same when a run is resumed."""
        plan = self.plan.resolved()
        values = flat(self) | flat(plan)
        batch = None if plan.global_batch_size else plan.batch_size
        return {f"--{name}": values[name] for name in SCHEDULE} | {"--train_batch_size": batch}


@dataclass(frozen=True, kw_only=True)
class ProgramConfig(Settings):
    """What all programs that train have. A program adds its own flags."""

    output_dir: str = setting(
        help="folder of this run: checkpoints, metrics, results", group="data"
    )
    model: ModelSettings
    training: TrainingSettings
    machine: MachineSettings
    do_train: bool = setting(False, "train the model", "training")

    def check_files(self, files: Settings, instead: str, **wanted: bool) -> None:
        """Raises ValueError: nothing is wanted of "train", "dev" and "predict", or neither its file
        nor the flag `instead` is given."""
        flags = {name: f"--do_{'eval' if name == 'dev' else name}" for name in wanted}
        if not any(wanted.values()):
            raise ValueError(f"nothing to do: give one or more of {', '.join(flags.values())}")
        for name in filter(wanted.get, wanted):
            if not (getattr(files, f"{name}_file") or getattr(files, instead)):
                raise ValueError(f"{flags[name]} needs --{name}_file, or --{instead}")


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(Settings):
    """How held-out data are scored, also during training."""

    do_eval: bool = setting(False, "evaluate on held-out data (the dev set)", "evaluation")
    eval_batch_size: int = batch_size("examples", "evaluation")
    eval_steps: int | Literal["auto"] | None = setting(
        None,
        "also score every N training steps; auto: as often as possible within 2 % of the time",
        "evaluation",
        at_least=1,
        at_most=MOST_STEPS,
    )


@dataclass(frozen=True, kw_only=True)
class DevSettings(EvaluationSettings):
    """How the dev set of a fine-tuning is scored, which can choose the model."""

    load_best_model_at_end: bool = setting(
        False,
        "keep the model of the best dev score, by default of one per epoch, instead of the last",
        "evaluation",
    )
    early_stopping_patience: int | None = setting(
        None,
        "stop after N dev scores without a better one; keeps the best model",
        "evaluation",
        at_least=1,
    )

    def needs_dev_set(self, trains: bool) -> bool:
        """Whether a command that trains, or does not, reads the dev set."""
        return self.do_eval or (trains and self.during_training)

    @property
    def during_training(self) -> bool:
        return bool(self.eval_steps or self.keeps_best)

    @property
    def keeps_best(self) -> bool:
        return self.load_best_model_at_end or self.early_stopping_patience is not None
