"""Drawn damage to references: each is refused by name, or gives bytes of a file below the base, and of no other."""

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spiral_stream.errors import DataError, SourceError, SpiralError
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.ranged import locate
from spiral_stream.sources.references.resolve import resolve
from tests.fixtures.mutations import COUNTS, deadline, mutated_bytes, mutated_json, shown, survives

SECRET = os.urandom(64)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("references")
    base = root / "base"
    (base / "inner").mkdir(parents=True)
    for name in ("a.bin", "b c.bin", "inner/d.bin"):
        (base / name).write_bytes(f"<{name}>".encode() * 20)
    (root / "secret.bin").write_bytes(SECRET)
    (base / "link.bin").symlink_to(root / "secret.bin")
    os.mkfifo(base / "fifo.bin")
    return base


def sound(base: Path) -> dict[str, list[Any]]:
    uris = ["a.bin", "b c.bin", f"{base}/a.bin", f"file://{base}/b%20c.bin", "inner/../a.bin"]
    uris += ["../secret.bin", "link.bin", "fifo.bin", "/dev/zero", "s3://b/c", "tar://a.tar#b", "file://host/a"]
    return {
        "files": uris[:5],
        "ranges": [{"uri": uri, "offset": at, "length": 3 * at} for at, uri in enumerate(uris[:5])],
        "spare": uris[5:],  # what a mutation may put in the place of a sound one
    }


def as_column(values: list[Any], draw: random.Random) -> pa.Array | None:
    """The Arrow column that somebody might have stored for these values; None if there is no such column."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeError):
        texts = [str(each) if each is not None else None for each in values]
        return pa.array(texts, draw.choice((pa.utf8(), pa.large_utf8())))


def torn(column: pa.Array, seed: int) -> pa.Array:
    """Texts whose bytes were damaged; they may be no UTF-8."""
    data = mutated_bytes(column.buffers()[2].to_pybytes(), seed)
    data = data[: len(column.buffers()[2])].ljust(len(column.buffers()[2]), b"\xff")
    return pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1], pa.py_buffer(data)])


def read(column: pa.Array, base: Path) -> list[bytes]:
    """By both ways of reading, which have to agree; rows that one refuses are refused by the other."""
    reach = Reach(str(base), confined=True)
    out, failed = [], None
    for row in range(len(column)):
        one = column.slice(row, 1)
        found = refused = None
        try:
            found = bytes(resolve(one, reach, most_bytes=1 << 20)[0])
        except SpiralError as error:
            refused = error
        again = other = None
        try:
            place = locate(one, reach)[0]
            again = bytes(place.read(0, place.size))
        except SpiralError as error:
            other = error
        assert again == found
        assert type(other) is type(refused), (other, refused)
        failed = failed or refused
        out.append(found)
    if failed is not None:
        assert all(each is None or SECRET not in each for each in out)
        raise failed
    return [each for each in out if each is not None]


@pytest.mark.parametrize("count", COUNTS)
def test_a_damaged_reference_is_refused_or_names_bytes_below_the_base(base: Path, count: int) -> None:
    values = sound(base)
    want = {kind: read(pa.array(values[kind]), base) for kind in ("files", "ranges")}
    inside = [path.read_bytes() for path in (base / "a.bin", base / "b c.bin", base / "inner" / "d.bin")]
    refused = 0
    for seed in range(count):
        kind = ("files", "ranges", "torn")[seed % 3]
        if kind == "torn":
            column = torn(pa.array(values["files"]), seed)
        else:
            found = mutated_json(values, seed).get(kind)
            column = as_column(found if isinstance(found, list) else [found], random.Random(seed))
        assert column is not None

        def parse(column: pa.Array = column) -> bool:
            got = read(column, base)
            assert all(any(each in whole for whole in inside) for each in got)
            return True

        says = f"seed {seed}: {shown(column.type)}"
        refused += survives(parse, True, says=says)
    assert refused > count // 5
    for kind in ("files", "ranges"):  # nothing was left behind
        with deadline():
            assert read(pa.array(values[kind]), base) == want[kind]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.struct([("uri", pa.int64()), ("offset", pa.int64()), ("length", pa.int64())]), (1, 0, 1)),
        (pa.struct([("uri", pa.utf8()), ("offset", pa.utf8()), ("length", pa.int64())]), ("a.bin", "0", 1)),
        (pa.struct([("uri", pa.utf8()), ("offset", pa.float64()), ("length", pa.int64())]), ("a.bin", 0.5, 1)),
    ],
    ids=str,
)
def test_parts_of_another_type_are_refused(base: Path, kind: pa.DataType, value: tuple[Any, ...]) -> None:
    column = pa.array([dict(zip(("uri", "offset", "length"), value, strict=True))], kind)
    for way in (resolve, locate):
        with pytest.raises(SourceError, match=r"a uri is text|whole number of bytes"):
            way(column, str(base))


@pytest.mark.parametrize(("offset", "length"), [(2**63, 1), (2**63 - 1, 2**63 - 1), (0, 2**64 - 1), (2**64 - 1, 0)])
def test_ranges_beyond_any_file_are_wrong_references(base: Path, offset: int, length: int) -> None:
    kind = pa.struct([("uri", pa.utf8()), ("offset", pa.uint64()), ("length", pa.uint64())])
    column = pa.array([{"uri": "a.bin", "offset": offset, "length": length}], kind)
    for way in (resolve, locate):
        with pytest.raises(DataError, match="no more than a file can have"):
            way(column, str(base))
