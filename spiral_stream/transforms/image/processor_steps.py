"""Image processors of transformers as steps of a chain: their configuration is read, their code is not called.

A processor resizes, cuts the centre, scales to [0, 1] and normalizes, each as its configuration says. Where its class does
these as transformers' base classes do, the steps here give the same pixels (the base class on torchvision; the one on
Pillow rounds a resize otherwise, by a few levels of 255) and the same numbers up to rounding in float32.
"""

from importlib import import_module
from math import isclose
from typing import Any, Final

from spiral_stream.errors import PlanError, shown
from spiral_stream.extras import need
from spiral_stream.transforms.image.crop_and_resize import CenterCropDown, Normalize, Resize
from spiral_stream.transforms.image.torchvision_step import wrapped as of_torchvision
from spiral_stream.transforms.transform import AsNumbers

_BASE: Final = "transformers.image_processing_backends"
_METHODS: Final = ("_preprocess", "resize", "center_crop", "rescale_and_normalize", "rescale", "normalize")
_KERNELS: Final = {
    0: "NEAREST_EXACT",
    1: "LANCZOS",
    2: "BILINEAR",
    3: "BICUBIC",
    4: "BOX",
    5: "HAMMING",
}  # as Pillow numbers them


def is_processor(value: object) -> bool:
    """Whether a value is an image processor of transformers, or holds one; imports nothing."""
    return _is(value) or _is(getattr(value, "image_processor", None))


def wrapped(processor: Any) -> list[Any]:
    """Return an image processor as values of a plan.

    Raises:
        PlanError: its class has an own way to prepare images, or its configuration asks for what no step does.
        MissingExtraError: it resizes with another kernel than the bilinear one, and torchvision is not installed.
    """
    processor = processor if _is(processor) else processor.image_processor
    name = type(processor).__name__
    odd = [each for each in _METHODS if _owner(processor, each) not in (None, _BASE)]
    if odd:
        msg = (
            f"images: {name} of transformers prepares images in its own way ({odd[0]}). Give the steps: transforms=[Resize(...), "
            "Normalize(...)]; or call it in map()"
        )
        raise PlanError(msg)
    given = {
        key: getattr(processor, key, None) for key in ("do_resize", "do_center_crop", "do_rescale", "do_normalize")
    }
    if getattr(processor, "do_pad", None):
        msg = f"images: {name} of transformers pads images. Give the steps: transforms=[Resize(...), Normalize(...)]"
        raise PlanError(msg)
    steps: list[Any] = []
    if given["do_resize"]:
        steps += _resize(processor, name)
    if given["do_center_crop"]:
        size = _sizes(processor.crop_size)
        steps.append(CenterCropDown((size["height"], size["width"])))
    if given["do_normalize"] and not given["do_rescale"]:
        msg = (
            f"images: {name} of transformers normalizes pixels of 0 to 255. Set do_rescale=True, or give Normalize(...)"
        )
        raise PlanError(msg)
    if given["do_rescale"]:
        if not isclose(processor.rescale_factor, 1 / 255, rel_tol=1e-6):
            msg = f"images: {name} of transformers scales pixels by {shown(processor.rescale_factor)}. Only 1/255 is known here"
            raise PlanError(msg)
        steps.append(AsNumbers("float32"))
    if given["do_normalize"]:
        steps.append(Normalize(tuple(map(float, processor.image_mean)), tuple(map(float, processor.image_std))))
    return steps


def _resize(processor: Any, name: str) -> list[Any]:
    size = _sizes(processor.size)
    if set(size) == {"height", "width"}:
        target: int | tuple[int, int] = (size["height"], size["width"])
    elif set(size) == {"shortest_edge"}:
        target = size["shortest_edge"]
    else:
        msg = (
            f"images: {name} of transformers resizes to {shown(size)}. Known are height and width, and shortest_edge alone. "
            "Give the steps: transforms=[Resize(...), Normalize(...)]"
        )
        raise PlanError(msg)
    kernel = _KERNELS.get(2 if processor.resample is None else int(processor.resample), "")
    if kernel == "BILINEAR":
        return [Resize(target)]
    need("torchvision", f"transforms={name}(resample={kernel})")
    package = import_module("torchvision.transforms.v2")
    mode = package.InterpolationMode[kernel]
    return of_torchvision(package.Resize(list(target) if isinstance(target, tuple) else target, interpolation=mode))


def _sizes(given: Any) -> dict[str, int]:
    """Return the sides that a size names."""
    return {key: int(side) for key, side in dict(given).items() if side is not None}


def _is(value: object) -> bool:
    return any(
        base.__name__ == "BaseImageProcessor" and base.__module__.startswith("transformers.")
        for base in type(value).__mro__
    )


def _owner(processor: Any, method: str) -> str | None:
    """The module whose class has the method."""
    for base in type(processor).__mro__:
        if method in vars(base):
            return base.__module__
    return None
