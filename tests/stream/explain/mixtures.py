"""The text program, tiny, with parts to vary; and what an epoch of it really delivers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import spiral_stream as sp
from tests.fixtures import texts

SIZES = {"fineweb": 300, "wikipedia": 80, "code": 120}
SHARES = {"fineweb": 0.7, "wikipedia": 0.1, "code": 0.2}
STRATIFIED = sp.StratifiedByStream("stream_id")
QUALITY = sp.col("quality") >= 0.2
KEYS = [sp.BucketKey("len(tokens)")]


def make_catalog(folder: Path) -> sp.Catalog:
    return texts.make_catalog(folder, SIZES, longest=60, shortest=1)


def bucketed(window_size: int = 128, max_tokens: int = 1_000, keys: Any = KEYS, **budget: Any) -> sp.WindowedBucket:
    return sp.WindowedBucket(window_size, keys, sp.BatchBudget(max_tokens=max_tokens, **budget))


def program(
    catalog: sp.Catalog,
    *,
    formation: Any = None,
    composition: Any = STRATIFIED,
    shares: Any = SHARES,
    epoch_size: int | None = 1_000,
    stored: bool = False,
    late: Callable[[sp.Relation], sp.Relation] = lambda r: r,
    batch_size: int | None = None,
    lanes: int = 1,
    last: Any = sp.DropPartial,
    prefetch: int = 2,
    keep: Any = QUALITY,
    **options: Any,
) -> sp.PreparedStream:
    docs = texts.mixed(catalog, shares, epoch_size, **options).filter(keep)
    order = sp.ShardAwareShuffle(
        seed=9176, shard_key=["stream_id", "storage_shard"], shuffle_block_size=100, sampling_granularity="row_group"
    )
    return (
        late(texts.tokenized(docs, order, stored=stored, lanes=lanes))
        .collate(
            batch_size=batch_size,
            formation=bucketed() if formation is None else formation,
            composition=composition,
            last=last,
            fields=texts.fields() | {"stream_id": sp.List("stream_id")},
        )
        .to_numpy(prefetch=prefetch)
    )


def delivered(stream: sp.PreparedStream) -> dict[str, Any]:
    """The epoch, counted from its batches."""
    batches = [batch["mask"] for batch in stream]
    return {
        "batches": len(batches),
        "rows": [len(mask) for mask in batches],
        "widths": [mask.shape[1] for mask in batches],
        "places": sum(mask.size for mask in batches),
        "tokens": sum(int(np.count_nonzero(mask)) for mask in batches),
    }
