from __future__ import annotations

import math
import re
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_pytorch.launcher.outputs.charts import ticks
from kfp_pytorch.launcher.outputs.curves import render


class Tags(HTMLParser):
    """Collects the tags, and fails where one is left open."""

    EMPTY = frozenset({"meta"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.seen if name == tag]


def test_curves_that_end_alike_share_a_chart_with_a_legend() -> None:
    page = render(
        {
            "train_loss": [(0, 2.0), (10, 1.0)],
            "val_loss": [(0, 2.1), (10, 1.2)],
            "accuracy": [(10, 0.9), (20, 0.95)],
        }
    )
    tags = Tags(page)
    assert len(tags.all("svg")) == 2
    assert len(tags.all("polyline")) == 3
    assert "train_loss <b>1</b> at step 10" in page
    assert "val_loss <b>1.2</b> at step 10" in page


def test_the_line_runs_from_the_first_step_to_the_last_and_falls_as_the_loss_does() -> None:
    (line,) = Tags(render({"loss": [(0, 4.0), (50, 2.0), (100, 0.0)]})).all("polyline")
    points = [tuple(map(float, pair.split(","))) for pair in str(line["points"]).split()]
    xs, ys = zip(*points, strict=True)
    assert xs[1] - xs[0] == xs[2] - xs[1] > 200
    assert ys[0] < ys[1] < ys[2]


def test_the_page_fetches_nothing_and_runs_nothing() -> None:
    page = render({"loss": [(0, 1.0), (1, 0.5)]})
    assert "<script" not in page
    assert not re.search(r"https?://|@import|url\(|\bsrc=|\bhref=", page)


def test_names_cannot_break_out_of_the_page() -> None:
    name = '<script>alert("x")</script>'
    page = render({name: [(0, 1.0), (1, 2.0)]}, title=name)
    assert "<script" not in page
    assert not Tags(page).all("script")


def test_points_that_are_not_finite_are_gaps() -> None:
    tags = Tags(render({"loss": [(0, 3.0), (1, 2.0), (2, math.nan), (3, 1.0), (4, 0.5)]}))
    assert len(tags.all("polyline")) == 2
    assert len(tags.all("circle")) == 4


def test_a_curve_with_no_finite_point_is_not_drawn() -> None:
    page = render({"loss": [(0, math.nan), (1, math.inf)]})
    assert not Tags(page).all("svg")
    assert "reported no curves" in page


def test_one_point_and_a_constant_curve_are_drawn_in_the_middle() -> None:
    tags = Tags(render({"loss": [(26, 1e6)], "lr": [(0, 0.1), (10, 0.1)]}))
    heights = [float(str(dot["cy"])) for dot in tags.all("circle")]
    assert all(100 < height < 200 for height in heights)


numbers = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(numbers, numbers, st.integers(2, 8))
def test_ticks_enclose_any_range_that_can_be_drawn(a: float, b: float, wanted: int) -> None:
    low, high = sorted((a / 1e8, b / 1e8))
    found = ticks(low, high, wanted)
    assert 2 <= len(found) <= 2 * wanted + 3
    assert found[0] < found[-1]
    slack = 1e-8 * (found[1] - found[0])  # less than a hundredth of a pixel
    assert found[0] <= low + slack
    assert found[-1] >= high - slack


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.text(max_size=6),
        st.lists(st.tuples(st.floats(), st.floats()), max_size=5).map(sorted),
        max_size=4,
    )
)
def test_any_curves_make_a_page(curves: dict[str, list[tuple[float, float]]]) -> None:
    tags = Tags(render(curves))
    for line in tags.all("polyline"):
        assert not re.search("nan|inf", str(line["points"]))
