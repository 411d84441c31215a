"""How training goes on more ranks: with a fixed global batch, and with a batch per rank and a scaled rate.

    python scripts/scaling_curves.py FOLDER docs/scaling_curves.png

It trains the quickstart's BERT (configs/quickstart.toml) on 1, 2 and 4 ranks in folders of FOLDER, which takes
minutes; finished runs are not run again. It prints a table in Markdown and draws the loss by examples seen.
"""

import argparse
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tasks.bench.process import ROOT, on_ranks
from tasks.run_files import RunFiles, read_run

BATCH, RATE = 32, 5e-4
FIXED, SCALED = f"--global_batch_size={BATCH}", f"--train_batch_size={BATCH}"
# Name, ranks, flags. The first is drawn in both panels.
RUNS = (
    ("fixed-1", 1, (FIXED,)),
    ("fixed-2", 2, (FIXED,)),
    ("fixed-4", 4, (FIXED,)),
    ("scaled-2", 2, (SCALED,)),
    ("scaled-4", 4, (SCALED,)),
    ("scaled-4-no-warmup", 4, (SCALED, "--warmup_proportion=0")),
)
WINDOW = 8  # lines of metrics.jsonl that a point of a scaled run averages, for one rank


def train(folder: Path, name: str, num_ranks: int, flags: tuple[str, ...]) -> RunFiles:
    """Runs bert-squad in FOLDER/name unless it has finished there."""
    data, output_dir = folder / "data", folder / name
    if not (data / "train.json").exists():
        subprocess.run([sys.executable, ROOT / "scripts/make_docs_squad.py", data], check=True)
    if not (output_dir / "result.json").exists():
        config = folder / "quickstart.toml"  # without its batch
        lines = (ROOT / "configs/quickstart.toml").read_text().splitlines(keepends=True)
        config.write_text("".join(line for line in lines if not line.startswith("global_batch_size")))
        files = {
            "bert_config_file": "bert_config.json",
            "vocab_file": "vocab.txt",
            "train_file": "train.json",
            "predict_file": "dev.json",
        }
        command = [
            sys.executable,
            "-m",
            "tasks.squad",
            f"--config={config}",
            "--device=cpu",
            f"--learning_rate={RATE}",
        ]
        command += [f"--{flag}={data / file}" for flag, file in files.items()]
        command += [f"--output_dir={output_dir}", *flags]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(on_ranks(command, num_ranks), check=True, env=environment)
    return read_run(output_dir, name)


def curve(run: RunFiles) -> tuple[np.ndarray, np.ndarray]:
    """Examples seen, and the loss."""
    steps = np.array([line["step"] for line in run.steps])
    return steps * run.plan["global_batch_size"], np.array([line["loss"] for line in run.steps])


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of each point and the `window - 1` before it, as far as there are."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def label(run: RunFiles) -> str:
    plan = run.plan
    ranks = f"{plan['size']} rank{'s' * (plan['size'] > 1)}"
    text = f"{ranks}: {plan['steps']} steps of {plan['global_batch_size']}, rate {plan['learning_rate']:g}"
    return f"{text}, no warmup" if run.name.endswith("no-warmup") else text


def table(runs: list[RunFiles]) -> str:
    lines = [
        "| run | ranks | global batch | steps | warmup | rate | last loss | F1 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        plan, last = run.plan, np.mean([line["loss"] for line in run.steps][-5:])
        score = (run.scores or {})["f1"]
        counts = [run.name, plan["size"], plan["global_batch_size"], plan["steps"], plan["warmup_steps"]]
        cells = [*map(str, counts), f"{plan['learning_rate']:g}", f"{last:.3f}", f"{score:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(fixed: list[RunFiles], scaled: list[RunFiles], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for run, width, color in zip(fixed, (7, 3.5, 1), ("#b9d5ea", "C1", "black"), strict=True):
        left.plot(*curve(run), linewidth=width, color=color, label=label(run))
    left.set_title("fixed global batch (--global_batch_size): the curves lie on each other")
    for run in (fixed[0], *scaled):
        examples, losses = curve(run)
        window = max(1, WINDOW * BATCH // run.plan["global_batch_size"])
        right.plot(examples, smoothed(losses, window), linewidth=1.5, label=label(run))
    right.set_title("batch per rank (--train_batch_size), rate × ranks; smoothed")
    left.set_ylabel("loss")
    for axis in (left, right):
        axis.set_xlabel("examples seen")
        axis.title.set_fontsize(10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        axis.set_ylim(bottom=0)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the runs are, or will be")
    parser.add_argument("picture", type=Path, metavar="PICTURE", help=".png or .svg file to draw")
    options = parser.parse_args()
    runs = [train(options.folder.resolve(), *run) for run in RUNS]
    fixed = [run for run in runs if run.name.startswith("fixed")]
    print(table(runs))
    for one, other in itertools.combinations(fixed, 2):
        far = np.max(np.abs(curve(one)[1] - curve(other)[1]))
        print(f"largest difference of the losses of {one.name} and {other.name}: {far:.2g}")
    draw(fixed, [run for run in runs if run not in fixed], options.picture)


if __name__ == "__main__":
    main()
