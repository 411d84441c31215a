"""bert-squad on slices of the real SQuAD v1.1 with a real pretrained BERT; the quickstart as a user runs it."""

import json
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from program_runs import ROOT, command, environment, metrics_in
from real_data import real

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_slices_of_squad(tmp_path):
    """Loss falls, predictions and scores are written, a killed run goes on."""
    model, squad = real("minilm"), real("squad")
    variables = environment() | {"RINGBERT_CACHE": str(tmp_path / "cache")}
    flags = [
        f"--model={model}", f"--train_file={squad}/train-v1.1.json",
        f"--predict_file={squad}/dev-v1.1.json", "--max_train_examples=220", "--max_predict_examples=40",
        "--do_train", "--do_predict", "--global_batch_size=16", "--num_train_epochs=2", "--learning_rate=2e-4",
        "--log_steps=1", "--save_checkpoints_steps=10", f"--output_dir={tmp_path}/out",
    ]  # fmt: skip
    program = command("tasks.squad", *flags, ranks=2)
    first = subprocess.Popen(program, env=variables, cwd=ROOT, stderr=subprocess.DEVNULL)
    while not (tmp_path / "out" / "checkpoints" / "rows-000000000160").exists():
        assert first.poll() is None
        time.sleep(0.2)
    first.terminate()
    assert first.wait(timeout=30) != 0
    whole = subprocess.run(program, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert whole.returncode == 0, whole.stderr
    assert re.search(r"weights: \d+ tensors from .*rows-\d{12}", whole.stderr)
    losses = [line["loss"] for line in metrics_in(tmp_path / "out")]
    assert len(losses) == json.loads((tmp_path / "out" / "run.json").read_text())["plan"]["steps"]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.5
    assert len(json.loads((tmp_path / "out" / "predictions.json").read_text())) == 40
    assert set(json.loads((tmp_path / "out" / "result.json").read_text())["scores"]) == {"exact_match", "f1"}


@pytest.mark.timeout(1200)
def test_the_quickstart_learns_to_look_names_up(tmp_path):
    """Held-out F1 at least 40 points above the untrained model and above always answering the first entry."""
    variables = os.environ | {"RINGBERT_VENV": sys.prefix, "QUICKSTART_DIR": str(tmp_path)}
    variables["RINGBERT_CACHE"] = str(tmp_path / "cache")
    script = [ROOT / "scripts/quickstart.sh", "--seed", "1"]
    done = subprocess.run(script, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stdout + done.stderr
    scores = {name: values["f1"] for name, values in json.loads((tmp_path / "scores.json").read_text()).items()}
    print(scores)
    assert scores["trained on 2 ranks"] >= scores["untrained"] + 40
    assert scores["trained on 2 ranks"] >= scores["always the first entry"] + 40
    assert done.stdout.count("predicted: ") == 5
    assert (tmp_path / "trained" / "report.html").stat().st_size > 20_000
