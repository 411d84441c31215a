"""bert-embedder: train BERT to embed texts as vectors over all ranks, exactly as on one.

Start reading at `run_embedder`, below. The loss that joins the rows of all ranks is
distributed/joint.py.
"""

from collections.abc import Mapping
from dataclasses import replace

from distributed.run import Run
from ringbase.settings import flat
from tasks.embedder.pooling import said_by, unheeded_in
from tasks.embedder.reading import Source, files_and_columns
from tasks.embedder.settings import DEFAULTS, EmbedderConfig, VectorSettings
from tasks.embedder.task import EmbedTask
from tasks.runs.job import Job, run_on_ranks
from tasks.runs.program import open_sets, run_task, runs_of
from tasks.runs.start import Start
from tasks.runs.task import Scores
from tasks.runs.trained import saved_settings


def run(config: EmbedderConfig) -> None:
    run_on_ranks("bert-embedder", config, config.output_dir, run_embedder)


def run_embedder(config: EmbedderConfig, job: Job) -> Scores:
    """Trains, evaluates and embeds as the flags say, on every rank. Returns the scores."""
    # configuration, tokenizer, weights and pooling are found on rank 0
    runs = runs_of(config, job, config.vectors.max_seq_length or DEFAULTS["max_seq_length"])
    vectors = job.world.on_first(vectors_of_start, config, runs[0].start, job.run)
    settings = saved_settings(replace(config, vectors=vectors))
    task = EmbedTask(vectors, config.loss, settings)
    pairs = files_and_columns(config.pairs)
    sources = {kind: [Source(pairs, kind)] for kind in config.wanted_sets}
    sets = open_sets(task, sources, runs, config, job)
    if sets.train:
        task = task.trained_on(sets.train[0].tables["pairs"])
    if sets.dev:
        task = task.evaluated_on(sets.dev[0].tables["pairs"])
    return run_task(task, sets, runs, config, job)


def vectors_of_start(config: EmbedderConfig, start: Start, run: Run) -> VectorSettings:
    """The flags', else those of the model's folder, of which a training takes over the pooling
    alone. On rank 0."""
    flags = config.vectors
    for line in unheeded_in(start.weights, start.words.lower_case):
        run.say(f"warning: {line}")
    said: Mapping = {}
    if not (config.do_train and flags.pooling):
        said = said_by(start.weights, start.bert_config.num_positions, flags.pooling)
    if config.do_train:
        said = {name: value for name, value in said.items() if name == "pooling"}
    given = {name: value for name, value in flat(flags).items() if value is not None}
    return VectorSettings(**{**DEFAULTS, **said, **given})
