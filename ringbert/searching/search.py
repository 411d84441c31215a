"""A search: starts trials on the shares of its slots, as each becomes free, and notes how they
end."""

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from distributed.launch import FINAL, NO_ANSWER
from distributed.launcher import COMMAND, TERMINAL
from distributed.run import HELD, LOCK, MAKE_ROOM, Run, replaced
from distributed.world import World
from ringbase.errors import InputError, Preempted
from ringbase.files import write_json
from ringbase.secrets import masked
from ringbert.launching import Launched, launch_command
from ringbert.searching.keeping import keep_best
from ringbert.searching.plan import Plan
from ringbert.searching.slots import Share
from ringbert.searching.study import Adviser, ByFormula, ByOptuna
from tasks.runs.report.page import write_page
from tasks.runs.report.trials import (
    FAILED,
    PRUNED,
    TRIAL,
    Trial,
    ended,
    folder_name,
    is_loss,
    measured_so_far,
    ranked,
    trials_in,
)

LOG = "log.txt"  # of a trial: what it has printed
TICK_S = 0.2
LONGEST_LINE = 500  # of a log, as the reason of a failure


def run_search(
    plan: Plan, is_shown: bool = True, environment: Mapping[str, str] | None = None
) -> list[Trial]:
    """Runs what is left of a search. Returns all its trials, the best first. `environment`:
    variables for the trials besides this process's.

    Raises InputError: the folder is another search's, or cannot be written; Preempted after a
    signal, when what ran has saved.
    """
    folder = plan.command.folder
    run = Run(folder, World())
    run.lock()
    with contextlib.closing(run):
        plan.claim()
        trials = trials_in(folder)
        search = Search(plan, trials, adviser_of(plan, trials), is_shown, environment or {})
        trials = search.run()
        keep_best(plan, trials)
        if any(trial.has_ended for trial in trials):
            search.say(f"report: {write_page([folder])}")
        search.check_complete()
    return trials


def adviser_of(plan: Plan, trials: Sequence[Trial]) -> Adviser:
    settings = plan.settings
    if plan.formula and not settings.prune:
        return ByFormula(plan.formula)
    is_low_best = is_loss(settings.metric)
    folder = plan.command.folder
    return ByOptuna(folder, plan.space, settings.seed, is_low_best, plan.formula, trials)


class Running(NamedTuple):
    """A trial that runs."""

    trial: Trial
    launched: Launched


class Search:
    """A search that runs."""

    def __init__(
        self,
        plan: Plan,
        trials: Sequence[Trial],
        adviser: Adviser,
        is_shown: bool,
        environment: Mapping[str, str],
    ):
        """`trials`: those that have begun before."""
        self._plan, self._adviser = plan, adviser
        self._command, self._settings = plan.command, plan.settings
        self._folder = plan.command.folder
        self._is_shown, self._environment = is_shown, environment
        self._trials = {trial.number: trial for trial in trials}  # that have begun
        self._again: deque[int] = deque()  # that have to go on
        self._free = [*plan.shares]
        self._running: dict[Share, Running] = {}
        self._pruned: set[int] = set()  # that were asked to stop because they are given up
        self._broken = Counter[int]()  # how often each broke off
        self._requests = 0  # to stop
        self._is_stopping = False
        self._fault = ""  # that ends the search

    def run(self) -> list[Trial]:
        """Runs until all trials have ended, or until it is stopped. Returns them, the best
        first."""
        plan = self._plan
        self.say(f"{plan.num_trials} trials, {len(plan.shares)} at a time, in {self._folder}")
        for trial in [*self._trials.values()]:
            if trial.has_ended or self._finish(trial):
                continue
            self._again.append(trial.number)
            if is_held(trial.folder):
                self.say(f"{trial.name} is still saved by the start before: waiting for its end")
        with self._signals():
            while self._has_work():
                self._start_some()
                time.sleep(TICK_S)
                self._look()
        return ranked([*self._trials.values()], self._settings.metric)

    def check_complete(self) -> None:
        """Raises InputError, or Preempted after a signal: the search was stopped."""
        if self._fault:
            raise InputError(self._fault)
        if self._is_stopping:
            self.say("stopped on request; to continue, give the same command")
            raise Preempted(Preempted.STATUS)

    # -- trials ------------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        if self._running:
            return True
        is_left = bool(self._again) or len(self._trials) < self._plan.num_trials
        if is_left and not self._free and not self._fault:
            self._fault = "no host answers any more; the same command continues the search"
        return is_left and not self._is_stopping and not self._fault

    def _start_some(self) -> None:
        """Starts trials on the shares that are free, those first that have begun before."""
        # of a start that was killed: they save, and still have cores and GPUs
        if any(is_held(self._trials[number].folder) for number in self._again):
            return
        for share in [*self._free]:
            if self._is_stopping or self._fault:
                return
            trial = self._next()
            if trial is None:
                return
            try:
                self._command.check(trial.values)
            except InputError as error:  # values that contradict each other
                self._end(replace(trial, state=FAILED, error=str(error)))
            else:
                self._free.remove(share)
                self._start(trial, share)

    def _next(self) -> Trial | None:
        if self._again:
            return self._trials[self._again.popleft()]
        # a user may remove the folder of a trial, which is then tried again
        missing = (number for number in range(self._plan.num_trials) if number not in self._trials)
        number = next(missing, None)
        if number is None:
            return None
        values = self._adviser.values(number)
        trial = Trial(self._folder / folder_name(number, values), number, values)
        self._write(trial)
        return trial

    def _start(self, trial: Trial, share: Share) -> None:
        settings = self._settings
        options = {
            "-H": share.hosts_flag,
            "-p": settings.ssh_port,
            "--mpi-args": settings.mpi_args,
        }
        ranks = settings.ranks_per_trial
        words = self._command.words(trial.values, trial.folder)
        variables = {**os.environ, **self._environment, **share.variables, TERMINAL: "0"}
        variables[COMMAND] = self._command.shown(trial.values, trial.folder, ranks)
        with (trial.folder / LOG).open("ab") as log:
            launched = Launched(launch_command(words, ranks, options), variables, log)
        self._running[share] = Running(trial, launched)
        self.say(f"{trial.name} starts on {share}: {trial.text}")

    def _look(self) -> None:
        """Sees to trials that have ended, that are to be given up, and to requests to stop."""
        self._pass_on_requests()
        for share, running in [*self._running.items()]:
            status = running.launched.process.poll()
            if status is not None:
                del self._running[share]
                self._free.append(share)
                self._ended(share, running, status)
            elif self._settings.prune and running.trial.number not in self._pruned:
                trial = running.trial
                scores = measured_so_far(trial, self._settings.metric)
                if self._adviser.is_hopeless(trial.number, scores):
                    self._pruned.add(trial.number)
                    running.launched.process.send_signal(signal.SIGINT)

    def _ended(self, share: Share, running: Running, status: int) -> None:
        """Decides what the end of a trial's process means."""
        trial, error = running.trial, running.launched.error()
        if status == 0 and self._finish(trial):
            return
        if trial.number in self._pruned and not self._is_stopping:
            scores = measured_so_far(trial, self._settings.metric)
            self._end(replace(trial, state=PRUNED, measured=scores))
        elif MAKE_ROOM in error:  # no fault of the trial's: others would have it too
            self._fault = f"{trial.name}: {error}"
            self._stop()
        elif error.startswith(NO_ANSWER):
            self._free.remove(share)
            self.say(f"{share} is left out: {error}")
            self._again.appendleft(trial.number)
        elif self._is_stopping or self._fault:
            self._again.appendleft(trial.number)
        elif status == 0:
            self._end(replace(trial, state=FAILED, error="it has left no result.json"))
        elif error and status in FINAL and HELD not in error:
            self._end(replace(trial, state=FAILED, error=error))
        else:
            self._broke_off(trial, error or last_line(trial.folder / LOG, status))

    def _broke_off(self, trial: Trial, reason: str) -> None:
        self._broken[trial.number] += 1
        times, restarts = self._broken[trial.number], self._settings.restarts
        if times > restarts:
            self._end(replace(trial, state=FAILED, error=reason))
            return
        self.say(f"{trial.name} broke off: {reason}; restart {times} of {restarts}")
        self._again.appendleft(trial.number)

    def _finish(self, trial: Trial) -> bool:
        """Takes what a complete training has found; whether it is complete."""
        done = ended(trial, self._settings.metric)
        if done is None:
            return False
        self._end(done)
        return True

    def _end(self, trial: Trial) -> None:
        self._write(trial)
        self._adviser.learn(trial)
        num_ended = sum(each.has_ended for each in self._trials.values())
        score = f", score {trial.score:.4f}" if trial.score is not None else ""
        error = f": {trial.error}" if trial.error else ""
        place = f"{num_ended} of {self._plan.num_trials}"
        self.say(f"{trial.name} {trial.state}{score} ({place}){error}")
        keep_best(self._plan, [*self._trials.values()])

    def _write(self, trial: Trial) -> None:
        trial.folder.mkdir(exist_ok=True)
        replaced(trial.folder / TRIAL, write_json, trial.as_json())
        self._trials[trial.number] = trial

    # -- stopping ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """A `with` block in which signals ask the trials to save and stop; those that come later
        end them at once. Notebooks and scripts get their handlers back."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                    before[number] = signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for running in self._running.values():  # after an error
                running.launched.process.send_signal(signal.SIGINT)
                running.launched.process.wait()

    def _on_signal(self, number: int, frame: object) -> None:
        self._requests += 1

    def _pass_on_requests(self) -> None:
        if self._requests:
            self._requests = 0
            is_first = not self._is_stopping
            self._is_stopping = True
            self.say(
                "the trials save and stop; another signal ends them at once"
                if is_first
                else "the trials end at once"
            )
            self._stop()

    def _stop(self) -> None:
        for running in self._running.values():
            running.launched.process.send_signal(signal.SIGINT)

    def say(self, text: str) -> None:
        if self._is_shown:
            stream = sys.stdout if "ipykernel" in sys.modules else sys.stderr
            with contextlib.suppress(OSError):  # nobody reads it any more
                print(f"bert-search: {masked(text)}", file=stream, flush=True)


def is_held(folder: Path) -> bool:
    """Whether a run still writes a folder."""
    try:
        with (folder / LOCK).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        pass
    return False


def last_line(log: Path, status: int) -> str:
    """What a trial printed last."""
    lines = log.read_text(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return f"exit status {status}: {said[-1][:LONGEST_LINE]}" if said else f"exit status {status}"
