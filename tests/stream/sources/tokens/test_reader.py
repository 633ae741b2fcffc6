from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import col, len_
from spiral_stream.errors import SourceError
from spiral_stream.sources import ROW, MemoryReader, Tokens, Unit
from spiral_stream.sources.import_source import FILE
from spiral_stream.sources.tokens import reader as token_reader
from spiral_stream.sources.tokens.reader import TokenReader
from tests.fixtures.imports import rows_of

LENGTHS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=8), min_size=1, max_size=4)


def reader_of(folder: Path, lengths: list[list[int]], dtype: str = "uint16") -> tuple[TokenReader, list[list[int]]]:
    """A reader of one file per list of lengths, and the ids of its documents."""
    rng = np.random.default_rng(len(lengths))
    documents, tables, units = [], [], []
    for k, own in enumerate(lengths):
        ids = rng.integers(0, 100, sum(own)).astype(dtype)
        ids.tofile(folder / f"{k}.bin")
        starts = np.concatenate([[0], np.cumsum(own)])[:-1].astype(np.int64)
        documents += [ids[start : start + length].tolist() for start, length in zip(starts, own, strict=True)]
        tables.append(pa.table({"start": starts, "length": np.array(own, np.int64), FILE: [f"{k}.bin"] * len(own)}))
        units.append(Unit(f"{k}.bin", len(own), None, f"{k:032x}", (len(own),)))
    kept = MemoryReader(pa.concat_tables(tables), units, str(folder))
    return TokenReader(kept, Tokens(str(folder), dtype, length=1).layout), documents


@pytest.mark.parametrize("held", [True, False])
@given(lengths=LENGTHS, data=st.data())
def test_rows_are_the_ids_of_the_files_however_they_are_asked_for(
    tmp_path_factory: pytest.TempPathFactory, held: bool, lengths: list[list[int]], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_reader, "HELD_ROWS", 1 << 26 if held else 0)
        patch.setattr(token_reader, "GATHERED", data.draw(st.integers(1, 20)))
        reader, documents = reader_of(tmp_path_factory.mktemp("ids"), lengths)
        rows = data.draw(st.lists(st.integers(0, len(documents) - 1), max_size=12))
        asked = np.array(rows, np.uint64)

        assert reader.fetch(asked, ["tokens"])["tokens"].to_pylist() == [documents[row] for row in rows]
        found = reader.fetch(asked, ["length", "tokens", FILE])
        assert found["length"].to_pylist() == [len(documents[row]) for row in rows]
        assert found.column_names == ["length", "tokens", FILE]
        spans = reader.spans(asked, "tokens")
        assert spans.lengths.tolist() == [len(documents[row]) for row in rows]
        assert reader.fetch(asked, []).num_rows == len(rows)
        units = data.draw(st.none() | st.lists(st.integers(0, len(lengths) - 1), unique=True))
        wanted = range(len(lengths)) if units is None else sorted(units)
        starts = np.concatenate([[0], np.cumsum([len(own) for own in lengths])])
        expected = [row for unit in wanted for row in range(starts[unit], starts[unit + 1])]
        scanned = list(reader.scan(["tokens", "start"], None, units))
        assert [row for batch in scanned for row in batch.column(ROW).to_pylist()] == expected
        assert [ids for batch in scanned for ids in batch.column("tokens").to_pylist()] == [
            documents[row] for row in expected
        ]


def test_predicates_hold_for_kept_columns_and_for_ids(tmp_path: Path) -> None:
    reader, documents = reader_of(tmp_path, [[1, 5, 3], [6, 2]])
    for predicate in (col("length") > 2, len_(col("tokens")) > 2, (len_(col("tokens")) > 2) & (col("start") >= 0)):
        found = pa.Table.from_batches(reader.scan(["tokens"], predicate))
        assert found["tokens"].to_pylist() == [ids for ids in documents if len(ids) > 2]
        assert found.column_names == ["tokens", ROW]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_ids_keep_their_type(tmp_path: Path, dtype: str) -> None:
    reader, documents = reader_of(tmp_path, [[3, 2]], dtype)
    kind = pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))
    assert reader.schema.field("tokens").type == kind
    assert reader.fetch(np.array([1], np.uint64), ["tokens"])["tokens"].type == kind
    assert reader.spans(np.array([1], np.uint64), "tokens").signed == (dtype != "uint8")
    assert documents


def test_many_threads_that_read_first_get_the_same(tmp_path: Path) -> None:
    reader, documents = reader_of(tmp_path, [[3] * 50] * 20)
    rows = np.random.default_rng(0).permutation(1000).astype(np.uint64)
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda part: reader.fetch(part, ["tokens"])["tokens"].to_pylist(), np.split(rows, 50)))
    assert [ids for part in parts for ids in part] == [documents[row] for row in rows]


def test_a_row_that_is_not_there_is_refused(tmp_path: Path) -> None:
    reader, _ = reader_of(tmp_path, [[3]])
    with pytest.raises(SourceError, match="row 1 of 1 was asked for"):
        reader.fetch(np.array([1], np.uint64), ["tokens"])


@pytest.mark.parametrize("held", [True, False])
def test_a_file_that_became_shorter_or_is_gone_is_named(tmp_path: Path, held: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(token_reader, "HELD_ROWS", 1 << 26 if held else 0)
    reader, _ = reader_of(tmp_path, [[3], [4]])
    (tmp_path / "0.bin").write_bytes(bytes(4))
    (tmp_path / "1.bin").unlink()
    with pytest.raises(SourceError, match=r"0\.bin is shorter than when it was registered\. Restore it"):
        reader.fetch(np.array([0], np.uint64), ["tokens"])
    with pytest.raises(SourceError, match=r"1\.bin: No such file"):
        reader.fetch(np.array([1], np.uint64), ["tokens"])


def test_nothing_is_read_of_files_whose_ids_are_not_asked_for(tmp_path: Path) -> None:
    reader, _ = reader_of(tmp_path, [[3], [4]])
    (tmp_path / "1.bin").unlink()
    assert reader.fetch(np.array([1, 0], np.uint64), ["length"])["length"].to_pylist() == [4, 3]
    assert len(reader.fetch(np.array([0], np.uint64), ["tokens"])) == 1


def test_the_files_of_the_ids_are_files_of_the_relation(tmp_path: Path) -> None:
    reader, _ = reader_of(tmp_path, [[3], [4]])
    assert list(reader.files().values()) == [str(tmp_path / "0.bin"), str(tmp_path / "1.bin")]
    assert list(reader.files([1]).values()) == [str(tmp_path / "1.bin")]
    assert len(rows_of(Tokens(tmp_path, length=2))) == 4
