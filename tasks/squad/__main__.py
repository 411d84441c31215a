"""The command bert-squad."""

from functools import partial

from tasks.runs.environment import run_command
from tasks.squad.settings import COMMAND

main = partial(run_command, COMMAND)

if __name__ == "__main__":
    main()
