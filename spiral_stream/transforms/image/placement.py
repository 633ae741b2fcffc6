"""Where the pixels of each output come from: the boxes of a chain of image transforms.

A `Placement` follows B images through a chain. It holds for each image a box of the source, the size that the box is
resized to, the window of the result that is kept, and whether it is mirrored. At the end of the chain it becomes a
`Geometry`, the kernel's input. All of it is arithmetic on arrays, with the same results on every machine.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import DataError

# B images of a batch

Int = NDArray[np.int64]
Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The kernel's input for each image of a batch. Arrays are [B], int32; ``flip`` is bool."""

    top: Int32
    left: Int32
    crop_h: Int32
    crop_w: Int32
    resized_h: Int32
    resized_w: Int32
    window_top: Int32
    window_left: Int32
    flip: NDArray[np.bool_]
    out_h: int
    out_w: int

    def inside_boxes(self, rows: slice | NDArray[np.int64]) -> "Geometry":
        """Return the geometry of some images whose pixels were decoded from the corner of their box on."""
        corner = np.zeros_like(self.top[rows])
        cut = (corner, corner, self.crop_h[rows], self.crop_w[rows])
        then = (self.resized_h[rows], self.resized_w[rows], self.window_top[rows], self.window_left[rows])
        return Geometry(*cut, *then, self.flip[rows], self.out_h, self.out_w)

    def boxes(self) -> Int32:
        """Return the arrays side by side, shape [B, 9], int32, as ``_pixels.render`` reads them."""
        cut = (self.top, self.left, self.crop_h, self.crop_w)
        then = (self.resized_h, self.resized_w, self.window_top, self.window_left)
        return np.stack([*cut, *then, self.flip.astype(np.int32)], axis=1)


@dataclass(frozen=True, slots=True)
class Placement:
    """The boxes of B images on their way through a chain; every array is [B].

    Examples:
        >>> sizes = np.array([480], np.int32), np.array([640], np.int32)
        >>> at = spiral.transforms.Placement.untouched(*sizes)
        >>> at.height.tolist(), at.width.tolist()
        ([480], [640])
    """

    top: Int
    left: Int
    height: Int
    width: Int
    resized_h: Int
    resized_w: Int
    window_top: Int
    window_left: Int
    window_h: Int
    window_w: Int
    flip: NDArray[np.bool_]

    @classmethod
    def untouched(cls, heights: Int32, widths: Int32) -> "Placement":
        """Return the boxes of untouched images of these sizes."""
        zero = np.zeros(len(heights), np.int64)
        h, w = heights.astype(np.int64), widths.astype(np.int64)
        return cls(zero, zero, h, w, h, w, zero, zero, h, w, zero.astype(np.bool_))

    def crop(self, top: Int, left: Int, height: Int, width: Int) -> "Placement":
        """Cut a box of the source. Nothing may have been resized yet."""
        zero = np.zeros_like(top)
        return Placement(
            self.top + top, self.left + left, height, width, height, width, zero, zero, height, width, self.flip
        )

    def resize(self, height: Int, width: Int) -> "Placement":
        """Resize the box of each image to a size of its own."""
        return replace(self, resized_h=height, resized_w=width, window_h=height, window_w=width)

    def only(self, i: int) -> "Placement":
        """Return the boxes of image ``i`` alone."""
        return Placement(*(getattr(self, each.name)[i : i + 1] for each in fields(self)))

    def geometry(self) -> "Geometry":
        """Return the kernel's input, at the end of the chain.

        Raises:
            DataError: the images end in different sizes; ``row`` is the first that differs.
        """
        h, w = int(self.window_h[0]), int(self.window_w[0])
        other = np.flatnonzero((self.window_h != h) | (self.window_w != w))
        if len(other):
            i = int(other[0])
            msg = (
                f"images of one batch end in different sizes: {h} x {w} and {self.window_h[i]} x {self.window_w[i]} "
                f"(image {i} of the call). End the chain with Resize((height, width)) or CenterCrop(size)"
            )
            raise DataError(msg, row=i)

        def narrow(field: Int) -> Int32:
            return field.astype(np.int32)

        return Geometry(
            top=narrow(self.top),
            left=narrow(self.left),
            crop_h=narrow(self.height),
            crop_w=narrow(self.width),
            resized_h=narrow(self.resized_h),
            resized_w=narrow(self.resized_w),
            window_top=narrow(self.window_top),
            window_left=narrow(self.window_left),
            flip=self.flip,
            out_h=h,
            out_w=w,
        )


def sized_to_shorter(height: Int, width: Int, shorter: int) -> tuple[Int, Int]:
    """Return height and width with the shorter side at ``shorter``, and the longer rounded down to a whole pixel."""
    longer = shorter * np.maximum(height, width) // np.minimum(height, width)
    tall = height >= width
    return np.where(tall, longer, shorter), np.where(tall, shorter, longer)


def sized_to_cover(height: Int, width: Int, size: tuple[int, int]) -> tuple[Int, Int]:
    """Return height and width of the least size that covers (height, width), with the ratio rounded half up to a whole pixel."""
    high, wide = size
    is_wide = width * high >= height * wide
    covering_h = np.where(is_wide, high, (2 * height * wide + width) // (2 * width))
    covering_w = np.where(is_wide, (2 * width * high + height) // (2 * height), wide)
    return covering_h, covering_w


def portable_exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return e**x, the same on every machine: its series at x / 256, squared eight times.

    NumPy's own exp differs in the last bit between CPUs; sums and products do not. The error is below 1e-13 for
    abs(x) < 5.
    """
    y = x / 256
    total = 1 + y / 7
    for k in range(6, 0, -1):
        total = 1 + y * total / k
    for _ in range(8):
        total = total * total
    return total
