"""Where a run starts: the model's configuration, its tokenizer, its weights, and perhaps a checkpoint."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import BertConfig

from bert import configuration, hub, weights
from bert.text import tokenizer
from bert.text.tokenizer import Tokenizer
from distributed.checkpoint import checkpoint_at, newest_intact
from distributed.plan import State
from distributed.run import Run
from ringbase import manifest
from ringbase.errors import InputError
from ringbase.json_files import read_json, read_object
from tasks.settings import ModelSettings

CHECKPOINTS = "checkpoints"
TASK_FILE = "task.json"  # of a model: the settings that prediction needs
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "*.model")


@dataclass(frozen=True)
class Start:
    """Where a run starts. Rank 0 finds it out and sends it to all ranks.

    Attributes:
      bert_config: the model's configuration.
      tokenizer: None if the data are already token ids.
      weights: a folder or a TensorFlow checkpoint; None for initial values.
      checkpoint, state: the checkpoint to continue from, and its training state; both None for a new run.
      reason: where these weights come from, for messages.
      fresh_tensors: tensors that keep their initial values although `weights` has them.
      moments: a checkpoint whose optimizer's moments a new run takes over.
      commit: the hub's commit of the weights; None if they are not the hub's.
    """

    bert_config: BertConfig
    tokenizer: Tokenizer | None = None
    weights: Path | None = None
    checkpoint: Path | None = None
    state: State | None = None
    reason: str = "initial values"
    fresh_tensors: tuple[str, ...] = ()
    moments: Path | None = None
    commit: str | None = None

    @property
    def words(self) -> Tokenizer:
        """The tokenizer of a program that needs one."""
        assert self.tokenizer is not None
        return self.tokenizer

    def continues(self, checkpoints: Path) -> bool:
        """Whether the run goes on in the folder of its own checkpoints."""
        return self.checkpoint is not None and self.checkpoint.parent == checkpoints

    def check_settings(self, settings: Mapping[str, object]) -> None:
        """Raises InputError, with both values, for the first setting that differs from the checkpoint's."""
        saved = self.state.settings if self.state else settings
        for name in dict.fromkeys([*saved, *settings]):
            if saved.get(name) != settings.get(name):
                raise InputError(
                    f"{self.checkpoint} holds a run with {name} = {saved.get(name)}, this command has "
                    f"{settings.get(name)}: give the same value, another --output_dir, or --resume never to start "
                    "from the beginning"
                )


@dataclass(frozen=True)
class Needs:
    """What a program needs from the files of its model.

    Attributes:
      max_seq_length: the number of positions that the model must have.
      tokenizer: False if the data are already token ids.
      tokenizer_folder: where to find a vocabulary if neither the flags nor the weights have one.
    """

    max_seq_length: int
    tokenizer: bool = True
    tokenizer_folder: Path | None = None


def find_start(config: ModelSettings, resume: str, run: Run, trains: bool, needs: Needs) -> Start:
    """Where the run in `run.folder` starts. Takes the first of these that exists: the run's newest intact
    checkpoint, that of `--resume FOLDER`, `--init_checkpoint`, `--model`, initial values. Called on rank 0.

    Without training (`trains` is False) it takes the best checkpoint of the run, if evaluations have shown it.

    Raises InputError: there is no configuration or vocabulary; they do not fit each other or the flags; the folder
      holds another program's run.
    """
    checkpoint = newest_checkpoint(resume, run.folder, run.say)
    if checkpoint is None:
        refuse_other_runs(run.folder)
        return start_of_model(config, run.say, needs)
    path, state = checkpoint
    if not trains and state.best:
        path, state = checkpoint_at(path.parent, state.best[0])
    reason = f"checkpoint {path}, step {state.step} of {state.steps}"
    start = _start(config, path, run.say, needs)
    return replace(start, checkpoint=path, state=state, reason=reason, commit=_commit_of_run(path.parent.parent))


def start_of_model(config: ModelSettings, say: Callable[[str], None], needs: Needs) -> Start:
    """The start that the flags name; ignores checkpoints. Called on rank 0. Raises as `find_start`."""
    flag = "init_checkpoint" if config.init_checkpoint else "model"
    named = config.init_checkpoint or config.model
    source = weights.find(named, config.model_revision) if named else None
    if source is not None and (source / manifest.NAME).exists():  # a run's checkpoint
        try:
            manifest.check_intact(source)
        except InputError as error:
            raise InputError(f"--{flag} {named} is damaged: {error}") from None
    commit = hub.commit_of(source) if source is not None else None
    reason = f"--{flag} {named}{f', commit {commit}' if commit else ''}" if named else "initial values"
    return replace(_start(config, source, say, needs), reason=reason, commit=commit)


def settings_of(weights: Path) -> Mapping[str, Any]:
    """The settings that a model or checkpoint was trained with, by flag: those of its task.json, else of the
    run.json of its run; empty without both. Raises InputError: the file is damaged."""
    if (weights / TASK_FILE).is_file():
        return read_object(weights / TASK_FILE)
    parent = weights.resolve().parent
    run = (parent if weights.name == "model" else parent.parent) / "run.json"
    if (weights.name != "model" and parent.name != CHECKPOINTS) or not run.is_file():
        return {}
    config = read_object(run).get("config")
    if not isinstance(config, dict):
        raise InputError(f"{run}: damaged: there is no object 'config' in it")
    return config


def _commit_of_run(folder: Path) -> str | None:
    """The hub's commit of the weights that a run started from, according to its run.json."""
    with contextlib.suppress(InputError, KeyError, TypeError):  # it only tells where the weights come from
        return read_json(folder / "run.json")["hub_commits"]["model"]
    return None


def _start(config: ModelSettings, source: Path | None, say: Callable[[str], None], needs: Needs) -> Start:
    """The start whose weights are in `source`, with its configuration and tokenizer."""
    bert_config = None
    if config.bert_config_file:
        bert_config = configuration.config_from_file(config.bert_config_file, say)
    elif source is not None:
        bert_config = configuration.read_config(source, say)
    if bert_config is None:
        raise InputError(
            "no model configuration: give --bert_config_file, or --model with a folder or hub name that has one"
        )
    if needs.max_seq_length > bert_config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length must be at most the model's {bert_config.max_position_embeddings} positions, "
            f"got {needs.max_seq_length}"
        )
    folder = source if source is None or source.is_dir() else source.parent
    return Start(bert_config, _tokenizer(config, folder, bert_config.vocab_size, say, needs), source)


def _tokenizer(
    config: ModelSettings, folder: Path | None, vocab_size: int, say: Callable[[str], None], needs: Needs
) -> Tokenizer | None:
    """The tokenizer of the flags, else of the model's folder, else of `needs.tokenizer_folder`."""
    in_folder = folder is not None and any(any(folder.glob(name)) for name in TOKENIZER_FILES)
    if not (needs.tokenizer or in_folder or config.tokenizer.vocab_file or config.tokenizer.spm_model_file):
        say("note: without --vocab_file or --model the model is saved without its vocabulary")
        return None
    words = tokenizer.load(
        config.tokenizer.vocab_file,
        folder if in_folder or needs.tokenizer_folder is None else needs.tokenizer_folder,
        config.tokenizer.do_lower_case,
        config.init_checkpoint or config.model or "",
        config.tokenizer.spm_model_file,
    )
    if words.case_problem:
        say(f"warning: {words.case_problem}")
    sizes = f"{words.source} has {words.vocab_size} entries, the model's configuration {vocab_size}"
    if words.vocab_size > vocab_size:
        raise InputError(f"{sizes}: --vocab_file does not belong to this model")
    if words.vocab_size < vocab_size:
        say(f"warning: {sizes}: the others are never used")
    return words


def refuse_other_runs(folder: Path) -> None:
    """Raises InputError when a folder holds a run of TensorFlow 1."""
    foreign = [str(path).removesuffix(".index") for path in folder.glob("model.ckpt-*.index")]
    if foreign:
        prefix = max(foreign, key=lambda name: (len(name), name))  # the highest step
        raise InputError(
            f"--output_dir {folder} holds a TensorFlow 1 run, which cannot be continued: give another "
            f"--output_dir, and --init_checkpoint {prefix} to start from its weights"
        )


def newest_checkpoint(resume: str, folder: Path, say: Callable[[str], None]) -> tuple[Path, State] | None:
    """The newest intact checkpoint of a run's folder, else of the folder that `--resume FOLDER` names.

    Raises InputError when `--resume FOLDER` has none, or when there are checkpoints but none is intact.
    """
    if resume == "never":
        return None
    try:
        own = newest_intact(folder / CHECKPOINTS, say)
    except InputError as error:
        raise InputError(
            f"{error}: repair one, or give another --output_dir, or --resume never to start from the beginning "
            "and keep them under another name"
        ) from None
    if own is not None or resume == "auto":  # this run's own progress comes first
        return own
    other = Path(resume).expanduser()
    checkpoint = newest_intact(other, say) or newest_intact(other / CHECKPOINTS, say)
    if checkpoint is None:
        raise InputError(
            f"--resume must be auto, never or the folder of a run, got {resume}, which has no intact checkpoint"
        )
    return checkpoint
