"""Fill the images of a batch end to end, and what goes with them: grids, extents, places, positions.

Sizes, places and positions follow from columns of the batch, for all of its samples at once. Images are found some samples at
a time, as in `runtime.fields.image_lists`, whose caches they share; those of one size go through one program, and each piece
is written where it belongs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Final, NamedTuple, TypeGuard, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.formation import Formation
from spiral_stream.cache.kinds.image_lists import ImageListKind
from spiral_stream.decoders.registry import decoder
from spiral_stream.errors import DataError, PlanError, renumbered
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.fields.flat_images import (
    FlatImages,
    GridPositions,
    ImageExtents,
    ImageGrids,
    ImagePlaces,
    OfFlatImages,
    PlacedImages,
    grid_positions,
    placed,
)
from spiral_stream.fields.image_layouts import ImageView
from spiral_stream.fields.pad import Pad
from spiral_stream.fields.sequence import SequenceLayout
from spiral_stream.host_dtypes import host_dtype
from spiral_stream.planner.columns.lineage import Lineage
from spiral_stream.planner.field_stages import FieldStage, Lowering
from spiral_stream.runtime.columns.samples import as_lists
from spiral_stream.runtime.fetch import chunks, submitted
from spiral_stream.runtime.fields.draft import Draft
from spiral_stream.runtime.fields.image_lists import ImageListFeed, Lists, find_lists
from spiral_stream.runtime.fields.images import StoredRows
from spiral_stream.runtime.fields.payload_field import PayloadField
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64
from spiral_stream.seeding import item_keys, view_keys
from spiral_stream.transforms.chain import ImageChain, compile_chain
from spiral_stream.transforms.image.crop_and_resize import Normalize, Resize
from spiral_stream.transforms.image.image import ImageProgram
from spiral_stream.transforms.text.image_tokens import sizes_of

TASK_SAMPLES: Final = 8  # whose images a task fetches and decodes
Int64 = NDArray[np.int64]
# S samples, I images of all of them, N pieces of all images


@final
@dataclass(frozen=True, slots=True, eq=False)
class FlatImageStage(FieldStage):
    """A field of images end to end, and what goes with them."""

    DECODES: ClassVar[bool] = True

    field: FlatImages
    sides: Mapping[str, OfFlatImages]  # by name: what it makes beside the pixels

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: Lowering) -> FieldStage | None:
        """See `FieldStage`."""
        if isinstance(field, OfFlatImages):
            return FlatSideStage(name, field.column, spec, field)
        if not isinstance(field, FlatImages):
            return None
        fields = lowering.collate.fields
        makers = [n for n, each in fields if isinstance(each, FlatImages) and each.column == field.column]
        sides = {n: each for n, each in fields if _is_side(each, field.column)} if name == makers[0] else {}
        payloads = lowering.payloads(name, field.column)
        caches = tuple(
            lowering.cached(each, ImageListKind(each.relation.entry.name, each.column, decoder(field.decode), profile))
            for each, profile in zip(payloads, lowering.profiles(field.column), strict=True)
        )
        stage = cls(name, field.column, spec, field, sides, payloads=payloads, caches=caches)
        try:
            stage.need_sizes()
        except PlanError as error:
            msg = f"collate: field {name!r}: {error}"
            raise PlanError(msg) from error
        return stage

    def need_sizes(self) -> None:
        """Refuse transforms that do not end in the size of the layout.

        Raises:
            PlanError: they do not, or are no legal chain.
        """
        for view in self.field.layout.views(200, 300):
            shape = self.program(view).output_shape
            if shape not in ((3, *view.canvas), (*(view.resized or view.canvas), 3)):
                wanted = " x ".join(map(str, view.resized or view.canvas))
                msg = (
                    f"the transforms of FlatImages({self.column!r}) end in {shape}, and {type(self.field.layout).__name__} wants "
                    f"{wanted} pixels (height x width). Give those that keep the size; for a FixedLayout end with Resize or "
                    "CenterCrop"
                )
                raise PlanError(msg)

    def program(self, view: ImageView) -> ImageProgram | ImageChain:
        """Compile what is done to images of one size: all of it, or what comes before they are laid on a larger canvas."""
        field = self.field
        resize = () if view.resized is None else (Resize(view.resized, interpolation=field.interpolation),)
        if view.resized in (None, view.canvas):
            return compile_chain((*resize, *field.transforms), dtype=str(field.dtype), layout="nchw")
        steps = [each for each in field.transforms if not isinstance(each, Normalize)]
        return compile_chain((*resize, *steps), dtype="uint8", layout="nhwc")

    @property
    def finish(self) -> ImageProgram | ImageChain:
        """What is done to a canvas."""
        last = [each for each in self.field.transforms if isinstance(each, Normalize)]
        return compile_chain(last, dtype=str(self.field.dtype), layout="nchw")

    def opened(self, lineage: Lineage, metrics: Metrics) -> PayloadField:
        """See `FieldStage`."""
        return FlatImageField(self, metrics, lineage)

    @property
    def read(self) -> tuple[str, ...]:
        """See `FieldStage`: the sizes; images are looked up by address."""
        return (self.field.sizes,)

    @property
    def draws(self) -> bool:
        """See `FieldStage`."""
        return not all(self.program(view).deterministic for view in self.field.layout.views(200, 300))

    @property
    def when(self) -> str:
        """See `FieldStage`."""
        return "after membership; normalized on"

    @property
    def value(self) -> tuple[int, str] | str:
        """See `FieldStage`."""
        return self._patch_bytes, " a piece"

    @property
    def _patch_bytes(self) -> int:
        return int(np.prod(self.field.layout.patch_shape)) * host_dtype(str(self.field.dtype)).itemsize

    def formed_bytes(self, formation: Formation, rows: int) -> int | None:
        """See `FieldStage`."""
        most = _most(formation, "max_patches", rows)
        return None if most is None else most * self._patch_bytes

    def task_rows(self, rows: int) -> int:
        """See `FieldStage`."""
        del rows
        return TASK_SAMPLES


def _is_side(field: Field, images: str) -> TypeGuard[OfFlatImages]:
    return isinstance(field, OfFlatImages) and field.images == images


@final
@dataclass(frozen=True, slots=True, eq=False)
class FlatSideStage(FieldStage):
    """Grids, extents, places or positions, which `FlatImageField` makes."""

    FILLED: ClassVar[bool] = True

    field: OfFlatImages

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: Lowering) -> FieldStage | None:
        """See `FlatImageStage`, which makes it."""
        return FlatImageStage.of(name, field, spec, lowering)

    def formed_bytes(self, formation: Formation, rows: int) -> int | None:
        """See `FieldStage`."""
        most = formation.most_tokens(rows) if self.field.PER_ROW else _most(formation, "max_images", rows)
        items = int(np.prod([n for n in self.spec.shape if n is not None]))
        return None if most is None else most * items * np.dtype(self.spec.dtype).itemsize

    @property
    def value(self) -> tuple[int, str] | str:
        """See `FieldStage`."""
        each = " a token" if self.field.PER_ROW else " an image"
        items = int(np.prod([n for n in self.spec.shape if n is not None]))
        return items * np.dtype(self.spec.dtype).itemsize, each


def _most(formation: Formation, name: str, rows: int) -> int | None:
    """A budget of images in a batch: that of its rows, or of all of them; None if there is none."""
    of_a_row = getattr(formation, name, None)
    if of_a_row is not None:
        return int(of_a_row) * rows
    most = getattr(getattr(formation, "budget", None), name, None)
    return None if most is None else int(most)


class _Images(NamedTuple):
    """The images of a batch, by the columns of its samples."""

    counts: Int64  # [S] of each sample
    sizes: Int64  # [I, 2]
    begins: Int64  # [I + 1] where the patches of each image begin, and the end
    first: Int64  # [S + 1] number of the first image of each sample


@final
class FlatImageField(PayloadField):
    """A field of the images of samples, end to end."""

    task_rows = TASK_SAMPLES
    AFTER_COLUMNS: ClassVar[bool] = True

    def __init__(self, stage: FlatImageStage, metrics: Metrics, lineage: Lineage) -> None:
        self._stage, self._metrics = stage, metrics
        (self._sizes,) = lineage.keys(stage.read, lineage.end)
        self._program, self._views = cache(stage.program), cache(stage.field.layout.views)
        self._finish = stage.finish
        self._feeds = []
        for each in stage.caches:
            assert isinstance(each.kind, ImageListKind)
            self._feeds.append(ImageListFeed(each.payload.relation, each.kind, each.store.open(), metrics))
        super().__init__(stage.name, stage.column, stage.payloads, self._feeds)

    # ---- what follows from columns

    def start(self, draft: Draft) -> None:
        """See `PayloadField`."""
        stage, samples = self._stage, len(draft.samples)
        layout, spec = stage.field.layout, stage.spec
        sizes, counts = sizes_of(as_lists(draft.samples.columns[self._sizes]))
        first = np.concatenate(([0], np.cumsum(counts)))
        begins = np.concatenate(([0], np.cumsum(layout.patch_counts(sizes))))
        images = _Images(counts, sizes, begins, first)
        draft.refusals.attempt(self.name, 0, samples, partial(self._sides, draft, images))
        shape = (int(begins[-1]), *layout.patch_shape)
        out = draft.fields[self.name] = draft.filling.items(shape, spec.dtype or "float32")
        at_rows, keys = draft.samples.stream_rows, view_keys(draft.keys, stage.field.view)
        waits = any(self._feeds[stream].waits(rows) for stream, rows in self.ordinals(at_rows))

        def fill(start: int, stop: int, lists: Lists | None) -> None:
            def render(a: int, b: int) -> None:
                found = lists if lists is not None and (a, b) == (start, stop) else self._find(at_rows, a, b)
                self._render(found, images, a, keys[a:b], out)

            draft.refusals.attempt(self.name, start, stop, render)

        for start, stop in chunks(samples, TASK_SAMPLES):
            fetch = partial(self.fetch_far, at_rows.take(np.arange(start, stop)), None) if waits else None
            draft.parts.append(submitted(draft.pool, fetch, partial(fill, start, stop)))

    def _sides(self, draft: Draft, images: _Images, first: int, last: int) -> None:
        """Fill what goes with the pixels.

        Raises:
            DataError: an image cannot be taken, or the tokens have other places than the images; ``row`` counts from ``first``.
        """
        del first, last  # it is done for the whole batch
        field, layout = self._stage.field, self._stage.field.layout
        owners = np.repeat(np.arange(len(images.counts)), images.counts)
        if (refused := np.flatnonzero(layout.refused(images.sizes))).size:
            height, width = images.sizes[refused[0]].tolist()
            msg = (
                f"an image has {height} x {width} pixels (height x width), which {type(layout).__name__} does not take"
            )
            raise DataError(msg, row=int(owners[refused[0]]))
        found: tuple[PlacedImages, SequenceLayout] | None = None
        if field.tokens is not None and field.token_id is not None:
            tokens, rows = draft.placed[field.tokens]
            ids = np.empty((rows.B, rows.T), np.int64)
            Pad(field.tokens, pad_value=-1).fill_tokens(tokens, rows, ids)
            found = placed(ids, rows, field.token_id, owners, layout.token_counts(images.sizes)), rows
        for name, side in self._stage.sides.items():
            draft.fields[name] = self._side(draft, side, images, found)

    def _side(
        self, draft: Draft, side: OfFlatImages, images: _Images, found: tuple[PlacedImages, SequenceLayout] | None
    ) -> NDArray[Any]:
        layout, items = self._stage.field.layout, draft.filling.items
        if isinstance(side, ImageGrids):
            grids = items((len(images.sizes), 3), str(side.dtype))
            grids[:] = layout.grids(images.sizes)
            return grids
        if isinstance(side, ImageExtents):
            extents = items((len(images.sizes), 2), str(side.dtype))
            extents[:] = images.sizes
            return extents
        assert found is not None  # the plan has checked that marks are known
        where, rows = found
        if isinstance(side, ImagePlaces):
            places = items((len(images.sizes), 4), str(side.dtype))
            where.as_field(rows, places)
            return places
        assert isinstance(side, GridPositions), side
        token_grids = layout.token_grids(images.sizes)
        assert token_grids is not None
        return grid_positions(rows, where, token_grids, items((rows.B, 3, rows.T), str(side.dtype)))

    # ---- pixels

    def fetch_far(self, stream_rows: StreamRows, values: Any) -> Lists:
        """See `PayloadField`."""
        del values
        return find_lists(self._feeds, self.payloads, stream_rows).fetch()

    def _find(self, stream_rows: StreamRows, first: int, last: int) -> Lists:
        return find_lists(self._feeds, self.payloads, stream_rows.take(np.arange(first, last)))

    def _render(self, lists: Lists, images: _Images, first: int, keys: UInt64, out: NDArray[Any]) -> None:
        """Decode the images of samples and write their pieces.

        Args:
            lists: where the images of some samples lie.
            images: of the batch.
            first: number of the first of these samples in the batch.
            keys: of these samples.
            out: the pieces of the batch.

        Raises:
            DataError: an image is bad, or of another size than its column says; ``row`` counts from the first sample.
        """
        for where, feed, found in lists.parts:
            with renumbered(where):
                owners = np.repeat(np.arange(len(found.counts)), found.counts)
                items = np.arange(len(owners)) - np.repeat(np.cumsum(found.counts) - found.counts, found.counts)
                rows = feed.stored(found, owners, items)
                at = where[owners] + first  # sample of the batch, by image
                _need_sizes(rows, images, where + first, found.counts, items, owners)
                image_keys = item_keys(keys[where[owners]], items)
                begins = images.begins[images.first[at] + items]
                self._write(feed, rows, image_keys, begins, owners, out)

    def _write(
        self,
        feed: ImageListFeed,
        rows: StoredRows,
        keys: UInt64,
        begins: Int64,
        owners: Int64,
        out: NDArray[Any],
    ) -> None:
        together: dict[tuple[ImageView, ...], list[int]] = {}
        for at, size in enumerate(zip(rows.heights.tolist(), rows.widths.tolist(), strict=True)):  # 1 us each
            together.setdefault(self._views(*size), []).append(at)
        for views, members in together.items():  # 50 us each, next to decoding
            some = np.array(members)
            with renumbered(owners[some]):
                done = begins[some].copy()
                one = rows.take(some)
                pixels = feed.one.full(one) if len(views) > 1 or views[0].resized != views[0].canvas else None
                with timed(self._metrics, "transform_s"):
                    for view in views:
                        canvas = self._canvas(feed, one, pixels, view, keys[some])
                        self._cut(canvas, view, done, out)

    def _canvas(
        self,
        feed: ImageListFeed,
        rows: StoredRows,
        pixels: Sequence[NDArray[np.uint8]] | None,
        view: ImageView,
        keys: UInt64,
    ) -> NDArray[Any]:
        """The pictures that a view makes of some images, shape [I, 3, height, width]."""
        program, dtype = self._program(view), host_dtype(str(self._stage.field.dtype))
        out = np.empty((len(keys), 3, *view.canvas), dtype)
        if pixels is None:
            feed.one.transform(rows, keys, program, out)
        elif view.resized in (None, view.canvas):
            program.run(pixels, keys, out)
        else:
            assert view.resized is not None
            (top, left), (height, width) = view.corner, view.resized
            inner = np.empty((len(keys), height, width, 3), np.uint8)
            program.run(pixels, keys, inner)
            laid = np.zeros((len(keys), *view.canvas, 3), np.uint8)
            laid[:, top : top + height, left : left + width] = inner
            self._finish.run(list(laid), keys, out)
        return out

    def _cut(self, canvas: NDArray[Any], view: ImageView, done: Int64, out: NDArray[Any]) -> None:
        """Cut pictures into the places of their images, and move these on."""
        for at, begin in enumerate(done.tolist()):  # 15 us each, next to decoding
            self._stage.field.layout.cut(canvas[at : at + 1], out[begin : begin + view.patches][None])
        done += view.patches


def _need_sizes(rows: StoredRows, images: _Images, samples: Int64, counts: Int64, items: Int64, owners: Int64) -> None:
    """Refuse samples whose images are not as many, or of other sizes, than their column says.

    Raises:
        DataError: says which; ``row`` is the place in ``samples``.
    """
    wanted = images.counts[samples]
    if (wrong := np.flatnonzero(wanted != counts)).size:
        row = int(wrong[0])
        msg = f"the list has {counts[row]} images, and the column of sizes {wanted[row]}. Make the sizes of the images anew"
        raise DataError(msg, row=row)
    said = images.sizes[images.first[samples[owners]] + items]
    other = np.flatnonzero((said[:, 0] != rows.heights) | (said[:, 1] != rows.widths))
    if len(other):
        at = int(other[0])
        msg = (
            f"image {items[at]} of the list has {rows.heights[at]} x {rows.widths[at]} pixels (height x width), and the column "
            f"of sizes says {said[at, 0]} x {said[at, 1]}. Make the sizes of the images anew, as they are stored"
        )
        raise DataError(msg, row=int(owners[at]))
