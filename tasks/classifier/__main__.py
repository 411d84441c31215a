"""The command bert-classifier."""

from functools import partial

from tasks.classifier.settings import ClassifierConfig
from tasks.environment import run_command

DESCRIPTION = "Fine-tune BERT to label texts or pairs of texts over all MPI ranks."

main = partial(run_command, "bert-classifier", ClassifierConfig, DESCRIPTION)

if __name__ == "__main__":
    main()
