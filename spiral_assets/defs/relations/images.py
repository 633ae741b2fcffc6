"""The image relations of the catalog."""

import zlib
from typing import Final

import dagster as dg

from spiral_assets.plans import images as plans
from spiral_assets.registration import register
from spiral_assets.resources import CatalogResource, ImagesResource

HELD_OUT: Final = 10  # every tenth identity, by hash, if the images come without a split


@dg.asset(
    key=["catalog", "vision", "imagenet_train"],
    group_name="catalog",
    kinds={"lance"},
    owners=["team:data"],
    tags={"domain": "images"},
)
def imagenet_train(catalog: CatalogResource, images: ImagesResource) -> dg.MaterializeResult[None]:
    """Images: a Lance dataset of drawn images with inline bytes, or a folder with one subfolder per class."""
    import spiral_stream as spiral

    source = spiral.ImageFolder(images.folder) if images.folder else spiral.Lance(images.drawn().train_uri)
    return register(catalog.open(), plans.RELATION, source, plans.DESCRIPTIONS, semantic={plans.COLUMN: plans.JPEG})


@dg.asset(
    key=["catalog", "vision", "imagenet_labels"],
    group_name="catalog",
    kinds={"lance"},
    owners=["team:data"],
    tags={"domain": "images"},
    deps=[imagenet_train],
)
def imagenet_labels(catalog: CatalogResource, images: ImagesResource) -> dg.MaterializeResult[None]:
    """Class names, one row per label. For a folder, a split is registered too."""
    import pyarrow as pa

    import spiral_stream as spiral

    opened = catalog.open()
    if not images.folder:
        return register(
            opened, plans.LABELS, spiral.Lance(str(images.drawn().labels_uri)), plans.DESCRIPTIONS, "label_id"
        )
    rows = opened.table(plans.RELATION)
    names = rows.project("sample_id").to_arrow()["sample_id"].to_pylist()
    split = ["val" if zlib.crc32(name.encode()) % HELD_OUT == 0 else "train" for name in names]
    splits = spiral.Arrow(pa.table({"sample_id": names, "split": split}))
    opened.register(plans.SPLITS, splits, replace=True)
    labels = rows.project("label_id", "class_name").distinct("label_id").to_arrow()
    return register(opened, plans.LABELS, spiral.Arrow(labels), plans.DESCRIPTIONS, "label_id")
