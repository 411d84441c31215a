"""Scale-up against scale-out: the speed of an example on threads of one rank, ranks of one host, and two hosts.

    PYTHONPATH=tests python scripts/scaling.py docs/scaling_speed.png

It runs examples/resnet_synthetic.py on one core, then on all cores: as ranks, as threads of one rank, and as
ranks of two hosts with half of the cores each. The hosts are network namespaces of this machine
(tests/harness/hosts.py), so their ranks sum over TCP. It prints a table in Markdown and draws it. Needs root, Open
MPI 5 and matplotlib.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from harness.hosts import Hosts, available, two_hosts

from tasks.bench.process import ROOT, last_error, on_ranks
from tasks.bench.scaling import Layout, layouts
from tasks.bench.timing import Ratio, in_turn, ratio

EXAMPLE = [sys.executable, str(ROOT / "examples/resnet_synthetic.py")]
TOTAL = re.compile(r"^Total img/sec on \d+ rank\(s\): ([\d.]+) ", re.MULTILINE)
TIMEOUT_S = 600
# On a host each rank has the core of its number; without, the ranks of both hosts would use all of them.
ON_OWN_CORE = ["sh", "-c", 'exec taskset -c "$OMPI_COMM_WORLD_RANK" "$@"', "sh"]


class Speed(NamedTuple):
    """The speed of a layout.

    Attributes:
      images_per_s: over all ranks, the median of the turns.
      speedup: times the speed of one core, by turns.
      units: the number of cores.
    """

    images_per_s: float
    speedup: Ratio
    units: int


Speeds = dict[int, dict[str, Speed]]  # by images per rank and step, and layout


def on_one_host(layout: Layout, flags: list[str]) -> float:
    """Images/s of all ranks of a layout."""
    done = subprocess.run(
        on_ranks([*EXAMPLE, *flags], layout.ranks),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: os.sched_setaffinity(0, layout.cores),
    )
    return images_per_s(done)


def on_two_hosts(hosts: Hosts, ranks_per_host: int, flags: list[str]) -> float:
    """Images/s over all ranks of both hosts, with a core each."""
    command = [*ON_OWN_CORE, *EXAMPLE, *flags]
    return images_per_s(hosts.mpirun(ranks_per_host, command, TIMEOUT_S, {"PYTHONPATH": str(ROOT)}))


def images_per_s(done: subprocess.CompletedProcess[str]) -> float:
    found = TOTAL.search(done.stdout)
    if found is None:
        sys.exit(f"scaling.py: error: {EXAMPLE[-1]} failed: {last_error(done)}")
    return float(found[1])


def measure(batch_sizes: list[int], repeat: int) -> Speeds:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or len(cores) % 2 or cores != list(range(len(cores))):
        sys.exit(f"scaling.py: error: an even number of cores from 0 is needed, these can be used: {cores}")
    speeds: Speeds = {}
    with two_hosts() as hosts:
        for batch_size in batch_sizes:
            flags = [f"--batch_size={batch_size}"]
            runs: dict[str, Callable[[], float]] = {}
            units: dict[str, int] = {}
            for layout in layouts(None, cores, 0):
                runs[layout.label], units[layout.label] = partial(on_one_host, layout, flags), layout.units
            runs[label := f"{len(cores)} ranks, 2 hosts"] = partial(on_two_hosts, hosts, len(cores) // 2, flags)
            units[label] = len(cores)
            rates = in_turn(runs, repeat)
            one = rates[next(iter(runs))]
            speeds[batch_size] = {
                name: Speed(statistics.median(of), ratio(of, one), units[name]) for name, of in rates.items()
            }
    return speeds


def table(speeds: Speeds) -> str:
    lines = [
        "| images per rank and step | layout | images/s | times one core | efficiency |",
        "|---|---|---|---|---|",
    ]
    for batch_size, by_layout in speeds.items():
        for name, (rate, (median, lowest, highest), units) in by_layout.items():
            spread = f" ({lowest:.2f} to {highest:.2f})" if lowest < highest else ""
            lines.append(f"| {batch_size} | {name} | {rate:.1f} | {median:.2f}{spread} | {median / units:.0%} |")
    return "\n".join(lines)


def draw(speeds: Speeds, path: Path, about: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7.5, 4), layout="constrained")
    width = 0.8 / len(speeds)
    for number, (batch_size, by_layout) in enumerate(speeds.items()):
        ratios = [speed.speedup for speed in by_layout.values()]
        places = [place + width * (number - (len(speeds) - 1) / 2) for place in range(len(ratios))]
        medians = [ratio.median for ratio in ratios]
        spread = [
            [ratio.median - ratio.lowest for ratio in ratios],
            [ratio.highest - ratio.median for ratio in ratios],
        ]
        label = f"{batch_size} images per rank and step"
        bars = axis.bar(places, medians, width, yerr=spread, capsize=3, label=label)
        axis.bar_label(bars, fmt="%.2f", label_type="center", color="white")
    by_layout = next(iter(speeds.values()))
    for place, speed in enumerate(by_layout.values()):
        label = "" if place else "number of cores"
        axis.plot([place - 0.45, place + 0.45], [speed.units] * 2, "k--", linewidth=1, label=label)
    axis.set_xticks(range(len(by_layout)), [name.replace(", ", "\n") for name in by_layout])
    axis.set_title(f"ResNet-101: images/s, times one core's ({about})", fontsize=10)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    axis.margins(y=0.25)
    axis.legend(ncols=3, fontsize=8, loc="upper left")
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, metavar="PICTURE", help=".png or .svg file to draw")
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[4, 16], help="images per rank and step")
    parser.add_argument("--repeat", type=int, default=3, help="turns; the figures are medians (default: 3)")
    options = parser.parse_args()
    if (reason := available()) is not None:
        sys.exit(f"scaling.py: error: {reason}")
    speeds = measure(options.batch_sizes, options.repeat)
    print(table(speeds))
    turns = f"medians of {options.repeat} turns" if options.repeat > 1 else "one turn"
    draw(speeds, options.picture, f"{os.cpu_count()} cores; {turns}")


if __name__ == "__main__":
    main()
