"""How an image becomes pieces of pixels and tokens of a text, from its width and height alone: `ImageLayout`.

A model that reads text and images gives each image some places of the text, and takes its pixels in pieces: whole images,
patches or tiles. Both numbers follow from the size of the image, so lengths, budgets and places are known before a byte of
it is decoded. Three families are here: one size for all (`FixedLayout`, as LLaVA), patches of an image in its own aspect
ratio (`PatchLayout`, as Qwen2-VL), and tiles of a stated list of sizes (`TileLayout`, as LLaVA-NeXT).

Cost: arithmetic over all images at once, 0.2 us per image; tiles 0.1 us per image and size of the list.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import check, class_door, integer
from spiral_stream.errors import PlanError, shown

# I images, N pieces of an image, S side of a piece in pixels

Int64 = NDArray[np.int64]

CHANNELS: Final = 3
_COUNT: Final = integer(1, None, "a whole number of at least 1")
_PIXELS: Final = integer(1, 2**40, "a whole number of pixels of at least 1")
_PAIR: Final = 2
_STEEPEST: Final = 200  # sides of an image, as transformers refuses others
_DIGITS: Final = 7  # of a side, as transformers rounds it


@final
@dataclass(frozen=True, slots=True)
class ImageView:
    """One picture that is made of an image: resized, and laid into the middle of a canvas of zeros.

    Examples:
        >>> view, = spiral.fields.PatchLayout(patch_size=14).views(50, 100)
        >>> view.resized, view.canvas
        ((56, 112), (56, 112))
    """

    resized: tuple[int, int] | None  # height, width; None: as the field's transforms leave it
    canvas: tuple[int, int]
    patches: int  # that the canvas is cut into
    corner: tuple[int, int] = (0, 0)  # of the resized picture in the canvas: top, left


class ImageLayout(ABC):
    """How many tokens and pieces images take. Derive a frozen dataclass from it for a model of your own.

    Sizes are arrays of shape [I, 2], int64: heights and widths, at least 1.

    Examples:
        >>> layout = spiral.fields.PatchLayout(patch_size=14, merge_size=2)
        >>> layout.token_counts(np.array([[56, 112], [280, 280]])).tolist()
        [8, 100]
    """

    VERSION: ClassVar[int] = 1

    @property
    @abstractmethod
    def patch_shape(self) -> tuple[int, ...]:
        """The shape of one piece in the batch."""

    @abstractmethod
    def token_counts(self, sizes: Int64) -> Int64:
        """Return how many places of the text each image takes; shape [I]."""

    @abstractmethod
    def grids(self, sizes: Int64) -> Int64:
        """Return frames, rows and columns of the pieces of each image; shape [I, 3]."""

    @abstractmethod
    def views(self, height: int, width: int) -> tuple[ImageView, ...]:
        """Return the pictures that are made of an image of some size, in the order of its pieces."""

    @abstractmethod
    def cut(self, canvas: NDArray[Any], out: NDArray[Any]) -> None:
        """Cut canvases of one size into pieces.

        Args:
            canvas: shape [I, 3, height, width].
            out: shape [I, N, *patch_shape]; overwritten.
        """

    def patch_counts(self, sizes: Int64) -> Int64:
        """Return how many pieces each image has; shape [I]."""
        return np.asarray(self.grids(sizes).prod(axis=1))

    def token_grids(self, sizes: Int64) -> Int64 | None:
        """Return frames, rows and columns of the tokens of each image, shape [I, 3]; None where they lie in no grid."""
        del sizes
        return None

    def refused(self, sizes: Int64) -> NDArray[np.bool_]:
        """Return which images the layout cannot take; shape [I]."""
        return np.asarray((sizes < 1).any(axis=1))


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class FixedLayout(ImageLayout):
    """Every image ends in one size and takes the same number of tokens, as in LLaVA.

    The transforms of the field bring images to that size.

    Args:
        size: height and width in which images enter the model.
        tokens: places of the text that each image takes.

    Examples:
        >>> layout = spiral.fields.FixedLayout(size=(336, 336), tokens=576)
        >>> layout.patch_shape, layout.token_counts(np.array([[10, 20]])).tolist()
        ((3, 336, 336), [576])
    """

    size: tuple[int, int]
    tokens: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _checked_side("FixedLayout", "size", self.size))
        check(self, "FixedLayout", " is ", tokens=_COUNT)

    @property
    def patch_shape(self) -> tuple[int, ...]:
        return (CHANNELS, *self.size)

    def token_counts(self, sizes: Int64) -> Int64:
        return np.full(len(sizes), self.tokens, np.int64)

    def grids(self, sizes: Int64) -> Int64:
        return np.ones((len(sizes), 3), np.int64)

    def views(self, height: int, width: int) -> tuple[ImageView, ...]:
        del height, width
        return (ImageView(None, self.size, 1),)

    def cut(self, canvas: NDArray[Any], out: NDArray[Any]) -> None:
        out[:, 0] = canvas


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class PatchLayout(ImageLayout):
    """An image keeps its aspect ratio and is cut into patches, of which blocks become tokens, as in Qwen2-VL.

    Sides are rounded to whole blocks; an image of more or fewer pixels than allowed is made smaller or larger. A piece is a
    patch: channel, frame, row, column, one behind the other. Patches come block by block, and each block row by row. An
    image counts as a clip of ``frames`` alike.

    Args:
        patch_size: S, the side of a patch.
        merge_size: patches of a side of a block; a block is one token.
        frames: how often a patch holds the picture: the model's ``temporal_patch_size``.
        min_pixels: fewest pixels of an image after the resize.
        max_pixels: most of them.

    Examples:
        >>> layout = spiral.fields.PatchLayout(patch_size=14, merge_size=2, frames=2, max_pixels=28 * 28 * 256)
        >>> sizes = np.array([[480, 640]])
        >>> layout.grids(sizes).tolist(), layout.token_counts(sizes).tolist(), layout.patch_shape
        ([[1, 26, 36]], [234], (1176,))
    """

    patch_size: int = 14
    merge_size: int = 2
    frames: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    def __post_init__(self) -> None:
        check(self, "PatchLayout", " is ", patch_size=_COUNT, merge_size=_COUNT, frames=_COUNT)
        check(self, "PatchLayout", " is ", min_pixels=_PIXELS, max_pixels=_PIXELS)
        if self.max_pixels < max(self.min_pixels, self._side**2):
            msg = (
                f"PatchLayout: max_pixels={self.max_pixels:,} is less than min_pixels={self.min_pixels:,}, or than one block of "
                f"{self._side} x {self._side}. Raise it"
            )
            raise PlanError(msg)

    @property
    def _side(self) -> int:
        """Of a block, in pixels."""
        return self.patch_size * self.merge_size

    @property
    def patch_shape(self) -> tuple[int, ...]:
        return (CHANNELS * self.frames * self.patch_size**2,)

    def resized(self, sizes: Int64) -> Int64:
        """Return height and width of each image after the resize, shape [I, 2]; step by step as transformers computes them."""
        side, given = self._side, np.asarray(sizes, np.float64)
        pixels = given.prod(axis=1)
        out = np.round(given / side) * side
        now = out.prod(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            smaller = np.sqrt(pixels / self.max_pixels)[:, None]
            larger = np.sqrt(self.min_pixels / pixels)[:, None]
            shrunk = np.maximum(side, np.floor(given / smaller / side) * side)
            grown = np.ceil(given * larger / side) * side
        out = np.where((now > self.max_pixels)[:, None], shrunk, out)
        found = np.where((now < self.min_pixels)[:, None], grown, out)
        return found.astype(np.int64)

    def grids(self, sizes: Int64) -> Int64:
        return np.insert(self.resized(sizes) // self.patch_size, 0, 1, axis=1)

    def token_grids(self, sizes: Int64) -> Int64:
        return np.insert(self.resized(sizes) // self._side, 0, 1, axis=1)

    def token_counts(self, sizes: Int64) -> Int64:
        return np.asarray((self.resized(sizes) // self._side).prod(axis=1))

    def refused(self, sizes: Int64) -> NDArray[np.bool_]:
        return np.asarray((sizes < 1).any(axis=1) | (sizes.max(axis=1) > _STEEPEST * sizes.min(axis=1)))

    def views(self, height: int, width: int) -> tuple[ImageView, ...]:
        rows, columns = self.resized(np.array([[height, width]])).tolist()[0]
        return (ImageView((rows, columns), (rows, columns), rows * columns // self.patch_size**2),)

    def cut(self, canvas: NDArray[Any], out: NDArray[Any]) -> None:
        count, _, height, width = canvas.shape
        side, block, frames = self.patch_size, self.merge_size, self.frames
        down, across = height // self._side, width // self._side
        tiles = canvas.reshape(count, CHANNELS, down, block, side, across, block, side)
        into = out.reshape(count, down, across, block, block, CHANNELS, frames, side, side)
        into[:] = tiles.transpose(0, 2, 5, 3, 6, 1, 4, 7)[:, :, :, :, :, :, None]


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class TileLayout(ImageLayout):
    """An image is shown whole, and in tiles of the listed size that suits it best, as in LLaVA-NeXT.

    The first piece is the whole image, squeezed into a tile. The image is then fitted into the listed size that keeps most
    of its pixels and wastes least, in the middle of zeros, and cut row by row. Its tokens are those of the first tile, those
    of the fitted image without its empty rows or columns, and one at the end of each of its rows.

    Args:
        size: S, the side of a tile.
        patch_size: side of a patch of the vision model; a patch is one token.
        pinpoints: the listed sizes, (height, width), multiples of ``size``.
        more_tokens: what is added to the tokens of an image, such as -1 where the model leaves a token out.

    Examples:
        >>> layout = spiral.fields.TileLayout(size=28, patch_size=14, pinpoints=[(28, 56), (56, 28), (56, 56)])
        >>> sizes = np.array([[20, 40], [50, 50]])
        >>> layout.grids(sizes).tolist(), layout.token_counts(sizes).tolist()
        ([[1, 1, 2], [1, 2, 2]], [14, 24])
    """

    size: int
    patch_size: int
    pinpoints: Sequence[tuple[int, int]]
    more_tokens: int = 0

    def __post_init__(self) -> None:
        check(self, "TileLayout", " is ", size=_COUNT, patch_size=_COUNT, more_tokens=integer(-(2**20), 2**20))
        given = self.pinpoints
        pairs = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
        sizes = tuple(_checked_side("TileLayout", "pinpoints", each) for each in pairs)
        if not sizes or any(side % self.size for pair in sizes for side in pair):
            msg = f"TileLayout: pinpoints is {shown(given)}. Give sizes that are multiples of size={self.size}: [(672, 336), ...]"
            raise PlanError(msg)
        object.__setattr__(self, "pinpoints", sizes)

    @property
    def patch_shape(self) -> tuple[int, ...]:
        return (CHANNELS, self.size, self.size)

    def fitted(self, sizes: Int64) -> Int64:
        """Return the listed size that each image is fitted into; shape [I, 2]."""
        listed = np.array(self.pinpoints, np.int64)  # [R, 2]
        sides = np.asarray(sizes, np.float64)[:, None]
        scale = (listed[None] / np.maximum(sides, 1)).min(axis=2)
        seen = (sides * scale[:, :, None]).astype(np.int64).prod(axis=2)
        seen = np.minimum(seen, np.asarray(sizes).prod(axis=1)[:, None])
        wasted = listed.prod(axis=1)[None] - seen
        most = seen.max(axis=1, keepdims=True, initial=0)
        best = np.where(seen == most, wasted, np.iinfo(np.int64).max).argmin(axis=1)
        return np.asarray(listed[best])

    def grids(self, sizes: Int64) -> Int64:
        return np.insert(self.fitted(sizes) // self.size, 0, 1, axis=1)

    def patch_counts(self, sizes: Int64) -> Int64:
        return np.asarray(1 + self.grids(sizes).prod(axis=1))

    def token_counts(self, sizes: Int64) -> Int64:
        per_side = self.size // self.patch_size
        high, wide = (self.fitted(sizes) // self.size * per_side).T
        height, width = np.maximum(np.asarray(sizes, np.float64), 1).T
        is_wide = width / height > wide / high
        new_height = np.round(height * (wide / width), _DIGITS).astype(np.int64)
        new_width = np.round(width * (high / height), _DIGITS).astype(np.int64)
        rows = np.where(is_wide, high - (high - new_height) // 2 * 2, high)
        columns = np.where(is_wide, wide, wide - (wide - new_width) // 2 * 2)
        return np.asarray(rows * columns + rows + per_side**2 + self.more_tokens)

    def views(self, height: int, width: int) -> tuple[ImageView, ...]:
        (canvas,) = self.fitted(np.array([[height, width]])).tolist()
        high, wide = canvas
        if wide / width < high / height:
            inner = (min(int(np.ceil(height * (wide / width))), high), wide)
        else:
            inner = (high, min(int(np.ceil(width * (high / height))), wide))
        corner = ((high - inner[0]) // 2, (wide - inner[1]) // 2)
        tile = (self.size, self.size)
        return ImageView(tile, tile, 1), ImageView(inner, (high, wide), high * wide // self.size**2, corner)

    def cut(self, canvas: NDArray[Any], out: NDArray[Any]) -> None:
        count, _, height, width = canvas.shape
        side = self.size
        tiles = canvas.reshape(count, CHANNELS, height // side, side, width // side, side)
        out[:] = tiles.transpose(0, 2, 4, 1, 3, 5).reshape(out.shape)


def _checked_side(where: str, name: str, value: object) -> tuple[int, int]:
    """A pair of sides.

    Raises:
        PlanError: it is something else.
    """
    sides = tuple(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else ()
    if len(sides) != _PAIR or not all(_COUNT.fits(side) for side in sides):
        msg = f"{where}: {name} is {shown(value)}. Give height and width, such as (336, 336)"
        raise PlanError(msg)
    return int(sides[0]), int(sides[1])
