"""The interface of image decoders: a frozen value that turns the bytes of one sample into pixels.

The result depends on the bytes and on the decoder's name and version only. A `DataError` therefore repeats on every
run, and a declared policy may skip the sample.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from spiral_stream.decoders.limits import IMAGES, SampleLimits


class Decoder(ABC):
    """Turn encoded bytes into pixels. Subclasses are frozen dataclasses without state, so threads may share them."""

    NAME: ClassVar[str]
    VERSION: ClassVar[int] = 1  # raise it with any change of a pixel

    limits: SampleLimits = IMAGES

    @property
    def kind(self) -> str:
        """The decoder and its options, for fingerprints."""
        return self.NAME

    @property
    def channels(self) -> int:
        """C of the decoded [H, W, C]."""
        return 3

    @property
    def dtype(self) -> str:
        """NumPy name of the decoded pixels."""
        return "uint8"

    @abstractmethod
    def shrunk(self, pixels: NDArray[Any], shorter_side: int) -> NDArray[Any]:
        """Shrink decoded pixels to a shorter side, for a cache; they are never enlarged."""

    @abstractmethod
    def decode(self, data: bytes | memoryview) -> NDArray[np.uint8]:
        """Decode a whole image.

        Args:
            data: the encoded bytes; a memoryview must be contiguous.

        Returns:
            shape [H, W, 3], uint8, RGB, C-contiguous.

        Raises:
            DataError: the bytes are not what this decoder reads, are damaged, or claim more than `limits`.
        """

    @abstractmethod
    def within(self, limits: SampleLimits) -> Self:
        """Return the same decoder with other limits."""

    @abstractmethod
    def size(self, data: bytes | memoryview) -> tuple[int, int]:
        """Read (height, width) from the header alone.

        Raises:
            DataError: this decoder does not read such a header, or the header claims more than `limits`.
        """
