"""One job: it runs mpirun and passes signals and output on."""

import contextlib
import ctypes
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from distributed import records
from distributed.launcher.banners import Death
from distributed.launcher.control_ports import ControlPorts
from distributed.launcher.early_deaths import EarlyDeaths
from distributed.launcher.options import START_TIMEOUT_S
from distributed.launcher.outcome import Outcome
from distributed.launcher.output import Output, write_to
from distributed.socket_filter import OPEN_VARIABLE
from ringbase.files import is_running

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVING = signal.SIGUSR1  # mpirun forwards it to the ranks
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
HELD_S, POLL_S = 0.2, 1.0  # how long to wait for the rest of a banner; how often to look otherwise
GRACE_S = 30.0  # between the end of a job and that of its mpirun
KILL_S = 10.0  # between SIGTERM and SIGKILL to an mpirun that does not end


class Requests:
    """The signals that users and batch systems send to bert-launch.

    The first SIGINT, SIGTERM or SIGHUP asks the ranks to save and stop, the second one ends them at once; SIGUSR1
    is passed on. `number` is the first of them all.
    """

    def __init__(self) -> None:
        self.job: Job | None = None
        self.number: int | None = None
        self.message = ""  # for the terminal; the handler itself does not interrupt other output
        self.woken, self._wake = os.pipe()  # readable after a signal
        self._has_asked = False

    def install(self) -> None:
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (*ENDING, SAVING):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        if self.job is None:
            return
        if number == SAVING:
            self.job.save()
        elif self._has_asked or not self.job.outcome.has_joined:
            self.job.end(f"{signal.Signals(number).name} ended the ranks")
        else:
            advice = "the ranks finish this step, save and exit; send it again to end them at once"
            self.message, self._has_asked = f"{signal.Signals(number).name}: {advice}", True
            self.job.save()


class Job:
    """One run of mpirun.

    `name` is in the environment of all its processes, so that those that are left over can be found.
    `was_killed`: mpirun did not end by itself. `has_saved`: an earlier start saved a checkpoint, from which this
    one goes on. `start_timeout_s`: for all ranks to join, from the first one that waits for the others.
    """

    def __init__(
        self,
        outcome: Outcome,
        name: str,
        requests: Requests,
        has_saved: bool = False,
        start_timeout_s: float = START_TIMEOUT_S,
    ):
        self.outcome, self.name, self._requests, self._has_saved = outcome, name, requests, has_saved
        self._start_timeout_s, self._first_s = start_timeout_s, math.inf
        self._saves_when_joined = False
        self.was_killed = False
        self._stacks = Path(tempfile.gettempdir()) / f"ringbert-stacks-{name}"
        self._process: subprocess.Popen[bytes] | None = None
        self._over_s: float | None = None
        self._is_ending = False
        self._ports: ControlPorts | None = None
        self._gone: dict[int, float] = {}  # when ranks were first missed
        self._early_deaths = EarlyDeaths(name)
        self._errors, self._output = (Output(write_to(fd), self._on_record, self._on_death) for fd in (2, 1))

    def variables(self) -> dict[str, str]:
        """What the ranks find in their environment."""
        return {
            records.RECORDS: "1",
            records.JOB: self.name,
            records.HAS_SAVED: str(int(self._has_saved)),
            records.STACKS: str(self._stacks),
            records.TERMINAL: os.environ.get(records.TERMINAL)
            or str(int(sys.stderr is not None and sys.stderr.isatty())),
        }

    def run(self, argv: Sequence[str], environment: Mapping[str, str], closes_ports: bool = False) -> int:
        """Runs mpirun to its end, and prints in one line why the job failed. Returns the job's exit status.

        If this process is killed, mpirun ends too. `closes_ports`: only this machine can connect to
        mpirun's own ports; a line says so if the system does not allow that.
        """
        # The terminal belongs to this process's group, and what a rank reads itself must not go to mpirun.
        withholds_input = records.STANDARD_INPUT in environment or (sys.stdin is not None and sys.stdin.isatty())
        process = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL if withholds_input else None,
            stdout=subprocess.PIPE if self.outcome.is_hydra else None,  # where Hydra prints its banners
            stderr=subprocess.PIPE,
            process_group=0,  # so that Ctrl-C reaches this process alone
            preexec_fn=end_with_parent,
        )
        if closes_ports:
            self._ports = ControlPorts(process.pid)
        self._process, self._requests.job = process, self
        if self._requests.number is not None:  # it came while the job was started
            self.end(f"{signal.Signals(self._requests.number).name} ended the ranks")
        try:
            self._watch(process)
        finally:
            self._requests.job = None
        if self._ports is not None:
            self._ports.join()
        status = process.returncode
        self.outcome.mpirun_status = 128 - status if status < 0 else status
        self._close()
        return self.outcome.status

    def say(self, text: str) -> None:
        self._errors.say(text)

    def save(self) -> None:
        """Asks the ranks to save and stop, once all have joined: before, the signal would end them."""
        self._saves_when_joined = bool(self.outcome.starting) and not self.outcome.has_joined
        if not self._saves_when_joined and self._process is not None and self._process.poll() is None:
            self._process.send_signal(SAVING)

    def end(self, reason: str) -> None:
        """Ends the ranks at once."""
        self.outcome.ended_by, self._is_ending = reason, True
        self._over_s = time.monotonic() - GRACE_S
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Passes output on until mpirun has ended."""
        pipes = {process.stderr: self._errors, process.stdout: self._output}
        outputs = {pipe: output for pipe, output in pipes.items() if pipe is not None}
        woken = self._requests.woken
        while outputs:
            holds_back = any(output.holds_back for output in outputs.values())
            waited_for: list[int | IO[bytes]] = [woken, *outputs]
            ready, _, _ = select.select(waited_for, [], [], HELD_S if holds_back else POLL_S)
            if woken in ready:
                os.read(woken, 64)
            self._say_messages()
            for stream in [stream for stream in outputs if stream in ready]:
                data = os.read(stream.fileno(), 65536)
                outputs[stream].feed(data)
                if not data:
                    del outputs[stream]
                    stream.close()
            if not ready:
                for output in outputs.values():
                    output.flush()
                if process.poll() is not None:  # a remote shell may still hold the other ends
                    break
            self._end_late(process)
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(HELD_S)
            self._end_late(process)
        for stream in outputs:
            stream.close()

    def _say_messages(self) -> None:
        message, self._requests.message = self._requests.message, ""
        if message:
            self.say(message)
        if self._ports is not None and (refusal := self._ports.refusal):
            self._ports = None
            self.say(
                f"note: other machines can connect to mpirun's own port, which cannot be closed here ({refusal}); "
                f"docs/machines.md has a rule for a firewall, and {OPEN_VARIABLE}=1 turns this line off"
            )

    def _end_late(self, process: subprocess.Popen[bytes]) -> None:
        """Ends an mpirun that does not end although the job is over, as when it cannot reach a host."""
        self._look_for_dead()
        if self._over_s is None or process.poll() is not None:
            return
        late_s = time.monotonic() - self._over_s - GRACE_S
        if late_s >= KILL_S:
            self.was_killed = True
            process.kill()
        elif late_s >= 0 and not self._is_ending:
            self._is_ending = True
            process.terminate()

    def _look_for_dead(self) -> None:
        """Finds ranks of this host that are gone although mpirun says nothing.

        It waits for all that holds a rank's output, such as a process that the rank had started. The ranks of an
        elastic job watch each other, once all have joined.
        """
        if not self.outcome.has_joined and not self.outcome.deaths:
            dead = self._early_deaths.look() if self.outcome.is_elastic else None
            if dead is not None:
                self._end_start(Death(dead, socket.gethostname()))
            elif time.monotonic() - self._first_s > self._start_timeout_s:
                self._end_start(self.outcome.not_joined(self._start_timeout_s))
        if self.outcome.is_elastic:
            return
        now, host = time.monotonic(), socket.gethostname()
        for rank, process in self.outcome.unaccounted(host).items():
            if not is_running(process):
                self._gone.setdefault(rank, now)
        if self._gone and not self.outcome.deaths:
            gone_s = min(self._gone.values())
            first = [rank for rank, when_s in self._gone.items() if when_s == gone_s]
            if now - gone_s > GRACE_S:
                self._over_s = gone_s
                self._on_death(Death(first[0] if len(first) == 1 else None, host))

    def _end_start(self, death: Death) -> None:
        """Ends ranks that would wait for another one without end."""
        self.outcome.deaths.append(death)
        self._over_s = time.monotonic() - GRACE_S

    def _on_record(self, record: dict) -> None:
        self.outcome.add(record)
        if record["kind"] == "starting":
            self._first_s = min(self._first_s, time.monotonic())
        if self._saves_when_joined and self.outcome.has_joined:
            self.save()
        self._note_end()

    def _on_death(self, death: Death) -> None:
        self.outcome.deaths.append(death)
        self._note_end()

    def _note_end(self) -> None:
        if self._over_s is None and self.outcome.is_over:
            self._over_s = time.monotonic()

    def _close(self) -> None:
        """Prints the last line, and removes the ranks' stacks unless it names them."""
        self._output.flush()
        self._errors.flush()
        reason = self.outcome.reason()
        stacks = [path for path in self._stacks.glob("*") if path.stat().st_size > 0]
        if stacks and self.outcome.is_unexplained:
            reason += f"; where the ranks were: {self._stacks}"
        else:
            shutil.rmtree(self._stacks, ignore_errors=True)
        if reason:
            self.say(reason)


def end_with_parent() -> None:
    """This process gets SIGTERM when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
