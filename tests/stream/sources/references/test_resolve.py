import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import DataError, SourceError
from spiral_stream.sources.references.resolve import GAP_BYTES, resolve

RANGE = pa.struct([("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int32())])


@given(
    values=st.lists(st.binary(max_size=8), max_size=12),
    kind=st.sampled_from([pa.binary(), pa.large_binary()]),
    cut=st.integers(0, 12),
)
def test_inline_bytes_are_views_on_the_arrow_buffer(values: list[bytes], kind: pa.DataType, cut: int) -> None:
    array = pa.array([b"before", *values], kind).slice(1)
    found = resolve(pa.chunked_array([array.slice(0, cut), array.slice(cut)], kind), "")

    assert [bytes(view) for view in found] == values
    assert all(view.readonly and view.format == "B" for view in found)


def test_inline_bytes_are_not_copied() -> None:
    array = pa.array([b"first", b"second"], pa.large_binary())
    (_, second) = resolve(array, "")

    assert pa.py_buffer(second).address == array.buffers()[2].address + 5


@given(
    ranges=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 3 * GAP_BYTES), st.integers(0, 50)), min_size=1, max_size=20
    )
)
def test_ranges_give_exactly_their_bytes_in_the_order_asked(
    ranges: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ranges")
    contents = [os.urandom(3 * GAP_BYTES + 50) for _ in range(2)]
    for i, content in enumerate(contents):
        (folder / f"{i}.tar").write_bytes(content)
    array = pa.array([{"uri": f"{f}.tar", "offset": o, "length": n} for f, o, n in ranges], RANGE)

    assert [bytes(v) for v in resolve(array, str(folder))] == [contents[f][o : o + n] for f, o, n in ranges]


def test_each_file_is_opened_once_and_near_ranges_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tar").write_bytes(bytes(100_000))
    calls: list[tuple[str, int]] = []
    real_open, real_pread = os.open, os.pread
    monkeypatch.setattr(os, "open", lambda *a: (calls.append(("open", 0)), real_open(*a))[1])
    monkeypatch.setattr(os, "pread", lambda h, n, o: (calls.append(("pread", n)), real_pread(h, n, o))[1])
    rows = [{"uri": "a.tar", "offset": o, "length": 10} for o in (50_000, 0, 10, 2_000, 0)]
    resolve(pa.array(rows, RANGE), str(tmp_path))

    assert calls == [("open", 0), ("pread", 2_010), ("pread", 10)]


def test_files_are_paths_or_uris_relative_to_the_base(tmp_path: Path) -> None:
    (tmp_path / "a b.jpg").write_bytes(b"inside")
    paths = ["a b.jpg", f"file://{tmp_path}/a%20b.jpg", str(tmp_path / "a b.jpg")]

    assert [bytes(v) for v in resolve(pa.array(paths), str(tmp_path))] == [b"inside"] * 3


@pytest.mark.parametrize(
    ("values", "kind", "row"),
    [
        ([b"x", None], pa.binary(), 1),
        (["a.jpg", "a.jpg", None], pa.utf8(), 2),
        ([None], RANGE, 0),
        ([{"uri": "a.jpg", "offset": 0, "length": 1}, {"uri": None, "offset": 0, "length": 1}], RANGE, 1),
        ([{"uri": "a.jpg", "offset": 0, "length": 1}, {"uri": "a.jpg", "offset": 0, "length": None}], RANGE, 1),
        ([{"uri": "a.jpg", "offset": -1, "length": 1}], RANGE, 0),
    ],
)
def test_a_null_or_negative_reference_is_a_data_error_with_its_row(
    tmp_path: Path, values: list[object], kind: pa.DataType, row: int
) -> None:
    (tmp_path / "a.jpg").write_bytes(b"1")
    with pytest.raises(DataError, match=r"null|at least 0") as caught:
        resolve(pa.array(values, kind), str(tmp_path))

    assert caught.value.row == row


def test_a_missing_file_is_a_source_error_with_path_and_row(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"1")
    chunks = pa.chunked_array([["a.jpg", "a.jpg"], ["a.jpg", "gone.jpg"]])
    with pytest.raises(SourceError, match=r"gone\.jpg: No such file.*Restore the file") as caught:
        resolve(chunks, str(tmp_path))

    assert caught.value.row == 3
    assert not isinstance(caught.value, DataError)


def test_a_range_past_the_end_is_a_source_error_with_path_and_row(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"12345")
    rows = [{"uri": "a.tar", "offset": 0, "length": 5}, {"uri": "a.tar", "offset": 4, "length": 2}]
    with pytest.raises(SourceError, match=r"a\.tar has 5 bytes, the reference asks for 4 \+ 2") as caught:
        resolve(pa.array(rows, RANGE), str(tmp_path))

    assert caught.value.row == 1


def test_an_object_store_is_refused_with_the_way_out() -> None:
    with pytest.raises(SourceError, match=r"hdfs://b/a.jpg lies in a store that is not read here.*Copy it"):
        resolve(pa.array(["hdfs://b/a.jpg"]), "")
