"""Blob columns of Lance: payload that lies apart from the other columns, in the older form (v1) or the newer (v2)."""

from typing import Final

import pyarrow as pa

_BLOB_MARKS: Final = (b"lance-encoding:blob",)


def is_blob(field: pa.Field) -> bool:
    """Whether a column of a Lance dataset is a blob, of either form."""
    metadata = field.metadata or {}
    return any(mark in metadata for mark in _BLOB_MARKS) or "lance.blob" in str(field.type)


def as_read(field: pa.Field) -> pa.Field:
    """The field as `scan` and `fetch` give it: blobs are plain ``large_binary``."""
    if not is_blob(field):
        return field
    kept = {k: v for k, v in (field.metadata or {}).items() if not k.startswith((b"lance-encoding:", b"ARROW:"))}
    return pa.field(field.name, pa.large_binary(), field.nullable, kept or None)
