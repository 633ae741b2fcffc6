"""`ImageSizes`: heights and widths of encoded images, from their headers; no pixel is decoded.

Lengths of rows with images follow from sizes (`transforms.text.image_tokens`). Where a relation has no column of them, this
map makes one, and ``.cache()`` behind it keeps it, so that each header is read once. Cost: 30 us per image.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, Final, final

import pyarrow as pa

from spiral_stream.arguments import check, class_door, text
from spiral_stream.errors import DataError, PlanError
from spiral_stream.transforms.transform import Transform

SIZES: Final = pa.list_(pa.struct([("height", pa.int32()), ("width", pa.int32())]))


@final
@class_door(PlanError)
@dataclass(frozen=True)
class ImageSizes(Transform):
    """Heights and widths of the images of a row, ``list<struct<height, width>>``, read from the headers of their files.

    Images are as they are stored: a tag that says how a camera was held turns nothing.

    Args:
        column: lists of encoded images, or one per row; bytes, or paths of local files.

    Examples:
        >>> sized = samples.map(spiral.transforms.ImageSizes("image") >> "sizes")
        >>> sized.columns[-1]
        'sizes'
    """

    NAME: ClassVar[str] = "image_sizes"
    deterministic: ClassVar[bool] = True

    column: str

    def __post_init__(self) -> None:
        check(self, "ImageSizes", " is ", column=text("the name of a column of images"))


def image_sizes(images: pa.Array) -> pa.Array:
    """Return heights and widths of encoded images.

    Args:
        images: lists of them, or one per row; bytes, or paths of local files.

    Raises:
        DataError: one is null, or no image.
    """
    found = [_sizes(row) for row in images.to_pylist()]  # 30 us per image
    return pa.array(found, SIZES)


def _sizes(row: Any) -> list[dict[str, int]] | None:
    if row is None:
        return None
    return [_size(each, at) for at, each in enumerate(row if isinstance(row, list) else [row])]


def _size(image: Any, at: int) -> dict[str, int]:
    from PIL import Image

    if isinstance(image, Mapping):  # the bytes, or where they lie
        image = image.get("bytes") or image.get("path")
    if not isinstance(image, str | bytes):
        msg = f"image {at}: its value is {type(image).__name__}, neither bytes nor the path of a file. Store its height and width"
        raise DataError(msg)
    try:
        with Image.open(image if isinstance(image, str) else BytesIO(image)) as opened:
            width, height = opened.size
    except OSError as error:
        msg = f"image {at}: {error!s:.200}. Mend it, or filter the row out"
        raise DataError(msg) from error
    return {"height": height, "width": width}
