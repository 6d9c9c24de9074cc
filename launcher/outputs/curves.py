"""Loss and metric curves as one HTML page with its pictures inside: no script, nothing to fetch."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from html import escape

from kfp_pytorch.launcher.outputs.charts import Scale, axes, chart, page, short

Points = Sequence[tuple[float, float]]
"""Points of a curve: step and value, by step."""

_COLOURS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#dc2626", "#0891b2", "#a16207", "#db2777")


def render(curves: Mapping[str, Points], title: str = "Training curves") -> str:
    """Draw curves.

    `curves`: points by name. Names that end alike, as `train_loss` and `loss`, share a chart.
    Returns a whole HTML page. Points that are not finite are gaps.
    """
    return page(title, figures(_charts(curves), "step") or f"<p>{_NOTHING}</p>")


def figures(charts: Mapping[str, Mapping[str, Points]], axis: str) -> str:
    """Draw one chart for each caption; empty without charts.

    `charts`: points by the curve's name, by caption; each curve has a finite one. `axis`: what the
    axis at the bottom shows.
    """
    drawn = [_figure(caption, members, axis) for caption, members in charts.items()]
    return f"<main>{''.join(drawn)}</main>" if drawn else ""


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
    return {
        name if len(members) > 1 else next(iter(members)): members
        for name, members in charts.items()
    }


def _finite(point: tuple[float, float]) -> bool:
    return all(math.isfinite(part) and abs(part) < _LARGEST for part in point)


def _figure(caption: str, members: Mapping[str, Points], axis: str) -> str:
    legend = "".join(
        f'<li><span class="key" style="background:{_colour(i)}"></span>{escape(member)} '
        f"<b>{short(_last(points))}</b> at {escape(axis)} {short(_last(points, 0))}</li>"
        for i, (member, points) in enumerate(members.items())
    )
    return (
        f"<figure><figcaption>{escape(caption)}</figcaption>{_chart(caption, members, axis)}"
        f"<ul>{legend}</ul></figure>"
    )


def _colour(i: int) -> str:
    return _COLOURS[i % len(_COLOURS)]


def _last(points: Points, part: int = 1) -> float:
    return [point for point in points if _finite(point)][-1][part]


def _chart(name: str, members: Mapping[str, Points], axis: str) -> str:
    seen = [point for points in members.values() for point in points if _finite(point)]
    scale = Scale([x for x, _ in seen], [y for _, y in seen])
    lines = "".join(
        _line(member, points, _colour(i), scale, axis)
        for i, (member, points) in enumerate(members.items())
    )
    return chart(f"{name} by {axis}", f"{axes(scale, axis)}{lines}")


def _line(name: str, points: Points, colour: str, scale: Scale, axis: str) -> str:
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
        f"<title>{escape(name)} {short(y)} at {escape(axis)} {short(x)}</title></circle>"
        for x, y in filter(_finite, points)
    )
    return paths + dots
