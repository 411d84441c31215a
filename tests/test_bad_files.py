"""Faults that fuzzing or an attack found, each in one file of a user's: refused in one line that names it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import texts
from fuzz.model_files import SPECIAL_MAP, VOCAB, saved_sentencepiece, saved_tokenizer
from fuzz.run_files import METRICS, RUN, STATE
from squad_files import GOOD, SMALL, open_windows, read_file, write_squad

from bert.text import tokenizer
from bert.text.sentencepiece_model import read_ids
from distributed.run import Run
from distributed.state import read_state
from ringbert import manifest
from ringbert.errors import InputError, one_line
from tasks import report
from tasks.run_files import read_metrics


def refused(call, *parts: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    message = one_line(caught.value)
    assert all(part in message for part in parts), message


def test_a_long_message_keeps_its_start_and_end() -> None:
    message = one_line(InputError("start " + "x" * 10_000 + " end"))
    assert len(message) == 1500
    assert message.startswith("start x")
    assert message.endswith("x end")


# -- tokenizers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in {**saved_tokenizer(), "special_tokens_map.json": SPECIAL_MAP, "vocab.txt": VOCAB}.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_lower_casing_that_is_no_boolean(folder: Path) -> None:
    """The string "false" would count as true."""
    change(folder / "tokenizer_config.json", do_lower_case="false")
    refused(
        lambda: tokenizer.load(folder=folder), "tokenizer_config.json: lower-casing must be true or false, got a s"
    )


def test_files_of_a_tokenizer_of_another_type(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("[1]")
    refused(lambda: tokenizer.load(folder=folder), "tokenizer_config.json: expected a JSON object, got a list")
    (folder / "tokenizer_config.json").write_text("{}")
    change(folder / "tokenizer.json", normalizer=[1])
    refused(
        lambda: tokenizer.load(folder=folder), "tokenizer.json: normalizer must be an object or null, got a list"
    )
    change(folder / "tokenizer.json", normalizer=None, model=7)
    refused(lambda: tokenizer.load(folder=folder), "tokenizer.json: not a tokenizer file")


def test_special_tokens_that_the_vocabulary_lacks(folder: Path) -> None:
    """transformers would add them to the vocabulary, beyond the model's embeddings."""
    change(folder / "special_tokens_map.json", pad_token="<none>")
    change(folder / "tokenizer_config.json", pad_token="<none>")
    refused(
        lambda: tokenizer.load(folder=folder), "name the special tokens <none>, [UNK], [CLS], [SEP], [MASK], expe"
    )


def test_an_id_without_end(folder: Path) -> None:
    """It would make a list of as many tokens."""
    values = json.loads((folder / "tokenizer.json").read_text())
    values["model"]["vocab"]["cat"] = 2_000_000_000
    (folder / "tokenizer.json").write_text(json.dumps(values))
    refused(
        lambda: tokenizer.load(folder=folder), "tokenizer.json: the id 2,000,000,000 is too large, at most 16,777,"
    )


def test_a_text_is_not_a_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(VOCAB.decode() + "x" * 5000 + "\n")
    line = VOCAB.count(b"\n") + 1
    refused(
        lambda: tokenizer.load(str(path)), f"--vocab_file {path}: line {line} has 5,000 characters, too many for"
    )


def test_a_damaged_character_map_is_found_when_it_is_read(tmp_path: Path) -> None:
    """The Rust library panics at the first character for which it is needed, and not before."""
    import base64

    for name, data in saved_sentencepiece().items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "spiece.model").unlink()
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    steps = values["normalizer"]["normalizers"]
    (step,) = [step for step in steps if step["type"] == "Precompiled"]
    charsmap = bytearray(base64.b64decode(step["precompiled_charsmap"]))
    charsmap[4 : 4 + 4 * 256] = b"\x00\x02\xff\x7f" * 256  # children far outside the trie
    step["precompiled_charsmap"] = base64.b64encode(charsmap).decode()
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    refused(lambda: tokenizer.load(folder=tmp_path), "tokenizer.json: unreadable: ")


def test_ids_of_no_piece(tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    for content in ("[]", "{}", '{"token_to_idx": {}}'):
        path.write_text(content)
        refused(lambda: read_ids(path), f"--vocab_file {path}: neither a list of pieces nor an object piece -> id")


# -- data ---------------------------------------------------------------------------------------------------------


def test_an_answer_longer_than_its_context_may_be_predicted(tmp_path: Path, run: Run) -> None:
    """Its place is for training only; cutting windows ended in an IndexError."""
    entries = [("the cat", "who?", "cat " * 9, 4), GOOD[0]]
    examples = read_file(write_squad(tmp_path / "a.json", entries), is_training=False)
    rows, _ = open_windows(SMALL, examples, texts.letters_tokenizer(tmp_path), tmp_path, run)
    assert rows.column("start_position")[0] == 0
    assert rows.column("start_position")[-1] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_impossible": "false"}, "is_impossible is a string, expected true or false"),
        ({"id": ["q0"]}, "id is a list, expected a string"),
        ({"id": None}, "id is null, expected a string"),
        ({"answers": {"text": "cat", "answer_start": 4}}, "answers is an object, expected a list"),
        ({"answers": [{"text": "cat", "answer_start": True}]}, "no integer answer_start"),
    ],
)
def test_squad_values_of_another_type(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_squad(tmp_path / "a.json", GOOD, **changes)
    refused(lambda: read_file(path, allow_impossible=True), f"--train_file {path}: ", message)


def test_a_csv_file_that_begins_with_an_empty_line(tmp_path: Path) -> None:
    from tasks.classifier.tasks import Columns
    from tasks.classifier.texts import read_file as read

    path = tmp_path / "a.csv"
    path.write_text("\ntext,label\na,b\n")
    columns = Columns("text", None, "label")
    refused(
        lambda: read(str(path), "--train_file", columns), f"{path}: line 1 is empty, expected the names of the col"
    )


@pytest.mark.parametrize("value", ["true", "9" * 400, '"1e400"', "NaN", "[1]"])
def test_a_label_that_is_no_number(tmp_path: Path, value: str) -> None:
    from tasks.classifier.tasks import Columns
    from tasks.classifier.texts import read_file as read

    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "a", "label": {value}}}\n')
    refused(
        lambda: read(str(path), "--train_file", Columns("text", None, "label"), numeric_labels=True),
        f"--train_file {path}: line 1: ",
    )


def test_labels_of_very_many_digits_are_texts(tmp_path: Path) -> None:
    from tasks.classifier.texts import Texts, labels_of

    labels = ["9" * 5000, "1"]
    assert labels_of(Texts("a.csv", ["0", "1"], ["a", "b"], None, labels)) == sorted(labels)


def test_an_index_of_weights_names_no_file_elsewhere(tmp_path: Path) -> None:
    from bert import weights

    index = tmp_path / "model.safetensors.index.json"
    for name in ("../model.safetensors", "/etc/passwd", "", "..", 7, "x" * 3000, "a\0b"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        refused(
            lambda: weights.read(tmp_path), f"{index}: not an index of safetensors files: weight_map must name fi"
        )


# -- checkpoints and runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": "20"}, "step must be an integer from 0, got '20'"),
        ({"position": -1}, "position must be an integer from 0, got -1"),
        ({"position": 2**63}, "position must be an integer from 0, got 9223372036854775808"),
        ({"steps": 10}, "step 20 of 10"),
        ({"global_batch_size": True}, "global_batch_size must be an integer from 1, got True"),
        ({"settings": []}, "settings must be an object"),
        ({"evaluations": [[1]]}, "evaluations must be a list of positions and scores"),
        ({"evaluations": {"a": 1}}, "evaluations must be a list of positions and scores"),
        ({"other": 1}, "other is unknown"),
    ],
)
def test_a_state_of_other_types(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "state.json").write_text(json.dumps(STATE | changes))
    refused(lambda: read_state(tmp_path), f"{tmp_path}: state.json is damaged ({message}); remove this checkpoint")


def test_a_manifest_that_names_no_possible_file(tmp_path: Path) -> None:
    entry = {"format": 1, "position": 3, "files": {"a\0b": [1, "x"]}}
    (tmp_path / "manifest.json").write_text(json.dumps(entry))
    refused(lambda: manifest.check_intact(tmp_path), r"manifest.json is damaged (its entry 'a\x00b')")


def test_metrics_that_are_not_utf8_do_not_end_a_resumed_run(run: Run) -> None:
    path = run.folder / "metrics.jsonl"
    path.write_bytes(METRICS + b'{"rows": 1, "\xff": 1}\n{"rows": "1"}\n' + b"[" * 3000 + b"\n\xff\n")
    run.rewind_metrics(1300)
    assert [json.loads(line)["rows"] for line in path.read_text().splitlines()] == [64, 1280, 1280, 1]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    for name, (data, _) in RUN.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("run.json", {"plan": {"steps": "40"}}, "steps of the plan must be a positive integer"),
        (
            "run.json",
            {"environment": {"command": "bert-squad"}},
            "command of the environment must be a list of stri",
        ),
        ("run.json", {"environment": []}, "there is no object 'environment' in it"),
        ("result.json", {"scores": {"f1": "88"}}, "the score f1 must be a number, got a string"),
        ("result.json", {"scores": {"f1": [1]}}, "the score f1 must be a number, got a list"),
        ("result.json", {"scores": {"x" * 300: 1}}, "a score has a name of 300 characters"),
        ("result.json", {"scores": {str(n): 1 for n in range(300)}}, "300 scores, at most 200 are expected"),
    ],
)
def test_a_run_s_files_of_other_types(run_folder: Path, file: str, changes: dict[str, Any], message: str) -> None:
    change(run_folder / file, **changes)
    refused(lambda: report.make_page(report.read_runs([run_folder])), f"{run_folder}/{file}: ", message)


def test_damaged_and_foreign_lines_of_metrics_are_counted(run_folder: Path) -> None:
    path = run_folder / "metrics.jsonl"
    foreign = b'{"epoch": 1, "loss": 2.0}\n"text"\n{"step": 3, "loss": "2"}\n{"step": 1e9, "loss": 1}\n[[1]]\n'
    foreign += b'{"step": -1}\n'
    path.write_bytes(METRICS[:100] + b"\n" + foreign + METRICS + b'{"step": 4')
    metrics, num_damaged = read_metrics(path)
    assert (len(metrics), num_damaged) == (5, 7)
    assert "7 damaged lines of metrics.jsonl are left out" in report.make_page(report.read_runs([run_folder]))
    path.write_bytes(foreign)
    refused(lambda: report.read_runs([run_folder]), f"{run_folder}: no step is logged yet")


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e308", "-1e308", "1e999", "9" * 300, "0", "1e-320"])
def test_figures_that_cannot_be_drawn(run_folder: Path, value: str) -> None:
    figures = "".join(f', "{name}": {value}' for name in ("loss", "learning_rate", "compute_s", "examples_per_s"))
    lines = [f'{{"step": {step}{figures}}}' for step in (1, 2, 1_000_000_000)]
    lines += [f'{{"step": {step}, "eval_f1": {value}, "eval_loss": {value}}}' for step in (1, 2)]
    (run_folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run_folder / "result.json").write_text(f'{{"scores": {{"f1": {value}, "total": {value}, "loss": {value}}}}}')
    page = report.make_page(report.read_runs([run_folder]))
    assert len(page.replace("base64", "")) < 1_000_000
    assert "data:image/png" in page


def test_names_that_matplotlib_would_take_for_formulas_or_hide(tmp_path: Path) -> None:
    folders = []
    for name in ("_run", r"$\frac$ $x_$", "이름 ☃"):
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        for file, (data, _) in RUN.items():
            (folders[-1] / file).write_bytes(data)
        change(folders[-1] / "result.json", scores={r"$\nothing$": 0.5, "_hidden": 0.25})
    assert "data:image/png" in report.make_page(report.read_runs(folders))


def test_the_median_leaves_out_what_is_not_finite(run_folder: Path) -> None:
    (run,) = report.read_runs([run_folder])
    run.steps[1]["compute_s"] = math.nan
    assert run.median("compute_s") == 0.1
