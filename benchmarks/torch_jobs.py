"""Whole fine-tunings and predictions as PyTorch users write them: read the files, tokenize, train, predict, score.

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
Row = dict[str, Any]  # "input_ids", "token_type_ids", and the targets


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


def tensors(rows: list[Row], targets: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """A batch, int64 [B, T], padded to its longest row, with its targets."""
    width = max(len(row["input_ids"]) for row in rows)
    batch = {name: torch.zeros(len(rows), width, dtype=torch.int64) for name in ("input_ids", "token_type_ids")}
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for place, row in enumerate(rows):
        length = len(row["input_ids"])
        mask[place, :length] = 1
        for name, values in batch.items():
            values[place, :length] = torch.tensor(row[name])
    return batch | {"attention_mask": mask} | {name: torch.tensor([row[name] for row in rows]) for name in targets}


def autocast(settings: dict[str, Any]) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=settings["precision"] == "bf16")


def outputs(
    model: Any, rows: list[Row], names: tuple[str, ...], settings: dict[str, Any]
) -> list[list[np.ndarray]]:
    """The outputs `names` of each row."""
    lengths = np.array([len(row["input_ids"]) for row in rows])
    found: list[list[np.ndarray]] = [[] for _ in rows]
    model.eval()
    with torch.inference_mode(), autocast(settings):
        for batch in sorted_batches(lengths, 8 * settings["max_seq_length"]):
            output = model(**tensors([rows[row] for row in batch], ()))
            for name in names:
                for row, values in zip(batch, output[name].float().numpy(), strict=True):
                    found[row].append(values)
    return found


# -- classifiers --------------------------------------------------------------------------------------------------

COLUMNS = {"mrpc": ("Quality", "#1 String", "#2 String"), "sst-2": ("label", "sentence", None)}


def classifier(settings: dict[str, Any]) -> dict[str, float]:
    """Fine-tunes. Returns the accuracy on the dev set, and when the second step was done."""
    words = transformers.AutoTokenizer.from_pretrained(settings["model"])
    train = rows_of(settings, words, "train", settings["max_train_examples"])
    dev = rows_of(settings, words, "dev", None)
    torch.manual_seed(settings["seed"])
    model = transformers.BertForSequenceClassification.from_pretrained(settings["model"], dtype=torch.float32)
    second_step = fine_tuned(model, train, settings)
    predicted = np.array([logits.argmax() for (logits,) in outputs(model, dev, ("logits",), settings)])
    return {"accuracy": float((predicted == [row["labels"] for row in dev]).mean()), "second_step": second_step}


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
            loss = model(**tensors([rows[row] for row in batch], ("labels",))).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if number == 2:
            second_step = time.perf_counter() - STARTED_S
    return second_step


# -- SQuAD --------------------------------------------------------------------------------------------------------


def squad(settings: dict[str, Any]) -> dict[str, float]:
    """Predicts. Returns the number of windows, the seconds until the last one was scored, and those until the
    answers were chosen."""
    words = transformers.AutoTokenizer.from_pretrained(settings["model"])
    articles = json.loads(Path(settings["predict_file"]).read_text())["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    questions = [{**question, "context": each["context"]} for each in paragraphs for question in each["qas"]]
    questions = questions[: settings["max_predict_examples"]]
    rows = windows_of(questions, words, settings["max_seq_length"])
    model = transformers.BertForQuestionAnswering.from_pretrained(settings["model"], dtype=torch.float32)
    start_s = time.perf_counter()
    scores = outputs(model, rows, ("start_logits", "end_logits"), settings)
    scored_s = time.perf_counter()
    answers_of(questions, rows, scores)
    return {"windows": len(rows), "seconds": scored_s - start_s, "files_s": time.perf_counter() - scored_s}


def windows_of(questions: list[dict[str, Any]], words: Any, length: int) -> list[Row]:
    """Windows with a stride of 128."""
    both = words(
        [question["question"].strip() for question in questions], [question["context"] for question in questions],
        truncation="only_second", max_length=length, stride=128, return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    rows = []
    for place, number in enumerate(both["overflow_to_sample_mapping"]):
        row: Row = {name: both[name][place] for name in ("input_ids", "token_type_ids")}
        sequence = both.sequence_ids(place)
        context = sequence.index(1), len(sequence) - 1 - sequence[::-1].index(1)
        rows.append(row | {"question": number, "offsets": both["offset_mapping"][place], "context": context})
    return rows


def answers_of(questions: list[dict[str, Any]], rows: list[Row], outputs: list[list[np.ndarray]]) -> list[str]:
    """The text of the best span of each question: 20 starts and 20 ends of each window, at most 30 tokens."""
    best: dict[int, tuple[float, str]] = {}
    for row, (starts, ends) in zip(rows, outputs, strict=True):
        first, last = row["context"]
        starts, ends = starts[first : last + 1], ends[first : last + 1]
        tops = [np.argsort(-scores)[:20] for scores in (starts, ends)]
        sums = starts[tops[0]][:, None] + ends[tops[1]][None]
        spans = tops[1][None] - tops[0][:, None]
        sums = np.where((spans >= 0) & (spans < 30), sums, -np.inf)
        one, two = np.unravel_index(sums.argmax(), sums.shape)
        if sums[one, two] > best.get(row["question"], (-np.inf, ""))[0]:
            begin, end = row["offsets"][first + tops[0][one]][0], row["offsets"][first + tops[1][two]][1]
            best[row["question"]] = float(sums[one, two]), questions[row["question"]]["context"][begin:end]
    return [best.get(number, (0.0, ""))[1] for number in range(len(questions))]


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(settings["num_threads"])
    report = squad(settings) if settings["task"] == "squad" else classifier(settings)
    Path(sys.argv[2]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
