"""Pictures of 2 and of 20,000 shards: all shards count, titles say how many, and the same data gives the same bytes."""

import re
import sys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

import spiral_stream as sp
from spiral_stream.catalog.statistics.skew import skew_in
from spiral_stream.errors import MissingExtraError
from spiral_stream.report import Picture, charts
from spiral_stream.report.blocks import BlockMix
from spiral_stream.report.heatmap import heat_of
from spiral_stream.report.timeline import OTHER, Timeline
from tests.fixtures.spreads import spread

pytest.importorskip("matplotlib")


def pictures(shards: int, form: charts.Form = "png") -> list[Picture]:
    made = spread(shards, 6, 30, "drift")
    skew = skew_in(made)
    edges = np.linspace(1.7e15, 1.71e15, 6)
    rows = np.arange(10.0).reshape(5, 2)
    line = Timeline("at", edges, True, ("a $x$", OTHER), rows, "all 45 rows", None)
    blocks = [BlockMix(10, False, 1.0, 0.4, 0.5, 0.1), BlockMix(100, True, 9.5, 0.1, 0.2, 0.01)]
    return [
        charts.worst_shards("label", skew.shard_names, skew.distance, 0.1, form),
        charts.heat_map("label", heat_of(made), form),
        charts.effective_values("label", skew.effective, skew.effective_global, form),
        charts.over_time("label", line, form),
        charts.block_sizes("label", blocks, 0.3, "by default", form),
    ]


@pytest.mark.parametrize("shards", [1, 2, 20_000])
def test_pictures_fit_the_page_and_name_all_shards(shards: int) -> None:
    found = pictures(shards)

    sizes = [Image.open(BytesIO(each.data)).size for each in found]
    assert {width for width, _ in sizes} == {charts.WIDTH}
    assert all(150 < height < 450 for _, height in sizes)
    assert all(f"{shards:,}" in each.title for each in found[:3])
    assert len({each.name for each in found}) == len(found)
    assert all(re.fullmatch(r"[\w-]+", each.name) for each in found)


def test_the_same_data_gives_the_same_picture() -> None:
    assert [each.data for each in pictures(3, "svg")] == [each.data for each in pictures(3, "svg")]


@pytest.mark.parametrize("count", [0, 1, 40, 41, 20_000])
def test_no_bar_is_left_out(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[float]] = []
    monkeypatch.setattr("matplotlib.axes.Axes.bar", lambda _, at, heights, **more: drawn.append(heights))

    made = sp.report.draw_bars("files", "Files", [(f"value {k}", k) for k in range(count)], across="value", up="files")

    assert len(drawn[0]) == min(count, -(-count // -(-count // 40 or 1)) if count else 0)
    assert sum(drawn[0]) == sum(range(count))
    assert (made.form, f"{count:,} bars in" in made.title) == ("svg", False)


@pytest.mark.parametrize("count", [0, 1, 30, 30_000])
def test_a_long_curve_is_drawn_by_its_means_up_to_its_last_point(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn, plot = [], Axes.plot

    def watched(axes: Axes, x: list[float], y: list[float], *more: object, **style: object) -> object:
        drawn.append((x, y))
        return plot(axes, x, y, *more, **style)

    monkeypatch.setattr(Axes, "plot", watched)
    points = [(float(k), 2.0 * k) for k in range(count)]

    made = sp.report.draw_curves(
        "curve", "A curve", {"loss": {"a": points}, "rate": {"b": points}}, across="step", marks=[3]
    )

    assert made.name == "curve"
    (x, y), (other, _) = drawn
    assert len(x) == len(other) <= 501
    assert list(y) == [2 * each for each in x]
    assert not count or x[-1] == count - 1


@pytest.mark.parametrize("width", [charts.WIDTH // 2, charts.WIDTH, 2 * charts.WIDTH])
def test_curves_and_bars_are_as_wide_as_asked_and_have_no_ground(width: int) -> None:
    curves = {f"value {k} of a long name": {"now": [(0, 1.0), (1, 1.0 + 1e-9)], "low": [(0, 0.0)]} for k in range(3)}
    words = "A title that is longer than a small picture is wide, so it takes two lines"
    drawn = [
        sp.report.draw_curves("curves", words, curves, across="step", marks=[1], marked="far", form="png", width=width),
        sp.report.draw_bars("bars", words, [("a", 1), ("b", 2)], across="x", up="y", form="png", width=width),
    ]

    for each in drawn:
        image = Image.open(BytesIO(each.data))
        assert image.width == width
        assert image.getpixel((width - 1, 0))[3] == 0  # type: ignore[index]  # a pixel of four values


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(MissingExtraError, match=re.escape("spiral-stream[report]")):
        pictures(2)
