"""bert-pretraining: masked words and next sentences from sharded corpora (Google's
`run_pretraining.py`).

The shards come from `bert-corpus build`, or are Google's TFRecord files. Start reading at
`run_pretraining`, below.
"""

from dataclasses import replace
from pathlib import Path

from tasks.pretraining.evaluation import Evaluation
from tasks.pretraining.settings import PretrainingConfig
from tasks.pretraining.shards import open_rows, tokenizer_of_shards
from tasks.pretraining.task import head_of
from tasks.runs.details import REPORT
from tasks.runs.job import Job, run_on_ranks
from tasks.runs.program import write_eval_results
from tasks.runs.start import Needs, start_of_run
from tasks.runs.training import Training

# for the masks of held-out examples: the same in every run, so that runs can be compared
EVALUATION_SEED = 0


def run(config: PretrainingConfig) -> None:
    run_on_ranks("bert-pretraining", config, config.output_dir, run_pretraining)


def run_pretraining(config: PretrainingConfig, job: Job) -> dict[str, float]:
    """Trains and evaluates as the flags say, on every rank. Returns the results of the
    evaluation."""
    # TFRecord shards are ids already: Google's program has no tokenizer
    folder = job.world.on_first(tokenizer_of_shards, config.input_file)
    needs = Needs(config.shards.max_seq_length, folder is not None, folder)
    start = start_of_run(config, job, needs)
    settings = config.evaluation
    source = "--input_file", config.input_file
    if config.do_train:
        trained = open_rows(config.shards, job, start, source, config.training.loop.seed)
    if config.eval_input_file:
        source = "--eval_input_file", config.eval_input_file
    evaluates = settings.do_eval or settings.eval_steps
    if evaluates:
        task, data = open_rows(config.shards, job, start, source, EVALUATION_SEED)
    model = start.model(head_of(start.bert_config))
    held_out = None
    steps: int | None
    if evaluates:
        evaluation = Evaluation(job, model, task, data.rows)
        held_out = evaluation.held_out(settings)
    if config.do_train:
        training = Training(model, *trained, config.training, job)
        if config.training.init_moments:
            start = replace(start, moments=Path(str(config.model.init_checkpoint)).expanduser())
        while_training = held_out if settings.eval_steps else None
        steps = training.run(start, job, config.training.loop.seed, while_training)
    else:
        steps = start.load(model, job.world, job.run)
    figures: dict[str, float] = {}
    facts = {}
    if held_out and settings.do_eval:
        figures = dict(held_out.measure())
        loss = sum(value for name, value in figures.items() if name.endswith("_loss"))
        write_eval_results(job.run, {**figures, "loss": loss, "global_step": steps})
        if start.tokenizer:
            facts[REPORT] = evaluation.filled_in(start.tokenizer)
    job.finish(config.do_train, figures, facts)
    return figures
