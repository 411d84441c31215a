"""Where a run starts: the model's configuration, its tokenizer, its weights, and perhaps a
checkpoint."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from bert import configuration, hub, weights
from bert.configuration import BertConfig
from bert.heads import Head
from bert.model import Bert
from bert.text import tokenizer
from bert.text.tokenizer import Tokenizer
from distributed.checkpoint import checkpoint_at, newest_intact
from distributed.optimizer import broadcast_variables
from distributed.plan import State
from distributed.run import Run
from distributed.world import World
from ringbase import manifest
from ringbase.errors import InputError, shortened
from ringbase.files import read_json
from tasks.runs import history
from tasks.runs.environment import result_file
from tasks.runs.job import Job
from tasks.runs.settings import ModelSettings, ProgramConfig
from tasks.runs.trained import CHECKPOINTS, settings_of

DATA = "training data (digest)"  # among the settings of a checkpoint
Config = TypeVar("Config", bound=ProgramConfig)
# Gives the start of a run what the task knows. On rank 0.
Completed = Callable[[Config, "Start", Run], "Start"]
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "*.model")


@dataclass(frozen=True)
class Start:
    """Where a run starts. Rank 0 finds it out and sends it to all ranks."""

    bert_config: BertConfig
    tokenizer: Tokenizer | None = None  # None if the data are already token ids
    weights: Path | None = None  # a folder or a TensorFlow checkpoint; None for initial values
    checkpoint: Path | None = None  # to continue from, with its `state`
    state: State | None = None
    reason: str = "initial values"  # where the weights come from, for messages
    commit: str | None = None  # of the weights, if they are the hub's
    # which keep their initial values although `weights` has them
    fresh_tensors: tuple[str, ...] = ()
    moments: Path | None = None  # a checkpoint whose optimizer's moments a new run takes over

    @property
    def words(self) -> Tokenizer:
        """The tokenizer of a program that needs one."""
        assert self.tokenizer is not None
        return self.tokenizer

    def settings(self) -> Mapping:
        """The settings that the weights were trained with; empty if nobody knows. On rank 0."""
        return settings_of(self.weights) if self.weights else {}

    def model(self, head: Head) -> Bert:
        """A model of this configuration, without values: `load`, or a training, gives it some."""
        return Bert(self.bert_config, head, seed=None)

    def load(self, model: Bert, world: World, run: Run) -> int | None:
        """Gives a model on every rank the trained weights, for predictions: from here on the
        command is not complete. Returns the number of steps that they were trained for; None if
        they are not those of a checkpoint."""
        assert self.weights is not None
        steps = self.state.step if self.state else None
        world.on_first(history.begin, run, world, "prediction", self.reason, steps or 0, {})
        run.remove(result_file(trains=False))
        load_on_all(model, self.weights, world, run)
        return steps

    def check_settings(self, settings: Mapping, job: Job) -> None:
        """Raises InputError for the first setting that differs from the checkpoint's, with both
        values, or for other training data with what made them so; and how to train on. On rank
        0."""
        saved = self.state.settings if self.state else settings
        for name in dict.fromkeys([*saved, *settings]):
            before, now = saved.get(name), settings.get(name)
            if before == now:
                continue
            difference = f"{name} = {before}, this command has {now}"
            if name == DATA:
                difference = f"other training data: {self._change_of_data(job.flags_of_data)}"
            moments = ""
            if "init_moments" in job.config:  # which some programs have
                moments = ", and --init_moments to keep the optimizer's moments"
            raise InputError(
                f"{self.checkpoint} holds a run with {difference}: give the same value, or --resume"
                " never to start from the beginning; to train on from its weights, give another"
                f" --output_dir and this checkpoint as --init_checkpoint{moments}"
            )

    def _change_of_data(self, flags: Mapping) -> str:
        """What may have changed since the checkpoint: the tokenizer, flags, or files."""
        assert self.checkpoint is not None
        if self.tokenizer:
            saved, own = tokenizer.load(folder=self.checkpoint), self.tokenizer
            if saved.lower_case != own.lower_case:
                return f"--do_lower_case was {saved.lower_case}, now it is {own.lower_case}"
            if saved.digest != own.digest:
                return (
                    f"{own.source} is another vocabulary than the run's (--vocab_file,"
                    " --spm_model_file)"
                )
        data = [f"--{name} {flags[name]}" for name in history.DATA_FLAGS if flags.get(name)]
        content = f"the content of {', '.join(data)}, or RingBERT's version"
        changed = []
        for name, (old, new) in history.changes(self.checkpoint.parent.parent, flags).items():
            if not name.startswith(history.NOT_TRAINED_ON):
                changed.append(f"--{name} was {old}, now it is {new}")
        return f"{', '.join(changed)}; or {content}" if changed else content


def load_on_all(model: Bert, source: Path, world: World, run: Run) -> None:
    """Gives a model on every rank the weights in a folder or TensorFlow checkpoint."""

    def load():
        loaded = weights.load(model, source)
        run.say(f"weights: {loaded}")

    world.on_first(load)
    broadcast_variables(model.trainable_variables, world)


@dataclass(frozen=True)
class Needs:
    """What a program needs from the files of its model."""

    max_seq_length: int  # the number of positions that the model must have
    tokenizer: bool = True  # False if the data are already token ids
    # with a vocabulary, if neither the flags nor the weights have one
    tokenizer_folder: Path | None = None


def start_of_run(
    config: Config, job: Job, needs: Needs, completed: Completed[Config] | None = None
) -> Start:
    """Where a run starts, on every rank, with what the task adds. Raises as `find_start` and
    `completed`."""
    resume = config.training.resume
    if job.goes_on and resume == "never":
        resume = "auto"

    def find() -> Start:
        start = find_start(config.model, resume, job.run, config.do_train, needs)
        return completed(config, start, job.run) if completed else start

    return job.world.on_first(find)


def find_start(config: ModelSettings, resume: str, run: Run, trains: bool, needs: Needs) -> Start:
    """Where the run in `run.folder` starts. Takes the first of these that exists: the run's newest
    intact checkpoint, that of `--resume FOLDER`, `--init_checkpoint`, `--model`, initial values.
    Called on rank 0.

    Without training (`trains` is False) it takes the best checkpoint of the run, if evaluations
    have shown it.

    Raises InputError: there is no configuration or vocabulary; they do not fit each other or the
    flags; the folder
      holds another program's run.
    """
    checkpoint = newest_checkpoint(resume, run)
    if checkpoint is None and not (trains or config.model or config.init_checkpoint):
        raise InputError(
            f"no trained run in --output_dir {run.folder}{models_in(run.folder)}: give the folder"
            " of one, or --model, or --init_checkpoint"
        )
    if checkpoint is None:
        foreign = [str(path) for path in run.folder.glob("model.ckpt-*.index")]
        if foreign:
            last = max(foreign, key=lambda name: (len(name), name))  # of the highest step
            prefix = last.removesuffix(".index")
            raise InputError(
                f"--output_dir {run.folder} holds a TensorFlow 1 run, which cannot be continued:"
                f" give another --output_dir, and --init_checkpoint {prefix} to start from its"
                " weights"
            )
        return start_of_model(config, run.say, needs)
    path, state = checkpoint
    if not trains and state.best:
        path, state = checkpoint_at(path.parent, state.best[0])
    commit = None
    # it only tells where the weights come from
    with contextlib.suppress(InputError, KeyError, TypeError):
        commit = read_json(path.parent.parent / "run.json")["hub_commits"]["model"]
    bert_config, words = _configuration_and_tokenizer(config, path, run.say, needs)
    reason = f"checkpoint {path}, step {state.step} of {state.steps}"
    return Start(
        bert_config, words, path, checkpoint=path, state=state, reason=reason, commit=commit
    )


def start_of_model(config: ModelSettings, say: Callable[[str], None], needs: Needs) -> Start:
    """The start that the flags name; ignores checkpoints. Called on rank 0. Raises as
    `find_start`."""
    flag = "init_checkpoint" if config.init_checkpoint else "model"
    named = config.init_checkpoint or config.model
    source = hub.find(named, config.model_revision) if named else None
    if source is not None and (source / manifest.NAME).exists():  # a run's checkpoint
        try:
            manifest.check_intact(source)
        except InputError as error:
            raise InputError(f"--{flag} {named} is damaged: {error}") from None
    commit = hub.commit_of(source) if source is not None else None
    reason = f"--{flag} {named}" if named else "initial values"
    if commit:
        reason += f", commit {commit}"
    bert_config, words = _configuration_and_tokenizer(config, source, say, needs)
    return Start(bert_config, words, source, reason=reason, commit=commit)


def models_in(folder: Path) -> str:
    """Where the folder of a run, or of runs with several seeds, has models; "" for other
    folders."""
    of_seeds = sorted(folder.glob("seed-*/model/config.json"))
    models = [str(file.parent) for file in (*folder.glob("model/config.json"), *of_seeds)]
    return f", but models are in {shortened(models)}" if models else ""


def _configuration_and_tokenizer(
    config: ModelSettings, source: Path | None, say: Callable[[str], None], needs: Needs
) -> tuple[BertConfig, Tokenizer | None]:
    """Those of the flags, else of the weights in `source`; the tokenizer else of
    `needs.tokenizer_folder`."""
    bert_config, tokens = None, config.tokenizer
    if config.bert_config_file:
        bert_config = configuration.config_from_file(config.bert_config_file, say)
    elif source is not None:
        bert_config = configuration.read_config(source, say)
    if bert_config is None:
        place = "" if source is None else f" in {source}{models_in(source)}"
        raise InputError(
            f"no model configuration{place}: give --bert_config_file, or --model with a folder or"
            " hub name that has one"
        )
    if needs.max_seq_length > bert_config.num_positions:
        raise InputError(
            f"--max_seq_length must be at most the model's {bert_config.num_positions} positions, "
            f"got {needs.max_seq_length}"
        )
    folder = source if source is None or source.is_dir() else source.parent
    in_folder = folder is not None and any(any(folder.glob(name)) for name in TOKENIZER_FILES)
    if not (needs.tokenizer or in_folder or tokens.vocab_file or tokens.spm_model_file):
        say("note: without --vocab_file or --model the model is saved without its vocabulary")
        return bert_config, None
    if not in_folder and needs.tokenizer_folder:
        folder = needs.tokenizer_folder
    words = tokenizer.load(
        tokens.vocab_file,
        folder,
        tokens.do_lower_case,
        config.init_checkpoint or config.model or "",
        tokens.spm_model_file,
    )
    if words.case_problem:
        say(f"warning: {words.case_problem}")
    if bert_config.first_position and words.pad_id != (pad := bert_config.pad_token_id):
        raise InputError(
            f"{words.source} has padding as id {words.pad_id}, the model's configuration as {pad},"
            f" after which {bert_config.model_type} counts positions: they do not belong together"
        )
    sizes = (
        f"{words.source} has {words.vocab_size} entries, the model's configuration"
        f" {bert_config.vocab_size}"
    )
    if words.vocab_size > bert_config.vocab_size:
        raise InputError(f"{sizes}: --vocab_file does not belong to this model")
    if words.vocab_size < bert_config.vocab_size:
        say(f"warning: {sizes}: the others are never used")
    return replace(bert_config, gets_types=words.has_types), words


def newest_checkpoint(resume: str, run: Run) -> tuple[Path, State] | None:
    """The newest intact checkpoint of a run's folder, else of the folder that `--resume FOLDER`
    names. Raises InputError: that one has none, or there are checkpoints but none is intact."""
    if resume == "never":
        return None
    try:
        own = newest_intact(run.folder / CHECKPOINTS, run.say)
    except InputError as error:
        raise InputError(
            f"{error}: repair one, or give another --output_dir, or --resume never to start from"
            " the beginning and keep them under another name"
        ) from None
    if own is not None or resume == "auto":  # this run's own progress comes first
        return own
    other = Path(resume).expanduser()
    if checkpoint := newest_intact(other, run.say) or newest_intact(other / CHECKPOINTS, run.say):
        return checkpoint
    raise InputError(
        f"--resume must be auto, never or the folder of a run, got {resume}, which has no intact"
        " checkpoint"
    )
