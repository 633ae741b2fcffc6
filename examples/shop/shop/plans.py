"""What is read, in which order, and in which form. Definitions name these functions and never import them."""

import io

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

import spiral_stream as spiral

SIDE = 32  # pixels
CELLS = 4  # of a side of the thumbnail that an embedding is
EMBEDDED = pa.list_(pa.float32(), 3 * CELLS * CELLS)


def thumbnail(photo: bytes) -> NDArray[np.float32]:
    """Embed a photo: its colours in 4 x 4 cells. A model of yours takes the place of this.

    Args:
        photo: the file's bytes.
    """
    small = Image.open(io.BytesIO(photo)).convert("RGB").resize((CELLS, CELLS), Image.Resampling.BOX)
    return np.asarray(small, np.float32).reshape(-1) / 255


def embedded(catalog: spiral.Catalog) -> spiral.Relation:
    """Return each photo with its embedding, which is computed once and stored by shard.

    Args:
        catalog: that has the photos.
    """
    samples = catalog.table("shop.photos").sample(order=spiral.Sequential())
    named = samples.map(thumbnail, columns=["photo"], name="embedding", returns=EMBEDDED, batched=False)
    return named.cache()


def decoded(catalog: spiral.Catalog) -> spiral.Relation:
    """Return every photo in storage order: the plan of the cache.

    Args:
        catalog: that has the photos.
    """
    field = spiral.Stack("photo", decode="jpeg", transforms=[spiral.transforms.Resize((SIDE, SIDE))])
    ordered = _stored(catalog).sample(order=spiral.Sequential())
    return ordered.collate(batch_size=1, last=spiral.KeepPartial, fields={"image": field})


def batches(catalog: spiral.Catalog, part: str = "train") -> spiral.Relation:
    """Return batches of photos and their classes.

    Args:
        catalog: that has the photos.
        part: ``train`` or ``val``, which has a fifth of the photos.
    """
    rows = _stored(catalog).split(train=0.8, val=0.2)[part]
    crops = [spiral.RandomResizedCrop(SIDE, scale=(0.5, 1.0)), spiral.RandomHorizontalFlip()]
    centre = [spiral.transforms.Resize((SIDE, SIDE))]
    fields = {
        "image": spiral.Stack("photo", decode="jpeg", transforms=crops if part == "train" else centre),
        "label": spiral.Stack("label"),
    }
    order = spiral.GlobalShuffle(seed=17) if part == "train" else spiral.Sequential()
    return rows.sample(order=order).collate(batch_size=8, last=spiral.KeepPartial, fields=fields)


def _stored(catalog: spiral.Catalog) -> spiral.Relation:
    return catalog.table("shop.photos").cache(photo=spiral.Raw(shorter_side=48))
