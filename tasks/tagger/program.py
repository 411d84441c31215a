"""bert-tagger: fine-tune BERT to tag words or characters over all ranks, such as named entities.

Start reading at `run_tagger`, below.
"""

from tasks.runs.execute.job import Job, run_on_ranks
from tasks.runs.execute.program import open_sets, resolved, run_task
from tasks.runs.task import Scores
from tasks.runs.trained import saved_settings
from tasks.tagger.definition import PROGRAM
from tasks.tagger.settings import COMMAND, TaggerConfig
from tasks.tagger.task import TagTask


def run(config: TaggerConfig) -> None:
    run_on_ranks(COMMAND.name, config, config.output_dir, run_tagger)


def run_tagger(config: TaggerConfig, job: Job) -> Scores:
    """Trains, evaluates and predicts as the flags say, on every rank. Returns the scores."""
    work = resolved(PROGRAM, config, job)
    sets = open_sets(PROGRAM, work, job)
    labels = work.start.bert_config.labels
    smoothing = work.config.head.label_smoothing_factor
    task = TagTask(work.config.sentences, labels, saved_settings(work.config), smoothing)
    return run_task(task, sets, work, job)
