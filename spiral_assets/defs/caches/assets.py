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
    op_tags={"spiral/cache": "imagenet_decoded"},
)
def imagenet_decoded(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """Decoded images at a bounded side, for the rows that training and validation need."""
    opened = catalog.open()
    version = opened.entry(plans.RELATION).data_version
    metadata: dict[str, dg.MetadataValue | float | int | str] = {"profile": str(plans.profile())}
    begun = time.monotonic()
    for name, plan in (("training", plans.training(opened)), ("validation", plans.validation(opened))):
        with plan.to_numpy() as stream:
            done = stream.materialize(_Logged(context, name))
            metadata[f"{name}_rows_built"] = done.rows
            metadata[f"{name}_rows_refused"] = done.refused
            metadata[f"{name}_bytes_written"] = done.payload_bytes
    metadata["seconds"] = round(time.monotonic() - begun, 2)
    return dg.MaterializeResult(data_version=dg.DataVersion(f"{plans.cache_version()}:{version}"), metadata=metadata)


class _Logged:
    """Progress as log lines, one every few seconds: Dagster has no progress bar."""

    def __init__(self, context: dg.AssetExecutionContext, name: str) -> None:
        self._context, self._name = context, name
        self._begun = self._last = time.monotonic()

    def __call__(self, done: "spiral.Progress") -> None:
        now = time.monotonic()
        if now - self._last < EVERY_S and done.rows < done.rows_total:
            return
        self._last = now
        rate = done.rows / max(now - self._begun, 1e-9)
        left = (done.rows_total - done.rows) / max(rate, 1e-9)
        line = f"{self._name}: {done.rows:,}/{done.rows_total:,} rows, {done.shards}/{done.shards_total} shards"
        self._context.log.info("%s, %.0f rows/s, ETA %.0f s", line, rate, left)
