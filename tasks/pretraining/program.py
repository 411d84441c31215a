"""bert-pretraining: masked words and next sentences from sharded corpora (Google's `run_pretraining.py`).

The shards come from `bert-corpus build`, or are Google's TFRecord files. Start reading at `run_pretraining`,
below.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from distributed import phases
from distributed.order import BlockOrder
from tasks.environment import result_file
from tasks.fit import TrainingData, fit, load_for_prediction, write_eval_results
from tasks.job import Job, run_on_ranks
from tasks.pretraining.settings import PretrainingConfig
from tasks.pretraining.shards import open_rows, tokenizer_of_shards
from tasks.pretraining.task import MaskedTask, evaluator
from tasks.start import Needs, find_start


def run(config: PretrainingConfig) -> None:
    run_on_ranks("bert-pretraining", config, config.machine, config.output_dir, partial(run_pretraining, config))


def run_pretraining(config: PretrainingConfig, job: Job) -> dict[str, float]:
    """Trains and evaluates as the flags say, on every rank. Returns the results of the evaluation."""
    world, run, evaluation, seed = job.world, job.run, config.evaluation, config.training.loop.seed
    max_seq_length = config.shards.max_seq_length
    tokenizer_folder = world.on_first(tokenizer_of_shards, config.input_file)
    # TFRecord shards are ids already: Google's program has no tokenizer.
    needs = Needs(max_seq_length, tokenizer=tokenizer_folder is not None, tokenizer_folder=tokenizer_folder)
    resume = job.resume(config.training.resume)
    start = world.on_first(find_start, config.model, resume, run, config.do_train, needs)
    shards = open_rows(config.shards, job, start, config.input_file, "--input_file") if config.do_train else None
    eval_shards = None
    if evaluation.do_eval or evaluation.eval_steps is not None:
        flag = "--eval_input_file" if config.eval_input_file else "--input_file"
        eval_shards = open_rows(config.shards, job, start, config.eval_input_file or config.input_file, flag)
    phases.ended("data")
    job.make_model(start.bert_config, "pretraining", seed)
    held_out = evaluator(evaluation, job, eval_shards, max_seq_length) if eval_shards else None

    steps = start.state.step if start.state else None
    if shards:
        if config.training.init_moments:
            start = replace(start, moments=Path(str(config.model.init_checkpoint)).expanduser())
        task = MaskedTask(max_seq_length, shards.masking, seed, shards.most_masked, shards.has_next_sentence)
        settings = {"--max_seq_length": max_seq_length, **shards.masks}  # they must not change on resuming
        data = TrainingData(
            rows=shards.rows, order=BlockOrder(len(shards.rows), seed), key=shards.key, settings=settings
        )
        steps = fit(task, data, start, config.training, job, held_out if evaluation.eval_steps else None)
    else:
        run.remove(result_file(trains=False))  # from here on the command is not complete
        load_for_prediction(job, start)

    figures: dict[str, float] = {}
    if evaluation.do_eval and held_out:
        figures = dict(held_out.measure())
        loss = sum(value for name, value in figures.items() if name.endswith("_loss"))
        write_eval_results(run, figures, loss, steps)
    job.finish(config.do_train, figures)
    return figures
