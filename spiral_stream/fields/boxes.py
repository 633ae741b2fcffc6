"""Boxes, their labels and key points, which move with an image: `Boxes`, `BoxLabels`, `KeyPoints`.

These fields hold what the columns say; `transforms.geometry` does the geometry once the size of the image is known. Samples
have different numbers of boxes, so arrays are as long as the longest of the batch, and padded.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import FLAG, check, class_door, text
from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields.field import Field, FieldSpec, named
from spiral_stream.semantic import is_list

# B samples, N boxes or points

FORMATS: Final = ("xyxy", "xywh", "cxcywh")
_OF: Final = text("the name of the field that it follows")
_SLACK: Final = 1.0  # pixels that a box may stand out of its image: files round in many ways
Float64 = NDArray[np.float64]


class Following(Field):
    """A field that follows another one: the geometry of an image, or the boxes that are left."""

    PADDING: ClassVar[float]

    of: str

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers per box, label or point."""

    def rows(self, values: pa.Array, at: int) -> NDArray[Any]:
        """Return what the column holds for one sample, shape [N, width].

        Raises:
            DataError: it is null, or not made of that many numbers.
        """
        value = values[at]
        if not value.is_valid:
            msg = f"{named(self)}: the value is null. Filter it out, or store an empty list"
            raise DataError(msg)
        inner = value.values
        while is_list(inner.type):
            if inner.null_count or (not pa.types.is_fixed_size_list(inner.type) and _uneven(inner, self.width)):
                msg = f"{named(self)}: an entry is not made of {self.width} numbers"
                raise DataError(msg)
            inner = inner.flatten()
        if inner.null_count or len(inner) % self.width:
            msg = f"{named(self)}: {len(inner)} numbers with nulls are no rows of {self.width}"
            raise DataError(msg)
        return np.asarray(inner.to_numpy(zero_copy_only=False)).reshape(-1, self.width)

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> list[Any]:
        del out
        return [self.rows(values, at) for at in range(len(values))]

    def _numbers(self, column: pa.Field) -> pa.DataType:
        """Return the type of the numbers in a column of lists.

        Raises:
            PlanError: it is another column, or ``of`` is no name.
        """
        check(self, named(self), of=_OF)
        kind = column.type
        depth = 0
        while is_list(kind):
            if depth and pa.types.is_fixed_size_list(kind) and kind.list_size != self.width:
                break
            kind, depth = kind.value_type, depth + 1
        if not depth or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            entry = f"list<{'float' if self.width > 1 else 'int'}[{self.width}]>" if self.width > 1 else "list<int>"
            msg = f"{named(self)}: the column is {column.type}. It has to be a list per sample, such as {entry}"
            raise PlanError(msg)
        return kind


@final
@class_door(PlanError, excepted=("column", "of"))
@dataclass(frozen=True, slots=True)
class Boxes(Following):
    """Boxes that move with an image: float32 ``[B, N, 4]``, N of the sample with most boxes; the rest is 0.

    Boxes are cut at the border of the picture. One of which less than ``min_side`` pixels of width or height are left is
    dropped, and its label with it (`BoxLabels`). A rotated box becomes the upright box around its corners.

    Args:
        column: a list of four numbers per box, in pixels of the image as it is decoded.
        of: the field of the image, in the same batch.
        format: ``"xyxy"``, ``"xywh"`` or ``"cxcywh"``, of what comes in and what goes out.
        relative: coordinates of the column are fractions of width and height. What goes out is in pixels.
        min_side: least width and height in pixels that a box must keep.
        outside: ``"refuse"`` a sample with a box that stands more than a pixel out of its image, or ``"clip"`` the box.

    Raises:
        PlanError: an argument is out of range.

    Examples:
        >>> image = spiral.Stack("image", decode="jpeg", transforms=[spiral.transforms.Resize((48, 64))])
        >>> fields = {"image": image, "boxes": spiral.fields.Boxes("boxes", of="image", format="xyxy")}
        >>> samples.collate(batch_size=8, fields=fields).to_numpy()[0]["boxes"].shape
        (8, 2, 4)
    """

    PADDING: ClassVar[float] = 0
    width: ClassVar[int] = 4

    column: str
    of: str
    format: str = "xyxy"
    relative: bool = False
    min_side: float = 1.0
    outside: str = "refuse"

    def __post_init__(self) -> None:
        number = isinstance(self.min_side, int | float) and not isinstance(self.min_side, bool)
        if self.format not in FORMATS or self.outside not in ("refuse", "clip") or not number or not self.min_side > 0:
            msg = (
                f"{named(self)}: format={self.format!r}, outside={self.outside!r}, min_side={self.min_side!r}. format "
                f'is one of {", ".join(FORMATS)}; outside is "refuse" or "clip"; min_side is above 0'
            )
            raise PlanError(msg)
        check(self, named(self), relative=FLAG)

    def spec(self, column: pa.Field) -> FieldSpec:
        self._numbers(column)
        return FieldSpec("float32", (None, 4))

    def corners(self, values: pa.Array, at: int, height: int, width: int) -> Float64:
        """Return the boxes of one sample as XYXY in pixels, shape [N, 4].

        Raises:
            DataError: a box is NaN, has no area, or stands out of the image; says which.
        """
        boxes = self.rows(values, at).astype(np.float64)
        if self.relative:
            boxes = boxes * [width, height, width, height]
        a, b = boxes[:, :2], boxes[:, 2:]
        if self.format == "xywh":
            b = a + b
        elif self.format == "cxcywh":
            a, b = a - b / 2, a + b / 2
        out = np.concatenate([a, b], axis=1)
        wrong = ~np.isfinite(out).all(axis=1)
        self._refuse(wrong, boxes, "is NaN or infinite", "Filter it out, or mend the column")
        self._refuse(
            np.asarray((b <= a).any(axis=1)),
            boxes,
            "has no area",
            f"Check that format={self.format!r} is that of the column",
        )
        if self.outside == "refuse":
            wrong = np.asarray((out < -_SLACK).any(axis=1) | (b > np.array([width, height]) + _SLACK).any(axis=1))
            way = 'Check the format and the size of the image, or write outside="clip"'
            self._refuse(wrong, boxes, f"stands out of its image of {height} x {width} (height x width)", way)
        return out

    def formatted(self, boxes: Float64) -> NDArray[np.float32]:
        """Return boxes given as XYXY in the field's format."""
        a, b = boxes[:, :2], boxes[:, 2:]
        if self.format == "xywh":
            b = b - a
        elif self.format == "cxcywh":
            a, b = (a + b) / 2, b - a
        return np.concatenate([a, b], axis=1).astype(np.float32)

    def _refuse(self, wrong: NDArray[np.bool_], boxes: Float64, found: str, way: str) -> None:
        if wrong.any():
            i = int(wrong.argmax())
            numbers = ", ".join(f"{value:g}" for value in boxes[i])
            msg = f"{named(self)}: box {i} ({numbers}) {found}. {way}"
            raise DataError(msg)


@final
@class_door(PlanError, excepted=("column", "of"))
@dataclass(frozen=True, slots=True)
class BoxLabels(Following):
    """A number for each box that is left: int64 ``[B, N]``, or float32 for a column of floats. Padding is -1.

    Args:
        column: a list of numbers, one per box of the sample.
        of: the field of the boxes, in the same batch.

    Examples:
        >>> image = spiral.Stack("image", decode="jpeg", transforms=[spiral.transforms.Resize((48, 64))])
        >>> fields = {
        ...     "image": image,
        ...     "boxes": spiral.fields.Boxes("boxes", of="image"),
        ...     "kinds": spiral.fields.BoxLabels("kinds", of="boxes"),
        ... }
        >>> samples.collate(batch_size=8, fields=fields).to_numpy()[0]["kinds"].shape
        (8, 2)
    """

    PADDING: ClassVar[float] = -1
    width: ClassVar[int] = 1

    column: str
    of: str

    def spec(self, column: pa.Field) -> FieldSpec:
        return FieldSpec("int64" if pa.types.is_integer(self._numbers(column)) else "float32", (None,))


@final
@class_door(PlanError, excepted=("column", "of"))
@dataclass(frozen=True, slots=True)
class KeyPoints(Following):
    """Points that move with an image: float32 ``[B, N, 2]``, N of the sample with most points; the rest is NaN.

    Points keep their places in the list. NaN stays NaN, which says that a point is not there.

    Args:
        column: a list of two numbers (x, y) per point, in pixels of the image as it is decoded.
        of: the field of the image, in the same batch.
        relative: coordinates of the column are fractions of width and height. What goes out is in pixels.
        outside: what to do with points that leave the picture: ``"keep"`` their coordinates, or ``"nan"``.

    Raises:
        PlanError: an argument is out of range.

    Examples:
        >>> image = spiral.Stack("image", decode="jpeg", transforms=[spiral.transforms.Resize((48, 64))])
        >>> fields = {"image": image, "points": spiral.fields.KeyPoints("points", of="image")}
        >>> samples.collate(batch_size=8, fields=fields).to_numpy()[0]["points"].shape
        (8, 2, 2)
    """

    PADDING: ClassVar[float] = float("nan")
    width: ClassVar[int] = 2

    column: str
    of: str
    relative: bool = False
    outside: str = "keep"

    def __post_init__(self) -> None:
        if self.outside not in ("keep", "nan") or not isinstance(self.relative, bool):
            msg = (
                f"{named(self)}: outside={self.outside!r}, relative={self.relative!r}. outside is "
                '"keep" or "nan"; relative is True or False'
            )
            raise PlanError(msg)

    def spec(self, column: pa.Field) -> FieldSpec:
        self._numbers(column)
        return FieldSpec("float32", (None, 2))

    def points(self, values: pa.Array, at: int, height: int, width: int) -> Float64:
        """Return the points of one sample in pixels, shape [N, 2]."""
        found = self.rows(values, at).astype(np.float64)
        return found * [width, height] if self.relative else found


def padded(field: Following, rows: list[NDArray[Any] | None], dtype: str) -> NDArray[Any]:
    """Return the values of a batch as one array.

    Args:
        field: what they are of.
        rows: B arrays [N, ...]; None for a sample that is refused.
        dtype: NumPy name.

    Returns:
        shape [B, N, ...], N of the longest.
    """
    most = max((len(each) for each in rows if each is not None), default=0)
    out = np.full((len(rows), most, *(() if field.width == 1 else (field.width,))), field.PADDING, dtype)
    for i, each in enumerate(rows):  # 1 us each
        if each is not None:
            out[i, : len(each)] = each
    return out


def _uneven(inner: pa.Array, width: int) -> bool:
    lengths = inner.value_lengths().to_numpy(zero_copy_only=False)
    return bool((lengths != width).any())
