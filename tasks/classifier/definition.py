"""What bert-classifier is, before anything costly happens. Without TensorFlow."""

from collections.abc import Mapping, Sequence

from tasks.classifier.labels import labels_of_file, named_task, with_labels
from tasks.classifier.named_tasks import task_of
from tasks.classifier.reader import LabelReader
from tasks.classifier.reading import Source, sources_of
from tasks.classifier.settings import COMMAND, ClassifierConfig
from tasks.runs.resolve.command import Learned, Program, Say
from tasks.runs.resolve.labels import labels_of
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.reader import Readings


class Classifier(Program[ClassifierConfig]):
    name = COMMAND.name

    def length(self, config: ClassifierConfig) -> int:
        return config.examples.max_seq_length

    def learned(self, config: ClassifierConfig, readings: Readings, say: Say) -> tuple[str, ...]:
        source = Source(config.texts, task_of(config.texts), "train")
        return labels_of_file(source, readings.of(LabelReader(), source))

    def outputs(self, config: ClassifierConfig, start: Start, learned: Learned, say: Say) -> Start:
        return with_labels(config, start, learned, say)

    def sources(self, config: ClassifierConfig, start: Start) -> Mapping[str, Sequence[Source]]:
        named = named_task(config, start)
        return {kind: sources_of(config.texts, named, kind) for kind in config.wanted_sets}

    def reader(self, config: ClassifierConfig, start: Start) -> LabelReader:
        has_several = named_task(config, start).has_several
        length = config.examples.max_seq_length
        return LabelReader(length, labels_of(start.bert_config), has_several)


PROGRAM = Classifier()
