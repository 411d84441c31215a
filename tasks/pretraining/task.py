"""The task of bert-pretraining: masked tokens, and whether the second sentence is a random one; its
evaluation.

Tensors have their shape as a suffix: B rows, M masked tokens of all rows, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, is_fixed, num_examples, with_checked_ids
from bert.configuration import BertConfig
from bert.corpus.masking import Masking, example_keys, mask
from bert.heads import MASKED_WORDS, PRETRAINING, Head
from bert.model import Bert
from distributed.gradient import traced_once
from distributed.predict import predict
from distributed.rows import BatchRows
from distributed.train import HeldOut
from ringbase.errors import InputError
from ringbase.ragged import padded
from tasks.pretraining.settings import HeldOutSettings
from tasks.runs.job import Job
from tasks.runs.predict import batches_of
from tasks.runs.task import Trains

NOT_MASKED = -1  # the id of padding among the masked tokens of a batch
MEASURED = ("masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "next_sentence_loss")


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
class MaskedTask(Trains):
    """Examples of a corpus; see `tasks.runs.task.Trains`. `masking` is None if the rows have their
    masks."""

    max_seq_length: int
    masking: Masking | None
    seed: int
    max_predictions_per_seq: int = 20
    has_next_sentence: bool = True
    head: Head = PRETRAINING
    metric = "masked_lm_accuracy"

    @property
    def terms(self) -> tuple[str, ...]:
        return ("mlm", "nsp") if self.has_next_sentence else ("mlm",)

    @property
    def settings(self) -> dict[str, object]:
        return {"max_seq_length": self.max_seq_length}

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        """Adds `masked_tokens` (rows of the hidden state) and `masked_ids` [M], and
        `next_sentence_label` [B] (1: a random one). For groups of fixed shapes M is the most that
        there can be, padded with the id -1.
        """
        if self.masking:
            values, offsets = fields["input_ids"]
            keys = example_keys(self.seed, fields["row"], fields["epoch"])
            fields = fields | mask(values, offsets, keys, self.masking)
        fields, batch = batch_of(fields, grouping)
        (positions, position_offsets), (masked_ids, _) = (
            fields["masked_lm_positions"],
            fields["masked_lm_ids"],
        )
        masked = np.diff(position_offsets)
        first_tokens = np.repeat(batch["first_tokens"][: len(masked)], masked)
        size = len(positions)
        if is_fixed(batch):
            size = sum(rows * self._most_masked(length) for rows, length in batch["groups"])
        batch["masked_tokens"] = padded(first_tokens + positions.astype(np.int32), size)
        batch["masked_ids"] = padded(masked_ids.astype(np.int32), size, NOT_MASKED)
        if "is_random_next" in fields:
            labels = fields["is_random_next"].astype(np.int32)
            batch["next_sentence_label"] = padded(labels, len(batch["first_tokens"]))
        return batch

    def _most_masked(self, length: int) -> int:
        """The maximum number of masked tokens in an example of this length."""
        if self.masking:
            return int(self.masking.num_predictions(length))
        return min(length, self.max_predictions_per_seq)

    def weights(self, batch: Batch) -> dict[str, float]:
        """The number of masked tokens, and of examples."""
        masked = {"mlm": float((batch["masked_ids"] != NOT_MASKED).sum())}
        return masked | (
            {"nsp": float(num_examples(batch))} if "next_sentence_label" in batch else {}
        )

    def loss(
        self, scores: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """The sums of the cross-entropies of masked tokens and of next sentences."""
        sums = {
            "mlm": cross_entropy(
                batch["masked_ids"], scores["mlm"], batch["masked_ids"] != NOT_MASKED
            )
        }
        if "next_sentence_label" in batch:
            sums["nsp"] = cross_entropy(
                batch["next_sentence_label"], scores["nsp"], batch["is_example"]
            )
        return sums


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
    return tf.reduce_sum(losses * tf.cast(counts, losses.dtype))


def evaluator(
    settings: HeldOutSettings, job: Job, model: Bert, task: MaskedTask, rows: BatchRows
) -> HeldOut:
    """Measures accuracy and loss of masked tokens and next sentences, the same values on every
    rank.

    It uses the first `max_eval_steps * eval_batch_size` examples, with the same masks each time.
    """
    used = np.arange(min(len(rows), settings.max_eval_steps * settings.eval_batch_size))
    lengths = np.diff(rows.take(used)["input_ids"][1])
    batches = batches_of(lengths, settings.eval_batch_size, task.max_seq_length)

    def count(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Of each term how many are right, the sum of losses, and how many there are."""
        scores = model(batch)
        counts = []
        for term, loss_sum in task.loss(scores, batch).items():
            label = batch["masked_ids" if term == "mlm" else "next_sentence_label"]
            right = tf.argmax(scores[term], 1) == tf.cast(label, tf.int64)
            counts += [
                tf.reduce_sum(tf.cast(right, tf.float32)),
                loss_sum,
                tf.cast(tf.size(right), tf.float32),
            ]
        return tf.stack(counts)

    def total(outputs: list[np.ndarray]) -> dict[str, float]:
        sums = np.sum(np.asarray(outputs, np.float64), 0).reshape(-1, 3)
        if not sums[:, 2].all():
            raise InputError(
                f"no token of the {len(used):,} held-out examples is masked: raise"
                " --max_eval_steps, or --masked_lm_prob or --max_predictions_per_seq so that a"
                " whole word fits"
            )
        return dict(zip(MEASURED, (sums[:, :2] / sums[:, 2:]).reshape(-1).tolist(), strict=False))

    make_batch, forward = with_checked_ids(task.batch, model.config), traced_once(count)

    def measure() -> dict[str, float]:
        outputs = predict(
            job.world, job.run, rows, batches, make_batch, forward, label="evaluation"
        )
        return job.world.on_first(total, outputs)

    return HeldOut(measure=measure, num_rows=len(used), every=settings.eval_steps or "auto")
