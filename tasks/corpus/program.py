"""bert-corpus: builds and checks corpora, and trains vocabularies, on any number of ranks."""

import os
from pathlib import Path
from typing import Any

from bert import hub
from bert.corpus import build as corpus
from bert.corpus import shards
from bert.corpus.read import sample_sentences
from bert.corpus.report import lines_of
from bert.text import tokenizer, vocabulary
from distributed.launcher import launched_size
from distributed.world import World
from ringbase.files import read_json
from tasks.corpus.settings import BuildConfig, VerifyConfig, VocabConfig

MOST_SENTENCEPIECE_BYTES = 256 << 20  # unless --max_bytes is given: it keeps the text in memory


def run(name: str, config: Any) -> None:
    """Runs a command. MPI is started only if a launcher started several processes."""
    program = f"bert-corpus {name}"
    _, num_ranks = launched_size()
    with World(program=program) if num_ranks == 1 else World.join(None, program) as world:
        if name == "build":
            build(config, world)
        else:
            world.on_first(verify if name == "verify" else train_vocabulary, config)


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
    if kind != "wordpiece":
        max_bytes = max_bytes or MOST_SENTENCEPIECE_BYTES
    sentences = sample_sentences(config.text, max_bytes)
    path = vocabulary.train(sentences, Path(config.output_dir).expanduser(), config.vocabulary)
    print(f"{path}: {kind}, {config.vocabulary.vocab_size:,} entries")
