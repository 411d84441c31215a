"""Settings that programs share. Without TensorFlow, so that `--help` answers at once."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from bert.optimizers.layers import LayerSettings
from bert.optimizers.settings import OptimizerName, OptimizerSettings, ScheduleSettings
from bert.settings import DropoutSettings, TokenizerSettings
from bert.sizes import ModelSize
from distributed.collectives import CollectiveSettings
from distributed.devices import DeviceSettings
from distributed.plan import LoopSettings, PlanSettings
from distributed.watchdog import StallSettings
from ringbase.settings import (
    MOST_ROWS,
    MOST_SEED,
    MOST_STEPS,
    Settings,
    changing,
    fields_of,
    flat,
    setting,
)

Precision = Literal["fp32", "bf16", "fp16"]
TRACKERS = "tensorboard", "mlflow", "wandb"  # by their names in transformers
# what a training's recipe is, besides Google's flags
RECIPE = {"decay_proportion", "num_decay_steps"}
for _settings in (OptimizerSettings, ScheduleSettings, LayerSettings, DropoutSettings):
    RECIPE |= {field.name for field in fields_of(_settings)}
# the flags of the length of a training and of its schedule
OF_LENGTH = {
    *(field.name for field in fields_of(ScheduleSettings)),
    "num_train_epochs",
    "num_train_steps",
    "warmup_proportion",
    "num_warmup_steps",
    "decay_proportion",
    "num_decay_steps",
}
# of what is trained on
data_setting = partial(setting, group="data", changes="data")
# of how that becomes rows
row_setting = partial(setting, group="data", changes="rows")
# files of examples to train on, and to evaluate on or to predict
train_file_setting = partial(
    setting, None, group="data", changes="data", reads="machine", is_table=True, describes="data"
)
other_file_setting = partial(setting, None, group="data", reads="machine", is_table=True)
# folders of such files
folder_setting = partial(
    setting, None, group="data", changes="data", reads="machine", describes="data"
)


def batch_size(rows: str, group: str) -> Any:
    """The setting of how many rows a batch of `group` ("evaluation" or "prediction") has."""
    help = f"{rows} of --max_seq_length tokens per {group} batch; more if they are shorter"
    return setting(8, help, group, at_least=1, at_most=MOST_ROWS)


def eval_steps() -> Any:
    """The setting of when held-out data are scored while training."""
    help = "also score every N training steps; auto: as often as possible within 2 % of the time"
    return setting(None, help, "evaluation", at_least=1, at_most=MOST_STEPS)


class ModelSettings(Settings):
    """Configuration, vocabulary and weights: all at once by `--model`, or each by its own flag."""

    model: str | None = setting(
        None,
        "hub name or folder of a model: configuration, vocabulary and weights",
        "model",
        aliases=("model_name_or_path",),
        reads="first",
        describes="model",
    )
    model_revision: str | None = setting(
        None,
        "commit, tag or branch of the hub model that --model names",
        "model",
        shown_default="main",
    )
    init_checkpoint: str | None = setting(
        None,
        "weights: bert_model.ckpt or a Hugging Face folder",
        "model",
        reads="first",
        describes="model",
    )
    bert_config_file: str | None = setting(
        None,
        "JSON file with the BERT configuration",
        "model",
        shown_default="the model's own",
        reads="first",
        describes="model",
    )
    model_size: ModelSize | None = setting(
        None,
        "a new model of this published size, whose vocabulary is the tokenizer's, instead of"
        " --bert_config_file",
        "model",
        describes="model",
    )
    tokenizer: TokenizerSettings

    def check(self) -> None:
        for name in ("model", "init_checkpoint", "bert_config_file"):
            if self.model_size and getattr(self, name):
                raise ValueError(f"--model_size makes a new model: give it or --{name}, not both")
        if self.model_revision and (self.init_checkpoint or not self.model):
            raise ValueError(
                "--model_revision needs --model with a hub name, and no --init_checkpoint"
            )


class MachineSettings(Settings):
    """Where and how a program computes."""

    device: DeviceSettings
    collectives: CollectiveSettings
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
    attention: Literal["own", "cudnn"] = setting(
        "own",
        "cudnn is cuDNN's, for trainings that XLA compiles for a GPU, in bf16 or fp16, of models"
        " without dropout in their attention; not yet tried on a GPU",
        "machine",
    )
    compression: Literal["none", "bf16"] = setting(
        "none",
        "bf16 sends gradients between machines in 2 bytes per number, for slow networks",
        "machine",
    )


class TrainingSettings(Settings):
    """How a program trains: names and defaults of Google's scripts, and some more."""

    plan: PlanSettings
    rate: ScheduleSettings
    optimization: OptimizerSettings
    layers: LayerSettings
    dropout: DropoutSettings
    optimizer: OptimizerName = setting(
        "adamw",
        "adamw is BERT's AdamWeightDecay; lamb is for global batches of thousands of rows",
        "training",
        changes="training",
    )
    step: StepSettings
    loop: LoopSettings
    resume: str = setting("auto", "auto, never, or the folder of a run to continue", "training")
    report_to: str = setting(
        TRACKERS[0],
        f"what follows a training beside metrics.jsonl: none, or of {', '.join(TRACKERS)}; their"
        " libraries are yours, and their own variables say where they write",
        "training",
        is_list=True,
    )

    @property
    def trackers(self) -> list[str]:
        names = [name.strip() for name in self.report_to.split(",")]
        return [] if names == ["none"] else names

    def void(self) -> Mapping[str, str]:
        kind = self.rate.lr_scheduler_type
        reasons = dict.fromkeys(self.rate.unread(), f"--lr_scheduler_type {kind} does not read it")
        if self.layers.freeze == "encoder" and self.layers.layer_lr_decay != 1:
            reasons["layer_lr_decay"] = "--freeze encoder leaves no layer that trains"
        return reasons

    def check(self) -> None:
        if set(self.trackers) - set(TRACKERS):
            known = ", ".join(TRACKERS)
            raise ValueError(f"--report_to must be none or of {known}, got {self.report_to}")
        if self.layers.head_learning_rate is not None and not self.plan.learning_rate:
            raise ValueError(
                "--head_learning_rate cannot be scaled by a --learning_rate of 0: to train the head"
                " alone, give its rate as --learning_rate, and --freeze encoder"
            )

    def fixed(self) -> dict[str, Any]:
        """Flag -> value for what must stay the same when a run is resumed."""
        plan = self.plan.resolved()
        batch = None if plan.global_batch_size else plan.batch_size
        values = changing(self, "training") | changing(plan, "training")
        return values | {"train_batch_size": batch}

    def recipe(self) -> dict[str, Any]:
        """Flag -> value of optimizer, schedule and layers, where it is not Google's."""
        return recipe_in(flat(self))


def recipe_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of these flags that say how a training differs from Google's."""
    fields = (field for field in fields_of(TrainingSettings) if field.name in RECIPE)
    values = {field.name: values.get(field.name, field.default) for field in fields}
    default = {field.name: field.default for field in fields_of(TrainingSettings)}
    return {name: value for name, value in values.items() if value != default[name]}


class ProgramConfig(Settings):
    """What all programs that train have. A program adds its own flags."""

    output_dir: str = setting(
        help="folder of this run: checkpoints, metrics, results", group="data"
    )
    model: ModelSettings
    training: TrainingSettings
    machine: MachineSettings
    do_train: bool = setting(False, "train the model", "training")
    plan: bool = setting(
        False, "print what the command would do, as JSON and in words, and stop", "data"
    )

    def void(self) -> Mapping[str, str]:
        if self.do_train:
            return {}
        of_training = [field.name for field in fields_of(type(self.training))]
        of_training.remove("resume")  # which names what to predict with, too
        for field in fields_of(type(self)):
            if field.changes == "training" and not field.is_saved:
                of_training.append(field.name)
        return dict.fromkeys(of_training, "--do_train does not ask for a training")

    @property
    def has_seeds(self) -> bool:
        """Whether there is a run for each of several seeds, in a folder of its own."""
        return False

    @property
    def each_seed(self) -> list[int]:
        """The seeds of the command's runs."""
        return [self.training.loop.seed]

    @property
    def does_eval(self) -> bool:
        """Whether held-out data are scored at the end."""
        return False

    @property
    def does_predict(self) -> bool:
        """Whether examples are predicted at the end."""
        return False


class ExampleLimits(Settings):
    """How many of the examples are read."""

    max_train_examples: int | None = data_setting(None, "train on the first N examples", at_least=1)
    max_predict_examples: int | None = setting(
        None, "evaluate and predict the first N examples", "data", at_least=1
    )


class DataSettings(ExampleLimits):
    """Which examples are read: files, which a task adds, or the splits of a data set."""

    dataset_name: str | None = data_setting(
        None,
        "hub data set or folder instead of files, with the same columns, and splits train,"
        " validation and test",
        describes="data",
    )
    dataset_revision: str | None = data_setting(
        None, "commit, tag or branch of the hub data set --dataset_name", shown_default="main"
    )

    def check(self) -> None:
        if self.dataset_revision and not self.dataset_name:
            raise ValueError("--dataset_revision needs --dataset_name")


class EvaluationSettings(Settings):
    """How held-out data are scored, also during training."""

    do_eval: bool = setting(False, "evaluate on held-out data (the dev set)", "evaluation")
    eval_batch_size: int = batch_size("examples", "evaluation")
    eval_steps: int | Literal["auto"] | None = eval_steps()


class SelectionSettings(Settings):
    """How the scores of the dev set while training choose the model."""

    eval_steps: int | Literal["auto"] | None = eval_steps()
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

    @property
    def during_training(self) -> bool:
        return bool(self.eval_steps or self.keeps_best)

    @property
    def keeps_best(self) -> bool:
        return self.load_best_model_at_end or self.early_stopping_patience is not None


class DevSettings(SelectionSettings, EvaluationSettings):
    """How the dev set of a fine-tuning is scored, which can choose the model."""


class FineTuningConfig(ProgramConfig):
    """What all programs that fine-tune a model have. The set to predict is also the dev set."""

    dev: ClassVar[str] = "dev"  # the file of the dev set is `dev`_file
    evaluation: SelectionSettings
    seeds: str | None = setting(
        None,
        "train once per seed, such as 1,2,3, in OUTPUT_DIR/seed-N; report mean and deviation",
        "training",
        is_list=True,
    )
    do_predict: bool = setting(False, "predict the test set", "prediction")
    predict_batch_size: int = batch_size("rows", "prediction")
    allow_unknown: bool = setting(
        False, "continue even if more than 10 % of the tokens are [UNK]", "data"
    )

    @property
    def has_seeds(self) -> bool:
        return self.seeds is not None

    @property
    def each_seed(self) -> list[int]:
        if self.seeds is None:
            return [self.training.loop.seed]
        return [int(seed) for seed in self.seeds.split(",")]

    @property
    def wanted_sets(self) -> list[str]:
        """Which of "train", "dev" and "predict" are read."""
        needs_dev = self.does_eval or (self.do_train and self.evaluation.during_training)
        wanted = {"train": self.do_train, "dev": needs_dev, "predict": self.do_predict}
        return [*filter(wanted.get, wanted)]

    @property
    def does_predict(self) -> bool:
        return self.do_predict

    @property
    def does_eval(self) -> bool:
        return self.do_predict

    @property
    def eval_batch_size(self) -> int:
        return self.predict_batch_size

    def void(self) -> Mapping[str, str]:
        values, wanted = flat(self), set(self.wanted_sets)
        if self.dev in ("train", "predict") and "dev" in wanted:
            wanted.add(self.dev)
        reasons = dict(super().void())
        for kind, asks in (
            ("train", "--do_train does not ask"),
            ("dev", "neither --do_eval nor an evaluation while training asks"),
            ("predict", "--do_predict does not ask"),
        ):
            if kind not in wanted:
                reasons[f"{kind}_file"] = f"{asks} for it"
                if kind != "train":
                    reasons[f"{kind}_batch_size"] = f"{asks} for it"
        files = [values.get(f"{kind}_file") for kind in wanted if f"{kind}_file" in values]
        if all(files):
            reasons |= dict.fromkeys(("dataset_name", "dataset_revision"), "the files are read")
        if self.has_seeds:
            reasons["seed"] = "--seeds has the seeds"
        if not self.do_train:
            of_training = [field.name for field in fields_of(SelectionSettings)]
            of_training.append("max_train_examples")
            reasons |= dict.fromkeys(of_training, "--do_train does not ask for a training")
        if wanted == {"train"}:
            reasons["max_predict_examples"] = "nothing is evaluated or predicted"
        return reasons

    def check_parts(self) -> None:
        """Raises ValueError: no set is wanted."""
        if not self.wanted_sets:
            known = [field.name for field in fields_of(type(self))]
            parts = [f"--{do}" for do in ("do_train", "do_eval", "do_predict") if do in known]
            raise ValueError(f"nothing to do: give one or more of {', '.join(parts)}")

    def check_files(self, files: Settings, instead: str) -> None:
        """Raises ValueError: no set is wanted, or neither the file of one nor the flag `instead` is
        given."""
        self.check_parts()
        wanted = self.wanted_sets
        dev_reason = "--do_eval" if self.does_eval else "evaluation while training"
        for name, file, reason in (
            ("train", "train_file", "--do_train"),
            ("predict", "predict_file", "--do_predict"),
            ("dev", f"{self.dev}_file", dev_reason),
        ):
            if name in wanted and not (getattr(files, file) or getattr(files, instead)):
                raise ValueError(f"{reason} needs --{file}, or --{instead}")

    def check(self) -> None:
        seeds = [] if self.seeds is None else self.seeds.split(",")
        numbers = {int(seed) for seed in seeds if re.fullmatch("[0-9]{1,10}", seed)}
        if len(numbers) < len(seeds) or max(numbers, default=0) > MOST_SEED:
            raise ValueError(
                f"--seeds must be different numbers up to {MOST_SEED}, such as 1,2, got"
                f" {self.seeds}"
            )


class SmoothingSettings(Settings):
    """How sure of the labels a model has to become."""

    label_smoothing_factor: float = setting(
        0.0,
        "share of a label's weight that all labels get alike (Szegedy et al. 2016)",
        "layers",
        at_least=0,
        at_most=0.999,
        changes="training",
    )


class HeadSettings(SmoothingSettings):
    """How a head with labels is trained."""

    classifier_dropout: float | None = setting(
        None,
        "dropout before the head's scores, instead of what the model's configuration says",
        "layers",
        shown_default="the model's own, else --hidden_dropout_prob",
        at_least=0,
        at_most=0.99,
        changes="training",
    )


class TaskConfig(FineTuningConfig):
    """Of programs with a dev set of its own."""

    evaluation: DevSettings

    def void(self) -> Mapping[str, str]:
        reasons = dict(super().void())
        if "dev" not in self.wanted_sets:
            reasons["eval_batch_size"] = reasons["dev_file"]
        return reasons

    @property
    def does_eval(self) -> bool:
        return self.evaluation.do_eval

    @property
    def eval_batch_size(self) -> int:
        return self.evaluation.eval_batch_size
