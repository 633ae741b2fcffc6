"""The columns of a part of a cache, and the file that its payload lies in."""

from collections.abc import Iterable
from functools import cache
from typing import Final

import pyarrow as pa

from spiral_stream.cache.store.reader import PAYLOAD, REFUSED, ROW

ONE_FILE: Final = 1 << 42  # bytes; above any shard, so that a fragment has exactly one .blob file


@cache
def _payload() -> pa.Field:
    """The column of payload: a blob that always lies in the fragment's own file."""
    import lance

    return lance.blob_field(
        PAYLOAD,
        nullable=True,
        inline_size_threshold=0,
        dedicated_size_threshold=ONE_FILE,
        pack_file_size_threshold=ONE_FILE,
    )


def schema_of(narrow: Iterable[str]) -> pa.Schema:
    """Return the columns of a part: the row's place in its shard, the kind's own columns, and the payload."""
    return pa.schema(
        [
            pa.field(ROW, pa.uint32(), nullable=False),
            *(pa.field(name, pa.int32(), nullable=False) for name in narrow),
            pa.field(REFUSED, pa.string()),
            _payload(),
        ]
    )
