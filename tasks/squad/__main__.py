"""The command bert-squad."""

from functools import partial

from tasks.runs.environment import run_command
from tasks.squad.settings import SquadConfig

main = partial(run_command, "bert-squad", SquadConfig)

if __name__ == "__main__":
    main()
