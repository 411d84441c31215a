"""bert-squad: fine-tune BERT on SQuAD over all ranks, predict, score (google-research/bert
`run_squad.py`).

Start reading at `run_squad`, below. `resolved` finds out what the command does, `open_sets` reads
the data, and `run_task` makes the model, trains, predicts and writes the files.
"""

from tasks.runs.execute.job import Job, run_on_ranks
from tasks.runs.execute.program import open_sets, resolved, run_task
from tasks.runs.task import Scores
from tasks.runs.trained import saved_settings
from tasks.squad.definition import PROGRAM
from tasks.squad.settings import COMMAND, SquadConfig
from tasks.squad.task import SpanTask


def run(config: SquadConfig) -> None:
    run_on_ranks(COMMAND.name, config, config.output_dir, run_squad)


def run_squad(config: SquadConfig, job: Job) -> Scores:
    """Trains and predicts as the flags say, on every rank. Returns the scores, if the file has
    answers."""
    work = resolved(PROGRAM, config, job)
    sets = open_sets(PROGRAM, work, job)
    settled = work.config
    task = SpanTask(
        windows=settled.windows,
        answers=settled.answers,
        smoothing=settled.smoothing.label_smoothing_factor,
        scoring=settled.metric,
        settings=saved_settings(settled),
    )
    return run_task(task, sets, work, job)
