"""Relations that follow from another one: a split by hash, and the names of its labels."""

import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import spiral_stream as spiral

HELD_OUT: Final = 10  # every tenth identity, by hash


def by_hash(catalog: "spiral.Catalog", relation: str) -> "spiral.Arrow":
    """Return ``sample_id`` and ``split`` of each row: ``val`` for every tenth identity by hash, ``train`` for the others."""
    import pyarrow as pa

    import spiral_stream as spiral

    names = catalog.table(relation).project("sample_id").to_arrow()["sample_id"].to_pylist()
    split = ["val" if zlib.crc32(name.encode()) % HELD_OUT == 0 else "train" for name in names]
    return spiral.Arrow(pa.table({"sample_id": names, "split": split}))


def labels(catalog: "spiral.Catalog", relation: str) -> "spiral.Arrow":
    """Return ``label_id`` and ``class_name`` of each class of a relation."""
    import spiral_stream as spiral

    rows = catalog.table(relation).project("label_id", "class_name").distinct("label_id")
    return spiral.Arrow(rows.to_arrow())
