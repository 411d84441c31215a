"""The command bert-pretraining."""

from functools import partial

from tasks.environment import run_command
from tasks.pretraining.settings import PretrainingConfig

main = partial(run_command, "bert-pretraining", PretrainingConfig)

if __name__ == "__main__":
    main()
