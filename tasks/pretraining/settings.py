"""The flags of bert-pretraining: names and defaults of run_pretraining.py, and some more."""

import math
from collections.abc import Mapping

from bert.corpus.settings import GOOGLES_MASKS, given_masks
from distributed.plan import PlanSettings
from distributed.stages import stages_of
from ringbase.settings import LONGEST_ROW, MOST_STEPS, Settings, flat, setting
from tasks.runs.commands import Command
from tasks.runs.naming import Named, named_corpora, places_in, refuse_decay
from tasks.runs.settings import (
    EvaluationSettings,
    ProgramConfig,
    TrainingSettings,
    data_setting,
    row_setting,
)

GOOGLES_WARMUP = 10_000  # steps, by default
MODERN_SHARE = 0.3  # of the tokens are masked
LEAST_SHARE = 0.001
MOST_ALPHA = 10


class ShardSettings(Settings):
    """What is read from shards, and how masks are drawn if the shards have none."""

    max_seq_length: int = row_setting(
        128, "maximum number of tokens per example", at_least=1, at_most=LONGEST_ROW
    )
    max_predictions_per_seq: int | None = row_setting(
        None,
        "maximum number of masked tokens per example",
        shown_default="as the shards were built, else 20; for ModernBERT that share of the length",
        at_least=1,
        at_most=LONGEST_ROW,
    )
    masked_lm_prob: float | str | None = row_setting(
        None,
        "fraction of the tokens that are masked; 0.3:0.15@60% changes after 60 % of the training,"
        " 0.3:0.15@5000 after 5,000 steps of one rank",
        shown_default="as the shards were built, else 0.15; for ModernBERT 0.3",
        at_least=LEAST_SHARE,
        at_most=1,
    )
    do_whole_word_mask: bool | None = row_setting(
        None,
        "mask all pieces of a word together",
        shown_default="as the shards were built, else false",
    )

    def check(self) -> None:
        if isinstance(self.masked_lm_prob, str):
            for stage in stages_of(self.masked_lm_prob, "masked_lm_prob"):
                if not LEAST_SHARE <= stage.value <= 1:
                    raise ValueError(
                        f"--masked_lm_prob must be from {LEAST_SHARE} to 1, got"
                        f" {float(stage.value):g} in {self.masked_lm_prob}"
                    )

    def masks(self, built: Mapping, is_modern: bool = False) -> dict:
        """The settings of masks: of the flags, else of `built`, those that the shards were made
        with, else Google's or ModernBERT's (Warner et al. 2024, section 2.2). A share that changes
        may be used in full."""
        stated = {name: built[name] for name in GOOGLES_MASKS if name in built}
        stated |= given_masks(self)
        defaults = dict(GOOGLES_MASKS)
        share = stated.get("masked_lm_prob", MODERN_SHARE)
        if is_modern or isinstance(share, str):
            most = math.ceil(highest(share) * self.max_seq_length)
            defaults |= {"masked_lm_prob": share, "max_predictions_per_seq": most}
        return defaults | stated


def highest(share: str | float) -> float:
    """The highest of the values of `--masked_lm_prob`."""
    if not isinstance(share, str):
        return share
    return float(max(stage.value for stage in stages_of(share, "masked_lm_prob")))


class HeldOutSettings(EvaluationSettings):
    """How many of the held-out examples are scored."""

    max_eval_steps: int = setting(
        100,
        "number of evaluation batches of --eval_batch_size examples",
        "evaluation",
        at_least=1,
        at_most=MOST_STEPS,
    )


class PretrainingPlan(PlanSettings):
    """Like fine-tuning's, but by default a number of steps instead of epochs."""

    num_train_epochs: float | None = setting(
        None,
        "passes over the shards, instead of --num_train_steps",
        "training",
        at_least=0,
        at_most=MOST_STEPS,
        changes="training",
    )
    num_train_steps: int | None = setting(
        None,
        "training steps for one rank; N ranks take 1/N of them",
        "training",
        shown_default="100000, unless epochs are given",
        at_least=1,
        at_most=MOST_STEPS,
        changes="training",
    )
    num_warmup_steps: int | None = setting(
        None,
        "warmup steps for one rank; N ranks take 1/N of them",
        "training",
        shown_default="10000, at most --warmup_proportion of the steps; with epochs this share",
        at_least=0,
        at_most=MOST_STEPS,
        changes="training",
    )

    def check(self) -> None:
        super().check()
        if self.num_train_steps is not None and self.num_train_epochs is not None:
            raise ValueError(
                "--num_train_steps and --num_train_epochs exclude each other: give one"
            )

    def resolved(self) -> PlanSettings:
        """The plan with Google's default numbers of steps, unless epochs are given; a short
        training has a shorter warmup."""
        values = flat(self)
        if self.num_train_epochs is None:
            steps = values["num_train_steps"] = self.num_train_steps or 100_000
            if self.num_warmup_steps is None:
                values["num_warmup_steps"] = min(
                    GOOGLES_WARMUP, int(steps * self.warmup_proportion)
                )
        return PlanSettings(**values)


class PretrainingSettings(TrainingSettings):
    """How bert-pretraining trains."""

    plan: PretrainingPlan
    init_moments: bool = setting(
        False,
        "also load the optimizer's moments from --init_checkpoint, a checkpoint of this program",
        "training",
    )


class PretrainingConfig(ProgramConfig):
    """Pretrain BERT on sharded corpora over all MPI ranks."""

    shards: ShardSettings
    training: PretrainingSettings
    evaluation: HeldOutSettings
    input_file: str = setting(
        help="shards to train on: comma-separated globs, .arrow or TFRecord files; with weights,"
        " such as 'news/*=0.7,books/*=0.3', a mixture of corpora, whose weights may change:"
        " 'books/*=0:0.5@decay'",
        group="data",
        is_list=True,
        changes="data",
        reads="machine",
        describes="data",
    )
    mixture_alpha: float | str | None = data_setting(
        None,
        "instead of weights: each corpus that --input_file names has a share in proportion to its"
        " number of rows to the power of this; 1: by size, 0: the same for all",
        at_least=0,
        at_most=MOST_ALPHA,
    )
    eval_input_file: str | None = setting(
        None,
        "shards to evaluate on",
        "data",
        shown_default="--input_file",
        is_list=True,
        reads="machine",
    )

    @property
    def does_eval(self) -> bool:
        return self.evaluation.do_eval

    @property
    def corpora(self) -> list[Named]:
        """What `--input_file` names: one corpus, or a mixture of several."""
        return named_corpora(self.input_file, "input_file", self.mixture_alpha is not None)

    def void(self) -> Mapping[str, str]:
        reasons = dict(super().void())
        if not self.do_train:
            reasons["eval_steps"] = "--do_train does not ask for a training"
        if not (self.evaluation.do_eval or (self.do_train and self.evaluation.eval_steps)):
            names = "eval_input_file", "eval_batch_size", "max_eval_steps"
            reasons |= dict.fromkeys(names, "neither --do_eval nor --eval_steps asks for it")
        return reasons

    def check(self) -> None:
        if not (self.do_train or self.evaluation.do_eval):
            raise ValueError("nothing to do: give --do_train, --do_eval or both")
        if self.training.init_moments and not self.model.init_checkpoint:
            raise ValueError(
                "--init_moments needs --init_checkpoint, a folder in a run's checkpoints/"
            )
        self.check_mixture()

    def check_mixture(self) -> None:
        """Raises ValueError: corpora, weights and places contradict each other or other flags."""
        corpora, alpha = self.corpora, self.mixture_alpha
        first = corpora[0] if corpora else Named("")
        if isinstance(alpha, str):
            for stage in stages_of(alpha, "mixture_alpha"):
                if stage.value > MOST_ALPHA:
                    raise ValueError(
                        f"--mixture_alpha must be at most {MOST_ALPHA}, got {float(stage.value):g}"
                    )
        if alpha is not None and first.weight is not None:
            raise ValueError(
                "--mixture_alpha and weights in --input_file exclude each other: give one"
            )
        if len(corpora) == 1 and (alpha is not None or first.weight is not None):
            what = "a weight" if alpha is None else "--mixture_alpha"
            raise ValueError(
                f"--input_file {self.input_file}: {what} needs several corpora, with commas between"
                " them"
            )
        places = places_in(corpora, alpha, self.shards.masked_lm_prob)
        refuse_decay(places, self.training.rate.lr_scheduler_type)
        held_out = self.eval_input_file
        if held_out and named_corpora(held_out, "eval_input_file")[0].weight is not None:
            raise ValueError(f"--eval_input_file takes no weights, got {held_out}")
        if not held_out and len(corpora) > 1 and (self.does_eval or self.evaluation.eval_steps):
            raise ValueError("a mixture of corpora is evaluated on an --eval_input_file: give one")


COMMAND = Command(
    "bert-pretraining",
    PretrainingConfig,
    implied={"do_train": ("input_file",), "do_eval": ("eval_input_file",)},
)
