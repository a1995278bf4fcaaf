"""Line charts and intervals as inline SVG. Colours are classes (s0, s1, ...), light and dark in the style sheet."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.report.page import number, percent, text

WIDTH, HEIGHT = 360, 208
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 32
MOST_POINTS = 240  # of a drawn line; longer series are averaged in buckets


@dataclass
class Series:
    """One line: (x, y) in order of x."""

    name: str
    points: list[tuple[float, float]]
    marks: bool = False  # few values that are worth a dot each


def line_chart(title: str, series: list[Series], x_label: str = "step", is_share: bool = False) -> str:
    """A figure with axes and a legend that tells the last values. `is_share`: 0-1, written in percent."""
    series = [line for line in series if line.points]
    if not series:
        return ""
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    y_ticks = nice_ticks(min(ys), max(ys))
    if is_share:
        y_ticks = [tick for tick in y_ticks if -1e-9 <= tick <= 1 + 1e-9]
    x_low, x_high = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
    y_low, y_high = min(y_ticks[0], *ys), max(y_ticks[-1], *ys)

    def x_at(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - x_low) / (x_high - x_low)

    def y_at(y: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (y - y_low) / ((y_high - y_low) or 1))

    parts = [_axes(y_ticks, nice_ticks(x_low, x_high, 4), x_at, y_at, x_label, is_share, (x_low, x_high))]
    for index, line in enumerate(series):
        parts.append(_line(line, index, x_at, y_at))
    legend = "".join(
        f'<span class="key s{index % 6}">{text(line.name)} <b>{_value(line.points[-1][1], is_share)}</b></span>'
        for index, line in enumerate(series)
    )
    unit = " <small>%</small>" if is_share else ""
    return (
        f'<figure class="chart"><figcaption>{text(title)}{unit}<span class="legend">{legend}</span></figcaption>\n'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">{"".join(parts)}</svg></figure>'
    )


def _axes(y_ticks, x_ticks, x_at, y_at, x_label: str, is_share: bool, x_range: tuple[float, float]) -> str:
    parts = []
    for tick in y_ticks:
        y = y_at(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{_tick(tick, is_share)}</text>'
        )
    bottom = HEIGHT - BOTTOM
    for tick in x_ticks:
        if x_range[0] <= tick <= x_range[1] and tick == int(tick):  # there is no half step
            parts.append(
                f'<text class="tick" x="{x_at(tick):.1f}" y="{bottom + 14}" text-anchor="middle">{_tick(tick)}</text>'
            )
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{text(x_label)}</text>')
    return "".join(parts)


def _line(line: Series, index: int, x_at, y_at) -> str:
    colour = f"s{index % 6}"
    shown = bucketed(line.points)
    path = "M" + "L".join(f"{x_at(x):.1f} {y_at(y):.1f}" for x, y in shown)
    if len(line.points) == 1 or line.marks:
        dots = "".join(f'<circle class="{colour}" cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="2.6"/>' for x, y in shown)
        return f'<path class="line {colour}" d="{path}"/>{dots}'
    smooth = smoothed(shown)
    if smooth is None:
        return f'<path class="line {colour}" d="{path}"/>'
    bold = "M" + "L".join(f"{x_at(x):.1f} {y_at(y):.1f}" for x, y in smooth)
    return f'<path class="line raw {colour}" d="{path}"/><path class="line {colour}" d="{bold}"/>'


def bucketed(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MOST_POINTS points, each the mean of its neighbours."""
    size = math.ceil(len(points) / MOST_POINTS)
    if size <= 1:
        return points
    buckets = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in bucket) / len(bucket), sum(y for _, y in bucket) / len(bucket)) for bucket in buckets]


def smoothed(points: list[tuple[float, float]]) -> list[tuple[float, float]] | None:
    """A centred moving mean over a tenth of the points; None where there are too few to need one."""
    if len(points) < 20:
        return None
    half = max(1, len(points) // 20)
    means = []
    for index, (x, _) in enumerate(points):
        reach = min(half, index, len(points) - 1 - index)  # shrinks at the ends, so that they stay centred
        window = [y for _, y in points[index - reach : index + reach + 1]]
        means.append((x, sum(window) / len(window)))
    return means


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from below `low` to above `high`."""
    if high <= low:
        spread = abs(low) * 0.1 or 1.0
        low, high = (low - spread if low else 0.0), high + spread
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def whisker(mean: float, low: float, high: float, domain: tuple[float, float]) -> str:
    """A dot with its interval on a shared scale, for a table cell."""
    width, height = 160, 18
    span = (domain[1] - domain[0]) or 1

    def at(value: float) -> float:
        return 4 + (width - 8) * (value - domain[0]) / span

    return (
        f'<svg class="whisker" viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">'
        f'<path class="range" d="M{at(low):.1f} 9H{at(high):.1f}"/><circle cx="{at(mean):.1f}" cy="9" r="3.5"/></svg>'
    )


def _tick(value: float, is_share: bool = False) -> str:
    if is_share:
        return f"{100 * value:g}"
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:g}"


def _value(value: float, is_share: bool) -> str:
    return percent(value) if is_share else number(value)
