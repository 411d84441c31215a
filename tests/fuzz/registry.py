"""All readers, with their shares of the cases."""

import gzip

from fuzz import data_files, flag_files, model_files, run_files
from fuzz.reader import Reader, to_json


def readers(with_weights: bool = True) -> list[Reader]:
    """All readers; without those of weights, TensorFlow is not imported."""
    return [*readers_of_text(), *(readers_of_weights() if with_weights else [])]


def readers_of_weights() -> list[Reader]:
    weights = model_files.weight_files()
    return [
        Reader(
            "safetensors",
            {
                name: (data, "json" if name.endswith("json") else "bytes")
                for name, data in weights["sharded"].items()
            },
            model_files.read_weights,
            3,
        ),
        Reader(
            "safetensors, one file",
            {k: (data, "bytes") for k, data in weights["whole"].items()},
            model_files.read_weights,
            2,
        ),
        Reader(
            "TensorFlow checkpoint",
            {k: (data, "bytes") for k, data in weights["tf1"].items()},
            model_files.read_weights,
            3,
        ),
    ]


def readers_of_text() -> list[Reader]:
    wordpiece, pieces = model_files.saved_tokenizer(), model_files.saved_sentencepiece()
    kinds = {"vocab.txt": "text"}
    named = {name: wordpiece[name] for name in ("tokenizer.json", "tokenizer_config.json")}
    named["special_tokens_map.json"] = model_files.SPECIAL_MAP
    vocabulary = {"vocab.txt": model_files.VOCAB}
    return [
        Reader(
            "JSON",
            {
                "any.json": (data_files.ANY_JSON, "json"),
                "any.json.gz": (gzip.compress(data_files.ANY_JSON), "json.gz"),
            },
            data_files.read_any_json,
            6,
        ),
        Reader(
            "model configuration",
            {
                "config.json": (to_json(model_files.CONFIG), "json"),
                "bert_config.json": (to_json(model_files.GOOGLE), "json"),
            },
            model_files.read_configuration,
            12,
        ),
        Reader("vocab.txt", {"vocab.txt": (model_files.VOCAB, "text")}, model_files.read_vocabulary, 5),
        Reader(
            "WordPiece folder",
            {name: (data, "json") for name, data in named.items()},
            model_files.read_folder_tokenizer,
            7,
            vocabulary,
        ),
        Reader(
            "vocab.txt of a folder",
            {
                "vocab.txt": (model_files.VOCAB, kinds["vocab.txt"]),
                "tokenizer_config.json": (wordpiece["tokenizer_config.json"], "json"),
            },
            model_files.read_folder_tokenizer,
            3,
        ),
        Reader(
            "SentencePiece folder",
            {
                "tokenizer.json": (pieces["tokenizer.json"], "json"),
                "tokenizer_config.json": (pieces["tokenizer_config.json"], "json"),
            },
            model_files.read_folder_tokenizer,
            4,
        ),
        Reader(
            "ids of pieces",
            {"pieces.json": (model_files.PIECES, "json"), "pieces.txt": (model_files.VOCAB, "text")},
            model_files.read_piece_ids,
            3,
        ),
        Reader(
            "SQuAD",
            {
                "train-v1.json": (data_files.squad(False), "json"),
                "dev-v1.json": (data_files.squad(False), "json"),
                "train-v2.json": (data_files.squad(True), "json"),
                "dev-v2.json.gz": (gzip.compress(data_files.squad(True)), "json.gz"),
            },
            data_files.read_squad,
            12,
            vocabulary,
        ),
        Reader(
            "classifier files",
            {
                "a.csv": (data_files.CSV, "text"),
                "a.tsv": (data_files.TSV, "text"),
                "a.jsonl": (data_files.JSONL, "jsonl"),
                "numbers.csv": (data_files.NUMBERS, "text"),
                "numbers.jsonl": (data_files.NUMBER_LINES, "jsonl"),
                "a.jsonl.gz": (gzip.compress(data_files.JSONL), "jsonl.gz"),
            },
            data_files.read_classifier,
            14,
        ),
        Reader(
            "GLUE folders",
            {name: (data, "text") for name, (data, _) in data_files.GLUE.items()},
            data_files.read_glue,
            6,
        ),
        Reader(
            "corpus texts",
            {
                "a.txt": (data_files.TEXT, "text"),
                "split.txt": (data_files.TEXT, "text"),
                "a.jsonl": (data_files.DOCUMENTS, "jsonl"),
                "a.txt.gz": (gzip.compress(data_files.TEXT), "text.gz"),
            },
            data_files.read_documents,
            6,
        ),
        Reader(
            "lines of bert-features",
            {"lines.txt": (data_files.FEATURES, "text")},
            data_files.read_feature_lines,
            1,
            vocabulary,
        ),
        Reader("state.json", {"state.json": (to_json(run_files.STATE), "json")}, run_files.read_state, 6),
        Reader(
            "checkpoint manifest",
            {"manifest.json": (run_files.sealed_manifest(), "json")},
            run_files.read_manifest,
            5,
            {"state.json": to_json(run_files.STATE)},
        ),
        Reader("run files", run_files.RUN, run_files.read_report, 7),
        Reader("report page", run_files.RUN, run_files.draw_report, 0.3),
        Reader(
            "metrics of a resumed run",
            {"metrics.jsonl": run_files.RUN["metrics.jsonl"]},
            run_files.rewind_metrics,
            2,
        ),
        Reader(
            "TOML configuration",
            {name: (data, "text") for name, data in flag_files.TOML.items()},
            flag_files.read_toml,
            6,
        ),
        Reader("command line", flag_files.command_lines(), flag_files.read_command_line, 8, takes_flags=True),
    ]
