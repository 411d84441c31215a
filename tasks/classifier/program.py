"""bert-classifier: fine-tune BERT to label texts or pairs of texts (google-research/bert
`run_classifier.py`).

The data are those of a task in named_tasks.py, or your own files. Start reading at
`run_classifier`, below.
"""

from tasks.classifier.definition import PROGRAM
from tasks.classifier.labels import named_task
from tasks.classifier.settings import COMMAND, ClassifierConfig
from tasks.classifier.task import LabelTask, weights_of_labels
from tasks.runs.execute.job import Job, run_on_ranks
from tasks.runs.execute.program import open_sets, resolved, run_task
from tasks.runs.resolve.labels import labels_of
from tasks.runs.task import Scores
from tasks.runs.trained import saved_settings


def run(config: ClassifierConfig) -> None:
    run_on_ranks(COMMAND.name, config, config.output_dir, run_classifier)


def run_classifier(config: ClassifierConfig, job: Job) -> Scores:
    """Trains, evaluates and predicts as the flags say, on every rank. Returns the scores."""
    work = resolved(PROGRAM, config, job)
    sets = open_sets(PROGRAM, work, job)
    config, start = work.config, work.start
    named = named_task(config, start)
    labels = labels_of(start.bert_config)
    weights = None
    for data in sets.train:
        weights = weights_of_labels(config.class_weights, labels, data.rows)
    task = LabelTask(
        config.examples.max_seq_length,
        labels,
        named.has_several,
        named.metrics,
        config.class_weights,
        saved_settings(config),
        weights,
        smoothing=config.head.label_smoothing_factor,
        ranks=config.texts.ranking,
    )
    return run_task(task, sets, work, job)
