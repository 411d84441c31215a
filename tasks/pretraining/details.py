"""What the report shows of a pretrained model: examples with their masks filled in."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert.batch import with_checked_ids
from bert.model import Bert
from bert.text.tokenizer import Tokenizer
from distributed.predict import predict
from distributed.rows import BatchRows, fields_of
from tasks.pretraining.task import MaskedTask
from tasks.runs.details import MOST_ROWS, Section, marked, table
from tasks.runs.job import Job

EXAMPLES = 6
CANDIDATES = "predicted", "second", "third"
AROUND = 10  # words on either side of a wrong token
RIGHT, WRONG = "answer", "predicted"  # marks: green, red
CONTINUES, BEGINS = "##", "▁"  # marks of WordPiece and SentencePiece


def filled_in(
    job: Job, model: Bert, task: MaskedTask, rows: BatchRows, tokenizer: Tokenizer
) -> list[Section]:
    """The first examples with the masked tokens marked, and the model's best candidates for those
    that it gets wrong. Every rank calls it; on other ranks than 0 it is empty."""
    first = np.arange(min(EXAMPLES, len(rows)))

    def candidates(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return tuple(
            tf.math.top_k(tf.nn.softmax(tf.cast(model(batch)["mlm"], tf.float32)), len(CANDIDATES))
        )

    make_batch = with_checked_ids(task.batch, model.config)
    outputs = predict(job.world, job.run, rows, [first], make_batch, candidates, label=None)
    if outputs is None:
        return []
    batch, (shares, found) = task.batch(fields_of(rows, first, first)), outputs[0]
    masked = dict(zip(batch["masked_tokens"].tolist(), batch["masked_ids"].tolist(), strict=True))
    best = dict(zip(masked, zip(found.tolist(), shares.tolist(), strict=True), strict=True))
    starts = [*batch["first_tokens"][: len(first)].tolist(), int(batch["attention_mask"].sum())]
    texts, wrong = list[list[Section]](), list[tuple[str, Guess]]()
    for edges in itertools.pairwise(starts):
        text, guesses = read(range(*edges), batch["input_ids"], masked, best, tokenizer)
        marks = [(guess.start, guess.stop, guess.mark) for guess in guesses]
        texts.append([marked(text, marks)])
        wrong += [(text, guess) for guess in guesses if guess.mark == WRONG]
    wrong.sort(key=lambda pair: -pair[1].shares[0])
    note = "masked tokens are marked, green where the model's best candidate is right"
    in_all = f"{len(wrong):,} of the {len(masked):,} masked tokens; candidates with probabilities"
    cells = itertools.starmap(row_of, wrong[:MOST_ROWS])
    return [
        table("Masks filled in", note, ["text"], texts),
        table("Wrong, the surest first", in_all, ["text", "true", *CANDIDATES], cells),
    ]


class Guess(NamedTuple):
    """A masked token at the characters `[start:stop]` of a text, and the best candidates."""

    start: int
    stop: int
    true: str
    candidates: Sequence[str]
    shares: Sequence[float]  # their probabilities

    @property
    def mark(self) -> str:
        return RIGHT if self.candidates[0] == self.true else WRONG


def read(
    places: range,
    ids: np.ndarray,
    masked: dict[int, int],
    best: dict[int, Any],
    tokenizer: Tokenizer,
) -> tuple[str, list[Guess]]:
    """The text of the example with these tokens, and what the model says about the masked ones."""
    text, guesses = "", list[Guess]()
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
        start = len(text)
        text += word
        if place in masked:
            numbers, shares = best[place]
            candidates = tokenizer.pieces(numbers)
            guesses.append(Guess(start, len(text), piece, candidates, shares))
    return text, guesses


def row_of(text: str, guess: Guess) -> list:
    """The cells of a wrong token: the text around it, the token, the candidates."""
    before = " ".join(text[: guess.start].split(" ")[-AROUND:])
    after = " ".join(text[guess.stop :].split(" ")[:AROUND])
    word = text[guess.start : guess.stop]
    mark = len(before), len(before + word), WRONG
    listed = zip(guess.candidates, guess.shares, strict=True)
    return [
        marked(before + word + after, [mark]),
        guess.true,
        *(f"{name} {share:.3f}" for name, share in listed),
    ]
