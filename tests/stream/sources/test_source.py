"""The interface's own values; what every source promises is in `test_laws`."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Arrow, ImageFolder
from spiral_stream.sources import Source, content_key
from spiral_stream.sources.source import FormerProfile, without_columns

PARTS = st.lists(st.binary(max_size=2) | st.text("a1", max_size=2) | st.integers(0, 11), max_size=3)


@given(one=PARTS, other=PARTS)
def test_contents_have_one_key_exactly_if_their_parts_are_equal_one_by_one(one: list, other: list) -> None:
    def plain(parts: list) -> list[bytes]:
        return [part if isinstance(part, bytes) else str(part).encode() for part in parts]

    assert (content_key(*one) == content_key(*other)) == (plain(one) == plain(other))
    assert len(bytes.fromhex(content_key(*one))) == 16


def test_keys_are_those_of_catalogs_that_were_written_before() -> None:
    assert content_key("part-0", 7, b"\0") == "2d566afd78e848484ba2689b4be0a69c"


@pytest.mark.parametrize("rows", [0, 3])
def test_rows_without_columns_are_still_counted(rows: int) -> None:
    assert (len(without_columns(rows)), without_columns(rows).num_columns) == (rows, 0)


def test_the_interface_is_called_only_as_the_profile_it_once_was() -> None:
    with pytest.warns(DeprecationWarning, match=r"Write Original\(\)"):
        assert Source() == FormerProfile()


def test_a_source_without_versions_is_its_own_pinned_form(tmp_path: Path) -> None:
    source = ImageFolder(str(tmp_path))

    assert source.pinned() is source


def test_a_reader_is_closed_where_its_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    reader = Arrow(pa.table({"a": [1]})).open()
    monkeypatch.setattr(type(reader), "close", lambda each: closed.append(each.base))
    with reader as inside:
        assert inside is reader
        assert closed == []
    with pytest.raises(ZeroDivisionError), reader:
        1 / 0  # noqa: B018
    assert closed == [reader.base] * 2
    assert (reader.files(), reader.refuse_outside()) == ({}, None)
    assert isinstance(Arrow(pa.table({"a": [1]})).open(), type(reader))
