"""bert-squad: fine-tune BERT on SQuAD over all ranks, predict, score (google-research/bert
`run_squad.py`).

Start reading at `run_squad`, below: data -> plan -> model -> train -> predict -> files.
"""

from functools import partial

from tasks.runs.job import Job, run_on_ranks
from tasks.runs.program import open_sets, run_task, runs_of
from tasks.runs.start import Needs, start_of_run
from tasks.runs.task import Scores
from tasks.runs.texts import Preparation
from tasks.runs.trained import saved_settings
from tasks.squad.reading import source_of
from tasks.squad.settings import SquadConfig
from tasks.squad.task import SpanTask


def run(config: SquadConfig) -> None:
    run_on_ranks("bert-squad", config, config.output_dir, run_squad)


def run_squad(config: SquadConfig, job: Job) -> Scores:
    """Trains and predicts as the flags say, on every rank. Returns the scores, if the file has
    answers."""
    # Configuration, tokenizer and weights are found on rank 0; the windows are built once per
    # machine.
    needs = Needs(config.windows.max_seq_length)
    runs = runs_of(config, job, partial(start_of_run, needs=needs))
    task = SpanTask(config.windows, config.answers, config.metric, saved_settings(config))
    # what is predicted is also what a training is evaluated on
    train, dev = (source_of(config.questions, is_training) for is_training in (True, False))
    of_kind = {"train": [train], "dev": [dev], "predict": [dev]}
    sources = {kind: of_kind[kind] for kind in config.wanted_sets}
    words, allow_unknown = runs[0].start.words, config.windows.allow_unknown
    sets = open_sets(task, sources, Preparation(job.world, job.run, words, allow_unknown))
    return run_task(task, sets, runs, config, job)
