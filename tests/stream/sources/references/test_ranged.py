import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import DataError, SourceError
from spiral_stream.sources.references.ranged import OPEN_FILES, STAMP_BYTES, Located, locate
from spiral_stream.sources.references.resolve import resolve
from tests.fixtures.open_files import open_below

RANGE = pa.struct([("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int32())])


# ---- laws


@given(data=st.data(), contents=st.lists(st.binary(max_size=40), min_size=1, max_size=3))
def test_what_is_located_reads_as_what_is_resolved(
    data: st.DataObject, contents: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("located")
    for i, content in enumerate(contents):
        (folder / f"{i}.bin").write_bytes(content)
    rows = data.draw(st.lists(st.integers(0, len(contents) - 1), max_size=6))
    ranges = [(row, *sorted(data.draw(st.tuples(*[st.integers(0, len(contents[row]))] * 2)))) for row in rows]
    for array in (
        pa.array([contents[row] for row in rows], pa.binary()),
        pa.array([contents[row] for row in rows], pa.large_binary()),
        pa.array([f"{row}.bin" for row in rows], pa.utf8()),
        pa.array([{"uri": f"{row}.bin", "offset": a, "length": b - a} for row, a, b in ranges], RANGE),
    ):
        cut = data.draw(st.integers(0, len(rows)))
        column = pa.chunked_array([array.slice(0, cut), array.slice(cut)], array.type)
        places, whole = locate(column, str(folder)), resolve(column, str(folder))

        assert [place.size for place in places] == [len(each) for each in whole]
        for place, each in zip(places, whole, strict=True):
            start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(each))] * 2)))
            assert place.read(start, stop - start) == each[start:stop]


@given(content=st.binary(min_size=1, max_size=3 * STAMP_BYTES), at=st.integers(0, 10**6), grow=st.booleans())
def test_a_stamp_is_of_the_size_and_both_ends(content: bytes, at: int, grow: bool) -> None:
    at %= len(content)
    changed = content + b"\0" if grow else content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    ends = grow or at < STAMP_BYTES or at >= len(content) - STAMP_BYTES
    (before, again, after) = locate(pa.array([content, content, changed], pa.binary()), "")

    assert before.stamp() == again.stamp()
    assert (before.stamp() != after.stamp()) == ends
    assert before.key == again.key != after.key


# ---- examples


def test_a_copy_of_the_bytes_has_the_same_stamp_wherever_it_lies(tmp_path: Path) -> None:
    content = os.urandom(3 * STAMP_BYTES)
    (tmp_path / "a.bin").write_bytes(content)
    (tmp_path / "b.tar").write_bytes(b"before" + content)
    (inline,) = locate(pa.array([content]), "")
    (file,) = locate(pa.array(["a.bin"]), str(tmp_path))
    (part,) = locate(pa.array([{"uri": "b.tar", "offset": 6, "length": len(content)}], RANGE), str(tmp_path))

    assert inline.stamp() == file.stamp() == part.stamp()
    assert len({inline.key, file.key, part.key}) == 3


def test_names_say_what_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(10))
    (file,) = locate(pa.array(["a.bin"]), str(tmp_path))
    (part,) = locate(pa.array([{"uri": "a.bin", "offset": 2, "length": 3}], RANGE), str(tmp_path))
    (inline,) = locate(pa.array([b"abc"]), "")

    assert (file.name, part.name, inline.name) == (
        f"{tmp_path}/a.bin",
        f"{tmp_path}/a.bin[2 + 3]",
        "inline bytes",
    )


def test_nothing_is_opened_before_it_is_read_and_few_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{i}.bin" for i in range(3 * OPEN_FILES)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *a: (opened.append(path), real(path, *a))[1])
    places = locate(pa.array(names * 2), str(tmp_path))
    assert opened == []

    for place in places:
        assert place.read(0, place.size).tobytes().decode() == Path(place.name).name
        assert len(open_below(tmp_path)) <= OPEN_FILES
    assert places[-1].read(0, 1) == b"2"  # still open
    assert len(opened) == len(places)

    del places, place
    assert open_below(tmp_path) == []


def test_inline_bytes_are_not_copied() -> None:
    array = pa.array([b"first", b"second"], pa.large_binary())
    (_, second) = locate(array, "")

    assert pa.py_buffer(second.read(1, 3)).address == array.buffers()[2].address + 6


def test_threads_read_more_files_than_stay_open(tmp_path: Path) -> None:
    names = [f"{i}.bin" for i in range(2 * OPEN_FILES)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 500)
    places = locate(pa.array(names), str(tmp_path))
    wrong: list[str] = []

    def read_all(shift: int) -> None:
        for step in range(200):
            place = places[(step * shift) % len(places)]
            name = Path(place.name).name.encode()
            if place.read(len(name) * 7, len(name)) != name:
                wrong.append(place.name)

    threads = [threading.Thread(target=read_all, args=(shift,)) for shift in (1, 3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_a_file_that_is_replaced_reads_as_it_was_opened_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"before")
    (place,) = locate(pa.array(["a.bin"]), str(tmp_path))
    path.write_bytes(b"now")

    with pytest.raises(SourceError, match=r"a\.bin: it ends 3 bytes early\. Restore the file"):
        place.read(0, 6)


# ---- bad input


@pytest.mark.parametrize(
    ("values", "row", "kind", "way_out"),
    [
        (pa.array(["a.bin", None]), 1, DataError, r"Filter the row out"),
        (pa.array([{"uri": "a.bin", "offset": -1, "length": 2}], RANGE), 0, DataError, "both are at least 0"),
        (pa.array([{"uri": "a.bin", "offset": 8, "length": 3}], RANGE), 0, SourceError, "10 bytes.*Restore the file"),
        (pa.array([{"uri": None, "offset": 8, "length": 3}], RANGE), 0, DataError, "uri is null. Filter the row out"),
        (pa.array(["a.bin", "none.bin"]), 1, SourceError, r"none\.bin: No such file.*Restore the file"),
        (
            pa.array(["hdfs://bucket/a.mp4"]),
            0,
            SourceError,
            "a store that is not read.*Copy it, or register local paths",
        ),
        (pa.array([1, 2]), 0, SourceError, "it is binary, utf8, struct"),
    ],
)
def test_references_that_name_nothing_are_refused_by_row(
    values: pa.Array, row: int, kind: type[Exception], way_out: str, tmp_path: Path
) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(10))
    column = pa.chunked_array([values.slice(0, row), values.slice(row)], values.type)

    with pytest.raises(kind, match=way_out) as caught:
        locate(column, str(tmp_path))
    assert getattr(caught.value, "row", None) == row
    assert isinstance(caught.value, DataError) == (kind is DataError)


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (10, 1), (-1, 2), (3, -1)])
def test_reading_past_what_is_named_is_refused(offset: int, length: int, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(20))
    reference = pa.array([{"uri": "a.bin", "offset": 5, "length": 10}], RANGE)
    places: list[Located] = [*locate(reference, str(tmp_path)), *locate(pa.array([bytes(10)]), "")]

    for place in places:
        with pytest.raises(SourceError, match=r"has 10 bytes.*register what it holds now"):
            place.read(offset, length)


def test_an_empty_file_has_a_stamp(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"")
    (place,) = locate(pa.array(["a.bin"]), str(tmp_path))

    assert place.size == 0
    assert place.stamp() == locate(pa.array([b""]), "")[0].stamp()
