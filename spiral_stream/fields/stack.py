"""`Stack`: values of equal shape become one array with a batch dimension."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import FLAG, check, class_door, integer
from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.fields.field import (
    Field,
    FieldSpec,
    as_fixed,
    decoded,
    fixed_items,
    fixed_numpy,
    fixed_parts,
    named,
    settle_dtype,
    write,
)
from spiral_stream.host_dtypes import numpy_dtype
from spiral_stream.semantic import AUDIO_REF, H264_REF, JPEG_REF, is_ragged, is_text, said_shape, semantic_of

DTYPES: Final = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "bfloat16"),
)
INTERPOLATIONS: Final = ("bilinear", "nearest")
_LIMIT: Final = integer(1, None, "a whole number of at least 1, or None for the default", none=True)
MODES: Final = ("RGB", "L", "I;16")


@final
@class_door(PlanError, excepted=("column", "layout", "short", "crop", "view", "mode", "interpolation"))
@dataclass(frozen=True, slots=True)
class Stack(Field):
    """One array with a batch dimension: numbers, images or clips.

    | column | shape | dtype |
    |---|---|---|
    | numbers, booleans, categories of them | ``[B]`` | the column's, or ``dtype`` |
    | fixed-size lists of K | ``[B, K]`` | the column's, or ``dtype`` |
    | fixed-size lists in each other, Arrow's fixed-shape tensors | ``[B, K, L, ...]`` | the column's, or ``dtype`` |
    | arrays of one shape in MDS, ``Array2D`` and its like of Hugging Face | ``[B, K, L, ...]`` | the column's, or ``dtype`` |
    | timestamps | ``[B]`` | int64, in the column's unit |
    | images | ``[B, 3, H, W]`` | uint8, float32 behind `Normalize`, or ``dtype`` |
    | lists of images | ``[B, N, 3, H, W]`` | uint8, float32 behind `Normalize`, or ``dtype`` |
    | clips | ``[B, T, 3, H, W]`` | uint8, float32 behind `Normalize`, or ``dtype`` |
    | sound | ``[B, C, T]`` | float32, or bfloat16; full scale is 1 |
    | masks of one channel | ``[B, H, W]`` | uint8 (of 16 bits: int32), or ``dtype`` |

    A clip is T frames of a segment of a video. All frames go through the same transforms with the same random numbers.

    Of a list of images, N is ``sequence_length``, or the longest list of the batch. What no image fills is 0; ``PadMask`` of
    the column tells it apart. Each image draws its own random numbers, unless ``draws_alike``.

    Args:
        column: a column of numbers, booleans, timestamps or fixed-size lists of them; or, with ``decode``, a reference
            to images or videos.
        decode: how to read a reference: ``"jpeg"``, ``"image"`` for any format that Pillow reads, ``"h264"``, or
            ``"audio"`` for any that libavcodec reads.
        transforms: image transforms in order, for a decoded column: those of this package, transforms and pipelines of
            torchvision and albumentations, image processors of transformers, and functions of a uint8 [H, W, 3] array (and
            of a NumPy generator that belongs to the sample). One alone needs no list. They run after the shorthands below.
        dtype: of the result, as NumPy, torch or Arrow name it (``"float16"``, ``torch.bfloat16``, ``"half"``); None keeps the
            column's type (for images and clips uint8, behind `Normalize` float32).
        layout: ``"nchw"`` (default) or ``"nhwc"`` for images, also those of lists, ``"ntchw"`` (default) or ``"nthwc"`` for
            clips, ``"nhw"`` (default), ``"nchw"`` or ``"nhwc"`` for masks of one channel.
        device: where the field is delivered; None leaves it on the host.
        sequence_length: T, the frames of a clip, or the values per channel of a sound; or N, the images of a list. A
            longer list is a `DataError`.
        stride: take every ``stride``-th frame of the segment; None spreads T frames evenly over it.
        random_start: begin at a random frame of the segment instead of its first; needs ``stride``. Of sound: at a random
            place.
        short: what to do with a segment that has too few frames. ``"pad"`` repeats its last frame, ``"loop"`` begins
            again at its first, and ``"drop"`` leaves the sample out before any decoding, going by column ``frame_count``.
        resize_shorter: shorthand for ``Resize(n)``: the shorter side, in pixels.
        crop: shorthand for ``CenterCrop(n)``, or for ``RandomCrop(n)`` with ``random_crop``.
        random_crop: crop at a random place, the same for all frames of a clip.
        max_pixels: most pixels of an image, or of each frame of a clip. A sample that claims more counts as unreadable.
            None means 2**26 for an image and 35.7 million for a frame.
        max_frames: most frames that may be decoded for one clip. None means 2**18.
        max_bytes: most encoded bytes that may be read for one sample. None means 2**30.
        sample_rate: of sound, in Hz; recordings of another rate are resampled.
        channels: of sound: 1 mixes all channels down, 2 gives stereo.
        centre: take the middle of the segment of a sound instead of its beginning.
        view: name of the random numbers. Fields of one view draw alike, so a mask follows its image; fields of different
            views are different crops of one image. None is a view of its own.
        mode: of a mask, ``"L"`` for one channel of 8 bits (the index, where the file has a palette), ``"I;16"`` for one of
            16 bits, or ``"RGB"``. Images are RGB.
        interpolation: ``"nearest"`` makes the field a mask: pixels are taken, never mixed, and transforms of colour leave
            it as it is. ``"bilinear"`` is for images.
        draws_alike: the images of one list draw the same random numbers, as the frames of a clip do.
        orient: turn images as their EXIF tag Orientation says, before all transforms. Off, pixels are as the file has them.

    Raises:
        PlanError: an argument is out of range, or does not fit the others or the column.

    Examples:
        >>> numbers = spiral.Stack("width", dtype="float32")
        >>> image = spiral.Stack(
        ...     "image", decode="jpeg", transforms=[spiral.RandomResizedCrop(16), spiral.RandomHorizontalFlip()]
        ... )
        >>> batch = samples.collate(batch_size=8, fields={"x": numbers, "image": image}).to_numpy()[0]
        >>> batch["x"].shape, batch["image"].shape
        ((8,), (8, 3, 16, 16))
        >>> clip = spiral.Stack("video", decode="h264", sequence_length=16, stride=2, resize_shorter=256, crop=224)
    """

    column: str
    decode: str | None = None
    transforms: tuple[Any, ...] | Sequence[Any] = ()
    dtype: str | Any | None = None
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
    sample_rate: int | None = None
    channels: int | None = None
    centre: bool = False
    view: str | None = None
    mode: str | None = None
    interpolation: str = "bilinear"
    draws_alike: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        self._check_combination()
        self._check_limits()
        self._check_mask()
        object.__setattr__(self, "transforms", tuple(self.transforms))
        if isinstance(self.crop, list):
            object.__setattr__(self, "crop", tuple(self.crop))

    def _check_types(self) -> None:
        if not isinstance(self.transforms, Sequence):
            object.__setattr__(
                self, "transforms", (self.transforms,)
            )  # one transform, or a pipeline of another library
        if self.decode is not None and not isinstance(self.decode, str):
            msg = (
                f"{named(self)}: decode={shown(self.decode)} is a {type(self.decode).__name__}. Give the name of a "
                'decoder: decode="jpeg", "image" or "h264". To apply a function of your own, use map before collate'
            )
            raise PlanError(msg)
        check(self, named(self), random_start=FLAG, random_crop=FLAG, orient=FLAG, centre=FLAG, draws_alike=FLAG)
        if self.dtype is not None:
            settle_dtype(self, DTYPES, " is unknown")

    def _check_combination(self) -> None:
        self._check_sound()
        shorthands = (self.resize_shorter, self.crop, self.sequence_length, self.stride)
        if self.decode is None and (self.transforms or self.layout or any(each is not None for each in shorthands)):
            msg = f'{named(self)}: transforms, layout and frames need a decoded column. Give decode="jpeg" or "h264"'
            raise PlanError(msg)
        if self.orient and self.decode in (None, "h264", "audio"):
            msg = f'{named(self)}: orient=True turns images. Give decode="jpeg" or "image", or leave it out'
            raise PlanError(msg)
        if self.draws_alike and self.decode in (None, "h264", "audio"):
            msg = f'{named(self)}: draws_alike=True is of lists of images. Give decode="image", or leave it out'
            raise PlanError(msg)
        if self.random_crop and self.crop is None:
            msg = f"{named(self)}: random_crop needs a size. Give crop=224"
            raise PlanError(msg)

    def _check_sound(self) -> None:
        sound = {"sample_rate": self.sample_rate, "channels": self.channels, "centre": self.centre or None}
        wrong = [name for name, value in sound.items() if value is not None]
        if wrong and self.decode != "audio":
            msg = f'{named(self)}: {wrong[0]} is of sound. Give decode="audio", or leave it out'
            raise PlanError(msg)
        of_pixels = ("transforms", "layout", "stride", "resize_shorter", "crop", "max_pixels")
        wrong = [name for name in of_pixels if getattr(self, name)]
        if wrong and self.decode == "audio":
            msg = f"{named(self)}: {wrong[0]} is of images and clips, and decode='audio' reads sound. Leave it out"
            raise PlanError(msg)
        if self.centre and self.random_start:
            msg = f"{named(self)}: centre and random_start say two places. Give one of them"
            raise PlanError(msg)

    def _check_mask(self) -> None:
        if self.view is not None and (not isinstance(self.view, str) or not self.view or self.decode is None):
            msg = f'{named(self)}: view={self.view!r}. Give a name, such as view="a", on a field with decode='
            raise PlanError(msg)
        if self.interpolation not in INTERPOLATIONS or self.mode not in (None, *MODES):
            msg = (
                f"{named(self)}: interpolation={self.interpolation!r}, mode={self.mode!r}. interpolation is one of "
                f"{', '.join(INTERPOLATIONS)}; mode is one of {', '.join(MODES)}"
            )
            raise PlanError(msg)
        if self.interpolation == "nearest" and self.decode != "image":
            msg = (
                f'{named(self)}: a mask (interpolation="nearest") is read by decode="image", not {self.decode!r}; '
                "JPEG and video change labels. Store masks as PNG"
            )
            raise PlanError(msg)
        if self.interpolation != "nearest" and self.mode not in (None, "RGB"):
            msg = f'{named(self)}: mode={self.mode!r} is of masks. Add interpolation="nearest", or leave mode out'
            raise PlanError(msg)

    def _check_limits(self) -> None:
        check(self, named(self), max_pixels=_LIMIT, max_frames=_LIMIT, max_bytes=_LIMIT)
        for name in ("max_pixels", "max_frames", "max_bytes"):
            if getattr(self, name) is None:
                continue
            if self.decode is None or (name == "max_frames" and self.decode not in ("h264", "audio")):
                what = "clips" if name == "max_frames" else "decoded images and clips"
                msg = f'{named(self)}: {name} limits {what}. Give decode="h264", or leave it out'
                raise PlanError(msg)

    @property
    def is_decoded(self) -> bool:
        return self.decode is not None

    def in_evaluation(self, fixed: Callable[[Any], tuple[Any, ...]]) -> Field:
        if self.decode is None:
            return self
        transforms = tuple(part for each in self.transforms for part in fixed(each))
        return replace(self, transforms=transforms, random_start=False, random_crop=False)

    def spec(self, column: pa.Field) -> FieldSpec:
        semantic = semantic_of(column)
        if semantic is not None:
            how = {JPEG_REF: 'decode="jpeg"', H264_REF: 'decode="h264"', AUDIO_REF: 'decode="audio"'}.get(semantic)
            way = f"Say how to read them: {how}" if how else f'Use List("{self.column}"), which gives the bytes'
            msg = f"{named(self)}: the column is {semantic}, which names bytes. {way}"
            raise PlanError(msg)
        kind, shape = _shaped(column)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            msg = (
                f"{named(self)}: the column is {column.type}; only numbers, booleans, timestamps, fixed-size "
                f'lists of them and tensors can be stacked. {_instead(self.column, column.type)}Use List("{self.column}") for '
                "Python values"
            )
            raise PlanError(msg)
        dtype = self.dtype or str(numpy_dtype(kind))
        return FieldSpec(dtype, shape, None, self.device)

    def copies(self, kind: pa.DataType) -> bool:
        items, shape = _items(kind)
        if is_ragged(kind):
            return False
        same = self.dtype in (None, str(numpy_dtype(items)))
        return same and len(shape) <= 1 and not pa.types.is_dictionary(kind)

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NDArray[Any]:
        assert out is not None
        values = decoded(values)
        if is_ragged(values.type):
            values, wrong_row = as_fixed(values, out.shape[1:])
            if wrong_row is not None:
                shape = ", ".join(map(str, out.shape[1:]))
                raise self._refused(
                    wrong_row, f"is no array of shape {shape}, which its source says of all. Mend it, or use List"
                )
        _, null = fixed_items(values)
        if null is not None:
            filled = f"select *, coalesce({self.column}, ...) as ... from ..."  # noqa: S608  a text for people
            raise self._refused(
                null,
                f"is null{'' if values[null].as_py() is None else ' in part'}. Filter it out before sample, for example "
                f'.filter(~col("{self.column}").is_null()), or fill it, catalog.sql("{filled}"), or use List',
            )
        found = fixed_numpy(values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values)
        found = found.reshape(out.shape)  # a source may say more of its lists than their length
        wrong = write(found, out)
        if wrong is not None:
            row, value = int(np.argwhere(wrong)[0, 0]), found[wrong][0]
            raise self._refused(
                row,
                f"{value} does not fit dtype {self.dtype or out.dtype}. Give a wider dtype, or compute a value that fits",
            )
        return out

    def _refused(self, row: int, found: str) -> DataError:
        return DataError(f"{named(self)}: the value {found}", row=row)


def _instead(column: str, kind: pa.DataType) -> str:
    """What delivers a column of this type as numbers; nothing if that is not known."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if is_ragged(kind):
        items = kind.value_type
        if not (pa.types.is_integer(items) or pa.types.is_floating(items)):
            return ""  # lists of lists, of texts
        dtype = f', dtype="{numpy_dtype(items)}"' if pa.types.is_floating(items) else ""
        if pa.types.is_float16(items):  # DuckDB has no such numbers
            return f'Pad("{column}"{dtype}) pads to the longest list. '
        name = {"int8": "tinyint"}.get(str(items), str(items))
        made = f'catalog.sql("select *, {column}::{name}[64] as ... from ...")'  # noqa: S608  a text for people
        return f'Pad("{column}"{dtype}) pads to the longest list. Lists of one length, such as 64: {made}. '
    if pa.types.is_decimal(kind):
        return f'Make it a float: catalog.sql("select *, {column}::double as ... from ..."). '  # noqa: S608
    if is_text(kind):
        return f'Number its values: catalog.sql("select *, list_position([...], {column}) as ... from ..."). '  # noqa: S608
    return ""


def _shaped(column: pa.Field) -> tuple[pa.DataType, tuple[int, ...]]:
    """As `_items`, with the shape that the source of a column says."""
    items, shape = _items(column.type)
    said = said_shape(column)
    if said is None:
        return items, shape
    if math.prod(shape) == math.prod(said) and shape:
        return items, said
    for _ in said:
        if not is_ragged(items):
            return items, shape
        items = items.value_type
    return items, said


def _items(kind: pa.DataType) -> tuple[pa.DataType, tuple[int, ...]]:
    """The type of the numbers that a column holds, and the shape of each value; timestamps are int64."""
    inner, shape = fixed_parts(kind)
    return (pa.int64() if pa.types.is_timestamp(inner) else inner), shape
