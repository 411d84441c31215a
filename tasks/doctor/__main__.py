"""The command bert-doctor."""

from collections.abc import Sequence

from tasks import flags
from tasks.doctor.settings import DoctorConfig
from tasks.entry import start

DESCRIPTION = """Check whether RingBERT works on this machine or cluster, and print one page with what to do.
Run it as you would run a training: under the same launcher, on the same hosts, with the same number of ranks. The
exit status is 0 if no check failed, else 1."""


def main(argv: Sequence[str] | None = None) -> None:
    config = flags.parse(DoctorConfig, argv, prog="bert-doctor", description=DESCRIPTION)
    start("bert-doctor", "tasks.doctor.program", config)


if __name__ == "__main__":
    main()
