"""What bert-classifier adds to the resolution of its runs. Without TensorFlow."""

from tasks.classifier.labels import with_labels
from tasks.classifier.settings import ClassifierConfig
from tasks.runs.resolve.command import Program, Say
from tasks.runs.resolve.spec import Start


class Classifier(Program[ClassifierConfig]):
    name = "bert-classifier"

    def length(self, config: ClassifierConfig) -> int:
        return config.examples.max_seq_length

    def outputs(self, config: ClassifierConfig, start: Start, say: Say) -> Start:
        return with_labels(config, start, say)
