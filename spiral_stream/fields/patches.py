"""An image as patches, with its grid and a mask: `Patches`, `PatchGrid`, `PatchMask`.

Each image keeps its aspect ratio: it gets the most whole patches that a batch has room for, as in NaFlex of SigLIP 2. Here is the
arithmetic: how many rows and columns an image of some size has, and how pixels are cut; `runtime.fields.patches` fills batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import check, class_door, integer, one_of
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field, FieldSpec, named, settle_dtype
from spiral_stream.semantic import JPEG_REF, is_list, semantic_of

# P images, N patches of an image in a batch, S side of a patch in pixels

CHANNELS: Final = 3
DTYPES: Final = ("float32", "float16", "bfloat16", "uint8")
_WIDE: Final = ("int64", "int32")
_MASKS: Final = ("bool", "int64", "int32", "uint8")
_COUNT: Final = integer(1, None, "a whole number of at least 1")
_DECODE: Final = one_of(("jpeg", "image"), '"jpeg", or "image" for any format of Pillow')
_EPS: Final = 1e-5  # of the scale that is searched, as in transformers
_LARGEST: Final = 100.0  # scale


class PatchField(Field):
    """A field that is made of the patches of an image column."""

    is_decoded: ClassVar[bool] = True

    def fill(self, values: pa.Array, out: NDArray[Any] | None) -> NDArray[Any]:
        """Never called: bytes are decoded instead."""
        raise NotImplementedError


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class Patches(PatchField):
    """An image as patches: ``[B, N, S * S * 3]``, row by row of the image, and 0 behind its last patch.

    An image is resized, with its aspect ratio as far as whole patches allow, to as many patches as fit into N. These are the
    ``pixel_values`` of SigLIP 2 (NaFlex); `PatchMask` of the column is their ``pixel_attention_mask``, and `PatchGrid` the
    ``spatial_shapes``. ``patches[mask]`` are the patches of a batch end to end, without padding.

    Args:
        column: of images, one per row.
        patch_size: S, the side of a patch in pixels.
        max_patches: N.
        decode: ``"jpeg"``, or ``"image"`` for any format that Pillow reads.
        transforms: image transforms in order, after the resize. They keep the size: `RandomHorizontalFlip`, `ColorJitter`,
            `Normalize`.
        dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``, from 0 to 1 without `Normalize`; or ``"uint8"``.
        device: where the field is delivered; None leaves it on the host.
        view: name of the random numbers, as of `Stack`.

    Examples:
        >>> fields = {
        ...     "pixel_values": spiral.fields.Patches("image", patch_size=8, max_patches=16),
        ...     "pixel_attention_mask": spiral.fields.PatchMask("image"),
        ...     "spatial_shapes": spiral.fields.PatchGrid("image"),
        ... }
        >>> batch = samples.collate(batch_size=4, fields=fields).to_numpy()[0]
        >>> batch["pixel_values"].shape, batch["spatial_shapes"].shape
        ((4, 16, 192), (4, 2))
    """

    column: str
    patch_size: int = 16
    max_patches: int = 256
    decode: str = "image"
    transforms: tuple[Any, ...] | Sequence[Any] = ()
    dtype: str | Any = "float32"
    device: str | None = None
    view: str | None = None

    def __post_init__(self) -> None:
        check(self, named(self), patch_size=_COUNT, max_patches=_COUNT, decode=_DECODE)
        settle_dtype(self, DTYPES, " is unknown")
        object.__setattr__(self, "transforms", tuple(self.transforms))

    def spec(self, column: pa.Field) -> FieldSpec:
        if semantic_of(column) != JPEG_REF or is_list(column.type):
            found = f"a list of {JPEG_REF}" if is_list(column.type) else semantic_of(column) or column.type
            msg = f"{named(self)}: the column is {found}. Give a column of images, {JPEG_REF}, one per row"
            raise PlanError(msg)
        return FieldSpec(str(self.dtype), (self.max_patches, CHANNELS * self.patch_size**2), None, self.device)

    def in_evaluation(self, fixed: Callable[[Any], tuple[Any, ...]]) -> Field:
        return replace(self, transforms=tuple(part for each in self.transforms for part in fixed(each)))

    def grids(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return rows and columns of patches of images: the largest scale at which they are no more than N.

        The search is that of transformers, step by step, for all images at once: 21 us, and 0.4 us per image.

        Args:
            sizes: shape [P, 2]: heights and widths.

        Returns:
            shape [P, 2].
        """
        low, high = np.full(len(sizes), _EPS / 10), np.full(len(sizes), _LARGEST)
        while len(low) and high[0] - low[0] >= _EPS:  # all images are halved alike
            scale = (low + high) / 2
            fits = self._scaled(sizes, scale).prod(axis=1) <= self.max_patches
            low, high = np.where(fits, scale, low), np.where(fits, high, scale)
        return self._scaled(sizes, low)

    def _scaled(self, sizes: NDArray[np.int64], scale: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.maximum(1, np.ceil(sizes * scale[:, None] / self.patch_size)).astype(np.int64)

    def cut(self, pixels: NDArray[Any], out: NDArray[Any]) -> None:
        """Cut images of one grid into patches.

        Args:
            pixels: shape [P, rows * S, columns * S, 3].
            out: shape [P, rows * columns, S * S * 3]; overwritten.
        """
        side, (count, height, width, _) = self.patch_size, pixels.shape
        tiles = pixels.reshape(count, height // side, side, width // side, side, CHANNELS)
        out[:] = tiles.transpose(0, 1, 3, 2, 4, 5).reshape(out.shape)

    def put_together(self, patches: NDArray[Any], grid: Sequence[int]) -> NDArray[Any]:
        """Return the picture that an image's patches are of, shape [rows * S, columns * S, 3]."""
        (rows, columns), side = grid, self.patch_size
        tiles = patches[: rows * columns].reshape(rows, columns, side, side, CHANNELS)
        return tiles.transpose(0, 2, 1, 3, 4).reshape(rows * side, columns * side, CHANNELS)


class _OfPatches(PatchField):
    """What a batch says of the patches of a column, next to `Patches`."""

    def spec_among(self, spec: FieldSpec, fields: Sequence[Field]) -> FieldSpec:
        of = [each for each in fields if isinstance(each, Patches) and each.column == self.column]
        forms = {(each.patch_size, each.max_patches) for each in of}
        if len(forms) == 1:
            return replace(spec, shape=(of[0].max_patches,)) if self.MASK else spec
        found = "no field makes them of this column" if not of else "fields make them in several sizes"
        way_out = f"Add Patches({self.column!r})" if not of else "Give all of them one patch_size and max_patches"
        msg = f"{named(self)} goes with patches, and {found}. {way_out}"
        raise PlanError(msg)


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class PatchMask(_OfPatches):
    """True where ``[B, N]`` holds a patch of `Patches`, False behind the last one.

    Args:
        column: the same as in `Patches`.
        dtype: ``"bool"``, ``"int64"``, ``"int32"`` or ``"uint8"``.
        device: where the field is delivered; None leaves it on the host.

    Examples:
        >>> fields = {
        ...     "patches": spiral.fields.Patches("image", patch_size=8, max_patches=16),
        ...     "there": spiral.fields.PatchMask("image"),
        ... }
        >>> batch = samples.collate(batch_size=4, fields=fields).to_numpy()[0]
        >>> batch["there"].shape, batch["patches"][batch["there"]].shape[1]
        ((4, 16), 192)
    """

    MASK: ClassVar[bool] = True

    column: str
    dtype: str | Any = "bool"
    device: str | None = None

    def __post_init__(self) -> None:
        settle_dtype(self, _MASKS, " is unknown")

    def spec(self, column: pa.Field) -> FieldSpec:
        del column
        return FieldSpec(str(self.dtype), (None,), None, self.device)


@final
@class_door(PlanError, excepted=("column",))
@dataclass(frozen=True, slots=True)
class PatchGrid(_OfPatches):
    """Rows and columns of patches of each image, ``[B, 2]``: the first ``rows * columns`` patches of its row are its own.

    Args:
        column: the same as in `Patches`.
        dtype: ``"int64"`` or ``"int32"``.
        device: where the field is delivered; None leaves it on the host.

    Examples:
        >>> fields = {
        ...     "patches": spiral.fields.Patches("image", patch_size=8, max_patches=16),
        ...     "grid": spiral.fields.PatchGrid("image"),
        ... }
        >>> samples.collate(batch_size=4, fields=fields).to_numpy().spec()["grid"].shape
        (2,)
    """

    column: str
    dtype: str | Any = "int64"
    device: str | None = None

    def __post_init__(self) -> None:
        settle_dtype(self, _WIDE, " is unknown")

    def spec(self, column: pa.Field) -> FieldSpec:
        del column
        return FieldSpec(str(self.dtype), (2,), None, self.device)
