"""bert-embedder: train BERT to embed texts as vectors over all ranks, exactly as on one.

Start reading at `run_embedder`, below. The loss that joins the rows of all ranks is
distributed/joint.py.
"""

from ringbase.settings import fields_of
from tasks.embedder.definition import PROGRAM
from tasks.embedder.distillation import distillation
from tasks.embedder.mining import Mining
from tasks.embedder.mixing import stream_of
from tasks.embedder.settings import COMMAND, EmbedderConfig, LossSettings
from tasks.embedder.task import EmbedTask, has_labels, has_scores, most_texts
from tasks.runs.execute.job import Job, run_on_ranks
from tasks.runs.execute.program import open_sets, resolved, run_task
from tasks.runs.resolve.command import Stream
from tasks.runs.rows.sets import Sets
from tasks.runs.task import Scores
from tasks.runs.trained import saved_settings


def run(config: EmbedderConfig) -> None:
    run_on_ranks(COMMAND.name, config, config.output_dir, run_embedder)


def run_embedder(config: EmbedderConfig, job: Job) -> Scores:
    """Trains, evaluates and embeds as the flags say, on every rank. Returns the scores."""
    work = resolved(PROGRAM, config, job)
    sets = open_sets(PROGRAM, work, job)
    task = embed_task(work.config, sets)
    void = {}
    if task.trains_on_scores:
        names = (field.name for field in fields_of(LossSettings))
        void = dict.fromkeys(names, "the pairs have scores")
    elif not any(has_scores(data.tables["pairs"]) for data in sets.dev):
        void = {"score_scale": "no pair has a score"}
    for name, reason in void.items():
        if name in config.given:
            job.run.say(f"note: --{name} changes nothing: {reason}")
    if sets.train:
        classes = any(has_labels(data.tables["pairs"]) for data in sets.train)
        job.run.say(f"loss: {work.config.loss.in_words(task.trains_on_scores, classes)}")
    return run_task(task, sets, work, job)


def embed_task(config: EmbedderConfig, sets: Sets) -> EmbedTask:
    """The task for these sets, whose scores decide the loss and the metric."""
    settings = saved_settings(config)
    train = [data.tables["pairs"] for data in sets.train]
    dev = [data.tables["pairs"] for data in sets.dev]
    stream = Stream()
    for data in sets.train:
        stream = stream_of(config, data.made.facts.get("sets", ()))
    return EmbedTask(
        config.vectors,
        settings,
        config.loss,
        texts_per_row=max(map(most_texts, train), default=2),
        trains_on_scores=any(map(has_scores, train)),
        distillation=distillation(config.loss.kd_loss_type, config.loss.temperature),
        metric="eval_spearman" if any(map(has_scores, dev)) else "eval_ndcg@10",
        stream=stream,
        mining=Mining(config.mining, config.training.loop.seed) if config.mines else None,
    )
