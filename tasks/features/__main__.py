"""The command bert-features."""

from functools import partial

from tasks.environment import run_command
from tasks.features.settings import FeaturesConfig

main = partial(run_command, "bert-features", FeaturesConfig)

if __name__ == "__main__":
    main()
