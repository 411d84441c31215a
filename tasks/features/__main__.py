"""The command bert-features."""

from collections.abc import Sequence

from tasks import flags
from tasks.entry import start
from tasks.features.settings import FeaturesConfig


def main(argv: Sequence[str] | None = None) -> None:
    description = "Hidden-state vectors of texts over all MPI ranks."
    config = flags.parse(FeaturesConfig, argv, prog="bert-features", description=description)
    start("bert-features", "tasks.features.program", config)


if __name__ == "__main__":
    main()
