"""`Stack`: values of equal shape become one array with a batch dimension."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.fields.field import Field, FieldSpec, fixed_numpy, fixed_shape, leaf_type, leaves_of
from spiral_stream.semantic import H264_REF, JPEG_REF, semantic_of

DTYPES: Final = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64"),
)


@final
@dataclass(frozen=True, slots=True)
class Stack(Field):
    """One array with a batch dimension: numbers, images or clips.

    | column | shape | dtype |
    |---|---|---|
    | numbers, booleans | ``[B]`` | the column's, or ``dtype`` |
    | fixed-size lists of K, also nested | ``[B, K]``, ``[B, K, L]`` | the column's, or ``dtype`` |
    | tensors of one shape | ``[B, *shape]`` | the column's, or ``dtype`` |
    | timestamps | ``[B]`` | int64, in the column's unit |
    | images | ``[B, 3, H, W]`` | uint8, or ``dtype`` |
    | clips | ``[B, T, 3, H, W]`` | uint8, or ``dtype`` |

    A clip is T frames of a segment of a video. All frames go through the same transforms with the same random numbers.

    Args:
        column: a column of numbers, booleans, timestamps or fixed-size lists of them; or, with ``decode``, a reference
            to images or videos.
        decode: how to read a reference: ``"jpeg"``, ``"image"`` for any format that Pillow reads, or ``"h264"``.
        transforms: image transforms in order, for a decoded column. They run after the shorthands below.
        dtype: NumPy name of the result; None keeps the column's type (uint8 for images and clips).
        layout: ``"nchw"`` (default) or ``"nhwc"`` for images, ``"ntchw"`` (default) or ``"nthwc"`` for clips.
        device: where the field is delivered; None leaves it on the host.
        sequence_length: T, the frames of a clip.
        stride: take every ``stride``-th frame of the segment; None spreads T frames evenly over it.
        random_start: begin at a random frame of the segment instead of its first; needs ``stride``.
        short: what to do with a segment that has too few frames. ``"pad"`` repeats its last frame, ``"loop"`` begins
            again at its first, and ``"drop"`` leaves the sample out before any decoding, going by column ``frame_count``.
        resize_shorter: shorthand for ``Resize(n)``: the shorter side, in pixels.
        crop: shorthand for ``CenterCrop(n)``, or for ``RandomCrop(n)`` with ``random_crop``.
        random_crop: crop at a random place, the same for all frames of a clip.
        max_pixels: most pixels of an image, or of each frame of a clip. A sample that claims more counts as unreadable.
            None means 2**26 for an image and 35.7 million for a frame.
        max_frames: most frames that may be decoded for one clip. None means 2**18.
        max_bytes: most encoded bytes that may be read for one sample. None means 2**30.
        orient: turn images as their EXIF tag Orientation says, before all transforms. Off, pixels are as the file has them.

    Raises:
        PlanError: an argument is out of range, or does not fit the others or the column.

    Example:
        ```python
        Stack("label_id", dtype="int64")
        Stack("image", decode="jpeg", transforms=[RandomResizedCrop(224), RandomHorizontalFlip()])
        Stack("video", decode="h264", sequence_length=16, stride=2, resize_shorter=256, crop=224)
        ```
    """

    column: str
    decode: str | None = None
    transforms: tuple[Any, ...] | Sequence[Any] = ()
    dtype: str | None = None
    layout: str | None = None
    device: str | None = None
    sequence_length: int | None = None
    stride: int | None = None
    random_start: bool = False
    short: str = "pad"
    resize_shorter: int | None = None
    crop: int | tuple[int, int] | None = None
    random_crop: bool = False
    max_pixels: int | None = None
    max_frames: int | None = None
    max_bytes: int | None = None
    orient: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        self._check_combination()
        self._check_limits()
        object.__setattr__(self, "transforms", tuple(self.transforms))
        if isinstance(self.crop, list):
            object.__setattr__(self, "crop", tuple(self.crop))

    def _check_types(self) -> None:
        if not isinstance(self.transforms, Sequence):
            msg = f"Stack({self.column!r}): transforms={self.transforms!r}. Give a list of them"
            raise PlanError(msg)
        if self.decode is not None and not isinstance(self.decode, str):
            msg = (
                f"Stack({shown(self.column)}): decode={shown(self.decode)} is a {type(self.decode).__name__}. Give the name of a "
                'decoder: decode="jpeg", "image" or "h264". To apply a function of your own, use map before collate'
            )
            raise PlanError(msg)
        for name in ("random_start", "random_crop", "orient"):
            if not isinstance(getattr(self, name), bool):
                msg = f"Stack({self.column!r}): {name}={getattr(self, name)!r}. Give True or False"
                raise PlanError(msg)
        if self.dtype is not None and self.dtype not in DTYPES:
            msg = f"Stack({self.column!r}): dtype={self.dtype!r} is unknown; it is one of {', '.join(DTYPES)}"
            raise PlanError(msg)

    def _check_combination(self) -> None:
        shorthands = (self.resize_shorter, self.crop, self.sequence_length, self.stride)
        if self.decode is None and (self.transforms or self.layout or any(each is not None for each in shorthands)):
            msg = f'Stack({self.column!r}): transforms, layout and frames need a decoded column. Give decode="jpeg" or "h264"'
            raise PlanError(msg)
        if self.orient and self.decode in (None, "h264"):
            msg = f'Stack({self.column!r}): orient=True turns images. Give decode="jpeg" or "image", or leave it out'
            raise PlanError(msg)
        if self.random_crop and self.crop is None:
            msg = f"Stack({self.column!r}): random_crop needs a size. Give crop=224"
            raise PlanError(msg)

    def _check_limits(self) -> None:
        for name in ("max_pixels", "max_frames", "max_bytes"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                msg = f"Stack({self.column!r}): {name}={value!r}. Give a whole number of at least 1, or None for the default"
                raise PlanError(msg)
            if self.decode is None or (name == "max_frames" and self.decode != "h264"):
                what = "clips" if name == "max_frames" else "decoded images and clips"
                msg = f'Stack({self.column!r}): {name} limits {what}. Give decode="h264", or leave it out'
                raise PlanError(msg)

    def spec(self, column: pa.Field) -> FieldSpec:
        semantic = semantic_of(column)
        if semantic is not None:
            how = {JPEG_REF: 'decode="jpeg"', H264_REF: 'decode="h264"'}.get(semantic)
            way = f"Say how to read them: {how}" if how else f'Use List("{self.column}"), which gives the bytes'
            msg = f"Stack({self.column!r}): the column is {semantic}, which names bytes. {way}"
            raise PlanError(msg)
        kind = _items(column.type)
        shape = fixed_shape(column.type)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            msg = (
                f"Stack({self.column!r}): the column is {column.type}; only numbers, booleans, timestamps and fixed-size "
                f'lists of them can be stacked. Use List("{self.column}") for Python values'
            )
            raise PlanError(msg)
        dtype = self.dtype or str(np.dtype(kind.to_pandas_dtype()))
        return FieldSpec(dtype, shape, None, self.device)

    def copies(self, kind: pa.DataType) -> bool:
        return self.dtype in (None, str(np.dtype(_items(kind).to_pandas_dtype())))

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NDArray[Any]:
        assert out is not None
        inner = values if values.null_count else leaves_of(values)
        if inner.null_count:
            place = int(np.flatnonzero(inner.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._refused(
                place * len(values) // len(inner),
                f"is null{'' if inner is values else ' in part'}. Filter it out before sample, "
                f'for example .filter(~col("{self.column}").is_null()), or use List',
            )
        if len(values) and len(inner) % len(values):
            raise self._refused(
                _first_part_null(values), "has a null list inside. Filter it out before sample, or use List"
            )
        found = fixed_numpy(values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values)
        with np.errstate(invalid="ignore", over="ignore"):  # what these would warn of is refused below
            out[...] = found
        if not np.can_cast(found.dtype, out.dtype, "safe"):
            wrong = out != found if out.dtype.kind in "biu" else np.isinf(out) & np.isfinite(found)
            if wrong.any():
                row = int(np.argwhere(wrong)[0, 0])
                value = found[wrong][0]
                raise self._refused(
                    row, f"{value} does not fit dtype {out.dtype}. Give a wider dtype, or compute a value that fits"
                )
        return out

    def _refused(self, row: int, found: str) -> DataError:
        return DataError(f"Stack({self.column!r}): the value {found}", row=row)


def _items(kind: pa.DataType) -> pa.DataType:
    """The type of the numbers that a column holds; timestamps are int64."""
    inner = leaf_type(kind)
    return pa.int64() if pa.types.is_timestamp(inner) else inner


def _first_part_null(values: pa.Array) -> int:
    """The first value that holds a null list."""
    whole = int(np.prod(fixed_shape(values.type)))
    return next(row for row in range(len(values)) if len(leaves_of(values.slice(row, 1))) != whole)
