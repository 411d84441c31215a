"""The flags of bert-embedder."""

import os
import re
from collections.abc import Mapping
from typing import Literal

from ringbase.errors import InputError
from ringbase.settings import LONGEST_ROW, Settings, fields_of, setting, shown
from tasks.runs.commands import Command
from tasks.runs.naming import Named, named_corpora, places_in, refuse_decay
from tasks.runs.settings import (
    DataSettings,
    TaskConfig,
    data_setting,
    folder_setting,
    other_file_setting,
    row_setting,
    train_file_setting,
)

Pooling = Literal["mean", "cls"]
PromptName = Literal["query", "document", "none"]
# of `VectorSettings`, where neither the flags nor the model's folder say anything
DEFAULTS: Mapping = {"max_seq_length": 128, "pooling": "mean", "normalize": True}
MOST_NEGATIVES = 10_000  # of an anchor


# what `--task_name` has itself
OF_OWN_FILES = (
    "train_file",
    "dev_file",
    "predict_file",
    "dataset_name",
    "anchor_column",
    "positive_column",
    "negative_columns",
    "score_column",
    "score_scale",
    "label_column",
)


class PairSettings(DataSettings):
    """Which pairs of texts are read, and from which columns."""

    train_file: str | None = train_file_setting(
        "CSV, TSV, JSON lines or Parquet file of pairs to train on: an anchor and its positive or a"
        " list of them, perhaps with hard negatives, or two texts and a score; or qrels/*.tsv of a"
        " folder in the form of BEIR; several with commas between them, perhaps with weights, such"
        " as a.jsonl=0.7,b.jsonl=0.3, which may change along the training: b.jsonl=0:0.5@60%",
    )
    dev_file: str | None = other_file_setting("the same, to evaluate on")
    predict_file: str | None = other_file_setting(
        "file of texts, of which the vectors are written: the column anchor, query or text; with"
        " --num_negatives a file of pairs"
    )
    corpus_file: str | None = other_file_setting(
        "file of more documents (the column positive or text) among which the dev set's anchors"
        " search, or negatives are mined",
    )
    task_name: Literal["sts-b", "STS-B"] | None = data_setting(
        None, "sts-b: the pairs and scores of GLUE's STS-B in --data_dir", describes="data"
    )
    data_dir: str | None = folder_setting("folder of the task's files, in GLUE's layout")
    anchor_column: str = data_setting("anchor|query|text", "column with the first text of a pair")
    positive_column: str = data_setting(
        "positive|pos", "column with the second text of a pair, or a list of such texts"
    )
    negative_columns: str | None = data_setting(
        None,
        "columns with hard negatives, a text or a list of texts for each row, with commas between"
        " them; empty for none",
        shown_default="negative or neg, if there is such a column",
        is_list=True,
    )
    score_column: str | None = data_setting(
        None,
        "column with the score of a pair; empty for none",
        shown_default="score, if there is such a column",
    )
    score_scale: float = data_setting(
        1.0, "the score of equal texts, by which scores are divided (STS-B: 5)", at_least=1e-6
    )
    label_column: str | None = data_setting(
        None,
        "column with a label instead of scores: of pairs (entailment, contradiction, 1, 0), or of"
        " texts alone the class, whose texts are near to each other",
        shown_default="none",
    )
    same_dataset_within_batch: bool = setting(
        False,
        "the rows of a global batch, which are negatives of each other, are of one of the files of"
        " --train_file",
        "data",
        changes="training",
    )

    @property
    def train_sets(self) -> list[Named]:
        """The files of `train_file`, with their weights if they have any."""
        if not self.train_file or os.path.exists(os.path.expanduser(self.train_file)):
            return [Named(self.train_file or "")]
        return named_corpora(self.train_file, "train_file", is_mixture=True)

    def check(self) -> None:
        super().check()
        if bool(self.task_name) != bool(self.data_dir):
            raise ValueError("--task_name sts-b and --data_dir need each other")
        if self.label_column and self.score_column:
            raise ValueError("--label_column and --score_column exclude each other: give one")
        sets = self.train_sets
        if len(sets) == 1 and sets[0].weight is not None:
            raise ValueError(
                f"--train_file {self.train_file}: a weight needs several files, with commas between"
                " them"
            )

    def void(self) -> Mapping[str, str]:
        reasons = dict(super().void())
        if len(self.train_sets) < 2:
            reasons["same_dataset_within_batch"] = "--train_file names one file"
        return reasons


class VectorSettings(Settings):
    """How texts become vectors."""

    max_seq_length: int | None = row_setting(
        None,
        "maximum number of tokens per text",
        at_least=3,
        at_most=LONGEST_ROW,
        shown_default="128; without --do_train what the model's folder says",
        is_saved=True,
    )
    pooling: Pooling | None = setting(
        None,
        "mean of a text's tokens, or cls",
        "model",
        changes="training",
        shown_default="what the model's folder says, else mean",
        is_saved=True,
    )
    normalize: bool | None = setting(
        None,
        "give vectors the length 1",
        "model",
        changes="training",
        shown_default="true; without --do_train what the model's folder says",
        is_saved=True,
    )

    query_prompt: str | None = row_setting(
        None,
        "text before each anchor, such as 'query: '",
        shown_default="what the model's folder says, else none",
        is_saved=True,
    )
    document_prompt: str | None = row_setting(
        None,
        "text before each positive, negative and document of the corpus",
        shown_default="what the model's folder says, else none",
        is_saved=True,
    )
    prompt_name: PromptName | None = setting(
        None,
        "which of the two stands before each text of --predict_file",
        "data",
        shown_default="default_prompt_name of the model's folder, else none",
        is_saved=True,
    )
    max_query_length: int | None = row_setting(
        None,
        "maximum number of tokens of an anchor, with its prompt",
        at_least=3,
        at_most=LONGEST_ROW,
        shown_default="that of any text",
        is_saved=True,
    )

    dims: str | None = setting(
        None,
        "also train the first so many numbers of a vector to be a vector (matryoshka), such as"
        " 256,128,64",
        "model",
        changes="training",
        is_saved=True,
        is_list=True,
        describes="model",
    )
    truncate_dim: int | None = setting(
        None,
        "evaluate, predict and mine with the first so many numbers of each vector",
        "prediction",
        at_least=1,
    )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of `dims`, the largest first."""
        sizes = {int(size) for size in (self.dims or "").split(",") if size}
        return tuple(sorted(sizes, reverse=True))

    def check(self) -> None:
        if self.dims and not re.fullmatch(r"[1-9]\d{0,6}(,[1-9]\d{0,6})*", self.dims):
            raise ValueError(f"--dims must be numbers such as 256,128,64, got {shown(self.dims)}")

    def check_width(self, width: int) -> None:
        """Raises InputError: a model of this width has shorter vectors than the settings want."""
        for flag, sizes in (("dims", self.sizes), ("truncate_dim", [self.truncate_dim or 1])):
            if max(sizes, default=1) > width:
                raise InputError(
                    f"--{flag} must be at most the width of the model's vectors, {width}, got"
                    f" {max(sizes)}"
                )

    @property
    def has_prompts(self) -> bool:
        return bool(self.query_prompt or self.document_prompt)


class LossSettings(Settings):
    """The loss of pairs without scores. With scores it is the squared error of the cosine."""

    temperature: float = setting(
        0.05,
        "products of vectors are divided by it",
        "training",
        changes="training",
        at_least=1e-3,
        at_most=100,
    )
    both_ways: bool = setting(
        False,
        "each positive also chooses among all anchors of the global batch",
        "training",
        changes="training",
    )

    guide_margin: float | None = setting(
        None,
        "leave out negatives whose cosine with the anchor is above that of its positive minus this:"
        " by the model itself they may be right; a negative value spares those that are above by"
        " less",
        "training",
        changes="training",
        at_least=-2,
        at_most=2,
        shown_default="none are left out",
    )

    kd_loss_type: Literal["margin_mse", "kl_div"] | None = setting(
        None,
        "learn a teacher's scores in the columns pos_scores and neg_scores, of each pair's texts"
        " alone: the leads of the positive, or the shares of the texts",
        "training",
        changes="training",
        shown_default="such columns are not read",
    )

    def void(self) -> Mapping[str, str]:
        if not self.kd_loss_type:
            return {}
        reason = f"--kd_loss_type {self.kd_loss_type} compares the texts of a pair alone"
        names = ["both_ways", "guide_margin"]
        if self.kd_loss_type == "margin_mse":
            names.append("temperature")
        return dict.fromkeys(names, reason)

    def in_words(self, has_scores: bool, has_labels: bool) -> str:
        """The loss of a training, and why it is that one."""
        if self.kd_loss_type:
            return {
                "margin_mse": "squared error of the leads of positives over their negatives",
                "kl_div": "KL divergence of the shares of each pair's texts (temperature"
                f" {self.temperature:g})",
            }[self.kd_loss_type] + " from the teacher's scores, by --kd_loss_type"
        if has_scores:
            return "squared error of the cosines, because the pairs have scores"
        ways = "and each positive its anchor, " if self.both_ways else ""
        loss = (
            f"each anchor chooses its positive, {ways}in the global batch (temperature"
            f" {self.temperature:g})"
        )
        if self.guide_margin is not None:
            loss += f", without negatives above its cosine minus {self.guide_margin:g}"
        if has_labels:
            return f"{loss}, which is another text of its class, because the texts have labels"
        return f"{loss}, because no pair has a score"


class MiningSettings(Settings):
    """Which documents are hard negatives; names and meaning of sentence-transformers'
    mine_hard_negatives."""

    num_negatives: int | None = setting(
        None,
        "find so many hard negatives of each anchor of --predict_file, which has pairs, among their"
        " positives and --corpus_file, and write mined.jsonl to train on",
        "mining",
        at_least=1,
        at_most=MOST_NEGATIVES,
    )
    range_min: int = setting(
        0,
        "leave out so many of the nearest documents",
        "mining",
        at_least=0,
        at_most=MOST_NEGATIVES,
    )
    range_max: int | None = setting(
        None,
        "look at so many of the nearest documents",
        "mining",
        at_least=1,
        at_most=MOST_NEGATIVES,
        shown_default="enough of them, ten times --num_negatives with a margin or --max_score",
    )
    absolute_margin: float | None = setting(
        None,
        "a negative's cosine is at least so much below that of the anchor's farthest positive",
        "mining",
        at_least=0,
        at_most=2,
    )
    relative_margin: float | None = setting(
        None,
        "the same as a part of that cosine: with 0.05 a negative has at most 95 % of it",
        "mining",
        at_least=0,
        at_most=2,
    )
    max_score: float | None = setting(
        None, "a negative's cosine is at most this", "mining", at_least=0, at_most=1
    )
    min_score: float | None = setting(
        None, "a negative's cosine is at least this", "mining", at_least=0, at_most=1
    )
    sampling_strategy: Literal["top", "random"] = setting(
        "top", "take the nearest that are left, or some by chance (--seed)", "mining"
    )

    @property
    def refuses_near_ones(self) -> bool:
        limits = self.absolute_margin, self.relative_margin, self.max_score
        return any(limit is not None for limit in limits)

    def check(self) -> None:
        if self.num_negatives is None or self.range_max is None:
            return
        room = self.range_max - self.range_min
        if room < self.num_negatives:
            raise ValueError(
                f"--num_negatives must be at most --range_max - --range_min = {room}, got"
                f" {self.num_negatives}"
            )

    def void(self) -> Mapping[str, str]:
        if self.num_negatives:
            return {}
        names = (field.name for field in fields_of(MiningSettings))
        return dict.fromkeys(names, "no negatives are mined without --num_negatives")


class EmbedderConfig(TaskConfig):
    """Train BERT to embed texts as vectors, over all MPI ranks."""

    pairs: PairSettings
    vectors: VectorSettings
    loss: LossSettings
    mining: MiningSettings

    @property
    def mines(self) -> bool:
        return bool(self.mining.num_negatives and self.do_predict)

    def void(self) -> Mapping[str, str]:
        reasons = dict(super().void())
        reasons["head_learning_rate"] = "an embedder has no head"
        if self.mining.num_negatives and not self.do_predict:
            reasons["num_negatives"] = "--do_predict does not ask for it"
        if "dev" not in self.wanted_sets and not self.mines:
            reasons["corpus_file"] = "no dev set is read, whose anchors would search in it"
        return reasons

    def check(self) -> None:
        super().check()
        default = {field.name: field.default for field in fields_of(PairSettings)}
        for flag in OF_OWN_FILES:
            if self.pairs.task_name and getattr(self.pairs, flag) != default[flag]:
                raise ValueError(
                    f"--{flag} is for files of your own: --task_name has its files and columns"
                )
        if self.loss.kd_loss_type and self.pairs.label_column:
            raise ValueError("--label_column and --kd_loss_type exclude each other: give one")
        places = places_in(self.pairs.train_sets)
        refuse_decay(places, self.training.rate.lr_scheduler_type)
        is_apart = self.pairs.same_dataset_within_batch and len(self.pairs.train_sets) > 1
        if self.do_train and is_apart and not self.training.plan.global_batch_size:
            raise ValueError(
                "--same_dataset_within_batch needs --global_batch_size, so that a batch has the"
                " same rows on any number of ranks"
            )
        instead = "task_name" if self.pairs.task_name else "dataset_name"
        self.check_files(self.pairs, instead)


COMMAND = Command(
    "bert-embedder",
    EmbedderConfig,
    implied={
        "do_train": ("train_file", "dataset_name", "task_name"),
        "do_eval": ("dev_file", "dataset_name", "task_name"),
        "do_predict": ("predict_file",),
    },
)
