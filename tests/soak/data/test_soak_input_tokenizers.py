"""WordPiece on 10,000 random strings, all of SQuAD's windows, and bert-squad and bert-classifier on real data."""

import json
import os
import random
import subprocess
import sys

import pytest
from harness.program_runs import ROOT, command, shell
from harness.real_data import real
from harness.real_tokenizers import multilingual, uncased
from harness.squad_files import compare_windows, read_file
from transformers import BertTokenizer

from tasks.squad.settings import WindowSettings


@pytest.mark.parametrize("load", [uncased, multilingual])
def test_wordpiece_of_10_000_strings_is_transformers_own(load):
    """Of all planes of Unicode, beside plain words, spaces, controls and Hangul."""
    draw, planes = random.Random(1), [*map(chr, (*range(1, 0xD800), *range(0xE000, 0x20000)))]
    pools = [planes, "abc the ,. ", " \t\u00a0\u3000\u200b\x07", "한국어ㅋ①ﬁ½"]
    texts = ["".join(draw.choice(draw.choice(pools)) for _ in range(draw.randrange(60))) for _ in range(10_000)]
    theirs = BertTokenizer(load().source, do_lower_case=load().lower_case)
    assert [ids.tolist() for ids in load().encode_ids(texts)] == theirs(texts, add_special_tokens=False).input_ids


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("max_seq_length", "expected"), [(384, 88_641), (256, 97_077)])
def test_all_training_windows_of_squad_are_google_s(run, max_seq_length, expected):
    """As many as the published recipe has; every tenth question's compared."""
    examples = read_file(real("squad/train-v1.1.json"))
    assert len(examples.questions) == 87_599
    settings = WindowSettings(max_seq_length=max_seq_length)
    assert compare_windows(settings, examples, uncased(), run, step=10) == expected


@pytest.mark.timeout(1800)
def test_real_mrpc_and_a_slice_of_squad_with_a_pretrained_bert(tmp_path):
    shared = [f"--model={real('minilm')}", "--num_train_epochs=1", "--train_batch_size=8"]
    shared += ["--do_train", "--do_predict"]
    mrpc = [f"--data_dir={real('glue_data')}", "--task_name=MRPC", "--max_seq_length=64", "--do_eval"]
    limits = ["--max_train_examples=48", "--max_predict_examples=40"]
    shell(command("tasks.classifier", *shared, *mrpc, *limits, f"--output_dir={tmp_path}/mrpc", ranks=2))
    scores = json.loads((tmp_path / "mrpc/result.json").read_text())["scores"]
    assert set(scores) == {"eval_accuracy", "eval_f1", "eval_acc_and_f1", "eval_loss"}
    assert len((tmp_path / "mrpc/MRPC.tsv").read_text().splitlines()) == 41
    names = {"train_file": "squad/train-v1.1.json", "predict_file": "squad/dev-v1.1.json"}
    files = [f"--{flag}={real(name)}" for flag, name in names.items()]
    shell(command("tasks.squad", *shared, *files, *limits, f"--output_dir={tmp_path}/squad", ranks=2))
    assert set(json.loads((tmp_path / "squad/result.json").read_text())["scores"]) == {"exact_match", "f1"}
    assert len(json.loads((tmp_path / "squad/predictions.json").read_text())) == 40


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
