"""Where a run starts: which weights, configuration and tokenizer, and what a training goes on from.

Called on rank 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bert import configuration, hub
from bert.configuration import BertConfig
from bert.sizes import config_of_size
from bert.text import tokenizer
from bert.text.tokenizer import Tokenizer
from distributed.found import Found, checkpoint_at, checkpoints_in, newest_intact
from ringbase import manifest
from ringbase.errors import InputError, Unreadable
from ringbase.files import sha256
from tasks.runs.history import Entry, began_here, starts_in
from tasks.runs.resolve.past import (
    Past,
    facts_of,
    models_in,
    newest_foreign,
    origin_of,
    seeds_in,
    settings_of,
)
from tasks.runs.resolve.spec import Start
from tasks.runs.settings import ModelSettings

WEIGHTS = "model.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "*.model")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Needs:
    """What a program needs from the files of its model."""

    tokenizer: bool = True  # False if the data are already token ids
    # with a vocabulary, if neither the flags nor the weights have one
    tokenizer_folder: Path | None = None
    downloads: bool = True  # a model that only the hub has is fetched


def past_of(folder: Path, resume: str, say: Say, reads_starts: bool = True) -> tuple[Past, str]:
    """What a run's folder holds, and what `--resume` means for it: with "never" nothing of what
    other jobs have left is taken, but a run that this job has begun goes on after a restart. Raises
    InputError: it has checkpoints, but none is intact; a file is damaged."""
    if resume == "never":
        starts = _starts_in(folder, say)
        if not began_here(starts):
            anew = Past(
                folder,
                starts=tuple(starts),
                seeds=seeds_in(folder),
                foreign=newest_foreign(folder),
            )
            return anew, resume
        resume = "auto"
    try:
        return Past.of(folder, say, reads_starts), resume
    except InputError as error:
        if "intact" not in str(error):
            raise
        raise InputError(
            f"{error}: repair one, or give another --output_dir, or --resume never to start from"
            " the beginning and keep them under another name"
        ) from None


def _starts_in(folder: Path, say: Say) -> list[Entry]:
    """Those of a folder from which nothing else is taken: damage there is no reason to stop."""
    try:
        return starts_in(folder)
    except InputError as error:
        say(f"warning: not read: {error}")
        return []


def find_start(
    config: ModelSettings, resume: str, past: Past, trains: bool, needs: Needs, say: Say
) -> Start:
    """Where a run starts whose folder holds `past`. Takes the first of these that exists: what the
    folder holds, what that of `--resume FOLDER` holds, `--init_checkpoint`, `--model`, initial
    values.

    Of a folder it takes the model of a complete training, which stays as it is, else the newest
    checkpoint, or without training (`trains` is False) the best one, if evaluations have chosen
    one.

    Raises InputError: there is no configuration or vocabulary; they do not fit each other or the
    flags; the folder holds another program's run.
    """
    if resume != "never":
        if start := _of_folder(config, past, trains, needs, say):
            return start
        if resume != "auto":  # this run's own progress comes first
            return _of_other_folder(config, Path(resume).expanduser(), trains, needs, say)
    if not (trains or config.model or config.init_checkpoint):
        raise InputError(
            f"no trained run in --output_dir {past.folder}{models_in(past.folder)}: give the folder"
            " of one, or --model, or --init_checkpoint"
        )
    if past.foreign:
        raise InputError(
            f"--output_dir {past.folder} holds a TensorFlow 1 run, which cannot be continued:"
            f" give another --output_dir, and --init_checkpoint {past.foreign} to start from its"
            " weights"
        )
    return start_of_model(config, say, needs)


def _of_folder(
    config: ModelSettings, past: Past, trains: bool, needs: Needs, say: Say
) -> Start | None:
    """The start in what a folder holds; None if that is nothing to start from."""
    # A training whose settings nobody knows any more cannot be told from this command's.
    if past.is_complete and (not trains or past.fixed is not None):
        return _of_complete(config, past, needs, say)
    if past.newest is None:
        return None
    found = past.newest
    if not trains and found.state.best:
        found = checkpoint_at(found.path.parent, found.state.best[0])
    return _of_checkpoint(config, found, past, needs, say)


def _of_complete(config: ModelSettings, past: Past, needs: Needs, say: Say) -> Start:
    assert past.model is not None
    assert past.result is not None
    written = past.result.get("sha256")  # earlier versions did not say
    if written and sha256(past.model / WEIGHTS) != written:
        say(f"warning: {past.model / WEIGHTS} is not what the training wrote (its SHA-256 differs)")
    bert_config, words = _configuration_and_tokenizer(config, past.model, say, needs)
    return Start(
        bert_config,
        words,
        past.model,
        checkpoint=past.newest.path if past.newest else None,
        state=past.newest.state if past.newest else None,
        reason=f"the complete training in {past.folder}",
        commit=past.commit,
        saved=past.saved,
        fixed=past.fixed,
        result=past.result,
        steps=_steps_of(past),
    )


def _steps_of(past: Past) -> int | None:
    """The steps that the model of a complete training was trained for."""
    assert past.result is not None
    steps = past.result.get("steps")
    if steps is None and past.newest:  # of an earlier version
        state = past.newest.state
        steps = state.best[0] // state.global_batch_size if state.best else state.step
    return steps


def _of_checkpoint(
    config: ModelSettings, found: Found, past: Past, needs: Needs, say: Say
) -> Start:
    path, state = found
    bert_config, words = _configuration_and_tokenizer(config, path, say, needs)
    return Start(
        bert_config,
        words,
        path,
        checkpoint=path,
        state=state,
        reason=f"checkpoint {path}, step {state.step} of {state.steps}",
        commit=past.commit,
        saved=settings_of(path),
        fixed=state.settings,
        steps=state.step,
    )


def _of_other_folder(
    config: ModelSettings, folder: Path, trains: bool, needs: Needs, say: Say
) -> Start:
    """The start in the folder that `--resume FOLDER` names: a run's, its `checkpoints/`, or one
    checkpoint. Raises InputError: there is none."""
    if (folder / manifest.NAME).is_file():
        found = newest_intact(folder, say)
        assert found is not None  # or the error says why it is not intact
        run = found.path.resolve().parent.parent
        return _of_checkpoint(config, found, Past(run, found, facts_of(run)), needs, say)
    if checkpoints_in(folder):
        folder = folder.resolve().parent
    past = Past.of(folder, say, reads_starts=False)
    # of a complete run the newest checkpoint too: a training goes on from it
    if trains and past.newest:
        return _of_checkpoint(config, past.newest, past, needs, say)
    if not trains and (start := _of_folder(config, past, trains, needs, say)):
        return start
    raise InputError(
        f"--resume must be auto, never or the folder of a run, got {folder}, which has no intact"
        " checkpoint"
    )


def start_of_model(config: ModelSettings, say: Say, needs: Needs) -> Start:
    """The start that the flags name; ignores checkpoints. Raises as `find_start`."""
    flag = "init_checkpoint" if config.init_checkpoint else "model"
    named = config.init_checkpoint or config.model
    source = None
    if named:
        source = hub.find(named, config.model_revision, needs.downloads)
    if source is not None and (source / manifest.NAME).exists():  # a run's checkpoint
        try:
            manifest.check_intact(source)
        except Unreadable as error:
            raise InputError(f"--{flag} {named} {error}") from None
        except InputError as error:
            raise InputError(f"--{flag} {named} is damaged: {error}") from None
    commit = hub.commit_of(source) if source is not None else None
    reason = f"--{flag} {named}" if named else "initial values"
    if commit:
        reason += f", commit {commit}"
    saved: Mapping = {}
    origin = None
    if source is not None:
        saved, origin = settings_of(source), origin_of(source)
    if origin:
        step = "" if origin["step"] is None else f"step {origin['step']:,} of "
        reason += f", {step}the run in {origin['run']}"
    bert_config, words = _configuration_and_tokenizer(config, source, say, needs)
    return Start(
        bert_config, words, source, reason=reason, commit=commit, saved=saved, origin=origin
    )


def _configuration_and_tokenizer(
    config: ModelSettings, source: Path | None, say: Say, needs: Needs
) -> tuple[BertConfig, Tokenizer | None]:
    """Those of the flags, else of the weights in `source`; the tokenizer else of
    `needs.tokenizer_folder`."""
    tokens = config.tokenizer
    bert_config = _configuration(config, source, say)
    if bert_config is None and not config.model_size:
        place = "" if source is None else f" in {source}{models_in(source)}"
        raise InputError(
            f"no model configuration{place}: give --bert_config_file, or --model with a folder or"
            " hub name that has one, or --model_size for a new model"
        )
    folder = source if source is None or source.is_dir() else source.parent
    in_folder = folder is not None and any(any(folder.glob(name)) for name in TOKENIZER_FILES)
    if not (needs.tokenizer or in_folder or tokens.vocab_file or tokens.spm_model_file):
        if bert_config is None:
            raise InputError(
                f"--model_size {config.model_size} needs a vocabulary, which says how many entries"
                " the new model has: give --vocab_file or --spm_model_file"
            )
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
    if config.model_size:
        new = config_of_size(config.model_size, words.vocab_size)
        if bert_config is None:
            bert_config = new
        elif different := _other_sizes(bert_config, new):
            raise InputError(
                f"--model_size {config.model_size} is not that of the model in {source}, which has"
                f" {different}: leave --model_size out, or give another --output_dir"
            )
    assert bert_config is not None
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
    bert_config = replace(bert_config, gets_types=words.has_types, pad_token_id=words.pad_id)
    return bert_config, words


def _configuration(config: ModelSettings, source: Path | None, say: Say) -> BertConfig | None:
    """That of the flag, else of the weights in `source`; None if neither has one."""
    if config.bert_config_file:
        return configuration.config_from_file(config.bert_config_file, say)
    return None if source is None else configuration.read_config(source, say)


def _other_sizes(found: BertConfig, new: BertConfig) -> str:
    """The keys of a model that `found` has with other values than a `new` one of a published size;
    "" if there are none."""
    different = []
    for name in ("model_type", *configuration.REQUIRED):
        if getattr(found, name) != getattr(new, name):
            different.append(f"{name} {getattr(found, name)}, not {getattr(new, name)}")
    return ", ".join(different)


def check_length(max_seq_length: int, bert_config: BertConfig) -> None:
    """Raises InputError: the model has too few positions for rows of so many tokens."""
    most = bert_config.num_positions
    if max_seq_length > most:
        raise InputError(
            f"--max_seq_length must be at most the model's {most} positions, got {max_seq_length}"
        )
