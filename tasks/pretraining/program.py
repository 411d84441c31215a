"""bert-pretraining: masked words and next sentences from sharded corpora (Google's
`run_pretraining.py`).

The shards come from `bert-corpus build`, or are Google's TFRecord files. Start reading at
`run_pretraining`, below.
"""

from typing import Any

from ringbase.secrets import masked
from tasks.pretraining.definition import PROGRAM
from tasks.pretraining.evaluation import Evaluation
from tasks.pretraining.settings import COMMAND, PretrainingConfig
from tasks.pretraining.shards import Source, open_rows
from tasks.pretraining.task import head_of
from tasks.runs.details import REPORT, RUN, SCORED_ON
from tasks.runs.environment import result_file
from tasks.runs.execute.evaluate import write_eval_results
from tasks.runs.execute.facts import facts_of
from tasks.runs.execute.job import Job, run_on_ranks
from tasks.runs.execute.loading import load_trained, model_of
from tasks.runs.execute.program import resolved, say_complete
from tasks.runs.execute.trainer import Trainer
from tasks.runs.naming import Named

# for the masks of held-out examples: the same in every run, so that runs can be compared
EVALUATION_SEED = 0


def run(config: PretrainingConfig) -> None:
    run_on_ranks(COMMAND.name, config, config.output_dir, run_pretraining)


def run_pretraining(config: PretrainingConfig, job: Job) -> dict[str, float]:
    """Trains and evaluates as the flags say, on every rank. Returns the results of the
    evaluation."""
    work = resolved(PROGRAM, config, job)
    config, (one,) = work.config, work.runs
    start, history, settings = one.start, one.history, config.evaluation
    source = Source("--input_file", config.corpora, trains=config.do_train)
    if config.do_train:
        trained = open_rows(config, job, start, source, one.seed)
        one.check_unchanged(trained[1], config)
    if config.eval_input_file:
        source = Source("--eval_input_file", [Named(config.eval_input_file)], trains=False)
    evaluates = settings.do_eval or settings.eval_steps
    if evaluates:
        held_out_source = source._replace(trains=False)
        task, data = open_rows(config, job, start, held_out_source, EVALUATION_SEED)
    model = model_of(start, head_of(start.bert_config))
    held_out = None
    steps = start.steps
    facts = dict[str, Any]()  # of result.json
    if evaluates:
        evaluation = Evaluation(job, model, task, data.rows, data.key)
        held_out = evaluation.held_out(settings)
    if one.trains:
        training = Trainer(model, *trained, config.training, job)
        while_training = held_out if settings.eval_steps else None
        trained_model = training.run(one.spec, one.job, history, while_training)
        steps = trained_model.steps
        facts |= trained_model._asdict()
    elif start.is_complete and not settings.do_eval:
        return say_complete(job.run, start)
    else:
        if not config.do_train:  # of an earlier command, and no longer so
            job.run.remove(result_file(trains=False))
        load_trained(start, model, history, job.run)
    figures: dict[str, float] = {}
    if held_out and settings.do_eval:
        figures = dict(held_out.measure())
        loss = sum(value for name, value in figures.items() if name.endswith("_loss"))
        write_eval_results(job.run, {**figures, "loss": loss, "global_step": steps})
        facts[SCORED_ON] = [masked(f"{source.flag} {source}")]
        if not config.do_train:
            facts[RUN] = facts_of(one.spec, one.job, task)
        if start.tokenizer:
            facts[REPORT] = evaluation.filled_in(start.tokenizer)
    before = start.result if config.do_train else None
    one.job.finish(history, config.do_train, figures, facts, before)
    return figures
