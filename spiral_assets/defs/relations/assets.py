"""Relations of the catalog: what is registered, and at which data version."""

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from spiral_assets import plans, reports
from spiral_assets.resources import CatalogResource, ImagesResource

if TYPE_CHECKING:
    import spiral_stream as spiral

VALIDATION_SHARE = 10  # every tenth identity, by hash, where the images come without a split


@dg.asset(
    key=["catalog", "vision", "imagenet_train"],
    group_name="catalog",
    kinds={"lance"},
    owners=["team:data"],
    tags={"domain": "images"},
)
def imagenet_train(catalog: CatalogResource, images: ImagesResource) -> dg.MaterializeResult[None]:
    """The training images: drawn ones as a Lance dataset with the bytes inline, or a folder of class folders."""
    import spiral_stream as spiral

    semantic = {plans.COLUMN: "image/jpeg-ref"}
    if images.folder:
        source: spiral.ImageFolder | spiral.Lance = spiral.ImageFolder(images.folder)
    else:
        from spiral_assets.demo.images import write_image_relation

        drawn = write_image_relation(_drawn_root(images), images.count, shards=images.shards, progress=False)
        source = spiral.Lance(drawn.train_uri)
    return _registered(catalog.open(), plans.RELATION, source, semantic=semantic)


@dg.asset(
    key=["catalog", "vision", "imagenet_labels"],
    group_name="catalog",
    kinds={"lance"},
    owners=["team:data"],
    tags={"domain": "images"},
    deps=[imagenet_train],
)
def imagenet_labels(catalog: CatalogResource, images: ImagesResource) -> dg.MaterializeResult[None]:
    """Names of the classes, one row a label; for a folder also which images validate."""
    import pyarrow as pa

    import spiral_stream as spiral

    opened = catalog.open()
    if not images.folder:
        from spiral_assets.demo.images import write_image_relation

        drawn = write_image_relation(_drawn_root(images), images.count, shards=images.shards, progress=False)
        assert drawn.labels_uri is not None
        return _registered(opened, plans.LABELS, spiral.Lance(drawn.labels_uri), identity="label_id")
    rows = opened.table(plans.RELATION).project("sample_id", "label_id", "class_name").to_arrow()
    labels = (
        rows.select(["label_id", "class_name"]).group_by(["label_id", "class_name"]).aggregate([]).sort_by("label_id")
    )
    names = rows["sample_id"].to_pylist()
    split = ["val" if zlib.crc32(name.encode()) % VALIDATION_SHARE == 0 else "train" for name in names]
    opened.register(plans.SPLITS, spiral.Arrow(pa.table({"sample_id": names, "split": split})), replace=True)
    return _registered(opened, plans.LABELS, spiral.Arrow(labels), identity="label_id")


def _drawn_root(images: ImagesResource) -> Path:
    return Path(images.root) / "images"


def _registered(
    catalog: "spiral.Catalog",
    name: str,
    source: "spiral.Lance | spiral.ImageFolder | spiral.Arrow",
    identity: str = "sample_id",
    semantic: dict[str, str] | None = None,
) -> dg.MaterializeResult[None]:
    """Register, or take the data as it is now; report what is there."""
    entry = catalog.register(name, source, identity=identity, semantic=semantic, replace=True)
    manifest = entry.manifest()
    return dg.MaterializeResult(
        data_version=dg.DataVersion(entry.data_version),
        metadata={
            "dagster/row_count": manifest.total,
            "dagster/column_schema": reports.column_schema(entry),
            "dagster/table_name": name,
            "dagster/uri": str(entry.root),
            "dagster/storage_kind": entry.source.KIND,
            "storage_shards": len(manifest.shard_names),
            "rows_per_shard": dg.MetadataValue.md(reports.bars([float(n) for n in manifest.shard_rows[:60]])),
        },
    )
