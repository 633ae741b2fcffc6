"""Pictures of 2 and of 20,000 shards: all shards count, titles say how many, and the same data gives the same bytes."""

import re
import sys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from spiral_stream.catalog.skew import skew_in
from spiral_stream.errors import MissingExtraError
from spiral_stream.report import charts
from spiral_stream.report.blocks import BlockMix
from spiral_stream.report.charts import Picture
from spiral_stream.report.heat import heat_of
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


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(MissingExtraError, match=re.escape("spiral[report]")):
        pictures(2)
