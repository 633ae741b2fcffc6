"""Identities of a shard: hashes that depend on the values alone, sorted with their rows, and found again by value."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Arrow
from spiral_stream.catalog.registering.measure import identity_pieces
from spiral_stream.catalog.relation.manifest import build_manifest
from spiral_stream.catalog.relation.shard_rows import SourceRows
from spiral_stream.derived.derivation import ShardRows
from spiral_stream.derived.kinds import identities as room
from spiral_stream.derived.kinds.identities import Identities, rows_of, with_hash
from spiral_stream.sources import MemoryReader, Unit

KINDS = [pa.int64(), pa.int16(), pa.uint64(), pa.utf8(), pa.large_utf8(), pa.binary(), pa.large_binary()]


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_integer(kind):
        high = 2**kind.bit_width
        low = 0 if pa.types.is_unsigned_integer(kind) else -high // 2
        return st.integers(low, low + high - 1)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return st.text(max_size=40) if text else st.binary(max_size=40)


@st.composite
def tables(draw: st.DrawFn, most: int = 30) -> pa.Table:
    """One to three columns; chunks and slices too."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    count = draw(st.integers(1, most))
    columns = []
    for kind in kinds:
        pool = draw(st.lists(values_of(kind), min_size=1, max_size=4))
        chosen = draw(st.lists(st.sampled_from(pool) | values_of(kind), min_size=count, max_size=count))
        cut = draw(st.integers(0, count))
        array = pa.array([*chosen[:1], *chosen], kind)[1:]  # a slice, as scans give
        columns.append(pa.chunked_array([array[:cut], array[cut:]], kind))
    return pa.table(columns, names=[f"c{k}" for k in range(len(columns))])


def identities_of(table: pa.Table, bits: int = 64) -> Identities:
    return Identities(tuple(table.column_names), tuple(table.schema.types), bits)


@given(tables())
def test_rows_have_equal_hashes_where_their_values_are_equal_and_otherwise_not(table: pa.Table) -> None:
    hashes = identities_of(table).hashes(table.columns).tolist()
    rows = [tuple(row.values()) for row in table.to_pylist()]

    assert len(set(zip(rows, hashes, strict=True))) == len(set(rows)) == len(set(hashes))


@given(tables())
def test_a_piece_has_the_hashes_ascending_and_the_row_of_each(table: pa.Table) -> None:
    derivation = identities_of(table)
    rows = len(table)
    piece = derivation.piece(ShardRows(rows, np.arange(rows, dtype=np.uint64), table))
    hashes, at = piece.arrays["hashes"], piece.arrays["rows"]

    assert (hashes[1:] >= hashes[:-1]).all()
    assert (derivation.hashes(table.columns)[at] == hashes).all()
    assert sorted(at.tolist()) == list(range(rows))
    named = ("rows", "null_column", "null_row", "ranged")
    assert [piece.summary[name] for name in named] == [rows, -1, -1, 1]


def test_a_hash_is_that_of_xxhash_and_the_columns_before_are_its_seed() -> None:
    table = pa.table({"a": pa.array([7, -1]), "b": ["x", "yz"], "c": [b"", b"\0"]})
    seeds = [xxhash.xxh64_intdigest(v.to_bytes(8, "little", signed=True), 0 ^ 1) for v in (7, -1)]
    seeds = [xxhash.xxh64_intdigest(v.encode(), s ^ 2) for v, s in zip(["x", "yz"], seeds, strict=True)]
    expected = [xxhash.xxh64_intdigest(v, s ^ 3) for v, s in zip([b"", b"\0"], seeds, strict=True)]

    assert identities_of(table).hashes(table.columns).tolist() == expected


def test_values_move_no_border_between_columns() -> None:
    table = pa.table({"a": ["x", "xy", "xyz", ""], "b": ["yz", "z", "", "xyz"]})

    assert len(set(identities_of(table).hashes(table.columns).tolist())) == 4


@pytest.mark.parametrize("values", [[1, 2, 1], ["a", "b", "a"]])
def test_a_dictionary_is_hashed_as_its_values(values: list[Any]) -> None:
    plain = pa.table({"a": values})
    coded = pa.table({"a": pa.array(values).dictionary_encode()})

    assert identities_of(coded).hashes(coded.columns).tolist() == identities_of(plain).hashes(plain.columns).tolist()
    assert identities_of(coded).fingerprint == identities_of(plain).fingerprint


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [([1, 2, None, None], ["x", "y", "z", "w"], (0, 2)), ([1, 2, 3], ["x", None, None], (1, 1))],
)
def test_a_piece_tells_the_first_null_of_the_first_column_that_has_one(
    a: list[Any], b: list[Any], found: tuple[int, int]
) -> None:
    table = pa.table({"a": pa.chunked_array([a[:1], a[1:]]), "b": b})
    piece = identities_of(table).piece(ShardRows(len(table), np.arange(len(table), dtype=np.uint64), table))

    assert (piece.summary["null_column"], piece.summary["null_row"]) == found


def test_rows_beyond_32_bits_have_wide_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "NARROW", 2)
    table = pa.table({"a": [3, 1, 2]})
    piece = identities_of(table).piece(ShardRows(3, np.arange(3, dtype=np.uint64), table))

    assert piece.arrays["wide_rows"].dtype == np.uint64
    assert "rows" not in piece.arrays


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("bits", [64, 5])
def test_a_row_is_found_among_those_that_have_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int, narrow: bool
) -> None:
    if not narrow:
        monkeypatch.setattr(room, "NARROW", 2)
    counts = [1, 2000, 3, 40_000]
    numbers = np.random.default_rng(1).permutation(sum(counts))
    table = pa.table({"a": [f"row {k}" for k in numbers]})
    units = [Unit(f"u{k}", rows, None, f"{k:032x}", (rows,)) for k, rows in enumerate(counts)]
    reader = MemoryReader(table, units, "")
    rows = SourceRows(Arrow(table), build_manifest(reader), reader)
    derivation = identities_of(table, bits)
    pieces = identity_pieces(rows, derivation, tmp_path)
    hashes = derivation.hashes(table.columns)
    for at in [0, 1, 2000, 2001, 2003, 2004, 30_000, len(table) - 1]:
        shards, offsets = with_hash(pieces, derivation.hash_of([table["a"][at].as_py()]))
        found = rows.manifest.starts[shards] + offsets

        assert sorted(found.tolist()) == np.flatnonzero(hashes == hashes[at]).tolist()
    assert [len(rows_of(pieces, k)) for k in range(4)] == counts
    for absent in (0, 1, 2**64 - 1, 2**63):
        assert len(with_hash(pieces, absent)[0]) == int((hashes == np.uint64(absent)).sum())


@given(
    kind=st.sampled_from(KINDS),
    data=st.data(),
    fresh=st.lists(st.booleans(), min_size=2, max_size=5),
)
def test_shards_that_are_apart_from_new_ones_share_no_value_with_them(
    kind: pa.DataType, data: st.DataObject, fresh: list[bool]
) -> None:
    pool = st.lists(values_of(kind), min_size=1, max_size=3)
    shards = [data.draw(pool) for _ in fresh]
    derivation = Identities(("c",), (kind,))
    pieces = []
    for values in shards:
        rows = np.arange(len(values), dtype=np.uint64)
        pieces.append(derivation.piece(ShardRows(len(values), rows, pa.table({"c": pa.array(values, kind)}))))
    summary = {name: np.array([each.summary[name] for each in pieces]) for name in Identities.SUMMARY}
    found = room.apart(SimpleNamespace(summary=summary), np.array(fresh))
    new = {value for values, is_new in zip(shards, fresh, strict=True) if is_new for value in values}

    for values, is_new, is_apart in zip(shards, fresh, found.tolist(), strict=True):
        assert not (is_apart and is_new)
        assert not (is_apart and new & set(values))
        if pa.types.is_integer(kind) and new and not is_new:
            assert is_apart or max(values) >= min(new)


def test_shards_of_earlier_versions_are_looked_at() -> None:
    ends = {"ranged": np.array([0, 1, 1]), "least": np.array([0, 0, 9]), "greatest": np.array([0, 1, 9])}

    assert room.apart(SimpleNamespace(summary=ends), np.array([False, False, True])).tolist() == [False, True, False]
    assert not room.apart(SimpleNamespace(summary=ends), np.array([True, False, False])).any()
