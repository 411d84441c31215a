"""All of SQuAD's windows, and the quickstart."""

import json
import os
import subprocess
import sys

import pytest
from harness.program_runs import ROOT
from harness.real_data import real
from harness.real_tokenizers import uncased
from harness.squad_files import compare_windows, read_file

from tasks.squad.settings import WindowSettings


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("max_seq_length", "expected"), [(384, 88_641), (256, 97_077)])
def test_all_training_windows_of_squad_are_google_s(run, max_seq_length, expected):
    """As many as the published recipe has; every tenth question's compared."""
    examples = read_file(real("squad/train-v1.1.json"))
    assert len(examples.questions) == 87_599
    settings = WindowSettings(max_seq_length=max_seq_length)
    assert compare_windows(settings, examples, uncased(), run, step=10) == expected


@pytest.mark.timeout(1800)
def test_the_quickstart_learns_to_look_names_up(tmp_path):
    """Held-out F1 at least 40 points above the untrained model and above always answering the first entry."""
    variables = os.environ | {"RINGBERT_VENV": sys.prefix, "QUICKSTART_DIR": str(tmp_path)}
    variables["RINGBERT_CACHE"] = str(tmp_path / "cache")
    script = [ROOT / "scripts/quickstart.sh", "--seed", "1"]
    done = subprocess.run(script, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    scores = {name: values["f1"] for name, values in json.loads((tmp_path / "scores.json").read_text()).items()}
    assert scores["trained on 2 ranks"] >= scores["untrained"] + 40
    assert scores["trained on 2 ranks"] >= scores["always the first entry"] + 40
