"""bert-corpus: text -> shards of pretraining examples (Google's create_pretraining_data.py), and vocabularies.

    bert-corpus vocab  --input_file 'text/*.txt' --output_dir vocab --vocab_size 30522
    bert-corpus build  --input_file 'text/*.txt' --output_dir shards --vocab_file vocab/vocab.txt
    bert-corpus verify --input_dir shards

Under mpirun the ranks share the work; --output_dir must be on a file system that all of them see.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ringbert.errors import InputError
from ringbert.settings import setting
from tasks import flags
from tasks import job as start

if TYPE_CHECKING:
    from bert.corpus.build import Settings
    from bert.corpus.documents import Source
    from bert.text.tokenizer import Tokenizer
    from distributed.world import World

USER_ERRORS = (InputError, OSError)
FILES = "text, JSON lines (.jsonl .ndjson .json) or Parquet, also .gz and .zst: globs, separated by commas"


@dataclass(frozen=True, kw_only=True)
class InputFlags:
    """Which text, and how it is read."""

    input_file: str | None = setting(None, FILES, "input")
    dataset_name: str | None = setting(
        None, "instead: a hub data set, or a folder that `datasets` reads; split train", "input"
    )
    dataset_config: str | None = setting(None, "its configuration, for one that has several", "input")
    text_column: str = setting("text", "column or key of the text, in all but plain text", "input")
    split_sentences: bool = setting(
        False,
        "the text is running text: the lines of a paragraph are joined and cut into sentences; a blank line or "
        "one shorter than 40 characters ends a paragraph. Default: one sentence per line",
        "input",
    )
    document_separator: Literal["blank", "blanks", "file"] = setting(
        "blank",
        "what ends a document of plain text: a blank line, two or more (chapters of books whose paragraphs are "
        "separated by one), or only the end of the file. Documents are cut after 1 MiB",
        "input",
    )


@dataclass(frozen=True, kw_only=True)
class BuildConfig(InputFlags):
    """Makes shards of examples; the same command goes on after a kill."""

    output_dir: str = setting("", "folder of the shards; needed", "output", aliases=("output_file",))
    num_shards: int | None = setting(
        None, "files; default: one for each 67 million tokens, up to 16 for less", "output"
    )
    num_workers: int | None = setting(None, "processes of each rank; default: its cores", "output")
    format: Literal["arrow", "tfrecord"] = setting("arrow", "of the shards; tfrecord is Google's", "output")

    vocab_file: str | None = setting(None, "WordPiece vocabulary, or ids for --spm_model_file", "vocabulary")
    spm_model_file: str | None = setting(None, "SentencePiece model", "vocabulary")
    model: str | None = setting(None, "instead: hub name or folder of a model", "vocabulary")
    do_lower_case: bool | None = setting(
        None,
        "lower-case and strip accents; default: as the model's folder says, else true for WordPiece",
        "vocabulary",
    )
    allow_unknown: bool = setting(False, "go on with more than 10 % [UNK]", "vocabulary")

    max_seq_length: int = setting(128, "tokens of an example, [CLS] and [SEP] included", "examples")
    next_sentence: bool = setting(
        True,
        "examples for next-sentence prediction by Google's rules; --nonext_sentence: rows filled to the last "
        "token with consecutive sentences, [SEP] between documents",
        "examples",
    )
    short_seq_prob: float = setting(0.1, "share of documents with a shorter target length", "examples")
    dupe_factor: int | None = setting(
        None,
        "times that the corpus is gone through; default: 1 with dynamic masks, 10 with static ones",
        "examples",
    )
    random_seed: int = setting(12345, "of every random choice", "examples")

    masking: Literal["dynamic", "static"] | None = setting(
        None,
        "dynamic: drawn anew when read, by the flags below unless bert-pretraining gets others; static: in the "
        "shards. Default: dynamic, for tfrecord static",
        "masks",
    )
    masked_lm_prob: float = setting(0.15, "share of the tokens to predict", "masks")
    max_predictions_per_seq: int = setting(20, "most predictions of an example", "masks")
    do_whole_word_mask: bool = setting(False, "mask all pieces of a word together", "masks")

    def __post_init__(self):
        _check_input(self)
        if not self.output_dir:
            raise ValueError("--output_dir is needed: the folder of the shards")
        if self.num_workers is not None and self.num_workers < 1:
            raise ValueError(f"--num_workers is {self.num_workers}, needed is at least 1")
        settings(self)


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """Checks a corpus against its manifest: every byte, rows, ids."""

    input_dir: str = setting("", "folder that bert-corpus build wrote; needed", "input")

    def __post_init__(self):
        if not self.input_dir:
            raise ValueError("--input_dir is needed: a folder that bert-corpus build wrote")


@dataclass(frozen=True, kw_only=True)
class VocabConfig(InputFlags):
    """Trains a WordPiece vocabulary, or a SentencePiece model (unigram, bpe)."""

    output_dir: str = setting("", "folder of the vocabulary; needed", "output")
    kind: Literal["wordpiece", "unigram", "bpe"] = setting(
        "wordpiece", "unigram and bpe: SentencePiece", "training"
    )
    vocab_size: int = setting(30522, "entries, special tokens included", "training")
    do_lower_case: bool | None = setting(
        None, "lower-case and strip accents; default: true for wordpiece", "training"
    )
    min_frequency: int = setting(2, "least occurrences of a pair that is merged (wordpiece)", "training")
    character_coverage: float = setting(
        0.9995, "share of the characters that get a piece (SentencePiece)", "training"
    )
    max_bytes: int | None = setting(
        None, "train on a sample of about this size: evenly spread parts of the corpus", "training"
    )

    def __post_init__(self):
        _check_input(self)
        if not self.output_dir:
            raise ValueError("--output_dir is needed: the folder of the vocabulary")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ValueError(f"--max_bytes is {self.max_bytes}, needed is at least 1")


def _check_input(config: InputFlags) -> None:
    if (config.input_file is None) == (config.dataset_name is None):
        raise ValueError("one of --input_file and --dataset_name is needed")


def main(argv: Sequence[str] | None = None) -> None:
    commands: dict[str, type] = {"build": BuildConfig, "verify": VerifyConfig, "vocab": VocabConfig}
    config: Any
    name, config = flags.parse_command(commands, argv, prog="bert-corpus", description=str(__doc__))
    start.check_packages()
    start.set_environment()
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
        raise InputError(
            f"--output_dir {config.output_dir} is a file; needed is a folder, for shards and a manifest"
        )
    if "tfrecord" in Path(config.output_dir).suffix and config.format == "arrow":
        world.say(f"note: {config.output_dir} becomes a folder of Arrow shards; --format tfrecord writes Google's")
    with Workers(config.num_workers or _cores(world), world.say) as workers:
        from bert.corpus import build as corpus

        manifest = corpus.build(
            source(config),
            settings(config),
            _tokenizer(config, world),
            Path(config.output_dir).expanduser(),
            workers=workers,
            share=(world.rank, world.size),
            barrier=world.barrier,
            allow_unknown=config.allow_unknown,
            say=world.say,
        )
    counts = manifest["counts"]
    world.say(
        f"{config.output_dir}: {counts['documents']:,} documents, {counts['sentences']:,} sentences, "
        f"{counts['tokens']:,} tokens ({counts['unknown_share']:.2%} [UNK]) -> {counts['examples']:,} examples "
        f"in {len(manifest['shards'])} shard{'s' * (len(manifest['shards']) > 1)}"
    )


def verify(config: VerifyConfig) -> None:
    """Raises InputError that names the damaged shards."""
    from bert.corpus import build as corpus

    manifest, problems = corpus.verify(Path(config.input_dir).expanduser())
    if problems:
        raise InputError("; ".join(problems))
    shards, counts = manifest["shards"], manifest["counts"]
    print(f"{config.input_dir}: {len(shards)} shards, {counts['examples']:,} examples: intact")


def train_vocabulary(config: VocabConfig) -> None:
    """Trains on the sentences of the input and says what was written."""
    from bert.text import vocabulary

    lower_case = config.kind == "wordpiece" if config.do_lower_case is None else config.do_lower_case
    written = vocabulary.train(
        _sample(source(config), config.max_bytes),
        Path(config.output_dir).expanduser(),
        config.kind,
        config.vocab_size,
        do_lower_case=lower_case,
        min_frequency=config.min_frequency,
        character_coverage=config.character_coverage,
    )
    print(f"{written}: {config.kind}, {config.vocab_size:,} entries")


def source(config: InputFlags) -> "Source":
    """The input as bert/documents.py takes it."""
    from bert.corpus.documents import Source

    return Source(
        config.input_file,
        config.dataset_name,
        config.text_column,
        config.split_sentences,
        config.document_separator,
        config.dataset_config,
    )


def settings(config: BuildConfig) -> "Settings":
    """What decides the examples. Raises InputError (a ValueError): a value out of its range."""
    from bert.corpus.builder import Settings

    return Settings(
        max_seq_length=config.max_seq_length,
        next_sentence=config.next_sentence,
        short_seq_prob=config.short_seq_prob,
        format=config.format,
        masking=config.masking or ("static" if config.format == "tfrecord" else "dynamic"),
        dupe_factor=config.dupe_factor,
        masked_lm_prob=config.masked_lm_prob,
        max_predictions_per_seq=config.max_predictions_per_seq,
        do_whole_word_mask=config.do_whole_word_mask,
        random_seed=config.random_seed,
        num_shards=config.num_shards,
    )


def _tokenizer(config: BuildConfig, world: "World") -> "Tokenizer":
    from bert import weights
    from bert.text import tokenizer

    folder = world.on_each_machine(weights.find, config.model) if config.model else None
    if folder is not None and not folder.is_dir():
        folder = folder.parent  # of a TensorFlow checkpoint
    return tokenizer.load(
        config.vocab_file, folder, config.do_lower_case, config.model or "", config.spm_model_file
    )


def _world(program: str) -> "World":
    """MPI is joined only where a launcher started several processes."""
    from distributed.world import LAUNCHER_SIZES, World

    sizes = [os.environ.get(name, "") for name in LAUNCHER_SIZES]
    if any(size.isdigit() and int(size) > 1 for size in sizes):
        return World.join(None, program=program, user_errors=USER_ERRORS)
    return World(program=program, user_errors=USER_ERRORS)


def _cores(world: "World") -> int:
    return world.threads if world.size > 1 else len(os.sched_getaffinity(0))


def _sample(text: "Source", max_bytes: int | None) -> Iterator[str]:
    """The sentences of the corpus, or those at the start of each unit, so that they are about `max_bytes`."""
    from bert.corpus.documents import documents, find_units

    units, _ = find_units(text)
    share = len(units) if max_bytes is None else max(1, min(len(units), max_bytes >> 16))
    chosen = [units[number * len(units) // share] for number in range(share)]
    for unit in chosen:
        left = float("inf") if max_bytes is None else max_bytes / share
        for sentence in itertools.chain.from_iterable(documents(unit, text)):
            if left <= 0:
                break
            yield sentence
            left -= len(sentence.encode())


if __name__ == "__main__":
    main()
