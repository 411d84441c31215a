"""bert-pretraining: masked words and next sentences from sharded corpora (Google's
`run_pretraining.py`).

The shards come from `bert-corpus build`, or are Google's TFRecord files. Start reading at
`run_pretraining`, below.
"""

from dataclasses import replace
from pathlib import Path

from tasks.pretraining.details import filled_in
from tasks.pretraining.settings import GOOGLES_WARMUP, PretrainingConfig
from tasks.pretraining.shards import open_rows, tokenizer_of_shards
from tasks.pretraining.task import evaluator, head_of
from tasks.runs.details import REPORT
from tasks.runs.job import Job, run_on_ranks
from tasks.runs.program import write_eval_results
from tasks.runs.start import Needs, start_of_run
from tasks.runs.training import Training

# for the masks of held-out examples: the same in every run, so that runs can be compared
EVALUATION_SEED = 0


def run(config: PretrainingConfig) -> None:
    run_on_ranks("bert-pretraining", config, config.machine, config.output_dir, run_pretraining)


def run_pretraining(config: PretrainingConfig, job: Job) -> dict[str, float]:
    """Trains and evaluates as the flags say, on every rank. Returns the results of the
    evaluation."""
    run, evaluation = job.run, config.evaluation
    tokenizer_folder = job.world.on_first(tokenizer_of_shards, config.input_file)
    # TFRecord shards are ids already: Google's program has no tokenizer.
    has_tokenizer = tokenizer_folder is not None
    needs = Needs(
        config.shards.max_seq_length, tokenizer=has_tokenizer, tokenizer_folder=tokenizer_folder
    )
    start = start_of_run(config, job, needs)
    head = head_of(start.bert_config)
    train_file = "--input_file", config.input_file
    eval_file = (
        ("--eval_input_file", config.eval_input_file) if config.eval_input_file else train_file
    )
    trained = evaluated = None
    if config.do_train:
        trained = open_rows(config.shards, job, start, train_file, config.training.loop.seed)
    if evaluation.do_eval or evaluation.eval_steps is not None:
        evaluated = open_rows(config.shards, job, start, eval_file, EVALUATION_SEED)
    model = start.model(head)
    held_out = None
    if evaluated:
        held_out = evaluator(evaluation, job, model, evaluated[0], evaluated[1].rows)

    if trained:
        if config.training.init_moments:
            start = replace(start, moments=Path(str(config.model.init_checkpoint)).expanduser())
        training = Training(model, *trained, config.training, job)
        warmup = config.training.plan.resolved().num_warmup_steps
        if config.training.plan.num_warmup_steps != warmup != GOOGLES_WARMUP:
            run.say(
                f"note: the warmup of one rank is {warmup:,} steps, a share of so short a training,"
                f" instead of Google's {GOOGLES_WARMUP:,}; --num_warmup_steps sets another"
            )
        while_training = held_out if evaluation.eval_steps else None
        seed = config.training.loop.seed
        steps: int | None = training.run(start, job, seed, while_training)
    else:
        steps = start.load(model, job.world, run)

    figures, facts = dict[str, float](), dict[str, object]()
    if evaluation.do_eval and held_out:
        figures = dict(held_out.measure())
        loss = sum(value for name, value in figures.items() if name.endswith("_loss"))
        write_eval_results(run, {**figures, "loss": loss, "global_step": steps})
        if evaluated and start.tokenizer:
            facts[REPORT] = filled_in(job, model, evaluated[0], evaluated[1].rows, start.tokenizer)
    job.finish(config.do_train, figures, facts)
    return figures
