"""The command bert-pretraining."""

from functools import partial

from tasks.pretraining.settings import PretrainingConfig
from tasks.runs.environment import run_command

main = partial(run_command, "bert-pretraining", PretrainingConfig)

if __name__ == "__main__":
    main()
