"""The report of a canary beside the stable revision: figures, histograms, reasons, as one page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kfp_pytorch.launcher.kserve.canary.comparison import Comparison, Figures
from kfp_pytorch.launcher.kserve.canary.measuring import CANARY, STABLE, Try, text_of
from kfp_pytorch.launcher.outputs.charts import page
from kfp_pytorch.launcher.outputs.predictions import histogram, table
from kfp_pytorch.launcher.runtime.printing import printable
from kfp_pytorch.launcher.text import cut

_TITLE = "Canary and stable revision"
_SHOWN = 20
_SHOWN_CHARACTERS = 200
_PERCENTILES = ("p50", "p95", "p99", "max")


def render(found: Comparison, tries: Sequence[Try]) -> str:
    """Write the report. Returns HTML."""
    latencies = [*found.canary.latencies, *found.stable.latencies]
    within = (min(latencies), max(latencies)) if latencies else None
    body = [
        f"<p><b>{escape(found.decision)}</b>: {escape(found.reason)}.</p>",
        _figures(found),
        "<main>",
        histogram(found.canary.latencies, "Canary: requests by latency", within),
        histogram(found.stable.latencies, "Stable revision: requests by latency", within),
        "</main>",
        _errors(found),
        _differences(tries),
    ]
    return page(_TITLE, printable("".join(body)))


def without_canary(reason: str) -> str:
    """Write the report where there is nothing to compare. Returns HTML."""
    return page(_TITLE, f"<p><b>promote</b>: {escape(reason)}.</p>")


def _figures(found: Comparison) -> str:
    head = ["", "requests", "errors", "right answers", *(f"{p}, ms" for p in _PERCENTILES)]
    rows = [_row("canary", found.canary), _row("stable", found.stable)]
    alike = "" if found.agreement is None else f"{found.agreement:.1%}"
    said = f"<p>Both answer alike in {alike} of the cases.</p>" if alike else ""
    return table(head, rows) + said


def _row(name: str, figures: Figures) -> list[str]:
    right = "" if figures.accuracy is None else f"{figures.accuracy:.1%}"
    seconds = (figures.percentiles.get(p) for p in _PERCENTILES)
    shown = ["" if each is None else f"{1000 * each:.1f}" for each in seconds]
    return [name, str(figures.requests), f"{figures.error_rate:.1%}", right, *shown]


def _errors(found: Comparison) -> str:
    rows = [
        [name, str(count), f"<code>{escape(cut(said, _SHOWN_CHARACTERS))}</code>"]
        for name, figures in (("canary", found.canary), ("stable", found.stable))
        for said, count in figures.errors.most_common(5)
    ]
    return table(["", "requests", "error"], rows) if rows else ""


def _differences(tries: Sequence[Try]) -> str:
    """The first answers of each side to the cases that they answer differently."""
    first = {(t.side, t.number): t for t in reversed(tries) if not t.error}
    rows = []
    for number in sorted({number for _, number in first}):
        canary, stable = first.get((CANARY, number)), first.get((STABLE, number))
        if canary and stable and canary.right != stable.right:
            rows.append([str(number), _cell(canary), _cell(stable)])
    if not rows:
        return ""
    more = [["…", f"{len(rows) - _SHOWN} more", ""]] if len(rows) > _SHOWN else []
    return table(["case", "canary", "stable revision"], rows[:_SHOWN] + more)


def _cell(given: Try) -> str:
    text = escape(cut(text_of(given.items), _SHOWN_CHARACTERS))
    return f"<code>{text}</code>{_verdict(given)}"


def _verdict(given: Try) -> str:
    if None in given.right:
        return ""
    return " right" if all(given.right) else ' <span class="wrong">wrong</span>'
