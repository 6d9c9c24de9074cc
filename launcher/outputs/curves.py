"""Loss and metric curves as one HTML page with its pictures inside: no script, nothing to fetch."""

from __future__ import annotations

import itertools
import math
import pkgutil
import re
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
"""Points of a curve: step and value, by step."""

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 14, 50
_COLOURS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#dc2626", "#0891b2", "#a16207", "#db2777")


def render(curves: Mapping[str, Points], title: str = "Training curves") -> str:
    """Draw curves.

    `curves`: points by name. Names that end alike, as `train_loss` and `loss`, share a chart.
    Returns a whole HTML page. Points that are not finite are gaps.
    """
    charts = [_figure(name, members) for name, members in _charts(curves).items()]
    style = (pkgutil.get_data(__name__, "curves.css") or b"").decode()
    body = f"<main>{''.join(charts)}</main>" if charts else f"<p>{_NOTHING}</p>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


# Further out, the range of an axis is no number any more.
_LARGEST = 1e300
_NOTHING = (
    "The training container reported no curves. A container that writes them into its "
    "termination message has them drawn here."
)


def _charts(curves: Mapping[str, Points]) -> dict[str, dict[str, Points]]:
    charts: dict[str, dict[str, Points]] = {}
    for name, points in curves.items():
        if any(_finite(point) for point in points):
            charts.setdefault(re.split(r"[_/. -]", name)[-1] or name, {})[name] = points
    return charts


def _finite(point: tuple[float, float]) -> bool:
    return all(math.isfinite(part) and abs(part) < _LARGEST for part in point)


def _figure(name: str, members: Mapping[str, Points]) -> str:
    caption = name if len(members) > 1 else next(iter(members))
    legend = "".join(
        f'<li><span class="key" style="background:{_colour(i)}"></span>{escape(member)} '
        f"<b>{_short(_last(points))}</b> at step {_short(_last(points, 0))}</li>"
        for i, (member, points) in enumerate(members.items())
    )
    return (
        f"<figure><figcaption>{escape(caption)}</figcaption>{_chart(caption, members)}"
        f"<ul>{legend}</ul></figure>"
    )


def _colour(i: int) -> str:
    return _COLOURS[i % len(_COLOURS)]


def _last(points: Points, part: int = 1) -> float:
    return [point for point in points if _finite(point)][-1][part]


def _chart(name: str, members: Mapping[str, Points]) -> str:
    seen = [point for points in members.values() for point in points if _finite(point)]
    scale = _Scale([x for x, _ in seen], [y for _, y in seen])
    lines = "".join(
        _line(member, points, _colour(i), scale)
        for i, (member, points) in enumerate(members.items())
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)} by step">'
        f"{_axes(scale)}{lines}</svg>"
    )


class _Scale:
    """Where steps and values lie in the picture."""

    def __init__(self, steps: Sequence[float], values: Sequence[float]) -> None:
        self.y_ticks = ticks(min(values), max(values), 5)
        around = ticks(min(steps), max(steps), 5)
        one = min(steps) == max(steps)
        self.first, self.last = (around[0], around[-1]) if one else (min(steps), max(steps))
        self.x_ticks = [step for step in around if self.first <= step <= self.last]

    def x(self, step: float) -> float:
        share = (step - self.first) / (self.last - self.first)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.y_ticks[0]) / (self.y_ticks[-1] - self.y_ticks[0])
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


def _axes(scale: _Scale) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value in scale.y_ticks:
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 5}" text-anchor="end">{_short(value)}</text>')
    for step in scale.x_ticks:
        x = scale.x(step)
        parts.append(f'<text x="{x}" y="{bottom + 20}" text-anchor="middle">{_short(step)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">step</text>')
    return "".join(parts)


def _line(name: str, points: Points, colour: str, scale: _Scale) -> str:
    stretches = [list(group) for finite, group in itertools.groupby(points, _finite) if finite]
    paths = "".join(
        '<polyline points="'
        + " ".join(f"{scale.x(x)},{scale.y(y)}" for x, y in stretch)
        + f'" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
        for stretch in stretches
        if len(stretch) > 1
    )
    dots = "".join(
        f'<circle cx="{scale.x(x)}" cy="{scale.y(y)}" r="2.5" fill="{colour}">'
        f"<title>{escape(name)} {_short(y)} at step {_short(x)}</title></circle>"
        for x, y in filter(_finite, points)
    )
    return paths + dots


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return round numbers at even distances that enclose a range.

    Returns at least two numbers, ascending, from at most `low` to at least `high`.
    """
    largest = max(abs(low), abs(high))
    if high - low <= max(1e-12 * largest, 1e-290):
        pad = largest / 10 if largest > 1e-280 else 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    distance = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * 0.999)
    first, last = math.floor(low / distance + 1e-9), math.ceil(high / distance - 1e-9)
    return [i * distance for i in range(first, max(last, first + 1) + 1)]


def _short(value: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if max(unit, 1e4) <= abs(value) < 1e12:
            return f"{value / unit:.4g}{letter}"
    if value and not 1e-4 <= abs(value) < 1e12:
        return f"{value:.3g}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if value != int(value) else f"{int(value)}"
