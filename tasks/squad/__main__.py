"""The command bert-squad."""

from collections.abc import Sequence

from tasks import flags
from tasks.entry import start
from tasks.squad.settings import SquadConfig


def main(argv: Sequence[str] | None = None) -> None:
    description = "Fine-tune BERT on SQuAD over all MPI ranks."
    config = flags.parse(SquadConfig, argv, prog="bert-squad", description=description)
    start("bert-squad", "tasks.squad.program", config)


if __name__ == "__main__":
    main()
