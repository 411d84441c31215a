"""The command bert-doctor."""

from functools import partial

from ringbase.settings import Settings, setting
from tasks.runs.commands import Command
from tasks.runs.environment import run_command
from tasks.runs.settings import MachineSettings


class DoctorConfig(Settings):
    """Check whether RingBERT works on this machine or cluster, and print one page with what to do.
    Run it as you would run a training: under the same launcher, on the same hosts, with the same
    number of ranks. The exit status is 0 if no check failed, else 1."""

    machine: MachineSettings
    output_dir: str = setting(
        ".", "folder whose disk is checked, such as the --output_dir of a run", "data"
    )
    json: bool = setting(False, "print JSON instead of a page", "output")
    quick: bool = setting(
        False, "leave out what computes with models, which takes a minute or more", "machine"
    )


main = partial(run_command, Command("bert-doctor", DoctorConfig))

if __name__ == "__main__":
    main()
