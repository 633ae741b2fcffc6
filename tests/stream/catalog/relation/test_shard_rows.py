"""Rows of a source by storage shard: in physical order, with logical ordinals, only those of the shards asked for."""

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Arrow, Parquet
from spiral_stream.catalog.relation.manifest import build_manifest
from spiral_stream.catalog.relation.shard_rows import SourceRows
from spiral_stream.sources import ROW, MemoryReader, Unit


@given(
    values=st.lists(st.sampled_from("aabbc"), min_size=1, max_size=30).map("".join),
    by_column=st.booleans(),
    data=st.data(),
)
def test_rows_come_with_their_ordinals_and_without_those_of_other_shards(
    values: str, by_column: bool, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(values)))
    units = [Unit(f"u{k}", n, None, f"{k:032x}", (n,) if n else ()) for k, n in enumerate([cut, len(values) - cut])]
    table = pa.table({"shard": list(values), "x": range(len(values))})
    reader = MemoryReader(table, units, "")
    manifest = build_manifest(reader, "shard" if by_column else None)
    count = len(manifest.shard_names)
    shards = data.draw(st.none() | st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    batches = list(SourceRows(Arrow(table), manifest, reader).scan(["x"], None, shards))
    found = {row[ROW]: row["x"] for batch in batches for row in batch.to_pylist()}
    wanted = range(count) if shards is None else shards
    expected = [at for k in wanted for at in range(int(manifest.starts[k]), int(manifest.starts[k + 1]))]

    assert sorted(found) == sorted(expected)
    assert all(int(manifest.physical([at])[0]) == x for at, x in found.items())


def test_a_copy_in_another_process_opens_the_source_itself(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "t.parquet")
    source = Parquet(str(tmp_path / "t.parquet"))
    with source.open() as reader:
        rows = SourceRows(source, build_manifest(reader), reader)
    copy = pickle.loads(pickle.dumps(rows))

    assert copy.manifest.content_keys.to_pylist() == rows.manifest.content_keys.to_pylist()
    assert [batch["x"].to_pylist() for batch in copy.scan(["x"])] == [[1, 2, 3]]
