"""Whole fine-tunings as PyTorch users write them: reads the files, tokenizes, trains, predicts,
scores.

    python torch_jobs.py SETTINGS.json REPORT.json

compare.py starts this file, possibly with another Python; it needs torch and transformers, none of
our packages. It is meant to be fast: Rust tokenizers, batches of similar length padded to their
longest row (as with `group_by_length` of transformers' Trainer), the fused AdamW, autocast to
bfloat16 if asked for, and predictions sorted by length in inference mode. The report has the scores
and the seconds since the start of the process.
"""

import csv
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

STARTED_S = time.perf_counter()

import numpy as np  # noqa: E402
import scipy.stats  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

MEGABATCH = 50  # batches within which rows are sorted by length
Row = dict[str, Any]  # "input_ids", "token_type_ids", and the targets


def grouped(
    lengths: np.ndarray, batch_size: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """The row numbers of each batch of an epoch, rows of similar length together."""
    shuffled = generator.permutation(len(lengths))
    size = MEGABATCH * batch_size
    parts = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
    ordered = np.concatenate([part[np.argsort(-lengths[part], kind="stable")] for part in parts])
    batches = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
    return [batches[place] for place in generator.permutation(len(batches))]


def sorted_batches(lengths: np.ndarray, most_tokens: int) -> Iterator[np.ndarray]:
    """Batches of rows of like length, the longest first, with at most this number of tokens,
    padding included."""
    rows = np.argsort(-lengths, kind="stable")
    while len(rows):
        count = max(1, most_tokens // int(lengths[rows[0]]))
        yield rows[:count]
        rows = rows[count:]


def tensors(rows: list[Row], targets: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """A batch, int64 [B, T], padded to its longest row, with its targets."""
    width = max(len(row["input_ids"]) for row in rows)
    batch = {
        name: torch.zeros(len(rows), width, dtype=torch.int64)
        for name in ("input_ids", "token_type_ids")
    }
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for place, row in enumerate(rows):
        length = len(row["input_ids"])
        mask[place, :length] = 1
        for name, values in batch.items():
            values[place, :length] = torch.tensor(row[name])
    for name in targets:
        columns = [row[name] for row in rows]
        if isinstance(columns[0], list):  # of each token
            columns = [column + [UNUSED] * (width - len(column)) for column in columns]
        batch[name] = torch.tensor(columns)
    return batch | {"attention_mask": mask}


class Job:
    """One fine-tuning: `train`, then `outputs` of other rows. `collate` makes a batch for training
    of rows."""

    def __init__(self, settings: dict[str, Any], collate: Callable[[list[Row]], dict[str, Any]]):
        self.settings, self.collate = settings, collate
        self.phases: dict[str, float] = {}
        torch.set_num_threads(settings["num_threads"])

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.settings["precision"] == "bf16")

    def ended(self, phase: str) -> None:
        self.phases.setdefault(phase, time.perf_counter() - STARTED_S)

    def train(self, model: torch.nn.Module, rows: list[Row], seed: int) -> None:
        """Adam with weight decay, 10 % warmup, linear decay."""
        size, epochs = self.settings["batch_size"], self.settings["num_epochs"]
        steps = -(-len(rows) // size) * epochs
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=self.settings["learning_rate"], fused=True
        )
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
        lengths = np.array([len(row["input_ids"]) for row in rows])
        generator, number = np.random.default_rng(seed), 0
        model.train()
        for _ in range(epochs):
            for batch in grouped(lengths, size, generator):
                with self.autocast():
                    loss = model(**self.collate([rows[row] for row in batch])).loss
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                number += 1
                if number <= 2:
                    self.ended("first_step" if number == 1 else "second_step")
        self.ended("trained")

    def outputs(
        self, model: torch.nn.Module, rows: list[Row], names: tuple[str, ...]
    ) -> list[list[np.ndarray]]:
        """The outputs `names` of each row."""
        lengths = np.array([len(row["input_ids"]) for row in rows])
        found: list[list[np.ndarray]] = [[] for _ in rows]
        model.eval()
        with torch.inference_mode(), self.autocast():
            for batch in sorted_batches(lengths, 8 * self.settings["max_seq_length"]):
                output = model(**tensors([rows[row] for row in batch], ()))
                for name in names:
                    for row, values in zip(batch, output[name].float().numpy(), strict=True):
                        found[row].append(values)
        return found

    def labels(
        self, kind: Any, train: list[Row], dev: list[Row], **options: int
    ) -> Iterator[list[np.ndarray]]:
        """For each seed trains a model of this class, and yields the logits of each row of the dev
        set."""
        self.ended("data")
        for seed in self.settings["seeds"]:
            torch.manual_seed(seed)
            model = kind.from_pretrained(self.settings["model"], dtype=torch.float32, **options)
            self.train(model, train, seed)
            yield [logits for (logits,) in self.outputs(model, dev, ("logits",))]


# -- classifiers -----------------------------------------------------------------------------------

COLUMNS = {"mrpc": ("Quality", "#1 String", "#2 String"), "sst-2": ("label", "sentence", None)}


def labelled_texts(
    path: Path, task: str, most: int | None
) -> tuple[list[int], list[str], list[str] | None]:
    """Labels, texts and second texts of a file of GLUE's."""
    label, text, pair = COLUMNS[task]
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:most]
    seconds = [line[pair] for line in lines] if pair else None
    return [int(line[label]) for line in lines], [line[text] for line in lines], seconds


def classifier(job: Job) -> dict[str, Any]:
    """Accuracy on the dev set, of each seed."""
    settings = job.settings
    words = transformers.AutoTokenizer.from_pretrained(settings["model"])

    def rows_of(split: str, most: int | None) -> list[Row]:
        path = Path(settings["data_dir"], f"{split}.tsv")
        labels, texts, pairs = labelled_texts(path, settings["task"], most)
        both = words(
            texts,
            pairs,
            truncation=True,
            max_length=settings["max_seq_length"],
            return_attention_mask=False,
            return_token_type_ids=True,
        )
        columns = zip(both["input_ids"], both["token_type_ids"], labels, strict=True)
        return [
            dict(zip(("input_ids", "token_type_ids", "labels"), row, strict=True))
            for row in columns
        ]

    train, dev = rows_of("train", settings["max_train_examples"]), rows_of("dev", None)
    true, kind = [row["labels"] for row in dev], transformers.BertForSequenceClassification
    logits = job.labels(kind, train, dev)
    return {"accuracy": [float((np.argmax(of_seed, 1) == true).mean()) for of_seed in logits]}


# -- tags ------------------------------------------------------------------------------------------

UNUSED = -100  # PyTorch's label of a token without a loss


def tagger(job: Job) -> dict[str, Any]:
    """F1 of the entities of the dev set, of each seed."""
    settings = job.settings
    words = transformers.AutoTokenizer.from_pretrained(settings["model"])
    files = {
        name: Path(settings["data_dir"], f"{name}.conll").read_text() for name in ("train", "dev")
    }
    sets = {
        name: [*map(str.split, re.split(r"\n\s*\n", text.strip()))] for name, text in files.items()
    }
    names = sorted({tag for cells in sets["train"] for tag in cells[1::2]})

    def rows_of(name: str) -> list[Row]:
        both = words(
            [cells[::2] for cells in sets[name]],
            is_split_into_words=True,
            truncation=True,
            max_length=settings["max_seq_length"],
            return_token_type_ids=True,
        )
        rows = []
        for place, cells in enumerate(sets[name]):
            at, labels = both.word_ids(place), []
            for before, word in zip([None, *at], at, strict=False):
                labels.append(
                    UNUSED if word is None or word == before else names.index(cells[2 * word + 1])
                )
            rows.append(
                {name: both[name][place] for name in ("input_ids", "token_type_ids")}
                | {"labels": labels}
            )
        return rows

    train, dev, kind = rows_of("train"), rows_of("dev"), transformers.BertForTokenClassification
    scores = []
    for of_seed in job.labels(kind, train, dev, num_labels=len(names)):
        right = found = true = 0
        for row, logits in zip(dev, of_seed, strict=True):
            used = np.array(row["labels"]) != UNUSED
            numbers = logits[: len(used)].argmax(1)[used], np.array(row["labels"])[used]
            ours, theirs = (entities([names[number] for number in part]) for part in numbers)
            right, found, true = right + len(ours & theirs), found + len(ours), true + len(theirs)
        scores.append(2 * right / (found + true))
    return {"f1": scores}


def entities(tags: list[str]) -> set[tuple[int, int, str]]:
    """First word, last word and type of each, as conlleval finds them in BIO tags."""
    starts = [
        at
        for at, tag in enumerate(tags)
        if tag[0] == "B" or (tag[0] == "I" and tag[1:] != tags[at - 1][1:])
    ]
    starts += [0] if tags and tags[0][0] == "I" and 0 not in starts else []
    found = set()
    for start in starts:
        end = start
        while end + 1 < len(tags) and tags[end + 1] == f"I{tags[start][1:]}":
            end += 1
        found.add((start, end, tags[start][2:]))
    return found


# -- SQuAD -----------------------------------------------------------------------------------------


def questions_of(path: str, most: int) -> list[dict[str, Any]]:
    found = []
    for article in json.loads(Path(path).read_text())["data"]:
        for paragraph in article["paragraphs"]:
            found += [
                {**question, "context": paragraph["context"]} for question in paragraph["qas"]
            ]
    return found[:most]


def windows_of(
    questions: list[dict[str, Any]], words: Any, length: int, is_training: bool
) -> list[Row]:
    """Windows with a stride of 128, and where the first answer starts and ends in each."""
    both = words(
        [question["question"].strip() for question in questions],
        [question["context"] for question in questions],
        truncation="only_second",
        max_length=length,
        stride=128,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    rows = []
    for place, number in enumerate(both["overflow_to_sample_mapping"]):
        row: Row = {name: both[name][place] for name in ("input_ids", "token_type_ids")}
        sequence, offsets = both.sequence_ids(place), both["offset_mapping"][place]
        first = sequence.index(1)
        last = len(sequence) - 1 - sequence[::-1].index(1)
        row |= {"question": number, "offsets": offsets, "context": (first, last)}
        if is_training:
            answer = questions[number]["answers"][0]
            start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
            row["start_positions"] = row["end_positions"] = 0
            if offsets[first][0] <= start and offsets[last][1] >= end:
                inside = [
                    at
                    for at in range(first, last + 1)
                    if offsets[at][1] > start and offsets[at][0] < end
                ]
                row["start_positions"], row["end_positions"] = inside[0], inside[-1]
        rows.append(row)
    return rows


def answers_of(
    questions: list[dict[str, Any]], rows: list[Row], outputs: list[list[np.ndarray]]
) -> list[str]:
    """The text of the best span of each question: 20 starts and 20 ends of each window, at most 30
    tokens."""
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
            begin, end = (
                row["offsets"][first + tops[0][one]][0],
                row["offsets"][first + tops[1][two]][1],
            )
            best[row["question"]] = (
                float(sums[one, two]),
                questions[row["question"]]["context"][begin:end],
            )
    return [best.get(number, (0.0, ""))[1] for number in range(len(questions))]


def squad(job: Job) -> dict[str, Any]:
    """The answers to the dev set's first questions."""
    settings = job.settings
    words = transformers.AutoTokenizer.from_pretrained(settings["model"])
    length = settings["max_seq_length"]
    train = windows_of(
        questions_of(settings["train_file"], settings["max_train_examples"]), words, length, True
    )
    questions = questions_of(settings["predict_file"], settings["max_predict_examples"])
    dev = windows_of(questions, words, length, False)
    job.ended("data")
    torch.manual_seed(settings["seeds"][0])
    model = transformers.BertForQuestionAnswering.from_pretrained(
        settings["model"], dtype=torch.float32
    )
    if settings["num_epochs"]:
        job.train(model, train, settings["seeds"][0])
    names = "start_logits", "end_logits"
    if settings.get("is_frozen"):
        # Inductor packs the weights of a model that is frozen (TORCHINDUCTOR_FREEZING=1).
        model = torch.compile(model, mode="max-autotune", dynamic=True)
        job.outputs(model, dev, names)
    start_s = time.perf_counter()
    outputs = job.outputs(model, dev, names)
    seconds = time.perf_counter() - start_s
    answers = answers_of(questions, dev, outputs)
    answered = dict(zip([question["id"] for question in questions], answers, strict=True))
    return {"answers": answered, "windows": len(dev), "prediction_s": seconds}


# -- embeddings ------------------------------------------------------------------------------------


class Embedder(torch.nn.Module):
    """Unit vectors, the means of the states of a text's tokens. With scores the loss is the squared
    error of the pairs' cosines, else sentence-transformers' MultipleNegativesRankingLoss."""

    def __init__(self, model: str, temperature: float):
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(model, dtype=torch.float32)
        self.temperature = temperature

    def vectors(self, attention_mask: torch.Tensor, **batch: torch.Tensor) -> torch.Tensor:
        states = self.encoder(attention_mask=attention_mask, **batch).last_hidden_state.float()
        weights = attention_mask[..., None].float()
        means = (states * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(means, dim=-1)

    def forward(self, scores: torch.Tensor | None = None, pairs=(), **batch: Any) -> Any:
        if not pairs:
            return {"vector": self.vectors(**batch)}
        anchors, positives = (self.vectors(**texts) for texts in pairs)
        if scores is not None:
            return Loss(torch.nn.functional.mse_loss((anchors * positives).sum(1), scores))
        products = anchors @ positives.T / self.temperature
        return Loss(torch.nn.functional.cross_entropy(products, torch.arange(len(products))))


class Loss(NamedTuple):
    loss: torch.Tensor


def pairs_in(settings: dict[str, Any], split: str) -> list[dict[str, Any]]:
    """The pairs of a JSON lines file, or of STS-B's, with scores from 0 to 1."""
    folder = Path(settings["data_dir"])
    if settings["task"] == "pairs":
        return [*map(json.loads, (folder / f"{split}.jsonl").open(encoding="utf-8"))]
    names = ("sentence1", "sentence2", "score")
    with (folder / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        cells = [[row[name] for name in names] for row in rows]
    return [{"anchor": a, "positive": b, "score": float(score) / 5} for a, b, score in cells]


def pairs_of_rows(rows: list[Row]) -> dict[str, Any]:
    """A batch of anchors and one of positives, each padded to its longest text, and the scores."""
    columns = [[row["texts"][place] for row in rows] for place in (0, 1)]
    batch: dict[str, Any] = {"pairs": [tensors(column, ()) for column in columns]}
    if "score" in rows[0]:
        batch["scores"] = torch.tensor([row["score"] for row in rows])
    return batch


def embedder(job: Job) -> dict[str, Any]:
    """Of each seed MRR@10 of the dev set's anchors among its positives, or Spearman's correlation
    of cosines and scores."""
    settings = job.settings
    words = transformers.AutoTokenizer.from_pretrained(settings["model"])

    def tokenized(texts: list[str]) -> list[Row]:
        both = words(texts, truncation=True, max_length=settings["max_seq_length"])
        ids = both["input_ids"]
        return [{"input_ids": row, "token_type_ids": [0] * len(row)} for row in ids]

    train = []
    pairs = pairs_in(settings, "train")[: settings["max_train_examples"]]
    sides = [tokenized([pair[name] for pair in pairs]) for name in ("anchor", "positive")]
    for pair, *texts in zip(pairs, *sides, strict=True):
        joined = [token for text in texts for token in text["input_ids"]]  # for its length
        train.append({key: pair[key] for key in pair if key == "score"})
        train[-1] |= {"texts": texts, "input_ids": joined}
    dev = pairs_in(settings, "dev")[: settings["max_predict_examples"]]
    texts = [*dict.fromkeys(pair[name] for name in ("positive", "anchor") for pair in dev)]
    rows, at = tokenized(texts), {text: place for place, text in enumerate(texts)}
    job.ended("data")
    scores = []
    for seed in settings["seeds"]:
        torch.manual_seed(seed)
        model = Embedder(settings["model"], settings["temperature"])
        job.train(model, train, seed)
        vectors = np.array([vector for (vector,) in job.outputs(model, rows, ("vector",))])
        anchors, positives = (
            vectors[[at[pair[name]] for pair in dev]] for name in ("anchor", "positive")
        )
        own = (anchors * positives).sum(1)
        if "score" in dev[0]:
            true = [pair["score"] for pair in dev]
            scores.append(float(scipy.stats.spearmanr(own, true).statistic))
            continue
        documents = vectors[: len({pair["positive"] for pair in dev})]
        ranks = (anchors @ documents.T > own[:, None] + 1e-6).sum(1) + 1
        scores.append(float(np.where(ranks <= 10, 1 / ranks, 0).mean()))
    return {"embeddings": scores}


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    works: dict[str, Callable[[Job], dict[str, Any]]] = {
        "squad": squad,
        "wnut": tagger,
        "pairs": embedder,
        "sts-b": embedder,
    }
    work = works.get(settings["task"], classifier)
    targets = ("start_positions", "end_positions") if work is squad else ("labels",)
    job = Job(settings, pairs_of_rows if work is embedder else partial(tensors, targets=targets))
    job.ended("imports")
    report = work(job)
    job.ended("scored")
    Path(sys.argv[2]).write_text(json.dumps(report | {"phases": job.phases}))


if __name__ == "__main__":
    main()
