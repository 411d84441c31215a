"""bert-export: a trained model as a TensorFlow SavedModel, or as Google's TensorFlow 1 checkpoint.

    bert-export squad_output exported --format saved_model
    bert-export squad_output checkpoint --format tf1

A SavedModel takes texts if the tokenizer is BERT's WordPiece, else token ids, and needs only TensorFlow. A run's
`model/` itself is a folder that transformers loads.
"""

import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ringbase.errors import InputError, one_line
from ringbase.settings import LONGEST_ROW, Settings, check_at_least, check_at_most, setting
from tasks import flags
from tasks.classifier.settings import ExampleSettings
from tasks.squad.settings import AnswerSettings, WindowSettings

if TYPE_CHECKING:
    import numpy as np

    from tasks.export.rows import Limits
    from tasks.export.text_graph import TextGraph
    from tasks.predictors.loading import Trained

PROGRAM = "bert-export"
EXTRA = "assets.extra"  # the folder of a SavedModel that TensorFlow leaves to its users
POOLER = ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")


@dataclass(frozen=True, kw_only=True)
class QuestionSettings(AnswerSettings, WindowSettings):
    """How contexts and answers are limited."""


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """The arguments and flags of bert-export."""

    folder: str = setting(
        help="a run's folder, its model/, a Hugging Face folder, a checkpoint or a hub name", is_positional=True
    )
    out: str = setting(help="new folder to write", is_positional=True)
    format: Literal["saved_model", "tf1"] = setting(
        "saved_model", "a TensorFlow SavedModel, or Google's TensorFlow 1 checkpoint", "output"
    )
    signature: Literal["auto", "texts", "ids"] = setting(
        "auto", "what a SavedModel takes; auto: texts if the tokenizer can be a part of the graph", "output"
    )
    max_seq_length: int | None = setting(
        None, "longest row that a SavedModel makes of texts", "output", shown_default="as in training"
    )
    model_revision: str | None = setting(
        None, "commit, tag or branch of a hub model", "data", shown_default="main"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 4, "max_seq_length")
        check_at_most(self, LONGEST_ROW, "max_seq_length")


def main(argv: Sequence[str] | None = None) -> None:
    description = "Write a trained model as a TensorFlow SavedModel, or as Google's TensorFlow 1 checkpoint."
    config = flags.parse(Config, argv, prog=PROGRAM, description=description)
    with warnings.catch_warnings(record=True) as caught:
        try:
            lines = export(config)
        except (InputError, OSError) as error:
            flags.stop(f"{PROGRAM}: error: {one_line(error)}", 1)
    for warning in caught:
        if warning.category is UserWarning:  # ours; libraries use other classes
            print(f"{PROGRAM}: warning: {warning.message}", file=sys.stderr)
    flags.stop("\n".join(lines), 0)


def export(config: Config) -> list[str]:
    """Writes the folder. Returns what to tell the user. Raises InputError."""
    from ringbase.files import replace_folder

    folder = Path(config.out).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"OUT {folder} exists already: give a new folder")
    from tasks.predictors.loading import load, place_of, start
    from tasks.predictors.messages import without_dashes

    start()
    from bert import weights

    try:
        there = weights.read(weights.find(place_of(config.folder)[0], config.model_revision))
    except InputError as error:
        raise InputError(without_dashes(str(error))) from None
    kind = kind_of(there)
    head: str = "features" if kind == "encoder" else kind
    if config.format == "tf1" and kind == "encoder" and set(weights.HEAD_TENSORS["pretraining"]) <= set(there):
        head = "pretraining"
    trained = load(config.folder, head, "fp32", config.model_revision)
    if config.format == "tf1":
        from tasks.export import tf1

        tensors = {name: variable.numpy() for name, variable in trained.model.named_tensors().items()}
        tensors |= {name: there[name] for name in POOLER if name in there}
        fill = partial(tf1.save, tensors=tensors, config=trained.config, tokenizer=trained.tokenizer)
        replace_folder(folder, fill)
        notes = [f"note: {note}" for note in tf1.notes(trained.config, trained.tokenizer)]
        return [f"{folder / weights.PUBLISHED_PREFIX}: {len(tensors)} tensors", *notes]
    return export_saved_model(config, trained, kind, there, folder)


def export_saved_model(
    config: Config, trained: "Trained", kind: str, there: "Mapping[str, np.ndarray]", folder: Path
) -> list[str]:
    """Writes the SavedModel. Returns its signatures as lines."""
    import tensorflow as tf

    from ringbase.files import replace_folder
    from tasks.export.saved_model import Exported

    limits = limits_of(config, trained, kind)
    graph, reason = tokenizer_graph(config, trained)
    pooler = None
    if kind == "encoder" and POOLER[0] in there:
        pooler = {"kernel": there[POOLER[0]], "bias": there[POOLER[1]]}
    exported = Exported(trained, kind, limits, graph, pooler)
    with tempfile.TemporaryDirectory() as assets:

        def fill(new: Path) -> None:
            exported.save(new, Path(assets))
            trained.tokenizer.save(new / EXTRA)

        replace_folder(folder, fill)
    lines = [f"{folder}: a SavedModel", *([f"note: it takes token ids, not texts: {reason}"] if reason else [])]
    for name, function in exported.functions.items():
        inputs = ", ".join(spec.name for spec in tf.nest.flatten(function.structured_input_signature))
        lines.append(f"  {name}: {inputs} -> {', '.join(sorted(function.structured_outputs))}")
    return lines


def tokenizer_graph(config: Config, trained: "Trained") -> "tuple[TextGraph | None, str]":
    """The tokenizer as a graph, or None and why there is none. Raises InputError if texts are wanted."""
    from tasks.export.characters import why_not

    if config.signature == "ids":
        return None, ""
    reason = why_not(trained.tokenizer)
    if not reason:
        from tasks.export.text_graph import TextGraph

        graph = TextGraph(trained.tokenizer)
        reason = graph.difference(trained.tokenizer)
        if not reason:
            return graph, ""
    if config.signature == "texts":
        raise InputError(f"--signature texts: {trained.name} cannot take texts: {reason}")
    return None, reason


def limits_of(config: Config, trained: "Trained", kind: str) -> "Limits":
    """The settings of texts: those of the flags, else of the run, else the defaults."""
    from tasks.export.rows import Limits

    given = {"max_seq_length": config.max_seq_length}
    if kind != "span":
        return Limits(trained.settings_of(ExampleSettings, given).max_seq_length)
    settings = trained.settings_of(QuestionSettings, given, has_windows=True)
    return Limits(
        settings.max_seq_length,
        settings.max_query_length,
        settings.max_answer_length,
        settings.version_2_with_negative,
        settings.null_score_diff_threshold,
    )


def kind_of(tensors: "Mapping[str, np.ndarray]") -> Literal["span", "classifier", "encoder"]:
    """What the model is for, by the names of its tensors."""
    if "cls/squad/output_weights" in tensors:
        return "span"
    return "classifier" if "output_weights" in tensors else "encoder"


if __name__ == "__main__":
    main()
