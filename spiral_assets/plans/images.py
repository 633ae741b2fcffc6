"""The image plans of this code location, shared by the cache, the streams, training and the demo."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import spiral_stream as spiral

RELATION: Final = "vision.imagenet_train"
LABELS: Final = "vision.imagenet_labels"
TRAIN: Final = "images-train"
VALIDATION: Final = "images-validation"
COLUMN: Final = "image_ref"
LABEL: Final = "label_id"
CACHED_SIDE: Final = 96  # pixels: a 500 x 375 image takes 37 KB raw, and 84 KB as the original JPEG
SIDE: Final = 64
BATCH: Final = 64
EPOCHS: Final = 8
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)


def profile() -> "spiral.Raw":
    """The form in which the cache stores decoded images."""
    import spiral_stream as spiral

    return spiral.Raw(shorter_side=CACHED_SIDE)


def cache_plan(catalog: "spiral.Catalog", relation: str = RELATION) -> "spiral.Relation":
    """Read every image in storage order. The cache is built and checked with this plan."""
    import spiral_stream as spiral

    field = spiral.Stack(COLUMN, decode="jpeg", transforms=[spiral.transforms.Resize((SIDE, SIDE))])
    cached = catalog.table(relation).cache(**{COLUMN: profile()})
    return cached.sample(order=spiral.Sequential()).collate(
        batch_size=1, last=spiral.KeepPartial, fields={"image": field}
    )


def images(catalog: "spiral.Catalog", split: str, relation: str = RELATION, splits: str = "") -> "spiral.Relation":
    """Return the rows of one split, with their class names.

    Args:
        catalog: that has the relations.
        split: ``train`` or ``val``.
        relation: of images.
        splits: the relation of splits, for images that come without one.
    """
    import spiral_stream as spiral

    rows = catalog.table(relation)
    if splits:
        rows = rows.join(catalog.table(splits), on="sample_id")
    if "class_name" not in rows.schema.names:
        rows = rows.join(catalog.table(LABELS), on=LABEL)
    return rows.filter(spiral.col("split") == split).cache(**{COLUMN: profile()})


def training(catalog: "spiral.Catalog", relation: str = RELATION, splits: str = "") -> "spiral.Relation":
    """Random crops in shuffled order, in batches of equal size."""
    import spiral_stream as spiral

    transforms = [
        spiral.RandomResizedCrop(SIDE, scale=(0.4, 1.0)),
        spiral.RandomHorizontalFlip(),
        spiral.Normalize(MEAN, STD),
    ]
    rows = images(catalog, "train", relation, splits)
    return _batches(rows, spiral.ShardAwareShuffle(seed=17), spiral.DropPartial, transforms)


def validation(catalog: "spiral.Catalog", relation: str = RELATION, splits: str = "") -> "spiral.Relation":
    """Centre crops in storage order, each sample once."""
    import spiral_stream as spiral

    transforms = [spiral.transforms.Resize(SIDE + 8), spiral.transforms.CenterCrop(SIDE), spiral.Normalize(MEAN, STD)]
    rows = images(catalog, "val", relation, splits)
    return _batches(rows, spiral.Sequential(), spiral.KeepPartial, transforms)


def steps(train: "spiral.PreparedStream", validation: "spiral.PreparedStream") -> Mapping[str, Any]:
    """Return how many batches the two streams have."""
    return {"steps_per_epoch": len(train), "validation_steps": len(validation)}


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
