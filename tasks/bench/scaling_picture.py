"""The picture of bert-bench scaling."""

from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from tasks.bench.step import PARTS


def draw(figures: dict[str, Any], one: float, path: Path) -> None:
    """Draws speed, the parts of a step, and the all-reduce by size.

    Args:
      figures: the result of `bench_scaling`.
      one: examples/s of one rank.
      path: the file to write; its extension decides the format.
    Raises InputError: matplotlib is not installed, or the path cannot be written.
    """
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise InputError(
            "--picture needs matplotlib: pip install matplotlib (ringbert's extra `report`)"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    sums = figures["allreduce"]
    figure, axes = pyplot.subplots(1, 3 if sums else 2, figsize=(14 if sums else 10, 4), layout="constrained")
    _draw_speed(axes[0], figures["layouts"], one)
    _draw_parts(axes[1], figures["layouts"])
    if sums:
        _draw_sums(axes[2], sums)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise InputError(f"--picture {path}: {error}") from error
    finally:
        pyplot.close(figure)


def _draw_speed(axis: Any, layouts: dict[str, Any], one: float) -> None:
    rates = [layout["examples_per_s"] for layout in layouts.values()]
    deviations = [layout["deviation"] for layout in layouts.values()]
    axis.bar(range(len(rates)), rates, yerr=deviations, capsize=4, label="measured")
    ideal = [one * layout["units"] for layout in layouts.values()]
    axis.plot(range(len(rates)), ideal, "k_", markersize=30, label="N times one rank")
    axis.set_title("examples/s over all ranks")
    _label(axis, layouts)


def _draw_parts(axis: Any, layouts: dict[str, Any]) -> None:
    bottom = [0.0] * len(layouts)
    for part in PARTS:
        heights = [layout[part] * 1e3 for layout in layouts.values()]
        axis.bar(range(len(layouts)), heights, bottom=bottom, label=part.removesuffix("_s"))
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axis.set_title("a step, ms")
    _label(axis, layouts)


def _label(axis: Any, layouts: dict[str, Any]) -> None:
    axis.set_xticks(range(len(layouts)), [label.replace(", ", "\n") for label in layouts])
    axis.margins(y=0.3)  # room for the legend above the bars
    axis.legend(loc="upper left", ncols=2)


def _draw_sums(axis: Any, sums: dict[str, Any]) -> None:
    sizes = [float(size) for size in sums]
    for name, label in (("ours_s", "as in training"), ("plain_s", "one plain Allreduce")):
        speeds = [float(size) / 1e3 / seconds[name] for size, seconds in sums.items()]
        axis.plot(sizes, speeds, "o-", label=label)
    axis.set_xscale("log")
    axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axis.minorticks_off()
    axis.set_title("all-reduce, GB/s by MB")
    axis.set_ylim(bottom=0)
    axis.legend()
