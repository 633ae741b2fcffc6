"""Images as patches: decoded, resized to whole patches each in its own aspect ratio, transformed, and cut.

Images of one grid go through one program together. The rows of images come from `runtime.fields.images`, so that their caches
are those of `Stack`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.kinds.images import ImageKind
from spiral_stream.decoders.registry import decoder
from spiral_stream.errors import PlanError, renumbered
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.fields.patches import Patches, PatchField, PatchGrid, PatchMask
from spiral_stream.planner.columns.lineage import Lineage
from spiral_stream.planner.field_stages import FieldStage, Lowering
from spiral_stream.runtime.fetch import chunks, submitted
from spiral_stream.runtime.fields.draft import TASK_ROWS, Draft
from spiral_stream.runtime.fields.images import Held, ImageFeed, pixels_of
from spiral_stream.runtime.fields.payload_field import PayloadField
from spiral_stream.runtime.fields.pixels import as_shown
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64
from spiral_stream.seeding import view_keys
from spiral_stream.transforms.chain import ImageChain, compile_chain
from spiral_stream.transforms.image.crop_and_resize import Resize
from spiral_stream.transforms.image.image import ImageProgram

# P images, N patches of an image, D values of a patch


@final
@dataclass(frozen=True, slots=True, eq=False)
class PatchStage(FieldStage):
    """A field of patches, and the masks and grids of a batch that it makes."""

    DECODES: ClassVar[bool] = True

    field: Patches
    sides: Mapping[str, PatchField]  # by name: the masks and grids that it makes

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: Lowering) -> FieldStage | None:
        """See `FieldStage`."""
        if isinstance(field, PatchMask | PatchGrid):
            return PatchSideStage(name, field.column, spec, field)
        if not isinstance(field, Patches):
            return None
        of_column = {n: each for n, each in lowering.collate.fields if each.column == field.column}
        makers = [
            n for n, each in of_column.items() if isinstance(each, Patches)
        ]  # of several views, one makes the grids
        sides = {
            n: each for n, each in of_column.items() if isinstance(each, PatchMask | PatchGrid) and name == makers[0]
        }
        payloads = lowering.payloads(name, field.column)
        caches = tuple(
            lowering.cached(each, ImageKind(each.relation.entry.name, each.column, decoder(field.decode), profile))
            for each, profile in zip(payloads, lowering.profiles(field.column), strict=True)
        )
        stage = cls(name, field.column, spec, field, sides, payloads=payloads, caches=caches)
        try:
            shape = stage.program(1, 2).output_shape
        except PlanError as error:
            msg = f"collate: field {name!r}: {error}"
            raise PlanError(msg) from error
        if shape != (field.patch_size, 2 * field.patch_size, 3):
            msg = (
                f"collate: field {name!r}: the transforms of Patches({field.column!r}) end in another size than whole patches. "
                "Give those that keep the size, such as RandomHorizontalFlip or Normalize"
            )
            raise PlanError(msg)
        return stage

    def opened(self, lineage: Lineage, metrics: Metrics) -> PayloadField:
        """See `FieldStage`."""
        del lineage
        return PatchesField(self, metrics)

    def program(self, rows: int, columns: int) -> ImageProgram | ImageChain:
        """Compile what is done to images of one grid."""
        side, dtype = self.field.patch_size, str(self.field.dtype)
        steps = (Resize((rows * side, columns * side)), *self.field.transforms)
        return compile_chain(steps, dtype=dtype, layout="nhwc")

    @property
    def draws(self) -> bool:
        """See `FieldStage`."""
        return not self.program(1, 1).deterministic

    @property
    def when(self) -> str:
        """See `FieldStage`."""
        return "after membership; normalized on"

    def pictures(self, fields: Mapping[str, Any], row: int) -> list[Any] | None:
        """See `FieldStage`: the grid has to be in the batch."""
        grid = next((name for name, each in self.sides.items() if isinstance(each, PatchGrid)), None)
        if grid is None:
            return None
        picture = self.field.put_together(np.asarray(fields[self.name][row]), np.asarray(fields[grid][row]).tolist())
        return [*as_shown(picture[None], self.program(1, 1))]


@final
@dataclass(frozen=True, slots=True, eq=False)
class PatchSideStage(FieldStage):
    """A mask or a grid, which `PatchesField` makes."""

    FILLED: ClassVar[bool] = True

    field: PatchMask | PatchGrid

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: Lowering) -> FieldStage | None:
        """See `PatchStage`, which makes it."""
        return PatchStage.of(name, field, spec, lowering)

    @property
    def is_mask(self) -> bool:
        """See `FieldStage`."""
        return self.field.MASK


@final
class PatchesField(PayloadField):
    """A field of the patches of an image per sample."""

    task_rows = TASK_ROWS

    def __init__(self, stage: PatchStage, metrics: Metrics) -> None:
        self._stage, self._metrics, self._program = stage, metrics, cache(stage.program)
        self._feeds = [ImageFeed(each.payload.relation, each.kind, each.store.open(), metrics) for each in stage.caches]
        super().__init__(stage.name, stage.column, stage.payloads, self._feeds)

    def start(self, draft: Draft) -> None:
        """See `PayloadField`."""
        at_rows, spec, filling = draft.samples.stream_rows, self._stage.spec, draft.filling
        count, (patches, values) = len(at_rows), spec.shape
        assert patches is not None
        assert values is not None
        out = draft.fields[self.name] = filling.rows((count, patches, values), spec.dtype or "float32")
        for name, side in self._stage.sides.items():
            shape = (count, patches) if side.MASK else (count, 2)
            draft.fields[name] = filling.rows(shape, side.dtype)  # type: ignore[attr-defined]  # each has one
        keys = view_keys(draft.keys, self._stage.field.view)

        def piece(start: int, stop: int, held: Mapping[int, Held] | None) -> None:
            def render(a: int, b: int) -> None:
                grids = self._render(at_rows.take(np.arange(a, b)), keys[a:b], out[a:b], held)
                for name, side in self._stage.sides.items():
                    shown = np.arange(patches) < grids.prod(axis=1)[:, None] if side.MASK else grids
                    draft.fields[name][a:b] = shown

            draft.refusals.attempt(self.name, start, stop, render)

        waits = any(self._feeds[stream].waits(rows) for stream, rows in self.ordinals(at_rows))
        for start, stop in chunks(count, filling.task_rows):
            fetch = partial(self._fetch, at_rows.take(np.arange(start, stop))) if waits else None
            draft.parts.append(submitted(draft.pool, fetch, partial(piece, start, stop)))

    def fetch_far(self, stream_rows: StreamRows, values: pa.Array | None) -> Mapping[int, Held]:
        """See `PayloadField`."""
        del values
        return self._fetch(stream_rows)

    def _fetch(self, stream_rows: StreamRows) -> dict[int, Held]:
        return {stream: self._feeds[stream].fetch(rows) for stream, rows in self.ordinals(stream_rows)}

    def _render(
        self, stream_rows: StreamRows, keys: UInt64, out_PND: NDArray[Any], held: Mapping[int, Held] | None
    ) -> NDArray[np.int64]:
        """Decode images and cut them into ``out_PND``. Returns their grids, shape [P, 2]."""
        images = pixels_of(self._feeds, self.payloads, stream_rows, held)
        field = self._stage.field
        grids = field.grids(np.array([image.shape[:2] for image in images], np.int64).reshape(-1, 2))
        with timed(self._metrics, "transform_s"):
            different, of = np.unique(grids, axis=0, return_inverse=True)
            for number, (rows, columns) in enumerate(different.tolist()):  # 50 us each, next to decoding
                same = np.flatnonzero(of.ravel() == number)
                program = self._program(rows, columns)
                pixels = np.empty((len(same), *(program.output_shape or ())), out_PND.dtype)
                with renumbered(same):
                    program.run([images[at] for at in same.tolist()], keys[same], pixels)
                cut = np.zeros((len(same), *out_PND.shape[1:]), out_PND.dtype)
                field.cut(pixels, cut[:, : rows * columns])
                out_PND[same] = cut
        return grids
