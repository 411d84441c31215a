"""bert-features: hidden-state vectors of texts (google-research/bert `extract_features.py`), over all ranks.

A line of the input is a text, or a pair `text ||| text`. The output is JSON lines in Google's form, or Parquet.
"""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringbert.errors import InputError
from ringbert.settings import check_at_least, setting
from tasks import flags
from tasks.batches import INPUTS, encoder_inputs, grouped
from tasks.fit import load_for_prediction
from tasks.job import ComputeSettings, Job, run_on_ranks
from tasks.origin import ModelSettings, Needs, origin_of_model

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from bert.text.tokenizer import Tokenizer

BATCHES_AT_ONCE = 16  # per rank: what rank 0 holds before it writes
LINES_PER_ROW_GROUP = 64  # of Parquet: 50 MB of BERT-base's last four layers at 128 tokens, twice that at most
PAIR = re.compile(r"^(.*) \|\|\| (.*)$")


@dataclass(frozen=True, kw_only=True)
class Config(ComputeSettings, ModelSettings):
    """The flags of bert-features: names and defaults of extract_features.py, and a few of ours."""

    input_file: str = setting(help="UTF-8 text, one text or pair `text ||| text` per line", group="data")
    output_file: str = setting(help="JSON lines, or Parquet if it ends in .parquet", group="data")
    layers: str = setting("-1,-2,-3,-4", "layers, from 0 or from the end", "data")
    max_seq_length: int = setting(128, "tokens per line", "data")
    allow_unknown: bool = setting(False, "go on although more than 10 % of the tokens are [UNK]", "data")
    batch_size: int = setting(32, "lines per batch", "machine")

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 4, "max_seq_length")
        check_at_least(self, 1, "batch_size")
        if not (self.init_checkpoint or self.model):
            raise ValueError("weights are needed: give --init_checkpoint, or --model with a folder or hub name")
        if not re.fullmatch(r"-?\d+(,-?\d+)*", self.layers):
            raise ValueError(f"--layers must be integers separated by commas, got {self.layers}")


def main(argv: Sequence[str] | None = None) -> None:
    description = "Hidden-state vectors of texts over all MPI ranks."
    config = flags.parse(Config, argv, prog="bert-features", description=description)
    folder = str(Path(config.output_file).expanduser().parent)
    run_on_ranks("bert-features", config, folder, run_features)


def run_features(config: Config, job: Job) -> None:
    """Reads, tokenizes and computes on every rank; rank 0 writes, in the order of the lines."""
    import numpy as np
    import tensorflow as tf

    from bert.model import Bert
    from distributed.feed import batch_maker
    from distributed.predict import predict
    from distributed.rows import Rows

    world, run = job.world, job.run
    needs = Needs(max_seq_length=config.max_seq_length)
    origin = world.on_first(origin_of_model, config, run.say, needs)
    layers = chosen_layers(config.layers, origin.bert_config.num_hidden_layers)
    rows = Rows(world.on_first(tokenize, config, origin.words))
    model = Bert(origin.bert_config, "features")
    load_for_prediction(job, origin, model)

    def forward(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """float32 [B, T, layers, H]"""
        states = model.hidden_states(batch)
        chosen = tf.stack([tf.cast(states[layer], tf.float32) for layer in layers.values()], 1)
        batch_and_length = tf.shape(batch["input_ids"])
        return tf.reshape(chosen, tf.concat([batch_and_length, tf.shape(chosen)[1:]], 0))

    signature = {name: tf.TensorSpec([None, None], tf.int32) for name in INPUTS}
    compiled = tf.function(forward, input_signature=[signature], autograph=False)
    everything = np.array_split(np.arange(len(rows)), range(config.batch_size, len(rows), config.batch_size))
    step = BATCHES_AT_ONCE * world.size
    make_batch, advice = batch_maker(rows, collate), "lower --batch_size or --max_seq_length"
    bar = run.progress(len(rows), "features", "line")

    def vectors() -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Number, ids [n] and vectors [n, layers, H] of each line on rank 0; nothing elsewhere."""
        for begin_at in range(0, len(everything), step):
            batches = everything[begin_at : begin_at + step]
            outputs = predict(world, run, batches, make_batch, compiled, label=None, memory_advice=advice)
            for numbers, output in zip(batches, outputs or [], strict=False):
                values, offsets = rows.take(numbers)["input_ids"]
                for row, number in enumerate(numbers):
                    ids = values[offsets[row] : offsets[row + 1]]
                    yield int(number), ids, output[row, : len(ids)]
            bar.update(min(len(rows), (begin_at + step) * config.batch_size))

    write(config, origin.words, list(layers), vectors(), is_writer=run.is_writer)
    bar.close()
    run.say(f"done: {config.output_file}, {len(rows):,} lines, layers {config.layers}")


def chosen_layers(text: str, num_layers: int) -> dict[int, int]:
    """Layer as the user counts (0 is the first layer's output, -1 the last's) -> index of the hidden state."""
    numbers = [int(part) for part in text.split(",")]
    wrong = [number for number in numbers if not -num_layers <= number < num_layers]
    if wrong:
        raise InputError(f"--layers {text}: the model has {num_layers} layers, there is no layer {wrong[0]}")
    return {number: number % num_layers + 1 for number in numbers}  # state 0 is the embeddings'


def tokenize(config: Config, tokenizer: "Tokenizer") -> Any:
    """The lines as an Arrow table of `input_ids` and `sentence_a_tokens`. On rank 0."""
    import numpy as np
    import pyarrow as pa

    from bert.text.tokenizer import unknown_share
    from distributed.rows import ragged
    from tasks.classifier.data import MOST_UNKNOWN_SHARE, truncated

    path = Path(config.input_file).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise InputError(f"--input_file {path}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"--input_file {path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    lines = [line.strip() for line in (lines[:-1] if lines[-1] == "" else lines)]
    if not lines:
        raise InputError(f"--input_file {path}: it is empty")
    matches = [PAIR.match(line) for line in lines]
    first = tokenizer.encode_ids([match[1] if match else line for match, line in zip(matches, lines, strict=True)])
    second = tokenizer.encode_ids([match[2] if match else "" for match in matches])
    unknown = unknown_share([*first, *second], tokenizer.unk_id)
    if unknown > MOST_UNKNOWN_SHARE and not config.allow_unknown:
        raise InputError(
            f"--input_file {path}: {unknown:.1%} of the tokens are [UNK] with {tokenizer.source}, lower case "
            f"{tokenizer.lower_case}: check --vocab_file and --do_lower_case, or give --allow_unknown"
        )
    cls, sep = np.array([tokenizer.cls_id], np.int32), np.array([tokenizer.sep_id], np.int32)
    ids, sentence_a_tokens = [], []
    for match, a, b in zip(matches, first, second, strict=True):
        room = config.max_seq_length - (3 if match else 2)
        kept_a, kept_b = truncated(np.array([len(a)]), np.array([len(b)]) if match else None, room)
        a, b = a[: kept_a[0]], b[: kept_b[0]]
        ids.append(np.concatenate([cls, a, sep, b, sep] if match else [cls, a, sep]))
        sentence_a_tokens.append(len(a) + 2)
    return pa.table(
        {"input_ids": ragged(ids, pa.int32()), "sentence_a_tokens": pa.array(sentence_a_tokens, pa.int32())}
    )


def collate(fields: dict) -> dict:
    """Lines -> the encoder's inputs [B, T]."""
    batch = encoder_inputs(*grouped(fields))
    return {name: batch[name] for name in INPUTS}


def write(
    config: Config,
    tokenizer: "Tokenizer",
    layers: list[int],
    vectors: "Iterator[tuple[int, np.ndarray, np.ndarray]]",
    is_writer: bool,
) -> None:
    """Writes what `vectors` yields under a temporary name, then puts it in its place; off rank 0 only computes."""
    final = Path(config.output_file).expanduser()
    temporary = final.with_name(f".{final.name}.tmp")
    if not is_writer:
        for _ in vectors:
            pass
        return
    try:
        writer = _write_parquet if final.suffix == ".parquet" else _write_json_lines
        writer(temporary, tokenizer, layers, vectors)
        temporary.replace(final)
    except OSError as error:
        raise InputError(f"--output_file {final} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _write_json_lines(path: Path, tokenizer: "Tokenizer", layers: list[int], vectors: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number, ids, found in vectors:
            rounded = found.astype(float).round(6).tolist()
            features = [
                {
                    "token": token,
                    "layers": [{"index": n, "values": v} for n, v in zip(layers, values, strict=True)],
                }
                for token, values in zip(tokenizer.pieces(ids), rounded, strict=True)
            ]
            file.write(json.dumps({"linex_index": number, "features": features}) + "\n")


def _write_parquet(path: Path, tokenizer: "Tokenizer", layers: list[int], vectors: Any) -> None:
    """Columns linex_index, tokens, and one per layer: layer_-1, a list of vectors (float32), one per token."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        while lines := list(itertools.islice(vectors, LINES_PER_ROW_GROUP)):
            table = pa.Table.from_batches([_record(tokenizer, layers, *line) for line in lines])
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _record(
    tokenizer: "Tokenizer", layers: list[int], number: int, ids: "np.ndarray", found: "np.ndarray"
) -> "pa.RecordBatch":
    """One line's row."""
    import pyarrow as pa

    columns = {
        "linex_index": pa.array([number], pa.int64()),
        "tokens": pa.array([tokenizer.pieces(ids)], pa.list_(pa.string())),
    }
    for place, layer in enumerate(layers):
        flat = pa.FixedSizeListArray.from_arrays(pa.array(found[:, place].reshape(-1)), found.shape[2])
        columns[f"layer_{layer}"] = pa.ListArray.from_arrays([0, len(ids)], flat)
    return pa.record_batch(columns)


if __name__ == "__main__":
    main()
