"""Pipelines of albumentations as a step of a chain, seeded with each sample's key.

A pipeline holds its own random state, so one that is at work is lent to nobody else: as many are made from the same text as
work at a time. It is seeded for every image, which costs about 60 us.
"""

import json
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from math import isclose
from typing import Any, ClassVar, Final, final

import numpy as np

from spiral_stream.errors import DataError, MissingExtraError, PlanError, shown
from spiral_stream.transforms.image.crop_and_resize import Normalize
from spiral_stream.transforms.image.pixel_transform import ForeignTransform, Pixels
from spiral_stream.transforms.transform import AsNumbers

_PACKAGE: Final = "albumentations"
_FREE: Final = dict[str, list[Any]]()  # pipelines that nobody uses, by their text; a list's pop and append are atomic


@final
@dataclass(frozen=True)
class Albumentations(ForeignTransform):
    """A transform or a pipeline of albumentations, as a value of a plan. `Stack` makes it of the transform itself.

    Args:
        config: what ``albumentations.to_dict`` says of it, as JSON text.
        release: version of albumentations, which decides the pixels.

    Raises:
        PlanError: the text describes none, or the version is another one.
        MissingExtraError: albumentations is not installed.
    """

    NAME: ClassVar[str] = "albumentations"
    MOVES: ClassVar[bool] = True
    PROBES: ClassVar[tuple[tuple[int, int], ...]] = ((61, 83), (97, 71), (300, 280))
    POINTS: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False

    config: str
    release: str

    def __post_init__(self) -> None:
        if self.release != installed_release():
            msg = (
                f"albumentations: the plan was made with version {self.release}, here is {installed_release()}, whose pixels "
                "may differ. Install that version, or make the plan again"
            )
            raise PlanError(msg)
        _give_back(self.config, _lent(self.config))

    @property
    def title(self) -> str:
        """The class, for messages."""
        try:
            return str(json.loads(self.config)["transform"]["__class_fullname__"])
        except (ValueError, TypeError, KeyError):
            return _PACKAGE

    def evaluation(self) -> tuple["Albumentations", ...]:
        """Never: which of its steps draw is not known.

        Raises:
            PlanError: always.
        """
        msg = (
            f"evaluation: {self.title} of albumentations may draw random numbers, and its form without them is not known. "
            "Collate an evaluation plan of its own"
        )
        raise PlanError(msg)

    def apply(self, pixels: Pixels, key: np.uint64) -> Pixels:
        return self._fit(self._call(key, image=pixels)["image"], pixels)

    def apply_to_mask(self, pixels: Pixels, key: np.uint64) -> Pixels:
        image = np.zeros((*pixels.shape[:2], 3), np.uint8)
        return self._fit(self._call(key, image=image, mask=pixels)["mask"], pixels)

    def _call(self, key: np.uint64, **given: Pixels) -> dict[str, Any]:
        made = _lent(self.config)
        try:
            made.set_random_seed(int(key) & 0xFFFFFFFF)
            out: dict[str, Any] = made(**given)
        except Exception as error:  # whatever a transform raises
            msg = f"{self.title} of albumentations failed: {type(error).__name__}: {error!s:.300}"
            raise DataError(msg) from error
        _give_back(self.config, made)
        return out

    def _fit(self, out: Any, given: Pixels) -> Pixels:
        if isinstance(out, np.ndarray) and out.ndim == 2:  # noqa: PLR2004  a mask of one channel
            out = out[:, :, None]
        if not isinstance(out, np.ndarray) or out.dtype != given.dtype or out.shape[2:] != given.shape[2:]:
            found = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
            msg = f"{self.title} of albumentations returned {found}; it has to return {given.dtype} [H, W, {given.shape[2]}]"
            raise DataError(msg)
        return np.ascontiguousarray(out)


def is_albumentations(value: object) -> bool:
    """Whether a value is a transform of albumentations, or a pipeline of them; imports nothing."""
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__}
    return not bases.isdisjoint({(_PACKAGE, "BasicTransform"), (_PACKAGE, "BaseCompose")})


def wrapped(transform: Any) -> list[Any]:
    """Return a transform or a pipeline of albumentations as values of a plan.

    What turns pixels into numbers at its end (``Normalize``, ``ToFloat``) becomes steps of Spiral; ``ToTensorV2`` needs none.

    Raises:
        PlanError: it moves boxes or key points, or cannot be written down.
    """
    parts, rest = [transform], list[Any]()
    if type(transform).__name__ in ("Compose", "Sequential") and transform.p == 1:
        if transform.processors:
            msg = (
                "images: a Compose of albumentations with bbox_params or keypoint_params moves boxes, which other fields read. "
                "Leave them out; boxes move with the transforms of Spiral and torchvision (Boxes, KeyPoints)"
            )
            raise PlanError(msg)
        parts = list(transform.transforms)
    while parts and type(parts[-1]).__name__ in ("Normalize", "ToFloat", "ToTensorV2", "NoOp"):
        rest = _last(parts.pop()) + rest
    if not parts:
        return rest
    package = import_module(_PACKAGE)
    pipeline = transform if [*parts] == [transform] else package.Compose(parts)
    try:
        config = json.dumps(package.to_dict(pipeline), sort_keys=True, allow_nan=False)
    except Exception as error:  # whatever it raises of what it cannot write down
        msg = (
            f"images: {type(transform).__name__} of albumentations cannot be written down ({error!s:.200}). Give a function of a "
            "uint8 [H, W, 3] array and a NumPy generator that calls it"
        )
        raise PlanError(msg) from error
    return [Albumentations(config, installed_release()), *rest]


def installed_release() -> str:
    """Return the version of albumentations.

    Raises:
        MissingExtraError: it is not installed.
    """
    if find_spec(_PACKAGE) is None:
        msg = (
            "a transform of albumentations needs that package, which is not installed. Run: pip install albumentations"
        )
        raise MissingExtraError(msg, name=_PACKAGE)
    return str(import_module(_PACKAGE).__version__)


def _last(transform: Any) -> list[Any]:
    """Return what stands at the end of a pipeline as steps of Spiral."""
    name = type(transform).__name__
    if transform.p != 1 and name != "NoOp":
        msg = f"images: {name} of albumentations is applied to some images alone (p={transform.p}). Give p=1"
        raise PlanError(msg)
    if name == "Normalize":
        if transform.normalization != "standard" or not isclose(transform.max_pixel_value, 255):
            msg = (
                f"images: Normalize of albumentations with normalization={transform.normalization!r} and max_pixel_value="
                f"{shown(transform.max_pixel_value)} is not known here. Give normalization='standard' and max_pixel_value=255"
            )
            raise PlanError(msg)
        return [AsNumbers("float32"), Normalize(tuple(map(float, transform.mean)), tuple(map(float, transform.std)))]
    if name == "ToFloat":
        if transform.max_value not in (None, 255):
            msg = f"images: ToFloat of albumentations with max_value={shown(transform.max_value)} is not known here. Give 255"
            raise PlanError(msg)
        return [AsNumbers("float32")]
    return []


def _lent(config: str) -> Any:
    """Return a pipeline that a text describes and that nobody else uses.

    Raises:
        PlanError: the text describes none.
    """
    try:
        return _FREE[config].pop()
    except (KeyError, IndexError):
        package = import_module(_PACKAGE)
    try:
        found = package.from_dict(json.loads(config))
        return found if hasattr(found, "set_random_seed") else package.Compose([found])
    except Exception as error:  # the text may come from a file
        msg = f"images: {shown(config)} is no transform of albumentations that can be made here ({error!s:.200})"
        raise PlanError(msg) from error


def _give_back(config: str, pipeline: Any) -> None:
    _FREE.setdefault(config, []).append(pipeline)
