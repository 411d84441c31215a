"""Reads files that may be damaged, one case after the other, and prints what became of each.

    read_damaged.py KIND < lines of JSON, each the arguments of a case

A line of the output is JSON: ["read", a digest of what was read], ["refused", the message], or ["failed", the
error]. A process that dies prints no line for the case that killed it.
"""

import hashlib
import json
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ringbert.errors import InputError

MOST_BYTES = 3 << 30  # of memory
MOST_S = 20  # for one case


def digest_of(value: object) -> str:
    total = hashlib.sha256()

    def add(part: object) -> None:
        if isinstance(part, dict):
            for name in sorted(part):
                total.update(name.encode())
                add(part[name])
        elif isinstance(part, list | tuple | Iterator):
            for one in part:
                add(one)
        elif isinstance(part, np.ndarray):
            total.update(str(part.dtype).encode() + part.tobytes())
        else:
            total.update(repr(part).encode("utf-8", "surrogatepass"))

    add(value)
    return total.hexdigest()


def shards(folder: str, cache: str | None = None) -> str:
    """As bert-pretraining reads them: steps of 32 rows in the order of the stream."""
    from bert.corpus.shards import find_shards, open_shards
    from distributed.order import BlockOrder
    from distributed.rows import BatchRows
    from tasks.pretraining.shards import MASKS

    _, names = find_shards(folder)
    parts, manifest = open_shards(names, cache and Path(cache))
    rows = BatchRows(parts)
    order, read = BlockOrder(len(rows), 1), []
    for start in range(0, len(rows), 32):
        numbers = order.rows_at(start, min(start + 32, len(rows)))
        read.append((rows.lengths_at("input_ids", numbers), rows.take(numbers)))
    return digest_of([read, [manifest["settings"][name] for name in ("max_seq_length", "masking", *MASKS)]])


def records(patterns: str, cache: str, max_seq_length: int, max_predictions: int, vocab_size: int) -> str:
    from bert.corpus.shards import find_shards
    from bert.corpus.tfrecord import RecordRows

    _, names = find_shards(patterns)
    rows = RecordRows(
        names,
        Path(cache),
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions,
        vocab_size=vocab_size,
    )
    read = [rows.take(np.arange(start, min(start + 32, len(rows)))) for start in range(0, len(rows), 32)]
    for fields in read:
        for name in ("input_ids", "masked_lm_ids"):
            assert 0 <= fields[name][0].min(initial=0) <= fields[name][0].max(initial=0) < vocab_size
    return digest_of(read)


def corpus_text(path: str) -> str:
    """As bert-corpus build reads text, JSON lines and Parquet."""
    from bert.corpus.documents import documents
    from bert.corpus.inputs import find_units
    from bert.corpus.settings import TextSettings

    text = TextSettings(input_file=path)
    return digest_of(document for unit in find_units(text)[0] for document in documents(unit, text))


def classifier_table(path: str) -> str:
    from tasks.classifier.files import read_table

    table = read_table(Path(path), f"--train_file {path}", ["text", "label"])
    return digest_of([list(table.column(name)) for name in ("text", "label")])


def sentencepiece(path: str, vocabulary: str | None) -> str:
    from bert.text import tokenizer

    words = tokenizer.load(vocabulary, spm_model_file=path)
    texts = [
        "The cat sat.",
        "그는 갔다 café naïve ﬁ ① ｱ",
        "",
        "a" * 300,
        "\u1100\u1161\u11a8 e\u0301\u0327 \u3000x",
    ]
    return digest_of([words.encode(texts), words.encode_ids(texts), words.vocab_size])


def windows(questions: str, vocabulary: str, cache: str) -> str:
    """SQuAD's windows, from the cache if it is intact."""
    from bert.text import tokenizer
    from distributed.rows import Rows
    from distributed.run import Run
    from tasks.squad.reading import Source
    from tasks.squad.settings import WindowSettings
    from tasks.squad.windows import prepare

    settings = WindowSettings(max_seq_length=32, doc_stride=16, max_query_length=12)
    source, run = Source(questions, "--train_file", is_training=True), Run(Path(cache), is_writer=False)
    key = prepare(settings, source, tokenizer.load(vocabulary), Path(cache), run)
    opened = [Rows.open(Path(cache) / key / name) for name in ("windows.arrow", "paragraphs.arrow")]
    return digest_of([rows.take(np.arange(len(rows))) for rows in opened])


READERS: dict[str, Callable[..., str]] = {
    reader.__name__: reader for reader in (shards, records, corpus_text, classifier_table, sentencepiece, windows)
}


def outcome(reader: Callable[..., str], arguments: list) -> tuple[str, str]:
    signal.alarm(MOST_S)
    try:
        return "read", reader(*arguments)
    except InputError as error:
        return "refused", str(error)
    except BaseException as error:  # also panics of Rust libraries, which are no Exception
        return "failed", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def main() -> None:
    reader = READERS[sys.argv[1]]
    for number, line in enumerate(sys.stdin):
        if number == 1:  # the first case, which is intact, loads the libraries
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES, size + MOST_BYTES))
        print(json.dumps(outcome(reader, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
