"""The forms in which a cache stores an image or a clip: bytes as they are, pixels, or smaller JPEGs.

A profile is part of the plan: a shard that is not cached yet goes through the
same steps on the fly, so batches do not depend on what is built.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, final

from spiral_stream.arguments import check, class_door, integer, is_integer
from spiral_stream.errors import PlanError, shown
from spiral_stream.semantic import H264_REF, JPEG_REF
from spiral_stream.sources.source import FormerProfile

BEST_QUALITY: Final = 100  # of libjpeg's scale from 1
_SIDE: Final = integer(1, None, "at least 1 pixel, or None to keep the size", none=True)


class Profile(ABC):
    """One storage form.

    Examples:
        >>> isinstance(spiral.Raw(shorter_side=16), spiral.profiles.Profile)
        True
    """

    VERSION: ClassVar[int] = 1
    SEMANTIC: ClassVar[str] = JPEG_REF  # the columns that it is a form of

    @property
    @abstractmethod
    def changes_pixels(self) -> bool:
        """Whether batches differ from those of the bytes as they are; then the profile is part of the fingerprint."""

    @property
    def lossy(self) -> bool:
        """Whether an encoder's choices are in the pixels."""
        return False


@final
@dataclass(frozen=True, slots=True)
class Original(Profile):
    """The encoded bytes exactly as the source holds them.

    Examples:
        >>> photos.cache(image=spiral.profiles.Original()).columns == photos.columns
        True
    """

    changes_pixels: ClassVar[bool] = False


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class Raw(Profile):
    """Decoded uint8 RGB pixels, shrunk (never enlarged) to this shorter side; None keeps the size.

    Examples:
        >>> image = spiral.Stack("image", decode="jpeg", transforms=[spiral.RandomResizedCrop(16)])
        >>> quick = photos.cache(image=spiral.Raw(shorter_side=20)).sample(order=shuffle)
        >>> quick.collate(batch_size=8, fields={"image": image}).to_numpy().caches()[0].form
        'Raw(shorter_side=20)'
    """

    shorter_side: int | None = None

    def __post_init__(self) -> None:
        check(self, "Raw", shorter_side=_SIDE)

    @property
    def changes_pixels(self) -> bool:
        return self.shorter_side is not None


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class Jpeg(Profile):
    """Decoded, shrunk to the shorter side, encoded again. Lossy: the encoder enters the fingerprint.

    Examples:
        >>> image = spiral.Stack("image", decode="jpeg", transforms=[spiral.transforms.Resize((16, 16))])
        >>> small = photos.cache(image=spiral.profiles.Jpeg(shorter_side=16)).sample(order=shuffle)
        >>> with small.collate(batch_size=8, fields={"image": image}).to_numpy() as stream:
        ...     done = stream.materialize(lambda progress: None)
        ...     stream.caches()[0].complete
        True
    """

    changes_pixels: ClassVar[bool] = True
    lossy: ClassVar[bool] = True

    shorter_side: int | None = None
    quality: int = 90

    def __post_init__(self) -> None:
        check(self, "Jpeg", shorter_side=_SIDE)
        _check_quality("Jpeg", self.quality)


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class Frames(Profile):
    """The decoded frames of a clip, upright, shrunk (never enlarged) to this shorter side; None keeps the size.

    uint8 RGB pixels, or with ``quality`` (1 to 100) a JPEG each: a clip of key frames only, about a tenth of the
    bytes, and lossy, so that the encoder enters the fingerprint. A clip whose frames are chosen without a random
    number is kept as the frames that are chosen, any other as all frames of its segment.

    Examples:
        >>> spiral.Frames(shorter_side=256, quality=90)
        Frames(shorter_side=256, quality=90)
    """

    SEMANTIC: ClassVar[str] = H264_REF

    shorter_side: int | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        check(self, "Frames", shorter_side=_SIDE)
        if self.quality is not None:
            _check_quality("Frames", self.quality)

    @property
    def changes_pixels(self) -> bool:
        return self.shorter_side is not None or self.lossy

    @property
    def lossy(self) -> bool:
        return self.quality is not None


def forms_of(semantic: str) -> str:
    """Return how the profiles of a column are written, for messages."""
    if semantic == H264_REF:
        return "Frames(shorter_side=256), or Frames(shorter_side=256, quality=90) for JPEGs of the frames"
    return "Original(), Raw(shorter_side=...) or Jpeg(shorter_side=...)"


def renewed(profile: Profile | FormerProfile) -> Profile:
    """Return the profile that is meant: what an old program wrote as ``Source()`` is ``Original()``."""
    return Original() if isinstance(profile, FormerProfile) else profile


def _check_quality(name: str, quality: int) -> None:
    if not is_integer(quality, 1, BEST_QUALITY):
        msg = f"{name}: quality={shown(quality)}; the encoder takes 1 to 100"
        raise PlanError(msg)
