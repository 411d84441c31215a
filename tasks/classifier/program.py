"""bert-classifier: fine-tune BERT to label texts or pairs of texts (google-research/bert
`run_classifier.py`).

The data are those of a task in named_tasks.py, or your own files. Start reading at
`run_classifier`, below.
"""

from tasks.classifier.labels import named_task, with_labels
from tasks.classifier.reading import sources_of
from tasks.classifier.settings import ClassifierConfig
from tasks.classifier.task import LabelTask
from tasks.runs.job import Job, run_on_ranks
from tasks.runs.labels import labels_of
from tasks.runs.program import open_sets, run_task, runs_of
from tasks.runs.task import Scores
from tasks.runs.trained import saved_settings


def run(config: ClassifierConfig) -> None:
    run_on_ranks("bert-classifier", config, config.output_dir, run_classifier)


def run_classifier(config: ClassifierConfig, job: Job) -> Scores:
    """Trains, evaluates and predicts as the flags say, on every rank. Returns the scores."""
    # configuration, tokenizer, weights and labels are found on rank 0
    max_seq_length = config.examples.max_seq_length
    runs = runs_of(config, job, max_seq_length, with_labels)
    start = runs[0].start
    named = job.world.on_first(named_task, config, start)
    sources = {kind: sources_of(config.texts, named, kind) for kind in config.wanted_sets}
    task = LabelTask(
        max_seq_length,
        labels_of(start.bert_config),
        named.has_several,
        named.metrics,
        config.class_weights,
        saved_settings(config),
        ranks=config.texts.ranking,
    )
    sets = open_sets(task, sources, runs, config, job)
    if sets.train:
        task = task.weighted(sets.train[0].rows)
    return run_task(task, sets, runs, config, job)
