"""``bert-launch``: one command that starts the ranks of a program under whichever MPI is installed.

It does the work of ``horovodrun``: it builds one ``mpirun`` command for Open MPI 4 or 5, MPICH or Intel MPI,
prints it and runs it. What the ranks print passes through. Whether the job succeeded is decided by what they tell
(`distributed.records`), and a job that broke off can be started again. ``--dry-run`` only prints the command, for
users who prefer to start ``mpirun`` themselves. One rank on this machine is started without mpirun.
"""

import os
import sys
from collections.abc import Sequence

from distributed import records
from distributed.launcher import restarts
from distributed.launcher.hosts import local_host_names
from distributed.launcher.job import Requests, end_with_parent
from distributed.launcher.mpirun import build_command, check_elastic, find_mpi_for, is_root, num_cores
from distributed.launcher.options import LaunchError, parse_args


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the mpirun command for ``argv`` and runs it. Returns the job's exit status."""
    parent = os.environ.pop(records.PARENT, "")
    if parent:
        end_with_parent()
        if os.getppid() != int(parent):  # it ended first
            return 1
    try:
        options, dry_run = parse_args(sys.argv[1:] if argv is None else argv)
        mpi = find_mpi_for(options, os.environ)
        if options.is_elastic:
            check_elastic(mpi)
    except LaunchError as error:
        print(f"bert-launch: error: {error}", file=sys.stderr)
        return error.status
    # As a user would start it: what runs also has variables by which the ranks tell bert-launch how they fare.
    environment = {name: value for name, value in os.environ.items() if name != records.TERMINAL}
    shown = build_command(
        mpi, options, environment, cores=num_cores(), is_root=is_root(), local_names=local_host_names()
    )
    if not parent:  # which would show it to users of Python
        print(shown, file=sys.stdout if dry_run else sys.stderr, flush=True)
    if dry_run:
        return 0
    requests = Requests()
    requests.install()
    return restarts.run(mpi, options, requests)


if __name__ == "__main__":
    sys.exit(main())
