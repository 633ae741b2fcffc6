"""What a decoder is: a frozen value that turns one sample's bytes into pixels.

The result is a function of the bytes and of the decoder's name and version only,
so a `DataError` repeats on every run and may be skipped by a declared policy.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from spiral_stream.decoders.limits import IMAGES, SampleLimits


class Decoder(ABC):
    """Bytes to pixels. Subclasses are frozen dataclasses without state, safe to share between threads."""

    NAME: ClassVar[str]
    VERSION: ClassVar[int] = 1  # a change of any pixel raises it

    limits: SampleLimits = IMAGES  # of one image

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
        """The same decoder under other limits."""

    @abstractmethod
    def size(self, data: bytes | memoryview) -> tuple[int, int]:
        """Height and width, from the header alone.

        Raises:
            DataError: the header is not one that this decoder reads, or claims more than `limits`.
        """
