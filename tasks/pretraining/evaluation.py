"""Evaluates a pretrained model on held-out examples: masked tokens and next sentences."""

import numpy as np
import tensorflow as tf

from bert.batch import with_checked_ids
from distributed.gradient import traced_once
from distributed.predict import predict
from distributed.train import HeldOut
from tasks.job import Job
from tasks.predict import batches_of
from tasks.pretraining.settings import EvaluationSettings
from tasks.pretraining.shards import Shards
from tasks.pretraining.task import MaskedTask

EVALUATION_SEED = 0  # for the masks of held-out examples: the same in every run, so that runs can be compared
MEASURED = ("masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "next_sentence_loss")


def evaluator(settings: EvaluationSettings, job: Job, shards: Shards, max_seq_length: int) -> HeldOut:
    """Measures accuracy and loss of masked tokens and next sentences, the same values on every rank.

    It uses the first `max_eval_steps * eval_batch_size` examples, with the same masks each time.
    """
    rows = np.arange(min(len(shards.rows), settings.max_eval_steps * settings.eval_batch_size))
    lengths = np.diff(shards.rows.take(rows)["input_ids"][1])
    batches = batches_of(lengths, settings.eval_batch_size, max_seq_length)
    model, task = job.model, MaskedTask(max_seq_length, shards.masking, EVALUATION_SEED, shards.most_masked)

    def count(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        scores = model(batch)
        sums = task.loss(scores, batch)
        pairs = [("mlm", "masked_ids")] + [("nsp", "next_sentence_label")] * ("nsp" in sums)
        counts = []
        for term, label in pairs:
            right = tf.argmax(scores[term], 1) == tf.cast(batch[label], tf.int64)
            counts += [tf.reduce_sum(tf.cast(right, tf.float32)), sums[term], tf.cast(tf.size(right), tf.float32)]
        return tf.stack(counts)

    make_batch, forward = with_checked_ids(task.batch, model.config), traced_once(count)

    def total(outputs: list[np.ndarray]) -> dict[str, float]:
        sums = np.sum(np.asarray(outputs, np.float64), 0).reshape(-1, 3)
        return dict(zip(MEASURED, (sums[:, :2] / sums[:, 2:]).reshape(-1).tolist(), strict=False))

    def evaluate() -> dict[str, float]:
        outputs = predict(job.world, job.run, shards.rows, batches, make_batch, forward, label="evaluation")
        return job.world.on_first(total, outputs)

    return HeldOut(measure=evaluate, num_rows=len(rows), every=settings.eval_steps or "auto")
