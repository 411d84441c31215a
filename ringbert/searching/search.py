"""A search: starts trials on the shares of its slots, as each becomes free, and keeps what they
find."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from distributed.launch import FINAL, NO_ANSWER
from distributed.launcher import COMMAND, TERMINAL
from distributed.run import LOCK, MAKE_ROOM, Run, replaced
from distributed.world import World
from ringbase.errors import InputError, Preempted
from ringbase.files import read_json, read_object, remove_folder, replace_folder, write_json
from ringbase.secrets import masked
from ringbase.settings import shown
from ringbert.launching import Launched, launch_command
from ringbert.searching.command import TrialCommand
from ringbert.searching.settings import SearchSettings
from ringbert.searching.slots import Share, shares_of
from ringbert.searching.space import Formula, Grid, Random, Space
from ringbert.searching.study import Adviser, ByFormula, ByOptuna
from tasks.runs.report.page import write_page
from tasks.runs.report.trials import (
    FAILED,
    PRUNED,
    SEARCH,
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
BEST, AGAIN = "best", "command.txt"
TICK_S = 0.2
LONGEST_LINE = 500  # of a log, as the reason of a failure


class Running(NamedTuple):
    """A trial that runs."""

    trial: Trial
    launched: Launched


@dataclass
class Search:
    """A search in the folder of its command."""

    command: TrialCommand
    space: Space
    settings: SearchSettings
    is_shown: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises InputError: the space, the slots or the command cannot be used."""
        settings = self.settings
        if not self.space:
            raise InputError(
                "nothing differs between the trials: give a flag several values, such as"
                " --learning_rate 2e-5,3e-5, or a file space.toml"
            )
        formulas: dict[str, Callable[[Space, int], Formula]] = {"grid": Grid, "random": Random}
        self._formula: Formula | None = None
        most: float = 0
        if settings.sampler in formulas:
            formula = formulas[settings.sampler](self.space, settings.seed)
            self._formula, most = formula, formula.most
            self.command.check(formula.values(0))
        if settings.trials is None and not 0 < most < float("inf"):
            raise InputError(f"--sampler {settings.sampler} needs --trials N")
        self._num_trials = settings.trials or int(most)
        if most and self._num_trials > most:
            raise InputError(f"--trials {self._num_trials}: the grid has {most} combinations")
        self._free = shares_of(settings.each_host, settings.num_proc, settings.ranks_per_trial)
        self._num_shares = len(self._free)
        self._running: dict[Share, Running] = {}
        self._trials: dict[int, Trial] = {}  # that have begun
        self._again: deque[int] = deque()  # that have to go on
        self._pruned: set[int] = set()  # that were asked to stop because they are given up
        self._broken = Counter[int]()  # how often each broke off
        self._requests = 0  # to stop
        self._is_stopping = False
        self._fault = ""  # that ends the search

    # -- the folder --------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return self.command.folder

    def run(self) -> list[Trial]:
        """Runs what is left of the search. Returns all its trials, the best first.

        Raises InputError: the folder is another search's, or nothing can be written there;
        Preempted after a signal, when what ran has saved.
        """
        run = Run(self.folder, World())
        run.lock()
        with contextlib.closing(run):
            self._read_folder()
            self._say(f"{self._num_trials} trials, {self._num_shares} at a time, in {self.folder}")
            with self._signals():
                while self._has_work():
                    self._start_some()
                    time.sleep(TICK_S)
                    self._look()
            self._keep_best()
            trials = ranked([*self._trials.values()], self.settings.metric)
            if any(trial.has_ended for trial in trials):
                self._say(f"report: {write_page([self.folder])}")
        if self._fault:
            raise InputError(self._fault)
        if self._is_stopping:
            self._say("stopped on request; to continue, give the same command")
            raise Preempted(Preempted.STATUS)
        return trials

    def _read_folder(self) -> None:
        """Raises InputError: it holds another search, or a single run."""
        facts = self._facts()
        file = self.folder / SEARCH
        if file.is_file():
            before = read_object(file)
            for name, value in facts.items():
                if before.get(name) != value:
                    raise InputError(
                        f"{self.folder} holds a search with {name} {shown(before.get(name))}, this"
                        f" one has {shown(value)}: give the same, or another --output_dir"
                    )
        elif (self.folder / "run.json").exists():
            raise InputError(f"{self.folder} holds a single run: give another --output_dir")
        replaced(file, write_json, facts)
        for trial in trials_in(self.folder):
            self._trials[trial.number] = trial
        self._adviser = self._made_adviser()
        for trial in [*self._trials.values()]:
            if not trial.has_ended and not self._finish(trial):
                self._again.append(trial.number)

    def _facts(self) -> dict[str, Any]:
        """What must not change when the search goes on."""
        settings = self.settings
        facts = {
            "command": [self.command.program, *self.command.argv],
            "space": self.space.as_json(),
            "sampler": settings.sampler,
            "seed": settings.seed,
            "metric": settings.metric,
            "prune": settings.prune,
            "ranks_per_trial": settings.ranks_per_trial,
        }
        return masked(as_read(facts))

    def _made_adviser(self) -> Adviser:
        settings = self.settings
        if self._formula and not settings.prune:
            return ByFormula(self._formula)
        return ByOptuna(
            self.folder,
            self.space,
            settings.seed,
            is_loss(settings.metric),
            self._formula,
            [*self._trials.values()],
        )

    # -- trials ------------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        if self._running:
            return True
        is_left = bool(self._again) or len(self._trials) < self._num_trials
        if is_left and not self._free and not self._fault:
            self._fault = "no host answers any more; the same command continues the search"
        return is_left and not self._is_stopping and not self._fault

    def _start_some(self) -> None:
        """Starts trials on the shares that are free, those first that have begun before."""
        for share in [*self._free]:
            if self._is_stopping or self._fault:
                return
            trial = self._next()
            if trial is None:
                return
            try:
                self.command.check(trial.values)
            except InputError as error:  # values that contradict each other
                self._end(replace(trial, state=FAILED, error=str(error)))
            else:
                self._free.remove(share)
                self._start(trial, share)

    def _next(self) -> Trial | None:
        for begun in [*self._again]:
            if not is_held(self._trials[begun].folder):  # by a start that was killed, and saves
                self._again.remove(begun)
                return self._trials[begun]
        # a user may remove the folder of a trial, which is then tried again
        missing = (number for number in range(self._num_trials) if number not in self._trials)
        number = next(missing, None)
        if number is None:
            return None
        values = self._adviser.values(number)
        trial = Trial(self.folder / folder_name(number, values), number, values)
        self._write(trial)
        return trial

    def _start(self, trial: Trial, share: Share) -> None:
        settings = self.settings
        options = {
            "-H": share.hosts_flag,
            "-p": settings.ssh_port,
            "--mpi-args": settings.mpi_args,
        }
        ranks = settings.ranks_per_trial
        words = self.command.words(trial.values, trial.folder)
        variables = {**os.environ, **self.environment, **share.variables, TERMINAL: "0"}
        variables[COMMAND] = self.command.shown(trial.values, trial.folder, ranks)
        with (trial.folder / LOG).open("ab") as log:
            launched = Launched(launch_command(words, ranks, options), variables, log)
        self._running[share] = Running(trial, launched)
        self._say(f"{trial.name} starts on {share}: {trial.text}")

    def _look(self) -> None:
        """Sees to trials that have ended, that are to be given up, and to requests to stop."""
        self._pass_on_requests()
        for share, running in [*self._running.items()]:
            status = running.launched.process.poll()
            if status is not None:
                del self._running[share]
                self._free.append(share)
                self._ended(share, running, status)
            elif self.settings.prune and running.trial.number not in self._pruned:
                trial = running.trial
                scores = measured_so_far(trial, self.settings.metric)
                if self._adviser.is_hopeless(trial.number, scores):
                    self._pruned.add(trial.number)
                    running.launched.process.send_signal(signal.SIGINT)

    def _ended(self, share: Share, running: Running, status: int) -> None:
        """Decides what the end of a trial's process means."""
        trial, error = running.trial, running.launched.error()
        if status == 0 and self._finish(trial):
            return
        if trial.number in self._pruned and not self._is_stopping:
            scores = measured_so_far(trial, self.settings.metric)
            self._end(replace(trial, state=PRUNED, measured=scores))
        elif MAKE_ROOM in error:  # no fault of the trial's: others would have it too
            self._fault = f"{trial.name}: {error}"
            self._stop()
        elif error.startswith(NO_ANSWER):
            self._free.remove(share)
            self._say(f"{share} is left out: {error}")
            self._again.appendleft(trial.number)
        elif self._is_stopping:
            self._again.appendleft(trial.number)
        elif status == 0:
            self._end(replace(trial, state=FAILED, error="it has left no result.json"))
        elif error and status in FINAL:
            self._end(replace(trial, state=FAILED, error=error))
        else:
            self._broke_off(trial, error or last_line(trial.folder / LOG, status))

    def _broke_off(self, trial: Trial, reason: str) -> None:
        self._broken[trial.number] += 1
        times, restarts = self._broken[trial.number], self.settings.restarts
        if times > restarts:
            self._end(replace(trial, state=FAILED, error=reason))
            return
        self._say(f"{trial.name} broke off: {reason}; restart {times} of {restarts}")
        self._again.appendleft(trial.number)

    def _finish(self, trial: Trial) -> bool:
        """Takes what a complete training has found; whether it is complete."""
        done = ended(trial, self.settings.metric)
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
        place = f"{num_ended} of {self._num_trials}"
        self._say(f"{trial.name} {trial.state}{score} ({place}){error}")
        self._keep_best()

    def _write(self, trial: Trial) -> None:
        trial.folder.mkdir(exist_ok=True)
        replaced(trial.folder / TRIAL, write_json, trial.as_json())
        self._trials[trial.number] = trial

    # -- models ------------------------------------------------------------------------------------

    def _keep_best(self) -> None:
        """Copies the best model to `best/`, and removes those that are not among the best."""
        trials = ranked([*self._trials.values()], self.settings.metric)
        scored = [trial for trial in trials if trial.score is not None]
        if scored:
            self._copy_best(scored[0])
        given_up = [trial for trial in trials if trial.state == PRUNED]
        for trial in (*scored[self.settings.keep_models :], *given_up):
            for run in trial.runs():
                for name in ("model", "checkpoints"):
                    remove_folder(run / name)

    def _copy_best(self, trial: Trial) -> None:
        best = self.folder / BEST
        note = best / TRIAL
        if note.is_file() and read_json(note) == as_read(trial.as_json()):
            return
        models = [run / "model" for run in best_runs(trial, self.settings.metric)]
        model = next(filter(Path.is_dir, models), None)

        def fill(folder: Path) -> None:
            if model is not None:
                shutil.copytree(model, folder / "model")
            again = self.command.shown(trial.values, "again", self.settings.ranks_per_trial)
            (folder / AGAIN).write_text(f"{masked(again)}\n")
            write_json(folder / TRIAL, trial.as_json())

        replaced(best, replace_folder, fill)

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
            self._say(
                "the trials save and stop; another signal ends them at once"
                if is_first
                else "the trials end at once"
            )
            self._stop()

    def _stop(self) -> None:
        for running in self._running.values():
            running.launched.process.send_signal(signal.SIGINT)

    def _say(self, text: str) -> None:
        if self.is_shown:
            stream = sys.stdout if "ipykernel" in sys.modules else sys.stderr
            with contextlib.suppress(OSError):  # nobody reads it any more
                print(f"bert-search: {masked(text)}", file=stream, flush=True)


def best_runs(trial: Trial, metric: str | None) -> Sequence[Path]:
    """The folders of a trial's runs, that of the best seed first."""
    runs = [Trial(run, 0, {}) for run in trial.runs()]
    done = [ended(run, metric) or run for run in runs]
    return [run.folder for run in ranked(done, metric)]


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


def as_read(value: Any) -> Any:
    """A value as JSON gives it back."""
    return json.loads(json.dumps(value, default=str))
