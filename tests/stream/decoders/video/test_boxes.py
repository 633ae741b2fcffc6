import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.decoders.video.boxes import LONGEST, check_boxes
from spiral_stream.errors import DataError


def box(kind: bytes, *inside: bytes) -> bytes:
    body = b"".join(inside)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def moov(*tables: bytes) -> bytes:
    return box(b"moov", box(b"trak", box(b"mdia", box(b"minf", box(b"stbl", *tables)))))


def sizes(constant: int, count: int) -> bytes:
    return box(b"stsz", struct.pack(">III", 0, constant, count))


def chunks(runs: list[tuple[int, int]], places: int) -> tuple[bytes, bytes]:
    rows = b"".join(struct.pack(">III", first, samples, 1) for first, samples in runs)
    return (
        box(b"stsc", struct.pack(">II", 0, len(runs)), rows),
        box(b"stco", struct.pack(">II", 0, places), bytes(4 * places)),
    )


def check(data: bytes, name: str = "clip.mp4") -> None:
    view = memoryview(data)
    check_boxes(lambda at, length: view[at : at + length], len(data), name)


@given(data=st.binary(max_size=200), inside=st.sampled_from([b"moov", b"moof", b"stbl", b"trak"]))
def test_any_bytes_are_walked_to_their_end(data: bytes, inside: bytes) -> None:
    for held in (data, box(inside, data), box(b"ftyp") + box(inside, data)):
        try:
            check(held)
        except DataError as error:
            reason = str(error)
            assert reason.startswith("clip.mp4: its ")


@given(count=st.integers(0, 2**32 - 1), constant=st.integers(0, 2**32 - 1), media=st.integers(0, 5_000))
def test_samples_take_at_least_their_bytes(count: int, constant: int, media: int) -> None:
    data = moov(sizes(constant, count)) + box(b"mdat", bytes(media))
    if count * max(constant, 1) <= len(data):
        check(data)
        return
    with pytest.raises(
        DataError, match=rf"stsz box claims {count} samples.*of a file of {len(data)}\. Restore the file"
    ):
        check(data)


@pytest.mark.parametrize(
    "data",
    [
        moov(sizes(0, 40), *chunks([(1, 4)], 10)) + box(b"mdat", bytes(200)),
        box(b"ftyp") + box(b"mdat", bytes(100)) + moov(sizes(1, 100)),
        struct.pack(">I4sQ", 1, b"mdat", 16 + 100) + bytes(100) + moov(sizes(0, 9)),
        struct.pack(">I4s", 0, b"mdat") + bytes(100),
        box(b"moof", box(b"traf", box(b"trun", struct.pack(">II", 1, 30)))) + box(b"mdat", bytes(100)),
    ],
)
def test_true_claims_pass(data: bytes) -> None:
    check(data)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (moov(sizes(0, 40), *chunks([(1, 1_000_000)], 10)), "stsc box claims 10000000 samples"),
        (moov(sizes(0, 4), *chunks([(1, 1), (3, 2**31)], 9)), "stsc box claims"),
        (box(b"moof", box(b"traf", box(b"trun", struct.pack(">II", 1, 2**31)))), "trun box claims 2147483648"),
        (moov(sizes(0, 100)) * 3, "stsz box claims 100 samples, in all 200 bytes or more, of a file of 180"),
        (box(b"moov", box(b"cmov", bytes(40))), "compressed index"),
        (box(b"moov", box(b"trak", box(b"edts", box(b"elst", struct.pack(">II", 0, 1_000))))), "more than 256 edits"),
        (
            struct.pack(">I4sQ", 1, b"moov", 16 + len(moov(sizes(0, 10_000)))) + moov(sizes(0, 10_000)),
            "stsz box claims 10000",
        ),
        (box(b"stsz", struct.pack(">III", 0, 0, 10_000)), "stsz box claims 10000"),
    ],
)
def test_claims_that_cannot_be_are_refused(data: bytes, found: str) -> None:
    with pytest.raises(DataError, match=rf"clip.mp4: its .*{found}.*Restore the file, write it anew"):
        check(data)


def test_more_samples_than_anyone_has_are_refused() -> None:
    size = 2 * LONGEST
    head = moov(sizes(0, LONGEST + 1)) + struct.pack(">I4s", 0, b"mdat")
    with pytest.raises(DataError, match="Restore the file"):
        check_boxes(lambda at, length: memoryview(head[at : at + length]), size, "clip.mp4")


def test_the_media_is_not_read() -> None:
    data = box(b"mdat", bytes(1_000_000)) + moov(sizes(0, 10))
    read: list[int] = []
    view = memoryview(data)
    check_boxes(lambda at, length: (read.append(length), view[at : at + length])[1], len(data), "clip.mp4")

    assert sum(read) < 200
