"""Curves over steps as inline SVG, coloured by the page's CSS classes.

Own code, and no library for charts: every run writes its page at its end, which takes milliseconds
so and needs no further package; with the script of Plotly or Vega the page would be ten times as
large.
"""

import bisect
import html
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

# pixels at full size, and margins
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 440, 250, 46, 18, 10, 26
CHARACTER, LINE = 7.5, 14  # pixels: a digit of the widest common font, and a line's height
MOST_POINTS = 500  # of a curve: more than there are pixels
MOST_READOUTS, MOST_READ, LONGEST_READ = 30, 14, 30  # places, curves, and characters of a name
# of the points, over which a smoothed curve takes the mean
SMOOTHING_SHARE, LEAST_SMOOTHED = 0.04, 5
NUM_TICKS = 5

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """Points (x, y) as a line, or as dots joined by a dashed line. `color` is a number of the
    page's palette."""

    name: str
    points: Points
    color: int = 0
    style: str = "line"  # or "raw", "dots"


def chart(
    title: str,
    curves: Iterable[Curve],
    marks: Iterable[tuple[float, str]] = (),
    from_zero: bool = True,
) -> str:
    """A figure with a title, which names the unit, and a legend; `marks` are vertical lines with
    names. What was measured once is a line of text. Empty without points that are finite
    numbers."""
    drawn = [(curve, points) for curve in curves if (points := finite(curve.points))]
    if not drawn:
        return ""
    if all(len(points) == 1 for _, points in drawn):
        return measured_once(title, drawn)
    xs, ys = zip(*(point for _, points in drawn for point in points), strict=True)
    x_ticks = [tick for tick in ticks(0, max(xs)) if tick <= max(xs)]
    y_ticks = ticks(min(0.0, *ys) if from_zero else min(ys), max(ys))
    left = max(LEFT, 8 + CHARACTER * max(len(short(tick)) for tick in y_ticks))
    x_scale = (WIDTH - left - RIGHT) / (max(xs) or 1)
    y_scale = (HEIGHT - TOP - BOTTOM) / ((y_ticks[-1] - y_ticks[0]) or 1)

    def x_at(value: float) -> float:
        return left + value * x_scale

    def y_at(value: float) -> float:
        return HEIGHT - BOTTOM - (value - y_ticks[0]) * y_scale

    parts = []
    for y, tick in zip(map(y_at, y_ticks), y_ticks, strict=True):
        parts.append(
            f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    parts.append(f'<text x="{left - 14}" y="{HEIGHT - 8}" text-anchor="end">step</text>')
    for tick in x_ticks:
        parts.append(
            f'<text x="{x_at(tick):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{short(tick)}</text>'
        )
    for value, name in marks:
        x = x_at(value)
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        side, shift = ("end", -4) if x > WIDTH / 2 else ("start", 4)
        parts.append(
            f'<text x="{x + shift:.1f}" y="{TOP + 10}"'
            f' text-anchor="{side}">{html.escape(name)}</text>'
        )
    for curve, points in drawn:
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
        parts.append(f'<polyline class="{curve.style} c{curve.color}" points="{path}"/>')
        if curve.style == "dots" or len(points) == 1:
            parts += [
                f'<circle class="c{curve.color}" cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3"/>'
                for x, y in points
            ]
    parts += readouts(drawn, x_at)
    names = {(curve.name, curve.color, curve.style): None for curve, _ in drawn if curve.name}
    legend = "".join(key(*each) for each in names)
    body = "".join(parts)
    return (
        f'<figure><figcaption>{html.escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' role="img" aria-label="{html.escape(title)}">{body}</svg><div'
        f' class="legend">{legend}</div></figure>'
    )


def measured_once(title: str, drawn: Sequence[tuple[Curve, Points]]) -> str:
    values = []
    for curve, [(step, value)] in drawn:
        values.append(f"{curve.name} {value:.4g} (step {step:,.0f})")
    return f'<p class="once"><b>{html.escape(title)}</b>: {html.escape(", ".join(values))}</p>'


def readouts(
    drawn: Sequence[tuple[Curve, Points]], x_at: Callable[[float], float]
) -> Iterator[str]:
    """What is shown while the pointer is over a place: its step, and the last value of each curve
    until then."""
    steps = sorted({step for _, points in drawn for step, _ in points})
    steps = steps[-1 :: -math.ceil(len(steps) / MOST_READOUTS)][::-1]
    places = [x_at(step) for step in steps]
    borders = [(one + other) / 2 for one, other in itertools.pairwise(places)]
    edges = itertools.pairwise([0.0, *borders, WIDTH])
    for step, x, (start, stop) in zip(steps, places, edges, strict=True):
        lines = [("", f"step {step:,.0f}")]
        for curve, points in drawn:
            number = bisect.bisect_right(points, (step, math.inf))
            if number and step <= points[-1][0]:
                value = f"{curve.name[:LONGEST_READ]} {points[number - 1][1]:.4g}"
                lines.append((f' class="c{curve.color}"', value))
        side, shift = ("end", -6) if x > WIDTH / 2 else ("start", 6)
        texts = "".join(
            f'<text{color} x="{shift}" y="{TOP + LINE * number}">{html.escape(text)}</text>'
            for number, (color, text) in enumerate(lines[:MOST_READ], 1)
        )
        yield (
            f'<g class="at" transform="translate({x:.1f})" text-anchor="{side}"><rect'
            f' x="{start - x:.1f}" width="{stop - start:.1f}" height="{HEIGHT}"/>'
            f'<path d="M0 {TOP}V{HEIGHT - BOTTOM}"/>{texts}</g>'
        )


def key(name: str, color: int, style: str = "line") -> str:
    """An entry of a legend."""
    return f'<span class="key"><i class="{style} c{color}"></i>{html.escape(name)}</span>'


def finite(points: Points) -> Points:
    """Those that can be drawn, thinned to `MOST_POINTS`; the last one stays."""
    kept = [point for point in points if all(map(math.isfinite, point))]
    stride = math.ceil(len(kept) / MOST_POINTS)
    return kept[:: stride or 1] + (kept[-1:] if stride > 1 else [])


def smoothed(points: Points) -> Points:
    """Each with the mean of the values around it; all of them near the ends, so that nothing is
    delayed."""
    points = [point for point in points if all(map(math.isfinite, point))]
    reach, means = max(LEAST_SMOOTHED, int(len(points) * SMOOTHING_SHARE)) // 2, []
    sums = [0.0, *itertools.accumulate(y for _, y in points)]
    for number, (x, _) in enumerate(points):
        near = min(reach, number, len(points) - 1 - number)
        means.append((x, (sums[number + near + 1] - sums[number - near]) / (2 * near + 1)))
    return means


def ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose both, in steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / NUM_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def short(value: float) -> str:
    """A number in few characters, such as 12k or 3e-5."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.4g}{unit}"
    if 0 < abs(value) < 1e-3:
        digits, power = f"{value:.4e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:.6g}"
