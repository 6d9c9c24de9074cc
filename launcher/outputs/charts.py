"""What HTML pages with charts are made of: no script, nothing to fetch."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 14, 50


def page(title: str, body: str) -> str:
    """Return a whole HTML page. `body`: HTML."""
    style = (pkgutil.get_data(__name__, "page.css") or b"").decode()
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def chart(label: str, content: str) -> str:
    """Return a picture. `label`: what it shows, for who cannot see it. `content`: SVG."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{content}</svg>"
    )


class Scale:
    """Where a chart's points lie in the picture: x to the right, y upwards."""

    def __init__(self, steps: Sequence[float], values: Sequence[float]) -> None:
        self.y_ticks = ticks(min(values), max(values), 5)
        around = ticks(min(steps), max(steps), 5)
        one = min(steps) == max(steps)
        self.first, self.last = (around[0], around[-1]) if one else (min(steps), max(steps))
        self.x_ticks = [step for step in around if self.first <= step <= self.last]

    def x(self, step: float) -> float:
        """Return where a number of the axis at the bottom is."""
        share = (step - self.first) / (self.last - self.first)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        """Return where a number of the axis at the left is."""
        share = (value - self.y_ticks[0]) / (self.y_ticks[-1] - self.y_ticks[0])
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)


def axes(scale: Scale, label: str) -> str:
    """Return both axes with their numbers. `label`: what the one at the bottom has."""
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = []
    for value in scale.y_ticks:
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 5}" text-anchor="end">{short(value)}</text>')
    for step in scale.x_ticks:
        x = scale.x(step)
        parts.append(f'<text x="{x}" y="{bottom + 20}" text-anchor="middle">{short(step)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(label)}</text>')
    return "".join(parts)


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


def short(value: float) -> str:
    """Write a number for a chart, with a unit's prefix where it is large."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if max(unit, 1e4) <= abs(value) < 1e12:
            return f"{value / unit:.4g}{letter}"
    if value and not 1e-4 <= abs(value) < 1e12:
        return f"{value:.3g}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if value != int(value) else f"{int(value)}"
