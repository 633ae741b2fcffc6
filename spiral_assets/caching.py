"""Build a cache from an asset, log its progress, and check that it is complete.

`cache_rebuilds` says when a cache is rebuilt.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets import cache_rebuilds

if TYPE_CHECKING:
    import spiral_stream as spiral

EVERY_S: Final = 2.0  # between two lines of progress


def build(
    context: dg.AssetExecutionContext,
    stream: "spiral.PreparedStream",
    metadata: Callable[["spiral.CacheStatus"], Mapping[str, Any]],
) -> dg.MaterializeResult[None]:
    """Build what is missing of a cache, shard by shard; continue after the last whole shard of an interrupted build.

    Args:
        context: the asset's, for progress.
        stream: reads every row that the cache should hold, of one relation, and has one cache.
        metadata: returns more metadata of the built cache.
    """
    begun = time.monotonic()
    done = stream.materialize(LoggedProgress(context))
    seconds = time.monotonic() - begun
    (cache,) = stream.caches()
    (relation_version,) = stream.data_versions.values()
    return dg.MaterializeResult(
        data_version=cache_rebuilds.data_version(cache, relation_version),
        metadata={
            "dagster/row_count": stream.rows,
            "dagster/uri": str(cache.folder),
            "dagster/storage_kind": "lance",
            **metadata(cache),
            "fingerprint": cache.fingerprint,
            "bytes": cache.payload_bytes,
            "rows_built": done.rows,
            "rows_refused": done.refused,
            "shards_built": done.shards,
            "rows_per_second": round(done.rows / seconds, 1),
            "seconds": round(seconds, 2),
        },
    )


def complete(stream: "spiral.PreparedStream") -> dg.AssetCheckResult:
    """Check that the stream's cache holds every row of its relation as it is registered now."""
    (cache,) = stream.caches()
    return dg.AssetCheckResult(
        passed=cache.complete,
        description=f"{cache.built:,} of {cache.rows:,} rows are cached",
        metadata={"cached": cache.built, "rows": cache.rows},
    )


class LoggedProgress:
    """Write progress to the run's log, one line every few seconds: Dagster has no progress bar."""

    def __init__(self, context: dg.AssetExecutionContext) -> None:
        self._context = context
        self._begun = self._last = time.monotonic()

    def __call__(self, done: "spiral.Progress") -> None:
        now = time.monotonic()
        if now - self._last < EVERY_S and done.rows < done.rows_total:
            return
        self._last = now
        rate = done.rows / max(now - self._begun, 1e-9)
        left = (done.rows_total - done.rows) / max(rate, 1e-9)
        line = f"{done.rows:,}/{done.rows_total:,} rows, {done.shards}/{done.shards_total} shards"
        self._context.log.info(f"{line}, {rate:,.0f} rows/s, ETA {left:,.0f} s")  # noqa: G004  Dagster's own logger
