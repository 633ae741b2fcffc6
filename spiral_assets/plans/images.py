"""The image plans of this code location, shared by the cache, the streams, training and the demo."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import spiral_stream as spiral

RELATION: Final = "vision.imagenet_train"
LABELS: Final = "vision.imagenet_labels"
SPLITS: Final = "vision.imagenet_splits"  # for images that come without a split
TRAIN: Final = "images-train"
VALIDATION: Final = "images-validation"
COLUMN: Final = "image_ref"
LABEL: Final = "label_id"
JPEG: Final = "image/jpeg-ref"
CACHED_SIDE: Final = 96  # pixels: a 500 x 375 image takes 37 KB raw, and 84 KB as the original JPEG
SIDE: Final = 64
BATCH: Final = 64
EPOCHS: Final = 8
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)

DESCRIPTIONS: Final[Mapping[str, str]] = {
    "sample_id": "Stable sample ID. Ledgers, cursors and random transforms depend on it.",
    "split": "train or val; images of val are never trained on.",
    COLUMN: "The JPEG image: inline bytes, or the path of a file.",
    LABEL: "Class number, from 0.",
    "class_name": "Class name.",
    "width": "Width in pixels.",
    "height": "Height in pixels.",
    "size_bytes": "Encoded size in bytes.",
    "source_uri": "Origin of the image.",
    "storage_shard": "Storage shard: the group of rows stored and read together.",
    "ingest_ts": "Time at which the row was written.",
}

# The schema that the plans below expect, by kind of source: column -> type.
DECLARED: Final[Mapping[str, Mapping[str, str]]] = {
    "lance": {
        "sample_id": "string",
        "split": "string",
        COLUMN: JPEG,
        LABEL: "int64",
        "width": "int32",
        "height": "int32",
        "source_uri": "string",
        "storage_shard": "string",
        "ingest_ts": "timestamp[ns]",
    },
    "image_folder": {
        "sample_id": "string",
        COLUMN: JPEG,
        LABEL: "int64",
        "class_name": "string",
        "size_bytes": "int64",
        "storage_shard": "string",
    },
}


def profile() -> "spiral.Raw":
    """The form in which the cache stores decoded images."""
    import spiral_stream as spiral

    return spiral.Raw(shorter_side=CACHED_SIDE)


def cache_plan(catalog: "spiral.Catalog") -> "spiral.Relation":
    """Read every image in storage order. The cache is built and checked with this plan."""
    import spiral_stream as spiral

    field = spiral.Stack(COLUMN, decode="jpeg", transforms=[spiral.Resize((SIDE, SIDE))])
    relation = catalog.table(RELATION).cache(**{COLUMN: profile()})
    return relation.sample(order=spiral.Sequential()).collate(
        batch_size=1, last=spiral.KeepPartial, fields={"image": field}
    )


def images(catalog: "spiral.Catalog", split: str) -> "spiral.Relation":
    """Return the rows of one split, with their class names."""
    import spiral_stream as spiral

    relation = catalog.table(RELATION)
    if "split" not in relation.schema.names:
        relation = relation.join(catalog.table(SPLITS), on="sample_id")
    if "class_name" not in relation.schema.names:
        relation = relation.join(catalog.table(LABELS), on=LABEL)
    return relation.filter(spiral.col("split") == split).cache(**{COLUMN: profile()})


def training(catalog: "spiral.Catalog") -> "spiral.Relation":
    """Random crops in shuffled order, in batches of equal size."""
    import spiral_stream as spiral

    transforms = [
        spiral.RandomResizedCrop(SIDE, scale=(0.4, 1.0)),
        spiral.RandomHorizontalFlip(),
        spiral.Normalize(MEAN, STD),
    ]
    return _batches(images(catalog, "train"), spiral.ShardAwareShuffle(seed=17), spiral.DropPartial, transforms)


def validation(catalog: "spiral.Catalog") -> "spiral.Relation":
    """Centre crops in storage order, each sample once."""
    import spiral_stream as spiral

    transforms = [spiral.Resize(SIDE + 8), spiral.CenterCrop(SIDE), spiral.Normalize(MEAN, STD)]
    return _batches(images(catalog, "val"), spiral.Sequential(), spiral.KeepPartial, transforms)


def _batches(relation: "spiral.Relation", order: Any, last: Any, transforms: Sequence[Any]) -> "spiral.Relation":
    import spiral_stream as spiral

    return relation.sample(identity="sample_id", order=order).collate(
        batch_size=BATCH,
        last=last,
        fields={
            "image": spiral.Stack(COLUMN, decode="jpeg", transforms=transforms, dtype="float32"),
            "label": spiral.Stack(LABEL, dtype="int64"),
            "sample_id": spiral.List("sample_id"),
        },
    )
