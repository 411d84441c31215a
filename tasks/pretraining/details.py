"""What the report shows of a pretrained model: examples with their masks filled in."""

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from bert.batch import with_checked_ids
from bert.model import Bert
from bert.text.tokenizer import Tokenizer
from distributed.predict import predict
from distributed.rows import BatchRows, fields_of
from tasks.pretraining.task import MaskedTask
from tasks.runs.details import Section, marked, table
from tasks.runs.job import Job

EXAMPLES, CANDIDATES = 6, 3
CONTINUES, BEGINS = "##", "▁"  # marks of WordPiece and SentencePiece


def filled_in(
    job: Job, model: Bert, task: MaskedTask, rows: BatchRows, tokenizer: Tokenizer
) -> list[Section]:
    """A table of the first examples: their tokens with the masked ones marked, and the model's best
    candidates for those that it gets wrong. Every rank calls it; on other ranks than 0 it is
    empty."""
    first = np.arange(min(EXAMPLES, len(rows)))

    def candidates(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return tuple(
            tf.math.top_k(tf.nn.softmax(tf.cast(model(batch)["mlm"], tf.float32)), CANDIDATES)
        )

    make_batch = with_checked_ids(task.batch, model.config)
    outputs = predict(job.world, job.run, rows, [first], make_batch, candidates, label=None)
    if outputs is None:
        return []
    batch, (shares, found) = task.batch(fields_of(rows, first, first)), outputs[0]
    masked = dict(zip(batch["masked_tokens"].tolist(), batch["masked_ids"].tolist(), strict=True))
    best = dict(zip(masked, zip(found.tolist(), shares.tolist(), strict=True), strict=True))
    starts = [*batch["first_tokens"][: len(first)].tolist(), int(batch["attention_mask"].sum())]
    cells = [
        row_of(range(*edges), batch["input_ids"], masked, best, tokenizer)
        for edges in itertools.pairwise(starts)
    ]
    note = "masked tokens are marked, green where the model's best candidate is right"
    return [table("Masks filled in", note, ["text", "true → candidates"], cells)]


def row_of(
    places: range,
    ids: np.ndarray,
    masked: dict[int, int],
    best: dict[int, Any],
    tokenizer: Tokenizer,
) -> list:
    """The cells of the example with these tokens."""
    text, marks, wrong = "", list[tuple[int, int, str]](), list[str]()
    for place in places:
        true = masked.get(place, int(ids[place]))
        piece = tokenizer.pieces([true])[0]
        word = piece.removeprefix(CONTINUES).removeprefix(BEGINS)
        is_joined = (
            piece.startswith(CONTINUES)
            if tokenizer.kind == "wordpiece"
            else not piece.startswith(BEGINS)
        )
        text += "" if is_joined or not text else " "
        if place in masked:
            numbers, shares = best[place]
            marks.append(
                (len(text), len(text) + len(word), "answer" if numbers[0] == true else "predicted")
            )
            if numbers[0] != true:
                listed = zip(tokenizer.pieces(numbers), shares, strict=True)
                wrong.append(
                    f"{piece} → {' · '.join(f'{name} {share:.2f}' for name, share in listed)}"
                )
        text += word
    return [marked(text, marks), "; ".join(wrong)]
