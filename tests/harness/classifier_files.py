"""The classifier's files and rows: the one place of the tests that knows which functions read
them."""

from tasks.classifier.labels import labels_of_file
from tasks.classifier.named_tasks import FILE_FLAGS, find_task, task_of
from tasks.classifier.reading import Source, read
from tasks.classifier.settings import TextSettings


def own_source(path, pair=None, split="train", **settings):
    """A file of one's own, with the columns `text`, `label` and perhaps a second text."""
    values = {FILE_FLAGS[split]: str(path), "text_pair_column": pair, **settings}
    given = TextSettings(**values)
    return Source(given, task_of(given), split)


def read_own(path, pair=None, split="train", **settings):
    return read(own_source(path, pair, split, **settings))


def labels_in(path, **settings):
    """The labels of a file to train on."""
    source = own_source(path, **settings)
    return labels_of_file(source, read(source))


def read_glue(task, folder, split, language="en"):
    """A named task's set, as --task_name and --data_dir name it."""
    settings = TextSettings(task_name=task, data_dir=str(folder), language=language)
    return read(Source(settings, find_task(task), split))
