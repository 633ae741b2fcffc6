"""The video index: where the frames of every file are. Built once per file, shard by shard, and shown as a relation."""

import hashlib
import time
from typing import TYPE_CHECKING, Any

import dagster as dg

from spiral_assets import reports
from spiral_assets.caching import LoggedProgress
from spiral_assets.defs.relations.video import training_segments
from spiral_assets.files import by_file
from spiral_assets.partitions import VIDEO_SHARDS, requested
from spiral_assets.plans import video as plans
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import pyarrow as pa


@dg.asset(
    key=["caches", "video_index"],
    group_name="caches",
    kinds={"lance"},
    owners=["team:data"],
    tags={"domain": "video"},
    partitions_def=VIDEO_SHARDS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    deps=[training_segments],
    pool="decode",
)
def video_index(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """Presentation times, key frames and packets of every file; one partition per storage shard.

    A run for partitions builds those shards. A run without partitions builds all of them and reports each. Files that
    are indexed already are skipped.
    """
    import spiral_stream as spiral

    opened, begun = catalog.open(), time.monotonic()
    shards = requested(context)
    rows = spiral.index_videos(opened, plans.RELATION, plans.COLUMN, shards, LoggedProgress(context))
    facts, versions = _by_shard(opened.entry(plans.RELATION), rows, shards)
    for shard, counts in facts.items():
        if shards is None:
            tags = {"dagster/data_version": versions[shard]}
            event = dg.AssetMaterialization(context.asset_key, partition=shard, metadata=counts, tags=tags)
            context.log_event(event)
        else:
            context.add_asset_metadata(counts, partition_key=shard)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(_version([versions[shard] for shard in facts])),
        metadata={
            "dagster/row_count": len(rows),
            "storage_shards": len(facts),
            "refused": sum(counts["refused"] for counts in facts.values()),
            "seconds": round(time.monotonic() - begun, 2),
        },
    )


@dg.asset(
    key=["catalog", "video", "index"],
    group_name="catalog",
    kinds={"arrow"},
    owners=["team:data"],
    tags={"domain": "video"},
    deps=[video_index],
)
def index(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
    """The video index as a relation: one row per file, including unusable files and the reason."""
    import spiral_stream as spiral

    opened = catalog.open()
    rows = spiral.index_videos(opened, plans.RELATION, plans.COLUMN, None, LoggedProgress(context))
    files = by_file(rows)
    entry = opened.register(plans.INDEX, spiral.Arrow(files), identity="file", replace=True)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(entry.data_version),
        metadata={
            "dagster/row_count": len(files),
            "dagster/column_schema": reports.column_schema(entry.schema, entry.identity, plans.DESCRIPTIONS),
            "dagster/table_name": plans.INDEX,
            "dagster/uri": reports.place(entry.source),
            "dagster/storage_kind": entry.source.KIND,
            "refused": files["error"].length() - files["error"].null_count,
            "files": reports.table(_shown(files)),
            "open_it": reports.snippet(f'spiral_stream.table("{plans.INDEX}").to_arrow()'),
        },
    )


def _by_shard(
    entry: Any, rows: "pa.Table", shards: list[str] | None
) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Return rows, files and refused rows of each shard, and the version of each shard's data."""
    import numpy as np

    manifest = entry.manifest()
    names = manifest.shard_names.to_pylist()
    shard_of_row = np.searchsorted(manifest.starts, rows["row"].to_numpy(), side="right") - 1
    facts = {}
    for place, name in enumerate(names):
        if shards is None or name in shards:
            of_shard = rows.filter(shard_of_row == place)
            errors = of_shard["error"]
            files = of_shard.group_by(["uri", "offset", "length"]).aggregate([]).num_rows
            facts[name] = {"rows": len(of_shard), "files": files, "refused": len(errors) - errors.null_count}
    return facts, dict(zip(names, manifest.content_keys.to_pylist(), strict=True))


def _version(of_shards: list[str]) -> str:
    """Return the version of one shard, or a digest over several."""
    if len(of_shards) == 1:
        return of_shards[0]
    return hashlib.blake2b(" ".join(of_shards).encode(), digest_size=16).hexdigest()


def _shown(files: "pa.Table") -> list[dict[str, Any]]:
    """Return the table of files, unusable ones first, in six cells: the page has no room for more."""
    rows = sorted(files.to_pylist(), key=lambda row: (row["error"] is None, row["file"]))
    return [
        {
            "file": row["file"],
            "size": None if row["width"] is None else f"{row['width']} x {row['height']}",
            "fps": row["fps"],
            "frames": row["frames"],
            "key distance": row["key_distance"],
            "error": row["error"],
        }
        for row in rows
    ]
