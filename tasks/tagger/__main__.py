"""The command bert-tagger."""

from functools import partial

from tasks.runs.environment import run_command
from tasks.tagger.settings import TaggerConfig

main = partial(run_command, "bert-tagger", TaggerConfig)

if __name__ == "__main__":
    main()
