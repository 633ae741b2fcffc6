"""Sound: which part of a recording makes a sample, decoded by libavcodec and resampled by libswresample.

A recording is first a row of source samples, at the rate of its file. The part that a sample is made of is chosen by
their numbers, so its place is exact whatever the container seeks to. Then that part alone is resampled: what lies around
it never reaches the result. So the values depend on the bytes, the part, and the versions of the two libraries.

Sample 0 is the first one that libavcodec gives when it decodes the file from its beginning, whatever time the container says
of it: an Ogg of one page says one block too much. Containers that know their length and the time of each packet to the sample
are decoded from a second before the part; others (MP3, ADTS, Matroska, WAV of ADPCM) from their beginning.
"""

from collections.abc import Iterator
from fractions import Fraction
from io import BytesIO
from math import ceil
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.decoders.limits import SampleLimits
from spiral_stream.decoders.sound.sound_selection import LAYOUTS, SOUNDS, SoundSelection
from spiral_stream.errors import DataError
from spiral_stream.extras import need

if TYPE_CHECKING:
    import av

# C channels, N values per channel of a sample, S source samples per channel

Sound = NDArray[np.float32]  # [C, N]

_EXACT: Final = frozenset(("wav", "flac", "ogg", "mov,mp4,m4a,3gp,3g2,mj2"))  # say where a packet lies, to the sample
_WARM_UP_S: Final = 1  # decoded before the part: Opus wants 0.08 s, AAC one packet
_SLACK_S: Final = 0.25  # that a recording may be shorter than its header says: encoders count their own delay


def decode_sound(
    data: bytes | memoryview,
    selection: SoundSelection,
    u: float = 0.0,
    segment_ms: tuple[int, int] | None = None,
    limits: SampleLimits = SOUNDS,
) -> Sound:
    """Decode one sample.

    Args:
        data: a whole file.
        selection: which part, in which form.
        u: a number in [0, 1): where a random part begins.
        segment_ms: start and length of the row's segment in the file; None for the whole file.
        limits: of the sample; ``frames`` are source samples per channel.

    Returns:
        shape [C, N], float32; full scale is 1.

    Raises:
        DataError: the data hold no sound, are damaged, end early, or claim more than ``limits``.
    """
    need("av", 'decode="audio"')
    import av

    if not len(data):
        msg = "audio: the value is empty (0 bytes). Write the recording again, or filter the row out"
        raise DataError(msg)
    try:
        with av.open(BytesIO(data), metadata_errors="ignore") as container:
            if not container.streams.audio:
                msg = (
                    f"audio: the data ({len(data):,} bytes of {container.format.name}) hold no sound. Check the column"
                )
                raise DataError(msg)
            if container.format.name == "wav":
                _need_complete_wav(memoryview(data).cast("B"))
            return _sample(_Recording(container, limits), selection, u, segment_ms)
    except (av.FFmpegError, ValueError, OverflowError) as error:
        why = type(error).__name__ if isinstance(error, av.FFmpegError) else "its header is impossible"
        msg = f"audio: {len(data):,} bytes cannot be decoded ({why}). Fetch the file again, or filter the row out"
        raise DataError(msg) from error


@final
class _Recording:
    """The first sound stream of a file, as source samples."""

    def __init__(self, container: "av.container.InputContainer", limits: SampleLimits) -> None:
        self._container, self._limits = container, limits
        self._stream = container.streams.audio[0]
        self.rate, self.channels = self._stream.rate, self._stream.channels
        if not self.rate or not self.channels:
            msg = f"audio: the header says {self.rate} Hz and {self.channels} channels. Fetch the file again"
            raise DataError(msg)
        self._base = Fraction(self._stream.time_base or 1) * self.rate  # source samples per unit of time
        # libavformat's places in a WAV of ADPCM are off by up to a block, and what precedes a block is needed
        is_timed = container.format.name != "wav" or self._stream.codec_context.name.startswith("pcm_")
        self.exact = container.format.name in _EXACT and self._stream.duration is not None and is_timed
        self._origin: int | None = None  # time of source sample 0; None: no frame was seen yet
        self._fresh = True  # whether nothing was read yet
        self._total: int | None = round(self._stream.duration * self._base) if self.exact else None
        self._head: Sound | None = None  # what was decoded of a file that is read from its beginning

    def end_at(self, total: int) -> None:
        """Note where the recording really ends."""
        self._total = total

    def total(self) -> int:
        """Return source samples per channel: as the header says, or as many as there are."""
        if self._total is None:
            self._head = self._decoded(0, self._limits.frames + 1)
            self._total = self._head.shape[1]
            self._need_within(self._total)
        return self._total

    def part(self, first: int, stop: int) -> Sound:
        """Return source samples [first, stop), shape [channels, at most stop - first]."""
        self._need_within(stop - first)
        if self.exact:
            return self._decoded(first, stop)
        if self._head is None:
            self._head = self._decoded(0, stop)
        return self._head[:, first:stop]

    def _need_within(self, count: int) -> None:
        if count > self._limits.frames:
            msg = (
                f"audio: {self._limits.frames:,} source samples may be decoded for one sample, and this one has more. Shorten "
                "its segment, filter it out, or raise max_frames of the field"
            )
            raise DataError(msg)

    def _decoded(self, first: int, stop: int) -> Sound:
        import av

        to_float = av.AudioResampler(format="fltp", layout=self._stream.layout, rate=self.rate)
        if self.exact and first > _WARM_UP_S * self.rate:
            at = int((first - _WARM_UP_S * self.rate) / self._base) + self._beginning()
            self._container.seek(at, stream=self._stream)
        elif not self._fresh:
            self._rewind()
        parts, end = [np.empty((self.channels, 0), np.float32)], first
        for begin, frame in self._frames():
            if begin >= stop:
                break
            values = np.concatenate([each.to_ndarray() for each in to_float.resample(frame)], axis=1)
            inside = values[:, max(0, end - begin) : max(0, stop - begin)]
            parts.append(inside)
            end += inside.shape[1]
        return np.concatenate(parts, axis=1)

    def _rewind(self) -> None:
        self._container.seek(self._stream.start_time or 0, stream=self._stream)
        self._fresh = True

    def _beginning(self) -> int:
        """Return the time of source sample 0, in units of the stream."""
        if self._origin is None:
            if not self._fresh:
                self._rewind()
            next(self._frames(), None)
        return self._origin or 0

    def _frames(self) -> Iterator[tuple[int, "av.AudioFrame"]]:
        """Yield the frames, each with the number of its first source sample."""
        after, at_beginning, self._fresh = 0, self._fresh, False
        for frame in self._container.decode(self._stream):
            if frame.sample_rate != self.rate or frame.layout.nb_channels != self.channels:
                msg = "audio: rate or channels change in mid-recording. Convert the file, or filter the row out"
                raise DataError(msg)
            if self._origin is None and at_beginning:  # what lies before the time of the beginning was cut off
                start = self._stream.start_time or 0
                self._origin = start if frame.pts is None else max(start, frame.pts)
            is_timed = self.exact and frame.pts is not None
            begin = round((frame.pts - (self._origin or 0)) * self._base) if is_timed else after
            yield begin, frame
            after = begin + frame.samples


def _sample(recording: _Recording, selection: SoundSelection, u: float, segment_ms: tuple[int, int] | None) -> Sound:
    found, count = _part(recording, selection, u, segment_ms)
    if 0 < found.shape[1] < count and selection.start != "first":  # the header counts the encoder's delay
        found, count = _part(recording, selection, u, segment_ms)
    if found.shape[1] < count - _SLACK_S * recording.rate or not found.shape[1]:
        missing = (count - found.shape[1]) / recording.rate
        msg = f"audio: the recording ends {missing:.2f} s before its header says. Fetch the file again, or filter the row out"
        raise DataError(msg)
    return _shaped(found, recording.rate, selection)


def _part(
    recording: _Recording, selection: SoundSelection, u: float, segment_ms: tuple[int, int] | None
) -> tuple[Sound, int]:
    """Return the source samples of the part that is taken, and how many there should be."""
    wanted = ceil(Fraction(selection.length * recording.rate, selection.sample_rate))
    first, room = _segment(recording, segment_ms, wanted if selection.start == "first" else None)
    slack = max(0, room - wanted)
    first += {"first": 0, "centre": slack // 2, "random": min(slack, int(u * (slack + 1)))}[selection.start]
    count = min(wanted, room)
    found = recording.part(first, first + count)
    if 0 < count - found.shape[1] <= _SLACK_S * recording.rate:
        recording.end_at(first + found.shape[1])
    return found, count


def _need_complete_wav(data: memoryview) -> None:
    """Refuse a WAV that ends before its chunk of samples does: libavcodec takes what is there.

    Sizes of 0 and 2**32 - 1 are of writers that could not go back to the header.
    """
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if bytes(data[at : at + 4]) == b"data":
            if size != 0xFFFFFFFF and at + 8 + size > len(data):  # noqa: PLR2004  the largest of 32 bits
                msg = (
                    f"audio: the WAV claims {size:,} bytes of samples and holds {len(data) - at - 8:,}. Fetch the file again, "
                    "or filter the row out"
                )
                raise DataError(msg)
            return
        at += 8 + size + size % 2


def _segment(recording: _Recording, segment_ms: tuple[int, int] | None, wanted: int | None) -> tuple[int, int]:
    """Return the first source sample of the row's segment, and how many it has.

    Args:
        recording: the file.
        segment_ms: start and length; None for the whole file.
        wanted: how many are enough, so that a file of unknown length need not be decoded whole; None for all.
    """
    if segment_ms is None:
        if wanted is not None and not recording.exact:
            return 0, max(1, recording.part(0, wanted).shape[1])
        return 0, recording.total()
    start, length = (each * recording.rate // 1000 for each in segment_ms)
    if start < 0 or length <= 0 or start + length > recording.total() + _SLACK_S * recording.rate:
        msg = (
            f"audio: the segment of {segment_ms[1]} ms from {segment_ms[0]} ms on is not inside the recording, which lasts "
            f"{recording.total() / recording.rate * 1000:.0f} ms. Correct start_time_ms and duration_ms, or filter the row out"
        )
        raise DataError(msg)
    return start, min(length, max(1, recording.total() - start))


def _shaped(found: Sound, rate: int, selection: SoundSelection) -> Sound:
    """Resample and mix source samples, and bring them to the length of the selection."""
    import av

    if (
        selection.short == "loop"
        and (wanted := ceil(Fraction(selection.length * rate, selection.sample_rate))) > found.shape[1]
    ):
        found = np.tile(found, -(-wanted // found.shape[1]))[:, :wanted]
    if rate != selection.sample_rate or len(found) != selection.channels:
        source = LAYOUTS.get(len(found), f"{len(found)}c")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(found), format="fltp", layout=source)
        frame.sample_rate = rate
        resampler = av.AudioResampler(format="fltp", layout=LAYOUTS[selection.channels], rate=selection.sample_rate)
        made = [each.to_ndarray() for each in (*resampler.resample(frame), *resampler.resample(None))]
        found = np.concatenate(made, axis=1) if made else found[:, :0]
    out = np.zeros((selection.channels, selection.length), np.float32)
    count = min(selection.length, found.shape[1])
    out[:, :count] = found[:, :count]
    return out
