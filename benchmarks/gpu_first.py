"""The first half hour on a GPU machine: one command after the other, each with a time limit; keeps
what they find.

    python -m benchmarks.gpu_first OUT [--ranks 2] [--torch_python PYTHON]

The most valuable comes first. `OUT/findings.jsonl` has a line for the end of each command and
`OUT/NAME.log` its output, complete after every line, so that a machine that goes away takes nothing
with it. The same command goes on where it was: what has ended is not run again. It needs ringbert
with TensorFlow for GPUs; without a network, `pip install --no-index --find-links WHEELS '.[gpu]'`.
None of this was run on a GPU yet.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

NUM_STEPS, CHECKPOINT_STEPS = 300, 100
ROOT = Path(__file__).resolve().parents[1]
# PyTorch's BERT on one batch, compiled, bf16, beside `bert-bench step` in the same shape.
TORCH = """
import sys, time, torch, transformers
layers, hidden, rows = map(int, sys.argv[1:])
config = transformers.BertConfig(
    hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64,
    intermediate_size=4 * hidden)
model = transformers.BertForQuestionAnswering(config).cuda().train()
optimizer, run = torch.optim.AdamW(model.parameters(), fused=True), torch.compile(model)
ids, answers = torch.randint(0, 30522, (rows, 384)).cuda(), torch.randint(0, 384, (rows,)).cuda()
for number in range(23):
    if number == 3:
        torch.cuda.synchronize(); start = time.perf_counter()
    with torch.autocast("cuda", torch.bfloat16):
        loss = run(input_ids=ids, start_positions=answers, end_positions=answers).loss
    optimizer.zero_grad(); loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); optimizer.step()
torch.cuda.synchronize()
print(f"total examples/sec: {20 * rows / (time.perf_counter() - start):.2f}")
"""


class Step(NamedTuple):
    """A command that is killed after `limit_s`, or on purpose as soon as it has written a
    checkpoint."""

    name: str
    command: list[str]
    limit_s: float
    killed_after_checkpoint: bool = False


def steps(out: Path, num_ranks: int, torch_python: str | None) -> list[Step]:
    python = [sys.executable, "-m"]
    launch = [*python, "distributed.launch", "-np", str(num_ranks), "--"]

    def bench(name: str, size: str, rows: int, *flags: str, start: tuple[str, ...] = ()) -> Step:
        shape = (
            "--seq_length=384",
            "--num_steps=20",
            f"--model_size={size}",
            f"--batch_size={rows}",
        )
        command = [
            *start,
            *python,
            "tasks.bench",
            "step",
            *shape,
            *flags,
            f"--output_file={out / name}.json",
        ]
        return Step(f"bench_{name}", command, 300)

    def rival(name: str, layers: int, hidden: int, rows: int) -> list[Step]:
        words = [str(number) for number in (layers, hidden, rows)]
        return (
            [Step(f"torch_{name}", [torch_python, "-c", TORCH, *words], 240)]
            if torch_python
            else []
        )

    data = out / "data"
    squad = [
        *python,
        "tasks.squad",
        "--do_train",
        f"--output_dir={out / 'squad'}",
        "--log_steps=10",
        f"--num_train_steps={NUM_STEPS}",
        f"--save_checkpoints_steps={CHECKPOINT_STEPS}",
        "--train_batch_size=16",
        f"--train_file={data}/train.json",
        f"--vocab_file={data}/vocab.txt",
        f"--bert_config_file={data}/bert_config.json",
        "--max_seq_length=128",
    ]
    doctor = ["tasks.doctor", "--precision=bf16", f"--output_dir={out}"]
    shared = ("--precision=bf16", "--share_gpus")
    return [
        Step("doctor", [*python, *doctor], 420),
        bench("base", "base", 32, "--precision=bf16", "--xla=on"),
        *rival("base", 12, 768, 32),
        Step("squad_data", [sys.executable, "scripts/make_docs_squad.py", str(data)], 120),
        Step("squad_killed", squad, 300, killed_after_checkpoint=True),
        Step("squad_resumed", squad, 300),
        bench("large", "large", 32, "--precision=bf16", "--xla=on"),
        *rival("large", 24, 1024, 32),
        bench("base_ranks_nccl", "base", 16, *shared, "--backend=nccl", start=tuple(launch)),
        bench("base_ranks_mpi", "base", 16, *shared, "--backend=mpi", start=tuple(launch)),
        bench("base_without_xla", "base", 32, "--precision=bf16"),
        bench("base_fp16", "base", 32, "--precision=fp16", "--xla=on"),
        bench("base_tf32", "base", 32, "--tf32", "--xla=on"),
        Step("doctor_ranks", [*launch, *python, *doctor, "--share_gpus"], 420),
    ]


def run(step: Step, out: Path) -> dict[str, Any]:
    """Runs a command to its end, its limit, or its checkpoint. Returns what is written of it."""
    start_s, path = time.monotonic(), Path(out, f"{step.name}.log")
    with path.open("w") as log:
        process = subprocess.Popen(
            step.command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        while process.poll() is None and time.monotonic() - start_s < step.limit_s:
            if step.killed_after_checkpoint and any(
                out.glob("squad/checkpoints/rows-*/manifest.json")
            ):
                break
            time.sleep(0.1)
        status = process.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    last = [line for line in path.read_text(errors="replace").splitlines() if line.strip()][-4:]
    seconds = round(time.monotonic() - start_s, 1)
    return {
        "name": step.name,
        "status": status,
        "seconds": seconds,
        "last_lines": last,
        "command": step.command,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for everything that is found")
    parser.add_argument(
        "--ranks", type=int, default=2, help="ranks that share the GPU (default: 2)"
    )
    parser.add_argument("--torch_python", help="Python that has PyTorch and transformers")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    findings = out / "findings.jsonl"
    lines = findings.read_text().splitlines() if findings.exists() else []
    ended = {json.loads(line)["name"] for line in lines if line.endswith("}")}
    for step in steps(out, options.ranks, options.torch_python):
        if step.name in ended:
            continue
        print(f"{step.name} …", flush=True)
        found = run(step, out)
        with findings.open("a") as file:
            file.write(json.dumps(found) + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(
            "\n".join(
                [f"  status {found['status']} after {found['seconds']} s", *found["last_lines"]]
            )
        )


if __name__ == "__main__":
    main()
