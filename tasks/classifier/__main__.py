"""The command bert-classifier."""

from functools import partial

from tasks.classifier.settings import COMMAND
from tasks.runs.environment import run_command

main = partial(run_command, COMMAND)

if __name__ == "__main__":
    main()
