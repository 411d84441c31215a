"""`ringbert.launch` on two ranks, from the files of a tiny task to its scores."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from program_runs import ROOT
from squad_files import make_entries, write_squad
from texts import write_model

import ringbert
from ringbert.errors import InputError
from ringbert.json_files import read_json


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_model(folder, num_layers=1)
    write_squad(folder / "train.json", make_entries(200, 1))
    write_squad(folder / "dev.json", make_entries(20, 2))
    return folder


def job(data: Path, **arguments) -> ringbert.Squad:
    """A training on files in the working folder."""
    sizes = {"max_seq_length": 40, "doc_stride": 9, "max_query_length": 9, "global_batch_size": 16}
    return ringbert.Squad(
        **{
            "vocab_file": data / "vocab.txt",
            "bert_config_file": data / "bert_config.json",
            "train_file": "train.json",
            "predict_file": "dev.json",
            "output_dir": "out",
            "allow_unknown": True,
            "device": "cpu",
            **sizes,
            **arguments,
        }
    )


def scores_in(folder: Path) -> dict[str, float]:
    lines = (folder / "eval_results.txt").read_text().splitlines()
    return {name: float(value) for name, value in (line.split(" = ") for line in lines)}


@pytest.mark.slow
def test_a_job_is_trained_and_scored_and_found_again(data, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(data)
    environment = {"RINGBERT_CACHE": str(tmp_path)}
    first = ringbert.launch(job(data, num_train_epochs=1.0), ranks=2, environment=environment)
    printed = capsys.readouterr().err
    assert "2 ranks on 1 machine, cpu" in printed
    assert "trained for" in printed
    assert (first.ranks, first.output_dir) == (2, data / "out")
    assert first.scores == scores_in(data / "out")
    assert first.seconds == read_json(data / "out" / "result.json")["seconds"] > 0
    assert f"f1 = {first.scores['f1']:.4f}\n" in repr(first)
    again = ringbert.launch(job(data, num_train_epochs=1.0), ranks=2, environment=environment, progress=False)
    assert again.scores == first.scores
    assert capsys.readouterr() == ("", "")
    with pytest.raises(InputError, match=r"learning_rate = 5e-05, this command has 0\.1"):
        ringbert.launch(job(data, num_train_epochs=1.0, learning_rate=0.1), ranks=2, environment=environment)


SCRIPT = """
import ringbert
from pathlib import Path
from test_launching_ranks import job

result = ringbert.launch(job(Path.cwd(), output_dir="interrupted", num_train_epochs=1000.0), ranks=2)
"""


@pytest.mark.slow
def test_an_interrupt_saves_the_training(data, tmp_path):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "RINGBERT_CACHE": str(tmp_path)}
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=data, env=environment, stderr=subprocess.PIPE, text=True
    )
    with script:
        deadline = time.monotonic() + 120
        while not (data / "interrupted" / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not list((data / "interrupted").glob("checkpoints/*"))
        script.send_signal(signal.SIGINT)
        printed = script.communicate(timeout=60)[1]
    assert "KeyboardInterrupt: bert-squad was interrupted; launch it again to continue" in printed
    assert "the ranks finish this step, save and exit" in printed
    assert len(list((data / "interrupted").glob("checkpoints/rows-*/state.json"))) == 1
