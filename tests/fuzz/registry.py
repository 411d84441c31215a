"""All readers, with their shares of the cases."""

import gzip
from pathlib import Path

from fuzz import readers as r
from fuzz.readers import Reader
from ringbert import manifest


def readers(with_weights: bool = True) -> list[Reader]:
    """All readers; without those of weights, TensorFlow is not imported."""
    return [*readers_of_text(), *(readers_of_weights() if with_weights else [])]


def readers_of_weights() -> list[Reader]:
    weights = r.weight_files()
    return [
        Reader(
            "safetensors",
            {
                name: (data, "json" if name.endswith("json") else "bytes")
                for name, data in weights["sharded"].items()
            },
            r.read_weights,
            3,
        ),
        Reader(
            "safetensors, one file",
            {k: (data, "bytes") for k, data in weights["whole"].items()},
            r.read_weights,
            2,
        ),
        Reader(
            "TensorFlow checkpoint", {k: (data, "bytes") for k, data in weights["tf1"].items()}, r.read_weights, 3
        ),
    ]


def readers_of_text() -> list[Reader]:
    wordpiece, pieces = r.saved_tokenizer(), r.saved_sentencepiece()
    kinds = {"vocab.txt": "text"}
    named = {name: wordpiece[name] for name in ("tokenizer.json", "tokenizer_config.json")}
    named["special_tokens_map.json"] = r.SPECIAL_MAP
    vocabulary = {"vocab.txt": r.VOCAB}
    return [
        Reader(
            "JSON",
            {"any.json": (r.ANY_JSON, "json"), "any.json.gz": (gzip.compress(r.ANY_JSON), "json.gz")},
            r.read_any_json,
            6,
        ),
        Reader(
            "model configuration",
            {"config.json": (r.to_json(r.CONFIG), "json"), "bert_config.json": (r.to_json(r.GOOGLE), "json")},
            r.read_configuration,
            12,
        ),
        Reader("vocab.txt", {"vocab.txt": (r.VOCAB, "text")}, r.read_vocabulary, 5),
        Reader(
            "WordPiece folder",
            {name: (data, "json") for name, data in named.items()},
            r.read_folder_tokenizer,
            7,
            vocabulary,
        ),
        Reader(
            "vocab.txt of a folder",
            {
                "vocab.txt": (r.VOCAB, kinds["vocab.txt"]),
                "tokenizer_config.json": (wordpiece["tokenizer_config.json"], "json"),
            },
            r.read_folder_tokenizer,
            3,
        ),
        Reader(
            "SentencePiece folder",
            {
                "tokenizer.json": (pieces["tokenizer.json"], "json"),
                "tokenizer_config.json": (pieces["tokenizer_config.json"], "json"),
            },
            r.read_folder_tokenizer,
            4,
        ),
        Reader(
            "ids of pieces",
            {"pieces.json": (r.PIECES, "json"), "pieces.txt": (r.VOCAB, "text")},
            r.read_piece_ids,
            3,
        ),
        Reader(
            "SQuAD",
            {
                "train-v1.json": (r.squad(False), "json"),
                "dev-v1.json": (r.squad(False), "json"),
                "train-v2.json": (r.squad(True), "json"),
                "dev-v2.json.gz": (gzip.compress(r.squad(True)), "json.gz"),
            },
            r.read_squad,
            12,
            vocabulary,
        ),
        Reader(
            "classifier files",
            {
                "a.csv": (r.CSV, "text"),
                "a.tsv": (r.TSV, "text"),
                "a.jsonl": (r.JSONL, "jsonl"),
                "numbers.csv": (r.NUMBERS, "text"),
                "numbers.jsonl": (r.NUMBER_LINES, "jsonl"),
                "a.jsonl.gz": (gzip.compress(r.JSONL), "jsonl.gz"),
            },
            r.read_classifier,
            14,
        ),
        Reader("GLUE folders", {name: (data, "text") for name, (data, _) in r.GLUE.items()}, r.read_glue, 6),
        Reader(
            "corpus texts",
            {
                "a.txt": (r.TEXT, "text"),
                "split.txt": (r.TEXT, "text"),
                "a.jsonl": (r.DOCUMENTS, "jsonl"),
                "a.txt.gz": (gzip.compress(r.TEXT), "text.gz"),
            },
            r.read_documents,
            6,
        ),
        Reader("lines of bert-features", {"lines.txt": (r.FEATURES, "text")}, r.read_feature_lines, 1, vocabulary),
        Reader("state.json", {"state.json": (r.to_json(r.STATE), "json")}, r.read_state, 6),
        Reader(
            "checkpoint manifest",
            {"manifest.json": (sealed_manifest(), "json")},
            r.read_manifest,
            5,
            {"state.json": r.to_json(r.STATE)},
        ),
        Reader("run files", r.RUN, r.read_report, 7),
        Reader("report page", r.RUN, r.draw_report, 0.3),
        Reader("metrics of a resumed run", {"metrics.jsonl": r.RUN["metrics.jsonl"]}, r.rewind_metrics, 2),
        Reader("TOML configuration", {name: (data, "text") for name, data in r.TOML.items()}, r.read_toml, 6),
        Reader("command line", r.command_lines(), r.read_command_line, 8, takes_flags=True),
    ]


def sealed_manifest() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "state.json").write_bytes(r.to_json(r.STATE))
        manifest.seal(Path(name), 640)
        return (Path(name) / manifest.NAME).read_bytes()
