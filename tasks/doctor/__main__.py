"""The command bert-doctor."""

from functools import partial

from tasks.doctor.settings import DoctorConfig
from tasks.environment import run_command

DESCRIPTION = """Check whether RingBERT works on this machine or cluster, and print one page with what to do.
Run it as you would run a training: under the same launcher, on the same hosts, with the same number of ranks. The
exit status is 0 if no check failed, else 1."""

main = partial(run_command, "bert-doctor", DoctorConfig, DESCRIPTION)

if __name__ == "__main__":
    main()
