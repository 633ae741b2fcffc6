"""What fields of images, lists of them and clips have in common: a program that is run on pixels, and how those are shown.

Pixels are shown as they were before `Normalize`; masks in colours, one per label.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import SpiralError
from spiral_stream.planner.field_stages import FieldStage
from spiral_stream.planner.stages import Stages
from spiral_stream.transforms.chain import ImageChain, MaskProgram, Program, random_moves
from spiral_stream.transforms.image.image import ImageProgram

_COLOURS: Final = 256  # of labels
_RGB: Final = 3
_PICTURE_DIMS: Final = 3
_WHITE: Final = 255.0

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class PixelStage(FieldStage):
    """A field whose bytes are decoded to pixels and transformed."""

    DECODES: ClassVar[bool] = True
    FOLLOWED: ClassVar[bool] = True  # whether boxes, points and masks may follow its pixels
    LISTED: ClassVar[bool] = False  # whether a row has several images

    program: Program  # per image or frame
    view: str | None  # of its random numbers

    @property
    def draws(self) -> bool:
        """See `FieldStage`."""
        return not self.program.deterministic

    def pictures(self, fields: Mapping[str, Any], row: int) -> list[Any] | None:
        """See `FieldStage`."""
        array = np.asarray(fields[self.name][row])
        if isinstance(self.program, MaskProgram):
            return [_coloured(array)]
        frames = array if array.ndim > _PICTURE_DIMS else array[None]
        if self.program.layout != "nhwc":
            frames = np.moveaxis(frames, -3, -1)
        return as_shown(frames, self.program)


def as_shown(frames: NDArray[Any], program: ImageProgram | ImageChain) -> list[Pixels]:
    """Return pictures as they were before `Normalize`: [H, W, 3], uint8.

    Args:
        frames: shape [F, H, W, C], as the batch has them.
        program: what made them.
    """
    if frames.dtype != np.uint8:
        try:
            _, mean, std = program.on_device()
        except SpiralError:
            mean, std = np.zeros(_RGB, np.float32), np.ones(_RGB, np.float32)
        frames = np.clip((frames.astype(np.float32) * std + mean) * _WHITE + 0.5, 0, _WHITE).astype(np.uint8)
    return [np.repeat(each, _RGB, axis=-1) if each.shape[-1] == 1 else each for each in frames]


def pixel_stages(stages: Stages) -> list[PixelStage]:
    """Return the fields of pixels."""
    return [each for each in stages.fields if isinstance(each, PixelStage)]


def mask_pairs(stages: Stages) -> dict[str, str]:
    """Return masks, each with its image: the first of the same view whose random moves the mask shares."""
    followed = [each for each in pixel_stages(stages) if each.FOLLOWED]
    images = [each for each in followed if not isinstance(each.program, MaskProgram)]
    out = {}
    for mask in followed:
        moves = random_moves(mask.program) if isinstance(mask.program, MaskProgram) else []
        for image in images if moves else ():
            theirs = iter(random_moves(image.program))
            both = image.LISTED == mask.LISTED
            if both and image.view == mask.view and all(each in theirs for each in moves):  # in this order
                out[mask.name] = image.name
                break
    return out


def _coloured(mask: NDArray[Any]) -> Pixels:
    """Labels as colours; 0 is black."""
    labels = mask[0] if mask.ndim == _PICTURE_DIMS and mask.shape[0] == 1 else mask
    labels = labels[..., 0] if labels.ndim == _PICTURE_DIMS else labels
    numbers = np.arange(_COLOURS, dtype=np.uint32)
    palette = np.stack([(numbers * k + numbers * 40) % 256 for k in (97, 57, 151)], axis=1).astype(np.uint8)
    palette[0] = 0
    found: Pixels = palette[labels.astype(np.int64) % _COLOURS]
    return found
