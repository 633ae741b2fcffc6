"""Fields that follow an image of their batch: boxes, their labels, key points, and masks whose size is compared.

Boxes and points are moved right after their image, on the same thread: about 0.2 ms per sample. When all work on a batch is
done, masks are compared with their images, and what was moved becomes arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError
from spiral_stream.fields.boxes import Boxes, BoxLabels, Following, KeyPoints, padded
from spiral_stream.fields.crop_records import OfCrop
from spiral_stream.fields.field import Field, FieldSpec, named
from spiral_stream.fields.stack import Stack
from spiral_stream.plan.fields.clips import is_clip
from spiral_stream.plan.fields.dtypes import image_parts
from spiral_stream.planner.field_stages import FieldStage, Lowering, PlainStage
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.bad_samples import BatchRefusals
from spiral_stream.runtime.fields.pixels import PixelStage, mask_pairs, pixel_stages
from spiral_stream.sampling.order import UInt64
from spiral_stream.seeding import view_keys
from spiral_stream.semantic import is_list
from spiral_stream.transforms.chain import ImageChain, MaskProgram, fitted, moves_beyond_boxes
from spiral_stream.transforms.geometry import move_boxes, move_points
from spiral_stream.transforms.image.image import ImageProgram

Sizes = NDArray[np.int32]  # [P, 2] height and width


@final
@dataclass(frozen=True, slots=True, eq=False)
class RecordStage(FieldStage):
    """A field that says what was cut out of an image, which `BatchFollowers` makes."""

    FILLED: ClassVar[bool] = True

    field: OfCrop
    image: str  # the field of the image

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: Lowering) -> FieldStage | None:
        """See `FieldStage`.

        Raises:
            PlanError: it is not clear which image is meant, or numbers do not say where its pixels are from.
        """
        if not isinstance(field, OfCrop):
            return None
        where = f"collate: field {name!r}: {named(field)}"
        images = {
            at: each
            for at, each in lowering.collate.fields
            if isinstance(each, Stack) and each.decode and each.column == field.column
        }
        chosen = [at for at in images if field.of in (None, at)]
        if len(chosen) != 1:
            found = f"of={field.of!r}, which does not" if field.of else "several fields, which all"
            msg = f"{where}: {found} decode the column. Name one of them: of={next(iter(images))!r}"
            raise PlanError(msg)
        image = images[chosen[0]]
        if is_clip(image) or image.interpolation == "nearest" or is_list(lowering.have.field(field.column).type):
            msg = f"{where}: it is of images, one per row; {chosen[0]!r} holds clips, lists or masks. Leave it out"
            raise PlanError(msg)
        if any(profile.changes_pixels for profile in lowering.profiles(field.column)):
            msg = (
                f"{where}: the cache of the column holds images in another size than the originals. Cache it as "
                "profiles.Original() or Raw(), or leave the field out"
            )
            raise PlanError(msg)
        moved = moves_beyond_boxes(image_parts(image)[1])
        if moved is not None:
            msg = (
                f"{where}: {moved} moves pixels in another way than a crop, a resize and a flip. Leave one of them out"
            )
            raise PlanError(msg)
        return cls(name, field.column, spec, field, chosen[0])

    @property
    def when(self) -> str:
        """See `FieldStage`."""
        return f"with the boxes of {self.image};"


@final
class Followers:
    """Which fields of a plan follow which image."""

    def __init__(self, stages: Stages) -> None:
        self.images = {stage.name: stage for stage in pixel_stages(stages) if stage.FOLLOWED}
        self.records = stages.of(RecordStage)
        self.fields = {stage.name: stage for stage in stages.plains if isinstance(stage.field, Following)}
        self.masks = mask_pairs(stages)
        self.lists = {name for name, stage in self.images.items() if stage.LISTED}
        self.wanted = {*(self._image_of(each) for each in self.fields.values()), *self.masks, *self.masks.values()}
        self.wanted |= {each.image for each in self.records}

    def of(self, image: str) -> list[PlainStage]:
        """Return the boxes and points that follow an image, and then the labels of these boxes."""
        found = [each for each in self.fields.values() if self._image_of(each) == image]
        return sorted(found, key=lambda each: isinstance(each.field, BoxLabels))

    def _image_of(self, stage: PlainStage) -> str:
        field = stage.field
        assert isinstance(field, Following)
        return self._image_of(self.fields[field.of]) if isinstance(field, BoxLabels) else field.of


@final
class BatchFollowers:
    """What follows the images of one batch. Pieces of rows are filled in by several threads."""

    def __init__(self, followers: Followers, count: int, keys: UInt64, size: tuple[int, ...] | None = None) -> None:
        self._followers, self._keys, self._size = followers, keys, size
        self._values: dict[str, pa.Array] = {}
        self._sizes = {name: np.zeros((count, 2), np.int32) for name in followers.wanted}
        self._rows: dict[str, list[Any]] = {name: [None] * count for name in followers.fields}
        self._left: dict[str, list[Any]] = {name: [None] * count for name in followers.fields}
        self._lists: dict[str, list[Sizes | None]] = {n: [None] * count for n in followers.wanted & followers.lists}

    def give(self, stage: PlainStage, values: pa.Array) -> None:
        """Take the column of a field, before any image is read."""
        self._values[stage.name] = values

    def sized(self, image: str, rows: slice | NDArray[np.int64], sizes: Sizes) -> None:
        """Take the sizes of some images of a field."""
        if image in self._sizes:
            self._sizes[image][rows] = sizes

    def sized_lists(self, image: str, first: int, sizes: list[Sizes]) -> None:
        """Take the sizes of the images of rows from ``first`` on, of a field of lists."""
        if image in self._lists:
            self._lists[image][first : first + len(sizes)] = sizes

    def follow(self, image: str, refusals: BatchRefusals, first: int, last: int) -> None:
        """Move what follows the images of rows [first, last)."""
        for stage in self._followers.of(image):
            refusals.attempt(stage.name, first, last, self._work(stage, image))

    def finish(self, fields: dict[str, Any], refusals: BatchRefusals) -> None:
        """Compare masks, and make arrays, when every image of the batch is read.

        Raises:
            DataError: a mask has another size than its image, and the plan says ``"raise"``.
        """
        followers = self._followers
        if (
            not followers.masks and not followers.fields and not followers.records
        ):  # asking for the good rows takes 20 us
            return
        for mask, image in self._followers.masks.items():
            compared = self._compared_lists if mask in self._lists else self._compared
            refusals.attempt(mask, 0, len(self._sizes[mask]), compared(mask, image))
        good = set(refusals.good().tolist())
        for name, stage in self._followers.fields.items():
            rows = [each if i in good else None for i, each in enumerate(self._rows[name])]
            assert isinstance(stage.field, Following)
            assert stage.spec.dtype is not None
            fields[name] = padded(stage.field, rows, stage.spec.dtype)
        records: dict[str, NDArray[np.int64]] = {}
        for record in self._followers.records:
            if record.image not in records:
                records[record.image] = self._record(self._followers.images[record.image])
            sizes = self._sizes[record.image].astype(np.int64)
            fields[record.name] = record.field.values(sizes, records[record.image]).astype(record.spec.dtype)

    def _record(self, image: PixelStage) -> NDArray[np.int64]:
        """What is cut out of each image, shape [B, 9]; of one that is refused, anything."""
        program = self._program(image)
        head = program if isinstance(program, ImageProgram) else program.head
        sizes = np.maximum(self._sizes[image.name], 1)
        refused = self._sizes[image.name][:, 0] == 0
        if refused.any() and not refused.all():
            sizes[refused] = sizes[np.flatnonzero(~refused)[0]]
        at = head.geometries(sizes[:, 0], sizes[:, 1], view_keys(self._keys, image.view))
        parts = (
            at.top,
            at.left,
            at.height,
            at.width,
            at.resized_h,
            at.resized_w,
            at.window_top,
            at.window_left,
            at.flip,
        )
        return np.stack([part.astype(np.int64) for part in parts], axis=1)

    def _work(self, stage: PlainStage, image: str) -> Callable[[int, int], None]:
        one = self._labels if isinstance(stage.field, BoxLabels) else self._geometry

        def work(a: int, b: int) -> None:
            for row in range(a, b):
                if not self._sizes[image][row, 0]:  # the image is refused
                    continue
                try:
                    one(stage, self._followers.images[image], row)
                except DataError as error:
                    error.row = row - a
                    raise

        return work

    def _geometry(self, stage: PlainStage, image: PixelStage, row: int) -> None:
        field, program = stage.field, self._program(image)
        height, width = self._sizes[image.name][row].tolist()
        key = view_keys(self._keys[row : row + 1], image.view)[0]
        if isinstance(field, Boxes):
            given = field.corners(self._values[stage.name], row, height, width)
            boxes, left = move_boxes(program, given, (height, width), key)
            large = (boxes[:, 2:] - boxes[:, :2] >= field.min_side).all(axis=1)
            self._rows[stage.name][row] = field.formatted(boxes[large])
            self._left[stage.name][row] = (len(given), left[large])
            return
        assert isinstance(field, KeyPoints)
        points, (high, wide) = move_points(
            program, field.points(self._values[stage.name], row, height, width), (height, width), key
        )
        if field.outside == "nan":
            points[((points < 0) | (points >= [wide, high])).any(axis=1)] = np.nan
        self._rows[stage.name][row] = points.astype(np.float32)

    def _program(self, image: PixelStage) -> ImageProgram | ImageChain:
        """What is done to the pixels of an image of this batch."""
        assert not isinstance(image.program, MaskProgram)
        return image.program if self._size is None else fitted(image.program, (self._size[-2], self._size[-1]))

    def _labels(self, stage: PlainStage, image: PixelStage, row: int) -> None:
        del image
        field = stage.field
        assert isinstance(field, BoxLabels)
        boxes = self._left[field.of][row]
        if boxes is None:  # the boxes are refused
            return
        count, left = boxes
        labels = field.rows(self._values[stage.name], row)[:, 0]
        if len(labels) != count:
            msg = (
                f"BoxLabels({field.column!r}): {len(labels)} labels of {count} boxes ({field.of!r}). Store one label per box, or "
                "filter the sample out"
            )
            raise DataError(msg)
        self._rows[stage.name][row] = labels[left]

    def _compared(self, mask: str, image: str) -> Callable[[int, int], None]:
        def work(a: int, b: int) -> None:
            of_mask, of_image = self._sizes[mask][a:b], self._sizes[image][a:b]
            wrong = (of_mask != of_image).any(axis=1) & (of_mask[:, 0] > 0) & (of_image[:, 0] > 0)
            if wrong.any():
                row = int(wrong.argmax())
                (h, w), (high, wide) = of_mask[row].tolist(), of_image[row].tolist()
                msg = (
                    f"the mask is {h} x {w} and its image ({image!r}) {high} x {wide} (height x width), so equal crops do not "
                    "show the same place. Store the mask in the size of the image, or filter the sample out"
                )
                raise DataError(msg, row=row)

        return work

    def _compared_lists(self, mask: str, image: str) -> Callable[[int, int], None]:
        def work(a: int, b: int) -> None:
            for row in range(a, b):
                of_mask, of_image = self._lists[mask][row], self._lists[image][row]
                if of_mask is not None and of_image is not None and not np.array_equal(of_mask, of_image):
                    msg = (
                        f"the list has {len(of_mask)} masks of {len(of_image)} images ({image!r}), or one of another size, so "
                        "equal crops do not show the same place. Store a mask for each image in its size, or filter the sample "
                        "out"
                    )
                    raise DataError(msg, row=row - a)

        return work
