"""The seven relations of the example programs register from every storage, under any name."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spiral_stream import Arrow, Lance, Parquet
from spiral_stream.catalog.registry import connect
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.semantic import semantic_of
from spiral_stream.sources.references.resolve import resolve
from tests.fixtures import relations

MAKERS = {
    "vision.imagenet_train": lambda _: relations.imagenet_train(40),
    "vision.imagenet_labels": lambda _: relations.imagenet_labels(),
    "text.fineweb_documents": lambda _: relations.fineweb_documents(60),
    "text.wikipedia_documents": lambda _: relations.wikipedia_documents(60),
    "text.code_documents": lambda _: relations.code_documents(60),
    "video.training_segments": lambda folder: relations.training_segments(folder, 60),
    "video.segment_labels": lambda _: relations.segment_labels(60),
}
COLUMNS = {
    "vision.imagenet_train": 9,
    "vision.imagenet_labels": 2,
    "text.fineweb_documents": 8,
    "text.wikipedia_documents": 8,
    "text.code_documents": 10,
    "video.training_segments": 13,
    "video.segment_labels": 4,
}


@pytest.mark.crossed
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("storage", ["lance", "parquet", "arrow"])
def test_a_seed_relation_keeps_schema_rows_and_shards(name: str, storage: str, tmp_path: Path) -> None:
    table = MAKERS[name](tmp_path)
    if storage == "lance":
        lance.write_dataset(table, str(tmp_path / "t.lance"))
        source = Lance(str(tmp_path / "t.lance"))
    elif storage == "parquet":
        pq.write_table(table, tmp_path / "t.parquet")
        source = Parquet(str(tmp_path / "t.parquet"))
    else:
        source = Arrow(table, base=str(tmp_path))
    identity = relations.IDENTITY.get(name, "sample_id")
    semantic = relations.SEMANTIC.get(name, {})
    entry = connect(tmp_path / "catalog").register(f"renamed.{storage}", source, identity=identity, semantic=semantic)
    with OpenRelation(entry) as relation:
        rows = relation.fetch(np.arange(len(table), dtype=np.uint64), table.column_names)
        key = rows[identity].to_pylist()

        assert len(table.column_names) == COLUMNS[name]
        assert table.schema.equals(relations.SCHEMAS[name])
        assert pa.schema([entry.schema.field(c) for c in table.column_names]).equals(table.schema)
        assert {f.name for f in entry.schema if semantic_of(f)} == set(semantic)
        assert sorted(key) == sorted(table[identity].to_pylist())
        in_order = table.take(pa.array([table[identity].to_pylist().index(k) for k in key]))
        assert repr(rows.to_pylist()) == repr(in_order.to_pylist())
        if "storage_shard" in table.column_names:
            assert relation.manifest.shard_note == ""
            assert relation.manifest.shard_names.to_pylist() == sorted(set(table["storage_shard"].to_pylist()))
        for column in semantic:
            assert all(len(data) > 0 for data in resolve(rows[column], relation.base))
