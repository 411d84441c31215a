"""bert-corpus: text -> shards of pretraining examples (Google's create_pretraining_data.py), and vocabularies.

    bert-corpus vocab  --input_file 'text/*.txt' --output_dir vocab --vocab_size 30522
    bert-corpus build  --input_file 'text/*.txt' --output_dir shards --vocab_file vocab/vocab.txt
    bert-corpus verify --input_dir shards

Under mpirun the ranks share the work; --output_dir must be on a file system that all of them see.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert.corpus.settings import BuildSettings, TextSettings
from bert.text.settings import TokenizerSettings, VocabularySettings
from ringbase.errors import InputError
from ringbase.settings import Settings, check_at_least, check_at_most, setting
from tasks import environment, flags

if TYPE_CHECKING:
    from bert.text.tokenizer import Tokenizer
    from distributed.world import World

USER_ERRORS = (InputError, OSError)
MOST_WORKERS = 1024
MOST_SENTENCEPIECE_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class BuildConfig(BuildSettings, TokenizerSettings):
    """Makes shards of examples; after a kill, the same command continues."""

    model: str | None = setting(
        None, "hub name or folder of a model whose vocabulary to use, instead of --vocab_file", "model"
    )
    model_revision: str | None = setting(
        None, "commit, tag or branch of the hub model that --model names", "model", shown_default="main"
    )
    num_workers: int | None = setting(
        None, "worker processes per rank", "machine", shown_default="the number of its cores"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "num_workers")
        check_at_most(self, MOST_WORKERS, "num_workers")
        if self.model_revision and not self.model:
            raise ValueError("--model_revision needs --model with a hub name")


@dataclass(frozen=True, kw_only=True)
class VerifyConfig(Settings):
    """Checks a corpus against its manifest: every byte, the numbers of examples, the token ids."""

    input_dir: str = setting(help="folder that bert-corpus build wrote", group="data")


@dataclass(frozen=True, kw_only=True)
class VocabConfig(TextSettings, VocabularySettings):
    """Trains a WordPiece vocabulary, or a SentencePiece model (unigram, bpe)."""

    output_dir: str = setting(help="folder to write the vocabulary to", group="output")
    max_bytes: int | None = setting(
        None,
        "train on a sample of about N bytes, spread evenly over the text",
        "data",
        shown_default="the whole text; 256 MiB of it for unigram and bpe, which keep it in memory",
        at_least=1,
    )

    @property
    def sample_bytes(self) -> int | None:
        """How much of the text to train on; None for all."""
        return MOST_SENTENCEPIECE_BYTES if self.max_bytes is None and self.kind != "wordpiece" else self.max_bytes


def main(argv: Sequence[str] | None = None) -> None:
    commands: dict[str, type] = {"build": BuildConfig, "verify": VerifyConfig, "vocab": VocabConfig}
    config: Any
    name, config = flags.parse_command(commands, argv, prog="bert-corpus", description=str(__doc__))
    environment.set_environment()
    with _world(f"bert-corpus {name}") as world:
        if name == "build":
            build(config, world)
        elif name == "verify":
            world.on_first(verify, config)
        else:
            world.on_first(train_vocabulary, config)


def build(config: BuildConfig, world: "World") -> None:
    """Builds the corpus on all ranks together."""
    from bert.corpus.workers import Workers

    if Path(config.output_dir).expanduser().is_file():
        raise InputError(f"--output_dir {config.output_dir} is a file: give a folder, for shards and a manifest")
    if "tfrecord" in Path(config.output_dir).suffix and config.format == "arrow":
        world.say(f"note: {config.output_dir} becomes a folder of Arrow shards; --format tfrecord writes Google's")
    with Workers(config.num_workers or _num_cores(world), world.say) as workers:
        from bert.corpus import build as corpus

        tokenizer = _tokenizer(config, world)
        if tokenizer.case_problem:
            world.say(f"warning: {tokenizer.case_problem}")
        with world.watchdog.working():  # the shares of the ranks may take hours more or less
            manifest = corpus.build(
                config,
                tokenizer,
                workers=workers,
                share=(world.rank, world.size),
                barrier=world.barrier,
                say=world.say,
            )
    counts = manifest["counts"]
    world.say(
        f"{config.output_dir}: {counts['documents']:,} documents, {counts['sentences']:,} sentences, "
        f"{counts['tokens']:,} tokens ({counts['unknown_share']:.2%} [UNK]) -> {counts['examples']:,} examples "
        f"in {len(manifest['shards'])} shard{'s' * (len(manifest['shards']) > 1)}"
    )


def verify(config: VerifyConfig) -> None:
    """Checks a corpus. Raises InputError that names the damaged shards."""
    from bert.corpus import shards

    manifest, problems = shards.verify(Path(config.input_dir).expanduser())
    if problems:
        raise InputError("; ".join(problems))
    num_shards, num_examples = len(manifest["shards"]), manifest["counts"]["examples"]
    print(f"{config.input_dir}: {num_shards} shards, {num_examples:,} examples: intact")


def train_vocabulary(config: VocabConfig) -> None:
    """Trains a vocabulary on the sentences of the input and prints what it wrote."""
    from bert.corpus.documents import sample_sentences
    from bert.text import vocabulary

    sentences = sample_sentences(config, config.sample_bytes)
    path = vocabulary.train(sentences, Path(config.output_dir).expanduser(), config)
    print(f"{path}: {config.kind}, {config.vocab_size:,} entries")


def _tokenizer(config: BuildConfig, world: "World") -> "Tokenizer":
    from bert import weights
    from bert.text import tokenizer

    folder = None
    if config.model:
        folder = world.on_each_machine(weights.find, config.model, config.model_revision)
    if folder is not None and not folder.is_dir():
        folder = folder.parent  # of a TensorFlow checkpoint
    return tokenizer.load(
        config.vocab_file, folder, config.do_lower_case, config.model or "", config.spm_model_file
    )


def _world(program: str) -> "World":
    """The ranks. MPI is started only if a launcher started several processes."""
    from distributed.environment import SIZE_VARIABLES
    from distributed.world import World

    sizes = [os.environ.get(name, "") for name in SIZE_VARIABLES]
    if any(size.isdigit() and int(size) > 1 for size in sizes):
        return World.join(None, program=program, user_errors=USER_ERRORS)
    return World(program=program, user_errors=USER_ERRORS)


def _num_cores(world: "World") -> int:
    return world.device.threads if world.size > 1 else len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
