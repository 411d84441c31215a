"""Checks the classifier recipe: the same examples, batches, rate and epochs in PyTorch and transformers.

    python -m benchmarks.pytorch_classifier --model DIR --data_dir glue_data --task_name MRPC --seeds 1 2 3 …

needs torch in addition to ringbert's packages. It reads the rows that bert-classifier caches in the same order,
trains `BertForSequenceClassification`, and prints one JSON line per seed with the task's metrics.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from transformers import BertForSequenceClassification

from benchmarks.pytorch_recipe import add_flags, inputs_of, train
from bert.text import tokenizer
from distributed.order import fixed_batches
from distributed.rows import Rows
from distributed.run import Run
from tasks.cache import in_memory
from tasks.classifier import metrics as classifier_metrics
from tasks.classifier import tasks as classifier_tasks
from tasks.classifier.reading import Source
from tasks.classifier.rows import collate, tables
from tasks.classifier.settings import TextSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "data_dir", "task_name"):
        parser.add_argument(f"--{name}", required=True)
    add_flags(parser, (("max_train_examples", 10**9), ("train_batch_size", 32), ("max_seq_length", 128)))
    flags = parser.parse_args()

    words = tokenizer.load(None, Path(flags.model))
    task = classifier_tasks.find_task(flags.task_name)
    rows = {}
    for split in ("train", "dev"):
        settings = TextSettings(
            task_name=flags.task_name, data_dir=flags.data_dir, max_train_examples=flags.max_train_examples
        )
        run, texts = Run(Path("/tmp"), is_writer=False), Source(settings, task, split).read()
        data = in_memory(tables(texts, task.labels, words, flags.max_seq_length, run))
        rows[split] = data.tables["examples"]
    for seed in flags.seeds:
        torch.manual_seed(seed)
        labels = 1 if task.labels is None else len(task.labels)
        model = BertForSequenceClassification.from_pretrained(flags.model, num_labels=labels)
        started = time.time()
        train(model, model.classifier, flags, rows["train"], seed, collate, loss_of)
        trained = time.time()
        scores = classifier_metrics.scores(task.metrics, *predict(model, rows["dev"]))
        print(json.dumps({"seed": seed, **scores, "train_s": round(trained - started, 1)}), flush=True)


def scores_of(model, batch) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(**inputs_of(batch)).logits.float()


def loss_of(model, batch) -> torch.Tensor:
    scores, label = scores_of(model, batch), torch.from_numpy(np.array(batch["label"]))
    if label.dtype.is_floating_point:
        return torch.nn.functional.mse_loss(scores[:, 0], label)
    return torch.nn.functional.cross_entropy(scores, label.long())


@torch.no_grad()
def predict(model, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Labels and predictions, [n]."""
    model.eval()
    label = np.asarray(rows.column("label"))
    predictions = np.zeros(len(rows))
    lengths = np.diff(rows.column("input_ids")[1])
    for batch in fixed_batches(lengths, 8 * int(lengths.max())):
        scores = scores_of(model, collate(rows.take(batch))).numpy()
        predictions[batch] = scores[:, 0] if scores.shape[1] == 1 else scores.argmax(1)
    return label, predictions


if __name__ == "__main__":
    main()
