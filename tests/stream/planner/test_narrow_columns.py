"""A column that is kept reads as it does by address; wide, computed and damaged ones are read where they lie."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.expr import Col, bind, col
from spiral_stream.integrity import seal
from spiral_stream.planner import narrow_columns
from spiral_stream.planner.late_columns import Columns, UInt64
from spiral_stream.planner.narrow_columns import NARROW_BYTES, NarrowColumns, write_arrow
from spiral_stream.semantic import JPEG_REF, with_semantic
from spiral_stream.sources.memory import memory_reader

ROWS = 30
NAMES = ["id", "name", "flag", "text", "image", "bytes", "twice", "tokens"]
KEPT = {"id", "name", "flag"}
BASE = pa.table(
    {
        "id": pa.array([None if i == 3 else i for i in range(ROWS)], pa.int32()),
        "name": [None if i == 4 else "n" * (i % 7) for i in range(ROWS)],
        "flag": [i % 3 == 0 for i in range(ROWS)],
        "text": ["t" * (NARROW_BYTES + i) for i in range(ROWS)],
        "image": ["a.jpg"] * ROWS,
        "bytes": [b"b"] * ROWS,
        "tokens": [[i] for i in range(ROWS)],
    }
)
TABLE = BASE.cast(with_semantic(BASE.schema, {"image": JPEG_REF}))
SURVIVING = np.arange(ROWS, dtype=np.uint64)[::-2].copy()


class Fixture:
    """The columns of every second row, last first, and which of them were read by address."""

    def __init__(self, folder: Path) -> None:
        schema = TABLE.schema.append(pa.field("twice", pa.int64()))
        env = {name: Col(name) for name in TABLE.column_names} | {
            "twice": bind(col("id").cast("int64") * 2, TABLE.schema)
        }
        self.columns = Columns(memory_reader(TABLE), lambda rows: SURVIVING[rows.astype(np.int64)], [], env, schema)
        self.made: list[tuple[str, ...]] = []
        self.folder = folder

    def open(self) -> NarrowColumns:
        return NarrowColumns(self.folder, self.columns, len(SURVIVING), self.pieces)

    def pieces(self, names: tuple[str, ...]) -> Iterator[tuple[UInt64, pa.Table]]:
        self.made.append(names)
        for rows in np.array_split(np.arange(len(SURVIVING), dtype=np.uint64), 3):
            yield rows, self.columns.fetch(rows, names)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> NarrowColumns:
    narrow = Fixture(tmp_path_factory.mktemp("narrow")).open()
    narrow.keep(NAMES)
    return narrow


@given(
    rows=st.lists(st.integers(0, len(SURVIVING) - 1), max_size=20),
    names=st.lists(st.sampled_from(NAMES), unique=True, min_size=1),
)
def test_rows_of_kept_and_other_columns_are_those_read_by_address(
    rows: list[int], names: list[str], shared: NarrowColumns
) -> None:
    asked = np.array(rows, np.uint64)
    expected = shared._columns.fetch(asked, names)

    found = shared.fetch(asked, names)
    assert found.column_names == names
    assert found.to_pydict() == expected.to_pydict()


def test_narrow_columns_are_kept_once_and_others_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = Fixture(tmp_path)
    first = fixture.open()
    first.keep(NAMES)
    second = fixture.open()
    monkeypatch.setattr(fixture.columns, "fetch", None)  # a later start reads nothing
    second.keep(NAMES)

    assert {name for name in NAMES if name in first} == {name for name in NAMES if name in second} == KEPT
    assert fixture.made == [("id", "name", "flag")]
    assert {name for name in NAMES if first.mean_bytes(name) is not None} == KEPT
    assert len(list(tmp_path.glob("*.wide"))) == 1  # of the long texts


def test_nothing_is_kept_of_very_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow_columns, "MOST_ROWS", len(SURVIVING) - 1)
    fixture = Fixture(tmp_path)
    narrow = fixture.open()
    narrow.keep(NAMES)

    assert (fixture.made, list(tmp_path.iterdir())) == ([], [])
    assert narrow.fetch(np.array([1], np.uint64), ["id"])["id"].to_pylist() == [int(SURVIVING[1])]


@pytest.mark.parametrize("kind", ["bytes flipped", "another type", "fewer rows"])
def test_a_damaged_column_is_made_again_with_a_warning(kind: str, tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)
    fixture.open().keep(["id"])
    (file,) = tmp_path.glob("column-*.arrow")
    if kind == "bytes flipped":
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 255
        file.write_bytes(data)
    else:
        wrong: Any = (
            pa.array(range(len(SURVIVING)), pa.int64()) if kind == "another type" else pa.array([1], pa.int32())
        )
        file.unlink()
        write_sealed(file, wrong)
    again = fixture.open()
    with pytest.warns(sp.SpiralWarning, match=r"is damaged.*built again now"):
        again.keep(["id"])

    assert fixture.made == [("id",), ("id",)]
    assert again.fetch(np.arange(4, dtype=np.uint64), ["id"])["id"].to_pylist() == SURVIVING[:4].tolist()


def write_sealed(file: Path, values: pa.Array) -> None:
    from spiral_stream.integrity.publish import publish_file

    with publish_file(file) as draft:
        write_arrow(draft, pa.table({"id": values}))
    assert seal.content(file)[1]
