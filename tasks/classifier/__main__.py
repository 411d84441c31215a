"""The command bert-classifier."""

from functools import partial

from tasks.classifier.settings import ClassifierConfig
from tasks.runs.environment import run_command

main = partial(run_command, "bert-classifier", ClassifierConfig)

if __name__ == "__main__":
    main()
