"""The decoded cache: built shard by shard, gone on with after an interruption, rebuilt where the data changed."""

import time
from typing import TYPE_CHECKING, Final

import dagster as dg

from spiral_assets import plans
from spiral_assets.defs.relations.assets import imagenet_labels, imagenet_train
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import spiral_stream as spiral

EVERY_S: Final = 2.0  # between lines of progress


@dg.asset(
    key=["caches", "imagenet_decoded"],
    group_name="caches",
    kinds={"lance"},
    owners=["team:data"],
    tags={"domain": "images"},
    code_version=plans.cache_version(),
    deps=[imagenet_train, imagenet_labels],
    pool="decode",
)
def imagenet_decoded(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """Decoded images at a bounded side, for every row that may be trained or validated on."""
    opened = catalog.open()
    begun = time.monotonic()
    with plans.payload(opened).to_numpy() as stream:
        done = stream.materialize(_Logged(context))
        seconds = time.monotonic() - begun
        version = stream.stages.data_versions[plans.RELATION]
        store = stream.stages.images[0].store
        return dg.MaterializeResult(
            data_version=dg.DataVersion(f"{plans.cache_version()}:{version}"),
            metadata={
                "dagster/row_count": len(stream),
                "dagster/uri": str(store.folder),
                "dagster/storage_kind": "lance",
                "profile": str(plans.profile()),
                "fingerprint": plans.cache_version(),
                "bytes": store.stored_bytes(),
                "rows_built": done.rows,
                "rows_refused": done.refused,
                "shards_built": done.shards,
                "rows_per_second": round(done.rows / seconds, 1),
                "seconds": round(seconds, 2),
            },
        )


class _Logged:
    """Progress as log lines, one every few seconds: Dagster has no progress bar."""

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
