"""bert-pretraining: masked words and next sentences from sharded corpora (Google's `run_pretraining.py`).

The shards come from `bert-corpus build`, or are Google's TFRecord files. Start reading at `run_pretraining`,
below.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from distributed import phases
from ringbase.settings import setting
from tasks import flags
from tasks.fit import TrainingSettings, fit, load_for_prediction, write_eval_results
from tasks.job import Job, result_file, run_on_ranks
from tasks.origin import Needs, find_origin
from tasks.pretraining.evaluation import EvaluationSettings, evaluator
from tasks.pretraining.examples import collate, losses, weights
from tasks.pretraining.shards import Shards, ShardSettings, open_shards, tokenizer_of_shards

if TYPE_CHECKING:
    from bert.model import Bert
    from distributed.evaluation import HeldOut
    from distributed.train import Training

DEFAULT_STEPS, DEFAULT_WARMUP_STEPS = 100_000, 10_000  # of run_pretraining.py


@dataclass(frozen=True, kw_only=True)
class Config(ShardSettings, EvaluationSettings, TrainingSettings):
    """The flags of bert-pretraining: names and defaults of run_pretraining.py, and some more."""

    input_file: str = setting(
        help="shards to train on: comma-separated globs, .arrow or TFRecord files", group="data"
    )
    eval_input_file: str | None = setting(None, "shards to evaluate on", "data", shown_default="--input_file")

    num_train_epochs: float | None = setting(
        None, "passes over the shards, instead of --num_train_steps", "training"
    )
    num_train_steps: int | None = setting(
        None,
        "training steps for one rank; N ranks take 1/N of them",
        "training",
        shown_default="100000, unless epochs are given",
    )
    num_warmup_steps: int | None = setting(
        None,
        "warmup steps for one rank; N ranks take 1/N of them",
        "training",
        shown_default="10000; with epochs a share of the steps",
    )
    init_moments: bool = setting(
        False, "also load the optimizer's moments from --init_checkpoint, a checkpoint of this program", "training"
    )

    def __post_init__(self):
        super().__post_init__()
        if not (self.do_train or self.do_eval):
            raise ValueError("nothing to do: give --do_train, --do_eval or both")
        if self.num_train_steps is not None and self.num_train_epochs is not None:
            raise ValueError("--num_train_steps and --num_train_epochs exclude each other: give one")
        if self.init_moments and not self.init_checkpoint:
            raise ValueError("--init_moments needs --init_checkpoint, a folder in a run's checkpoints/")

    def with_default_steps(self) -> "Config":
        """The configuration with Google's default numbers of steps, unless epochs are given."""
        if self.num_train_epochs is not None:
            return self
        steps = DEFAULT_STEPS if self.num_train_steps is None else self.num_train_steps
        warmup = DEFAULT_WARMUP_STEPS if self.num_warmup_steps is None else self.num_warmup_steps
        return replace(self, num_train_steps=steps, num_warmup_steps=warmup)


def main(argv: Sequence[str] | None = None) -> None:
    description = "Pretrain BERT on sharded corpora over all MPI ranks."
    config = flags.parse(Config, argv, prog="bert-pretraining", description=description)
    run_on_ranks("bert-pretraining", config.with_default_steps(), config.output_dir, run_pretraining)


def run_pretraining(config: Config, job: Job) -> dict[str, float]:
    """Trains and evaluates as the flags say, on every rank. Returns the results of the evaluation."""
    from bert.model import Bert

    world, run = job.world, job.run
    tokenizer_folder = world.on_first(tokenizer_of_shards, config.input_file)
    needs = Needs(
        max_seq_length=config.max_seq_length,
        tokenizer=tokenizer_folder is not None,  # TFRecord shards are ids already: Google's program has none
        tokenizer_folder=tokenizer_folder,
    )
    origin = world.on_first(find_origin, config, run, config.do_train, needs)
    shards = open_shards(config, job, origin, config.input_file, "--input_file") if config.do_train else None
    eval_shards = None
    if config.do_eval or config.eval_steps is not None:
        held_out_file = config.eval_input_file or config.input_file
        flag = "--eval_input_file" if config.eval_input_file else "--input_file"
        eval_shards = open_shards(config, job, origin, held_out_file, flag)
    phases.ended("data")
    model = Bert(origin.bert_config, "pretraining", seed=config.seed)
    held_out = evaluator(config, job, model, eval_shards, config.max_seq_length) if eval_shards else None

    steps = origin.state.step if origin.state else None
    if shards:
        if config.init_moments:
            origin = replace(origin, moments=Path(str(config.init_checkpoint)).expanduser())
        steps = fit(config, job, origin, training_of(config, model, shards, held_out))
    else:
        run.remove(result_file(trains=False))  # from here on the command is not complete
        load_for_prediction(job, origin, model)

    figures: dict[str, float] = {}
    if config.do_eval and held_out:
        figures = dict(held_out.measure())
        loss = sum(value for name, value in figures.items() if name.endswith("_loss"))
        write_eval_results(run, figures, loss, steps)
    job.finish(result_file(config.do_train), {"scores": figures})
    run.say(f"done: {config.output_dir}" + "".join(f", {name} {value:.4f}" for name, value in figures.items()))
    return figures


def training_of(config: Config, model: "Bert", shards: "Shards", held_out: "HeldOut | None") -> "Training":
    """The training of masked words and, if the shards have them, next sentences."""
    from distributed.feed import Feed
    from distributed.order import BlockOrder
    from distributed.train import Training

    feed = Feed(
        rows=shards.rows,
        order=BlockOrder(len(shards.rows), config.seed),
        collate=partial(collate, masking=shards.masking, seed=config.seed, most=shards.most_masked),
        weights=weights,
        lengths=shards.lengths,
        longest=config.max_seq_length,
    )
    return Training(
        model=model,
        feed=feed,
        loss=lambda batch, key: losses(model(batch, dropout_key=key), batch),
        loss_terms=("mlm", "nsp") if shards.has_next_sentence else ("mlm",),
        data_key=shards.key,
        settings=config.run_settings(shards.key, "max_seq_length") | shards.masks,
        held_out=held_out if config.eval_steps else None,
    )
