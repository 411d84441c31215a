"""The flags of bert-corpus."""

from collections.abc import Mapping

from bert.corpus.settings import BuildSettings, TextSettings
from bert.settings import TokenizerSettings, VocabularySettings
from ringbase.settings import Settings, setting


class BuildConfig(Settings):
    """Makes shards of examples; after a kill, the same command continues."""

    corpus: BuildSettings
    tokenizer: TokenizerSettings
    model: str | None = setting(
        None,
        "hub name or folder of a model whose vocabulary to use, instead of --vocab_file",
        "model",
    )
    model_revision: str | None = setting(
        None,
        "commit, tag or branch of the hub model that --model names",
        "model",
        shown_default="main",
    )
    num_workers: int | None = setting(
        None,
        "worker processes per rank",
        "machine",
        shown_default="the number of its cores",
        at_least=1,
        at_most=1024,
    )

    def check(self) -> None:
        if self.model_revision and not self.model:
            raise ValueError("--model_revision needs --model with a hub name")


class VerifyConfig(Settings):
    """Checks every byte of a corpus and its tokenizer against its manifest."""

    input_dir: str = setting(help="folder that bert-corpus build wrote", group="data")


class VocabConfig(Settings):
    """Trains a WordPiece vocabulary, a SentencePiece model (unigram, bpe) or a byte-level BPE, or
    extends a model's vocabulary by words of the text."""

    text: TextSettings
    vocabulary: VocabularySettings
    extend: str | None = setting(
        None,
        "hub name or folder of a model to write to --output_dir with new words, whose embeddings"
        " begin as the mean of their pieces, instead of a new vocabulary",
        "model",
    )
    new_words: int = setting(
        100,
        "with --extend: how many words of the text become entries, those that save most tokens",
        "model",
        at_least=1,
        at_most=1 << 20,
    )
    output_dir: str = setting(help="folder to write the vocabulary to", group="output")
    max_bytes: int | None = setting(
        None,
        "train on a sample of about N bytes, spread evenly over the text",
        "data",
        at_least=1,
        shown_default="the whole text; 256 MiB of it for unigram and bpe, which keep it in memory",
    )

    def void(self) -> Mapping[str, str]:
        if self.extend is None:
            return {"new_words": "without --extend a new vocabulary is trained"}
        names = "kind", "vocab_size", "do_lower_case", "character_coverage"
        return dict.fromkeys(names, "--extend keeps the model's own vocabulary, and adds to it")
