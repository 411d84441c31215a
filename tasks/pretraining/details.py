"""What the report shows of a pretrained model: examples with their masks filled in."""

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from bert.batch import Batch, with_checked_ids
from bert.model import Bert
from bert.text.tokenizer import Tokenizer
from distributed.predict import predict
from distributed.rows import BatchRows, fields_of
from tasks.pretraining.task import MaskedTask
from tasks.runs.details import MOST_ROWS, Section, marked, table
from tasks.runs.job import Job

EXAMPLES, BEFORE = 6, 80  # texts, and characters before a wrong token
CANDIDATES = "predicted", "second", "third"
CONTINUES, BEGINS = "##", "▁"  # marks of WordPiece and SentencePiece


def filled_in(
    job: Job, model: Bert, task: MaskedTask, rows: BatchRows, tokenizer: Tokenizer
) -> list[Section]:
    """The first examples with the masked tokens marked, and the model's best candidates for those
    that it gets wrong. Every rank calls it; on other ranks than 0 it is empty."""
    first = np.arange(min(EXAMPLES, len(rows)))

    def candidates(batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        shares = tf.nn.softmax(tf.cast(model(batch)["mlm"], tf.float32))
        return tuple(tf.math.top_k(shares, len(CANDIDATES)))

    make_batch = with_checked_ids(task.batch, model.config)
    outputs = predict(job.world, job.run, rows, [first], make_batch, candidates, label=None)
    if outputs is None:
        return []
    batch = task.batch(fields_of(rows, first, first))
    shares, found = outputs[0]
    masked = batch["masked_tokens"].tolist()
    true = dict(zip(masked, batch["masked_ids"].tolist(), strict=True))
    candidates_of = zip(found.tolist(), shares.tolist(), strict=True)
    best = dict(zip(masked, candidates_of, strict=True))
    starts = [*batch["first_tokens"][: len(first)].tolist(), int(batch["attention_mask"].sum())]
    texts, wrong = [], []
    for edges in itertools.pairwise(starts):
        text, rows_of_text = read(range(*edges), batch["input_ids"], true, best, tokenizer)
        texts.append([text])
        wrong += rows_of_text
    wrong.sort(key=lambda row: -row[-1])
    note = "masked tokens are marked, green where the model's best candidate is right"
    in_all = f"{len(wrong):,} of the {len(true):,} masked tokens"
    columns = ["text before", "true", *CANDIDATES, "probability"]
    return [
        table("Masks filled in", note, ["text"], texts),
        table("Wrong, the surest first", in_all, columns, wrong[:MOST_ROWS]),
    ]


def read(
    places: range,
    ids: np.ndarray,
    masked: dict[int, int],
    best: dict[int, Any],
    tokenizer: Tokenizer,
) -> tuple[Section, list[list]]:
    """The text of the example with these tokens, and the cells of those that the model gets
    wrong."""
    text, marks, wrong = "", [], []
    for place in places:
        true = masked.get(place, int(ids[place]))
        (piece,) = tokenizer.pieces([true])
        word = piece.removeprefix(CONTINUES).removeprefix(BEGINS)
        is_joined = not piece.startswith(BEGINS)
        if tokenizer.kind == "wordpiece":
            is_joined = piece.startswith(CONTINUES)
        if text and not is_joined:
            text += " "
        if place in masked:
            numbers, shares = best[place]
            color = "answer" if numbers[0] == true else "predicted"
            marks.append((len(text), len(text + word), color))
            if numbers[0] != true:
                before = f"{text[-BEFORE:]}___"
                wrong.append([marked(before), piece, *tokenizer.pieces(numbers), shares[0]])
        text += word
    return marked(text, marks), wrong
