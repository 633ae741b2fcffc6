"""Who shares a batch of one shape: units of whole batches, and what the tail rules make of the rest."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.batching import DropPartial, KeepPartial, PadPartial
from spiral_stream.errors import DataError, PlanError
from spiral_stream.testing import ChapterSamples, FormedChapter, check_formation

SHAPES = [(8, 8), (8, 16), (16, 8), (8, 32)]


def chapter(sizes: list[tuple[int, int]]) -> ChapterSamples:
    width, height = (np.array(each, dtype=np.int64) for each in zip(*sizes, strict=True)) if sizes else ([], [])
    count = len(sizes)
    keys = (np.asarray(width, dtype=np.int64), np.asarray(height, dtype=np.int64))
    return ChapterSamples(np.zeros(count, np.int64), np.zeros(count, np.int32), keys=keys, known=False)


def formed(sizes: list[tuple[int, int]], unit: int, rows: int, last: Any, window: int | None = None) -> FormedChapter:
    policy = sp.batching.OneShape(SHAPES, batches=unit, window_size=window or len(SHAPES) * unit * rows)
    some = chapter(sizes)
    return check_formation(policy, some, some.setting(batch_size=rows, last=last))


samples = st.lists(st.sampled_from([(8, 8), (9, 8), (16, 8), (8, 16), (32, 8), (7, 8)]), max_size=120)
units, batch_rows = st.integers(1, 5), st.integers(1, 4)


@given(sizes=samples, unit=units, rows=batch_rows, last=st.sampled_from([DropPartial(), KeepPartial(), PadPartial()]))
def test_units_of_one_shape_begin_at_their_multiples(sizes: list[Any], unit: int, rows: int, last: Any) -> None:
    batches = formed(sizes, unit, rows, last).batches

    for first in range(0, len(batches), unit):
        assert len({batch.size for batch in batches[first : first + unit]}) == 1
    short = [batch for batch in batches if batch.rows < rows]
    assert not short or isinstance(last, KeepPartial)
    assert len(batches) % unit == 0 or (
        isinstance(last, KeepPartial) and len(batches) // unit * unit * rows <= len(sizes)
    )


@given(sizes=samples, unit=units, rows=batch_rows)
def test_samples_have_their_nearest_shape_unless_it_has_too_few_for_a_unit(
    sizes: list[Any], unit: int, rows: int
) -> None:
    nearest = chapter(sizes).keys
    own = sp.batching.OneShape(SHAPES).choose(*nearest) if sizes else np.empty(0, np.int64)
    count = np.bincount(own, minlength=len(SHAPES))

    moved = np.zeros(len(SHAPES), dtype=np.int64)
    for batch in formed(sizes, unit, rows, KeepPartial()).batches:
        other = own[batch.samples][own[batch.samples] != SHAPES.index(batch.size)]  # type: ignore[arg-type]
        moved += np.bincount(other, minlength=len(SHAPES))
    assert (moved < unit).all(), "fewer than a unit has batches"
    assert rows == 1 or (moved[count >= unit * rows] == 0).all(), "shapes with a unit keep their samples"
    assert (moved[count % (unit * rows) == 0] == 0).all()


@given(sizes=samples, unit=units, rows=st.integers(2, 4))
def test_batches_at_the_end_are_about_equal(sizes: list[Any], unit: int, rows: int) -> None:
    batches = formed(sizes, unit, rows, KeepPartial()).batches
    units_of = [batches[first : first + unit] for first in range(0, len(batches), unit)]

    assert all(max(b.rows for b in each) - min(b.rows for b in each) <= 1 for each in units_of if len(each) == unit)


@given(sizes=samples, unit=units, rows=batch_rows, window=st.integers(1, 200))
def test_the_batches_do_not_depend_on_the_window_but_for_their_order(
    sizes: list[Any], unit: int, rows: int, window: int
) -> None:
    least = len(SHAPES) * unit * rows

    def members(found: FormedChapter) -> list[list[int]]:
        return sorted(sorted(batch) for batch in found.samples())

    assert members(formed(sizes, unit, rows, DropPartial(), least + window)) == members(
        formed(sizes, unit, rows, DropPartial(), least)
    )


def test_a_value_fills_the_rows_that_come_again() -> None:
    found = formed([(8, 8)] * 5, 2, 2, PadPartial(value=0)).batches

    assert [(batch.rows, None if batch.filler is None else batch.filler.tolist()) for batch in found] == [
        *((2, None), (2, None)),
        *((2, [1]), (2, [0, 1])),
    ]


def test_what_is_wrong_with_a_list_of_shapes_is_said() -> None:
    for shapes in ([], "ab", [(8, 8), (8, 8)]):
        with pytest.raises(PlanError, match="Give a list of different sizes"):
            sp.batching.OneShape(shapes)  # type: ignore[arg-type]
    for shape in ((8, 0), (8,), 8, (1, 2, 3, 4)):
        with pytest.raises(PlanError, match=r"is no shape. Give \(height, width\) of images"):
            sp.batching.OneShape([shape])  # type: ignore[list-item]
    with pytest.raises(PlanError, match="all of one kind"):
        sp.batching.OneShape([(8, 8), (4, 8, 8)])
    with pytest.raises(PlanError, match="Give its column: frames='frame_count'"):
        sp.batching.OneShape([(4, 8, 8)])
    with pytest.raises(PlanError, match=r"Give \(frames, height, width\)"):
        sp.batching.OneShape([(8, 8)], frames="n")
    with pytest.raises(PlanError, match='width="width", height="height"'):
        sp.batching.OneShape([(8, 8)], width=None)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="Give window_size=29 or more, fewer shapes"):
        formed([], 2, 4, None, window=28)


def test_a_sample_without_a_size_is_refused() -> None:
    with pytest.raises(DataError, match=r"height is 0, and samples have at least 1. Mend it, or filter"):
        formed([(8, 8), (8, 0)], 1, 1, None)
