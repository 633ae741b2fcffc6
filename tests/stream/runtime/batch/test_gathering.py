"""Fields that are gathered hold what they would hold if Arrow columns filled them."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.derived.kinds.gather import NarrowColumn, RowCopies
from spiral_stream.testing import same

ROWS = 230
NUMBERS = {
    "bool": pa.array([row % 3 == 0 for row in range(ROWS)]),
    "half": pa.array(np.arange(ROWS, dtype=np.float16)),
    "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 3, dtype=np.float32)), 3),
    "time": pa.array(range(ROWS), pa.timestamp("ns")),
    "null": pa.array([None if row == 7 else row for row in range(ROWS)]),
}
TEXTS = {
    "text": pa.array([f"äöü {row}"[: row % 9] for row in range(ROWS)]),
    "nulls": pa.array([None if row % 5 == 0 else str(row) for row in range(ROWS)], pa.large_utf8()),
}
TOKENS = pa.array([list(range(row % 11 + 1)) for row in range(ROWS)], pa.list_(pa.int32()))


@pytest.fixture
def rows(tmp_path: Path) -> sp.Relation:
    table = pa.table({"id": range(ROWS), **NUMBERS, **TEXTS, "tokens": TOKENS})
    lance.write_dataset(table, str(tmp_path / "rows.lance"), max_rows_per_file=60)
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("rows", sp.Lance(str(tmp_path / "rows.lance")), identity="id")
    return catalog.table("rows")


FIELDS = {
    **{name: sp.Stack(name) for name in NUMBERS},
    "wide": sp.Stack("bool", dtype="int64"),
    **{f"{name}s": sp.List(name) for name in TEXTS},
    "tokens": sp.Pad("tokens"),
    "mask": sp.PadMask("tokens", dtype="bool"),
}
WAYS = {
    "counted": {"batch_size": 16},
    "short": {"batch_size": 16, "last": sp.KeepPartial},
    "formed": {
        "batch_size": None,
        "formation": sp.WindowedBucket(50, [sp.BucketKey("len(tokens)")], sp.BatchBudget(max_tokens=96)),
    },
    "skipping": {"batch_size": 16, "on_error": "skip"},
}


@pytest.mark.crossed
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("merge", [1, 2])
def test_gathered_fields_are_those_that_columns_fill(
    rows: sp.Relation, monkeypatch: pytest.MonkeyPatch, way: str, merge: int
) -> None:
    fields = {name: field for name, field in FIELDS.items() if name != "null" or way == "skipping"}
    relation = rows.filter(sp.col("id") != 3).sample(order=sp.GlobalShuffle(seed=2)).collate(fields=fields, **WAYS[way])
    gathered: list[str] = []

    def read() -> tuple[list[Any], dict[str, Any]]:
        with relation.to_numpy(prefetch=1).bind(merge=merge) as stream:
            return list(stream), stream.metrics()

    made = RowCopies.__init__

    def of_columns(copies: RowCopies, columns: Any) -> None:
        gathered.extend(column.column.name for column in columns)
        made(copies, columns)

    monkeypatch.setattr(RowCopies, "__init__", of_columns)
    found, counted = read()
    assert {"bool", "half", "vector", "time", "text"} <= set(gathered)
    monkeypatch.setattr(NarrowColumn, "copies", False)
    filled, expected = read()

    assert len(found) == len(filled) > 5
    for batch, wanted in zip(found, filled, strict=True):
        assert list(batch) == list(wanted) == list(fields)
        assert same(batch, wanted)
        assert all(getattr(batch[name], "dtype", None) == getattr(wanted[name], "dtype", None) for name in fields)
    assert [counted[name] for name in ("samples", "peak_batch_bytes", "source_rows", "refused")] == [
        expected[name] for name in ("samples", "peak_batch_bytes", "source_rows", "refused")
    ]
