"""bert-corpus: text -> shards of pretraining examples (Google's create_pretraining_data.py), and vocabularies.

    bert-corpus vocab  --input_file 'text/*.txt' --output_dir vocab --vocab_size 30522
    bert-corpus build  --input_file 'text/*.txt' --output_dir shards --vocab_file vocab/vocab.txt
    bert-corpus verify --input_dir shards

Under mpirun the ranks share the work; --output_dir must be on a file system that all of them see.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert.corpus.settings import BuildSettings, TextSettings
from bert.text.settings import TokenizerSettings, VocabularySettings
from ringbase.settings import Settings, setting
from tasks import flags
from tasks.environment import set_environment


@dataclass(frozen=True, kw_only=True)
class BuildConfig(Settings):
    """Makes shards of examples; after a kill, the same command continues."""

    corpus: BuildSettings
    tokenizer: TokenizerSettings
    model: str | None = setting(
        None, "hub name or folder of a model whose vocabulary to use, instead of --vocab_file", "model"
    )
    model_revision: str | None = setting(
        None, "commit, tag or branch of the hub model that --model names", "model", shown_default="main"
    )
    num_workers: int | None = setting(
        None, "worker processes per rank", "machine", shown_default="the number of its cores",
        at_least=1, at_most=1024,
    )  # fmt: skip

    def check(self) -> None:
        if self.model_revision and not self.model:
            raise ValueError("--model_revision needs --model with a hub name")


@dataclass(frozen=True, kw_only=True)
class VerifyConfig(Settings):
    """Checks every byte of a corpus and its tokenizer against its manifest."""

    input_dir: str = setting(help="folder that bert-corpus build wrote", group="data")


@dataclass(frozen=True, kw_only=True)
class VocabConfig(Settings):
    """Trains a WordPiece vocabulary, or a SentencePiece model (unigram, bpe)."""

    text: TextSettings
    vocabulary: VocabularySettings
    output_dir: str = setting(help="folder to write the vocabulary to", group="output")
    max_bytes: int | None = setting(
        None, "train on a sample of about N bytes, spread evenly over the text", "data", at_least=1,
        shown_default="the whole text; 256 MiB of it for unigram and bpe, which keep it in memory",
    )  # fmt: skip


COMMANDS: dict[str, type] = {"build": BuildConfig, "verify": VerifyConfig, "vocab": VocabConfig}


def main(argv: Sequence[str] | None = None) -> None:
    config: Any
    name, config = flags.parse_command(COMMANDS, argv, prog="bert-corpus", description=str(__doc__))
    set_environment()
    importlib.import_module("tasks.corpus.program").run(name, config)


if __name__ == "__main__":
    main()
