"""What was cut out of each image of a batch: `OriginalSize`, `CropTopLeft`, `CropRecord`.

Diffusion models are told how large an image was and where its crop began, and whoever looks at a batch can cut the same pixels
out of the original. Here is the arithmetic; `runtime.fields.geometry` fills batches, from the boxes by which pixels are made.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import check, class_door, text
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field, FieldSpec, named, settle_dtype
from spiral_stream.fields.stack import Stack

_DTYPES: Final = ("int64", "int32", "float32")
_OF: Final = text("the name of the field that decodes the column, or None if there is one", none=True)

Int64 = NDArray[np.int64]

# B images; a record is [B, 9]: top, left, height and width of the box that is cut out of the original; height and width that it
# is resized to; top and left of the window that is cut out of that; whether the window is mirrored


class OfCrop(Field):
    """A field that says what was cut out of the images of another one."""

    is_decoded: ClassVar[bool] = True
    WIDTH: ClassVar[int]

    column: str
    of: str | None
    dtype: str | Any
    device: str | None

    def _check(self) -> None:
        check(self, named(self), of=_OF)
        settle_dtype(self, _DTYPES, " is unknown")

    def spec(self, column: pa.Field) -> FieldSpec:
        del column
        return FieldSpec(str(self.dtype), (self.WIDTH,), None, self.device)

    def spec_among(self, spec: FieldSpec, fields: Sequence[Field]) -> FieldSpec:
        if any(isinstance(each, Stack) and each.decode and each.column == self.column for each in fields):
            return spec
        msg = f"{named(self)} says what is cut out of an image, and no field decodes it. Add Stack({self.column!r}, decode=...)"
        raise PlanError(msg)

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NDArray[Any]:
        """Never called: the image's geometry is known once it is decoded."""
        raise NotImplementedError

    @abstractmethod
    def values(self, sizes: Int64, records: Int64) -> Int64:
        """Return the field's numbers, shape [B, WIDTH].

        Args:
            sizes: shape [B, 2]: height and width of the images before all transforms.
            records: shape [B, 9].
        """


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class OriginalSize(OfCrop):
    """Height and width of each image before its transforms, ``[B, 2]``: the ``original_size`` of SDXL.

    Args:
        column: of the images, one per row, which a `Stack` of the batch decodes.
        of: the name of that field, where several decode the column.
        dtype: ``"int64"``, ``"int32"`` or ``"float32"``.
        device: where the field is delivered; None leaves it on the host.

    Examples:
        >>> image = spiral.Stack("image", decode="jpeg", transforms=[spiral.RandomResizedCrop(16)])
        >>> fields = {"image": image, "original_size": spiral.fields.OriginalSize("image")}
        >>> samples.collate(batch_size=4, fields=fields).to_numpy()[0]["original_size"].shape
        (4, 2)
    """

    WIDTH: ClassVar[int] = 2

    column: str
    of: str | None = None
    dtype: str | Any = "int64"
    device: str | None = None

    def __post_init__(self) -> None:
        self._check()

    def values(self, sizes: Int64, records: Int64) -> Int64:
        del records
        return sizes


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class CropTopLeft(OfCrop):
    """Where the crop of each image begins, ``[B, 2]``: (top, left) in the resized image, the ``crop_top_left`` of SDXL.

    They count in the image before it is mirrored. Where a box is cut out first and resized then, as `RandomResizedCrop` does,
    they are where it would begin in the original, resized by as much.

    Args:
        column: as of `OriginalSize`.
        of: likewise.
        dtype: likewise.
        device: likewise.

    Examples:
        >>> steps = [spiral.transforms.Resize(24), spiral.transforms.RandomCrop(16)]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
        >>> fields = {"image": image, "crop_top_left": spiral.fields.CropTopLeft("image")}
        >>> samples.collate(batch_size=4, fields=fields).to_numpy()[0]["crop_top_left"].shape
        (4, 2)
    """

    WIDTH: ClassVar[int] = 2

    column: str
    of: str | None = None
    dtype: str | Any = "int64"
    device: str | None = None

    def __post_init__(self) -> None:
        self._check()

    def values(self, sizes: Int64, records: Int64) -> Int64:
        del sizes
        box, side, resized, window = records[:, :2], records[:, 2:4], records[:, 4:6], records[:, 6:8]
        begins: Int64 = (2 * box * resized + side) // (2 * side) + window
        return begins


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class CropRecord(OfCrop):
    """All that says which pixels of the original an image shows, ``[B, 9]``.

    | numbers | are |
    |---|---|
    | 0 to 3 | top, left, height and width of the box that is cut out of the original |
    | 4, 5 | height and width that the box is resized to |
    | 6, 7 | top and left of the window that is cut out of the resized box; its size is that of the field |
    | 8 | 1 if the window is mirrored, left to right |

    Steps that change colours are not in it. Steps that move pixels otherwise, such as rotations, are refused.

    Args:
        column: as of `OriginalSize`.
        of: likewise.
        dtype: likewise.
        device: likewise.

    Examples:
        >>> steps = [spiral.transforms.Resize((16, 24)), spiral.transforms.RandomCrop(16)]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
        >>> fields = {"image": image, "crop": spiral.fields.CropRecord("image")}
        >>> samples.collate(batch_size=4, fields=fields).to_numpy()[0]["crop"][:, 4:6].tolist()
        [[16, 24], [16, 24], [16, 24], [16, 24]]
    """

    WIDTH: ClassVar[int] = 9

    column: str
    of: str | None = None
    dtype: str | Any = "int64"
    device: str | None = None

    def __post_init__(self) -> None:
        self._check()

    def values(self, sizes: Int64, records: Int64) -> Int64:
        del sizes
        return records
