"""A kept column reads as its source does; narrow ones are kept unasked, wide ones when asked, payload never."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import col
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived.index import RosterFile
from spiral_stream.derived.kinds.column import Column
from spiral_stream.derived.pieces import Pieces
from spiral_stream.errors import DamageError, SpiralWarning
from spiral_stream.expr import Col, bind
from spiral_stream.fields.ragged import Ragged
from spiral_stream.planner.selection import narrow_columns as room
from spiral_stream.planner.selection.fetched_columns import Columns
from spiral_stream.planner.selection.narrow_columns import NARROW_BYTES, RARE, NarrowColumns, NarrowSource
from tests.fixtures.named_shards import flip

ROWS, FILES = 192, 3
OWN = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def table() -> pa.Table:
    tokens = [None if k % 11 == 5 else list(range(k % 7)) for k in range(ROWS)]
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "score": pa.array([None if k % 9 == 4 else k / 7 for k in range(ROWS)], pa.float32()),
            "name": [None if k % 8 == 1 else "n" * (k % 5) for k in range(ROWS)],
            "text": ["t" * (NARROW_BYTES + k % 3) for k in range(ROWS)],
            "tokens": pa.array(tokens, pa.list_(pa.uint16())),
            "long_tokens": pa.array([list(range(40))] * ROWS, pa.list_(pa.int32())),
            "vector": pa.array([[float(k)] * 32 for k in range(ROWS)], pa.list_(pa.float32(), 32)),
            "holes": pa.array([[k, None] for k in range(ROWS)], pa.list_(pa.int16())),
            "image": [b"no image"] * ROWS,
            "uri": ["a.jpg"] * ROWS,
        }
    )


TABLE = table()
UNASKED = {"id", "score", "name", "tokens", "long_tokens", "vector"}


@pytest.fixture
def relation(tmp_path: Path) -> Iterator[OpenRelation]:
    (tmp_path / "rows").mkdir()
    for k in range(FILES):
        size = ROWS // FILES
        pq.write_table(TABLE.slice(k * size, size), tmp_path / "rows" / f"{k}.parquet")
    catalog = sp.connect(str(tmp_path / "catalog"))
    source = sp.Parquet(str(tmp_path / "rows" / "*.parquet"))
    catalog.register("rows", source, identity="id", semantic={"uri": "image/jpeg-ref"})
    with OpenRelation(catalog.entry("rows")) as opened:
        yield opened


@pytest.fixture
def kept(relation: OpenRelation, tmp_path: Path) -> Callable[[], NarrowSource]:
    """Opens the relation's kept columns anew, as the next process does."""
    return lambda: NarrowSource(relation, tmp_path / "prepared")


def names_of(kept: NarrowSource) -> set[str]:
    return {name for name in kept.schema.names if name in kept}


@pytest.fixture
def fetched(relation: OpenRelation, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The columns of each look at the source by row."""
    found: list[tuple[str, ...]] = []
    fetch = OpenRelation.fetch

    def noted(self: OpenRelation, ordinals: Any, columns: Any) -> pa.Table:
        found.append(tuple(columns))
        return fetch(self, ordinals, columns)

    monkeypatch.setattr(OpenRelation, "fetch", noted)
    return found


def test_narrow_columns_are_kept_unasked_and_payload_is_not(kept: Callable[[], NarrowSource]) -> None:
    one = kept()
    one.keep(one.schema.names, ROWS)

    assert names_of(one) == UNASKED


@OWN
@given(
    rows=st.lists(st.integers(0, ROWS - 1), max_size=40),
    names=st.lists(st.sampled_from(TABLE.column_names), unique=True),
)
def test_rows_are_those_of_the_source_whatever_is_kept(
    kept: Callable[[], NarrowSource], relation: OpenRelation, rows: list[int], names: list[str]
) -> None:
    one = kept()
    one.keep(TABLE.column_names, ROWS)
    ordinals = np.array(rows, np.uint64)

    found = one.fetch(ordinals, names)

    found.validate(full=True)
    assert found.num_rows == len(rows)
    assert found.to_pydict() == TABLE.select(names).take(pa.array(rows, pa.int64())).to_pydict()
    assert found.schema.types == relation.fetch(ordinals, names).schema.types
    sizes = [len(TABLE["tokens"][row].as_py() or ()) for row in rows]
    assert one.lengths("tokens", ordinals).tolist() == sizes


def test_lists_come_as_addresses_where_they_are_kept_and_asked_so(kept: Callable[[], NarrowSource]) -> None:
    one = kept()
    one.keep(["tokens", "holes"], ROWS)
    rows = np.array([5, 0, 6, 6], np.uint64)

    found = one.read(rows, ["tokens", "holes", "id"], frozenset({"tokens", "holes"}))

    assert isinstance(found["tokens"], Ragged)
    assert found["tokens"].arrow().to_pylist() == [[], [], list(range(6)), list(range(6))]
    assert found["holes"].to_pylist() == [[5, None], [0, None], [6, None], [6, None]]  # from the source
    assert found["id"].to_pylist() == [5, 0, 6, 6]


@pytest.mark.parametrize(("read_rows", "made"), [(ROWS // RARE, True), (ROWS // RARE - 1, False)])
def test_nothing_is_made_for_a_selection_of_few_rows(
    kept: Callable[[], NarrowSource], read_rows: int, made: bool
) -> None:
    one = kept()
    one.keep(["id"], read_rows)
    assert ("id" in one) == made

    kept().keep(["id"], ROWS)
    again = kept()
    again.keep(["id"], 0)
    assert "id" in again  # what is there already is read, however rarely


def test_a_wide_column_of_many_bytes_waits_until_it_is_asked_for(
    kept: Callable[[], NarrowSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "AUTO_BYTES", 128 * ROWS - 1)
    wide = ["vector", "long_tokens", "id", "tokens"]
    one = kept()
    one.keep(wide, ROWS)
    assert names_of(one) == {"id", "tokens"}

    other = kept()
    assert other.build([*wide, "text", "image", "uri"]) == wide
    assert names_of(other) == set(wide)

    third = kept()
    third.keep(wide, ROWS)
    assert names_of(third) == set(wide)  # made once, kept by everybody


def test_a_wide_column_of_just_enough_bytes_is_kept_unasked(
    kept: Callable[[], NarrowSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "AUTO_BYTES", 128 * ROWS)
    one = kept()
    one.keep(["vector"], ROWS)
    assert "vector" in one


def test_columns_of_few_bytes_a_row_are_kept_whatever_the_number_of_rows(
    kept: Callable[[], NarrowSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "AUTO_BYTES", 0)
    one = kept()
    one.keep(["id", "name", "tokens", "vector"], ROWS)
    assert names_of(one) == {"id", "name", "tokens"}


def test_long_texts_are_looked_at_once(
    kept: Callable[[], NarrowSource], fetched: list[tuple[str, ...]], tmp_path: Path
) -> None:
    for _ in range(3):
        kept().keep(["text", "id"], ROWS)
    assert fetched == [("text",)]

    assert kept().build(["text"]) == []
    assert fetched == [("text",)]
    assert not RosterFile(tmp_path / "prepared", Column("text", pa.utf8())).path.exists()


def test_what_is_built_is_not_looked_at_again(kept: Callable[[], NarrowSource], fetched: list[tuple[str, ...]]) -> None:
    kept().keep(["name", "tokens", "id"], ROWS)
    assert fetched == [("name", "tokens")]
    for _ in range(2):
        kept().keep(["name", "tokens", "id"], ROWS)
    assert fetched == [("name", "tokens")]


def test_a_column_with_null_items_is_read_from_its_source(
    kept: Callable[[], NarrowSource], fetched: list[tuple[str, ...]]
) -> None:
    one = kept()
    one.keep(["holes"], ROWS)
    fetched.clear()

    assert "holes" not in one
    assert one.mean_bytes("holes") is None
    assert one.fetch(np.array([3], np.uint64), ["holes"]).to_pydict() == {"holes": [[3, None]]}
    assert fetched == [("holes",)]


@pytest.mark.parametrize("file", ["roster.sealed.arrow", "*.sums"])
def test_one_flipped_bit_is_named_and_mended_when_the_columns_are_opened(
    kept: Callable[[], NarrowSource], tmp_path: Path, file: str
) -> None:
    kept().keep(["id"], ROWS)
    (path,) = (tmp_path / "prepared").rglob(file)
    flip(path, 9)

    one = kept()
    with pytest.warns(SpiralWarning, match=rf"{path.name.removesuffix('.sums')}.* is damaged.*is built again now"):
        one.keep(["id"], ROWS)
    assert one.fetch(np.array([7], np.uint64), ["id"]).to_pydict() == {"id": [7]}
    kept().keep(["id"], ROWS)  # without a warning


def test_one_flipped_bit_of_a_value_is_named_when_it_is_read_and_mended_by_the_next(
    kept: Callable[[], NarrowSource], tmp_path: Path
) -> None:
    kept().keep(["id"], ROWS)
    (path,) = (tmp_path / "prepared").rglob("*.piece")
    flip(path, 9)
    one = kept()
    one.keep(["id"], ROWS)

    with pytest.raises(DamageError, match=rf"{path.name} is damaged"):
        one.fetch(np.array([7], np.uint64), ["id"])
    again = kept()
    again.keep(["id"], ROWS)
    assert again.fetch(np.array([7, 1], np.uint64), ["id"]).to_pydict() == {"id": [7, 1]}


def test_a_disk_that_damages_all_that_it_is_given_is_named(
    kept: Callable[[], NarrowSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Pieces] = []

    def damaged(self: Pieces) -> None:
        tries.append(self)
        raise DamageError("the part is damaged")

    monkeypatch.setattr(Pieces, "map_all", damaged)
    with pytest.warns(SpiralWarning, match="is built again now"), pytest.raises(DamageError, match="part is damaged"):
        kept().keep(["id"], ROWS)
    assert len(tries) == room.ATTEMPTS


def test_of_many_parts_each_is_mapped_when_it_is_read(
    kept: Callable[[], NarrowSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spiral_stream.derived.build.CHUNK_ROWS", 1)
    monkeypatch.setattr(room, "MAPPED_AT_ONCE", FILES - 1)
    one = kept()
    one.keep(["id"], ROWS)
    (pieces,) = one.pieces()
    assert (pieces.parts, len(pieces.owners())) == (FILES, 0)
    one.fetch(np.array([0, 1], np.uint64), ["id"])
    assert len(pieces.owners()) == 1

    monkeypatch.setattr(room, "MAPPED_AT_ONCE", FILES)
    other = kept()
    other.keep(["id"], ROWS)
    (pieces,) = other.pieces()
    assert len(pieces.owners()) == FILES


def test_mean_bytes_are_those_of_all_rows(kept: Callable[[], NarrowSource]) -> None:
    one = kept()
    one.keep(["id", "name", "vector"], ROWS)

    assert one.mean_bytes("id") == 8.0
    assert one.mean_bytes("vector") == 128.0
    assert one.mean_bytes("name") == 4 + sum(len(name or "") for name in TABLE["name"].to_pylist()) / ROWS
    assert one.mean_bytes("text") is None


SURVIVING = np.arange(ROWS, dtype=np.uint64)[::-3].copy()


def columns_of(base: NarrowSource) -> Columns:
    """Every third row, last first, with a computed column."""
    twice = bind(col("id") * 2, TABLE.schema)
    env = {name: Col(name) for name in TABLE.column_names} | {"renamed": Col("tokens"), "twice": twice}
    schema = TABLE.schema.append(TABLE.schema.field("tokens").with_name("renamed"))
    schema = schema.append(pa.field("twice", pa.int64()))
    return Columns(base, lambda rows: SURVIVING[rows.astype(np.int64)], [], env, schema)


def plan(base: NarrowSource) -> NarrowColumns:
    return NarrowColumns({0: base}, columns_of(base))


def test_columns_of_a_plan_are_kept_by_what_they_are_made_of(kept: Callable[[], NarrowSource]) -> None:
    base = kept()
    own = plan(base)
    own.keep(["renamed", "twice", "text"], len(SURVIVING))

    assert names_of(base) == {"tokens", "id"}
    assert [name for name in ("renamed", "twice", "tokens", "id", "text", "score", "nobody") if name in own] == [
        *("renamed", "twice", "tokens", "id")
    ]
    assert own.mean_bytes("id") == 8.0
    assert own.mean_bytes("twice") is None
    assert own.lengths("text", SURVIVING) is None
    rows = np.array([0, 3, 1], np.uint64)
    sizes = [len(TABLE["tokens"][int(SURVIVING[row])].as_py() or ()) for row in (0, 3, 1)]
    lengths = own.lengths("renamed", rows)
    assert lengths is not None
    assert lengths.tolist() == sizes


def test_lengths_of_lists_that_are_not_kept_are_read_once_for_everybody(
    kept: Callable[[], NarrowSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.array([5, 0, 16, 3], np.uint64)
    scans: list[list[str]] = []
    scan = OpenRelation.scan
    monkeypatch.setattr(
        OpenRelation, "scan", lambda self, names, *rest: (scans.append(list(names)), scan(self, names, *rest))[1]
    )
    for name in ("holes", "tokens"):  # lists with null items are not kept; the other ones nobody asked for
        expected = [len(TABLE[name][int(SURVIVING[row])].as_py() or ()) for row in rows.astype(int)]
        for _ in range(2):
            base = kept()
            own = plan(base)
            own.keep([], len(SURVIVING))
            lengths = own.lengths(name, rows)
            assert lengths is not None
            assert lengths.tolist() == expected
            assert name not in base
            assert [each.counts["data"].sum() for each in base.pieces()] == [4 * ROWS]
    assert scans == [["holes"], ["tokens"]]


def test_lengths_are_not_kept_for_few_rows(kept: Callable[[], NarrowSource]) -> None:
    base = kept()
    own = plan(base)
    own.keep([], ROWS // RARE - 1)

    assert own.lengths("tokens", np.array([1], np.uint64)) is None


def test_what_is_asked_for_is_built_and_said_with_its_relation(
    kept: Callable[[], NarrowSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "AUTO_BYTES", 0)
    base = kept()
    own = plan(base)
    own.keep(["vector"], len(SURVIVING))
    assert "vector" not in own

    assert own.build(["vector", "twice", "text"]) == ["rows.id", "rows.vector"]
    assert "vector" in own
    assert len(list(own.pieces())) == 2
