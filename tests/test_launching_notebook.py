"""`ringbert.launch` in a notebook that Jupyter executes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from program_runs import ROOT
from squad_files import make_entries, write_squad
from texts import write_model

from ringbert.json_files import read_json

# Executes the cells of argv in a kernel, and prints their outputs as JSON.
EXECUTE = """
import json, sys
import nbclient, nbformat

notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in sys.argv[1:]])
nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", allow_errors=True).execute()
print(json.dumps([cell.outputs for cell in notebook.cells]))
"""
TRAIN = """
import tensorflow
import ringbert

files = {"vocab_file": "vocab.txt", "bert_config_file": "bert_config.json", "predict_file": "dev.json"}
sizes = {"max_seq_length": 40, "doc_stride": 9, "max_query_length": 9, "global_batch_size": 16, "device": "cpu"}
job = ringbert.Squad(train_file="train.json", output_dir="out", num_train_epochs=1.0, **files, **sizes)
ringbert.launch(job, ranks=2)
"""
REFUSED = 'ringbert.launch(ringbert.Squad(train_file="nowhere.json", output_dir="no", **files, **sizes))'


def outputs_of(folder: Path, jupyter: Path, *cells: str) -> list[list[dict]]:
    path = os.pathsep.join([str(jupyter), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "RINGBERT_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXECUTE, *cells],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def printed(outputs: list[dict], stream: str) -> str:
    return "".join(output["text"] for output in outputs if output.get("name") == stream)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_notebook_shows_progress_and_scores(tmp_path):
    jupyter = tmp_path / "jupyter"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-cache-dir", f"--target={jupyter}"]
    subprocess.run([*install, "ipykernel", "nbclient"], check=True, timeout=300)
    write_model(tmp_path, num_layers=1)
    write_squad(tmp_path / "train.json", make_entries(200, 1))
    write_squad(tmp_path / "dev.json", make_entries(20, 2))
    trained, refused = outputs_of(tmp_path, jupyter, TRAIN, REFUSED)

    shown = printed(trained, "stdout")
    assert shown.startswith("2 ranks on 1 machine, cpu")
    assert "\rtraining: " in shown  # a bar that moves
    assert "done: out, exact_match" in shown
    result = read_json(tmp_path / "out" / "result.json")
    (value,) = (output for output in trained if output["output_type"] == "execute_result")
    assert value["data"]["text/plain"].startswith(f"exact_match = {result['scores']['exact_match']:.4f}\n")

    (error,) = (output for output in refused if output["output_type"] == "error")
    assert (error["ename"], "nowhere.json" in error["evalue"]) == ("InputError", True)
    assert printed(refused, "stdout").count("bert-squad: error: ") == 1
