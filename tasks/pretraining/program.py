"""bert-pretraining: masked words and next sentences from sharded corpora (Google's `run_pretraining.py`).

The shards come from `bert-corpus build`, or are Google's TFRecord files. Start reading at `run_pretraining`,
below.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from bert.model import Bert
from distributed import phases
from distributed.feed import Feed
from distributed.order import BlockOrder
from distributed.train import HeldOut
from ringbase.settings import flat
from tasks.environment import result_file
from tasks.fit import Training, fit, load_for_prediction, write_eval_results
from tasks.job import Job, run_on_ranks
from tasks.pretraining.evaluation import evaluator
from tasks.pretraining.examples import collate, losses, weights
from tasks.pretraining.settings import PretrainingConfig
from tasks.pretraining.shards import Shards, open_rows, tokenizer_of_shards
from tasks.start import Needs, find_start


def run(config: PretrainingConfig) -> None:
    work = partial(run_pretraining, config)
    run_on_ranks("bert-pretraining", config, config.machine, config.output_dir, work)


def run_pretraining(config: PretrainingConfig, job: Job) -> dict[str, float]:
    """Trains and evaluates as the flags say, on every rank. Returns the results of the evaluation."""
    world, run, evaluation, seed = job.world, job.run, config.evaluation, config.training.loop.seed
    max_seq_length = config.shards.max_seq_length
    tokenizer_folder = world.on_first(tokenizer_of_shards, config.input_file)
    needs = Needs(
        max_seq_length=max_seq_length,
        tokenizer=tokenizer_folder is not None,  # TFRecord shards are ids already: Google's program has none
        tokenizer_folder=tokenizer_folder,
    )
    start = world.on_first(
        find_start, config.model, job.resume(config.training.resume), run, config.do_train, needs
    )
    shards = open_rows(config.shards, job, start, config.input_file, "--input_file") if config.do_train else None
    eval_shards = None
    if evaluation.do_eval or evaluation.eval_steps is not None:
        held_out_file = config.eval_input_file or config.input_file
        flag = "--eval_input_file" if config.eval_input_file else "--input_file"
        eval_shards = open_rows(config.shards, job, start, held_out_file, flag)
    phases.ended("data")
    model = Bert(start.bert_config, "pretraining", seed=seed)
    held_out = evaluator(evaluation, job, model, eval_shards, max_seq_length) if eval_shards else None

    steps = start.state.step if start.state else None
    record = {"config": flat(config), "data_set": None}
    if shards:
        if config.training.init_moments:
            start = replace(start, moments=Path(str(config.model.init_checkpoint)).expanduser())
        steps = fit(config.training, job, start, training_of(config, model, shards, held_out), record)
    else:
        run.remove(result_file(trains=False))  # from here on the command is not complete
        load_for_prediction(job, start, model)

    figures: dict[str, float] = {}
    if evaluation.do_eval and held_out:
        figures = dict(held_out.measure())
        loss = sum(value for name, value in figures.items() if name.endswith("_loss"))
        write_eval_results(run, figures, loss, steps)
    job.finish(config.do_train, {"scores": figures})
    run.say(f"done: {config.output_dir}" + "".join(f", {name} {value:.4f}" for name, value in figures.items()))
    return figures


def training_of(config: PretrainingConfig, model: Bert, shards: Shards, held_out: HeldOut | None) -> Training:
    """The training of masked words and, if the shards have them, next sentences."""
    seed, max_seq_length = config.training.loop.seed, config.shards.max_seq_length
    facts = {"--max_seq_length": max_seq_length} | config.training.schedule()
    feed = Feed(
        rows=shards.rows,
        order=BlockOrder(len(shards.rows), seed),
        collate=partial(collate, masking=shards.masking, seed=seed, most=shards.most_masked),
        weights=weights,
        lengths=shards.lengths,
        longest=max_seq_length,
    )
    return Training(
        model=model,
        feed=feed,
        loss=lambda batch, key: losses(model(batch, dropout_key=key), batch),
        loss_terms=("mlm", "nsp") if shards.has_next_sentence else ("mlm",),
        data_key=shards.key,
        settings=facts | {"training data (digest)": shards.key} | shards.masks,
        held_out=held_out if config.evaluation.eval_steps else None,
    )
