"""Small text streams of token columns for the tests of adapters: two relations, mixed, in buckets or by count."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import spiral_stream as sp

VOCABULARY = 100


def tokens(name: str, rows: int, shards: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    lists = [rng.integers(1, VOCABULARY, int(length)).tolist() for length in rng.integers(3, 40, rows)]
    return pa.table(
        {
            "sample_id": [f"{name}-{row}" for row in range(rows)],
            "tokens": pa.array(lists, pa.list_(pa.uint16())),
            "storage_shard": [f"s{row * shards // rows:03d}" for row in range(rows)],
        }
    )


def make_catalog(folder: Path) -> sp.Catalog:
    catalog = sp.connect(str(folder / "catalog"))
    for name, rows, shards in (("web", 300, 5), ("wiki", 70, 2)):
        catalog.register(name, sp.Arrow(tokens(name, rows, shards, rows)), identity="sample_id", shard="storage_shard")
    return catalog


BUCKETS = {
    "batch_size": None,
    "formation": sp.WindowedBucket(
        window_size=80, keys=[sp.BucketKey("len(tokens)")], budget=sp.BatchBudget(max_tokens=512)
    ),
    "composition": sp.StratifiedByStream("stream_id"),
}
PACKED = {"batch_size": 2, "formation": sp.batching.Packed(max_tokens=64, window_size=64)}
COUNTED = {"batch_size": 16}


def plan(catalog: sp.Catalog, formed: dict[str, Any], *, labels: Any = None, last: Any = sp.DropPartial) -> sp.Relation:
    streams = [sp.Stream("web", catalog.table("web"), proportion=0.7)]
    streams.append(sp.Stream("wiki", catalog.table("wiki"), proportion=0.3))
    order = sp.ShardAwareShuffle(seed=9, shard_key=["stream_id", "storage_shard"], shuffle_block_size=100)
    fields = {
        "input_ids": sp.Pad("tokens", pad_to_multiple_of=8),
        "attention_mask": sp.PadMask("tokens", pad_to_multiple_of=8),
        "labels": labels or sp.fields.Labels("tokens"),
        "sample_id": sp.List("sample_id"),
    }
    sampled = sp.mix(streams, epoch_size=240).sample(identity="sample_id", order=order)
    return sampled.collate(**formed, last=last, fields=fields)
