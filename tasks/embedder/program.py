"""bert-embedder: train BERT to embed texts as vectors over all ranks, exactly as on one.

Start reading at `run_embedder`, below. The loss that joins the rows of all ranks is
distributed/joint.py.
"""

from tasks.embedder.pooling import pooling_of
from tasks.embedder.reading import Source
from tasks.embedder.settings import EmbedderConfig, Pooling
from tasks.embedder.task import EmbedTask
from tasks.runs.job import Job, run_on_ranks
from tasks.runs.program import open_sets, run_task, runs_of
from tasks.runs.start import Needs, Start, start_of_run
from tasks.runs.task import Scores
from tasks.runs.texts import Preparation
from tasks.runs.trained import saved_settings


def run(config: EmbedderConfig) -> None:
    run_on_ranks("bert-embedder", config, config.machine, config.output_dir, run_embedder)


def run_embedder(config: EmbedderConfig, job: Job) -> Scores:
    """Trains, evaluates and embeds as the flags say, on every rank. Returns the scores."""
    # Configuration, tokenizer, weights and pooling are found on rank 0; the rows are built once per
    # machine.
    runs = runs_of(config, job, start_of_embedder)
    start, vectors = runs[0].start, config.vectors
    pooling = job.world.on_first(pooling_of_start, config, start)
    settings = {**saved_settings(config), "pooling": pooling}
    task = EmbedTask(vectors, pooling, config.loss, settings)
    sources = {kind: [Source(config.pairs, kind)] for kind in config.wanted_sets}
    preparation = Preparation(job.world, job.run, start.words, vectors.allow_unknown)
    sets = open_sets(task, sources, preparation)
    if sets.train:
        task = task.trained_on(sets.train.tables["pairs"])
    if sets.dev:
        task = task.evaluated_on(sets.dev[0].tables["pairs"])
    return run_task(task, sets, runs, config, job)


def start_of_embedder(config: EmbedderConfig, job: Job) -> Start:
    return start_of_run(config, job, Needs(config.vectors.max_seq_length))


def pooling_of_start(config: EmbedderConfig, start: Start) -> Pooling:
    """That of the flag, else of the model's folder, else the mean. On rank 0."""
    return config.vectors.pooling or pooling_of(start.weights) or "mean"
