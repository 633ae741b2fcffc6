"""The assets of a video index: where the frames of every file are, built by groups of storage shards and shown as a relation."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from spiral_assets import automation, conventions
from spiral_assets.assets.hooks import PLAIN, AssetProps, Hooks
from spiral_assets.assets.measure import Check, own_rule
from spiral_assets.caching import ReportedProgress
from spiral_assets.conventions import DATA_TEAM, Deps, in_catalog_of
from spiral_assets.facts import lineage, reports
from spiral_assets.reading.code_references import with_code
from spiral_assets.relations.files import by_file
from spiral_assets.relations.partitions import requested, shard_groups
from spiral_assets.relations.registration import page
from spiral_assets.resources import CatalogResource

if TYPE_CHECKING:
    import pyarrow as pa

GROUPS: Final = 8
PARTITION_ROWS: Final = "dagster/partition_row_count"


def video_index_assets(
    name: str,
    *,
    relation: str,
    column: str,
    index: str,
    groups: int = GROUPS,
    deps: Deps = (),
    descriptions: Mapping[str, str] | None = None,
    checks: Sequence[Check] = (),
    domain: str = "",
    owners: Sequence[str] = DATA_TEAM,
    automated: bool = True,
    hooks: Hooks = PLAIN,
) -> dg.Definitions:
    """Return the assets ``caches/<name>`` and ``catalog/<index>``, and the check that every file is usable.

    Args:
        name: of the index among the caches.
        relation: whose videos are indexed.
        column: of type ``video/h264-ref``.
        index: the relation that shows one row per file.
        groups: partitions; the shards are spread over them by name.
        deps: more than the relation, which is one.
        descriptions: column of the index relation -> its meaning.
        checks: of your own, of the index relation.
        domain: tag by which jobs select the assets.
        owners: of the assets.
        automated: whether it is rebuilt when the relation's data is new.
        hooks: what a component changes of the assets.

    Examples:
        >>> from spiral_assets.assets import video_index_assets
        >>> made = video_index_assets("films", relation="shop.films", column="clip_ref", index="shop.film_files")
        >>> [asset.key.to_user_string() for asset in made.assets]
        ['caches/films', 'catalog/shop/film_files']
    """
    options: dict[str, Any] = {
        "group_name": conventions.INDEXES,
        "owners": list(owners),
        "tags": conventions.domain_tag(domain),
        "automation_condition": automation.rebuild() if automated else None,
    }

    built = dg.AssetSpec(
        key=conventions.cache_key(name),
        kinds={"lance"},
        description="Presentation times, key frames and packets of every file, built by groups of storage shards. "
        "Files that are indexed already are skipped.",
        partitions_def=shard_groups(groups),
        deps=[conventions.relation_key(relation), *conventions.keys(deps)],
        **options,
    )

    def indexed(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        return _build(context, catalog.open(), relation, column, groups)

    about = {"name": name, "relation": relation, "column": column, "index": index, "domain": domain}
    asset = hooks.asset(
        AssetProps("index", about, built),
        indexed,
        pool=conventions.pool_of(name),
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    rows = dg.AssetSpec(
        key=conventions.relation_key(index),
        kinds={"arrow"},
        description="The video index as a relation: one row per file, including unusable files and the reason.",
        metadata={"dagster/table_name": index},
        deps=[asset],
        **options,
    )

    def registered(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        return _register(context, catalog.open(), relation, column, index, descriptions or {})

    shown = hooks.asset(
        AssetProps("index", about, with_code(rows, [each.function for each in checks]), "files"), registered
    )
    usable = _usable(shown, index)
    return dg.Definitions(
        assets=[asset, shown], asset_checks=[usable, *(own_rule(each).check(shown) for each in checks)]
    )


def _build(
    context: dg.AssetExecutionContext, catalog: Any, relation: str, column: str, groups: int
) -> dg.MaterializeResult[None]:
    """Index what is missing of the requested groups; without partitions, of all of them, and report each."""
    import spiral_stream as spiral

    begun, manifest = time.monotonic(), catalog.entry(relation).manifest()
    versions = dict(zip(manifest.shard_names.to_pylist(), manifest.content_keys.to_pylist(), strict=True))
    wanted = requested(context, list(versions), groups)
    shards = [shard for group in wanted.values() for shard in group]
    rows = spiral.index_videos(catalog, relation, column, shards, ReportedProgress.of(context)) if shards else None
    facts = _by_group(manifest, rows, wanted)
    for group, counts in facts.items():
        if context.has_partition_key or context.has_partition_key_range:
            context.add_asset_metadata(counts, partition_key=group)
        else:
            tags = {"dagster/data_version": _version([versions[shard] for shard in wanted[group]])}
            event = dg.AssetMaterialization(context.asset_key, partition=group, metadata=counts, tags=tags)
            context.log_event(event)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(_version([versions[shard] for shard in shards])),
        metadata={
            "dagster/row_count": 0 if rows is None else len(rows),
            "storage_shards": len(shards),
            "refused": sum(counts["refused"] for counts in facts.values()),
            "seconds": round(time.monotonic() - begun, 2),
        },
    )


def _register(
    context: dg.AssetExecutionContext,
    catalog: Any,
    relation: str,
    column: str,
    index: str,
    descriptions: Mapping[str, str],
) -> dg.MaterializeResult[None]:
    """Register one row per file."""
    import spiral_stream as spiral

    files = by_file(spiral.index_videos(catalog, relation, column, None, ReportedProgress.of(context)))
    catalog.register(index, spiral.Arrow(files), identity="file", replace=True)
    more = {
        "refused": files["error"].length() - files["error"].null_count,
        "files": reports.table(_rows(files)),
        **lineage.of_columns(context, dict.fromkeys(files.column_names, ((relation, column),))),
    }
    return page(context, catalog, index, descriptions, more)


def _usable(asset: dg.AssetsDefinition, index: str) -> dg.AssetChecksDefinition:
    """The check that every file is complete video. The plans skip nothing, so a bad file would stop training."""

    @dg.asset_check(
        asset=asset,
        name="files_are_usable",
        blocking=True,
        description="Every file exists and is complete H.264 video with timestamps.",
    )
    @in_catalog_of(asset)
    def files_are_usable(catalog: CatalogResource) -> dg.AssetCheckResult:
        files = catalog.open().table(index).to_arrow().select(["file", "error"]).to_pylist()
        bad = [row for row in files if row["error"] is not None]
        examples = "; ".join(f"{row['file']}: {row['error']}" for row in bad[:_SHOWN])
        return dg.AssetCheckResult(
            passed=not bad,
            description=f"{len(bad)} of {len(files)} files cannot be used: {examples}"
            if bad
            else f"{len(files):,} files",
            metadata={"files": len(files), "refused": len(bad)},
        )

    return files_are_usable


_SHOWN: Final = 5  # examples in a description


def _by_group(manifest: Any, rows: "pa.Table | None", groups: Mapping[str, list[str]]) -> dict[str, dict[str, int]]:
    """Return shards, rows, files and refused rows of each group."""
    import numpy as np
    import pyarrow as pa

    names = np.array(manifest.shard_names.to_pylist())
    ordinals = np.zeros(0, np.int64) if rows is None else rows["row"].to_numpy()
    shard_of_row = names[np.searchsorted(manifest.starts, ordinals, side="right") - 1] if len(ordinals) else names[:0]
    facts = {}
    for group, shards in groups.items():
        counts = {"shards": len(shards), "rows": 0, "files": 0, "refused": 0, PARTITION_ROWS: 0}
        if rows is not None and shards:
            of_group = rows.filter(pa.array(np.isin(shard_of_row, shards)))
            errors = of_group["error"]
            files = of_group.group_by(["uri", "offset", "length"]).aggregate([]).num_rows
            counts |= {
                "rows": len(of_group),
                PARTITION_ROWS: len(of_group),
                "files": files,
                "refused": len(errors) - errors.null_count,
            }
        facts[group] = counts
    return facts


def _version(of_shards: list[str]) -> str:
    """Return a digest of the versions of shards."""
    return hashlib.blake2b(" ".join(sorted(of_shards)).encode(), digest_size=16).hexdigest()


def _rows(files: "pa.Table") -> list[dict[str, Any]]:
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
