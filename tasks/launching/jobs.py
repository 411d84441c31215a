"""What `ringbert.launch` runs: the programs' flags as typed keyword arguments."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringbase.errors import InputError
from ringbase.settings import fields_of, from_text
from tasks.classifier.program import Config as ClassifierConfig
from tasks.launching.arguments import FromPython, changed, from_python
from tasks.pretraining.program import Config as PretrainingConfig
from tasks.squad.program import Config as SquadConfig

AnyPath = str | os.PathLike[str]


if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class Paths:
        """Tells type checkers that the constructors take paths, which `from_python` turns into text."""

        output_dir: AnyPath
        model: AnyPath | None = None
        bert_config_file: AnyPath | None = None
        init_checkpoint: AnyPath | None = None
        vocab_file: AnyPath | None = None
        spm_model_file: AnyPath | None = None
        resume: AnyPath = "auto"

else:

    class Paths:
        """Nothing: the fields have text."""


@from_python(
    "bert-squad",
    "tasks.squad",
    lambda given: {
        "do_train": bool(given.get("train_file") or given.get("dataset_name")),
        "do_predict": bool(given.get("predict_file") or given.get("dataset_name")),
    },
)
@dataclass(frozen=True, kw_only=True, repr=False)
class Squad(FromPython, Paths, SquadConfig):
    """Fine-tunes BERT on SQuAD, answers questions and scores the answers, as the program bert-squad does.

    Trains if `train_file` is given and predicts if `predict_file` is given, unless `do_train` or `do_predict` says
    what to do.
    """

    if TYPE_CHECKING:
        train_file: AnyPath | None = None  # type: ignore[assignment]
        predict_file: AnyPath | None = None  # type: ignore[assignment]
        dataset_name: AnyPath | None = None  # type: ignore[assignment]


@from_python(
    "bert-classifier",
    "tasks.classifier",
    lambda given: {
        "do_train": bool(given.get("train_file") or given.get("task_name")),
        "do_eval": bool(given.get("dev_file") or given.get("task_name")),
        "do_predict": bool(given.get("predict_file")),
    },
)
@dataclass(frozen=True, kw_only=True, repr=False)
class Classification(FromPython, Paths, ClassifierConfig):
    """Fine-tunes BERT to label texts or pairs of texts, as the program bert-classifier does.

    Trains if `train_file` is given, evaluates if `dev_file` is, and predicts if `predict_file` is, unless
    `do_train`, `do_eval` or `do_predict` says what to do. With `task_name` it trains and evaluates.
    """

    if TYPE_CHECKING:
        data_dir: AnyPath | None = None  # type: ignore[assignment]
        train_file: AnyPath | None = None  # type: ignore[assignment]
        dev_file: AnyPath | None = None  # type: ignore[assignment]
        predict_file: AnyPath | None = None  # type: ignore[assignment]


@from_python(
    "bert-pretraining",
    "tasks.pretraining",
    lambda given: {"do_train": "input_file" in given, "do_eval": bool(given.get("eval_input_file"))},
)
@dataclass(frozen=True, kw_only=True, repr=False)
class Pretraining(FromPython, Paths, PretrainingConfig):
    """Pretrains BERT on the shards of a corpus, as the program bert-pretraining does.

    Trains on `input_file`, and evaluates if `eval_input_file` is given, unless `do_train` or `do_eval` says what
    to do.
    """

    if TYPE_CHECKING:
        input_file: AnyPath  # type: ignore[assignment]
        eval_input_file: AnyPath | None = None  # type: ignore[assignment]


Job = Squad | Classification | Pretraining


def argv_of(job: Job) -> list[str]:
    """The flags of the program's command line that give the same configuration."""
    types = {field.name: field.type for field in fields_of(type(job))}
    flags = []
    for name, value in changed(job).items():
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        if from_text(text, types[name]) != value:
            raise InputError(f"{name} cannot be {value!r}: on a command line it has another meaning")
        flags.append(f"--{name}={text}")
    return flags
