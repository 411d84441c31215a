"""The command bert-pretraining."""

from collections.abc import Sequence

from tasks import flags
from tasks.entry import start
from tasks.pretraining.settings import PretrainingConfig


def main(argv: Sequence[str] | None = None) -> None:
    description = "Pretrain BERT on sharded corpora over all MPI ranks."
    config = flags.parse(PretrainingConfig, argv, prog="bert-pretraining", description=description)
    start("bert-pretraining", "tasks.pretraining.program", config)


if __name__ == "__main__":
    main()
