"""Rows in memory have one digest whatever their chunks are, and read as what they are."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Arrow
from spiral_stream.errors import SourceError

ROWS = st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.text("ab", max_size=2)), max_size=8)


def table(rows: list[tuple[int | None, str | None]]) -> pa.Table:
    return pa.table({"i": pa.array([i for i, _ in rows], pa.int64()), "s": pa.array([s for _, s in rows], pa.string())})


@given(rows=ROWS, other=ROWS, cut=st.integers(0, 8))
def test_a_digest_names_the_rows_and_not_their_chunks(rows: list, other: list, cut: int) -> None:
    whole = table(rows)
    pieces = pa.concat_tables([table(rows[:cut]), table(rows[cut:])])
    digest = Arrow(whole).digest()

    assert Arrow(pieces).digest() == digest
    assert (Arrow(table(other)).digest() == digest) == (other == rows)
    assert Arrow(whole.rename_columns(["i", "t"])).digest() != digest
    assert Arrow(whole.set_column(0, "i", whole["i"].cast(pa.int32()))).digest() != digest


@given(rows=ROWS)
def test_the_rows_are_one_unit_under_their_digest(rows: list) -> None:
    source = Arrow(table(rows).replace_schema_metadata({"made": "by pandas"}))
    with source.open() as reader:
        (unit,) = reader.units()
        assert (unit.rows, sum(unit.groups), unit.content_key) == (len(rows), len(rows), source.digest())
        assert [each for batch in reader.scan(["i"]) for each in batch["i"].to_pylist()] == [i for i, _ in rows]
        assert reader.schema.metadata is None


def test_a_record_batch_and_views_are_read_as_a_plain_table() -> None:
    batch = pa.record_batch({"s": pa.array(["a", None], pa.string_view())})

    source = Arrow(batch)
    assert source.table.equals(pa.table({"s": pa.array(["a", None], pa.string())}))
    assert source.digest() == Arrow(source.table).digest()


def test_references_start_from_the_working_folder_unless_a_base_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    free, based = Arrow(table([])), Arrow(table([]), base="sub")
    monkeypatch.chdir("/")

    assert (free.open().base, free.open().allow_outside) == (str(tmp_path), True)
    assert (based.open().base, based.open().allow_outside) == (f"{tmp_path}/sub", False)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(SourceError, match=r"takes a pyarrow Table, not dict. Convert it with pyarrow\.table"):
        Arrow({"a": [1]})


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(SourceError, match=r"two columns are called 'a'. .*table\.rename_columns"):
        Arrow(pa.table([[1], [2]], names=["a", "a"]))
