"""Where the model comes from: its configuration and tokenizer, and the weights that a run starts from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ringbert.errors import InputError
from ringbert.settings import setting

if TYPE_CHECKING:
    from transformers import BertConfig

    from bert.text.tokenizer import Tokenizer
    from distributed.checkpoint import State
    from distributed.plan import Plan
    from distributed.run import Run

CHECKPOINTS = "checkpoints"
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "*.model")


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Configuration, vocabulary and weights: all at once by `--model`, or each by its own flag."""

    model: str | None = setting(
        None,
        "hub name or folder: configuration, vocabulary and weights at once",
        "model",
        aliases=("model_name_or_path",),
    )
    bert_config_file: str | None = setting(None, "BERT configuration (JSON), instead of the model's own", "model")
    vocab_file: str | None = setting(
        None,
        "WordPiece vocabulary, instead of the model's own; with --spm_model_file the ids of its pieces",
        "model",
    )
    spm_model_file: str | None = setting(None, "SentencePiece model, instead of a WordPiece vocabulary", "model")
    init_checkpoint: str | None = setting(None, "weights: bert_model.ckpt or a Hugging Face folder", "model")
    do_lower_case: bool | None = setting(
        None, "lower-case and strip accents; default: the tokenizer file's, else true for WordPiece", "model"
    )


class StartFlags(Protocol):
    """The flags that decide where a run starts."""

    @property
    def output_dir(self) -> str: ...
    @property
    def resume(self) -> str: ...
    @property
    def init_checkpoint(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...


class ModelFileFlags(StartFlags, Protocol):
    """Those, and what the configuration and the tokenizer are found by."""

    @property
    def bert_config_file(self) -> str | None: ...
    @property
    def vocab_file(self) -> str | None: ...
    @property
    def spm_model_file(self) -> str | None: ...
    @property
    def do_lower_case(self) -> bool | None: ...
    @property
    def max_seq_length(self) -> int: ...


@dataclass(frozen=True)
class ModelFiles:
    """What rank 0 found out about the model, the same on all ranks; no tokenizer where data are ids."""

    bert_config: "BertConfig"
    tokenizer: "Tokenizer | None"

    @property
    def words(self) -> "Tokenizer":
        """The tokenizer of a program that needs one."""
        assert self.tokenizer is not None
        return self.tokenizer


def find_model_files(
    config: ModelFileFlags, run: "Run", tokenizer_folder: Path | None = None, needs_tokenizer: bool = True
) -> ModelFiles:
    """The configuration and the tokenizer: from their own flags, else the folder of the weights. On rank 0.

    `tokenizer_folder` is asked when neither has a vocabulary: a corpus holds the one that it was made with.
    Raises InputError when there is none, or they do not fit each other or the flags.
    """
    from bert import weights
    from bert.text import tokenizer

    source = newest_checkpoint(config, run.say)
    given = config.init_checkpoint or config.model
    if source is None and given:
        source = weights.find(given)
    bert_config = weights.config_from_file(config.bert_config_file) if config.bert_config_file else None
    if bert_config is None and source is not None:
        bert_config = weights.read_config(source)
    if bert_config is None:
        raise InputError(
            "no model configuration: give --bert_config_file, or --model with a folder or hub name that has one"
        )
    folder = source if source is None or source.is_dir() else source.parent
    if config.max_seq_length > bert_config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length {config.max_seq_length} exceeds the model's "
            f"{bert_config.max_position_embeddings} positions"
        )
    has_tokenizer = folder is not None and any(any(folder.glob(name)) for name in TOKENIZER_FILES)
    if not (needs_tokenizer or has_tokenizer or config.vocab_file or config.spm_model_file):
        run.say("note: without --vocab_file or --model the model is saved without its vocabulary")
        return ModelFiles(bert_config, None)
    if tokenizer_folder is not None and not has_tokenizer:
        folder = tokenizer_folder
    words = tokenizer.load(
        config.vocab_file,
        folder,
        config.do_lower_case,
        str(config.init_checkpoint or config.model or ""),
        config.spm_model_file,
    )
    if tokenizer.lacks_capitals(words):
        run.say(f"warning: {words.source} has no capital letters, which become [UNK]: --do_lower_case is meant")
    if words.vocab_size > bert_config.vocab_size:
        raise InputError(
            f"{words.source} has {words.vocab_size} entries, the model's configuration {bert_config.vocab_size}: "
            "--vocab_file does not belong to this model"
        )
    if words.vocab_size < bert_config.vocab_size:
        run.say(
            f"warning: {words.source} has {words.vocab_size} entries, the model's configuration "
            f"{bert_config.vocab_size}: the rest is never used"
        )
    return ModelFiles(bert_config, words)


@dataclass(frozen=True)
class Start:
    """Where a run starts: the weights' source (None: from scratch), and the checkpoint to go on from."""

    weights: Path | None
    checkpoint: Path | None = None
    state: "State | None" = None
    why: str = "initial values"


def find_start(config: StartFlags, settings: Mapping[str, object] | None, run: "Run") -> Start:
    """The first that applies: newest intact checkpoint of `output_dir` (or of `--resume PATH`),
    `--init_checkpoint`, `--model`, initial values. Called on rank 0.

    `settings` None means prediction, for which a checkpoint of any settings will do.
    Raises InputError: a changed setting, or a folder of another program's run.
    """
    from bert import weights
    from distributed.checkpoint import check_settings, checkpoint_at, read_state

    output_dir = Path(config.output_dir).expanduser()
    checkpoint = newest_checkpoint(config, run.say)
    if checkpoint is not None:
        state = read_state(checkpoint)
        if settings is not None:
            check_settings(state.settings, settings, checkpoint)
        elif state.best:
            checkpoint = checkpoint_at(checkpoint.parent, state.best[0])
            state = read_state(checkpoint)
        return Start(checkpoint, checkpoint, state, f"checkpoint {checkpoint}, step {state.step} of {state.steps}")
    foreign = [str(path).removesuffix(".index") for path in output_dir.glob("model.ckpt-*.index")]
    if foreign:
        prefix = max(foreign, key=lambda name: (len(name), name))  # the highest step
        raise InputError(
            f"--output_dir {output_dir} holds a TensorFlow 1 run, which cannot be continued: give another "
            f"--output_dir, and --init_checkpoint {prefix} to start from its weights"
        )
    if config.init_checkpoint:
        return Start(weights.find(config.init_checkpoint), why=f"--init_checkpoint {config.init_checkpoint}")
    if config.model:
        return Start(weights.find(config.model), why=f"--model {config.model}")
    return Start(None)


def newest_checkpoint(config: StartFlags, say: Callable[[str], None]) -> Path | None:
    """The newest intact checkpoint of `output_dir`, else of the folder that `--resume PATH` names; on rank 0.

    Raises InputError when `--resume PATH` is needed and has none.
    """
    from distributed.checkpoint import newest_intact

    own = newest_intact(Path(config.output_dir).expanduser() / CHECKPOINTS, say)
    if config.resume in ("auto", "never"):
        return own if config.resume == "auto" else None
    given = Path(config.resume).expanduser()
    # This run's own progress comes first: the same command, given again, goes on.
    found = own or newest_intact(given, say) or newest_intact(given / CHECKPOINTS, say)
    if found is None:
        raise InputError(f"--resume {config.resume}: no intact checkpoint there (auto, never, or a run's folder)")
    return found


def resumed_step(state: "State", plan: "Plan") -> int:
    """The step of this plan that corresponds to a checkpoint, written perhaps with another number of ranks."""
    if state.step >= state.steps:
        return plan.steps
    if state.global_batch_size == plan.global_batch_size:
        return min(state.step, plan.steps)
    return min(-(-state.position // plan.global_batch_size), plan.steps)
