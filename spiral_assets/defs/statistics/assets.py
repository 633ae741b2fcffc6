"""Facts per storage shard, and how far labels differ from shard to shard."""

import dagster as dg

from spiral_assets import plans, reports
from spiral_assets.defs.relations.assets import imagenet_train
from spiral_assets.resources import CatalogResource

SKEWED = 0.5  # total variation of a shard's labels to the whole, from which a block must hold many shards


@dg.asset(
    key=["stats", "vision", "imagenet_train", "shard_stats"],
    group_name="stats",
    kinds={"arrow"},
    owners=["team:data"],
    tags={"domain": "images"},
    deps=[imagenet_train],
    check_specs=[dg.AssetCheckSpec("labels_are_mixed", asset=["stats", "vision", "imagenet_train", "shard_stats"])],
)
def shard_stats(catalog: CatalogResource) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster reads the bare name
    """Rows, nulls, ranges and histograms of every column, shard by shard. Reads no image."""
    opened = catalog.open()
    found = opened.measure(plans.RELATION)
    skew = opened.skew(plans.RELATION, "label_id")
    distances = [] if skew is None else [float(d) for d in skew.distance]
    worst = max(distances, default=0.0)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(opened.entry(plans.RELATION).data_version),
        metadata={
            "columns": reports.table(reports.column_rows(found.shards)),
            "label_skew": reports.table([] if skew is None else reports.skew_rows(skew)),
            "label_skew_by_shard": dg.MetadataValue.md(reports.bars(distances[:60])),
            "worst_label_skew": round(worst, 4),
            "storage_shards": len(distances),
        },
        check_results=[
            dg.AssetCheckResult(
                check_name="labels_are_mixed",
                passed=worst < SKEWED,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"worst_distance": round(worst, 4), "limit": SKEWED},
            )
        ],
    )
