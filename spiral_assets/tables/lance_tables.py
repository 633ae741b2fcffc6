"""Tables opened with LanceDB: at one version, and so that a method which would write refuses.

A table that was checked out refuses most changes, but LanceDB lets it be restored and optimized. So each method that is not
known to read is refused by its name, also one of a later release. It is no lock: whoever goes past it, by private names or by
the path of the files, may write.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Final

import dagster as dg

from spiral_assets import need

# Methods and properties of a table that write nothing (lancedb 0.40).
READS: Final = frozenset(
    {
        *("name", "uri", "id", "namespace", "schema", "version", "stats", "head", "count_rows", "search", "tokenize"),
        *("list_versions", "list_indices", "index_stats", "embedding_functions", "uses_v2_manifest_paths"),
        *("to_arrow", "to_pandas", "to_polars", "take_offsets", "take_row_ids", "checkout", "current_branch"),
        *("blob_columns", "fetch_blobs", "fetch_blob_files", "fetch_blob_ranges", "prewarm_index", "prewarm_data"),
        *("initial_storage_options", "latest_storage_options", "infer_tokenizer_configs", "wait_for_index"),
    }
)


def opened(
    uri: str, *, writable: bool, version: int | None = None, storage_options: Mapping[str, str] | None = None
) -> Any:
    """Open a Lance dataset as a table of LanceDB.

    Args:
        uri: of its folder.
        writable: whether it may be changed; otherwise it shows one version, and methods that write refuse.
        version: which one; None for the newest.
        storage_options: of the object store, as LanceDB takes them.
    """
    need("lancedb", "lancedb", "LanceDBResource")
    import lancedb

    parent, name = str(uri).rstrip("/").rpartition("/")[::2]
    database = lancedb.connect(parent or ".", storage_options=dict(storage_options or {}) or None)
    kind = _kind(writable=writable)
    table = kind(database, PurePosixPath(name).stem, location=str(uri).rstrip("/"))
    if not writable:
        table.checkout(table.version if version is None else version)
    return table


@cache
def _kind(*, writable: bool) -> Any:
    """The class of a table; made once LanceDB is there."""
    from lancedb.table import LanceTable

    if writable:
        return LanceTable

    class ReadOnlyTable(LanceTable):
        """A table that refuses to be changed."""

        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("_") and name not in READS:
                msg = (
                    f"LanceDBResource: {name} may change the table, which is opened to read. Give the resource writable=True "
                    "(in YAML, lancedb: write of the Catalog), or copy the rows into a table of yours"
                )
                raise dg.Failure(msg, allow_retries=False)
            return super().__getattribute__(name)

        def to_pandas(self, blob_mode: Any = "lazy", **options: Any) -> Any:
            """Return its rows as a frame of pandas; LanceDB's goes through a data set, which could be written."""
            del blob_mode
            return self.to_arrow().to_pandas(**options)

    return ReadOnlyTable
