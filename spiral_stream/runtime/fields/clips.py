"""Clips of a payload column by row address: from the cache of clips where it has them, else decoded from the files.

The references of a batch are fetched in one call, by address; then every few clips are a task. For originals, the video
index says where the frames lie; without one, the file is probed. Only the wanted frames are decoded, the crop's box of
each becomes RGB, and the image transforms do the rest, with one draw per clip. Cached clips go through the same
transforms, and clips that are not cached yet through the same profile, so batches do not depend on which caches are
built.
"""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.shapes.one_shape import OneShape
from spiral_stream.cache.kinds.clip_bytes import FetchedClip, clip_bytes
from spiral_stream.cache.kinds.clip_layout import Clips
from spiral_stream.cache.kinds.clips import ClipKind, OpenedClip
from spiral_stream.cache.kinds.probes import index_of
from spiral_stream.cache.kinds.video_index import IndexKind
from spiral_stream.cache.store.reader import CachedShard
from spiral_stream.decoders.limits import CLIPS, SampleLimits, need_frames, need_pixels
from spiral_stream.decoders.video.frame_selection import FrameSelection, segment_of
from spiral_stream.decoders.video.video import decode, to_rgb
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError, PlanError, SourceError, anew, renumbered
from spiral_stream.extras import need as need_package
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.plan.fields.clips import TIMES, clip_parts, is_clip, limits_of
from spiral_stream.plan.fields.profiles import Frames
from spiral_stream.planner.columns.lineage import Lineage
from spiral_stream.planner.columns.streams import split
from spiral_stream.planner.field_stages import FieldStage, Lowering, PayloadCache
from spiral_stream.runtime.columns.error_sample import blaming
from spiral_stream.runtime.columns.rows_ahead import RowsAhead
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.fetch import submitted
from spiral_stream.runtime.fields.draft import Draft
from spiral_stream.runtime.fields.images import fill_rows, stored_rows
from spiral_stream.runtime.fields.payload_field import Coming, PayloadField
from spiral_stream.runtime.fields.pixels import PixelStage
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64
from spiral_stream.seeding import uniforms, view_keys
from spiral_stream.sources.references.objects import names_objects
from spiral_stream.sources.references.ranged import Located, locate
from spiral_stream.threads import doing
from spiral_stream.transforms.chain import ImageChain, MaskProgram
from spiral_stream.transforms.image.image import ImageProgram

TASK_CLIPS: Final = 1  # clips that a task decodes from originals: 10 to 50 ms
TASK_CACHED_CLIPS: Final = 4  # clips that a task reads from a cache: 1 to 4 ms each
TOGETHER: Final = 16  # frames that are held as RGB at once: 50 MB of 1080p, cropped to a square

Int64 = NDArray[np.int64]
Stored = tuple[CachedShard, int]  # a shard, and a place in it
IndexOf = Callable[[Located], VideoIndex]


@final
@dataclass(slots=True, eq=False)
class LookedUpClips:
    """P clips of one stream, looked up and ready to be read piece by piece. Lists are [P]."""

    stored: list[Stored | None]  # in the cache of clips
    index: list[Stored | None]  # in the video index
    rows: list[int]  # place in the table below; -1 for clips in the cache
    table: pa.Table  # [M] references of the other clips, and times if the relation has them
    located: list[Located | SourceError]  # [M] files of originals
    selection: FrameSelection  # of their frames


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    """The frames of one clip of an original, and what reads them."""

    fetched: FetchedClip
    wanted: Int64  # frames of the file, ascending
    back: NDArray[np.intp]  # which of them each frame of the sample is
    short: bool
    encoded_bytes: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClipSource:
    """The clips of one stream: where the frames lie in its files, and the cache of frames if the plan declares one."""

    index: PayloadCache[IndexKind]
    frames: PayloadCache[ClipKind] | None

    @property
    def built(self) -> PayloadCache[IndexKind] | PayloadCache[ClipKind]:
        """The cache that `materialize` builds: frames if they are cached, else the index."""
        return self.frames or self.index


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClipStage(PixelStage):
    """A field of clips: which frames are taken, from which files or caches, and how each frame is transformed."""

    FOLLOWED: ClassVar[bool] = False

    selection: FrameSelection
    limits: SampleLimits  # per sample
    sources: tuple[ClipSource, ...]  # one per stream
    as_long_as_batch: bool = False  # whether the batch says how many frames; then the selection has the most of any

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: Lowering) -> FieldStage | None:
        """See `FieldStage`."""
        if not is_clip(field):
            return None
        need_package("av", f"collate: field {name!r} (decode={field.decode!r})")
        selection, program = clip_parts(field)
        formation, longest = lowering.collate.formation, field.sequence_length is None
        if longest and isinstance(formation, OneShape):
            selection = replace(selection, sequence_length=max(shape[0] for shape in formation.shapes))
        limits, payloads, sources = limits_of(field, CLIPS), lowering.payloads(name, field.column), list[ClipSource]()
        for payload, profile in zip(payloads, lowering.profiles(field.column), strict=True):
            relation, column = payload.relation.entry.name, payload.column
            timed = set(TIMES) <= set(payload.relation.schema.names)
            index, frames = lowering.cached(payload, IndexKind(relation, column, timed)), None
            if isinstance(profile, Frames) and longest:
                msg = f"collate: field {name!r}: a cache of Frames holds one number of frames per clip. Leave the cache out"
                raise PlanError(msg)
            if isinstance(profile, Frames):
                frames = lowering.cached(payload, ClipKind(relation, column, selection, profile, timed, limits))
            sources.append(ClipSource(index, frames))
        caches = tuple(each.built for each in sources)
        return cls(
            *(name, field.column, spec, program, field.view, selection, limits, tuple(sources), longest),
            payloads=payloads,
            caches=caches,
        )

    def opened(self, lineage: Lineage, metrics: Metrics) -> PayloadField:
        """See `FieldStage`."""
        del lineage
        return ClipField(self, metrics)

    @property
    def draws(self) -> bool:
        """See `FieldStage`: for its frames, or for what is done to them."""
        return not (self.program.deterministic and self.selection.deterministic)

    @property
    def ends_on_device(self) -> bool:
        """See `FieldStage`."""
        return True

    @property
    def frames(self) -> int:
        """Frames per clip (T)."""
        return self.selection.sequence_length

    @property
    def held_frames(self) -> int:
        """See `FieldStage`."""
        return self.frames if any(each.frames is None for each in self.sources) else 0

    def task_rows(self, rows: int) -> int:
        """See `FieldStage`: the index would have to be read."""
        del rows
        return 0


Held = OpenedClip | _Chosen | SourceError | None  # a clip that was fetched, or why not; None of a clip in the cache
Fetch = Callable[[], list[Held]]


@final
class ClipFeed:
    """The clips of one payload column of one stream. Thread-safe.

    ``index_of`` gives the video index of a file that the cache of indexes does not have.
    """

    def __init__(self, stage: ClipStage, k: int, metrics: Metrics, index_of: IndexOf) -> None:
        source, index = stage.sources[k], stage.sources[k].index
        self._relation, self._metrics = index.payload.relation, metrics
        self.rows = RowsAhead(self._relation)
        self._limits = stage.limits
        self._name = self._relation.entry.name
        self._kind: ClipKind | None = None if source.frames is None else source.frames.kind
        self._cache = None if source.frames is None else source.frames.store.open()
        self._column = index.kind.column
        self._timed = set(TIMES) <= set(self._relation.schema.names)
        self._index = index.store.open()
        self._index_of = index_of

    @property
    def task_clips(self) -> int:
        """How many clips one task reads."""
        return TASK_CLIPS if self._kind is None else TASK_CACHED_CLIPS

    def left(self, ordinals: UInt64) -> UInt64:
        """Return the rows that the cache of clips does not have."""
        return ordinals[[each is None for each in self._stored(self._cache, ordinals)]]

    def find(self, rows: UInt64, selection: FrameSelection) -> LookedUpClips:
        """Look up P clips by ordinal, of which these frames are wanted. Reads references and times, but no payload.

        Raises:
            SourceError: the relation cannot be read.
        """
        with timed(self._metrics, "fetch_s"), doing(f"reading column {self._column} of relation {self._name}"):
            stored = self._stored(self._cache, rows)
            # refused clips are tried again: the file may be mended, or this sample may need other frames of it
            stored = [None if each is not None and each[0].refused(each[1]) is not None else each for each in stored]
            missing = np.array([at for at, each in enumerate(stored) if each is None], dtype=np.int64)
            missing = missing[np.argsort(rows[missing], kind="stable")]  # in storage order no source copies to reorder
            names = [self._column, *(TIMES if self._timed else ())]
            table = self.rows.fetch(rows[missing], names) if len(missing) else pa.table({name: [] for name in names})
            at = np.full(len(rows), -1, dtype=np.int64)
            at[missing] = np.arange(len(missing))
            index: list[Stored | None] = [None] * len(rows)
            located: list[Located | SourceError] = []
            if len(missing) and (self._kind is None or names_objects(table[self._column], self._relation.base)):
                index = index if self._kind else self._stored(self._index, rows)
                located = [self._locate(table[self._column], row) for row in range(len(missing))]
        self._metrics.add(cached_rows=len(rows) - len(missing), source_rows=len(missing))
        return LookedUpClips(stored, index, at.tolist(), table, located, selection)

    def fetching(self, found: LookedUpClips, part: list[int], keys: UInt64) -> "Fetch | None":
        """Return what fetches the packets that `render` decodes; None where nothing comes over a network.

        Args:
            found: from `find`.
            part: Q of its P places.
            keys: shape [Q], uint64: random keys of the samples.
        """
        waits = [
            isinstance(each := found.located[found.rows[at]], Located) and each.is_remote
            for at in part
            if found.located and found.stored[at] is None
        ]
        return partial(self._fetch, found, part, uniforms(keys, "frames", 0, 1)[:, 0]) if any(waits) else None

    def _fetch(self, found: LookedUpClips, part: list[int], draws: NDArray[np.float64]) -> list[Held]:
        held: list[Held] = []
        with timed(self._metrics, "fetch_s"):
            for at, draw in zip(part, draws.tolist(), strict=True):
                try:
                    with doing(self._words(found, at).replace("reading and decoding", "fetching")):
                        held.append(None if found.stored[at] is not None else self._open(found, at, draw))
                except SourceError as error:  # raised where the sample is decoded, which says whose it is
                    held.append(anew(error))
        return held

    def _open(self, found: LookedUpClips, at: int, draw: float) -> "OpenedClip | _Chosen":
        if self._kind is None:
            return self._choose(found, at, draw)
        row = found.rows[at]
        return self._kind.open_row(found.table, row, self._relation.base, draw)

    def render(
        self,
        found: LookedUpClips,
        part: list[int],
        keys: UInt64,
        program: ImageProgram | ImageChain,
        out: NDArray[Any],
        held: list[Held] | None = None,
    ) -> None:
        """Read, decode and transform some of the clips into ``out``.

        Args:
            found: from `find`.
            part: Q of its P places.
            keys: shape [Q], uint64: random keys of the samples.
            program: the compiled transforms of a frame.
            out: shape [Q, T, *frame].
            held: what `fetching` gave for them; None reads here.

        Raises:
            DataError: a clip's bytes or times are bad; ``row`` is its place in ``part``.
            SourceError: storage failed; likewise.
        """
        if isinstance(program, ImageChain):
            head = np.empty(
                (*out.shape[:2], *(program.head.output_shape or ())), dtype=np.uint8
            )  # the plan fixes its size
            self.render(found, part, keys, program.head, head, held)
            with timed(self._metrics, "transform_s"):
                for row, frames in enumerate(head):  # one draw per clip
                    with renumbered([row] * len(frames)):
                        program.finish(frames, np.full(len(frames), keys[row]), out[row])
            return
        draws = uniforms(keys, "frames", 0, 1)[:, 0]
        held = [None] * len(part) if held is None else held
        with timed(self._metrics, "transform_s"):
            if self._kind is not None:
                short = self._render_stored(self._kind, found, part, draws, keys, program, out, held)
                self._metrics.add(short_clips=int(np.count_nonzero(short)))
                return
            row = -1
            try:
                for row, at in enumerate(part):  # clips, each of 10 ms and more
                    with doing(self._words(found, at)):
                        clip = held[row] or self._choose(found, at, float(draws[row]))
                        if isinstance(clip, SourceError):
                            raise anew(clip)
                        assert isinstance(clip, _Chosen)
                        self._render_original(clip, keys[row], program, out[row])
            except SourceError as error:
                error.row = row
                raise

    # ---- originals

    def _words(self, found: LookedUpClips, at: int) -> str:
        located = found.located[found.rows[at]] if found.located else None
        name = located.name if isinstance(located, Located) else "a reference"
        return f"reading and decoding {name} of relation {self._name}"

    def _choose(self, found: LookedUpClips, at: int, draw: float) -> "_Chosen":
        """Choose the frames of a clip; of an object, fetch their bytes."""
        row = found.rows[at]
        located = found.located[row]
        if isinstance(located, SourceError):
            raise anew(located)
        start, duration = self._times(found.table, row)
        chosen: list[tuple[Int64, bool]] = []

        def choose(index: VideoIndex) -> Int64:
            segment = segment_of(index.times_F, index.duration, start, duration)
            chosen.append(found.selection.choose(index.times_F, segment, draw))
            need_pixels(located.name, index.height, index.width, self._limits.pixels)
            return np.unique(chosen[-1][0])

        fetched = clip_bytes(located, self._indexed(found.index[at], located), choose, self._limits)
        encoded_bytes = int(fetched.index.sizes_P[fetched.fed.packets].sum(dtype=np.int64))
        need_frames(fetched.fed.decoded, encoded_bytes, self._limits)
        wanted, back = np.unique(chosen[-1][0], return_inverse=True)
        return _Chosen(fetched, wanted, back, chosen[-1][1], encoded_bytes)

    def _render_original(self, clip: "_Chosen", key: np.uint64, program: ImageProgram, out: NDArray[Any]) -> None:
        fetched, index, wanted = clip.fetched, clip.fetched.index, clip.wanted
        with timed(self._metrics, "decode_s"):
            frames = decode(index, fetched.read, wanted, fetched.size, fetched.fed)
        height, width = index.displayed
        geometry = program.geometry(np.array([height], np.int32), np.array([width], np.int32), np.array([key]))
        for first in range(0, len(clip.back), TOGETHER):
            some = clip.back[first : first + TOGETHER]
            boxes = np.tile(geometry.boxes()[:, :4], (len(some), 1))
            shown = [frames[at] for at in some.tolist()]
            corners, strides, _ = to_rgb(shown, boxes, index.rotation, index.full_range, index.matrix)
            inside = geometry.inside_boxes(np.zeros(len(some), dtype=np.int64))  # one draw per clip
            program.render(inside, corners, strides, inside.crop_h, inside.crop_w, out[first : first + TOGETHER])
        self._metrics.add(
            short_clips=int(clip.short),
            frames_kept=len(wanted),
            frames_decoded=fetched.fed.decoded,
            source_bytes=clip.encoded_bytes,
        )

    def _indexed(self, stored: Stored | None, located: Located) -> VideoIndex:
        """Return the index of a file: the stored one if it was made from these bytes, else a new one."""
        if stored is not None:
            shard, at = stored
            addresses, sizes = shard.locate(np.array([at]))
            assert self._index is not None
            self._index.verify(addresses, sizes)
            if sizes[0]:  # otherwise the file was refused, and may be mended, or another row holds its index
                data = (ctypes.c_ubyte * int(sizes[0])).from_address(int(addresses[0]))
                index = VideoIndex.from_bytes(memoryview(data).cast("B"))
                if index.stamp == located.stamp():
                    return index
        return self._index_of(located)

    def _times(self, table: pa.Table, row: int) -> tuple[int | None, int | None]:
        if not self._timed:
            return None, None
        start, duration = (table[name][row].as_py() for name in TIMES)
        return start, duration

    def _locate(self, column: pa.ChunkedArray, row: int) -> Located | SourceError:
        try:
            return locate(column.slice(row, 1), self._relation.base)[0]
        except SourceError as error:
            return anew(error)

    # ---- clips of a cache, or in its form

    def _render_stored(
        self,
        kind: ClipKind,
        found: LookedUpClips,
        part: list[int],
        draws: NDArray[np.float64],
        keys: UInt64,
        program: ImageProgram,
        out: NDArray[Any],
        held: list[Held],
    ) -> NDArray[np.bool_]:
        clips = Clips(len(part))
        for row, at in enumerate(part):
            stored = found.stored[at]
            if stored is None:
                opened = held[row]
                assert not isinstance(opened, _Chosen)
                some, base = found.table.slice(found.rows[at], 1), self._relation.base
                rows = kind.keep_rows(some, base, draws[row : row + 1], None if opened is None else [opened])
                if rows.refused:
                    raise DataError(rows.refused[0], row=row)
                self._metrics.add(source_bytes=rows.source_bytes)
                clips.put_rows(np.array([row]), rows)
                continue
            shard, stored_row = stored
            where = np.array([stored_row])
            clips.put(np.array([row]), *shard.locate(where), {n: a[where] for n, a in shard.narrow.items()}, shard)
        if self._cache is not None:
            self._cache.verify(clips.addresses, clips.sizes)
        return kind.render(clips, draws, keys, program, out)

    def _stored(self, cache: Any, rows: UInt64) -> list[Stored | None]:
        out: list[Stored | None] = [None] * len(rows)
        for indices, shard, at in stored_rows(self._relation, cache, rows):
            for index, where in zip(indices.tolist(), at.tolist(), strict=True):
                out[index] = (shard, where)
        return out


Task = tuple[
    ClipFeed, LookedUpClips, list[int], Int64
]  # whose clips, all that were found, places in them, rows of the batch


@final
class ClipField(PayloadField):
    """A field of one clip per sample."""

    def __init__(self, stage: ClipStage, metrics: Metrics, index_of: IndexOf = index_of) -> None:
        self._stage = stage
        self._feeds = [ClipFeed(stage, k, metrics, index_of) for k in range(len(stage.payloads))]
        super().__init__(stage.name, stage.column, stage.payloads, self._feeds)

    def start(self, draft: Draft) -> None:
        """See `PayloadField`."""
        name, program, keys = self.name, draft.program(self.name), view_keys(draft.keys, self._stage.view)
        assert not isinstance(program, MaskProgram)
        assert program.output_shape is not None  # the plan fixes a clip's size, or the batch
        selection, size = self._stage.selection, draft.shape.size
        if self._stage.as_long_as_batch and size is not None:
            selection = replace(selection, sequence_length=size[0])
        out = draft.pixels(name, (selection.sequence_length, *program.output_shape))
        with blaming(draft.filling.stages, draft.samples, 0):
            found_clips = self.find(draft.samples.stream_rows, keys, selection)

        def piece(feed: ClipFeed, found: LookedUpClips, part: list[int], rows: Int64, held: Any) -> None:
            def render(a: int, b: int) -> None:
                mine, some = rows[a:b], held and held[a:b]
                fill_rows(out, mine, lambda own: feed.render(found, part[a:b], keys[mine], program, own, some))

            draft.refusals.attempt(name, 0, len(rows), render, rows)

        draft.parts += [submitted(draft.pool, fetch, partial(piece, *each)) for each, fetch in found_clips]

    def fetches(self, coming: Coming) -> Iterator[Fetch]:
        """See `PayloadField`: the frames that the batch will draw."""
        samples, fixed = coming.samples, self._stage.selection.deterministic
        far = self.far(samples.stream_rows)
        if not len(far) or (coming.keys is None and not fixed) or self._stage.as_long_as_batch:
            return
        own = Samples(samples.stream_rows.take(far), samples.parts[far], samples.origins[far])
        keys = np.zeros(len(far), dtype=np.uint64) if fixed or coming.keys is None else coming.keys(own)
        found = self.find(own.stream_rows, view_keys(keys, self._stage.view), self._stage.selection)
        yield from (fetch for _, fetch in found if fetch is not None)

    def find(
        self, stream_rows: StreamRows, keys: UInt64, selection: FrameSelection | None = None
    ) -> list[tuple[Task, Fetch | None]]:
        """Look up a batch's clips.

        Args:
            stream_rows: of P samples.
            keys: shape [P], uint64: their random keys.
            selection: of their frames; None takes the plan's.

        Returns:
            each task, and what `ClipFeed.fetching` gives for it.
        """
        pieces = []
        for k, where in split(stream_rows):
            feed = self._feeds[k]
            found = feed.find(self.payloads[k].ordinals(stream_rows.rows[where]), selection or self._stage.selection)
            for first in range(0, len(where), feed.task_clips):
                part = list(range(first, min(first + feed.task_clips, len(where))))
                rows = where[part]
                pieces.append(((feed, found, part, rows), feed.fetching(found, part, keys[rows])))
        return pieces
