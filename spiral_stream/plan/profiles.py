"""In which form a cache keeps an image: bytes as they are, pixels, or a smaller JPEG.

A profile is part of the plan: a shard that is not cached yet goes through the
same steps on the fly, so batches do not depend on what is built.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, final

from spiral_stream.errors import PlanError

BEST_QUALITY: Final = 100  # of libjpeg's scale from 1


class Profile(ABC):
    """One storage form."""

    VERSION: ClassVar[int] = 1
    lossy: ClassVar[bool] = False  # whether an encoder's choices are in the pixels

    @property
    @abstractmethod
    def changes_pixels(self) -> bool:
        """Whether batches differ from those of the bytes as they are; then the profile is part of the fingerprint."""


@final
@dataclass(frozen=True, slots=True)
class Source(Profile):
    """The encoded bytes exactly as the source holds them."""

    @property
    def changes_pixels(self) -> bool:
        return False


@final
@dataclass(frozen=True, slots=True)
class Raw(Profile):
    """Decoded uint8 RGB pixels, shrunk (never enlarged) to this shorter side; None keeps the size."""

    shorter_side: int | None = None

    def __post_init__(self) -> None:
        _check_side("Raw", self.shorter_side)

    @property
    def changes_pixels(self) -> bool:
        return self.shorter_side is not None


@final
@dataclass(frozen=True, slots=True)
class Jpeg(Profile):
    """Decoded, shrunk to the shorter side, encoded again. Lossy: the encoder enters the fingerprint."""

    shorter_side: int | None = None
    quality: int = 90
    lossy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_side("Jpeg", self.shorter_side)
        if not 1 <= self.quality <= BEST_QUALITY:
            msg = f"Jpeg: quality={self.quality}; the encoder takes 1 to 100"
            raise PlanError(msg)

    @property
    def changes_pixels(self) -> bool:
        return True


@final
@dataclass(frozen=True, slots=True)
class Frames(Profile):
    """Decoded frames of clips (stub of the lead; helper C writes it)."""

    shorter_side: int | None = None

    def __post_init__(self) -> None:
        _check_side("Frames", self.shorter_side)

    @property
    def changes_pixels(self) -> bool:
        return self.shorter_side is not None


def _check_side(name: str, side: int | None) -> None:
    if side is not None and side < 1:
        msg = f"{name}: shorter_side={side}; give at least 1 pixel, or None to keep the size"
        raise PlanError(msg)
