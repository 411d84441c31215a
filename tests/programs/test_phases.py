"""A pretraining in two phases: two commands, of which each is a no-op when it has been done, and
the second says which run it began from. As ModernBERT's: longer rows, and another base of the
rotary positions (configs/modernbert_base_pretraining_phase2.toml)."""

import contextlib
import json

import numpy as np
import pytest
from harness.program_runs import bert, files_in, metrics_in
from harness.texts import ALL_WORDS, write_model

from ringbase.files import read_json
from tasks.corpus.__main__ import main as bert_corpus

STEPS = 20
LENGTHS = {"phase1": 32, "phase2": 48}
BASES = {"phase1": 10_000.0, "phase2": 160_000.0}


@pytest.fixture
def folder(tmp_path):
    """A folder with two configurations of a ModernBERT, and the corpora of both phases."""
    write_model(tmp_path, num_layers=4)
    config = read_json(tmp_path / "bert_config.json")
    config |= {"model_type": "modernbert", "hidden_activation": "gelu", "pad_token_id": 0}
    chance, words = np.random.default_rng(1), ALL_WORDS * 2
    lines = []
    for _ in range(400):
        first = chance.integers(len(words) // 2)
        lines.append(" ".join(words[first:][: chance.integers(4, 14)]))
    (tmp_path / "text.txt").write_text("\n".join(lines))
    with contextlib.chdir(tmp_path):
        for phase, length in LENGTHS.items():
            rotary = {"global_rope_theta": BASES[phase], "local_rope_theta": 10_000.0}
            sizes = {"max_position_embeddings": length, "local_attention": 8}
            (tmp_path / f"{phase}.json").write_text(json.dumps(config | rotary | sizes))
            flags = f"--max_seq_length={length}", "--nonext_sentence", "--num_workers=1"
            files = "--vocab_file=vocab.txt", "--input_file=text.txt", f"--output_dir={phase}"
            bert_corpus(["build", *files, *flags])
    return tmp_path


def train(folder, phase, *flags):
    given = (
        "--do_train",
        "--do_lower_case",
        f"--bert_config_file={folder}/{phase}.json",
        f"--input_file={folder}/{phase}",
        f"--max_seq_length={LENGTHS[phase]}",
        f"--num_train_steps={STEPS}",
        "--global_batch_size=16",
        "--learning_rate=1e-2",
        "--log_steps=1",
    )
    return bert("pretraining", folder / "runs" / phase, *given, *flags)


@pytest.mark.slow
def test_the_second_phase_goes_on_with_longer_rows_and_another_base(folder, capsys):
    train(folder, "phase1", "--num_warmup_steps=3")
    first = folder / "runs/phase1/checkpoints" / f"rows-{STEPS * 16:012d}"
    flags = f"--init_checkpoint={first}", "--init_moments", "--num_warmup_steps=0"
    train(folder, "phase2", *flags)
    losses = {phase: [] for phase in LENGTHS}
    for phase, of_phase in losses.items():
        of_phase += [line["mlm"] for line in metrics_in(folder / "runs" / phase)]
    assert losses["phase2"][0] < losses["phase1"][0] - 0.3
    model = read_json(folder / "runs/phase2/model/config.json")
    assert model["global_rope_theta"] == BASES["phase2"]
    assert model["local_rope_theta"] == 10_000
    facts = read_json(folder / "runs/phase2/run.json")
    before = read_json(folder / "runs/phase1/run.json")
    run = str(folder / "runs/phase1")
    assert facts["origin"] == {"run": run, "spec": before["spec"], "step": STEPS}
    assert facts["start"] == f"--init_checkpoint {first}, step {STEPS} of the run in {run}"
    assert facts["start"] in (folder / "runs/phase2/report.html").read_text()

    # the whole script again
    runs = [folder / "runs" / phase for phase in LENGTHS]
    written = [*map(files_in, runs)]
    capsys.readouterr()
    train(folder, "phase1", "--num_warmup_steps=3")
    train(folder, "phase2", *flags)
    assert capsys.readouterr().err.count("was complete and stays as it is") == 2
    assert [*map(files_in, runs)] == written
