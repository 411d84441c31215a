"""Curves over steps as inline SVG, coloured by the page's CSS classes.

Own code, and no library for charts: every run writes its page at its end, which takes milliseconds
so and needs no further package; with the script of Plotly or Vega the page would be ten times as
large.
"""

import html
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

# pixels at full size, and margins
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 440, 250, 62, 18, 10, 26
MOST_POINTS = 500  # of a curve: more than there are pixels
MOST_READOUTS = 50
# of the points, over which a smoothed curve takes the mean
SMOOTHING_SHARE, LEAST_SMOOTHED = 0.04, 5
NUM_TICKS = 5

Points = Sequence[tuple[float, float]]
Marks = Iterable[tuple[float, str]]  # vertical lines and their names


class Curve(NamedTuple):
    """Points (x, y) as a line, or as dots joined by a dashed line. `color` is a number of the
    page's palette."""

    name: str
    points: Points
    color: int = 0
    style: str = "line"  # or "raw", "dots"


Drawn = Sequence[tuple[Curve, Points]]  # the points that can be drawn


def chart(
    title: str,
    curves: Iterable[Curve],
    marks: Marks = (),
    from_zero: bool = True,
) -> str:
    """A figure with a title, which names the unit, and a legend; `marks` are vertical lines with
    names. What was measured once is a line of text. Empty without points that are finite
    numbers."""
    drawn = []
    for curve in curves:
        points = thinned(finite(curve.points), MOST_POINTS)
        if points:
            drawn.append((curve, points))
    if not drawn:
        return ""
    title = html.escape(title)
    if all(len(points) == 1 for _, points in drawn):
        values = [f"{curve.name} {y:.4g} (step {x:.0f})" for curve, [(x, y)] in drawn]
        return f'<p class="once">{title}: {html.escape(", ".join(values))}</p>'
    keys = [key(curve.name, curve.color, curve.style) for curve, _ in drawn if curve.name]
    legend = "".join(dict.fromkeys(keys))
    body = "".join(elements(drawn, marks, from_zero))
    return (
        f'<figure><figcaption>{title}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{title}">{body}</svg><div class="legend">{legend}</div></figure>'
    )


def elements(drawn: Drawn, marks: Marks, from_zero: bool) -> Iterator[str]:
    """Axes, marks and curves, as parts of an SVG."""
    xs = [x for _, points in drawn for x, _ in points]
    ys = [y for _, points in drawn for _, y in points]
    last = max(xs)
    lowest = min(0.0, *ys) if from_zero else min(ys)
    y_ticks = ticks(lowest, max(ys))
    low = y_ticks[0]
    bottom = HEIGHT - BOTTOM
    x_scale = (WIDTH - LEFT - RIGHT) / (last or 1)
    y_scale = (bottom - TOP) / ((y_ticks[-1] - low) or 1)

    def x_at(step):
        return LEFT + step * x_scale

    def y_at(value):
        return bottom - (value - low) * y_scale

    for tick in y_ticks:
        y = y_at(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(tick)}</text>'
    yield f'<text x="{LEFT - 14}" y="{HEIGHT - 8}" text-anchor="end">step</text>'
    for tick in ticks(0, last):
        if tick <= last:
            place = f'x="{x_at(tick):.1f}" y="{HEIGHT - 8}"'
            yield f'<text {place} text-anchor="middle">{short(tick)}</text>'
    for step, name in marks:
        x = x_at(step)
        yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>'
        side, shift = ("end", -4) if x > WIDTH / 2 else ("start", 4)
        place = f'x="{x + shift:.1f}" y="{TOP + 10}"'
        yield f'<text {place} text-anchor="{side}">{html.escape(name)}</text>'
    for curve, points in drawn:
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
        yield f'<polyline class="{curve.style} c{curve.color}" points="{path}"/>'
        if curve.style == "dots" or len(points) == 1:
            for x, y in points:
                place = f'cx="{x_at(x):.1f}" cy="{y_at(y):.1f}"'
                yield f'<circle class="c{curve.color}" {place} r="3"/>'
    yield from readouts(drawn, x_at)


def readouts(drawn: Drawn, x_at: Callable[[float], float]) -> Iterator[str]:
    """What the pointer finds between two steps: of the second one each curve's last value."""
    steps = thinned(sorted({x for _, points in drawn for x, _ in points}), MOST_READOUTS)
    for before, step in itertools.pairwise([0, *steps]):
        lines = [f"step {step:.0f}"]
        for curve, points in drawn:
            values = [y for x, y in points if x <= step]
            if values:
                lines.append(f"{values[-1]:.4g} {curve.name}")
        text = html.escape("\n".join(lines))
        x = x_at(before)
        size = f'width="{x_at(step) - x:.1f}" height="{HEIGHT}"'
        yield f'<rect class="at" x="{x:.1f}" {size}><title>{text}</title></rect>'


def key(name: str, color: int, style: str = "line") -> str:
    """An entry of a legend."""
    return f'<span class="key"><i class="{style} c{color}"></i>{html.escape(name)}</span>'


def finite(points: Points) -> Points:
    """Those that can be drawn."""
    return [point for point in points if all(map(math.isfinite, point))]


def thinned(values: Sequence, most: int) -> Sequence:
    """Each n-th from the last one."""
    stride = math.ceil(len(values) / most) or 1
    return values[::-stride][::-1]


def smoothed(points: Points) -> Points:
    """Each with the mean of the values around it; all of them near the ends, so that nothing is
    delayed."""
    points = finite(points)
    window = max(LEAST_SMOOTHED, int(len(points) * SMOOTHING_SHARE))
    sums = [0.0, *itertools.accumulate(y for _, y in points)]  # of those before each point
    means = []
    for number, (x, _) in enumerate(points):
        reach = min(window // 2, number, len(points) - 1 - number)
        start, stop = number - reach, number + reach + 1
        mean = (sums[stop] - sums[start]) / (stop - start)
        means.append((x, mean))
    return means


def ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose both, in steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / NUM_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    steps = (factor * power for factor in (1, 2, 5, 10))
    step = next(step for step in steps if step >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def short(value: float) -> str:
    """A number in few characters, such as 12k or 3e-05."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(size, 1e4):
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
