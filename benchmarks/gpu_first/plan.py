"""The steps, in the order of what they are worth for the minutes that they take."""

import sys
from pathlib import Path

from benchmarks.gpu_first.runner import Step

TIMED = (  # cases, each beside PyTorch's model at the same shape where there is one
    "base_32", "base_32_no_attention_dropout", "large_32", "base_64", "large_64", "base_32_step",
    "large_32_step", "base_32_predict", "base_32_pretraining", "large_32_no_attention_dropout",
    "large_32_predict", "large_32_pretraining",
)  # fmt: skip
RIVALS = {
    "base_32": ["base", "32", "0.1"], "large_32": ["large", "32", "0.1"], "base_64": ["base", "64", "0.1"],
    "large_64": ["large", "64", "0.1"],
}  # fmt: skip
COMPUTING = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # so that JAX reports the memory that it needs


def without_tensorflow(exported: Path, out: Path) -> list[Step]:
    """Stage 1: JAX runs the exported functions, PyTorch its own BERT."""

    def of_jax(name: str, what: str, *cases: str, limit_s: float = 120) -> Step:
        command = [sys.executable, "-m", "benchmarks.gpu_first.jax_steps", what, str(exported), *cases]
        return Step(name, [*command, f"--logs={out / 'hlo'}"], limit_s, COMPUTING)

    steps = [
        of_jax("machine", "machine"),
        of_jax("values", "values", limit_s=240),
    ]
    for case in TIMED:
        steps.append(of_jax(f"speed_{case}", "speed", case, limit_s=150 if "large" in case else 100))
        if case in RIVALS:
            size, rows, rate = RIVALS[case]
            command = [sys.executable, "-m", "benchmarks.gpu_first.torch_steps"]
            flags = [f"--size={size}", f"--batch_size={rows}", f"--dropout={rate}"]
            steps.append(Step(f"pytorch_{case}", [*command, *flags], 240 if size == "large" else 180))
        if case == "base_32":
            steps.append(of_jax("profile_base_32", "profile", case))
    return steps


def with_tensorflow(out: Path, squad_flags: list[str]) -> list[Step]:
    """Stage 2: RingBERT's own programs."""
    python = [sys.executable, "-m"]
    two_ranks = [*python, "distributed.launch", "-np", "2", "--"]

    def bench(name: str, *flags: str, ranks: list[str] | None = None, limit_s: float = 240) -> Step:
        flags = ("--seq_length=384", "--precision=bf16", "--num_steps=20", *flags)
        command = [*(ranks or []), *python, "tasks.bench", "step", *flags, f"--output_file={out / name}.json"]
        return Step(f"bench_{name}", command, limit_s)

    one = ("--xla=on", "--batch_size=32")
    base, large = ("--model_size=base", *one), ("--model_size=large", *one)
    shared = ("--model_size=base", "--batch_size=16", "--share_gpus")
    return [
        Step("product", [*python, "benchmarks.gpu_first.tensorflow_product"], 90),
        Step("doctor", [*python, "tasks.doctor", f"--output_dir={out}"], 420),
        bench("base", *base),
        Step("squad_kill", [*python, "benchmarks.gpu_first.squad_kill", str(out / "squad"), *squad_flags], 420),
        bench("base_2_ranks_nccl", *shared, "--backend=nccl", ranks=two_ranks),
        bench("large", *large, limit_s=300),
        bench("base_without_xla", "--model_size=base", "--batch_size=32"),
        bench("base_2_ranks_mpi", *shared, "--backend=mpi", ranks=two_ranks),
        bench("large_without_xla", "--model_size=large", "--batch_size=32", limit_s=300),
        Step("doctor_2_ranks", [*two_ranks, *python, "tasks.doctor", "--share_gpus", f"--output_dir={out}"], 420),
    ]
