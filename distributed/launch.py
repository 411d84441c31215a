"""Start COMMAND on N ranks, here or on several hosts, under the MPI that is installed (Open MPI 4
and 5, MPICH, Intel MPI). The successor of horovodrun, whose flags are all taken or answered.

bert-launch prints one ``mpirun`` command and runs it. Whether the job succeeded is decided by what
the ranks tell (`distributed.records`), and a job that broke off can be started again.
"""

import argparse
import contextlib
import ctypes
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from distributed import horovodrun, launcher, records
from distributed.hosts import READ_BY_MPIRUN, hosts_in
from distributed.mpirun import (
    Mpi,
    build_command,
    find_mpi,
    foreign_transports,
    is_local,
    obstacle,
    with_hosts,
)
from ringbase.errors import InputError, Preempted, one_line
from ringbase.files import cache_folder
from ringbase.notices import Stream
from ringbase.secrets import masked

EXAMPLES = """\
examples:
  bert-launch -np 4 -- bert-squad --do_train --output_dir out
  bert-launch -np 16 -H node1:8,node2:8 -p 2222 --restarts 10 -- bert-pretraining --config a.toml
  bert-launch -np 2 --mpi-args "--tag-output -x MY_VARIABLE" --dry-run -- bert-bench"""
# mpirun starts its daemons on other hosts through a remote shell: ssh, unless --mpi-args names
# another.
SSH, AGENT = "ssh -o BatchMode=yes", re.compile(r"plm_[rs]sh_agent|-(bootstrap|launcher)-exec")
SHELL_ARGS = re.compile(r"plm_[rs]sh_args")
# variables that name another one
SHELLS = re.compile(r"(PRTE|OMPI)_MCA_plm_.*|(HYDRA_|I_MPI_HYDRA_)(LAUNCHER|BOOTSTRAP).*")
EARLY_CHARACTERS = 1 << 14  # of what MPI prints before the ranks have joined, kept to explain it
# between a job that broke off and its next start; for the answer of a host
RESTART_S, ANSWER_S = 2.0, "10"
# from the end of a job to SIGTERM to its mpirun, and from that to SIGKILL
GRACE_S, KILL_S = 30.0, 10.0
# A program that is alone takes SIGTERM soon after its first request for a repetition of it.
ALONE_KILL_S = 2.0
WELL = (0, Preempted.STATUS)  # statuses of a program that ended as it should
NO_ANSWER = "not started: no answer from"  # begins the error of a job whose hosts do not answer
TICK_S = 0.2
FINAL = (0, Preempted.STATUS, 1, 2)  # statuses after which another start would end in the same way
EARLY_FINAL = (128 + signal.SIGBUS, 213)  # the same of a job whose ranks have not all joined
MARK = records.MARK.encode()
# A record, after what mpirun --tag-output or Hydra's -l puts before each line. Other lines with the
# mark are the user's.
TAG = rb"\[[^\]\n]*\](?:<std\w+>)?:? ?"
RECORD = re.compile(rb"(?:%s)?%s(%s)\n" % (TAG, MARK, records.RECORDS.encode()))
PIPED = re.compile(records.RECORDS.encode())
# a text that ends in what may become a record
BEGUN = re.compile(MARK + rb"(?:[a-z0-9 ]{0,16}|error [^\n]{0,%d})\Z" % records.LONGEST_BYTES)
REASONS = {  # statuses of processes that a signal ended
    128 + signal.SIGKILL: "a process was ended by SIGKILL (out of memory?)",
    128 + signal.SIGBUS: "a process was ended by SIGBUS (is /dev/shm or TMPDIR full?)",
    128 + signal.SIGALRM: (
        "a process was ended by SIGALRM (not all ranks joined within --start-timeout: one ended,"
        " or hosts are cut off)"
    ),
}
# statuses of mpirun that has not brought the ranks together, as behind a host file
EARLY_REASONS = {
    213: "mpirun failed on a host: can TMPDIR be written there, and has it room?",
    255: "mpirun could not start on a host: does it answer to ssh, without a question?",
}
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the mpirun command for ``argv`` and runs it. Returns the job's exit status."""
    options = parse_args(sys.argv[1:] if argv is None else argv)
    for note in options.notes:
        print(f"bert-launch: {note}", file=sys.stderr, flush=True)
    try:
        needs_mpi = options.num_proc > 1 or options.elastic or options.mpi_args or options.hosts
        mpi = find_mpi() if needs_mpi else None  # one rank on this machine needs none
        if mpi:
            options = with_hosts(mpi, options, os.environ)
            for name, component in foreign_transports(mpi, os.environ).items():
                value = os.environ.pop(name)
                say(f"{name}={value} is left out: {mpi} has no {component}")
        is_ours = os.path.basename(options.command[0]).startswith("bert-")
        if mpi and mpi.is_open_mpi_5 and is_ours and reads_standard_input(options.command):
            raise InputError(
                "standard input has no end under the mpirun of Open MPI 5: name a file instead of"
                " -, or give -np 1"
            )
        if mpi and options.elastic and not mpi.is_open_mpi_5:
            raise InputError(
                f"--elastic needs Open MPI 5 or newer, found {mpi}; --restarts works with all"
            )
        if launcher.TERMINAL in os.environ:  # this is a part of a program such as `ringbert.launch`
            _end_with_parent()
        else:
            file = sys.stdout if options.dry_run else sys.stderr
            print(masked(shlex.join(build_command(mpi, options))), file=file, flush=True)
        return 0 if options.dry_run else run(mpi, options)
    except (InputError, OSError) as error:
        fail(one_line(error))
        return 1


def slurm_script(kind: str) -> str:
    """The script for sbatch, which asks for a GPU for each task unless `kind` is cpu: on clusters
    without GPUs sbatch refuses that."""
    text = Path(__file__).with_name("slurm.sh").read_text()
    return text if kind == "gpu" else text.replace("#SBATCH --gpus-per-task=1\n", "")


def run(mpi: Mpi | None, options: Namespace) -> int:
    """Runs the job, and up to `restarts` times again when it broke off. Returns the last exit
    status."""
    now, restarts = _on_ready_hosts(options), 0
    terminal = os.environ.get(launcher.TERMINAL) or str(launcher.columns(2))
    os.environ.setdefault(launcher.COMMAND, shlex.join(["bert-launch", *sys.argv[1:]]))
    os.environ |= {launcher.TERMINAL: terminal, launcher.RESTART: "0"}
    if not os.environ.get(launcher.JOB_ID, "").startswith(launcher.SLURM_JOB):
        own_id = f"{socket.gethostname()}-{os.getpid()}-{time.time():.0f}"
        os.environ[launcher.JOB_ID] = own_id
    if options.restarts:
        folder = cache_folder() / "commits" / os.environ[launcher.JOB_ID]
        os.environ.setdefault(launcher.COMMITS, str(folder.absolute()))
    while True:
        # of this start alone: a rank that is left of an earlier one must not speak for it
        pipe, end_of_ranks = os.pipe2(os.O_NONBLOCK)
        os.environ[records.JOB] = records.name_of_pipe(end_of_ranks)
        process = MpirunProcess(build_command(mpi, now), mpi is not None, pipe)
        status, broke_off = process.end(options.elastic)
        for descriptor in (pipe, end_of_ranks):
            os.close(descriptor)
        if process.signal is not None or restarts == options.restarts or not broke_off:
            if status and process.error:
                records.tell_caller(process.error)
            if options.restarts:
                _end_commits(Path(os.environ[launcher.COMMITS]), is_complete=status == 0)
            return status
        restarts += 1
        os.environ[launcher.RESTART] = str(restarts)
        say(f"restart {restarts} of {options.restarts} in {RESTART_S:.0f} s")
        now = _on_ready_hosts(options)
        time.sleep(RESTART_S)
        if process.signal is not None:
            return 128 + process.signal


def _end_commits(folder: Path, is_complete: bool) -> None:
    """Deletes the commits of a job that is complete; of another one it says where they are."""
    files = [*folder.glob("state-*.npz")]
    if files and not is_complete:
        say(f"{launcher.COMMITS}={folder} has commits of hvd.elastic, from which a job goes on")
    elif files:
        with contextlib.suppress(OSError):  # another machine's, or the user's own files are there
            for file in files:
                file.unlink()
            folder.rmdir()


def _on_ready_hosts(options):
    """The options with the hosts that answer, and at most as many ranks as they have slots. Raises
    InputError if there are none, or without --restarts if one of them does not answer.

    No host is asked where mpirun reaches them in a way that is not known here.
    """
    if any(map(os.environ.get, READ_BY_MPIRUN)) or any(map(SHELLS.fullmatch, os.environ)):
        return options
    pairs = list(pairwise(options.mpi_args))
    agents = [value for name, value in pairs if AGENT.fullmatch(name)]
    arguments = [value for name, value in pairs if SHELL_ARGS.fullmatch(name)]
    shell = shlex.split(" ".join([[*agents, SSH][0], *arguments]))
    if options.ssh_port:
        shell += ["-p", str(options.ssh_port)]
    asked = {}  # all at once; ssh says why a command does not come through
    for host in options.hosts:
        if not is_local(host):
            command = ["timeout", ANSWER_S, *shell, host, "true"]
            asked[host] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    lost = [host for host, process in asked.items() if process.wait()]
    if not lost:
        return options
    hosts = {host: slots for host, slots in options.hosts.items() if host not in lost}
    if not hosts or not options.restarts:
        text = shlex.join([*shell, lost[0], "true"])
        raise InputError(
            f"{NO_ANSWER} {', '.join(lost)}: `{text}` must end within {ANSWER_S} s and ask nothing"
        )
    ranks = min(options.num_proc, sum(hosts.values()))
    say(
        f"{', '.join(lost)} gives no answer: {ranks} rank{'s' * (ranks != 1)} on {', '.join(hosts)}"
    )
    return Namespace(**vars(options) | {"hosts": hosts, "num_proc": ranks})


class MpirunProcess:
    """One run of mpirun, or of a program that is alone.

    The first SIGINT, SIGTERM or SIGHUP asks ranks that can to save and stop, the second one ends
    them at once, and so does the first one if they cannot: a script, a program that reads its data.
    SIGUSR1 asks them too: mpirun forwards it to the ranks.
    """

    def __init__(self, argv: Sequence[str], is_mpirun: bool, pipe: int):
        self.signal: int | None = None  # the first one that came, also after the end
        self.told: set[str] = set()  # by the ranks (`distributed.records`)
        self.error = ""  # that they told
        self._is_mpirun = is_mpirun
        self._pipe = pipe  # of records
        self._obstacle: str | None = None  # what kept MPI from starting the ranks
        # The status that a program told at its end, in standard error and in the pipe; None while
        # one runs.
        self._ended: int | None = None
        self._piped: int | None = None
        self._requests = launcher.Requests()
        self._has_asked = False
        self._timers: list[threading.Timer] = []  # that end what does not end by itself
        self._has_killed = False
        self._hearing = threading.Lock()
        # A terminal belongs to our own group. mpirun would read what others wait for, such as the
        # lines of a loop around this job, also where no rank reads it.
        takes = not os.isatty(0) and (reads_standard_input(argv) or not is_mpirun)
        stdin = None if takes else subprocess.DEVNULL
        # In a group of its own, so that Ctrl-C reaches this process alone.
        self._process = subprocess.Popen(
            argv,
            stdin=stdin,
            stderr=subprocess.PIPE,
            process_group=0,
            preexec_fn=_end_with_parent,
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._on_signal)

    def end(self, is_elastic: bool) -> tuple[int, bool]:
        """Waits for the end. Returns the job's exit status, and whether it broke off: whether it
        failed for a reason that need not come back when it is started again."""
        reads = (self._read, self._listen)
        readers = [threading.Thread(target=read, daemon=True) for read in reads]
        for reader in readers:
            reader.start()
        code = self._process.wait()
        for reader in readers:  # longer than it needs; a remote shell may still hold the other end
            reader.join(5)
        self._cancel()
        status, broke_off = self._outcome(128 - code if code < 0 else code, is_elastic)
        if status == 0 and self._has_killed and self.signal is None:
            say("what still ran was ended: it was not complete")
            return 1, False
        return status, broke_off

    def _outcome(self, status: int, is_elastic: bool) -> tuple[int, bool]:
        if self._ended is None:
            self._ended = self._piped
        if self._is_mpirun and self._ended:
            return self._ended, self._ended not in FINAL
        if self._is_mpirun and self._ended == 0:  # a rank that is killed later has done its work
            return 0 if is_elastic or status > 128 else status, False
        if not self._is_mpirun and self._ended is not None:  # the command's own status says it
            return status, status not in FINAL
        if self._obstacle and (status or is_elastic):
            say(f"error: {self._obstacle}")
            self.error = self._obstacle
            return 1, False
        has_begun = "joined" in self.told or is_elastic
        if status == 0 and has_begun:
            say("the ranks ended before the program was complete: was a host lost?")
            return 1, True
        reasons = REASONS if has_begun else REASONS | EARLY_REASONS
        if status in reasons and self.signal is None:
            say(reasons[status])
        return status, has_begun or (status > 128 and status not in EARLY_FINAL)

    def _read(self) -> None:
        """Passes standard error on but for the records and TensorFlow's notices, also parts of
        lines, so that progress bars move. Nothing after the ranks have told why they end: what
        mpirun says of it would hide that. Nor after MPI could not start the ranks, which it tells
        at length."""
        assert self._process.stderr is not None
        begun, early = b"", ""  # a record that is not complete; the last text before "joined"
        without_notices = Stream(TAG)
        while data := os.read(self._process.stderr.fileno(), 65536):
            data = data.replace(b"\0", b"")  # with which PRRTE ends some of its messages
            parts = RECORD.split(begun + data)  # texts and records by turns
            begun = b""
            if match := BEGUN.search(parts[-1]):
                parts[-1], begun = parts[-1][: match.start()], match[0]
            for text, record in zip(parts[::2], [*parts[1::2], b""], strict=True):
                if "joined" not in self.told and not self._obstacle:
                    early = early[-EARLY_CHARACTERS:] + text.decode(errors="replace")
                    self._obstacle = obstacle(early)
                    if self._obstacle:  # ranks that have none wait for the others, with --elastic
                        self._end_after(RESTART_S)
                if self._ended in (None, *WELL) and not self._obstacle:
                    write(without_notices(text))
                if record:
                    self._ended = self._hear(record.decode(errors="replace"), self._ended)
        write(without_notices.rest() + begun)

    def _listen(self) -> None:
        """Hears the records that come by the pipe: also where standard error goes elsewhere."""
        begun = b""
        has_ended = False
        while not has_ended:
            has_ended = self._process.poll() is not None  # what was told before is there
            if select.select([self._pipe], [], [], 0 if has_ended else TICK_S)[0]:
                *lines, begun = (begun + os.read(self._pipe, 65536)).split(b"\n")
                for line in filter(PIPED.fullmatch, lines):
                    self._piped = self._hear(line.decode(errors="replace"), self._piped)

    def _hear(self, record: str, ended: int | None) -> int | None:
        """Notes a record. Returns the status that the program has told in this way, at its end."""
        name, _, value = record.partition(" ")
        with self._hearing:
            if name == "joined":  # a program begins, perhaps after another
                self._cancel()
                ended = self._ended = self._piped = None
                self.error = ""
            elif name == "error":
                self.error = value
            elif name == "runs":
                self.told.discard("stops")
            elif name == "ended" and ended is None:
                ended = int(value)
                self.told.discard("stops")
                # mpirun does not end by itself when it cannot reach a host; what follows a program
                # that ended well, on all ranks, is its caller's
                if self._is_mpirun and ended not in WELL:
                    self._timers += self._end_after(GRACE_S)
            self.told.add(name)
        return ended

    def _on_signal(self, number: int, frame: object) -> None:
        self.signal = self.signal or number
        name = signal.Signals(number).name
        # what was asked and has stopped is ending: a repetition does not kill it
        can_stop = "stops" in self.told or self._has_asked
        if number == signal.SIGUSR1:
            self._process.send_signal(number)
        elif self._requests.is_second(number) or not can_stop:
            say(f"{name} ends the ranks")
            self._end_after(0)
        elif not self._has_asked:
            self._has_asked = True
            say(
                f"{name}: the ranks finish this step, save and exit; send it again to end them at"
                " once"
            )
            self._process.send_signal(signal.SIGUSR1)

    def _end_after(self, seconds: float) -> list[threading.Timer]:
        """The timers that end mpirun, or a program that is alone."""
        kill_s = KILL_S if self._is_mpirun else ALONE_KILL_S
        timers = []
        for late_s, number in ((0, signal.SIGTERM), (kill_s, signal.SIGKILL)):
            timer = threading.Timer(seconds + late_s, self._kill, (number,))
            timer.daemon = True
            timer.start()
            timers.append(timer)
        return timers

    def _kill(self, number: int) -> None:
        self._has_killed = True
        self._process.send_signal(number)

    def _cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def reads_standard_input(command: Sequence[str]) -> bool:
    """Whether a word of a command stands for the file of standard input, by the usual sign."""
    return any(word == "-" or word.endswith("=-") for word in command)


def _end_with_parent():
    """This process gets SIGTERM when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def say(text: str) -> None:
    write(f"bert-launch: {text}\n".encode())


def fail(message: str) -> None:
    """Says why there is no job, or none any more."""
    with contextlib.suppress(OSError):  # nobody reads it any more
        print(f"bert-launch: error: {message}", file=sys.stderr, flush=True)
    records.tell_caller(message)


def write(data: bytes) -> None:
    """Writes to standard error; the job goes on when nobody reads it any more."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


class PrintSlurm(argparse.Action):
    """Prints the script for sbatch, and ends."""

    def __call__(self, parser, namespace, values, option_string=None):
        print(slurm_script(values), end="")
        parser.exit(0)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(message)
        self.exit(2)


def parse_args(argv: Sequence[str]) -> Namespace:
    """The flags and the `command` that is started. Wrong arguments end the process with one line
    and status 2."""
    summary, _, _ = str(__doc__).partition("\n\n")
    parser = Parser(
        "bert-launch",
        "bert-launch -np N [options] -- COMMAND …",
        summary,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "-np", "-n", "--num-proc", type=positive, required=True, metavar="N", help="number of ranks"
    )
    hosts = "hosts and their slots (default: this one; slots: 1)"
    add("-H", "--hosts", type=hosts_in, default={}, metavar="HOST:SLOTS,…", help=hosts)
    add("-p", "--ssh-port", type=positive, metavar="PORT", help="port of the hosts' ssh servers")
    restarts = """start a job that broke off again, at most N times, on the hosts of -H that answer
(default: 0); a training continues from its newest checkpoint"""
    add("--restarts", type=int, default=0, metavar="N", help=restarts)
    add("--elastic", action="store_true", help="go on without ranks that die (Open MPI 5)")
    timeout = "end the job when a rank has waited so long for all others to join (default: 600)"
    add("--start-timeout", type=positive, metavar="SECONDS", help=timeout)
    mpi_args = "further arguments of mpirun, quoted as in a shell"
    add("--mpi-args", type=shlex.split, default=[], metavar="ARGS", help=mpi_args)
    slurm = "print a script for sbatch, for nodes with GPUs or without them, and stop"
    kinds = ["gpu", "cpu"]
    add("--print-slurm", action=PrintSlurm, choices=kinds, metavar="gpu|cpu", help=slurm)
    add("--dry-run", action="store_true", help="print the mpirun command and do not run it")
    horovodrun.add_alias(parser)
    horovodrun.add_flags(parser)

    separator = argv.index("--") if "--" in argv else len(argv)
    ours, command = list(argv[:separator]), list(argv[separator + 1 :])
    for flag in "--mpi-args", "--binding-args":
        if flag in ours[:-1]:  # argparse accepts a value with a leading dash only after "="
            at = ours.index(flag)
            ours[at : at + 2] = [f"{flag}={ours[at + 1]}"]
    if reason := horovodrun.refusal(ours):
        parser.error(reason)
    if not command and not {"-h", "--help", "--print-slurm", "-v", "--version"} & set(ours):
        parser.error("no -- with a command after it: write bert-launch -np 4 -- bert-squad …")
    options = parser.parse_args(ours, Namespace(command=command, notes=[], variables={}))
    options.mpi_args = [*options.mpi_args, *options.binding_args]
    slots = sum(options.hosts.values())
    if options.hosts and options.num_proc > slots:
        parser.error(f"-np must be at most the {slots} slots of -H, got {options.num_proc}")
    return options


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
