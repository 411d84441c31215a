"""Checks the SQuAD recipe: the same windows, batch, rate and epochs in PyTorch and transformers.

    python -m benchmarks.pytorch_squad --model DIR --train_file train.json --predict_file dev.json --seeds 1 2 3 …

needs torch in addition to ringbert's packages. It reads the windows that bert-squad caches in the same order,
trains `BertForQuestionAnswering` under bfloat16 autocast with BERT's optimizer written out in torch, and prints
one JSON line per seed with EM and F1 from bert-squad's own answer search.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from transformers import BertForQuestionAnswering

from benchmarks.pytorch_recipe import add_flags, inputs_of, train
from bert.text import tokenizer
from distributed.order import fixed_batches
from distributed.rows import Rows
from distributed.run import Run
from tasks.cache import in_memory
from tasks.squad import metrics as squad_metrics
from tasks.squad.answers import SpanDecoder
from tasks.squad.program import collate
from tasks.squad.reading import Source, read
from tasks.squad.settings import AnswerSettings, WindowSettings
from tasks.squad.windows import tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "train_file", "predict_file"):
        parser.add_argument(f"--{name}", required=True)
    add_flags(
        parser,
        (
            ("max_train_examples", 2000), ("max_predict_examples", 1000), ("train_batch_size", 16),
            ("max_seq_length", 384),
        ),
    )  # fmt: skip
    flags = parser.parse_args()

    run = Run(Path("/tmp"), is_writer=False)
    words = tokenizer.load(None, Path(flags.model))
    data = {}
    settings = WindowSettings(max_seq_length=flags.max_seq_length)
    for source in (
        Source(flags.train_file, "--train_file", True, flags.max_train_examples),
        Source(flags.predict_file, "--predict_file", False, flags.max_predict_examples),
    ):
        examples = read(source)
        rows = in_memory(tables(settings, examples, words, run)).tables
        data[source.is_training] = examples, rows["windows"], rows["paragraphs"]
    for seed in flags.seeds:
        started = time.time()
        torch.manual_seed(seed)
        model = BertForQuestionAnswering.from_pretrained(flags.model)
        train(model, model.qa_outputs, flags, data[True][1], seed, collate, loss_of)
        trained = time.time()
        scores = predict(model, *data[False])
        print(json.dumps({"seed": seed, **scores, "train_s": round(trained - started, 1)}), flush=True)


def loss_of(model, batch) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        start, end = scores_of(model, batch)
    targets = [torch.from_numpy(batch[name].astype(np.int64)) for name in ("start_position", "end_position")]
    entropy = torch.nn.functional.cross_entropy
    return (entropy(start, targets[0]) + entropy(end, targets[1])) / 2


def scores_of(model, batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and end scores, float32 [B, T], padding at minus infinity."""
    inputs = inputs_of(batch)
    output = model(**inputs)
    masked = (1 - inputs["attention_mask"]) * -1e30
    return output.start_logits.float() + masked, output.end_logits.float() + masked


@torch.no_grad()
def predict(model, examples, windows: Rows, paragraphs: Rows) -> dict[str, float]:
    model.eval()
    lengths = np.diff(windows.column("input_ids")[1])
    scores: list = [None] * len(windows)
    for batch in fixed_batches(lengths, 16 * int(lengths.max())):
        with torch.autocast("cpu", torch.bfloat16):
            start, end = scores_of(model, collate(windows.take(batch)))
        both = torch.stack([start, end], -1).numpy()
        for row, window in enumerate(batch):
            scores[window] = both[row, : lengths[window]]
    decoded = SpanDecoder(AnswerSettings(), False, examples, windows, paragraphs).decode(scores)
    predictions = {question.id: each.answer for question, each in zip(examples.questions, decoded, strict=True)}
    return squad_metrics.squad_v1(examples.references, predictions)


if __name__ == "__main__":
    main()
