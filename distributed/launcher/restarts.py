"""Runs a job, and starts it again when it breaks off."""

import os
import secrets
import time
from dataclasses import replace

from distributed.launcher.hosts import ANSWER_S, is_local, local_host_names, ready_hosts, remote_shell
from distributed.launcher.job import Job, Requests
from distributed.launcher.mpirun import OPEN_MPI, Mpi, build_command, is_root, num_cores, stays_here
from distributed.launcher.options import LaunchError, Options
from distributed.launcher.outcome import Outcome
from distributed.launcher.standard_input import standard_input_of
from distributed.socket_filter import OPEN_VARIABLE

MOST_WAIT_S = 60.0
MOST_STARTS_WITHOUT_STEP = 2


def run(mpi: Mpi, options: Options, requests: Requests) -> int:
    """Runs the job, and up to `options.restarts` times again. Returns the exit status of the last one.

    It starts again after a job that broke off, not after one that was refused, saved and stopped, or was ended by
    the user. Each start uses the hosts that answer then.
    """
    saved: dict[str, int] = {}  # position of the newest checkpoint, by folder
    without_step = 0
    wait_s = 1.0
    now = options
    for restart in range(1, options.restarts + 2):
        is_remote = any(not is_local(name) for name, _ in now.hosts)
        outcome = Outcome(now.num_ranks, now.is_elastic, mpi.implementation != OPEN_MPI, is_remote)
        job = Job(outcome, secrets.token_hex(8), requests, bool(saved), now.start_timeout_s)
        status = start(mpi, now, job)
        if job.was_killed:
            clean(mpi, options, job)
        if not outcome.broke_off or requests.number is not None or restart > options.restarts:
            return status
        if any(position > saved.get(folder, 0) for folder, position in outcome.saved.items()):
            saved |= {folder: max(position, saved.get(folder, 0)) for folder, position in outcome.saved.items()}
            without_step, wait_s = 0, 1.0
        else:
            without_step += 1
        if without_step == MOST_STARTS_WITHOUT_STEP:
            job.say("not started again: two starts in a row saved no further step")
            return status
        job.say(f"restart {restart} of {options.restarts} in {wait_s:.0f} s")
        wait(wait_s, requests)
        wait_s = min(2 * wait_s, MOST_WAIT_S)
        try:
            now = on_ready_hosts(mpi, options, job)
        except LaunchError as error:
            job.say(str(error))
            return status
        if requests.number is not None:
            return 128 + requests.number
    raise AssertionError("the loop returns")


def start(mpi: Mpi, options: Options, job: Job) -> int:
    environment = {**os.environ, **job.variables(), **standard_input_of(options.command)}
    names = local_host_names()
    command = build_command(mpi, options, environment, cores=num_cores(), is_root=is_root(), local_names=names)
    closes_ports = mpi.implementation == OPEN_MPI and stays_here(options, environment, names)
    closes_ports &= environment.get(OPEN_VARIABLE) != "1"
    return job.run(command.argv, {**environment, **command.environment}, closes_ports)


def wait(seconds: float, requests: Requests) -> None:
    """Waits, but not after a signal."""
    deadline = time.monotonic() + seconds
    while requests.number is None and (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(left_s, 0.1))


def on_ready_hosts(mpi: Mpi, options: Options, ended: Job) -> Options:
    """The options with the hosts that answer, and at most as many ranks as they have slots.

    What is left of the ended job on them is killed first. Raises LaunchError if no host can be used.
    """
    reasons = clean(mpi, options, ended)
    if not options.hosts:
        if reasons:
            raise LaunchError(f"not started again: {reasons['localhost']}", 1)
        return options
    hosts = tuple((name, slots) for name, slots in options.hosts if name not in reasons)
    if not hosts:
        raise LaunchError(f"not started again: no host of -H answers: {_listed(reasons)}", 1)
    num_ranks = min(options.num_ranks, sum(slots for _, slots in hosts))
    if reasons:
        names = ", ".join(name for name, _ in hosts)
        ranks = f"{num_ranks} rank{'s' * (num_ranks != 1)}"
        ended.say(f"without {_listed(reasons)}: {ranks} on {names}")
    return replace(options, hosts=hosts, num_ranks=num_ranks)


def clean(mpi: Mpi, options: Options, ended: Job) -> dict[str, str]:
    """Kills what is left of a job on all hosts. Returns those that cannot be used again: host -> reason."""
    names = [name for name, _ in options.hosts] or ["localhost"]
    return ready_hosts(remote_shell(mpi, options, os.environ), names, ended.name, ANSWER_S)


def _listed(reasons: dict[str, str]) -> str:
    return ", ".join(f"{host} ({reason})" for host, reason in reasons.items())
