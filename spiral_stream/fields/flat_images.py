"""The images of rows of text, end to end: `FlatImages`, and what a batch says of them next to it.

A batch holds the pieces of all of its images, without padding, in the order of their places in the text. `ImageGrids` has
their grids, `ImagePlaces` which row, which segment and which place of the text each belongs to, and `GridPositions` positions
of three axes. Here is the arithmetic, over whole batches; `runtime.fields.flat_images` fills the fields.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import check, class_door, integer, of_kind, one_of, text
from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields.field import Field, FieldSpec, named, settle_dtype
from spiral_stream.fields.image_layouts import ImageLayout
from spiral_stream.fields.sequence import SequenceField, SequenceLayout, is_tokens
from spiral_stream.semantic import JPEG_REF, is_list, need_sizes, semantic_of

# B rows, T places of a row, S samples, I images of a batch, M places of images

Int64 = NDArray[np.int64]

DTYPES: Final = ("float32", "float16", "bfloat16", "uint8")
INTERPOLATIONS: Final = ("bicubic", "bilinear")
AXES: Final = 3  # frame, row, column
_WIDE: Final = ("int64", "int32")
_RULES: Final = {
    "layout": of_kind(ImageLayout, "an image layout, such as spiral.fields.PatchLayout(patch_size=14, merge_size=2)"),
    "sizes": text("the name of a column of heights and widths"),
    "tokens": text("the name of a column of tokens, or leave it out", none=True),
    "token_id": integer(0, None, "the id that marks the places of images, or leave it out", none=True),
    "decode": one_of(("jpeg", "image"), '"jpeg", or "image" for any format of Pillow'),
    "interpolation": one_of(INTERPOLATIONS),
}


class FlatField(Field):
    """A field of the images of a batch, which has no value per row."""

    PER_ROW: ClassVar[bool] = False
    PACKS: ClassVar[bool] = True
    is_decoded: ClassVar[bool] = True

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NDArray[Any]:
        """Never called: bytes are decoded instead."""
        raise NotImplementedError


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class FlatImages(FlatField):
    """The images of a batch in pieces, end to end: ``[N, *piece]``, those of the first image of the first sample first.

    The layout says how each image is resized and cut: these are the ``pixel_values`` of Qwen2-VL (`PatchLayout`), of LLaVA
    (`FixedLayout`), and of LLaVA-NeXT without its padding (`TileLayout`). Images are read and decoded when their batch is
    made, and no others. One whose size is not what the column of sizes says is a bad sample.

    Args:
        column: lists of images, one list per sample.
        layout: how an image becomes pieces and tokens; the same as in `ImageTokens`.
        sizes: a column with the height and width of each image, ``list<struct<height, width>>``.
        tokens: the column of tokens in which images have their places.
        token_id: the id that marks these places. With it each batch is checked: every image has as many places as its layout
            says. `ImagePlaces` and `GridPositions` need it.
        decode: ``"jpeg"``, or ``"image"`` for any format that Pillow reads.
        interpolation: of the resize to the layout's size: ``"bicubic"``, as these models' processors have it, or
            ``"bilinear"``; antialiased both.
        transforms: image transforms in order, after the resize: those that keep the size, and `Normalize`. With a
            `FixedLayout` they end in its size.
        dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``, from 0 to 1 without `Normalize`; or ``"uint8"``.
        device: where the field is delivered; None leaves it on the host.
        view: name of the random numbers, as of `Stack`.

    Examples:
        >>> layout = spiral.fields.PatchLayout(patch_size=14, merge_size=2)
        >>> field = spiral.fields.FlatImages("images", layout, transforms=[spiral.Normalize((0.5,) * 3, (0.5,) * 3)])
        >>> field.layout.patch_shape, field.columns
        ((1176,), ('images', 'sizes'))
    """

    column: str
    layout: ImageLayout
    sizes: str = "sizes"
    tokens: str | None = None
    token_id: int | None = None
    decode: str = "image"
    interpolation: str = "bicubic"
    transforms: tuple[Any, ...] | Sequence[Any] = ()
    dtype: str | Any = "float32"
    device: str | None = None
    view: str | None = None

    def __post_init__(self) -> None:
        check(self, named(self), **_RULES)
        settle_dtype(self, DTYPES, " is unknown")
        object.__setattr__(self, "transforms", tuple(self.transforms))
        if (self.tokens is None) != (self.token_id is None):
            left = "tokens" if self.tokens is None else "token_id"
            msg = f"{named(self)}: tokens and token_id go together, and {left} is not given. Give both, or neither"
            raise PlanError(msg)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, self.sizes)

    def need_column(self, where: str, column: pa.Field) -> None:
        need_sizes(where, column)

    def spec(self, column: pa.Field) -> FieldSpec:
        if semantic_of(column) != JPEG_REF or not is_list(column.type):
            found = f"one {JPEG_REF} per row" if semantic_of(column) == JPEG_REF else semantic_of(column) or column.type
            msg = f"{named(self)}: the column is {found}. Give a column of lists of images, {JPEG_REF}"
            raise PlanError(msg)
        return FieldSpec(str(self.dtype), self.layout.patch_shape, None, self.device)

    def spec_among(self, spec: FieldSpec, fields: Sequence[Field]) -> FieldSpec:
        of = [each for each in fields if isinstance(each, FlatImages) and each.column == self.column]
        if len({(each.layout, each.sizes, each.tokens, each.token_id) for each in of}) > 1:
            msg = (
                f"{named(self)}: fields of the column have other layouts, sizes or tokens. Give all of them the same; "
                "a column may be read under two names with .with_columns"
            )
            raise PlanError(msg)
        if self.tokens is not None and not any(_reads(each, self.tokens) for each in fields):
            msg = f"{named(self)}: tokens={self.tokens!r}, and no field reads it. Add one, for example Pad({self.tokens!r})"
            raise PlanError(msg)
        return spec

    def in_evaluation(self, fixed: Callable[[Any], tuple[Any, ...]]) -> Field:
        return replace(self, transforms=tuple(part for each in self.transforms for part in fixed(each)))


def _reads(field: Field, column: str) -> bool:
    return isinstance(field, SequenceField) and field.column == column


class OfFlatImages(FlatField):
    """What a batch says of the images of a column, next to `FlatImages`."""

    NEEDS_PLACES: ClassVar[bool] = False  # whether places in the text are asked for

    @property
    def images(self) -> str:
        """The column of images."""
        return self.column

    def spec_among(self, spec: FieldSpec, fields: Sequence[Field]) -> FieldSpec:
        of = [each for each in fields if isinstance(each, FlatImages) and each.column == self.images]
        if not of:
            msg = f"{named(self)}: no field makes images of {self.images!r}. Add FlatImages({self.images!r}, ...)"
            raise PlanError(msg)
        if self.NEEDS_PLACES and of[0].token_id is None:
            msg = (
                f"{named(self)} says where images stand in the text, and FlatImages({self.images!r}) does not know their mark. "
                "Give it tokens= and token_id="
            )
            raise PlanError(msg)
        return self._checked(spec, of[0])

    def _checked(self, spec: FieldSpec, of: FlatImages) -> FieldSpec:
        del of
        return spec


class ImageNumbers(OfFlatImages):
    """Some integers of each image of a batch, ``[I, WIDTH]``."""

    WIDTH: ClassVar[int]

    dtype: str | Any
    device: str | None

    def __post_init__(self) -> None:
        settle_dtype(self, _WIDE, " is unknown")

    def spec(self, column: pa.Field) -> FieldSpec:
        del column
        return FieldSpec(str(self.dtype), (self.WIDTH,), None, self.device)


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class ImageGrids(ImageNumbers):
    """Frames, rows and columns of pieces of each image of a batch, ``[I, 3]``: the ``image_grid_thw`` of Qwen2-VL.

    Args:
        column: the same as in `FlatImages`.
        dtype: ``"int64"`` or ``"int32"``.
        device: where the field is delivered; None leaves it on the host.

    Examples:
        >>> spiral.fields.ImageGrids("images").spec(pa.field("images", pa.list_(pa.binary()))).shape
        (3,)
    """

    WIDTH: ClassVar[int] = AXES

    column: str
    dtype: str | Any = "int64"
    device: str | None = None


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class ImageExtents(ImageNumbers):
    """Height and width of each image of a batch as it is stored, ``[I, 2]``: the ``image_sizes`` of LLaVA-NeXT.

    Args:
        column: the same as in `FlatImages`.
        dtype: ``"int64"`` or ``"int32"``.
        device: where the field is delivered; None leaves it on the host.

    Examples:
        >>> spiral.fields.ImageExtents("images").spec(pa.field("images", pa.list_(pa.binary()))).shape
        (2,)
    """

    WIDTH: ClassVar[int] = 2

    column: str
    dtype: str | Any = "int64"
    device: str | None = None


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class ImagePlaces(ImageNumbers):
    """Where each image of a batch stands in the text, ``[I, 4]``: row, segment, first place in the row, number of places.

    Segments count as in `Segments`: from 1 in each row.

    Args:
        column: the same as in `FlatImages`, which knows the mark.
        dtype: ``"int64"`` or ``"int32"``.
        device: where the field is delivered; None leaves it on the host.

    Examples:
        >>> spiral.fields.ImagePlaces("images").spec(pa.field("images", pa.list_(pa.binary()))).shape
        (4,)
    """

    NEEDS_PLACES: ClassVar[bool] = True
    WIDTH: ClassVar[int] = 4

    column: str
    dtype: str | Any = "int64"
    device: str | None = None


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class GridPositions(OfFlatImages):
    """Positions on three axes, ``[B, 3, T]``: frame, row and column for places of images, and one number thrice for text.

    They are those of Qwen2-VL's multimodal rotary embedding, and begin at 0 in each segment; 0 at padding. An image's places
    begin where the text before it ends; the text behind it goes on after the longer side of its grid. transformers takes
    ``batch["position_ids"].transpose(0, 1)``.

    Args:
        column: the token column, the same as in `Pad`, and as ``tokens`` of `FlatImages`.
        images: the column of images.
        dtype: ``"int64"`` or ``"int32"``.
        device: where the field is delivered; None leaves it on the host.

    Examples:
        >>> spiral.fields.GridPositions("tokens").spec(pa.field("tokens", pa.list_(pa.int32()))).shape
        (3, None)
    """

    PER_ROW: ClassVar[bool] = True
    NEEDS_PLACES: ClassVar[bool] = True
    is_decoded: ClassVar[bool] = False

    column: str
    images: str = "images"
    dtype: str | Any = "int64"
    device: str | None = None

    def __post_init__(self) -> None:
        settle_dtype(self, _WIDE, " is unknown")

    def spec(self, column: pa.Field) -> FieldSpec:
        if not is_tokens(column.type):
            msg = f"{named(self)}: the column is {column.type}. Name the column of tokens, lists of integers"
            raise PlanError(msg)
        return FieldSpec(str(self.dtype), (AXES, None), None, self.device)

    def _checked(self, spec: FieldSpec, of: FlatImages) -> FieldSpec:
        if of.tokens != self.column:
            msg = f"{named(self)}: FlatImages({self.images!r}) has its places in {of.tokens!r}. Name the same column in both"
            raise PlanError(msg)
        if of.layout.token_grids(np.array([[64, 64]])) is None:
            msg = f"{named(self)}: tokens of {type(of.layout).__name__} lie in no grid. Use Positions({self.column!r})"
            raise PlanError(msg)
        return spec


# ---- where images stand


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlacedImages:
    """Where the images of a batch stand in its rows."""

    owners: Int64  # [I] sample, or piece of a packed row
    firsts: Int64  # [I] first place in the flattened rows
    counts: Int64  # [I] places
    at: Int64  # [M] places of all images in the flattened rows, ascending

    def as_field(self, layout: SequenceLayout, out: NDArray[Any]) -> None:
        """Write row, segment, first place and number of places of each image, shape [I, 4]."""
        out[:, 0], out[:, 2] = np.divmod(self.firsts, layout.T)
        out[:, 1] = segment_numbers(layout)[self.owners]
        out[:, 3] = self.counts


def segment_numbers(layout: SequenceLayout) -> Int64:
    """Return the number of each sequence in its row, from 1, as `Segments` counts; shape [S]."""
    if layout.numbers is not None:
        return layout.numbers
    counted = np.cumsum(layout.lengths > 0)
    before = np.concatenate(([0], counted))[np.searchsorted(layout.rows, layout.rows)]
    return np.asarray(counted - before)


def placed(ids_BT: Int64, layout: SequenceLayout, mark: int, owners: Int64, counts: Int64) -> PlacedImages:
    """Find the places of images in a batch.

    Args:
        ids_BT: the tokens, shape [B, T], with another value than ``mark`` at padding.
        layout: where the sequences of samples lie in it.
        mark: the id of an image's places.
        owners: shape [I], ascending: the sample of each image.
        counts: shape [I]: the places that each image takes.

    Raises:
        DataError: a sample has more or fewer places than its images take, or text between those of an image; ``row`` says which.
    """
    at = np.flatnonzero(ids_BT.reshape(-1) == mark)
    begins = layout.rows * layout.T + layout.starts
    whose = np.searchsorted(begins, at, side="right") - 1
    samples = len(begins)
    found = np.bincount(whose, minlength=samples)
    wanted = np.bincount(owners, counts, minlength=samples).astype(np.int64)
    if (wrong := np.flatnonzero(found != wanted)).size:
        row = int(wrong[0])
        msg = (
            f"its tokens have {found[row]:,} places of images (id {mark}), and by their sizes and the layout its images take "
            f"{wanted[row]:,}. Give FlatImages the layout and the sizes that ImageTokens has"
        )
        raise DataError(msg, row=row)
    ends = np.cumsum(counts)
    firsts = at[ends - counts] if len(at) else np.zeros(len(counts), np.int64)
    parted = np.flatnonzero(at[ends - 1] - firsts != counts - 1) if len(at) else ends[:0]
    if len(parted):
        msg = f"text stands between the places of image {int(parted[0])} of the batch (id {mark}). Mend its tokens"
        raise DataError(msg, row=int(owners[parted[0]]))
    return PlacedImages(owners, firsts, counts, at)


def grid_positions(
    layout: SequenceLayout, images: PlacedImages, grids_I3: Int64, out_B3T: NDArray[Any]
) -> NDArray[Any]:
    """Write positions on three axes.

    Args:
        layout: where the sequences lie.
        images: where the images stand.
        grids_I3: frames, rows and columns of the tokens of each image.
        out_B3T: shape [B, 3, T]; overwritten.

    Returns:
        ``out_B3T``.
    """
    real = layout.lengths > 0
    begins, lengths = (layout.rows * layout.T + layout.starts)[real], layout.lengths[real]
    covered = np.arange(int(lengths.sum())) + np.repeat(begins - np.cumsum(lengths) + lengths, lengths)
    steps = np.zeros(layout.B * layout.T, np.int64)  # how far the text goes on at each place
    steps[covered] = 1
    steps[images.at] = 0
    steps[images.firsts + images.counts - 1] = grids_I3[:, 1:].max(axis=1, initial=0)
    before = np.cumsum(steps) - steps
    base = np.zeros(len(steps), np.int64)
    base[covered] = before[covered] - np.repeat(before[begins], lengths)
    flat = np.repeat(base[:, None], AXES, axis=1)
    nth = np.arange(len(images.at)) - np.repeat(np.cumsum(images.counts) - images.counts, images.counts)
    _, rows, columns = (np.repeat(side, images.counts) for side in grids_I3.T)
    area = rows * columns
    offsets = np.stack([nth // area, nth % area // columns, nth % columns], axis=1) if len(nth) else flat[:0]
    flat[images.at] += offsets
    out_B3T[:] = flat.reshape(layout.B, layout.T, AXES).transpose(0, 2, 1)
    return out_B3T
