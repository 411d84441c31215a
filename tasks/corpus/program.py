"""bert-corpus: builds and checks corpora, and trains vocabularies, on any number of ranks."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert import configuration, hub, tensors
from bert.corpus import build as corpus
from bert.corpus import shards
from bert.corpus.read import sample_sentences
from bert.corpus.report import lines_of
from bert.text import extension, tokenizer, vocabulary
from distributed.launcher import launched_size
from distributed.world import World
from ringbase.errors import InputError
from ringbase.files import filled_beside, read_json
from tasks.corpus.settings import BuildConfig, VerifyConfig, VocabConfig

# of a model with new words, in the order in which they are written
MODEL_FILES = ("vocab.txt", "tokenizer_config.json", "tokenizer.json", tensors.FILE, "config.json")
MOST_SHOWN = 20  # new words
MOST_SENTENCEPIECE_BYTES = 256 << 20  # unless --max_bytes is given: it keeps the text in memory


def run(name: str, config: Any) -> None:
    """Runs a command. MPI is started only if a launcher started several processes."""
    program = f"bert-corpus {name}"
    _, num_ranks = launched_size()
    with World(program=program) if num_ranks == 1 else World.join(None, program) as world:
        if name == "build":
            build(config, world)
        else:
            works: dict[str, Callable] = {"verify": verify, "vocab": train_vocabulary}
            if name == "vocab" and config.extend:
                works["vocab"] = extend_vocabulary
            world.on_first(works[name], config)


def build(config: BuildConfig, world: World) -> None:
    settings, files = config.corpus, config.tokenizer
    if settings.output_dir.endswith(".tfrecord"):
        world.say(
            f"note: {settings.output_dir} becomes a folder of Arrow shards, which bert-pretraining"
            " reads"
        )
    folder = None
    if config.model:
        folder = world.on_each_machine(hub.find, config.model, config.model_revision)
    if folder is not None and not folder.is_dir():
        folder = folder.parent  # of a TensorFlow checkpoint
    words = tokenizer.load(
        files.vocab_file, folder, files.do_lower_case, config.model or "", files.spm_model_file
    )
    if words.case_problem:
        world.say(f"warning: {words.case_problem}")
    num_cores = world.device.threads if world.size > 1 else len(os.sched_getaffinity(0))
    with world.watchdog.working():  # the shares of the ranks may take hours more or less
        num_workers = config.num_workers or num_cores
        manifest = corpus.build(settings, words, num_workers=num_workers, ranks=world)
    counts, num_shards = manifest["counts"], len(manifest["shards"])
    cut = f", {counts['cut_tokens']:,} cut off" if counts.get("cut_tokens") else ""
    world.say(
        f"{settings.output_dir}: {counts['documents']:,} documents, {counts['sentences']:,}"
        f" sentences, {counts['tokens']:,} tokens ({counts['unknown_share']:.2%} [UNK]{cut}) ->"
        f" {counts['examples']:,} examples in {num_shards} shard{'s' * (num_shards > 1)}"
    )
    path = Path(settings.output_dir).expanduser() / corpus.REPORT
    if path.is_file():  # corpora of earlier versions have none
        for line in lines_of(read_json(path)):
            world.say(f"  {line}")


def verify(config: VerifyConfig) -> None:
    """Checks a corpus. Raises InputError that names the damaged files."""
    manifest = shards.verify(Path(config.input_dir).expanduser())
    num_shards, num_examples = len(manifest["shards"]), manifest["counts"]["examples"]
    print(f"{config.input_dir}: {num_shards} shards, {num_examples:,} examples: intact")


def train_vocabulary(config: VocabConfig) -> None:
    kind, max_bytes = config.vocabulary.kind, config.max_bytes
    if kind in ("unigram", "bpe"):
        max_bytes = max_bytes or MOST_SENTENCEPIECE_BYTES
    sentences = sample_sentences(config.text, max_bytes)
    path = vocabulary.train(sentences, Path(config.output_dir).expanduser(), config.vocabulary)
    print(f"{path}: {kind}, {config.vocabulary.vocab_size:,} entries")


def extend_vocabulary(config: VocabConfig) -> None:
    """Writes a model whose vocabulary has words of the text as new entries."""
    source = hub.find(str(config.extend))
    bert_config = configuration.read_config(source) if source.is_dir() else None
    if bert_config is None:
        raise InputError(
            f"--extend {config.extend}: new words need a folder with config.json and"
            f" {tensors.FILE}; a training with --init_checkpoint writes one, its model/"
        )
    output_dir = Path(config.output_dir).expanduser()
    vocabulary.refuse_present(output_dir, MODEL_FILES)
    words = tokenizer.load(folder=source)
    sentences = sample_sentences(config.text, config.max_bytes)
    least = config.vocabulary.min_frequency
    new = extension.new_words(sentences, words, config.new_words, least)
    extended = extension.extended(words, new)

    def fill(folder: Path) -> None:
        tensors.extend(source, folder, words.vocab_size, extension.pieces_of(new, words))
        has_types = replace(bert_config, gets_types=words.has_types).has_types
        extended.save(folder, has_types, bert_config.num_positions)

    with filled_beside(output_dir, fill) as filled:
        output_dir.mkdir(exist_ok=True)
        for path in sorted(filled.iterdir(), key=lambda path: MODEL_FILES.index(path.name)):
            path.replace(output_dir / path.name)
    print(f"{output_dir}: {extended.vocab_size:,} entries, {len(new):,} of them new: {_some(new)}")


def _some(words: Sequence[str]) -> str:
    """The first of these words, for people."""
    shown = " ".join(words[:MOST_SHOWN])
    return f"{shown} …" if len(words) > MOST_SHOWN else shown
