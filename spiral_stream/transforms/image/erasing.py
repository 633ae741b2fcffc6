"""`RandomErasing`: overwrite a random box of the image, as Zhong et al. 2017 (arXiv 1708.04896)."""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from spiral_stream.arguments import class_door
from spiral_stream.errors import PlanError
from spiral_stream.transforms.image.crop_and_resize import logarithm
from spiral_stream.transforms.image.pixel_transform import (
    Pixels,
    PixelTransform,
    between,
    checked_color,
    checked_pair,
    draw,
    sides,
)
from spiral_stream.transforms.image.placement import portable_exp
from spiral_stream.transforms.transform import Transform, checked_chance, checked_range

_TRIES: Final = 10  # boxes that are tried before the image is left alone, as torchvision


@final
@class_door(PlanError, excepted=("value",))
@dataclass(frozen=True)
class RandomErasing(PixelTransform):
    """Overwrite a random box with probability ``p``. Masks, boxes and key points stay.

    It runs on uint8 pixels, before `Normalize`. Erasing with 0 after Normalize, as torchvision's examples do, is erasing
    with the mean here: ``value=(124, 116, 104)`` for ImageNet.

    Args:
        p: from 0 to 1.
        scale: (least, most) of the box's area, as a fraction of the image's.
        ratio: (least, most) of the box's height / width, drawn log-uniformly.
        value: a byte, three bytes, or ``"random"`` for noise.

    Raises:
        PlanError: an argument is out of range.

    Examples:
        >>> steps = [spiral.transforms.Resize((16, 16)), spiral.transforms.RandomErasing(p=0.25, value="random")]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
        >>> samples.collate(batch_size=8, fields={"image": image}).to_numpy()[0]["image"].shape
        (8, 3, 16, 16)
    """

    NAME: ClassVar[str] = "random_erasing"

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: int | tuple[int, int, int] | str = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", checked_chance("RandomErasing", self.p))
        object.__setattr__(self, "scale", checked_pair("RandomErasing", "scale", self.scale, 0, 1))
        object.__setattr__(self, "ratio", checked_range("RandomErasing", "ratio", self.ratio))
        if self.value != "random":
            object.__setattr__(self, "value", checked_color("RandomErasing", 'value, if not "random",', self.value))

    @property
    def deterministic(self) -> bool:
        return self.p == 0

    def evaluation(self) -> tuple[Transform, ...]:
        return ()

    def apply(self, pixels: Pixels, key: np.uint64) -> Pixels:
        found = self.box(*sides(pixels), key)
        if found is not None:
            top, left, h, w = found
            box = pixels[top : top + h, left : left + w]
            box[...] = _noise(key, h, w) if self.value == "random" else np.array(self.value, np.uint8)
        return pixels

    def box(self, height: int, width: int, key: np.uint64) -> tuple[int, int, int, int] | None:
        """Return top, left, height and width of the box; None if nothing is erased."""
        u = draw(key, 2 * _TRIES + 3).tolist()
        if u[0] >= self.p:
            return None
        low, high = map(logarithm, self.ratio)
        for t in range(_TRIES):
            area = height * width * between(u[2 * t + 1], self.scale)
            aspect = float(portable_exp(np.array([between(u[2 * t + 2], (low, high))]))[0])
            h, w = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
            if h < height and w < width:
                return int(u[-2] * (height - h + 1)), int(u[-1] * (width - w + 1)), h, w
        return None


def _noise(key: np.uint64, height: int, width: int) -> Pixels:
    count = 3 * height * width
    words = np.random.Philox(key=int(key)).random_raw(-(-count // 8))
    return np.asarray(words, "<u8").view(np.uint8)[:count].reshape(height, width, 3)
