"""The run table: a bijection between logical and physical rows, whatever the shards."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.catalog.relation.manifest import RUNS_PER_SHARD, UNKNOWN_BYTES, Manifest, build_manifest
from spiral_stream.errors import CatalogError, SourceError
from spiral_stream.sources import MemoryReader, Unit


def reader_of(values: Sequence[object], unit_rows: Sequence[int], sizes: Sequence[int | None] = ()) -> MemoryReader:
    sizes = sizes or [100 * rows for rows in unit_rows]
    units = [
        Unit(f"u{i}", rows, size, f"key{i}", tuple(min(3, rows - at) for at in range(0, rows, 3)))
        for i, (rows, size) in enumerate(zip(unit_rows, sizes, strict=True))
    ]
    return MemoryReader(pa.table({"shard": values}), units, "")


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[str], list[int]]:
    runs = draw(st.lists(st.tuples(st.sampled_from("cab"), st.integers(1, 6)), min_size=1, max_size=9))
    values = [name for name, count in runs for _ in range(count)]
    cuts = draw(st.lists(st.integers(0, len(values)), max_size=4))
    bounds = [0, *sorted(cuts), len(values)]
    return values, [b - a for a, b in pairwise(bounds)]


@given(layout=layouts(), by_column=st.booleans())
def test_logical_and_physical_rows_are_one_to_one_and_lie_by_shard(
    layout: tuple[list[str], list[int]], by_column: bool
) -> None:
    values, unit_rows = layout
    manifest = build_manifest(reader_of(values, unit_rows), "shard" if by_column else None)
    ordinals = np.arange(len(values), dtype=np.uint64)
    physical = manifest.physical(ordinals)
    names = manifest.shard_names.to_pylist()
    owner = [names[shard] for shard in manifest.shard_of(ordinals)]
    units = [f"u{i}" for i, rows in enumerate(unit_rows) for _ in range(rows)]
    expected = values if by_column and not manifest.shard_note else units

    assert manifest.total == len(values)
    assert sorted(physical.tolist()) == ordinals.tolist()
    assert manifest.logical(physical).tolist() == ordinals.tolist()
    assert names == sorted(set(expected))
    assert owner == [expected[i] for i in physical]
    assert physical.tolist() == sorted(range(len(values)), key=lambda i: (expected[i], i))
    assert manifest.shard_rows.tolist() == [expected.count(name) for name in names]


@given(layout=layouts())
def test_a_column_defines_the_shards_if_its_rows_lie_in_few_runs(layout: tuple[list[str], list[int]]) -> None:
    values, unit_rows = layout
    manifest = build_manifest(reader_of(values, unit_rows), "shard")
    runs = len(list(groupby(values)))

    assert bool(manifest.shard_note) == (runs > RUNS_PER_SHARD * len(set(values)))


@given(layout=layouts(), by_column=st.booleans())
def test_groups_are_cut_at_units_groups_and_runs(layout: tuple[list[str], list[int]], by_column: bool) -> None:
    values, unit_rows = layout
    manifest = build_manifest(reader_of(values, unit_rows), "shard" if by_column else None)
    starts = np.concatenate([[0], np.cumsum(manifest.group_rows)]).astype(np.uint64)

    assert manifest.group_rows.sum() == len(values)
    assert (manifest.shard_of(starts[:-1]) == manifest.group_shards).all()
    assert (np.diff(manifest.group_shards.astype(int)) >= 0).all()
    assert manifest.group_rows.max() <= 3
    for start, rows in zip(starts[:-1], manifest.group_rows, strict=True):
        physical = manifest.physical(np.arange(start, start + rows, dtype=np.uint64)).astype(int)
        assert (np.diff(physical) == 1).all()


@given(layout=layouts(), shards=st.lists(st.integers(0, 2), unique=True))
def test_units_of_shards_are_those_that_hold_their_rows(layout: tuple[list[str], list[int]], shards: list[int]) -> None:
    values, unit_rows = layout
    manifest = build_manifest(reader_of(values, unit_rows), "shard")
    shards = [shard for shard in shards if shard < len(manifest.shard_names)]
    ordinals = np.arange(len(values), dtype=np.uint64)
    rows = manifest.physical(ordinals[np.isin(manifest.shard_of(ordinals), shards)])
    held = set(np.searchsorted(np.cumsum(unit_rows), rows, side="right").tolist())

    assert manifest.units_of(shards) == sorted(held)


@given(layout=layouts())
def test_a_saved_manifest_comes_back(layout: tuple[list[str], list[int]]) -> None:
    manifest = build_manifest(reader_of(*layout), "shard")
    with TemporaryDirectory() as folder:
        manifest.save(Path(folder, "m.arrow"))
        loaded = Manifest.load(Path(folder, "m.arrow"))

    assert loaded.data_version == manifest.data_version
    assert loaded.shard_note == manifest.shard_note
    for name in ("shard_rows", "shard_bytes", "run_start", "run_physical", "group_rows", "group_shards", "unit_rows"):
        assert getattr(loaded, name).tolist() == getattr(manifest, name).tolist()
        assert getattr(loaded, name).dtype == getattr(manifest, name).dtype
    for name in ("shard_names", "content_keys", "unit_names", "unit_keys"):
        assert getattr(loaded, name).equals(getattr(manifest, name))


def test_the_data_version_does_not_depend_on_the_order_of_units() -> None:
    units = [Unit("a", 2, None, "ka", (2,)), Unit("b", 1, None, "kb", (1,))]
    one = build_manifest(MemoryReader(pa.table({"x": [1, 2, 3]}), units, ""))
    other = build_manifest(MemoryReader(pa.table({"x": [3, 1, 2]}), units[::-1], ""))

    assert one.data_version == other.data_version
    assert one.shard_names.to_pylist() == other.shard_names.to_pylist() == ["a", "b"]


def test_only_the_shards_of_a_changed_unit_change_their_content_key() -> None:
    def keys(second: str) -> list[str]:
        units = [Unit("u0", 3, 1, "k0", (3,)), Unit("u1", 3, 1, second, (3,))]
        table = pa.table({"shard": ["a", "b", "b", "b", "c", "c"]})
        return build_manifest(MemoryReader(table, units, ""), "shard").content_keys.to_pylist()

    before, after = keys("k1"), keys("other")

    assert [x == y for x, y in zip(before, after, strict=True)] == [True, False, False]
    assert len(set(before)) == 3


def test_bytes_are_shared_by_rows_and_unknown_where_a_unit_does_not_say() -> None:
    known = build_manifest(reader_of(list("aabbbb"), [4, 2], [400, 100]), "shard")
    partly = build_manifest(reader_of(list("aabbbb"), [4, 2], [400, None]), "shard")

    assert known.shard_bytes.tolist() == [200, 300]
    assert partly.shard_bytes.tolist() == [200, UNKNOWN_BYTES]


def test_integers_name_shards_too_and_dictionaries_are_read_through() -> None:
    numbers = build_manifest(reader_of([7, 7, 10], [3]), "shard")
    named = build_manifest(reader_of(pa.array(["b", "b", "a"]).dictionary_encode(), [3]), "shard")

    assert numbers.shard_names.to_pylist() == ["10", "7"]
    assert named.shard_names.to_pylist() == ["a", "b"]


def test_scattered_values_leave_the_units_as_shards_and_say_so() -> None:
    manifest = build_manifest(reader_of(["a", "b"] * 5, [6, 4]), "shard")

    assert manifest.shard_names.to_pylist() == ["u0", "u1"]
    assert "2 values in 10 runs" in manifest.shard_note
    assert "Sort the rows by 'shard'" in manifest.shard_note


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (["a", None, "b"], CatalogError, r"null at row 1\. Fill it in, or register with shard=None"),
        ([0.5, 1.5, 2.5], CatalogError, r"is double; a shard is named by text or an integer\. Name another column"),
        (pa.array([], pa.utf8()), SourceError, "has no rows"),
    ],
)
def test_what_names_no_shard_is_refused(values: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_manifest(reader_of(values, [len(values)]), "shard")


@pytest.mark.parametrize("content", [None, b"broken"])
def test_a_lost_or_broken_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "m.arrow").write_bytes(content)
    with pytest.raises(CatalogError, match=r"Write it again with catalog\.refresh"):
        Manifest.load(tmp_path / "m.arrow")


class _ManyShards(MemoryReader):
    """A reader of 10**5 units that holds no rows."""

    def __init__(self, count: int) -> None:
        super().__init__(pa.table({"x": [0]}), [Unit("-", 1, 1, "-", (1,))], "")
        self._units = tuple(Unit(f"u{i:06d}", 100_000, 10**9, f"k{i}", (50_000, 50_000)) for i in range(count))

    def scan(self, *_: object) -> Iterator[pa.RecordBatch]:
        raise AssertionError("no shard column was asked for")


def test_ten_billion_rows_cost_what_their_shards_cost() -> None:
    manifest = build_manifest(_ManyShards(100_000))
    ordinals = np.array([0, 10**10 - 1, 5 * 10**9], dtype=np.uint64)

    assert manifest.total == 10**10
    assert manifest.logical(manifest.physical(ordinals)).tolist() == ordinals.tolist()
    assert (
        sum(getattr(manifest, name).nbytes for name in vars(manifest) if hasattr(getattr(manifest, name), "nbytes"))
        < 2e7
    )
