"""The settings of a corpus: its text, its examples and its files."""

from collections.abc import Mapping
from typing import Any, Literal

from ringbase.settings import LONGEST_ROW, MOST_SEED, Settings, flat, setting

GOOGLES_MASKS: dict[str, Any] = {
    "masked_lm_prob": 0.15,
    "max_predictions_per_seq": 20,
    "do_whole_word_mask": False,
}


def given_masks(settings: Settings) -> dict[str, Any]:
    """The settings of masks that were given."""
    values = {name: getattr(settings, name) for name in GOOGLES_MASKS}
    return {name: value for name, value in values.items() if value is not None}


class TextSettings(Settings):
    """Which text to read, and how."""

    input_file: str | None = setting(
        None,
        "text, JSON lines (.jsonl .ndjson .json) or Parquet, the first two also as .gz or .zst;"
        " globs, separated by commas",
        "data",
    )
    dataset_name: str | None = setting(
        None,
        "instead of files, a data set of the Hugging Face hub or a folder that `datasets` can load"
        " (split train)",
        "data",
    )
    dataset_config: str | None = setting(
        None, "configuration of --dataset_name, if it has several", "data"
    )
    dataset_revision: str | None = setting(
        None,
        "commit, tag or branch of the hub data set --dataset_name",
        "data",
        shown_default="main",
    )
    text_column: str = setting(
        "text", "column or key that holds the text, in every format except plain text", "data"
    )
    split_sentences: bool = setting(
        False,
        "read running text: join the lines of a paragraph and cut it into sentences; a blank line,"
        " or a line of fewer than 40 characters, ends a paragraph. Without it, each line is a"
        " sentence",
        "data",
    )
    document_separator: Literal["blank", "blanks", "line", "file"] = setting(
        "blank",
        "what ends a document of plain text: a blank line; two or more of them (for books "
        "with a blank line between paragraphs); every line (for reviews and other lines that have "
        "nothing to do with each other); or only the end of the file. Documents are cut after"
        " 1 MiB",
        "data",
    )

    def check(self) -> None:
        if (self.input_file is None) == (self.dataset_name is None):
            raise ValueError("give either --input_file or --dataset_name")
        if self.dataset_revision and not self.dataset_name:
            raise ValueError("--dataset_revision needs --dataset_name")

    def void(self) -> Mapping[str, str]:
        return {} if self.dataset_name else {"dataset_config": "--input_file is read"}

    @property
    def source(self) -> str:
        """What is read, for messages."""
        if self.input_file:
            return f"--input_file {self.input_file}"
        return f"--dataset_name {self.dataset_name}"


class ExampleSettings(Settings):
    """The settings that decide the examples, besides the text and the vocabulary. The defaults are
    Google's."""

    max_seq_length: int = setting(
        128,
        "maximum number of tokens in an example, including [CLS] and [SEP]",
        "examples",
        at_least=5,
        at_most=LONGEST_ROW,
    )
    next_sentence: bool = setting(
        True,
        "make examples for next-sentence prediction by Google's rules; with --nonext_sentence, rows"
        " are filled to the last token with consecutive sentences, with [SEP] between documents",
        "examples",
    )
    short_seq_prob: float = setting(
        0.1,
        "share of the documents that get a shorter target length",
        "examples",
        at_least=0,
        at_most=1,
    )
    dupe_factor: int | None = setting(
        None,
        "number of times that examples are made from the whole text",
        "examples",
        shown_default="1 with dynamic masks, 10 with static ones",
        at_least=1,
        at_most=10_000,
    )
    random_seed: int = setting(
        12345, "seed of every random choice", "examples", at_least=0, at_most=MOST_SEED
    )
    masking: Literal["dynamic", "static"] = setting(
        "dynamic",
        "dynamic: masks are drawn each time an example is read, with the settings below unless "
        "bert-pretraining gets others. static: masks are stored in the shards",
        "masks",
    )
    masked_lm_prob: float | None = setting(
        None,
        "share of the tokens to predict",
        "masks",
        shown_default="0.15; 0.3 where bert-pretraining draws masks for a ModernBERT",
        at_least=0.001,
        at_most=1,
    )
    max_predictions_per_seq: int | None = setting(
        None,
        "maximum number of predictions in an example",
        "masks",
        shown_default="20; the share of the longest row for a ModernBERT",
        at_least=1,
        at_most=LONGEST_ROW,
    )
    do_whole_word_mask: bool = setting(False, "mask all pieces of a word together", "masks")

    @property
    def has_static_masks(self) -> bool:
        return self.masking == "static"

    @property
    def num_duplicates(self) -> int:
        """How many times examples are made from the whole text."""
        default = 10 if self.has_static_masks else 1
        return self.dupe_factor or default

    def void(self) -> Mapping[str, str]:
        if self.next_sentence:
            return {}
        return {"short_seq_prob": "with --nonext_sentence rows are filled to the last token"}

    @property
    def masks(self) -> dict[str, Any]:
        """The settings of masks: those that were given, else Google's."""
        return GOOGLES_MASKS | given_masks(self)

    def recorded(self) -> dict[str, Any]:
        """The values for the manifest, which bert-pretraining reads; those of masks that it will
        draw only if they were given."""
        values = flat(self) | {"dupe_factor": self.num_duplicates}
        if self.has_static_masks:
            values |= self.masks
        return {name: value for name, value in values.items() if value is not None}


class BuildSettings(Settings):
    """The input, the examples and the output of a corpus build."""

    text: TextSettings
    examples: ExampleSettings
    deduplicate: bool = setting(
        False,
        "leave out documents that repeat an earlier one of the corpus, character by character",
        "data",
    )
    allow_unknown: bool = setting(
        False, "continue even if more than 10 % of the tokens are [UNK]", "data"
    )
    output_dir: str = setting(help="folder of the shards", group="output", aliases=("output_file",))
    num_shards: int | None = setting(
        None,
        "number of shards",
        "output",
        shown_default="one for each 256 MiB of text, up to 16 for less",
        at_least=1,
        at_most=100_000,
    )
