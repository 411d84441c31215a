"""The evaluation of a pretrained model on held-out examples, and what the report shows of it:
examples with their masks filled in."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from bert.batch import Batch, with_checked_ids
from bert.model import Bert
from bert.text.tokenizer import Tokenizer
from distributed.gradient import traced_once
from distributed.predict import Forward, predict
from distributed.rows import BatchRows, fields_of
from distributed.train import HeldOut
from ringbase.errors import InputError
from tasks.pretraining.settings import HeldOutSettings
from tasks.pretraining.task import MaskedTask
from tasks.runs.details import MOST_ROWS, Section, marked, table
from tasks.runs.execute.job import Job
from tasks.runs.execute.predict import batches_of
from tasks.runs.task import Tensors

MEASURED = ("masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "next_sentence_loss")
EXAMPLES, BEFORE = 6, 80  # texts, and characters before a wrong token
CANDIDATES = "predicted", "second", "third"


@dataclass(frozen=True)
class Evaluation:
    """A model, and the rows on which it is evaluated."""

    job: Job
    model: Bert
    task: MaskedTask
    rows: BatchRows
    key: str  # a digest of the rows

    def held_out(self, settings: HeldOutSettings) -> HeldOut:
        """Measures accuracy and loss of masked tokens and next sentences, the same values on every
        rank.

        It uses the first `max_eval_steps * eval_batch_size` examples, with the same masks each
        time.
        """
        most = settings.max_eval_steps * settings.eval_batch_size
        num_rows = min(len(self.rows), most)
        lengths = self.rows.lengths_at("input_ids", np.arange(num_rows))
        batches = batches_of(lengths, settings.eval_batch_size, self.task.max_seq_length)
        forward = traced_once(lambda batch: counts_of(self.task, self.model(batch), batch))

        def measure() -> dict[str, float]:
            outputs = self._predict(batches, forward, "evaluation")
            return self.job.world.on_first(means_of, outputs, num_rows)

        every = settings.eval_steps or "auto"
        return HeldOut(measure=measure, num_rows=num_rows, every=every, key=self.key)

    def filled_in(self, tokenizer: Tokenizer) -> list[Section]:
        """The first examples with the masked tokens marked, and the model's best candidates for
        those that it gets wrong. Every rank calls it; on other ranks than 0 it is empty."""
        first = np.arange(min(EXAMPLES, len(self.rows)))

        def candidates(batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
            scores_MV = tf.cast(self.model(batch)["mlm"], tf.float32)
            return tuple(tf.math.top_k(tf.nn.softmax(scores_MV), len(CANDIDATES)))

        outputs = self._predict([first], candidates, None)
        if outputs is None:
            return []
        shares, candidate_ids = (values.tolist() for values in outputs[0])
        batch = self.task.batch(fields_of(self.rows, first))
        true_ids = batch["masked_ids"].tolist()
        of_tokens = zip(true_ids, candidate_ids, shares, strict=True)
        masked = dict(zip(batch["masked_tokens"].tolist(), of_tokens, strict=True))
        edges = batch["first_tokens"][: len(first)].tolist()
        edges.append(int(batch["attention_mask"].sum()))
        texts, wrong = [], []
        for start, stop in itertools.pairwise(edges):
            places = range(start, stop)
            text, wrong_in_text = filled_text(places, batch["input_ids"], masked, tokenizer)
            texts.append([text])
            wrong += wrong_in_text
        wrong.sort(key=lambda row: -row[-1])
        note = "masked tokens are marked, green where the model's best candidate is right"
        in_all = f"{len(wrong):,} of the {len(masked):,} masked tokens"
        columns = ["text before", "true", *CANDIDATES, "probability"]
        return [
            table("Masks filled in", note, ["text"], texts),
            table("Wrong, the surest first", in_all, columns, wrong[:MOST_ROWS]),
        ]

    def _predict(
        self, batches: Sequence[np.ndarray], forward: Forward, label: str | None
    ) -> list | None:
        make_batch = with_checked_ids(self.task.batch, self.model.config)
        world, run = self.job.world, self.job.run
        return predict(world, run, self.rows, batches, make_batch, forward, label=label)


def counts_of(task: MaskedTask, scores: Tensors, batch: Batch) -> tf.Tensor:
    """Of each term how many are right, the sum of losses, and how many there are."""
    counts = []
    for term, loss_sum in task.loss(scores, batch).items():
        label = batch["masked_ids" if term == "mlm" else "next_sentence_label"]
        best = tf.argmax(scores[term], 1)
        is_right = tf.cast(best == tf.cast(label, tf.int64), tf.float32)
        num_rows = tf.cast(tf.size(is_right), tf.float32)
        counts += [tf.reduce_sum(is_right), loss_sum, num_rows]
    return tf.stack(counts)


def means_of(outputs: list[np.ndarray], num_rows: int) -> dict[str, float]:
    """Accuracy and mean loss of each term, from the counts of all batches."""
    of_batches = np.asarray(outputs, np.float64)
    counts = of_batches.sum(0).reshape(-1, 3)
    sums = counts[:, :2]  # of right ones, and of losses
    totals = counts[:, 2:]
    if not totals.all():
        raise InputError(
            f"no token of the {num_rows:,} held-out examples is masked: raise"
            " --max_eval_steps, or --masked_lm_prob or --max_predictions_per_seq so that a"
            " whole word fits"
        )
    means = (sums / totals).reshape(-1)
    return dict(zip(MEASURED, means.tolist(), strict=False))


def filled_text(
    places: range, ids: np.ndarray, masked: dict, tokenizer: Tokenizer
) -> tuple[Section, list[list]]:
    """The text of the example with the tokens at these places, and the cells of those that the
    model gets wrong. `masked` has the true token of a place, the best candidates, and their
    probabilities."""
    text, marks, wrong = "", [], []
    for is_masked, neighbours in itertools.groupby(places, masked.__contains__):
        if not is_masked:
            # At once: a character may have several tokens of bytes.
            part = tokenizer.text_of(ids[place] for place in neighbours)
            text += part if text else part.lstrip()
            continue
        for place in neighbours:
            true, candidates, shares = masked[place]
            is_right = candidates[0] == true
            word = tokenizer.text_of([true])
            blanks = len(word) - len(word.lstrip())
            text += word[:blanks]
            start = len(text)
            if not is_right:
                before = marked(f"{text[-BEFORE:]}___")
                wrong.append([before, *shown([true, *candidates], tokenizer), shares[0]])
            text += word[blanks:]
            marks.append((start, len(text), "answer" if is_right else "predicted"))
    return marked(text, marks), wrong


def shown(ids: list[int], tokenizer: Tokenizer) -> list[str]:
    """Each token as the vocabulary writes it; of bytes, as text."""
    if tokenizer.kind == "bytes":
        return [tokenizer.text_of([number]) for number in ids]
    return tokenizer.pieces(ids)
