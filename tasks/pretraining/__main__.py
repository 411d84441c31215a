"""The command bert-pretraining."""

from functools import partial

from tasks.environment import run_command
from tasks.pretraining.settings import PretrainingConfig

DESCRIPTION = "Pretrain BERT on sharded corpora over all MPI ranks."

main = partial(run_command, "bert-pretraining", PretrainingConfig, DESCRIPTION)

if __name__ == "__main__":
    main()
