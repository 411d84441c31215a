"""The classifier's texts as rows of tokens, cut by Google's rules (google-research/bert `run_classifier.py`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bert.batch import batch_of
from bert.text.tokenizer import Tokenizer, check_unknown
from distributed.rows import Rows, metadata_of, write_rows
from distributed.run import Run
from ringbase.hashing import digest
from ringbase.ragged import Ragged, joined, offsets_of, padded
from tasks import cache
from tasks.classifier.settings import ExampleSettings
from tasks.classifier.texts import Texts, check_labels
from tasks.texts import joined_pairs, parts

if TYPE_CHECKING:
    from bert.batch import Grouping
    from distributed.feed import Batch

EXAMPLES_VERSION = 1  # increase when the code below writes something else, so that old caches are not used


def examples(
    settings: ExampleSettings,
    texts: Texts,
    labels: Sequence[str] | None,
    tokenizer: Tokenizer,
    cache_dir: Path,
    run: Run,
) -> str:
    """The name of the folder in `cache_dir` that holds `examples.arrow`. Builds the folder if it does not exist.

    A row has `input_ids` ([CLS] first [SEP], plus second [SEP] for a pair; int32), `sentence_a_tokens` (how many
    of them are of type 0; int32) and `label` (its index in `labels`, int32, -1 without a label; if `labels` is
    None, the number itself, float32, NaN without a label).

    Raises InputError: a label is not in `labels`; more than 10 % of the tokens are [UNK] without `allow_unknown`.
    """
    if labels is not None:
        check_labels(texts, labels)
    content = [texts.first, texts.second, texts.labels]
    key = digest(
        "classifier examples", EXAMPLES_VERSION, tokenizer.digest, settings.max_seq_length, labels, content
    )
    is_new = cache.build(
        cache_dir / key, lambda folder: _build(folder, texts, labels, tokenizer, settings.max_seq_length, run), run
    )
    rows = Rows.open(cache_dir / key / "examples.arrow")
    facts = metadata_of(rows)
    counts = [f"{texts.source}: {len(rows):,} examples, {facts['unknown_share']:.2%} [UNK]"]
    if facts["num_cut"]:
        counts.append(f"{facts['num_cut']:,} cut to --max_seq_length {settings.max_seq_length}")
    if facts["num_empty"]:
        counts.append(f"{facts['num_empty']:,} with an empty text")
    if texts.num_short_rows:
        counts.append(f"{texts.num_short_rows:,} rows with too few columns left out")
    run.say(", ".join(counts) + ("" if is_new else " (cached)"))
    check_unknown(facts["unknown_share"], texts.source, tokenizer, settings.allow_unknown)
    return key


def _build(
    folder: Path,
    texts: Texts,
    labels: Sequence[str] | None,
    tokenizer: Tokenizer,
    max_seq_length: int,
    run: Run,
) -> None:
    rows, sentence_a_tokens = [], []
    num_unknown = num_tokens = num_cut = 0
    is_pair = np.full(len(texts), texts.second is not None)
    for part in parts(len(texts), "tokenizing", "example", run):
        first = joined(tokenizer.encode_ids(texts.first[part]))
        second = joined(tokenizer.encode_ids(texts.second[part])) if texts.second is not None else _empty(first)
        (ids, offsets), first_tokens = joined_pairs(first, second, is_pair[part], max_seq_length, tokenizer)
        rows.append((ids, np.diff(offsets)))
        sentence_a_tokens.append(first_tokens)
        whole = np.diff(first[1]) + np.diff(second[1]) + 2 + is_pair[part]
        num_cut += int((np.diff(offsets) < whole).sum())
        for tokens, _ in (first, second):
            num_unknown += int((tokens == tokenizer.unk_id).sum())
            num_tokens += len(tokens)
    values, lengths = (np.concatenate(column) for column in zip(*rows, strict=True))
    write_rows(
        folder / "examples.arrow",
        {
            "input_ids": pa.LargeListArray.from_arrays(pa.array(offsets_of(lengths)), pa.array(values)),
            "sentence_a_tokens": pa.array(np.concatenate(sentence_a_tokens), pa.int32()),
            "label": _label_column(texts, labels),
        },
        {
            "unknown_share": num_unknown / max(num_tokens, 1),
            "num_cut": num_cut,
            "num_empty": sum(not text.strip() for text in (*texts.first, *(texts.second or ()))),
        },
    )


def _empty(texts: Ragged) -> Ragged:
    """The same number of texts, without tokens."""
    return texts[0][:0], np.zeros_like(texts[1])


def _label_column(texts: Texts, labels: Sequence[str] | None) -> pa.Array:
    if labels is None:
        numbers = np.full(len(texts), np.nan) if texts.labels is None else np.asarray(texts.labels, np.float64)
        return pa.array(numbers, pa.float32())
    index = {label: number for number, label in enumerate(labels)}
    return pa.array(
        [-1] * len(texts) if texts.labels is None else [index[str(x)] for x in texts.labels], pa.int32()
    )


def collate(fields: dict, grouping: "Grouping | None" = None) -> "Batch":
    """Examples -> the encoder's inputs, their first tokens [B] and their labels [B]."""
    fields, batch = batch_of(fields, grouping)
    return batch | {"label": padded(fields["label"], len(batch["first_tokens"]))}
