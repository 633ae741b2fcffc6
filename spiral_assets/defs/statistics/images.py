"""Statistics per storage shard, and how much labels differ between shards."""

import dagster as dg

from spiral_assets import reports
from spiral_assets.defs.relations.images import imagenet_train
from spiral_assets.plans import images as plans
from spiral_assets.resources import CatalogResource


@dg.asset(
    key=["stats", "vision", "imagenet_train", "shard_stats"],
    group_name="stats",
    kinds={"arrow"},
    owners=["team:data"],
    tags={"domain": "images"},
    deps=[imagenet_train],
)
def shard_stats(catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """Rows, nulls, ranges and histograms of every column, per storage shard. Reads no image."""
    opened = catalog.open()
    entry = opened.entry(plans.RELATION)
    found = opened.measure(plans.RELATION)
    skew = opened.skew(plans.RELATION, plans.LABEL)
    assert skew is not None, "labels are integers with few values, so they have a histogram"
    distance = dict(zip(skew.shard_names, skew.distance.tolist(), strict=True))
    effective = dict(zip(skew.shard_names, skew.effective.tolist(), strict=True))
    counts: dict[str, int] = {}
    for row in found.histograms.to_pylist():
        if row["column"] == plans.LABEL:
            counts[row["value"]] = counts.get(row["value"], 0) + row["count"]
    return dg.MaterializeResult(
        data_version=dg.DataVersion(entry.data_version),
        metadata={
            "dagster/row_count": entry.manifest().total,
            "columns": reports.table(reports.column_rows(found.shards, entry.schema)),
            "shards": reports.table(reports.shard_rows(found.shards, distance, effective)),
            "rows_by_label": reports.bars([counts[name] for name in sorted(counts, key=int)]),
            "label_distance_by_shard": reports.bars(skew.distance.tolist()),
            "storage_shards": len(distance),
            "label_distance_worst": round(max(distance.values()), 4),
            "label_distance_mean": round(skew.mean, 4),
            "labels_effective": round(skew.effective_global, 2),
        },
    )
