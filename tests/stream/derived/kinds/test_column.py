"""The column law: rows of kept pieces are the rows of the column, of every type, with every null; or it is not whole."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spiral_stream.derived.derivation import ShardRows
from spiral_stream.derived.kinds.column import FIXED, LIST, TEXT, Column, fewest_bytes, form_of, item_of
from spiral_stream.derived.kinds.gather import NarrowColumn, RowCopies
from spiral_stream.fields.ragged import Ragged
from tests.fixtures.examples import few
from tests.fixtures.named_shards import Shards, kept_column, shard_places

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
MOMENTS = [
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("ns"), pa.timestamp("s", "UTC")),
    pa.duration("ms"),
]
DAY_MS = 86_400_000


def limits(kind: pa.DataType) -> tuple[int, int]:
    width = kind.bit_width
    return (0, 2**width - 1) if str(kind).startswith("u") else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)


@st.composite
def primitives(draw: st.DrawFn, kind: pa.DataType, count: int) -> pa.Array:
    """``count`` values, some null, at an offset in a longer array."""
    some = draw(st.sampled_from([0, 0, 1, 3]))  # slots in front, and values that repeat behind
    null = draw(st.sampled_from([0.0, 0.0, 0.4]))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    valid = rng.random(count + some + 2) >= null
    if pa.types.is_boolean(kind):
        values: Any = rng.random(len(valid)) < 0.5
    elif pa.types.is_floating(kind):
        values = rng.choice([0.0, -0.0, 1.5, -2.25, float("inf"), float("nan"), 6e4], len(valid))
        values = values.astype(f"f{kind.bit_width // 8}")
    elif pa.types.is_integer(kind):
        low, high = limits(kind)
        edge = [low, high, 0, min(127, high), min(128, high), min(70_000, high)]
        values = np.array([int(rng.choice(6)) for _ in valid], object)
        values = np.array([edge[v] for v in values], f"{'u' if low == 0 else 'i'}{kind.bit_width // 8}")
    else:
        step = {pa.date64(): DAY_MS, pa.timestamp("ns"): 1_000}.get(kind, 1)
        whole = rng.integers(0, 86_000, len(valid)) * step
        values = whole.astype(f"i{kind.bit_width // 8}")
        return pa.array(values, mask=~valid).cast(kind).slice(some, count)
    return pa.array(values, kind, mask=~valid).slice(some, count)


@st.composite
def fixed_lists(draw: st.DrawFn, kind: pa.DataType, count: int) -> pa.Array:
    """Fixed-size lists of drawn depth, null rows and null items among them."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.ExtensionArray.from_storage(kind, draw(fixed_lists(kind.storage_type, count)))
    if not pa.types.is_fixed_size_list(kind):
        return draw(primitives(kind, count))
    before = draw(st.integers(0, 2))
    items = draw(fixed_lists(kind.value_type, (count + before) * kind.list_size))
    null = draw(st.sampled_from([0.0, 0.3]))
    mask = np.random.default_rng(draw(st.integers(0, 999))).random(count + before) < null
    made = pa.FixedSizeListArray.from_arrays(items, type=kind, mask=pa.array(mask))
    return made.slice(before, count)


@st.composite
def lists(draw: st.DrawFn, kind: pa.DataType, count: int) -> pa.Array:
    before = draw(st.integers(0, 2))
    sizes = draw(st.lists(st.integers(0, 5), min_size=count + before, max_size=count + before))
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    items = draw(primitives(kind.value_type, int(ends[-1])))
    mask = np.random.default_rng(draw(st.integers(0, 999))).random(len(sizes)) < draw(st.sampled_from([0.0, 0.3]))
    large = kind.id == pa.large_list(pa.int8()).id
    offsets = pa.array(ends if large else ends.astype(np.int32))
    made = (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, items, type=kind, mask=pa.array(mask))
    return made.slice(before, count)


@st.composite
def texts(draw: st.DrawFn, kind: pa.DataType, count: int) -> pa.Array:
    before = draw(st.integers(0, 2))
    some = st.none() | st.sampled_from(["", "a", "ü", "\x00", "wide" * 9]) | st.text(max_size=3)
    return pa.array(draw(st.lists(some, min_size=count + before, max_size=count + before)), kind).slice(before)


NUMBERS = st.sampled_from([pa.bool_(), *INTEGERS, *FLOATS, *MOMENTS])
KINDS = st.one_of(
    NUMBERS,
    st.builds(pa.list_, NUMBERS, st.integers(1, 3)),  # pyarrow itself dies of lists of 0 items
    st.builds(lambda kind, size: pa.list_(pa.list_(kind, size), 2), NUMBERS, st.integers(1, 2)),
    st.builds(pa.fixed_shape_tensor, st.sampled_from([*INTEGERS, *FLOATS]), st.sampled_from([[2], [1, 3], [2, 1, 2]])),
    st.sampled_from([pa.utf8(), pa.large_utf8()]),
    st.builds(lambda kind, of: of(kind), st.sampled_from(INTEGERS), st.sampled_from([pa.list_, pa.large_list])),
    st.builds(lambda kind: pa.list_(pa.field("element", kind, nullable=False)), st.sampled_from(INTEGERS)),
)


def values(kind: pa.DataType, count: int) -> st.SearchStrategy[pa.Array]:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return texts(kind, count)
    if form_of(kind) == LIST:
        return lists(kind, count)
    return fixed_lists(kind, count)


def null_items(array: pa.Array) -> bool:
    """Whether a row that is there has a null inside, by walking over it."""
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or not pa.types.is_nested(array.type):
        return False

    def inside(value: Any) -> bool:
        return value is None or (isinstance(value, list) and any(inside(each) for each in value))

    return any(row is not None and inside(row) for row in array.to_pylist())


def clashes(array: pa.Array, sizes: list[int]) -> bool:
    """Whether lists of integers of these shards share no sign, or are beyond int64."""
    if form_of(array.type) != LIST:
        return False
    signs, highs, at = False, False, 0
    for size in sizes:
        own = [item or 0 for row in array.slice(at, size).to_pylist() if row for item in row]
        at += size
        low, high = min(own, default=0), max(own, default=0)
        width = next(w for w in (8, 16, 32, 64) if low >= -(2 ** (w - 1)) and high < 2 ** (w - (low < 0)))
        signs |= low < 0
        highs |= low >= 0 and high >= 2 ** (width - 1)
        if high >= 2**63:
            return True
    return signs and highs


def taken(column: pa.Array, rows: list[int]) -> pa.Array:
    """Rows of a column. Not with ``take``: pyarrow 26 takes wrong items of nested fixed-size lists at an offset."""
    return pa.concat_arrays([column.slice(0, 0), *(column.slice(row, 1) for row in rows)])


def identical(found: pa.Array, wanted: pa.Array) -> bool:
    """Equal, NaN and the sign of zero included."""
    assert found.type == wanted.type
    found, wanted = (a.storage if isinstance(a, pa.ExtensionArray) else a for a in (found, wanted))
    return repr(found.to_pylist()) == repr(wanted.to_pylist()) and found.null_count == wanted.null_count


def need_copied(kept: NarrowColumn, shards: Any, offsets: Any, wanted: pa.Array) -> None:
    """Check that rows are copied to their place as `NarrowColumn.arrow` holds them."""
    is_text, width = form_of(wanted.type) == TEXT, kept.column.row_bytes
    out = None if is_text else np.zeros((len(wanted), width or 0), np.uint8)
    for found in RowCopies([kept, kept]).fill(shards, offsets, [out, out]):
        if is_text:
            assert found == (wanted.to_pylist(), wanted.nbytes)
            continue
        rows = ShardRows(len(wanted), np.arange(len(wanted), dtype=np.uint64), pa.table({"x": wanted}))
        assert found.tobytes() == kept.column.piece(rows).arrays["data"].tobytes()


@few(60, 250)
@given(data=st.data(), kind=KINDS, sizes=st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_gathered_rows_are_the_rows_of_the_column(data: st.DataObject, kind: pa.DataType, sizes: list[int]) -> None:
    column = data.draw(values(kind, sum(sizes)), label="column")
    rows = data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=9) if sum(sizes) else st.just([]), label="rows")
    with tempfile.TemporaryDirectory() as folder:
        kept = kept_column(Shards(pa.table({"x": column}), tuple(sizes), batch_rows=3), Path(folder))
        assert kept.is_lossless == (not null_items(column) and not clashes(column, sizes))
        if not kept.is_lossless:
            return
        shards, offsets = shard_places(sizes, rows)
        found, wanted = kept.arrow(shards, offsets), taken(column, rows)

        found.validate(full=True)
        assert identical(found, wanted)
        assert kept.copies == (form_of(kind) != LIST and not column.null_count)
        if kept.copies:
            need_copied(kept, shards, offsets, wanted)
        if form_of(kind) == LIST:
            ragged = kept.ragged(shards, offsets)
            expected = Ragged.of_arrow(wanted)
            assert ragged.arrow().to_pylist() == expected.arrow().to_pylist()
            assert kept.lengths(shards, offsets).tolist() == expected.lengths.tolist()


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.list_(pa.int32(), 1), [[None], [1]]),
        (pa.list_(pa.int32(), 2), [[1, None], None]),
        (pa.list_(pa.int32()), [[1], [None]]),
        (pa.list_(pa.int16()), [[200], [-1]]),
        (pa.list_(pa.uint64()), [[2**63], [1]]),
    ],
)
def test_a_column_that_pieces_cannot_hold_is_not_whole(tmp_path: Path, kind: pa.DataType, column: list[Any]) -> None:
    source = Shards(pa.table({"x": pa.array(column, kind)}), (1, 1))

    assert not kept_column(source, tmp_path).is_lossless


def test_a_null_list_inside_of_a_list_is_counted_whatever_lies_under_it(tmp_path: Path) -> None:
    inner = pa.FixedSizeListArray.from_arrays(pa.array(range(8), pa.int8()), 2, mask=pa.array([True, False] * 2))
    column = pa.FixedSizeListArray.from_arrays(inner, 2)
    masked = pa.FixedSizeListArray.from_arrays(pa.array([None, 1, 2, 3], pa.int8()), 2, mask=pa.array([True, False]))

    assert not kept_column(Shards(pa.table({"x": column}), (2,)), tmp_path / "a").is_lossless
    kept = kept_column(Shards(pa.table({"x": masked}), (2,)), tmp_path / "b")  # the null lies under a null row
    assert kept.is_lossless
    assert kept.arrow(*shard_places([2], [1, 0])).to_pylist() == [[2, 3], None]


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.month_day_nano_interval(), pa.decimal128(9, 2), pa.binary(), pa.binary(4), pa.null(), pa.uuid()),
        *(pa.string_view(), pa.list_(pa.float32()), pa.list_(pa.list_(pa.int8())), pa.list_(pa.utf8(), 2)),
        *(pa.struct([("a", pa.int8())]), pa.dictionary(pa.int8(), pa.utf8()), pa.map_(pa.utf8(), pa.int8())),
    ],
)
def test_other_types_have_no_form(kind: pa.DataType) -> None:
    assert form_of(kind) is None


def test_forms_and_widths_follow_from_the_type() -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 3])

    assert [form_of(kind) for kind in (pa.int8(), pa.utf8(), pa.large_list(pa.int8()))] == [FIXED, TEXT, LIST]
    assert item_of(pa.list_(tensor, 4)) == (pa.float32(), 24)
    assert Column("x", tensor).row_bytes == 24
    assert Column("x", pa.bool_()).row_bytes == 1
    assert Column("x", pa.utf8()).row_bytes is None


def test_the_fingerprint_has_the_name_the_type_and_nothing_else() -> None:
    prints = {Column(name, kind).fingerprint for name in "ab" for kind in (pa.int32(), pa.int64(), pa.date32())}

    assert len(prints) == 6
    assert Column("a", pa.int32()).fingerprint == Column("a", pa.int32()).fingerprint


EDGES = [0, 1, -1, 127, 128, 255, 256, -128, -129, 2**15, 2**16, 2**31, 2**32, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]


@example([255])
@example([128, -1])
@example([2**63])
@given(st.lists(st.sampled_from(EDGES) | st.integers(-(2**63), 2**64 - 1), max_size=6))
def test_integers_are_stored_in_the_fewest_bytes_that_hold_them(items: list[int]) -> None:
    if min(items, default=0) < 0:
        items = [item for item in items if item < 2**63]
    wide = np.array(items, "i8" if min(items, default=0) < 0 else "u8")

    data, negative, high = fewest_bytes(wide)

    assert data.tolist() == items
    assert negative == (min(items, default=0) < 0)
    assert data.dtype.kind == ("i" if negative else "u")
    assert high == (not negative and max(items, default=0) > np.iinfo(f"i{data.itemsize}").max)
    if data.itemsize > 1:
        half = np.iinfo(f"{data.dtype.kind}{data.itemsize // 2}")
        assert min(items) < half.min or max(items) > half.max


def test_a_piece_says_how_many_rows_nulls_and_bytes_it_has() -> None:
    column = pa.chunked_array([pa.array(["ab", None]), pa.array(["", "ü"])])
    rows = ShardRows(4, np.arange(4, dtype=np.uint64), pa.table({"x": column}))

    piece = Column("x", pa.utf8()).piece(rows)

    assert piece.summary == {
        "rows": 4,
        "nulls": 1,
        "bytes": 4,
        "item_bytes": 1,
        "null_items": 0,
        "negative": 0,
        "high": 0,
    }
    assert piece.arrays["ends"].tolist() == [0, 2, 2, 2, 4]
    assert piece.arrays["valid"].tolist() == [1, 0, 1, 1]
