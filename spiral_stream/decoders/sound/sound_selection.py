"""Which part of a recording makes a sample, and in which form: `decoders.sound.sound` decodes it."""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final, get_args

from spiral_stream.arguments import integer
from spiral_stream.decoders.limits import SampleLimits
from spiral_stream.errors import PlanError, shown

SoundShort = Literal["pad", "loop"]
SoundStart = Literal["first", "centre", "random"]

LAYOUTS: Final = {1: "mono", 2: "stereo"}
SOUNDS: Final = SampleLimits(pixels=1, frames=1 << 28, bytes=1 << 30)  # 1.5 hours at 48 kHz
_RATES: Final = (1, 768_000)  # Hz
_LONGEST: Final = 1 << 28  # values of one sample


@final
@dataclass(frozen=True, slots=True)
class SoundSelection:
    """Which part of a recording is taken, and in which form.

    Args:
        sample_rate: of the result, in Hz.
        length: N, values per channel.
        channels: C: 1 mixes all channels down, 2 gives stereo.
        start: where the part begins in the row's segment.
        short: what to do with a segment that is too short: add silence, or begin again at its start.

    Raises:
        PlanError: an argument is out of range.
    """

    VERSION: ClassVar[int] = 2  # raise it with any change of a value

    sample_rate: int
    length: int
    channels: int = 1
    start: SoundStart = "first"
    short: SoundShort = "pad"

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("sample_rate", self.sample_rate, *_RATES),
            ("sequence_length", self.length, 1, _LONGEST),
            ("channels", self.channels, 1, len(LAYOUTS)),
        ):
            integer(least, most, f"a whole number from {least:,} to {most:,}").need(f"{name}=", value)
        if self.short not in get_args(SoundShort):
            msg = f"short={shown(self.short)} is not of sound. Give one of {', '.join(get_args(SoundShort))}"
            raise PlanError(msg)

    @property
    def deterministic(self) -> bool:
        """Whether a segment always gives the same part."""
        return self.start != "random"
