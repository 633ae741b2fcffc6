"""Which frames of a video make a sample: first the frames of its segment, then T of them.

This is arithmetic over presentation times, so it is decided before anything is decoded. Times are int64 microseconds
from the first frame shown. A frame is shown from its time until the next frame's. A frame belongs to a segment by its
time rounded to milliseconds, the unit in which rows state segments. Cost: about 15 us per sample.

Without ``stride`` the segment is cut into T equal parts, and the frame shown at the middle of each is taken:
``tau_k = start + (2k + 1) * D // 2T``. With ``stride`` every stride-th frame of the segment is taken, in the order in
which they are shown, whatever their times; ``random_start`` moves the first one. A segment with too few frames is
*short*: ``pad`` repeats its last frame, ``loop`` begins again at its first, and ``drop`` refuses it.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import is_integer
from spiral_stream.errors import DataError, PlanError, shown

# T sequence_length, F frames of the file, N frames of a segment

Short = Literal["pad", "loop", "drop"]
LONGEST: Final = 1 << 16  # frames of one sample


@final
@dataclass(frozen=True, slots=True)
class ClipSegment:
    """A time range of a file, and the frames in it."""

    first: int  # first frame of it, counted among the frames shown
    stop: int  # one past its last frame
    start: int  # us
    end: int  # us

    @property
    def frames(self) -> int:
        """How many frames it has: N, at least 1."""
        return self.stop - self.first


def segment_of(
    times_F: NDArray[np.int64], duration: int, start_ms: int | None = None, duration_ms: int | None = None
) -> ClipSegment:
    """Find the frames that a row's segment covers.

    A range inside the file means that part of it; it may end one frame (at least 1 ms) after the file. If the range
    lies outside the file, but the file is as long as the segment, the clip was cut out before: the whole file is meant.

    Args:
        times_F: shape [F], int64, us, ascending: when each frame of the file is shown.
        duration: end of the last frame, us.
        start_ms: start of the segment, ms; None (with ``duration_ms``) for the whole file.
        duration_ms: length of the segment, ms.

    Raises:
        DataError: the segment is empty, starts before the file, or reaches beyond its end.
    """
    if start_ms is None and duration_ms is None:
        return ClipSegment(0, len(times_F), 0, duration)
    if start_ms is None or duration_ms is None or start_ms < 0 or duration_ms <= 0:
        msg = (
            f"the segment starts at {_ms(start_ms)} and lasts {_ms(duration_ms)}; it starts at 0 or later and lasts "
            "at least 1 ms. Correct start_time_ms and duration_ms, or filter the row out"
        )
        raise DataError(msg)
    slack = max(min(duration // len(times_F), duration - int(times_F[-1])), 1_000)
    start, end = start_ms * 1_000, (start_ms + duration_ms) * 1_000
    if end <= duration + slack and start < duration:
        first, stop = np.searchsorted((times_F + 500) // 1_000, [start_ms, start_ms + duration_ms]).tolist()
        if first == stop:  # no frame begins in it: take the one that is still shown
            first = max(first - 1, 0)
        return ClipSegment(first, max(stop, first + 1), start, end)
    if abs(duration - duration_ms * 1_000) <= slack:
        return ClipSegment(0, len(times_F), 0, duration)
    msg = (
        f"the segment [{start_ms}, {start_ms + duration_ms}) ms lies beyond the end of the file, which is "
        f"{duration / 1_000:.0f} ms long. Correct start_time_ms and duration_ms, name the file it was cut from, "
        "or filter the row out"
    )
    raise DataError(msg)


def _ms(value: int | None) -> str:
    return "null" if value is None else f"{value} ms"


@final
@dataclass(frozen=True, slots=True)
class FrameSelection:
    """How to choose T frames of a segment; the module's text says how.

    Args:
        sequence_length: T.
        stride: take every ``stride``-th frame; None spreads T frames evenly over the segment.
        random_start: begin at a random frame; needs ``stride``.
        short: what to do with a segment that has too few frames: ``"pad"``, ``"loop"`` or ``"drop"``.

    Raises:
        PlanError: an argument is out of range.
    """

    VERSION: ClassVar[int] = 1  # raise it with any change of the chosen frames

    sequence_length: int
    stride: int | None = None
    random_start: bool = False
    short: Short = "pad"

    def __post_init__(self) -> None:
        for name in ("sequence_length", "stride"):
            value = getattr(self, name)
            if not (is_integer(value, 1, LONGEST) or (name == "stride" and value is None)):
                msg = f"{name}={shown(value)} is no number of frames. Give a whole number from 1 to {LONGEST}"
                raise PlanError(msg)
        if self.random_start and self.stride is None:
            msg = "random_start=True moves the first of strided frames, and there is no stride. Give stride=1, or more"
            raise PlanError(msg)
        if self.short not in get_args(Short):
            msg = f"short={shown(self.short)} is unknown. Give one of {', '.join(get_args(Short))}"
            raise PlanError(msg)

    @property
    def deterministic(self) -> bool:
        """Whether a segment always gives the same frames."""
        return not self.random_start

    @property
    def need(self) -> int:
        """How many frames a segment needs not to be short."""
        return self.sequence_length if self.stride is None else (self.sequence_length - 1) * self.stride + 1

    def choose(
        self, times_F: NDArray[np.int64], segment: ClipSegment, u: float = 0.0
    ) -> tuple[NDArray[np.int64], bool]:
        """Choose the frames of one sample.

        Args:
            times_F: shape [F], int64, us, ascending: when each frame of the file is shown.
            segment: a segment of the same file.
            u: random number of the sample, in [0, 1); moves the first frame under ``random_start``.

        Returns:
            frames of the file, shape [T], int64, counted among those shown; and whether the segment is short.

        Raises:
            DataError: the segment is short and ``short`` is "drop".
        """
        frames_T = np.arange(self.sequence_length, dtype=np.int64)
        count = segment.frames
        if count < self.need:
            return segment.first + self._short(frames_T * (self.stride or 1), count), True
        if self.stride is not None:
            free = count - self.need
            offset = min(int(u * (free + 1)), free) if self.random_start else 0
            return segment.first + offset + frames_T * self.stride, False
        middles_T = segment.start + (2 * frames_T + 1) * (segment.end - segment.start) // (2 * self.sequence_length)
        shown_T = np.searchsorted(times_F, middles_T, side="right").astype(np.int64) - 1
        return np.clip(shown_T, segment.first, segment.stop - 1), False

    def _short(self, frames_T: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        if self.short == "drop":
            msg = (
                f"the segment has {count} frames where sequence_length={self.sequence_length} needs {self.need}. "
                'Give short="pad" or "loop", or filter on frame_count'
            )
            raise DataError(msg)
        return np.minimum(frames_T, count - 1) if self.short == "pad" else frames_T % count
