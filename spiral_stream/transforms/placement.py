"""Where the pixels of each output come from: the boxes of a chain of image transforms.

A `Placement` follows B images through a chain: a box of the source, the size it is
resized to, the window of that which is kept, and whether it is mirrored. When the
chain is done it becomes a `Geometry`, which is what the kernel is told. All of it
is arithmetic on arrays; every result is the same on every machine.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import DataError

# B images of a batch

Int = NDArray[np.int64]
Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What happens to each image of a batch. Every array is [B], int32, but ``flip``, which is bool."""

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
        """The geometry of some of the images, for pixels that begin at the boxes' corners."""
        corner = np.zeros_like(self.top[rows])
        cut = (corner, corner, self.crop_h[rows], self.crop_w[rows])
        then = (self.resized_h[rows], self.resized_w[rows], self.window_top[rows], self.window_left[rows])
        return Geometry(*cut, *then, self.flip[rows], self.out_h, self.out_w)

    def boxes(self) -> Int32:
        """Shape [B, 9], int32: the arrays in order, as ``_pixels.render`` reads them."""
        cut = (self.top, self.left, self.crop_h, self.crop_w)
        then = (self.resized_h, self.resized_w, self.window_top, self.window_left)
        return np.stack([*cut, *then, self.flip.astype(np.int32)], axis=1)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where B images stand in a chain; every array is [B]."""

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
    def whole(cls, heights: Int32, widths: Int32) -> "Placement":
        """Untouched images of these sizes."""
        zero = np.zeros(len(heights), np.int64)
        h, w = heights.astype(np.int64), widths.astype(np.int64)
        return cls(zero, zero, h, w, h, w, zero, zero, h, w, zero.astype(np.bool_))

    def crop(self, top: Int, left: Int, height: Int, width: Int) -> "Placement":
        """Cut the source; nothing has been resized yet, so the box is all there is."""
        zero = np.zeros_like(top)
        return Placement(
            self.top + top, self.left + left, height, width, height, width, zero, zero, height, width, self.flip
        )

    def resize(self, height: Int, width: Int) -> "Placement":
        """Resize what has been cut, to a size for each image."""
        return replace(self, resized_h=height, resized_w=width, window_h=height, window_w=width)

    def geometry(self) -> "Geometry":
        """What the kernel is told, once the chain is done.

        Raises:
            DataError: the images end in different sizes.
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
    """Height and width with the shorter side at ``shorter``, the longer cut to a whole pixel."""
    longer = shorter * np.maximum(height, width) // np.minimum(height, width)
    tall = height >= width
    return np.where(tall, longer, shorter), np.where(tall, shorter, longer)


def portable_exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """e**x by its series at x / 256, squared eight times.

    NumPy's own exp differs in the last bit between CPUs; sums and products do not,
    and a box must not depend on the machine. Good to 1e-13 for abs(x) < 5.
    """
    y = x / 256
    total = 1 + y / 7
    for k in range(6, 0, -1):
        total = 1 + y * total / k
    for _ in range(8):
        total = total * total
    return total
