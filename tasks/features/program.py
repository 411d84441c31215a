"""bert-features: hidden-state vectors of texts (google-research/bert `extract_features.py`), over
all ranks.

A line of the input is a text, or a pair `text ||| text`. The output is JSON lines in Google's form,
or Parquet.
"""

import contextlib
import itertools
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from bert.text.tokenizer import check_unknown
from distributed.rows import Rows
from ringbase.errors import InputError
from ringbase.files import read_text, replacing
from tasks.features.__main__ import FeaturesConfig
from tasks.features.task import FeaturesTask, states_of
from tasks.runs.execute.job import Job, run_on_ranks
from tasks.runs.execute.loading import load_on_all, model_of
from tasks.runs.execute.predict import Predictor
from tasks.runs.resolve.start import Needs, check_length, start_of_model
from tasks.runs.rows.sets import set_of
from tasks.runs.rows.texts import Pairs, Tokenization

# a line's number, n tokens, states float32 [n, layers, H]
Vectors = tuple[int, list[str], np.ndarray]

BATCHES_AT_ONCE = 64  # rank 0 collects the vectors of this many in memory before it writes them
# of Parquet: 100 MB at most, for four layers of BERT-base and lines of 128 tokens
LINES_PER_ROW_GROUP = 64


def run(config: FeaturesConfig) -> None:
    folder = str(Path(config.output_file).parent)
    run_on_ranks("bert-features", config, folder, run_features)


def run_features(config: FeaturesConfig, job: Job) -> None:
    """Reads, tokenizes and computes on every rank; rank 0 writes, in the order of the lines."""
    world, run = job.world, job.run
    start = world.on_first(start_of_model, config.model, run.say, Needs())
    check_length(config.max_seq_length, start.bert_config)
    layers = chosen_layers(config.layers, start.bert_config.num_hidden_layers)
    table = world.on_first(tokenize, config, Tokenization(world, run, start.words))
    task = FeaturesTask(config.max_seq_length)
    model = model_of(start, task.head)
    assert start.weights is not None
    load_on_all(model, start.weights, world, run)
    forward = states_of(model, list(layers.values()))
    predictor = Predictor(model, task, job, forward)
    at_once = BATCHES_AT_ONCE * config.batch_size

    def vectors(bar: tqdm) -> Iterator[Vectors]:
        """Yields the vectors of each line on rank 0, and nothing on other ranks."""
        for first in range(0, table.num_rows, at_once):
            rows = Rows(table.slice(first, at_once))
            ids, offsets = rows.column("input_ids")
            states_of_rows = predictor(rows, config.batch_size, label=None) or ()
            for row, states in enumerate(states_of_rows):
                tokens = start.words.pieces(ids[offsets[row] : offsets[row + 1]])
                yield first + row, tokens, states
            bar.update(len(rows))

    with run.progress(table.num_rows, "features", "line") as bar:
        if run.is_writer:
            path = Path(config.output_file).expanduser()
            try:
                write(layers, path, vectors(bar))
            except OSError as error:
                reason = error.strerror or error
                raise InputError(f"--output_file {path} cannot be written: {reason}") from error
        else:
            list(vectors(bar))  # only computes
    run.say(f"done: {config.output_file}, {table.num_rows:,} lines, layers {config.layers}")


def chosen_layers(text: str, num_layers: int) -> dict[int, int]:
    """Maps the user's layer numbers (0 is the first layer's output, -1 the last's) to indices of
    hidden states."""
    numbers = [int(part) for part in text.split(",")]
    wrong = [number for number in numbers if not -num_layers <= number < num_layers]
    if wrong:
        raise InputError(
            f"--layers {text}: the model has {num_layers} layers and no layer {wrong[0]}"
        )
    # hidden state 0 is the embeddings' output
    return {number: number % num_layers + 1 for number in numbers}


def tokenize(config: FeaturesConfig, tokenization: Tokenization) -> pa.Table:
    """The lines as an Arrow table of `input_ids` and `sentence_a_tokens`. On rank 0."""
    where = f"--input_file {config.input_file}"
    text = read_text(Path(config.input_file).expanduser(), where)
    if not text:
        raise InputError(f"{where}: the file is empty")
    lines = [line.strip() for line in text.removesuffix("\n").split("\n")]
    first, second = list[str](), list[str | None]()
    for line in lines:
        text, mark, other = line.rpartition(" ||| ")
        first.append(text if mark else line)
        second.append(other if mark else None)
    data = set_of(FeaturesTask(config.max_seq_length), Pairs(first, second), tokenization)
    share = data.made.facts["unknown_share"]
    check_unknown(share, where, tokenization.tokenizer, config.allow_unknown)
    return data.rows.table


def write(layers: Collection[int], path: Path, vectors: Iterator[Vectors]) -> None:
    with replacing(path) as file:
        if path.suffix == ".parquet":
            write_parquet(file, layers, vectors)
        else:
            file.writelines(json_line(layers, *line) for line in vectors)


def json_line(layers: Collection[int], number: int, tokens: list[str], states: np.ndarray) -> bytes:
    """A line as extract_features.py writes it."""
    features = []
    vectors_of_tokens = states.astype(float).round(6).tolist()
    for token, vectors in zip(tokens, vectors_of_tokens, strict=True):
        by_layer = []
        for index, values in zip(layers, vectors, strict=True):
            by_layer.append({"index": index, "values": values})
        features.append({"token": token, "layers": by_layer})
    line = json.dumps({"linex_index": number, "features": features})
    return f"{line}\n".encode()


def write_parquet(file: BinaryIO, layers: Collection[int], vectors: Iterator[Vectors]) -> None:
    """Columns linex_index, tokens, and one per layer: layer_-1, a list of vectors (float32), one
    per token."""
    with contextlib.ExitStack() as stack:  # the writer is closed while the file is open
        writer = None
        while lines := list(itertools.islice(vectors, LINES_PER_ROW_GROUP)):
            numbers, tokens, states = zip(*lines, strict=True)
            columns = {"linex_index": pa.array(numbers)}
            columns["tokens"] = pa.array(tokens, pa.list_(pa.string()))
            offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int32)
            by_layer = np.concatenate(states).swapaxes(0, 1)
            for layer, vectors_TH in zip(layers, by_layer, strict=True):
                width = vectors_TH.shape[1]
                values = pa.array(vectors_TH.reshape(-1))
                rows = pa.FixedSizeListArray.from_arrays(values, width)
                columns[f"layer_{layer}"] = pa.ListArray.from_arrays(offsets, rows)
            table = pa.table(columns)
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(file, table.schema))
            writer.write_table(table)
