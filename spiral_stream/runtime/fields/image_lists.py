"""Fill a field of lists of images, and the masks that tell its images from padding.

Rows are found first, some at a time, which says how long their lists are. What they name on a store is fetched by threads
that only wait. Decoding begins when the width of the batch is known: at once where the plan fixes it, else after the last
rows are found. Images are read as in `runtime.fields.images`, several per row.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.cache.kinds.clip_layout import bytes_at
from spiral_stream.cache.kinds.image_lists import COUNT, NULL_LIST, ImageListKind, of_item, unpack
from spiral_stream.cache.store.reader import CacheReader
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import DataError, SourceError, renumbered
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.plan.fields.image_lists import is_image_list, is_list_mask, list_length
from spiral_stream.planner.columns.lineage import Lineage
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.planner.columns.streams import split
from spiral_stream.planner.field_stages import FieldStage, Lowering, PlainStage
from spiral_stream.runtime.fetch import chunks, need_all, submitted
from spiral_stream.runtime.fields.draft import Draft
from spiral_stream.runtime.fields.geometry import Sizes
from spiral_stream.runtime.fields.images import ImageFeed, ImageStage, StoredRows, fill_rows, stored_rows
from spiral_stream.runtime.fields.payload_field import PayloadField
from spiral_stream.runtime.fields.size import UNKNOWN_IMAGES
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64
from spiral_stream.seeding import item_keys, view_keys
from spiral_stream.sources.references.objects import names_objects
from spiral_stream.sources.references.resolve import Resolved, flattened, resolve, resolve_or_errors
from spiral_stream.threads import doing
from spiral_stream.transforms.chain import Program

TASK_ROWS: Final = 16  # rows that a task finds, fetches or decodes
Int64 = NDArray[np.int64]
# P rows, N images of a row in the batch, Q images of all rows


@final
@dataclass(frozen=True, slots=True, eq=False)
class LookedUpLists:
    """The lists of P rows of one stream, looked up. Arrays are [P]."""

    counts: Int64
    addresses: UInt64  # of payloads in the cache
    sizes: Int64
    reasons: list[str | None]  # why the cache has no payload
    at: Int64  # place in the references below; -1 for rows in the cache
    references: pa.Array  # [M] lists of references of the other rows
    owners: list[Any]  # keep the memory alive
    held: list[Resolved] | None = None  # the images of the references, end to end; None: not fetched

    def part(self, first: int, last: int) -> "LookedUpLists":
        """Return rows [first, last)."""
        rows = slice(first, last)
        return replace(
            self,
            counts=self.counts[rows],
            addresses=self.addresses[rows],
            sizes=self.sizes[rows],
            reasons=self.reasons[rows],
            at=self.at[rows],
        )


@final
class ImageListFeed:
    """The lists of images of one payload column of an open relation. Thread-safe."""

    def __init__(
        self, relation: OpenRelation, kind: ImageListKind, cache: CacheReader | None, metrics: Metrics
    ) -> None:
        self._relation, self._kind, self._cache, self._metrics = relation, kind, cache, metrics
        self.one = ImageFeed(relation, kind.one, cache, metrics)
        self.rows, self.left = self.one.rows, self.one.left
        self._waits: bool | None = None  # whether images come over a network; None: nobody met a reference yet

    def find(self, ordinals: UInt64) -> LookedUpLists:
        """Look up P lists by ordinal. Reads references, and of inline images their bytes.

        Raises:
            SourceError: the relation cannot be read.
        """
        count = len(ordinals)
        counts, sizes, at = (np.zeros(count, dtype=np.int64) for _ in range(3))
        addresses, reasons = np.zeros(count, dtype=np.uint64), list[str | None]([None] * count)
        left, owners = np.ones(count, dtype=np.bool_), list[Any]()
        column = self._kind.column
        with (
            timed(self._metrics, "fetch_s"),
            doing(f"reading column {column} of relation {self._relation.entry.name}"),
        ):
            for indices, stored, rows in stored_rows(self._relation, self._cache, ordinals):
                left[indices] = False
                addresses[indices], sizes[indices] = stored.locate(rows)
                counts[indices] = stored.narrow[COUNT][rows]
                owners.append(stored)
                for index, row in zip(indices.tolist(), rows.tolist(), strict=True) if stored.any_refused else ():
                    reasons[index] = stored.refused(row)
            if self._cache is not None:
                self._cache.verify(addresses[~left], sizes[~left])
            missing = np.flatnonzero(left)
            missing = missing[
                np.argsort(ordinals[missing], kind="stable")
            ]  # in storage order no source copies to reorder
            references = pa.nulls(0, self._relation.schema.field(column).type)
            if len(missing):
                read = self.rows.fetch(ordinals[missing], [column])[column].combine_chunks()
                references = read.chunk(0) if isinstance(read, pa.ChunkedArray) else read
                counts[missing] = pc.list_value_length(references).fill_null(0).to_numpy()
        at[~left], at[missing] = -1, np.arange(len(missing))
        self._metrics.add(cached_rows=count - len(missing), source_rows=len(missing))
        return LookedUpLists(counts, addresses, sizes, reasons, at, references, owners)

    def waits(self, ordinals: UInt64) -> bool:
        """Whether lists come over a network, as `ImageFeed.waits` says it: the first references stand for the others."""
        if self._waits is None and len(self.left(ordinals[:: max(1, len(ordinals) - 1)])):
            relation, column = self._relation, self._kind.column
            inner = relation.schema.field(column).type.value_type
            if relation.remote or pa.types.is_binary(inner) or pa.types.is_large_binary(inner):
                self._waits = relation.remote
                return self._waits
            try:
                lists = relation.fetch(self.left(ordinals), [column])[column]
            except SourceError:  # whoever reads the rows says whose they are
                return False
            if pc.sum(pc.list_value_length(lists)).as_py():
                self._waits = names_objects(lists, relation.base)
        return bool(self._waits)

    def fetch(self, found: LookedUpLists) -> LookedUpLists:
        """Return the lists with the bytes that come over a network, which `render` waits for otherwise."""
        if not names_objects(found.references, self._relation.base):
            return found
        words = f"fetching column {self._kind.column} of relation {self._relation.entry.name}"
        with timed(self._metrics, "fetch_s"), doing(words):
            flat, _ = flattened(found.references)
            return replace(found, held=resolve_or_errors(flat, self._relation.base, self._kind.decoder.limits.bytes))

    def render(
        self, found: LookedUpLists, keys: UInt64, program: Program, out_PN: NDArray[Any], *, alike: bool
    ) -> list[Sizes]:
        """Fetch, decode and transform the images of P lists into ``out_PN``; what no image fills becomes 0.

        Args:
            found: P rows.
            keys: shape [P], uint64: random keys of the samples.
            program: the compiled transforms of an image.
            out_PN: shape [P, N, *image].
            alike: whether the images of a row draw alike.

        Returns:
            for each row, shape [its images, 2]: heights and widths before the transforms.

        Raises:
            DataError: an image is bad, or a list longer than N; ``row`` says whose.
            SourceError: storage failed; likewise.
        """
        width = out_PN.shape[1]
        _need_room(found.counts, width)
        owners = np.repeat(np.arange(len(found.counts)), found.counts)
        items = np.arange(len(owners)) - np.repeat(np.cumsum(found.counts) - found.counts, found.counts)
        rows = self.stored(found, owners, items)
        out_PN[np.arange(width) >= found.counts[:, None]] = 0
        if not len(owners):
            return [np.empty((0, 2), dtype=np.int32)] * len(found.counts)
        image_keys = keys[owners] if alike else item_keys(keys[owners], items)
        flat = out_PN.reshape(-1, *out_PN.shape[2:])
        with timed(self._metrics, "transform_s"):
            try:
                fill_rows(
                    flat, owners * width + items, lambda into: self.one.transform(rows, image_keys, program, into)
                )
            except DataError as error:
                at = error.row or 0
                raise of_item(int(items[at]), error, int(owners[at])) from error
        sizes = np.stack([rows.heights, rows.widths], axis=1)
        return np.split(sizes, np.cumsum(found.counts)[:-1])

    def stored(self, found: LookedUpLists, owners: Int64, items: Int64) -> StoredRows:
        """Return all images in their stored form, in the order of the rows.

        Args:
            found: P rows.
            owners: shape [Q]: the row of each image.
            items: shape [Q]: its place in the row's list.

        Raises:
            DataError: a row is refused, or an image's bytes are bad; ``row`` says whose.
            SourceError: storage failed; likewise.
        """
        rows = StoredRows(len(owners))
        starts = np.cumsum(found.counts) - found.counts
        for row in np.flatnonzero(found.at < 0).tolist():  # 10 us each
            if found.reasons[row] is not None:
                raise DataError(found.reasons[row] or "", row=row)
            facts, begins = unpack(bytes_at(int(found.addresses[row]), int(found.sizes[row])))
            images = slice(starts[row], starts[row] + found.counts[row])
            rows.addresses[images] = found.addresses[row] + begins.astype(np.uint64)
            rows.heights[images], rows.widths[images], rows.lengths[images] = facts.T
            rows.cached[images] = True
        rows.owners += found.owners
        self._direct(found, owners, items, rows)
        return rows

    def _direct(self, found: LookedUpLists, owners: Int64, items: Int64, rows: StoredRows) -> None:
        direct = np.flatnonzero(found.at >= 0)
        if not len(direct):
            return
        lists = found.references.take(pa.array(found.at[direct]))
        if lists.null_count:
            raise DataError(NULL_LIST, row=int(direct[lists.is_null().to_numpy(zero_copy_only=False)][0]))
        flat, whose = flattened(lists)
        indices = np.flatnonzero(found.at[owners] >= 0)
        with timed(self._metrics, "fetch_s"), renumbered(direct[whose]):
            if found.held is None:
                data = resolve(flat, self._relation.base, self._kind.decoder.limits.bytes)
            else:
                begins = np.cumsum([0, *pc.list_value_length(found.references).fill_null(0).to_pylist()])
                at = begins[found.at[owners[indices]]] + items[indices]
                data = need_all([found.held[each] for each in at.tolist()])
        with timed(self._metrics, "transform_s"):
            index = -1
            try:
                for index, encoded in zip(indices.tolist(), data, strict=True):  # 5 us per image; decoding takes 800
                    rows.put(index, self._kind.keep(int(items[index]), encoded))
            except DataError as error:
                error.row = int(owners[index])
                raise
        self._metrics.add(source_bytes=sum(map(len, data)))


@final
@dataclass(frozen=True, slots=True, eq=False)
class ImageListStage(ImageStage):
    """A field of lists of images."""

    LISTED: ClassVar[bool] = True
    KIND: ClassVar[type[Any]] = ImageListKind
    UNKNOWN_ITEMS: ClassVar[int] = UNKNOWN_IMAGES

    length: int | None  # images of a row in a batch; None: the longest list of the batch
    alike: bool  # whether the images of a row draw alike

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: Lowering) -> FieldStage | None:
        """See `FieldStage`."""
        column = lowering.have.field(field.column)
        if is_list_mask(field, column):
            return ListMaskStage(name, field.column, spec, field)
        if not is_image_list(field, column):
            return None
        length = list_length(lowering.collate.fields, column)
        return cls.lowered(name, field, spec, lowering, length, field.draws_alike)

    def opened(self, lineage: Lineage, metrics: Metrics) -> PayloadField:
        """See `FieldStage`."""
        del lineage
        return ImageListField(self, metrics)

    def task_rows(self, rows: int) -> int:
        """See `FieldStage`."""
        del rows
        return TASK_ROWS


@final
@dataclass(frozen=True, slots=True, eq=False)
class ListMaskStage(PlainStage):
    """A field that tells the images of lists from padding."""

    FILLED: ClassVar[bool] = True


@final
class ImageListField(PayloadField):
    """A field of a list of images per sample."""

    task_rows = TASK_ROWS

    def __init__(self, stage: ImageListStage, metrics: Metrics) -> None:
        self._stage = stage
        self._feeds = []
        for each in stage.caches:
            assert isinstance(each.kind, ImageListKind)
            self._feeds.append(ImageListFeed(each.payload.relation, each.kind, each.store.open(), metrics))
        super().__init__(stage.name, stage.column, stage.payloads, self._feeds)

    def waits(self, stream_rows: StreamRows) -> bool:
        """Whether any of the lists come over a network."""
        return any(self._feeds[stream].waits(rows) for stream, rows in self.ordinals(stream_rows))

    def start(self, draft: Draft) -> None:
        """See `PayloadField`."""
        _Filled(draft, self._stage, self).start()

    def fetch_far(self, stream_rows: StreamRows, values: pa.Array | None) -> "Lists":
        """See `PayloadField`."""
        del values
        return self.find(stream_rows).fetch()

    def find(self, stream_rows: StreamRows) -> "Lists":
        """Look up the lists of samples; see `ImageListFeed.find`."""
        return find_lists(self._feeds, self.payloads, stream_rows)


def find_lists(feeds: Sequence[ImageListFeed], payloads: Sequence[Payload], stream_rows: StreamRows) -> "Lists":
    """Look up the lists of samples; see `ImageListFeed.find`.

    Args:
        feeds: one for each stream.
        payloads: where each stream's images lie.
        stream_rows: of the samples.
    """
    parts = []
    for stream, where in split(stream_rows):
        with renumbered(where):
            rows = payloads[stream].ordinals(stream_rows.rows[where])
            parts.append((where, feeds[stream], feeds[stream].find(rows)))
    counts = np.zeros(len(stream_rows), dtype=np.int64)
    for where, _, found in parts:
        counts[where] = found.counts
    return Lists(counts, parts)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """The lists of P samples, looked up."""

    counts: Int64  # [P]
    parts: Sequence[tuple[Int64, ImageListFeed, LookedUpLists]]  # of each stream: its places, ascending

    def fetch(self) -> "Lists":
        """`ImageListFeed.fetch` for all of them."""
        return replace(self, parts=[(where, feed, feed.fetch(found)) for where, feed, found in self.parts])

    def render(
        self, first: int, last: int, keys: UInt64, program: Program, out_PN: NDArray[Any], *, alike: bool
    ) -> list[Sizes]:
        """`ImageListFeed.render` for samples [first, last); ``keys`` and ``out_PN`` are theirs."""
        sizes: list[Any] = [None] * (last - first)
        for where, feed, found in self.parts:
            a, b = np.searchsorted(where, (first, last)).tolist()
            if a == b:
                continue
            mine = where[a:b] - first
            with renumbered(mine):
                render = partial(feed.render, found.part(a, b), keys[mine], program, alike=alike)
                given = fill_rows(out_PN, mine, render)
            for row, each in zip(mine.tolist(), given, strict=True):
                sizes[row] = each
        return sizes


def _need_room(counts: Int64, width: int) -> None:
    over = np.flatnonzero(counts > width)
    if len(over):
        row = int(over[0])
        msg = (
            f"the list has {counts[row]:,} images, above sequence_length={width}. Raise it, cut the list before, or filter the "
            "row out"
        )
        raise DataError(msg, row=row)


Run = tuple[int, Lists]  # the first row of some, and what was found


@final
class _Filled:
    """One field of lists in one batch."""

    def __init__(self, draft: Draft, stage: ImageListStage, field: ImageListField) -> None:
        self._draft, self._stage, self._field = draft, stage, field
        stages = draft.filling.stages
        of_column = (each for each in stages.of(ImageListStage) if each.column == stage.column)
        first = next(of_column)  # of several views, one fills masks
        masks = [each for each in stages.of(ListMaskStage) if each.column == stage.column]
        self._masks = masks if first is stage else []
        self._keys = view_keys(draft.keys, stage.view)
        self._found: list[Run] = []
        self._lock = threading.Lock()
        self._count = len(draft.samples)
        self._out: Any = None
        self._left = -(-self._count // TASK_ROWS)

    def start(self) -> None:
        """Start the pieces."""
        if self._stage.length is not None:
            self._allocate(self._stage.length)
        pool, waits = self._draft.pool, self._field.waits(self._draft.samples.stream_rows)
        for begin, end in chunks(self._count, TASK_ROWS):
            find = partial(self._find, begin, end, waits=waits)
            part = submitted(pool, find, self._go_on) if waits else pool.submit(self._go_on_with, find)
            self._draft.parts.append(part)

    def _find(self, begin: int, end: int, *, waits: bool) -> list[Run]:
        """Find rows, and fetch what comes over a network."""
        runs: list[Run] = []

        def work(a: int, b: int) -> None:
            lists = self._field.find(self._draft.samples.stream_rows.take(np.arange(a, b)))
            runs.append((a, lists.fetch() if waits else lists))

        self._draft.refusals.attempt(self._stage.name, begin, end, work)
        return runs

    def _go_on_with(self, find: Callable[[], list[Run]]) -> None:
        self._go_on(find())

    def _go_on(self, runs: list[Run] | None) -> None:
        """Render what a piece has found where the width is known; the last piece makes it known."""
        assert runs is not None
        if self._stage.length is not None:
            for run in runs:
                self._decode(*run)
            return
        for run in self._all_found(runs):
            self._draft.parts.append(self._draft.pool.submit(self._decode, *run))

    def _all_found(self, runs: list[Run]) -> list[Run]:
        """Enter what a piece has found. Returns all that was found after the last piece, else nothing."""
        with self._lock:
            self._found += runs
            self._left -= 1
            if self._left:
                return []
        self._allocate(max([1, *(int(lists.counts.max(initial=0)) for _, lists in self._found)]))
        return self._found

    def _decode(self, first: int, lists: Lists) -> None:
        def work(a: int, b: int) -> None:
            self._render(a, b, lists, first)

        self._draft.refusals.attempt(self._stage.name, first, first + len(lists.counts), work)

    def _render(self, a: int, b: int, lists: Lists, first: int) -> None:
        low, high = a - first, b - first
        for mask in self._masks:
            into = self._draft.fields[mask.name]
            into[a:b] = np.arange(into.shape[1]) < lists.counts[low:high, None]
        stage = self._stage
        sizes = lists.render(low, high, self._keys[a:b], stage.program, self._out[a:b], alike=stage.alike)
        self._draft.following.sized_lists(self._stage.name, a, sizes)

    def _allocate(self, width: int) -> None:
        shape = self._stage.program.output_shape
        assert shape is not None  # the plan fixes the size of an image in a list
        self._out = self._taken((self._count, width, *shape), self._stage.program.dtype)
        for mask in self._masks:
            assert mask.spec.dtype is not None
            self._draft.fields[mask.name] = self._taken((self._count, width), mask.spec.dtype)
        self._draft.fields[self._stage.name] = self._out

    def _taken(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        filling = self._draft.filling
        return filling.items(shape, dtype) if self._stage.length is None else filling.rows(shape, dtype)
