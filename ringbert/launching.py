"""The programs from Python and from notebooks: `launch(Squad(…), ranks=2)`.

The ranks are processes of their own under `bert-launch`. So this process never joins MPI, may be a
notebook's, and may have loaded TensorFlow. What the ranks print is shown here.
"""

import codecs
import html
import os
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from distributed.launcher import CALLER, COMMAND, TERMINAL, columns, launched_size, name_of_pipe
from ringbase.errors import InputError, as_arguments
from ringbase.files import read_object
from ringbase.settings import Field, fields_of, flat
from tasks.commands import CLASSIFIER, EMBEDDER, PRETRAINING, SQUAD, TAGGER
from tasks.runs import flags
from tasks.runs.commands import Command
from tasks.runs.environment import result_file
from tasks.runs.remote import local_folder
from tasks.runs.resolve.plan import planned

PYTHON = (sys.executable, "-P", "-m")  # whatever lies in the working directory
LAST_LINES = 20  # of a crashed program, in the message
MOST_CHARACTERS = 1 << 16  # that are kept of what is printed


class LaunchedJob:
    """A program with its flags as arguments, whose values are attributes. What is wrong raises
    InputError."""

    program: str  # the name of what runs
    argv: list[str]
    output_dir: str
    do_train: bool
    files: list[str]  # of data in memory

    @property
    def command(self) -> list[str]:
        """What each rank runs."""
        raise NotImplementedError

    def plan(self, ranks: int = 1) -> list[dict[str, Any]]:
        """What each run of the job would do on so many ranks, as `--plan` prints it: `plan` has the
        steps of a training, or `plan_about`, of which the number of rows is an estimate. Nothing is
        trained, and no model is downloaded. Raises InputError as `launch` would.
        """
        raise NotImplementedError

    def _read(self, arguments: Mapping[str, Any], fields: Sequence[Field] | None) -> None:
        """Makes the arguments flags. The flags of a script are its own: `fields` is None."""
        known = {name: field for field in fields or () for name in field.names}
        tables = {name for name, field in known.items() if field.is_table}
        if fields is None:
            tables = {name for name in arguments if name.endswith("_file")}
        values = dict(arguments)
        self.files = []
        for name, value in arguments.items():
            if name in tables and not isinstance(value, str | os.PathLike | None):
                from ringbert.in_memory import file_of  # pyarrow takes 0.3 s, and most have files

                values[name] = file_of(value, name)
                self.files.append(values[name])
        shown_values = ", ".join(f"{name}={value!r}" for name, value in values.items())
        self._call = f"ringbert.{type(self).__name__}({shown_values})"
        self.argv = flags.argv_of(values, fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {shlex.join([self.program, *self.argv])}"


class CommandJob(LaunchedJob):
    """One of RingBERT's programs."""

    of: ClassVar[Command]
    __signature__: ClassVar[Signature]

    def __init_subclass__(cls, of: Command) -> None:
        cls.of, cls.program = of, of.name
        fields = arguments_of(of.config)
        parts = [f"{part} by {' or '.join(names)}" for part, names in of.implied.items()]
        summary, _, example = str(cls.__doc__).partition("\n\n")
        text = (
            f"{summary} Unless a job names parts of its work, they are implied: {', '.join(parts)}."
        )
        cls.__doc__ = f"{flags.help_of(fields, of.name, text)}\n\n{example}"
        # for help and editors
        cls.__signature__ = Signature([*map(_parameter_of, fields)])

    def __init__(self, /, **arguments) -> None:
        fields = arguments_of(self.of.config)
        self._read(arguments, fields)
        try:
            given = flags.read_command_line(self.argv, fields)
            if not given.keys() & self.of.implied:
                for part, names in self.of.implied.items():
                    if any(map(given.get, names)):
                        self.argv.append(f"--{part}")
                        given[part] = True
            self._config: Any = flags.configured(self.of.config, given)
        except ValueError as error:
            raise InputError(as_arguments(str(error))) from None
        values = flat(self._config)
        vars(self).update((field.name, values[field.name]) for field in fields)

    @property
    def command(self) -> list[str]:
        return [*PYTHON, self.of.package, *self.argv]

    def plan(self, ranks: int = 1) -> list[dict[str, Any]]:
        return planned(self.of.program, self._config, ranks, _warn)


def arguments_of(settings: Any) -> tuple[Field, ...]:
    """The flags that are arguments of a job: `--plan` is a method."""
    return tuple(field for field in fields_of(settings) if field.name != "plan")


def _warn(text: str) -> None:
    """Shows the warnings among what a plan says."""
    if text.startswith("warning: "):
        warnings.warn(text.removeprefix("warning: "), stacklevel=2)


def _parameter_of(field):
    """A flag as a keyword of its job."""
    kind = field.type
    if field.is_list:
        kind |= list
    if field.is_table:
        kind = Any  # a file, or data in memory
    default = Parameter.empty if field.is_required else field.default
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


class Squad(CommandJob, of=SQUAD):
    """Fine-tunes BERT on SQuAD, answers questions and scores the answers.

    >>> Squad(output_dir="run", model="minilm", train_file="train.json", num_train_epochs=2)
    Squad: bert-squad --output_dir=run --model=minilm --train_file=train.json \
--num_train_epochs=2 --do_train
    """


class Classification(CommandJob, of=CLASSIFIER):
    """Fine-tunes BERT to label texts or pairs of texts.

    >>> Classification(output_dir="run", model="minilm", task_name="MRPC", data_dir="glue_data")
    Classification: bert-classifier --output_dir=run --model=minilm --task_name=MRPC \
--data_dir=glue_data --do_train --do_eval

    The files may be data in memory: a data frame of pandas, a list of dicts, a `datasets.Dataset`.

    >>> reviews = [{"text": "fine", "label": "good"}, {"text": "dull", "label": "bad"}]
    >>> Classification(output_dir="run", model="minilm", train_file=reviews, seeds=[1, 2])
    Classification: bert-classifier --output_dir=run --model=minilm --train_file=...parquet \
--seeds=1,2 --do_train
    """


class Tagging(CommandJob, of=TAGGER):
    """Fine-tunes BERT to tag words or characters, such as named entities.

    >>> Tagging(output_dir="run", model="minilm", train_file="a.conll", dev_file="b.conll")
    Tagging: bert-tagger --output_dir=run --model=minilm --train_file=a.conll \
--dev_file=b.conll --do_train --do_eval

    The files may be data in memory, with lists of words and tags as `tokens` and `ner_tags`; see
    `Classification`.
    """


class Embedding(CommandJob, of=EMBEDDER):
    """Trains BERT to embed texts as vectors.

    >>> Embedding(output_dir="run", model="minilm", train_file="pairs.csv")
    Embedding: bert-embedder --output_dir=run --model=minilm --train_file=pairs.csv --do_train

    The files may be data in memory, with columns `anchor` and `positive`; see `Classification`.
    """


class Pretraining(CommandJob, of=PRETRAINING):
    """Pretrains BERT on the shards of a corpus.

    >>> Pretraining(output_dir="run", bert_config_file="bert.json", input_file="corpus/*")
    Pretraining: bert-pretraining --output_dir=run --bert_config_file=bert.json \
'--input_file=corpus/*' --do_train
    """


class Script(LaunchedJob):
    """A program of one's own, whose task is a `tasks.runs.task.Task`:
    `Script("own_task.py", output_dir="stars", do_train=True, …)`. Its flags are keywords.

    >>> Script("own_task.py", output_dir="stars", do_train=True, train_file="reviews.csv")
    Script: own_task --output_dir=stars --do_train=True --train_file=reviews.csv
    """

    def __init__(self, path: str | os.PathLike[str], /, **arguments) -> None:
        self.path = Path(path).expanduser()
        if not self.path.is_file():
            raise InputError(f"{path}: no such file")
        if not isinstance(arguments.get("output_dir"), str):
            raise InputError("output_dir must be given, the folder of the run")
        self.program = self.path.stem
        self._read(arguments, None)
        self.output_dir = arguments["output_dir"]
        self.do_train = bool(arguments.get("do_train"))

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-P", str(self.path), *self.argv]

    def plan(self, ranks: int = 1) -> list[dict[str, Any]]:
        raise InputError(f"only the script knows its task: run {self.path} with --plan")


@dataclass(frozen=True)
class Result:
    """What a job has found.

    >>> Result({"f1": 0.88}, Path("run"), 12.0, 2, {})
    f1 = 0.8800
    (12 s on 2 ranks, run)
    """

    # those of eval_results.txt, means over several seeds; empty if nothing was scored
    scores: dict[str, float]
    output_dir: Path  # of the run; its "model" is the trained model
    seconds: float  # without the time until the ranks had started
    ranks: int  # at the end
    details: dict[str, Any]  # all of result.json, or of predict_result.json without training

    def __repr__(self) -> str:
        shown = [f"{name} = {value:.4f}" for name, value in self.scores.items()] or ["no scores"]
        count = f"{self.ranks} rank{'s' * (self.ranks != 1)}"
        return "\n".join([*shown, f"({self.seconds:.0f} s on {count}, {self.output_dir})"])

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        rows = "".join(f"<tr><th>{name}<td>{value:.4f}" for name, value in self.scores.items())
        summary = html.escape(repr(self).splitlines()[-1])
        return f"<table>{rows}</table>{summary}"


def launch(
    job: LaunchedJob,
    ranks: int = 1,
    *,
    hosts: str | Mapping[str, int] | None = None,
    ssh_port: int | None = None,
    restarts: int = 0,
    elastic: bool = False,
    mpi_args: str | Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    progress: bool = True,
) -> Result:
    """Runs a job on its ranks, shows what they print, and returns the scores when it is complete.

    A job that was interrupted continues from its newest checkpoint when it is launched again; one
    that is complete is not trained again. Interrupting (Ctrl-C, or a notebook's stop button) saves
    a training and ends the ranks, then raises KeyboardInterrupt; a second interrupt ends them at
    once. The ranks also end with this process.

    The arguments are the options of bert-launch. `hosts` may be {"node1": 4, "node2": 4},
    `environment` are variables for the ranks besides this process's, and without `progress` nothing
    is shown.

    Raises InputError, with the program's message, if the job, its files or these arguments cannot
    be used, and RuntimeError, with the last lines that were printed, if the job ends otherwise.

    >>> job = Squad(output_dir="run", model="minilm", train_file="none.json", max_seq_length=128)
    >>> launch(job, progress=False)
    Traceback (most recent call last):
        ...
    ringbase.errors.InputError: train_file none.json: No such file or directory
    """
    if not isinstance(job, LaunchedJob):
        raise InputError(
            "job must be ringbert.Squad(…), Classification(…), Tagging(…), Embedding(…),"
            f" Pretraining(…) or Script(…), got {job!r:.80}"
        )
    setting, size = launched_size()
    if size > 1:
        advice = "start this script without mpirun or srun"
        raise InputError(f"{setting}: launch starts the ranks itself: {advice}")
    if isinstance(hosts, Mapping):
        hosts = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
    if not isinstance(mpi_args, str):
        mpi_args = shlex.join(mpi_args)
    options = {"-np": ranks, "--restarts": restarts, "-H": hosts, "-p": ssh_port}
    options["--mpi-args"] = mpi_args
    argv = [f"{flag}={value}" for flag, value in options.items() if value is not None]
    if elastic:
        argv.append("--elastic")
    command = [*PYTHON, "distributed.launch", *argv, "--", *job.command]
    variables = {**os.environ, **(environment or {})}
    variables[COMMAND] = f"ringbert.launch({job._call}, ranks={ranks})"
    ended = run(command, variables, progress)
    if ended.is_interrupted:
        raise KeyboardInterrupt(
            f"{job.program} was interrupted; launch it again to continue what it has saved"
        )
    if ended.status:
        message = ended.error
        if message:
            for file in job.files:
                message = message.replace(file, "(data in memory)")
            raise InputError(as_arguments(message))
        last = "\n".join(ended.printed.splitlines()[-LAST_LINES:])
        raise RuntimeError(
            f"{job.program} ended with exit status {ended.status}; its last lines:\n{last}"
        )
    folder = local_folder(job.output_dir).resolve()
    details = read_object(folder / result_file(job.do_train))
    return Result(details["scores"], folder, details["seconds"], details["world_size"], details)


class Ended(NamedTuple):
    """How bert-launch has ended."""

    status: int
    error: str  # that it, or the program, told; "" if none
    printed: str  # the last characters
    is_interrupted: bool  # by the user, which sends SIGINT


def run(command: Sequence[str], environment: dict[str, str], is_shown: bool) -> Ended:
    """Runs bert-launch and shows what is printed: in a notebook on standard output, which is not
    red."""
    in_notebook = "ipykernel" in sys.modules
    stream = sys.stdout if in_notebook else sys.stderr
    width = 0
    if is_shown and in_notebook:
        width = 1
    elif is_shown and stream.isatty():
        width = columns(stream.fileno())
    environment[TERMINAL] = str(width)
    errors, end_of_launcher = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    environment[CALLER] = name_of_pipe(end_of_launcher)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    printed, is_interrupted = "", False
    # in a group of its own: a terminal and Jupyter send SIGINT to all of theirs
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    ) as process:
        assert process.stdout is not None
        while True:
            try:
                while data := os.read(process.stdout.fileno(), 65536):
                    text = decoder.decode(data)
                    printed = (printed + text)[-MOST_CHARACTERS:]
                    if is_shown:
                        stream.write(text)
                        stream.flush()
                status = process.wait()
                break
            except KeyboardInterrupt:
                is_interrupted = True
                process.send_signal(signal.SIGINT)
    os.close(end_of_launcher)
    with os.fdopen(errors, "rb") as file:
        error = file.read().decode()
    return Ended(status, error, printed, is_interrupted)
