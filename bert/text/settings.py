"""Settings of the tokenizer, in a module of their own so that `--help` does not import NumPy."""

from dataclasses import dataclass

from ringbase.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(Settings):
    """The files of a tokenizer, for a model that has none of its own."""

    vocab_file: str | None = setting(
        None,
        "WordPiece vocabulary; with --spm_model_file, the ids of its pieces",
        "model",
        shown_default="the model's own",
    )
    spm_model_file: str | None = setting(None, "SentencePiece model, instead of a WordPiece vocabulary", "model")
    do_lower_case: bool | None = setting(
        None,
        "lower-case the text and strip its accents",
        "model",
        shown_default="as the tokenizer's files say, else true for WordPiece",
    )


@dataclass(frozen=True, kw_only=True)
class UnknownSettings(Settings):
    """Whether to accept a text that the vocabulary hardly covers: see `check_unknown`."""

    allow_unknown: bool = setting(False, "continue even if more than 10 % of the tokens are [UNK]", "data")
