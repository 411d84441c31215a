"""bert-squad: fine-tune BERT on SQuAD over all ranks, predict, score (google-research/bert
`run_squad.py`).

Start reading at `run_squad`, below: data -> plan -> model -> train -> predict -> files.
"""

from tasks.runs.job import Job, run_on_ranks
from tasks.runs.program import open_sets, run_task, runs_of
from tasks.runs.start import Needs, Start, start_of_run
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
    runs = runs_of(config, job, start_of_squad)
    task = SpanTask(config.windows, config.answers, config.metric, saved_settings(config))
    # what is predicted is also what a training is evaluated on
    train, dev = (source_of(config.questions, is_training) for is_training in (True, False))
    of_kind = {"train": [train], "dev": [dev], "predict": [dev]}
    sources = {kind: of_kind[kind] for kind in config.wanted_sets}
    allow_unknown = config.windows.allow_unknown
    preparation = Preparation(job.world, job.run, runs[0].start.words, allow_unknown)
    return run_task(task, open_sets(task, sources, preparation), runs, config, job)


def start_of_squad(config: SquadConfig, job: Job) -> Start:
    return start_of_run(config, job, Needs(config.windows.max_seq_length))
