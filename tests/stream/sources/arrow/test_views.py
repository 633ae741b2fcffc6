"""Arrow's view types are read as the plain types of the same values, however deep they lie."""

import pyarrow as pa
import pytest

from spiral_stream.sources.arrow.table import plain


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.string_view(), pa.string()),
        (pa.binary_view(), pa.binary()),
        (pa.list_view(pa.int8()), pa.list_(pa.int8())),
        (pa.large_list_view(pa.string_view()), pa.large_list(pa.string())),
        (pa.list_(pa.string_view()), pa.list_(pa.string())),
        (pa.struct([("a", pa.list_view(pa.string_view()))]), pa.struct([("a", pa.list_(pa.string()))])),
        (pa.list_(pa.int8()), pa.list_(pa.int8())),
        (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int8(), pa.string())),
    ],
    ids=str,
)
def test_views_become_plain(kind: pa.DataType, expected: pa.DataType) -> None:
    before = pa.schema([pa.field("c", kind, nullable=False, metadata={b"k": b"v"})], {b"of": b"schema"})

    found = plain(before)

    assert found.field("c").type == expected
    assert found.field("c").metadata == {b"k": b"v"}
    assert not found.field("c").nullable
    assert found.metadata == {b"of": b"schema"}
