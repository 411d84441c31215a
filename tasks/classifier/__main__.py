"""The command bert-classifier."""

from collections.abc import Sequence

from tasks import flags
from tasks.classifier.settings import ClassifierConfig
from tasks.entry import start


def main(argv: Sequence[str] | None = None) -> None:
    description = "Fine-tune BERT to label texts or pairs of texts over all MPI ranks."
    config = flags.parse(ClassifierConfig, argv, prog="bert-classifier", description=description)
    start("bert-classifier", "tasks.classifier.program", config)


if __name__ == "__main__":
    main()
