"""Tables of Arrow on disk, each with a digest of its values."""

import os
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa
import xxhash

MARKS: Final = b"spiral:marks"  # metadata that the digest covers too
_DIGEST: Final = b"spiral:digest"


def read_table(path: Path) -> pa.Table:
    """Return a table as it was written; one from before there were digests as it is.

    Raises:
        ValueError: its values are not those that were written.
        OSError: it cannot be read.
        ArrowException: it is not a table.
    """
    table = pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all()
    table.validate(full=True)
    sealed = (table.schema.metadata or {}).get(_DIGEST)
    if sealed is not None and sealed != _digest(table):
        msg = "its values are not those that were written"
        raise ValueError(msg)
    return table


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table under its digest; whoever reads meanwhile sees the whole of it, or none.

    Raises:
        OSError: it cannot be written.
    """
    table = table.combine_chunks()
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _DIGEST: _digest(table)})
    draft = path.with_name(f".{os.getpid()}-{path.name}")
    with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    draft.replace(path)


def _digest(table: pa.Table) -> bytes:
    """The digest of marks and values, however they are chunked: that of an Arrow stream, which is never in memory."""
    marks = (table.schema.metadata or {}).get(MARKS, b"")
    plain = table.replace_schema_metadata(None)
    whole = plain if all(column.num_chunks <= 1 for column in plain.columns) else plain.combine_chunks()
    size = pa.MockOutputStream()
    _stream(size, whole)
    state = xxhash.xxh3_128()
    for part in (len(marks), marks, size.size()):
        state.update(part.to_bytes(8, "little") if isinstance(part, int) else part)
    with pa.PythonFile(_Hashing(state), mode="w") as sink:
        _stream(sink, whole)
    return state.hexdigest().encode()


def _stream(sink: Any, table: pa.Table) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


@final
class _Hashing:
    """A file that hashes what is written."""

    closed = False

    def __init__(self, state: Any) -> None:
        self._state = state

    def write(self, data: Any) -> int:
        self._state.update(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
