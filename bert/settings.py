"""Settings of tokenizers, vocabularies and dropout, without their libraries: programs read their
flags first."""

from collections.abc import Mapping
from typing import Literal

from ringbase.settings import Settings, setting


class TokenizerSettings(Settings):
    """The files of a tokenizer, for a model that has none of its own."""

    vocab_file: str | None = setting(
        None,
        "WordPiece vocabulary, or a tokenizer.json; with --spm_model_file, the ids of its pieces",
        "model",
        shown_default="the model's own",
        reads="first",
    )
    spm_model_file: str | None = setting(
        None, "SentencePiece model, instead of a WordPiece vocabulary", "model", reads="first"
    )
    do_lower_case: bool | None = setting(
        None,
        "lower-case the text and strip its accents",
        "model",
        shown_default="as the tokenizer's files say, else true for WordPiece",
    )


class VocabularySettings(Settings):
    """Which vocabulary is trained."""

    kind: Literal["wordpiece", "unigram", "bpe", "byte_bpe"] = setting(
        "wordpiece",
        "unigram and bpe are SentencePiece models; byte_bpe is byte-level BPE, as ModernBERT's,"
        " which knows every text in every script",
        "training",
    )
    vocab_size: int = setting(
        30522, "number of entries, special tokens included", "training", at_least=6, at_most=1 << 24
    )
    do_lower_case: bool | None = setting(
        None,
        "lower-case the text and strip its accents",
        "training",
        shown_default="true for wordpiece, else false",
    )
    min_frequency: int = setting(
        2,
        "number of times that a pair of pieces must occur to be joined (wordpiece, byte_bpe)",
        "training",
        at_least=0,
        at_most=1 << 32,
    )
    character_coverage: float = setting(
        0.9995,
        "share of the text's characters that get a piece of their own, most frequent first",
        "training",
        at_least=1e-9,
        at_most=1,
    )

    def void(self) -> Mapping[str, str]:
        if self.kind == "byte_bpe":
            return {"character_coverage": "--kind byte_bpe has a piece for each byte"}
        if self.kind == "wordpiece":
            return {}
        return {"min_frequency": f"--kind {self.kind} has no such limit"}

    @property
    def lower_case(self) -> bool:
        return self.kind == "wordpiece" if self.do_lower_case is None else self.do_lower_case


class DropoutSettings(Settings):
    """Dropout in training, instead of what the model's configuration says; the trained model's
    configuration says this then."""

    hidden_dropout_prob: float | None = setting(
        None,
        "dropout of embeddings and of each layer's two outputs",
        "layers",
        shown_default="the model's own",
        at_least=0,
        at_most=0.99,
        changes="training",
    )
    attention_probs_dropout_prob: float | None = setting(
        None,
        "dropout of the probabilities of attention",
        "layers",
        shown_default="the model's own",
        at_least=0,
        at_most=0.99,
        changes="training",
    )
