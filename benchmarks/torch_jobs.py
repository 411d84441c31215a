"""A classifier's whole fine-tuning as PyTorch users write it: read the files, tokenize, train, predict, score.

    python torch_jobs.py SETTINGS.json REPORT.json

compare.py starts this file, possibly with another Python; it needs torch and transformers, none of our packages.
It is meant to be fast: Rust tokenizers, batches of similar length padded to their longest row (as with
`group_by_length` of transformers' Trainer), the fused AdamW, autocast to bfloat16 if asked for, and predictions
sorted by length in inference mode.
"""

import csv
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STARTED_S = time.perf_counter()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

MEGABATCH = 50  # batches within which rows are sorted by length
Row = dict[str, Any]  # "input_ids", "token_type_ids", "labels"


def grouped(lengths: np.ndarray, batch_size: int, generator: np.random.Generator) -> list[np.ndarray]:
    """The row numbers of each batch of an epoch, rows of similar length together."""
    shuffled = generator.permutation(len(lengths))
    size = MEGABATCH * batch_size
    parts = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
    ordered = np.concatenate([part[np.argsort(-lengths[part], kind="stable")] for part in parts])
    batches = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
    return [batches[place] for place in generator.permutation(len(batches))]


def sorted_batches(lengths: np.ndarray, most_tokens: int) -> Iterator[np.ndarray]:
    """Batches of rows of like length, the longest first, with at most this number of tokens, padding included."""
    rows = np.argsort(-lengths, kind="stable")
    while len(rows):
        count = max(1, most_tokens // int(lengths[rows[0]]))
        yield rows[:count]
        rows = rows[count:]


def tensors(rows: list[Row]) -> dict[str, torch.Tensor]:
    """A batch, int64 [B, T], padded to its longest row, with its labels [B]."""
    width = max(len(row["input_ids"]) for row in rows)
    batch = {name: torch.zeros(len(rows), width, dtype=torch.int64) for name in ("input_ids", "token_type_ids")}
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for place, row in enumerate(rows):
        length = len(row["input_ids"])
        mask[place, :length] = 1
        for name, values in batch.items():
            values[place, :length] = torch.tensor(row[name])
    return batch | {"attention_mask": mask, "labels": torch.tensor([row["labels"] for row in rows])}


def autocast(settings: dict[str, Any]) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=settings["precision"] == "bf16")


COLUMNS = {"mrpc": ("Quality", "#1 String", "#2 String"), "sst-2": ("label", "sentence", None)}


def classifier(settings: dict[str, Any]) -> dict[str, float]:
    """Fine-tunes. Returns the accuracy on the dev set, and when the second step was done."""
    words = transformers.AutoTokenizer.from_pretrained(settings["model"])
    train = rows_of(settings, words, "train", settings["max_train_examples"])
    dev = rows_of(settings, words, "dev", None)
    torch.manual_seed(settings["seed"])
    model = transformers.BertForSequenceClassification.from_pretrained(settings["model"], dtype=torch.float32)
    second_step = fine_tuned(model, train, settings)
    lengths, right = np.array([len(row["input_ids"]) for row in dev]), 0
    model.eval()
    with torch.inference_mode(), autocast(settings):
        for batch in sorted_batches(lengths, 8 * settings["max_seq_length"]):
            arrays = tensors([dev[row] for row in batch])
            right += int((model(**arrays).logits.argmax(-1) == arrays["labels"]).sum())
    return {"accuracy": right / len(dev), "second_step": second_step}


def rows_of(settings: dict[str, Any], words: Any, split: str, most: int | None) -> list[Row]:
    """The first examples of a file of GLUE's."""
    label, text, pair = COLUMNS[settings["task"]]
    with Path(settings["data_dir"], f"{split}.tsv").open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:most]
    both = words(
        [line[text] for line in lines], [line[pair] for line in lines] if pair else None, truncation=True,
        max_length=settings["max_seq_length"], return_attention_mask=False, return_token_type_ids=True,
    )  # fmt: skip
    columns = zip(both["input_ids"], both["token_type_ids"], [int(line[label]) for line in lines], strict=True)
    return [dict(zip(("input_ids", "token_type_ids", "labels"), row, strict=True)) for row in columns]


def fine_tuned(model: Any, rows: list[Row], settings: dict[str, Any]) -> float:
    """Adam with weight decay, 10 % warmup, linear decay. Returns the seconds until the second step was done."""
    size, epochs, second_step = settings["batch_size"], settings["num_epochs"], 0.0
    steps = -(-len(rows) // size) * epochs
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"], fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    lengths = np.array([len(row["input_ids"]) for row in rows])
    generator = np.random.default_rng(settings["seed"])
    model.train()
    batches = [batch for _ in range(epochs) for batch in grouped(lengths, size, generator)]
    for number, batch in enumerate(batches, 1):
        with autocast(settings):
            loss = model(**tensors([rows[row] for row in batch])).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if number == 2:
            second_step = time.perf_counter() - STARTED_S
    return second_step


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(settings["num_threads"])
    Path(sys.argv[2]).write_text(json.dumps(classifier(settings)))


if __name__ == "__main__":
    main()
