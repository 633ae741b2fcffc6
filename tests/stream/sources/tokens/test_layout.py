import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream.errors import SourceError
from spiral_stream.sources.tokens.layout import ITEMS, MegatronIndex, TokenLayout, layout_of

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_index(path: Path, lengths: list[int], marks: list[int], dtype: str = "uint16", **other: Any) -> Path:
    """Write what Megatron-LM's _IndexWriter writes."""
    size = np.dtype(dtype).itemsize
    pointers = other.get("pointers", np.concatenate([[0], np.cumsum(lengths)])[:-1] * size)
    head = other.get("magic", b"MMIDIDX\0\0") + struct.pack("<QB", other.get("version", 1), CODES[dtype])
    parts = [
        np.array(lengths, np.int32).tobytes(),
        np.array(pointers, np.int64).tobytes(),
        np.array(marks, np.int64).tobytes(),
    ]
    path.write_bytes(head + struct.pack("<QQ", len(lengths), len(marks)) + b"".join(parts))
    return path


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    cuts=st.sets(st.integers(1, 29)),
    dtype=st.sampled_from(sorted(CODES)),
    first=st.integers(0, 29),
)
def test_documents_are_the_sequences_between_two_marks(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], cuts: set[int], dtype: str, first: int
) -> None:
    marks = [0, *sorted(cut for cut in cuts if cut < len(lengths)), len(lengths)]
    index = MegatronIndex(str(write_index(tmp_path_factory.mktemp("idx") / "a.idx", lengths, marks, dtype)))
    first = min(first, index.document_count)
    starts, counts = index.documents(first, index.document_count, sum(lengths))
    before = np.concatenate([[0], np.cumsum(lengths)])
    ends = [(int(before[low]), int(before[high])) for low, high in pairwise(marks)][first:]

    assert index.dtype == dtype
    assert [(s, s + n) for s, n in zip(starts.tolist(), counts.tolist(), strict=True) if n] == [
        span for span in ends if span[1] > span[0]
    ]
    assert counts.tolist() == [high - low for low, high in ends]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"magic": b"MMIDIDY\0\0"}, "no index of Megatron-LM"),
        ({"version": 2}, "version 2, with ids of type 8; version 1"),
        ({"marks": [0, 5]}, "not in order"),
        ({"marks": [0, 2, 1, 3]}, "not in order"),
        ({"lengths": [2, -1, 3]}, "between two ids"),
        ({"pointers": [0, 5, 10]}, "between two ids"),
        ({"pointers": [0, 4, 12]}, "a sequence ends at id 9, and the file has 8"),
        ({"lengths": [2, 3, 4]}, "ends at id 9"),
        ({"pointers": [2, 4, 10], "lengths": [2, 2, 3], "marks": [0, 3]}, "one after the other"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, how: dict[str, Any], said: str) -> None:
    options = {"lengths": [2, 3, 3], "marks": [0, 1, 3], **how}
    write_index(tmp_path / "a.idx", **options)

    def read() -> None:
        index = MegatronIndex(str(tmp_path / "a.idx"))
        index.documents(0, index.document_count, 8)

    with pytest.raises(SourceError, match=rf"a\.idx: .*{said}"):
        read()


def test_an_index_cut_short_is_refused(tmp_path: Path) -> None:
    path = write_index(tmp_path / "a.idx", [1, 2], [0, 2])
    for size in (0, 20, 50):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(SourceError, match=r"no index of|cut short: it has"):
            MegatronIndex(str(path))


@pytest.mark.parametrize("dtype", ITEMS)
def test_an_array_of_numpy_says_its_type_and_shape(tmp_path: Path, dtype: str) -> None:
    array = np.arange(12, dtype=dtype)
    np.save(tmp_path / "flat.npy", array)
    np.save(tmp_path / "table.npy", array.reshape(3, 4))
    flat, table = (layout_of(str(tmp_path / name), None) for name in ("flat.npy", "table.npy"))

    assert (flat.dtype, flat.count, flat.columns, table.count, table.columns) == (dtype, 12, None, 12, 4)
    assert np.fromfile(tmp_path / "table.npy", dtype, offset=table.offset).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros(3), "an array of float64"),
        (np.zeros((2, 2, 2), np.int32), r"shape \(2, 2, 2\)"),
        (np.zeros((2, 3), np.int32, order="F"), "Fortran order"),
        (np.zeros(3, ">i4"), "an array of >i4"),
        (np.array(5), "shape"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, array: Any, said: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(SourceError, match=rf"a\.npy is .*{said}.*Write integers"):
        layout_of(str(tmp_path / "a.npy"), None)


def test_files_that_do_not_hold_whole_ids_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(7))
    np.save(tmp_path / "a.npy", np.arange(100))
    (tmp_path / "b.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    (tmp_path / "c.npy").write_bytes(b"\x93NUMPY\x01\0\x05\0abcde")

    with pytest.raises(SourceError, match=r"7 bytes, which is no number of uint16 ids\. Give another dtype="):
        layout_of(str(tmp_path / "a.bin"), None)
    with pytest.raises(SourceError, match=r"b\.npy is cut short"):
        layout_of(str(tmp_path / "b.npy"), None)
    with pytest.raises(SourceError, match=r"holds int64, and dtype='uint16'"):
        layout_of(str(tmp_path / "a.npy"), "uint16")
    with pytest.raises(SourceError, match=r"c\.npy: .*Replace the file"):
        layout_of(str(tmp_path / "c.npy"), None)
    assert layout_of(str(tmp_path / "a.bin"), "uint8") == TokenLayout("uint8", 0, 7)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<u2', 'fortran_order': False, 'shape': (4,), ", r"header cannot be read .*Replace the file"),
        ("{[]: 1}", r"header cannot be read .*Replace the file"),
        ("{'descr': '<u2', 'fortran_order': False, 'shape': (-1,)}", r"has no documents\. Write integers"),
        ("{'descr': '<u2', 'fortran_order': False, 'shape': (4, 0)}", r"has no documents\. Write integers"),
        (f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({1 << 40}, {1 << 40})}}", r"is cut short.*Replace it"),
    ],
)
def test_a_header_of_numpy_that_lies_is_refused(header: str, message: str, tmp_path: Path) -> None:
    data = header.ljust(117).encode() + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\0" + len(data).to_bytes(2, "little") + data + bytes(8))

    catalog = spiral.connect(tmp_path / "catalog")
    with pytest.raises(SourceError, match=message):
        catalog.register("rows", spiral.sources.Tokens(tmp_path / "a.npy"), identity=spiral.RowIdentity())
