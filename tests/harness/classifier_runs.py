"""Small files for the classifier's runs, and bert-classifier in this process, on one rank."""

import csv
import json
from functools import partial

from harness import texts
from harness.program_runs import bert, written_scores

TRAIN = texts.make_examples(960, 1)
DEV = texts.make_examples(90, 2)
TEST = texts.make_examples(50, 3)
LEARN = (
    "--do_train",
    "--learning_rate=1e-3",
    "--lr_scaling=none",
    "--global_batch_size=32",
    "--log_steps=5",
)
COLUMNS = ["body", "more", "kind"]
classify = partial(bert, "classifier")  # the program in this process; it returns its scores


def write_rows(path, header, rows, delimiter="\t"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])


def write_data(folder):
    """Vocabulary and configuration, train.csv, dev.tsv, test.jsonl."""
    texts.write_model(folder, num_layers=1)
    write_rows(folder / "train.csv", COLUMNS, TRAIN, ",")
    write_rows(folder / "dev.tsv", COLUMNS, DEV)
    texts.write_lines(
        folder / "test.jsonl", *(json.dumps({"more": e.second, "body": e.first}) for e in TEST)
    )
    return folder


def model_flags(data):
    return [
        f"--vocab_file={data}/vocab.txt",
        f"--bert_config_file={data}/bert_config.json",
        "--max_seq_length=32",
    ]


def own_files(data):
    return [
        f"--train_file={data}/train.csv",
        f"--dev_file={data}/dev.tsv",
        f"--predict_file={data}/test.jsonl",
        "--text_column=body",
        "--text_pair_column=more",
        "--label_column=kind",
    ]


def glue_flags(data, glue, task, steps=4):
    files = [f"--data_dir={glue}", f"--task_name={task}"]
    return [*model_flags(data), *files, *LEARN, f"--num_train_steps={steps}"]


def scores_in(folder):
    """Without what only Google's form of the file has."""
    scores = written_scores(folder)
    assert scores.pop("loss") == scores["eval_loss"]
    assert scores.pop("global_step", 1) > 0
    return scores


def table_in(path):
    return [line.split("\t") for line in path.read_text().splitlines()]
