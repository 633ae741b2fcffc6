"""The interface of transforms that change pixels: one image at a time, after boxes are cut and resized.

Each draws its numbers from a key of its own, so an image and its mask that name the same steps draw alike. A step that
moves pixels moves masks, boxes and key points too. Every other step leaves them as they are.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, cast

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import integer, is_integer, is_number
from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.seeding import numbers
from spiral_stream.transforms.transform import Transform

# H W C image; N points

_TRIES: Final = range(4)  # draws at each size, for transforms that choose among others

Pixels = NDArray[Any]
Matrix = NDArray[np.float64]  # [2, 3]


class PixelTransform(Transform):
    """A transform of the pixels of one image.

    Examples:
        >>> class Inverted(spiral.transforms.PixelTransform):
        ...     NAME = "example.inverted"
        ...     deterministic = True
        ...
        ...     def apply(self, pixels, key):
        ...         return 255 - pixels
        >>> Inverted().apply(np.zeros((1, 1, 3), np.uint8), np.uint64(0)).tolist()
        [[[255, 255, 255]]]
    """

    MOVES: ClassVar[bool] = False  # whether pixels change their places
    POINTS: ClassVar[bool] = True  # whether it says where boxes and points go

    @abstractmethod
    def apply(self, pixels: Pixels, key: np.uint64) -> Pixels:
        """Transform an image.

        Args:
            pixels: shape [H, W, 3], uint8, C-contiguous and writable; may be overwritten and returned.
            key: of the sample, for this step alone (`spiral_stream.seeding.transform_keys`).

        Returns:
            shape [h, w, 3], uint8, C-contiguous.
        """

    def apply_to_mask(self, pixels: Pixels, key: np.uint64) -> Pixels:
        """Transform a mask, of shape [H, W, C] and any type, without making values up."""
        del key
        return pixels

    def matrix(self, height: int, width: int, key: np.uint64) -> Matrix | None:
        """Return where points of an image of this size go, as (x, y) = M @ (x, y, 1); None if they stay.

        Coordinates count from the image's upper left corner, so the centre of the first pixel is (0.5, 0.5).
        """
        del height, width, key
        return None

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """The (height, width) after this step; None if it depends on the image."""
        return size


class ForeignTransform(PixelTransform):
    """A transform of another library: how large it leaves an image is seen when it is called."""

    PROBES: ClassVar[tuple[tuple[int, int], ...]]  # sizes of images, for an image whose size is not known

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        found = {_probed(self, each, key) for each in ([size] if size is not None else self.PROBES) for key in _TRIES}
        return found.pop() if len(found) == 1 else None


@lru_cache(maxsize=2048)
def _probed(step: ForeignTransform, size: tuple[int, int], key: int) -> tuple[int, int] | None:
    try:
        height, width, _ = step.apply(np.zeros((*size, 3), np.uint8), np.uint64(key)).shape
    except DataError:
        return None  # an image of another size may do; if not, it says so itself
    return height, width


def draw(key: np.uint64, count: int) -> NDArray[np.float64]:
    """Draw ``count`` numbers in [0, 1) from a step's key."""
    found: NDArray[np.float64] = numbers(np.array([key], np.uint64), count)[0]
    return found


def sides(pixels: Pixels) -> tuple[int, int]:
    """Return height and width."""
    return pixels.shape[0], pixels.shape[1]


def between(u: float, bounds: tuple[float, float]) -> float:
    """Return the number at fraction ``u`` of a range."""
    return float(bounds[0] + u * (bounds[1] - bounds[0]))


def checked_pair(name: str, what: str, given: object, low: float, high: float) -> tuple[float, float]:
    """Check a range (least, most) within [low, high], and return it as floats.

    Raises:
        PlanError: it is not that.
    """
    pair = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if len(pair) != 2 or not all(map(is_number, pair)) or not low <= pair[0] <= pair[1] <= high:  # noqa: PLR2004  least, most
        msg = f"{name}: {what} is {shown(given)}. Give (least, most) from {low:g} to {high:g}"
        raise PlanError(msg)
    return float(pair[0]), float(pair[1])


def checked_color(name: str, what: str, given: object) -> tuple[int, int, int]:
    """Check a colour: a byte for all channels, or one for each.

    Raises:
        PlanError: it is not that.
    """
    three = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,) * 3
    if len(three) != 3 or not all(is_integer(value, 0, 255) for value in three):  # noqa: PLR2004  R, G, B
        msg = f"{name}: {what} is {shown(given)}. Give a whole number from 0 to 255, or three: red, green, blue"
        raise PlanError(msg)
    return three


def checked_label(name: str, given: object) -> int:
    """Check a value that a mask may hold.

    Raises:
        PlanError: it is no whole number of 16 bits.
    """
    integer(0, (1 << 16) - 1, "a value of masks, such as 0 or 255").need(f"{name}: mask_fill is ", given)
    return cast("int", given)
