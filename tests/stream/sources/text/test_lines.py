import gzip
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import SourceError
from spiral_stream.sources import ImportUnit, Refused
from spiral_stream.sources.text import lines as text_blocks
from spiral_stream.sources.text.lines import Block, blocks, opened

PACKED = {"plain": lambda data: data, "gzip": gzip.compress, "zstd": zstandard.compress}


def read(path: Path, on_error: str = "raise", size: int = 1 << 20) -> tuple[list[Block], Refused]:
    unit = unit_of(path)
    refused = Refused(unit, on_error)
    return list(blocks(unit, refused, size)), refused


def unit_of(path: Path) -> ImportUnit:
    return ImportUnit(path.name, str(path), path.stat().st_size if path.is_file() else 0, "0" * 32)


@given(
    lines=st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    size=st.integers(1, 50),
)
def test_blocks_are_the_files_bytes_and_end_with_a_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int
) -> None:
    data = b"x" + b"\n".join(lines)
    path = tmp_path_factory.mktemp("blocks") / "rows"
    path.write_bytes(data)
    found, _ = read(path, size=size)

    assert b"".join(block.data for block in found) == data
    assert all(block.data.endswith(b"\n") for block in found[:-1])
    assert [block.line for block in found] == [
        1 + sum(one.data.count(b"\n") for one in found[:k]) for k in range(len(found))
    ]


@given(
    lines=st.lists(st.text("ab", max_size=9).map(str.encode), max_size=20),
    size=st.integers(1, 50),
    part=st.integers(1, 40),
)
def test_each_line_is_in_the_range_in_which_it_begins(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int, part: int
) -> None:
    data = b"x" + b"\n".join(lines)
    path = tmp_path_factory.mktemp("ranges") / "rows"
    path.write_bytes(data)
    file = unit_of(path)
    bounds = [*range(0, len(data), part), len(data)]
    units = [
        ImportUnit(str(begin), str(path), end - begin, "0" * 32, of=file, begin=begin, end=end)
        for begin, end in pairwise(bounds)
    ]
    found = [b"".join(block.data for block in blocks(unit, Refused(unit), size)) for unit in units]

    assert b"".join(found) == data
    starts = [0, *(at + 1 for at, letter in enumerate(data[:-1]) if letter == ord("\n"))]
    for unit, text in zip(units, found, strict=True):
        own = [start for start in starts if unit.begin <= start < unit.end]
        assert text == b"".join(data[start : (data.find(b"\n", start) + 1) or None] for start in own)


@pytest.mark.parametrize("packed", PACKED)
def test_a_packed_file_is_known_by_its_bytes_whatever_its_name(tmp_path: Path, packed: str) -> None:
    data = b"one\ntwo\n" * 50_000
    (tmp_path / "rows").write_bytes(PACKED[packed](data))
    assert b"".join(block.data for block in read(tmp_path / "rows", size=1 << 16)[0]) == data


def test_members_of_gzip_and_frames_of_zstd_are_read_one_after_the_other(tmp_path: Path) -> None:
    for name in ("gzip", "zstd"):
        (tmp_path / name).write_bytes(PACKED[name](b"one\n") + PACKED[name](b"two\n"))
        assert [block.data for block in read(tmp_path / name)[0]] == [b"one\ntwo\n"]


@pytest.mark.parametrize("packed", ["gzip", "zstd"])
def test_a_packed_file_that_is_cut_short_is_named_with_how_far_it_was_read(tmp_path: Path, packed: str) -> None:
    data = PACKED[packed](random.Random(1).randbytes(100_000))
    (tmp_path / "rows.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(
        SourceError, match=r"rows\.gz, after [\d,]+ bytes of text: .*[Tt]runcated.*cut short.*replace it"
    ):
        read(tmp_path / "rows.gz", size=1 << 12)


def test_a_byte_order_mark_is_no_text_and_utf16_is_refused(tmp_path: Path) -> None:
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfone\n")
    (tmp_path / "wide").write_bytes("one\n".encode("utf-16"))
    assert [block.data for block in read(tmp_path / "marked")[0]] == [b"one\n"]
    with pytest.raises(SourceError, match=r"UTF-16.*iconv"):
        read(tmp_path / "wide")


def test_a_file_that_is_gone_or_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("gone", "No such file"), ("pipe", "a FIFO")):
        with pytest.raises(SourceError, match=f"{name}: .*{said}"), opened(unit_of(tmp_path / name)):
            pass


@pytest.mark.parametrize("packed", PACKED)
def test_a_line_beyond_the_limit_is_refused_before_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: str
) -> None:
    monkeypatch.setattr(text_blocks, "LINE_BYTES", 1 << 20)
    (tmp_path / "bomb").write_bytes(PACKED[packed](b"one\n" + b"\0" * (8 << 20) + b"\ntwo\n" + b"\0" * (4 << 20)))
    with pytest.raises(SourceError, match=r"bomb, line 2: it is longer than 1 MiB.*on_error"):
        read(tmp_path / "bomb", size=1 << 16)
    found, refused = read(tmp_path / "bomb", "skip", 1 << 16)

    assert [(block.line, block.data) for block in found] == [(1, b"one\n"), (3, b"two\n")]
    assert [text.split(", ")[1].split(":")[0] for text in refused.examples] == ["line 2", "line 4"]
