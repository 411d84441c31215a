"""The task of bert-pretraining: masked tokens, and whether the second sentence is a random one.

Tensors have their shape as a suffix: B rows, M masked tokens of all rows, V vocabulary.
"""

from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, is_fixed, num_examples
from bert.configuration import BertConfig
from bert.corpus.masking import Masking, example_keys, mask
from bert.heads import MASKED_WORDS, PRETRAINING, Head
from distributed.mixture import numbers_at
from distributed.optimizer import PART
from distributed.stages import Table
from ringbase.errors import InputError
from ringbase.ragged import padded
from tasks.runs.resolve.spec import Start
from tasks.runs.task import Tensors, Trainable

NOT_MASKED = -1  # the id of padding among the masked tokens of a batch
NO_CORPUS = -1  # of padding
# what says from which corpus the targets of a loss term are
CORPUS_OF = {"mlm": "masked_corpus", "nsp": "corpus"}


def head_of(config: BertConfig) -> Head:
    """The head for pretraining. Raises InputError for a model that is not pretrained here."""
    heads = {"bert": PRETRAINING, "modernbert": MASKED_WORDS}
    if config.model_type not in heads:
        raise InputError(
            "bert-pretraining trains BERT and ModernBERT, and this model's config.json says"
            f" model_type {config.model_type}"
        )
    return heads[config.model_type]


@dataclass(frozen=True)
class MaskedTask(Trainable):
    """Examples of a corpus, or of several. `masking` is None if the rows have their masks."""

    max_seq_length: int
    masking: Masking | None
    seed: int
    max_predictions_per_seq: int = 20
    has_next_sentence: bool = True
    head: Head = PRETRAINING
    shares: Table[float] | None = None  # of the tokens, which change along the stream
    corpora: tuple[str, ...] = ()  # of a mixture, whose losses are logged
    metric = "masked_lm_accuracy"

    @property
    def terms(self) -> tuple[str, ...]:
        terms = ("mlm", "nsp") if self.has_next_sentence else ("mlm",)
        return terms + tuple(f"{term}{PART}{name}" for term in terms for name in self.corpora)

    @property
    def settings(self) -> dict:
        return {"max_seq_length": self.max_seq_length}

    def batch(self, fields: dict, grouping: Grouping | None = None) -> Batch:
        """Adds `masked_tokens` (rows of the hidden state) and `masked_ids` [M], and
        `next_sentence_label` [B] (1: a random one). For groups of fixed shapes M is the most that
        there can be, padded with the id -1.
        """
        if self.masking:
            values, offsets = fields["input_ids"]
            keys = example_keys(self.seed, fields["row"], fields["epoch"])
            fields = fields | mask(values, offsets, keys, self._masking_of(fields))
        fields, batch = batch_of(fields, grouping)
        positions, offsets = fields["masked_lm_positions"]
        masked_ids, _ = fields["masked_lm_ids"]
        counts = np.diff(offsets)
        first_tokens = np.repeat(batch["first_tokens"][: len(counts)], counts)
        size = len(positions)
        if is_fixed(batch):
            size = sum(rows * self._most_masked(length) for rows, length in batch["groups"])
        batch["masked_tokens"] = padded(first_tokens + positions.astype(np.int32), size)
        batch["masked_ids"] = padded(masked_ids.astype(np.int32), size, NOT_MASKED)
        if "is_random_next" in fields:
            labels = fields["is_random_next"].astype(np.int32)
            batch["next_sentence_label"] = padded(labels, len(batch["first_tokens"]))
        if self.corpora:
            numbers = fields["corpus"].astype(np.int32)
            batch["corpus"] = padded(numbers, len(batch["first_tokens"]), NO_CORPUS)
            batch["masked_corpus"] = padded(np.repeat(numbers, counts), size, NO_CORPUS)
        return batch

    def _masking_of(self, fields: dict) -> Masking:
        """How these rows are masked, which may depend on their places in the stream."""
        assert self.masking is not None
        if self.shares is None:
            return self.masking
        shares = np.array(self.shares.values)[numbers_at(self.shares, fields["position"])]
        return replace(self.masking, masked_lm_prob=shares)

    def _most_masked(self, length: int) -> int:
        """The maximum number of masked tokens in an example of this length."""
        if self.masking:
            shares = self.shares.values if self.shares else [self.masking.masked_lm_prob]
            most = replace(self.masking, masked_lm_prob=max(shares))
            return int(most.num_predictions(length))
        return min(length, self.max_predictions_per_seq)

    def weights(self, batch: Batch) -> dict[str, float]:
        """The number of masked tokens, and of examples."""
        weights = {"mlm": float((batch["masked_ids"] != NOT_MASKED).sum())}
        if "next_sentence_label" in batch:
            weights["nsp"] = float(num_examples(batch))
        for term in tuple(weights):
            for number, name in enumerate(self.corpora):
                of_corpus = batch[CORPUS_OF[term]] == number
                weights[f"{term}{PART}{name}"] = float(of_corpus.sum())
        return weights

    def loss(self, scores: Tensors, batch: Batch) -> Tensors:
        """The sums of the cross-entropies of masked tokens and of next sentences; of a mixture also
        those of each corpus."""
        masked_ids = batch["masked_ids"]
        losses = {"mlm": cross_entropies(masked_ids, scores["mlm"], masked_ids != NOT_MASKED)}
        if "next_sentence_label" in batch:
            labels = batch["next_sentence_label"]
            losses["nsp"] = cross_entropies(labels, scores["nsp"], batch["is_example"])
        sums = {term: tf.reduce_sum(values) for term, values in losses.items()}
        for term, values in losses.items():
            values = tf.stop_gradient(values)
            for number, name in enumerate(self.corpora):
                of_corpus = tf.cast(batch[CORPUS_OF[term]] == number, values.dtype)
                sums[f"{term}{PART}{name}"] = tf.reduce_sum(values * of_corpus)
        return sums


def cross_entropies(labels: tf.Tensor, logits: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
    return losses * tf.cast(counts, losses.dtype)


def of_model(head: Head, start: Start) -> None:
    """A pretrained model is exported without its head, as an encoder."""
