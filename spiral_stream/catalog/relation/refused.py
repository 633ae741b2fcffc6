"""The rows that an import refused: one file per unit, under the unit's content key, written while the unit is read.

A file holds the first `REFUSED_ROWS` of a unit, and `REFUSED_BYTES` of what they hold. It goes when its unit goes.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from spiral_stream.errors import SpiralError
from spiral_stream.integrity.seal import seal, table
from spiral_stream.sources.import_source import FILE, RefusedRow
from spiral_stream.sources.internal.imported import ImportedRows, Snapshot

REFUSED: Final = "refused"  # the folder of an import's refused rows, and the file of a unit in its draft
_SUFFIX: Final = ".sealed.arrow"
SCHEMA: Final = pa.schema(
    [
        (FILE, pa.utf8()),
        ("place", pa.utf8()),  # in the file, such as ``line 17``
        ("reason", pa.utf8()),
        ("data", pa.binary()),  # what was found there, cut
        ("size_bytes", pa.int64()),  # of all that was found there; null if that is not known
    ]
)


def write_refused(path: Path, rows: Sequence[RefusedRow]) -> None:
    """Write the refused rows of one unit to a draft."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [(row.file, row.place, row.reason, row.data, row.size_bytes) for row in rows]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*values, strict=True), SCHEMA, strict=True)]
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer,
    ):
        writer.write_table(pa.table(columns, schema=SCHEMA))
    seal(path, ".arrow")


def refused_rows(imported: ImportedRows) -> tuple[pa.Table, int]:
    """Return the refused rows that are kept of an import, in the order of its units, and how many were refused.

    Raises:
        SourceError: the import's snapshot is missing or damaged.
        DamageError: a file of refused rows is damaged.
    """
    units = Snapshot.load(imported.uri, imported.snapshot).table
    some = units.filter(np.greater(units.column("refused").to_numpy(), 0))
    paths = [refused_path(Path(imported.uri), key) for key in some.column("key").to_pylist()]
    found = [table(path).cast(SCHEMA) for path in paths if path.exists()]
    return pa.concat_tables([SCHEMA.empty_table(), *found]), int(some.column("refused").to_numpy().sum())


def refused_path(folder: Path, key: str) -> Path:
    """Return the file of the refused rows of one unit."""
    return folder / REFUSED / f"{key}{_SUFFIX}"


def sweep_refused(folder: Path, keys: Collection[str]) -> None:
    """Remove the refused rows of units that are not kept."""
    with suppress(SpiralError, OSError):
        for path in (folder / REFUSED).glob(f"[!.]*{_SUFFIX}"):
            if path.name.removesuffix(_SUFFIX) not in keys:
                path.unlink(missing_ok=True)
