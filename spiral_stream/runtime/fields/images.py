"""Images of a payload column by row address: from the cache where it has them, else from the source.

Both ways give the bytes that the cache profile stores, as addresses in memory, so a batch does not depend on which
caches are built. Rows are looked up in the cache shard by shard. Stored JPEGs are decoded a few at a time into the thread's
scratch memory, and only as far as the crop needs (`decoders.image.region`). Raw pixels are resized straight from the mapped
file.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, TypeVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.kinds.images import ImageKind, Pixels, StoredImage
from spiral_stream.cache.store.reader import CachedShard, CacheReader
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.decoders.image import region
from spiral_stream.decoders.image.oriented import UPRIGHT, Oriented, orientation
from spiral_stream.errors import DataError, SourceError, renumbered
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.fields.stack import Stack
from spiral_stream.host_dtypes import host_dtype
from spiral_stream.plan.fields.dtypes import image_parts
from spiral_stream.planner.columns.lineage import Lineage
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.planner.columns.streams import split
from spiral_stream.planner.field_stages import FieldStage, Lowering
from spiral_stream.runtime.columns.error_sample import blaming
from spiral_stream.runtime.columns.rows_ahead import RowsAhead
from spiral_stream.runtime.fetch import Begin, chunks, near_of, need_all, submitted
from spiral_stream.runtime.fields.draft import TASK_ROWS, Draft, spread
from spiral_stream.runtime.fields.geometry import Sizes
from spiral_stream.runtime.fields.payload_field import PayloadField
from spiral_stream.runtime.fields.pixels import PixelStage
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64
from spiral_stream.seeding import view_keys
from spiral_stream.sources.references.objects import names_objects
from spiral_stream.sources.references.resolve import Resolved, resolve, resolve_or_errors
from spiral_stream.threads import doing
from spiral_stream.transforms.chain import ImageChain, MaskProgram, Program
from spiral_stream.transforms.image.image import ImageProgram

Int64 = NDArray[np.int64]


def stored_rows(
    relation: OpenRelation, cache: CacheReader | None, ordinals: UInt64
) -> Iterator[tuple[Int64, CachedShard, Int64]]:
    """Yield for each shard: the places in ``ordinals`` that the cache holds, the cached shard, and their rows in it.

    Args:
        relation: the relation that owns the rows.
        cache: None yields nothing.
        ordinals: shape [P], uint64: rows of the relation.
    """
    if cache is None:
        return
    manifest = relation.manifest
    shards = manifest.shard_of(ordinals)
    for shard in np.unique(shards):
        stored = cache.shard(manifest.content_keys[int(shard)].as_py())
        if stored is None:
            continue
        indices = np.flatnonzero(shards == shard)
        found = stored.find(ordinals[indices] - manifest.starts[shard])
        yield indices[found >= 0], stored, found[found >= 0]


Held = dict[int, Resolved]  # ordinal -> what its reference names
T = TypeVar("T")


@final
class StoredRows:
    """The stored form of P images, as arrays [P]: address, bytes, height, width, and whether it comes from a cache."""

    def __init__(self, count: int) -> None:
        self.addresses = np.zeros(count, dtype=np.uint64)
        self.lengths = np.zeros(count, dtype=np.int64)
        self.heights = np.zeros(count, dtype=np.int32)
        self.widths = np.zeros(count, dtype=np.int32)
        self.cached = np.zeros(count, dtype=np.bool_)
        self.owners: list[Any] = []  # keep the memory alive

    def put(self, row: int, stored: StoredImage) -> None:
        """Enter a row that was read from the source."""
        data = np.frombuffer(stored.payload, dtype=np.uint8)
        self.owners.append(data)
        self.addresses[row], self.lengths[row] = data.ctypes.data, len(data)
        self.heights[row], self.widths[row] = stored.height, stored.width

    def take(self, index: Int64) -> "StoredRows":
        """Return some of the images."""
        out = StoredRows(0)
        for name in ("addresses", "lengths", "heights", "widths", "cached"):
            setattr(out, name, getattr(self, name)[index])
        out.owners = self.owners
        return out

    def image(self, row: int) -> StoredImage:
        """Return one row as an object."""
        data = (ctypes.c_ubyte * int(self.lengths[row])).from_address(int(self.addresses[row]))
        return StoredImage(memoryview(data).cast("B"), int(self.heights[row]), int(self.widths[row]))


@final
class ImageFeed:
    """The images of one payload column of an open relation. Thread-safe."""

    def __init__(self, relation: OpenRelation, kind: ImageKind, cache: CacheReader | None, metrics: Metrics) -> None:
        self._relation, self.rows = relation, RowsAhead(relation)
        self._kind = kind
        self._cache = cache
        self._metrics = metrics
        self._waits: bool | None = None  # whether the payload comes over a network; None: nobody looked yet

    def waits(self, ordinals: UInt64) -> bool:
        """Whether the payload comes over a network. The first call looks at one reference, and the others remember it.

        While no row was missing, a batch counts as prepared if its first and last row are: the rest is looked up once.
        """
        if self._waits is None:
            if self._cache is not None and not len(
                self._missing_rows(self._cache, ordinals[:: max(1, len(ordinals) - 1)])
            ):
                return False  # all is prepared, and the source is not read
            relation, column = self._relation, self._kind.column
            kind = relation.schema.field(column).type
            inline = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
            try:
                self._waits = relation.remote or (
                    not inline and names_objects(relation.fetch(ordinals[:1], [column])[column], relation.base)
                )
            except SourceError:  # whoever reads the row says whose it is
                return False
        return self._waits

    def _missing_rows(self, cache: CacheReader, ordinals: UInt64) -> NDArray[np.int64]:
        """Return the places of rows that a cache does not have."""
        left = np.ones(len(ordinals), dtype=np.bool_)
        for indices, _, _ in stored_rows(self._relation, cache, ordinals):
            left[indices] = False
        return np.flatnonzero(left)

    def left(self, ordinals: UInt64) -> UInt64:
        """Return the rows that no cache has, so that they are read from the source."""
        return ordinals if self._cache is None else ordinals[self._missing_rows(self._cache, ordinals)]

    def fetch(self, ordinals: UInt64) -> Held:
        """Fetch what `render` needs for some images, and waits for otherwise."""
        wanted = np.unique(self.left(ordinals))
        if not len(wanted):
            return {}
        column = self._kind.column
        words = f"fetching column {column} of relation {self._relation.entry.name}"
        with timed(self._metrics, "fetch_s"), doing(words):
            references = self.rows.fetch(wanted, [column])[column]
            data = resolve_or_errors(references, self._relation.base, self._kind.decoder.limits.bytes)
        return dict(zip(wanted.tolist(), data, strict=True))

    def render(
        self, ordinals: UInt64, keys: UInt64, program: Program, out: NDArray[Any], held: Held | None = None
    ) -> Sizes:
        """Fetch, decode and transform images into ``out``.

        Args:
            ordinals: shape [P], uint64: logical ordinals, in any order.
            keys: shape [P], uint64: random keys of the samples.
            program: the compiled transforms.
            out: shape [P, *program.output_shape].
            held: what `fetch` returned, for these and other images; None reads here.

        Returns:
            shape [P, 2], int32: height and width of the images before the transforms.

        Raises:
            DataError: an image's bytes are bad; ``row`` is its place in ``ordinals``.
            SourceError: storage failed; likewise.
        """
        rows = self._rows(ordinals, held)
        with timed(self._metrics, "transform_s"):
            self.transform(rows, keys, program, out)
        return np.stack([rows.heights, rows.widths], axis=1)

    def transform(self, rows: StoredRows, keys: UInt64, program: Program, out: NDArray[Any]) -> None:
        """Decode and transform stored images into ``out``; arguments and errors as of `render`."""
        if isinstance(program, ImageProgram):
            self._fused(rows, keys, program, out)
        elif isinstance(program, ImageChain) and program.head.output_shape is not None:
            head = np.empty((len(keys), *program.head.output_shape), dtype=np.uint8)
            self._fused(rows, keys, program.head, head)
            program.finish(head, keys, out)
        else:
            program.run(self._full(rows, slice(None)), keys, out)

    def _fused(self, rows: StoredRows, keys: UInt64, program: ImageProgram, out: NDArray[Any]) -> None:
        if self._kind.keeps_pixels:
            strides = 3 * rows.widths.astype(np.int64)
            program.run_at(rows.addresses, strides, rows.heights, rows.widths, keys, out)
        elif region.applies(jpeg=self._kind.keeps_jpeg):
            self._regions(rows, keys, program, out)
        else:
            program.run(self._full(rows, slice(None)), keys, out)

    def pixels(self, ordinals: UInt64, held: Held | None = None) -> list[Pixels]:
        """Return whole images, in the order of ``ordinals``; ``held`` as for `render`.

        Raises:
            DataError: see `render`.
        """
        rows = self._rows(ordinals, held)
        with timed(self._metrics, "transform_s"):
            return [np.array(image) for image in self._full(rows, slice(None))]

    def full(self, rows: StoredRows) -> list[Pixels]:
        """Return whole images that were looked up.

        Raises:
            DataError: an image is bad; ``row`` is its place.
        """
        return self._full(rows, slice(None))

    def _full(self, rows: StoredRows, part: slice) -> list[Pixels]:
        out = []
        row = -1
        try:
            with timed(self._metrics, "decode_s"):
                for row in range(*part.indices(len(rows.lengths))):  # 3 us per row; decoding takes 800
                    out.append(self._kind.read(rows.image(row)))
        except DataError as error:
            error.row = row
            raise
        return out

    def _regions(self, rows: StoredRows, keys: UInt64, program: ImageProgram, out: NDArray[Any]) -> None:
        eligible = region.eligible(rows.addresses, rows.lengths)
        for row in np.flatnonzero(eligible).tolist() if self._kind.turns else ():  # 3 us per row; decoding takes 800
            eligible[row] = orientation(rows.image(row).payload) == UPRIGHT
        geometry = program.geometry(rows.heights, rows.widths, keys)
        boxes = geometry.boxes()[:, :4]
        for part in region.together(eligible, rows.heights, rows.widths, boxes):
            if not eligible[part.start]:  # progressive, CMYK, turned or no JPEG
                program.run(self._full(rows, part), keys[part], out[part])
                continue
            start = part.start
            while start < part.stop:
                left = slice(start, part.stop)
                with timed(self._metrics, "decode_s"):
                    some = rows.addresses[left], rows.lengths[left], boxes[left], rows.cached[left]
                    decoded = region.decode_regions(*some)
                if decoded is None:  # damaged, or in other colours: the full decoder reads it, or raises
                    done = slice(start, start + 1)
                    program.run(self._full(rows, done), keys[done], out[done])
                else:
                    done = slice(start, start + len(decoded[0]))
                    inside = geometry.inside_boxes(done)
                    program.render(inside, *decoded, inside.crop_h, inside.crop_w, out[done])
                start = done.stop

    def _rows(self, ordinals: UInt64, held: Held | None) -> StoredRows:
        rows = StoredRows(len(ordinals))
        missing = np.arange(len(ordinals)) if self._cache is None else self._cached(self._cache, ordinals, rows)
        if len(missing):
            self._direct(ordinals, missing, rows, held)
        return rows

    def _cached(self, cache: CacheReader, ordinals: UInt64, rows: StoredRows) -> NDArray[np.int64]:
        """Enter the rows that the cache holds, and return the places of the others."""
        left = np.ones(len(ordinals), dtype=np.bool_)
        with timed(self._metrics, "fetch_s"):
            for indices, stored, at in stored_rows(self._relation, cache, ordinals):
                left[indices], rows.cached[indices] = False, True
                if stored.any_refused:
                    self._refuse(indices, [stored.refused(each) for each in at.tolist()])
                rows.owners.append(stored)
                rows.addresses[indices], rows.lengths[indices] = stored.locate(at)
                rows.heights[indices] = stored.narrow["height"][at]
                rows.widths[indices] = stored.narrow["width"][at]
            cache.verify(rows.addresses, rows.lengths)
            self._metrics.add(cached_rows=int(np.count_nonzero(~left)))
        return np.flatnonzero(left)

    def _refuse(self, indices: NDArray[np.int64], reasons: list[str | None]) -> None:
        for index, reason in zip(indices.tolist(), reasons, strict=True):
            if reason is not None:
                raise DataError(reason, row=index)

    def _direct(self, ordinals: UInt64, indices: NDArray[np.int64], rows: StoredRows, held: Held | None) -> None:
        column = self._kind.column
        indices = indices[np.argsort(ordinals[indices], kind="stable")]  # in storage order no source copies to reorder
        words = f"reading column {column} of relation {self._relation.entry.name}"
        with timed(self._metrics, "fetch_s"), doing(words):
            if held is not None:
                with renumbered(indices):
                    data = need_all([held[row] for row in ordinals[indices].tolist()])
            else:
                table = self.rows.fetch(ordinals[indices], [column])
                with renumbered(indices):
                    data = resolve(table[column], self._relation.base, self._kind.decoder.limits.bytes)
        with timed(self._metrics, "transform_s"):
            index = -1
            try:
                for index, encoded in zip(indices.tolist(), data, strict=True):  # 5 us per row; decoding takes 800
                    rows.put(index, self._kind.keep(encoded))
            except DataError as error:
                error.row = index
                raise
        self._metrics.read(len(indices), {column: sum(map(len, data))})


@dataclass(frozen=True, slots=True, eq=False)
class ImageStage(PixelStage):
    """A field of images: fetched, decoded and transformed."""

    NEIGHBOURS: ClassVar[bool] = True
    KIND: ClassVar[type[Any]] = ImageKind  # of its caches

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: Lowering) -> FieldStage | None:
        """See `FieldStage`."""
        return cls.lowered(name, field, spec, lowering) if isinstance(field, Stack) and field.decode else None

    @classmethod
    def lowered(cls, name: str, field: Stack, spec: FieldSpec, lowering: Lowering, *more: Any) -> Self:
        """Lower a field; ``more`` is what its class has beyond `ImageStage`."""
        decoder, program = image_parts(field)
        payloads = lowering.payloads(name, field.column)
        caches = tuple(
            lowering.cached(each, cls.KIND(each.relation.entry.name, each.column, decoder, profile))
            for each, profile in zip(payloads, lowering.profiles(field.column), strict=True)
        )
        return cls(name, field.column, spec, program, field.view, *more, payloads=payloads, caches=caches)

    def opened(self, lineage: Lineage, metrics: Metrics) -> PayloadField:
        """See `FieldStage`."""
        del lineage
        return ImageField(self, metrics)

    @property
    def ends_on_device(self) -> bool:
        """See `FieldStage`; padding of lists and masks would change there."""
        return not self.LISTED and not isinstance(self.program, MaskProgram)

    @property
    def when(self) -> str:
        """See `FieldStage`."""
        turned = "turned by EXIF, " if isinstance(self.caches[0].kind.decoder, Oriented) else ""
        return f"after membership; {turned}normalized on"

    @property
    def value(self) -> tuple[int, str] | str:
        """See `FieldStage`."""
        shape = self.program.output_shape
        if shape is None:
            return "unknown: the images decide"
        return int(np.prod(shape)) * host_dtype(self.program.dtype).itemsize, " an image" if self.LISTED else ""


@final
class ImageField(PayloadField):
    """A field of one image per sample."""

    task_rows = TASK_ROWS

    def __init__(self, stage: ImageStage, metrics: Metrics) -> None:
        self._view = stage.view
        self._feeds = []
        for each in stage.caches:
            assert isinstance(each.kind, ImageKind)
            self._feeds.append(ImageFeed(each.payload.relation, each.kind, each.store.open(), metrics))
        super().__init__(stage.name, stage.column, stage.payloads, self._feeds)

    def waits(self, stream_rows: StreamRows) -> bool:
        """Whether any of the payload comes over a network."""
        return any(self._feeds[stream].waits(rows) for stream, rows in self.ordinals(stream_rows))

    def start(self, draft: Draft) -> None:
        """See `PayloadField`."""
        program, at_rows = draft.program(self.name), draft.samples.stream_rows
        if program.output_shape is None:
            all_of_it = partial(self.fetch, at_rows) if self.waits(at_rows) else None
            near = self.near(draft.pool, at_rows)
            draft.parts.append(submitted(draft.pool, all_of_it, partial(self._fill_unsized, draft), near))
            return
        out, keys = draft.pixels(self.name, program.output_shape), view_keys(draft.keys, self._view)

        def render(a: int, b: int, held: list[Held] | None) -> None:
            sizes = self.render(at_rows.take(np.arange(a, b)), keys[a:b], program, out[a:b], held)
            draft.following.sized(self.name, slice(a, b), sizes)

        def piece(start: int, stop: int, held: list[Held] | None) -> None:
            draft.refusals.attempt(self.name, start, stop, lambda a, b: render(a, b, held))
            draft.following.follow(self.name, draft.refusals, start, stop)

        waits = self.waits(at_rows)
        for start, stop in chunks(len(at_rows), draft.filling.task_rows):
            rows = at_rows.take(np.arange(start, stop))
            fetch = partial(self.fetch, rows) if waits else None
            draft.parts.append(submitted(draft.pool, fetch, partial(piece, start, stop), self.near(draft.pool, rows)))

    def _fill_unsized(self, draft: Draft, held: list[Held] | None) -> None:
        """Fill a field whose size is that of its images: all of them are read before there is an array."""
        program, at_rows = draft.program(self.name), draft.samples.stream_rows
        count = len(at_rows)
        pixels: list[Any] = [None] * count

        def read(a: int, b: int) -> None:
            pixels[a:b] = self.pixels(at_rows.take(np.arange(a, b)), held)

        draft.refusals.attempt(self.name, 0, count, read)
        good = np.array([row for row in range(count) if pixels[row] is not None], dtype=np.int64)
        if not len(good):
            return
        some, keys = [pixels[row] for row in good.tolist()], view_keys(draft.keys[good], self._view)
        draft.following.sized(self.name, good, np.array([each.shape[:2] for each in some], dtype=np.int32))
        draft.following.follow(self.name, draft.refusals, 0, count)
        with blaming(draft.filling.stages, draft.samples.take(good), 0):
            done = program.stacked(some, keys)
        draft.fields[self.name] = done if len(good) == count else spread(done, good, count)

    def fetch_far(self, stream_rows: StreamRows, values: pa.Array | None) -> list[Held]:
        """See `PayloadField`."""
        del values
        return self.fetch(stream_rows)

    def fetch(self, stream_rows: StreamRows) -> list[Held]:
        """`ImageFeed.fetch` for samples: what each stream's images need."""
        held: list[Held] = [{} for _ in self._feeds]
        for stream, where in split(stream_rows):
            held[stream] = self._feeds[stream].fetch(self.payloads[stream].ordinals(stream_rows.rows[where]))
        return held

    def near(self, pool: Executor, stream_rows: StreamRows) -> Begin | None:
        """Return what begins to fetch what lies around samples; None where nobody does."""
        near = near_of(pool)
        if near is None:
            return None

        def begin() -> Callable[[], bool]:
            ways = [
                near.begin(stream, self.payloads[stream], stream_rows.rows[where], self._feeds[stream].left)
                for stream, where in split(stream_rows)
            ]
            return lambda: any(is_on_its_way() for is_on_its_way in ways)

        return begin

    def render(
        self, stream_rows: StreamRows, keys: UInt64, program: Program, out: NDArray[Any], held: list[Held] | None = None
    ) -> Sizes:
        """`ImageFeed.render` for samples."""
        of = [None] * len(self._feeds) if held is None else held
        if len(self._feeds) == 1:
            return self._feeds[0].render(self.payloads[0].ordinals(stream_rows.rows), keys, program, out, of[0])
        sizes = np.zeros((len(stream_rows), 2), dtype=np.int32)
        for stream, where in split(stream_rows):
            with renumbered(where):
                rows = self.payloads[stream].ordinals(stream_rows.rows[where])
                fill = partial(_into, self._feeds[stream], rows, keys[where], program, of[stream])
                sizes[where] = fill_rows(out, where, fill)
        return sizes

    def pixels(self, stream_rows: StreamRows, held: list[Held] | None = None) -> list[NDArray[np.uint8]]:
        """`ImageFeed.pixels` for samples."""
        return pixels_of(self._feeds, self.payloads, stream_rows, held)


def pixels_of(
    feeds: Sequence[ImageFeed],
    payloads: Sequence[Payload],
    stream_rows: StreamRows,
    held: Sequence[Held] | Mapping[int, Held] | None,
) -> list[NDArray[np.uint8]]:
    """Decode the images of samples; see `ImageFeed.pixels`.

    Args:
        feeds: one for each stream.
        payloads: where each stream's images lie.
        stream_rows: of the samples.
        held: what was fetched, by stream; None: nothing.
    """
    out: list[Any] = [None] * len(stream_rows)
    for stream, where in split(stream_rows):
        with renumbered(where):
            rows = payloads[stream].ordinals(stream_rows.rows[where])
            found = feeds[stream].pixels(rows, None if held is None else held[stream])
        for at, image in zip(where.tolist(), found, strict=True):  # moves references: nothing next to decoding
            out[at] = image
    return out


def _into(feed: ImageFeed, rows: UInt64, keys: UInt64, program: Program, held: Held | None, out: NDArray[Any]) -> Sizes:
    return feed.render(rows, keys, program, out, held)


def fill_rows(out: NDArray[Any], rows: NDArray[np.int64], fill: Callable[[NDArray[Any]], T]) -> T:
    """Fill some rows of an array: in place where they are neighbours, else by a copy.

    Args:
        out: shape [B, ...].
        rows: shape [P], ascending, at least one.
        fill: writes an array of shape [P, ...].

    Returns:
        what ``fill`` returns.
    """
    first, stop = int(rows[0]), int(rows[-1]) + 1
    if stop - first == len(rows):
        return fill(out[first:stop])
    out_rows = np.empty((len(rows), *out.shape[1:]), dtype=out.dtype)
    found = fill(out_rows)
    out[rows] = out_rows
    return found
