"""300 steps of SQuAD, killed in the middle and resumed: `python -m benchmarks.gpu_first.squad_kill FOLDER FLAGS…`.

FLAGS are further flags of bert-squad, such as --model and --train_file. Without --train_file, a small file with
questions that a model can learn is written, and a vocabulary and a configuration for it.
"""

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_first.findings import say

NUM_STEPS, CHECKPOINT_STEPS, KILLED_AT, BATCH_SIZE = 300, 100, 150, 16
WORDS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    known, flags = parser.parse_known_args()
    folder = known.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not any(flag.startswith("--train_file") for flag in flags):
        flags = [*flags, *small_data(folder)]
    output = folder / "run"
    command = [
        sys.executable, "-m", "tasks.squad", "--do_train", f"--output_dir={output}", "--log_steps=10",
        f"--num_train_steps={NUM_STEPS}", f"--save_checkpoints_steps={CHECKPOINT_STEPS}",
        f"--train_batch_size={BATCH_SIZE}", "--max_seq_length=128", "--doc_stride=64", *flags,
    ]  # fmt: skip
    before = run_until(command, output, KILLED_AT)
    killed_at = before[-1]["step"] if before else 0
    say("kill", f"killed by SIGKILL after step {killed_at}", killed_at >= KILLED_AT, step=killed_at)
    start_s = time.monotonic()
    status = subprocess.run(command, check=False).returncode
    seconds, after = time.monotonic() - start_s, logged(output)
    # The lines up to the checkpoint are those of the killed run; later ones were computed again.
    kept = [line for line in before if line in after]
    again = {line["step"]: line["loss"] for line in after if line not in kept}
    pairs = [(line["loss"], again[line["step"]]) for line in before if line["step"] in again]
    difference = max((abs(one - other) for one, other in pairs), default=0.0)
    last = after[-1] if after else {"step": 0, "loss": math.nan, "examples_per_s": 0.0}
    say(
        "resume",
        f"exit status {status} after {seconds:.0f} s; went on after step {kept[-1]['step'] if kept else 0}, ended "
        f"at step {last['step']}, {last['examples_per_s']:.0f} examples/s, loss {last['loss']:.4f}; the losses of "
        f"{len(pairs)} steps that were computed twice differ by {difference:.2g} at most",
        status == 0 and len(kept) > 1 and len(pairs) > 1 and last["step"] == NUM_STEPS,
        losses=[line["loss"] for line in after], seconds=seconds, difference=difference,
    )  # fmt: skip


def run_until(command: Sequence[str], output: Path, step: int) -> list[dict]:
    """Starts the command, kills it once it has logged the step, and returns what it logged."""
    process = subprocess.Popen(command, start_new_session=True)
    while process.poll() is None and (logged(output) or [{"step": 0}])[-1]["step"] < step:
        time.sleep(0.05)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return logged(output)


def logged(output: Path) -> list[dict]:
    """The whole lines of metrics.jsonl that have a loss."""
    path = output / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [line for line in lines if "loss" in line]


def small_data(folder: Path) -> list[str]:
    """Writes contexts of random words in which one, "answer", is asked for. Returns the flags for them."""
    chosen = random.Random(0)
    words = [f"{first}{second}" for first in "bcdfghjklmnpqrstvwxz" for second in "abcdefghijklmnopqrst"][:WORDS]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "answer", *words]))
    paragraphs = []
    for number in range(NUM_STEPS * BATCH_SIZE):
        text = [chosen.choice(words) for _ in range(chosen.randrange(20, 100))]
        text[chosen.randrange(len(text))] = "answer"
        context = " ".join(text)
        answer = {"text": "answer", "answer_start": context.index("answer")}
        question = {"id": str(number), "question": chosen.choice(words), "answers": [answer]}
        paragraphs.append({"context": context, "qas": [question]})
    data = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
    (folder / "train.json").write_text(json.dumps(data))
    config = {
        "vocab_size": WORDS + 6, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 1024, "model_type": "bert",
    }  # fmt: skip
    (folder / "bert_config.json").write_text(json.dumps(config))
    names = {"train_file": "train.json", "vocab_file": "vocab.txt", "bert_config_file": "bert_config.json"}
    return [*(f"--{flag}={folder / name}" for flag, name in names.items()), "--learning_rate=2e-4"]


if __name__ == "__main__":
    main()
