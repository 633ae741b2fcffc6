from pathlib import Path

import pyarrow as pa
import pytest

from spiral_stream.errors import DataError, SourceError
from spiral_stream.sources.references.resolve import payload, resolve
from spiral_stream.sources.references.stamps import stamps_of

RANGE = [("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int64())]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    return tmp_path / "a.bin"


def ranges(*rows: object, more: list[tuple[str, pa.DataType]] | None = None) -> pa.Array:
    return pa.array(rows, pa.struct([*RANGE, *(more or [])]))


def part(offset: int, length: int, **more: object) -> dict[str, object]:
    return {"uri": "a.bin", "offset": offset, "length": length, **more}


def test_bytes_come_in_order_and_nulls_as_none(file: Path) -> None:
    base = str(file.parent)
    assert payload(ranges(part(8, 2), None, part(0, 1)), base) == [b"89", None, b"0"]
    assert payload(pa.array([b"x", None], pa.large_binary()), base) == [b"x", None]
    assert payload(pa.array([None, "a.bin"]), base) == [None, b"0123456789"]
    assert payload(pa.array([None], pa.utf8()), base) == [None]


def test_lists_of_references_come_as_lists(file: Path) -> None:
    base = str(file.parent)
    rows = [[part(0, 1), None, part(9, 1)], [], None, [part(5, 2)]]
    expected = [[b"0", None, b"9"], [], None, [b"56"]]
    array = pa.array(rows, pa.list_(pa.struct(RANGE)))
    assert payload(array, base) == expected
    assert payload(array.cast(pa.large_list(pa.struct(RANGE))), base) == expected
    assert payload(array.slice(1), base) == expected[1:]
    assert payload(pa.array([[b"a"], [], [b"b", b"c"]]), base) == [[b"a"], [], [b"b", b"c"]]
    assert payload(pa.array([["a.bin"] * 2]), base) == [[b"0123456789"] * 2]


def test_an_error_in_a_list_names_its_row(file: Path) -> None:
    rows = [[part(0, 1)], [part(0, 1), part(5, 99)], []]
    with pytest.raises(SourceError, match=r"10 bytes, the reference asks for 5 \+ 99") as error:
        payload(pa.array(rows, pa.list_(pa.struct(RANGE))), str(file.parent))
    assert error.value.row == 1


DIGEST = "sha256:17756315ebd47b7110359fc7b168179bf6f2df3646fcc888bc8aa05c78b38ac1"  # of "12"


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"size": 10}, pa.int64()),
        ({"size": 10}, pa.uint32()),
        ({"size": None}, pa.int64()),
        ({"mtime": 1_500_000_000_123_456_789}, pa.int64()),
        ({"mtime": 1_500_000_000}, pa.timestamp("s")),
        ({"mtime": 1_500_000_000_123_456}, pa.timestamp("us")),
        ({"digest": "xxh3_64:"}, pa.utf8()),
        ({"etag": "anything"}, pa.utf8()),
    ],
)
def test_what_a_reference_says_of_its_bytes_is_compared(file: Path, more: dict[str, object], kind: pa.DataType) -> None:
    import os

    import xxhash

    os.utime(file, ns=(0, 1_500_000_000_123_456_789))
    [(name, value)] = more.items()
    right = f"{value}{xxhash.xxh3_64(b'12').hexdigest()}" if name == "digest" else value
    array = ranges(part(0, 3), part(1, 2, **{name: right}), more=[(name, kind)])
    assert [bytes(each) for each in resolve(array, str(file.parent))] == [b"012", b"12"]
    if value is None or name == "etag":
        return
    wrong = f"{value}00" if isinstance(value, str) else value + 1  # type: ignore[operator]  # a number
    array = ranges(part(0, 3), part(1, 2, **{name: wrong}), more=[(name, kind)])
    with pytest.raises(SourceError, match=r"reference says .*Restore the file") as error:
        resolve(array, str(file.parent))
    assert error.value.row == 1


def test_digests_of_other_names_are_refused_by_row(file: Path) -> None:
    array = ranges(part(0, 3), part(1, 2, digest="crc99:00"), more=[("digest", pa.utf8())])
    with pytest.raises(DataError, match=r"'crc99:00' names no known algorithm\. Give sha256:<hex>") as error:
        resolve(array, str(file.parent))
    assert error.value.row == 1


def test_fields_of_types_that_say_nothing_are_refused() -> None:
    for name, kind in (("size", pa.utf8()), ("mtime", pa.float64()), ("digest", pa.int64())):
        with pytest.raises(SourceError, match=f"the reference's {name} is"):
            stamps_of(ranges(more=[(name, kind)]))
    assert stamps_of(ranges()) is None
