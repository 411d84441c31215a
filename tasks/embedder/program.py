"""bert-embedder: train BERT to embed texts as vectors over all ranks, exactly as on one.

Start reading at `run_embedder`, below. The loss that joins the rows of all ranks is
distributed/joint.py.
"""

from tasks.embedder.definition import PROGRAM
from tasks.embedder.settings import EmbedderConfig
from tasks.embedder.task import EmbedTask
from tasks.runs.job import Job, run_on_ranks
from tasks.runs.program import open_sets, resolved, run_task
from tasks.runs.task import Scores
from tasks.runs.trained import saved_settings


def run(config: EmbedderConfig) -> None:
    run_on_ranks("bert-embedder", config, config.output_dir, run_embedder)


def run_embedder(config: EmbedderConfig, job: Job) -> Scores:
    """Trains, evaluates and embeds as the flags say, on every rank. Returns the scores."""
    config, runs = resolved(PROGRAM, config, job)
    task = EmbedTask(config.vectors, saved_settings(config), config.loss)
    sources = PROGRAM.sources(config, runs[0].start)
    sets = open_sets(task, sources, runs, config, job)
    if sets.train:
        task = task.trained_on(sets.train[0].tables["pairs"])
    if sets.dev:
        task = task.evaluated_on(sets.dev[0].tables["pairs"])
    return run_task(task, sets, runs, config, job)
