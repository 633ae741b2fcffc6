"""The cache kind of clips, and how frames are read back.

The payload of a row is the frames that its selection chooses, or all frames of its segment
if a random number chooses them: upright, shrunk as the profile says, as pixels or as JPEGs (`clip_layout` has
the layout). A row that is not stored goes through `keep_rows` on the fly, with the number that chooses, so that
only the chosen frames are decoded: the same pixels.

JPEGs rather than H.264 with key frames only: at equal PSNR the same bytes, half of the CPU time to decode and a
thirtieth to encode (docs/decisions/0014). Reading 16 frames of 256 x 341 into a 224 crop costs 0.7 ms of pixels,
which are resized where they lie in the mapped file, and 5.4 ms of JPEGs of quality 80.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.fingerprint import clip_facts
from spiral_stream.cache.kinds.clip_bytes import FetchedClip, clip_bytes
from spiral_stream.cache.kinds.clip_layout import NARROW, Bytes, Clips, Int32, Int64, UInt64, bytes_at, damaged, pack
from spiral_stream.cache.kinds.kind import Kind, Rows
from spiral_stream.cache.kinds.probes import index_of
from spiral_stream.decoders.image import region
from spiral_stream.decoders.image.image import decode_jpeg, encode_jpeg, shrink
from spiral_stream.decoders.limits import CACHED_CLIP_BYTES, CLIPS, SampleLimits, need_frames, need_pixels
from spiral_stream.decoders.video.frame_selection import ClipSegment, FrameSelection, segment_of
from spiral_stream.decoders.video.video import decode, to_rgb
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError, SourceError, anew
from spiral_stream.plan.fields.clips import TIMES
from spiral_stream.plan.fields.profiles import Frames
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.ranged import Located, locate
from spiral_stream.transforms.image.image import ImageProgram

Pixels = NDArray[np.uint8]  # [H, W, 3]
# P clips, T frames of a sample's clip, U frames that are decoded of a file

_TOGETHER: Final = 4  # frames that are RGB at once while a clip is made: 25 MB of 1080p
DECODED: Final = 64 << 20  # pixels that are decoded at once, 1.5 bytes each in 4:2:0: 32 frames of 1080p
FEWEST: Final = 16  # frames, of whatever size


@final
@dataclass(frozen=True, slots=True)
class ClipKind(Kind):
    """One clip column of one relation, kept in one form.

    Args:
        relation: name of the relation.
        column: of it, with the references.
        selection: which frames of a segment are taken.
        profile: the form.
        timed: whether the relation says where each segment lies in its file.
        limits: what one clip may ask for.
        index_of: gives the video index of a file; one that keeps indexes saves a look at every file.
    """

    RUN_BYTES: ClassVar[int] = 16 << 20
    FIRST_ROWS: ClassVar[int] = 1  # a clip may be 4 MB or 400
    RUN_ROWS: ClassVar[int] = 4  # 16 raw frames of 256 x 341 are 4.2 MB per clip

    relation: str
    column: str
    selection: FrameSelection
    profile: Frames
    timed: bool
    limits: SampleLimits = CLIPS
    index_of: Callable[[Located], VideoIndex] = field(default=index_of, compare=False, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, *(TIMES if self.timed else ()))

    @property
    def form(self) -> str:
        return str(self.profile)

    def facts(self) -> dict[str, object]:
        return clip_facts(self.relation, self.column, self.selection, self.profile, self.limits, timed=self.timed)

    def keep_rows(
        self,
        table: pa.Table,
        base: Reach | str,
        draws: NDArray[np.float64] | None = None,
        opened: "Sequence[OpenedClip | SourceError] | None" = None,
    ) -> Rows:
        """Make the payload of P rows; see `Kind.keep_rows`.

        Args:
            table: P rows of `columns`.
            base: where relative references start, and which files they may name.
            draws: shape [P], float64 in [0, 1): each sample's own number where the selection begins at a random
                frame. Only the frames that it chooses are made then, to be read at once; without it all frames of the
                segment are, to be kept, and JPEGs have an index of their bits.
            opened: what `open_row` gave for each row, if it was asked before.
        """
        count = len(table)
        pieces: list[Bytes] = []
        sizes = np.zeros(count, dtype=np.int64)
        narrow = {name: np.zeros(count, dtype=np.int32) for name in NARROW}
        refused: dict[int, str] = {}
        source_bytes = 0
        for at in range(count):  # clips, each of 5 ms and more
            try:
                row = None if opened is None else opened[at]
                if isinstance(row, SourceError):
                    raise anew(row)
                chosen = row or self.open_row(table, at, base, None if draws is None else float(draws[at]))
                made, facts, read = self._keep(chosen, indexed=draws is None)
            except DataError as error:
                refused[at] = str(error)
                continue
            pieces += made
            sizes[at] = sum(map(len, made))
            source_bytes += read
            for name, value in zip(NARROW, facts, strict=True):
                narrow[name][at] = value
        return Rows(b"".join(pieces), sizes, refused, narrow, source_bytes)

    def render(
        self, clips: Clips, draws: NDArray[np.float64], keys: UInt64, program: ImageProgram, out: NDArray[np.generic]
    ) -> NDArray[np.bool_]:
        """Transform the frames of kept clips into ``out``.

        Args:
            clips: P of them, at least one.
            draws: shape [P], float64 in [0, 1): each sample's own number, for a random start.
            keys: shape [P], uint64: the samples' own random keys; the frames of a clip share one draw.
            program: the compiled transforms of a frame.
            out: shape [P, T, *program.output_shape], C-contiguous.

        Returns:
            shape [P], bool: whose segment had too few frames.

        Raises:
            DataError: a clip is too small or too short; ``row`` is its place.
            CacheError: a payload is not what was written.
        """
        picked = clips.pick(self.selection, draws)
        geometry = program.geometry(clips.heights, clips.widths, keys)
        boxes_P4 = geometry.boxes()[:, :4]
        frames = picked.addresses.shape[1]
        flat = out.reshape(len(boxes_P4) * frames, *out.shape[2:])
        clip, frame = np.divmod(np.arange(len(flat)), frames)
        addresses, lengths = picked.addresses[clip, frame], picked.lengths[clip, frame]
        heights, widths, boxes = clips.heights[clip], clips.widths[clip], boxes_P4[clip]
        parts: Iterable[slice] = (slice(0, len(flat)),)
        if self.profile.quality is not None:
            parts = region.together(np.full(len(flat), region.applies(jpeg=True)), heights, widths, boxes)
        for part in parts:
            inside = geometry.inside_boxes(clip[part])
            origins, strides, _held = self._corners(
                addresses[part], lengths[part], heights[part], widths[part], boxes[part]
            )
            program.render(inside, origins, strides, inside.crop_h, inside.crop_w, flat[part])
        return picked.short

    def open_row(self, table: pa.Table, at: int, base: Reach | str, draw: float | None) -> "OpenedClip":
        """Choose the frames of one row; of an object, fetch their bytes.

        Args:
            table: rows of `columns`.
            at: which of them.
            base: as for `keep_rows`.
            draw: the sample's own number, or None; see `keep_rows`.

        Raises:
            DataError: the row names no whole video, or its segment is not in it.
            SourceError: storage failed.
        """
        located = locate(table[self.column].slice(at, 1), base)[0]
        times = [table[name][at].as_py() for name in TIMES] if self.timed else [None, None]
        opened: list[OpenedClip] = []

        def choose(index: VideoIndex) -> Int64:
            segment = segment_of(index.times_F, index.duration, *times)
            if self.selection.deterministic or draw is not None:
                frames, short = self.selection.choose(index.times_F, segment, draw or 0.0)
                wanted, indices = np.unique(frames, return_inverse=True)
                opened.append(OpenedClip(segment, wanted, indices, chosen=True, short=short))
            else:
                wanted = np.arange(segment.first, segment.stop)
                opened.append(OpenedClip(segment, wanted, index.times_F[wanted], chosen=False, short=False))
            need_pixels(located.name, index.height, index.width, self.limits.pixels)
            return wanted

        fetched = clip_bytes(located, self.index_of(located), choose, self.limits)
        sizes = fetched.index.sizes_P[fetched.fed.packets]
        need_frames(fetched.fed.decoded, int(sizes.sum(dtype=np.int64)), self.limits)
        return replace(opened[-1], fetched=fetched)

    def _keep(self, opened: "OpenedClip", *, indexed: bool) -> tuple[list[Bytes], tuple[int, int, int, int], int]:
        """Make the payload of one row, its columns in the order of `BESIDE`, and count the bytes that were read.

        Raises:
            DataError: a frame cannot be decoded.
        """
        assert opened.fetched is not None
        read = _CountedFile(opened.fetched)
        pictures, height, width = self._pictures(opened.fetched.index, read, opened.wanted_U)
        if indexed and self.profile.quality is not None:
            pictures = [region.indexed(picture) for picture in pictures]
        payload = pack(pictures, opened.segment, opened.frame_indices, chosen=opened.chosen)
        return payload, (height, width, len(pictures), int(opened.short)), read.bytes

    def _pictures(self, index: VideoIndex, read: "_CountedFile", wanted_U: Int64) -> tuple[list[Bytes], int, int]:
        """Frames in the form of the profile, and the height and width of each."""
        height, width = stored_h, stored_w = index.displayed
        pictures: list[Bytes] = []
        held_frames = 0
        for frames in _decoded_frames(index, read, wanted_U):
            boxes = np.tile(np.array([0, 0, height, width], dtype=np.int32), (len(frames), 1))
            addresses, strides, _ = to_rgb(frames, boxes, index.rotation, index.full_range, index.matrix)
            for address, stride in zip(addresses.tolist(), strides.tolist(), strict=True):
                pixels = _pixels_at(address, stride, height, width)
                if self.profile.shorter_side is not None:
                    pixels = shrink(pixels, self.profile.shorter_side)
                stored_h, stored_w = pixels.shape[:2]
                pictures.append(self._picture(pixels))
                held_frames += len(pictures[-1])
                if held_frames > CACHED_CLIP_BYTES:
                    msg = (
                        f"video: {len(wanted_U):,} frames of one clip take more than {CACHED_CLIP_BYTES:,} bytes in a cache. "
                        "Shorten the segment, or keep smaller frames: Frames(shorter_side=..., quality=...)"
                    )
                    raise DataError(msg)
        return pictures, stored_h, stored_w

    def _picture(self, pixels: Pixels) -> Bytes:
        return pixels.tobytes() if self.profile.quality is None else encode_jpeg(pixels, self.profile.quality)

    def _corners(
        self, addresses: UInt64, lengths: Int64, heights: Int32, widths: Int32, boxes_B4: Int32
    ) -> tuple[UInt64, Int64, object]:
        """Return where the box of each picture begins, the bytes from one row to the next, and what holds the memory."""
        top, left = boxes_B4[:, 0].astype(np.int64), boxes_B4[:, 1].astype(np.int64)
        strides = 3 * widths.astype(np.int64)
        if self.profile.quality is None:
            if (lengths != strides * heights).any():
                damaged("its pictures are not of its height and width")
            return addresses + (top * strides + 3 * left).astype(np.uint64), strides, None
        _, once, back = np.unique(addresses, return_index=True, return_inverse=True)  # a short clip repeats frames
        if region.applies(jpeg=True):
            ours = np.ones(len(once), dtype=np.bool_)  # no one else's JPEG comes here, and the cache has sums
            decoded = region.decode_regions(addresses[once], lengths[once], boxes_B4[once], ours)
            if decoded is not None and len(decoded[0]) == len(once):
                return decoded[0][back], decoded[1][back], None
        decoded_once = [_decoded(int(addresses[at]), int(lengths[at]), heights[at], widths[at]) for at in once]
        origins = np.array([picture.ctypes.data for picture in decoded_once], dtype=np.uint64)[back]
        return origins + (top * strides + 3 * left).astype(np.uint64), strides, decoded_once


@final
@dataclass(frozen=True, slots=True, eq=False)
class OpenedClip:
    """The frames of one row that are made, and what reads them."""

    segment: ClipSegment
    wanted_U: Int64  # noqa: N815  frames of the file
    frame_indices: Int64  # which of them each frame of the sample is; their times where nothing is chosen yet
    chosen: bool
    short: bool
    fetched: FetchedClip | None = None


@final
class _CountedFile:
    """Reads of one file, counted."""

    def __init__(self, fetched: FetchedClip) -> None:
        self._read = fetched.read
        self.size = fetched.size
        self.bytes = 0

    def __call__(self, offset: int, length: int) -> memoryview:
        self.bytes += length
        return self._read(offset, length)


def _decoded_frames(index: VideoIndex, read: _CountedFile, wanted_U: Int64) -> Iterator[list[Any]]:
    """The wanted frames of PyAV, in order, a few at a time; ascending ordinals.

    What is decoded together is bounded, and ends at a key frame where it can, since the next part begins to decode
    at the key frame before its first frame.
    """
    most = max(FEWEST, DECODED // (index.height * index.width))
    group_U = np.searchsorted(np.flatnonzero(index.keys_P), index.packets_F[wanted_U], side="right")
    start = 0
    while start < len(wanted_U):
        stop = min(start + most, len(wanted_U))
        if stop < len(wanted_U):
            borders = start + 1 + np.flatnonzero(np.diff(group_U[start : stop + 1]))
            stop = int(borders[-1]) if len(borders) else stop
        frames = decode(index, read, wanted_U[start:stop], read.size)
        for at in range(0, len(frames), _TOGETHER):
            yield frames[at : at + _TOGETHER]
        start = stop


def _pixels_at(address: int, stride: int, height: int, width: int) -> Pixels:
    """Shape [H, W, 3], uint8: packed RGB that lies at an address."""
    memory = bytes_at(address, stride * (height - 1) + 3 * width)
    return np.lib.stride_tricks.as_strided(memory, (height, width, 3), (stride, 3, 1), writeable=False)


def _decoded(address: int, length: int, height: int, width: int) -> Pixels:
    """A whole kept JPEG.

    Raises:
        CacheError: it is not one of this size.
    """
    try:
        pixels = decode_jpeg(bytes_at(address, length).data)
    except DataError as error:
        damaged(str(error))
    if pixels.shape[:2] != (height, width):
        damaged(f"a JPEG is {pixels.shape[0]} x {pixels.shape[1]}, not {height} x {width}")
    return pixels
