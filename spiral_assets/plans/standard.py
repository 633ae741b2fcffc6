"""Plans for relations of your own, named in YAML with their arguments: a cache, a training stream, a validation stream.

Images are a relation with a column of image references and a column of class numbers, such as `spiral.ImageFolder` gives.
Texts are one relation or several, each with a column of text. A tenth of each relation, by the hash of its identity, is held
out for validation. A plan that needs more is a Python function of yours.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import spiral_stream as spiral

HELD_OUT: Final = 0.1  # share of the rows that validate
CACHED_SIDE: Final = 96  # pixels
SIDE: Final = 64  # pixels
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
MEASURED: Final = 1_024  # documents per batch when lengths are measured
SEED: Final = 17


def decoded_images(
    catalog: "spiral.Catalog", relation: str, column: str = "image_ref", cached_side: int = CACHED_SIDE
) -> "spiral.Relation":
    """Read every image in storage order: the plan of a cache of decoded images.

    Args:
        catalog: that has the relation.
        relation: its name.
        column: of image references.
        cached_side: pixels of the shorter side of a cached image.

    Examples:
        >>> from spiral_assets.plans.standard import decoded_images
        >>> with decoded_images(catalog, "shop.photos").to_numpy() as stream:
        ...     next(iter(stream))["image"].shape
        (1, 3, 64, 64)
    """
    import spiral_stream as spiral

    field = spiral.Stack(column, decode="jpeg", transforms=[spiral.transforms.Resize((SIDE, SIDE))])
    return (
        _cached(catalog, relation, column, cached_side)
        .sample(order=spiral.Sequential())
        .collate(batch_size=1, last=spiral.KeepPartial, fields={"image": field})
    )


def image_batches(
    catalog: "spiral.Catalog",
    relation: str,
    part: str = "train",
    *,
    column: str = "image_ref",
    label: str = "label_id",
    identity: str = "sample_id",
    side: int = SIDE,
    batch_size: int = 64,
    cached_side: int = CACHED_SIDE,
) -> "spiral.Relation":
    """Batches of images and their classes. ``train`` gives random crops in shuffled order, ``val`` centre crops in storage order.

    Args:
        catalog: that has the relation.
        relation: its name.
        part: ``train`` or ``val``.
        column: of image references.
        label: column of class numbers.
        identity: column that identifies a row.
        side: pixels of a side of the crops.
        batch_size: images per batch.
        cached_side: as the cache's plan has it.

    Examples:
        >>> from spiral_assets.plans.standard import image_batches
        >>> with image_batches(catalog, "shop.photos", batch_size=8).to_numpy() as stream:
        ...     next(iter(stream))["image"].shape
        (8, 3, 64, 64)
    """
    import spiral_stream as spiral

    rows = _cached(catalog, relation, column, cached_side)
    rows = rows.split(train=1 - HELD_OUT, val=HELD_OUT)[part]
    normal = spiral.Normalize(MEAN, STD)
    random = [spiral.RandomResizedCrop(side, scale=(0.4, 1.0)), spiral.RandomHorizontalFlip(), normal]
    centre = [spiral.transforms.Resize(side + side // 8), spiral.transforms.CenterCrop(side), normal]
    training = part == "train"
    order: Any = spiral.GlobalShuffle(seed=SEED) if training else spiral.Sequential()
    return rows.sample(identity=identity, order=order).collate(
        batch_size=batch_size,
        last=spiral.DropPartial if training else spiral.KeepPartial,
        fields={
            "image": spiral.Stack(column, decode="jpeg", transforms=random if training else centre, dtype="float32"),
            "label": spiral.Stack(label, dtype="int64"),
            "sample_id": spiral.List(identity),
        },
    )


def tokens(catalog: "spiral.Catalog", relation: str, tokenizer: str, column: str = "text") -> "spiral.Relation":
    """Read the length of every text in storage order: the plan of a cache of tokens.

    Args:
        catalog: that has the relation and the tokenizer.
        relation: its name.
        tokenizer: its name.
        column: of text.

    Examples:
        >>> from spiral_assets.plans.standard import tokens
        >>> with tokens(catalog, "shop.texts", "words").to_numpy() as stream:
        ...     next(iter(stream))["length"][:3]
        array([...])
    """
    import spiral_stream as spiral

    return (
        catalog.table(relation)
        .sample(order=spiral.Sequential())
        .map(spiral.Tokenize(column, tokenizer=tokenizer) >> "tokens")
        .with_columns(length=spiral.len_("tokens"))
        .collate(batch_size=MEASURED, last=spiral.KeepPartial, fields={"length": spiral.Stack("length", dtype="int64")})
    )


def token_batches(
    catalog: "spiral.Catalog",
    shares: Mapping[str, float],
    tokenizer: str,
    *,
    columns: Sequence[str] = ("sample_id", "text"),
    epoch_size: int = 1_000,
    max_tokens: int = 2_048,
    window: int = 128,
) -> "spiral.Relation":
    """Batches of tokens from a mixture: documents of similar lengths, under a budget of padded tokens per batch.

    Args:
        catalog: that has the relations and the tokenizer.
        shares: relation -> its share of the samples of an epoch.
        tokenizer: its name.
        columns: the identity, and the column of text, of each relation.
        epoch_size: samples per epoch.
        max_tokens: padded tokens per batch; a longer document is truncated.
        window: samples among which documents of similar lengths are found.

    Examples:
        >>> from spiral_assets.plans.standard import token_batches
        >>> plan = token_batches(catalog, {"shop.texts": 1.0}, "words", epoch_size=64, max_tokens=256)
        >>> with plan.to_numpy() as stream:
        ...     next(iter(stream))["input_ids"].shape
        (8, 32)
    """
    import spiral_stream as spiral

    identity, text = columns
    streams = [
        spiral.Stream(name, catalog.table(name).project(identity, text), proportion=share)
        for name, share in shares.items()
    ]
    return (
        spiral.mix(streams, epoch_size=epoch_size)
        .sample(identity=identity, order=spiral.GlobalShuffle(seed=SEED))
        .map(spiral.Tokenize(text, tokenizer=tokenizer) >> "tokens")
        .collate(
            batch_size=None,
            formation=spiral.WindowedBucket(
                window_size=window,
                keys=[spiral.BucketKey("len(tokens)")],
                budget=spiral.BatchBudget(max_tokens=max_tokens, oversize="truncate"),
            ),
            last=spiral.DropPartial,
            fields={
                "input_ids": spiral.Pad("tokens", pad_to_multiple_of=32),
                "attention_mask": spiral.PadMask("tokens", pad_to_multiple_of=32),
                "labels": spiral.ShiftedLabels("tokens", ignore_index=-100),
                "sample_id": spiral.List(identity),
            },
        )
    )


def _cached(catalog: "spiral.Catalog", relation: str, column: str, cached_side: int) -> "spiral.Relation":
    import spiral_stream as spiral

    return catalog.table(relation).cache(**{column: spiral.Raw(shorter_side=cached_side)})
