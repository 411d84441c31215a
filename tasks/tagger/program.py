"""bert-tagger: fine-tune BERT to tag words or characters over all ranks, such as named entities.

Start reading at `run_tagger`, below.
"""

from tasks.runs.job import Job, run_on_ranks
from tasks.runs.program import open_sets, resolved, run_task
from tasks.runs.task import Scores
from tasks.runs.trained import saved_settings
from tasks.tagger.definition import PROGRAM
from tasks.tagger.settings import TaggerConfig
from tasks.tagger.task import TagTask


def run(config: TaggerConfig) -> None:
    run_on_ranks("bert-tagger", config, config.output_dir, run_tagger)


def run_tagger(config: TaggerConfig, job: Job) -> Scores:
    """Trains, evaluates and predicts as the flags say, on every rank. Returns the scores."""
    command = resolved(PROGRAM, config, job)
    sets = open_sets(PROGRAM, command, job)
    labels = command.start.bert_config.labels
    task = TagTask(command.config.sentences, labels, saved_settings(command.config))
    return run_task(task, sets, command, job)
