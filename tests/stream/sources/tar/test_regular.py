"""A tar in which nothing is unusual is read by column, any other member by member: the rows are the same."""

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import SourceError
from spiral_stream.sources import Refused, WebDataset
from tests.fixtures.examples import few

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
KEYS = st.sampled_from(
    ["0001", "0002", "a/0001", "a/b/x y", "é", "__meta__/a", "__x__", "a/.h", "n" * 90, "d/" + "long" * 40, "new\nline"]
)
FIELDS = st.sampled_from(["jpg", "JPG", "seg.png", "cls", "txt", "json", "id", "npy", "bin", "", "a.b.cls", "TXT"])
NUMBERS = st.sampled_from(
    [b"7", b" 7\n", b"-12", b"+3", b"1_0", b"99999999999999999999", b"x", b"", b"007", b"\xc2\xa07"]
)
TEXTS = st.one_of(st.text(max_size=20).map(str.encode), st.binary(max_size=6))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "a.b"]), inner, max_size=3)
    ),
    max_leaves=6,
)
JSON = st.one_of(VALUES.map(lambda value: json.dumps(value).encode()), st.just(b"{"), st.binary(max_size=4))
LIKELY = {"cls": b"3", "txt": "tëxt".encode(), "json": b'{"w": 5, "s": "x", "n": null}', "id": b"0012"}


@st.composite
def plain(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """Members as most tars have them, with some that few have."""
    fields = draw(st.lists(FIELDS, min_size=1, max_size=4, unique=True))
    keys = [f"{draw(KEYS)}-{row}" for row in range(6)]
    files = [
        (f"{key}.{field}", LIKELY.get(field, b"\xff\xd8" * row)) for row, key in enumerate(keys) for field in fields
    ]
    if draw(st.booleans()):  # a row lacks a member
        files.pop(draw(st.integers(0, len(files) - 1)))
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["cls", "txt", "json", "jpg"]))
        data = draw({"cls": NUMBERS, "txt": TEXTS, "json": JSON, "jpg": st.binary(max_size=2000)}[kind])
        files.insert(draw(st.integers(0, len(files))), (f"{draw(KEYS)}.{kind}", data))
    return files


def write(path: Path, files: list[tuple[str, bytes]], form: int, *, link: bool, at_start: bool = False) -> None:
    """Write a tar; a link that belongs to no row lies at its end, or at its start."""
    with tarfile.open(path, "w", format=form) as tar:
        folder = tarfile.TarInfo("a/")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        no_row = tarfile.TarInfo("no_row")
        no_row.type, no_row.linkname = tarfile.SYMTYPE, "elsewhere"
        if link and at_start:
            tar.addfile(no_row)
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5  # a fraction makes pax records
            tar.addfile(info, io.BytesIO(data))
        if link and not at_start:
            tar.addfile(no_row)


def read(source: WebDataset, schema: pa.Schema | None = None) -> Any:
    """The rows of a tar and what was refused of it; or why it cannot be read."""
    [unit] = source.import_units()
    try:
        schema = source.import_schema([unit]) if schema is None else schema
        refused = Refused(unit, source.on_error)
        rows = pa.Table.from_batches(list(source.import_rows(unit, schema, refused)), schema)
    except SourceError as error:
        return str(error)
    return schema, rows.to_pylist(), refused.count, refused.examples


@pytest.mark.parametrize("form", FORMATS)
@few(30, 60)
@given(
    files=plain(),
    last=st.booleans(),
    skip=st.booleans(),
    columns=st.sampled_from([None, None, ["jpg", "json.w"], {"image": "jpg;npy", "label": "cls"}]),
)
def test_a_link_that_belongs_to_no_row_changes_no_row(
    tmp_path_factory: pytest.TempPathFactory,
    form: int,
    files: list[tuple[str, bytes]],
    last: bool,
    skip: bool,
    columns: Any,
) -> None:
    folder = tmp_path_factory.mktemp("t")
    if form == tarfile.USTAR_FORMAT:
        files = [(name, data) for name, data in files if len(name) < 100 and name.isascii()] or [("a.txt", b"x")]
    found = []
    for link in (False, True):
        write(folder / "a.tar", files, form, link=link)
        options = {"key": "last" if last else "first", "on_error": "skip" if skip else "raise", "columns": columns}
        found.append(read(WebDataset(folder / "a.tar", **options)))
    assert found[0] == found[1]


LATE = {
    "json": [b'{"w": 5, "new": "x"}', b'{"new": null, "w": 2.5}', b'{"w": {"a": 1}}', b"{}", b"[1]"],
    "cls": [b"1"],
    "jpg": [b"x", b""],
    "TXT": [b"x"],
    "id": [b"7", b"0012", b"x"],
}


@few(100, 300)
@given(
    late=st.lists(
        st.tuples(st.integers(95, 104), st.sampled_from(sorted(LATE)), st.integers(0, 4)),
        max_size=6,
        unique_by=lambda each: each[:2],
    ),
    first=st.sampled_from(sorted(LATE)),
    count=st.integers(98, 105),
    last=st.booleans(),
)
def test_columns_are_those_of_the_first_hundred_rows_of_a_later_tar(
    tmp_path_factory: pytest.TempPathFactory, late: list[tuple[int, str, int]], first: str, count: int, last: bool
) -> None:
    folder = tmp_path_factory.mktemp("t")
    added = {(row, field): LATE[field][which % len(LATE[field])] for row, field, which in late}
    usual = {(row, field): b'{"w": %d}' % row for row in range(count) for field in ("json", "bin", "txt")}
    rows = sorted({**usual, **{at: data for at, data in added.items() if at[0] < count}}.items())
    found = []
    for link in (False, True):
        write(folder / "0.tar", [(f"a.{first}", LATE[first][0])], tarfile.GNU_FORMAT, link=link, at_start=True)
        files = [(f"{row:03}.{field}", data) for (row, field), data in rows]
        write(folder / "1.tar", files, tarfile.GNU_FORMAT, link=link, at_start=True)
        source = WebDataset(folder, key="last" if last else "first")
        try:
            found.append(str(source.import_schema(source.import_units())))
        except SourceError as error:
            found.append(re.sub("byte [0-9,]+", "byte", str(error)))
    assert found[0] == found[1]


def test_a_tar_that_is_cut_or_damaged_later_is_refused_wherever_that_is(tmp_path: Path) -> None:
    path, files = tmp_path / "a.tar", [(f"{k}.cls", b"%d" % k) for k in range(9)]
    write(path, files, tarfile.USTAR_FORMAT, link=False)
    source, data = WebDataset(path), path.read_bytes()
    schema = source.import_schema(source.import_units())
    assert len(read(source, schema)[1]) == 9
    end = 19 * 512  # the folder's header, and the headers and contents of nine members
    for left in (end, end - 1, end - 512, end - 700, 512, 300, 0):
        path.write_bytes(data[:left])
        assert re.search("was cut short|is empty|is no tar", read(source, schema)), left
    for at in range(0, end, 512):
        if at % 1024 == 512 or at == 0:  # a header
            path.write_bytes(data[: at + 3] + bytes([data[at + 3] ^ 1]) + data[at + 4 :])
            assert "the sum of the 512 bytes is wrong" in read(source, schema), at
    path.write_bytes(data[: end + 1024] + b"more" + data[end + 1024 :])
    assert "goes on after the mark of its end" in read(source, schema)


def test_rows_that_came_after_the_columns_were_found_are_refused_alike(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    rows = [(f"{k}.{field}", data) for k in range(4) for field, data in LIKELY.items()]
    write(path, rows, tarfile.GNU_FORMAT, link=False)
    source = WebDataset(path, on_error="skip")
    schema = source.import_schema(source.import_units())
    for name, data in (
        ("4.cls", b"x"),
        ("4.id", b"x"),
        ("4.txt", b"\xff"),
        ("4.json", b'{"w": "x"}'),
        ("4.json", b'{"new": 1}'),
        ("4.json", b'{"new": null}'),
        ("4.json", b"[1]"),
        ("4.json", b"{"),
        ("4.flac", b"x"),
        ("2.cls", b"4"),
        ("3.cls", b"4"),
    ):
        found = []
        for link in (False, True):
            write(path, [*rows, (name, data)], tarfile.GNU_FORMAT, link=link)
            found.append(read(source, schema))
        assert found[0] == found[1], name
        assert found[0][2] == (name != "4.id" and b"null" not in data), name
