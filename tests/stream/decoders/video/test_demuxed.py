"""A demuxer reads bytes like those of a file, and an error ends the file and waits."""

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.decoders.video.demuxed import DemuxedFile
from spiral_stream.errors import SourceError

DATA = bytes(range(100))


class Bytes(DemuxedFile):
    def __init__(self, fails_at: int = len(DATA) + 1) -> None:
        super().__init__(len(DATA))
        self.fails_at, self.reads = fails_at, 0

    def at(self, offset: int, length: int) -> memoryview:
        self.reads += 1
        if min(offset + length, len(DATA)) > self.fails_at:
            msg = "no disk"
            raise SourceError(msg)
        return memoryview(DATA)[offset : offset + length]


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("seek"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("seek"), st.integers(0, 20), st.just(1)),
        st.tuples(st.just("seek"), st.integers(-99, 0), st.just(2)),
    ),
    max_size=12,
)


@given(moves=MOVES)
def test_it_reads_like_a_file(moves: list[tuple[str, int, int]]) -> None:
    ours, theirs = Bytes(), io.BytesIO(DATA)
    for kind, number, whence in moves:
        for each in (ours, theirs):
            found: Any = each.read(number) if kind == "read" else each.seek(number, whence)
            if each is ours:
                expected = found
        assert expected == found
        assert ours.tell() == theirs.tell()


def test_an_error_ends_the_file_and_stays() -> None:
    file = Bytes(fails_at=30)

    assert file.read(20) == DATA[:20]
    assert file.read(20) == b""
    assert str(file.failed) == "no disk"
    file.seek(0)
    reads = file.reads
    assert file.read(5) == b""
    assert file.reads == reads
