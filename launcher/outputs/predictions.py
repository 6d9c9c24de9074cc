"""The report of requests to a model server: figures, a histogram, and answers, as one HTML page."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kfp_pytorch.launcher.kserve.predict.asking import Asked, items
from kfp_pytorch.launcher.kserve.predict.latency import OF_FIRST, summary
from kfp_pytorch.launcher.kserve.predict.target import Target
from kfp_pytorch.launcher.outputs.charts import Scale, axes, chart, page, short
from kfp_pytorch.launcher.runtime.printing import printable
from kfp_pytorch.launcher.text import counted, cut

_SHOWN_ANSWERS = 20
_SHOWN_CHARACTERS = 200
_BARS = 24
_MILLISECONDS = 1000.0
_LATENCY = "latency_"
_DIGITS = 6


def metrics(asked: Asked) -> dict[str, float]:
    """Return the figures as metrics, times in seconds: finite numbers that metric_gate takes."""
    found = {f"{_LATENCY}{name}": seconds for name, seconds in summary(asked.latencies).items()}
    found |= {f"{OF_FIRST}{name}": s for name, s in summary(asked.first_tokens).items()}
    found["requests"] = float(len(asked.outcomes))
    if asked.seconds > 0:
        found["requests_per_second"] = len(asked.measured) / asked.seconds
        tokens = [each.answers.output_tokens for each in asked.measured]
        if None not in tokens:
            found["output_tokens_per_second"] = sum(filter(None, tokens)) / asked.seconds
    return {name: round(value, _DIGITS) for name, value in found.items()}


def render(target: Target, asked: Asked, concurrency: int) -> str:
    """Write the report. `concurrency`: how many requests were under way at once. Returns HTML."""
    figures = metrics(asked)
    body = [
        f"<p>{_sentence(target, asked, concurrency)}</p>",
        _latency_table(figures),
        _rates(figures),
        histogram(asked.latencies),
        _statuses(asked),
        _answers(asked),
    ]
    return page("Answers of the model server", printable("".join(body)))


def _sentence(target: Target, asked: Asked, concurrency: int) -> str:
    sent = counted(len(asked.outcomes), "request")
    words = f"{sent} to <code>{escape(target.url)}</code> (protocol {target.protocol})"
    if len(asked.outcomes) < 2:
        return f"{words}."
    return (
        f"{words}, {concurrency} at once. The first one, which may have waited for the server to "
        f"start, counts for no figure; the others took {asked.seconds:.2f} s."
    )


def _latency_table(figures: Mapping[str, float]) -> str:
    rows, head = list[list[str]](), list[str]()
    for title, prefix in (("latency", _LATENCY), ("first token", OF_FIRST)):
        found = {k.removeprefix(prefix): v for k, v in figures.items() if k.startswith(prefix)}
        if found:
            head = ["in ms", *found]
            rows.append([title, *(f"{seconds * _MILLISECONDS:.1f}" for seconds in found.values())])
    return table(head, [[escape(cell) for cell in row] for row in rows]) if rows else ""


def _rates(figures: Mapping[str, float]) -> str:
    names = {"requests_per_second": "requests/s", "output_tokens_per_second": "output tokens/s"}
    said = [f"{figures[key]:.1f} {words}" for key, words in names.items() if key in figures]
    return f"<p>{', '.join(said)}</p>" if said else ""


def histogram(
    seconds: Sequence[float],
    caption: str = "Requests by latency",
    within: tuple[float, float] | None = None,
) -> str:
    """Draw how many requests took how long; nothing for one.

    `within`: the ends of the axis in seconds, where several are compared; None for those of the
    latencies. Returns HTML.
    """
    if len(seconds) < 2:
        return ""
    ends = within or (min(seconds), max(seconds))
    low, high = (end * _MILLISECONDS for end in ends)
    bars = min(_BARS, math.ceil(math.sqrt(len(seconds))))
    width = (high - low) / bars or 1e-3
    counts = Counter(min(int((s * _MILLISECONDS - low) / width), bars - 1) for s in seconds)
    edges = [low + i * width for i in range(bars + 1)]
    scale = Scale(edges, [0.0, *map(float, counts.values())])
    drawn = "".join(_bar(scale, edges[i], edges[i + 1], counts[i]) for i in sorted(counts))
    picture = chart("How many requests took how long", f"{axes(scale, 'latency, ms')}{drawn}")
    return f'<figure class="chart"><figcaption>{escape(caption)}</figcaption>{picture}</figure>'


def _bar(scale: Scale, low: float, high: float, count: int) -> str:
    x, y = scale.x(low), scale.y(count)
    width, height = scale.x(high) - x - 1, scale.y(0) - y
    title = f"{counted(count, 'request')} of {short(low)} to {short(high)} ms"
    return (
        f'<rect class="bar" x="{x}" y="{y}" width="{max(width, 1):.1f}" height="{height:.1f}">'
        f"<title>{title}</title></rect>"
    )


def _statuses(asked: Asked) -> str:
    """The statuses of all tries; those before an answer are of a server that was not there yet."""
    counts = Counter(status for each in asked.outcomes for status in each.statuses)
    rows = [[escape(status), str(count)] for status, count in counts.most_common()]
    return table(["status of a try", "tries"], rows)


def _answers(asked: Asked) -> str:
    """The first answers, the wrong ones before the others."""
    known = [item for item in items(asked) if item.answer is not None]
    first = sorted(known, key=lambda item: item.is_right is not False)[:_SHOWN_ANSWERS]
    rows = [
        [str(item.number), _cell(item.expected), _cell(item.answer), _verdict(item.is_right)]
        for item in first
    ]
    if len(known) > len(rows):
        rows.append(["…", f"{len(known) - len(rows)} more", "", ""])
    return table(["", "expected", "answer", ""], rows)


def _verdict(is_right: bool | None) -> str:
    if is_right is None:
        return "not compared"
    return "right" if is_right else '<span class="wrong">wrong</span>'


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = cut(json.dumps(rounded(value), ensure_ascii=False), _SHOWN_CHARACTERS)
    return f"<code>{escape(text)}</code>"


def rounded(value: Any) -> Any:
    """Copy JSON with four digits of each fraction: scores have no more that mean anything."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.4g}") if abs(value) < 1 else round(value, 4)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. `head`: text. `rows`: HTML."""
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{heads}</tr>{lines}</table>"
