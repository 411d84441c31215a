"""The command bert-embedder."""

from functools import partial

from tasks.embedder.settings import COMMAND
from tasks.runs.environment import run_command

main = partial(run_command, COMMAND)

if __name__ == "__main__":
    main()
