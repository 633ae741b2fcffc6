"""Transforms of torchvision in a chain: any `torchvision.transforms.v2` transform, with random numbers of our own.

torchvision draws from torch's global generator, which all threads of a process share. While a transform runs here, a
dispatch mode of this thread alone hands every random operation a generator that is seeded with the sample's key. So other
threads, and the user's own generator, neither see nor disturb it. A random operation that takes no generator is refused
by name, so nothing random goes unseen. The mode costs about 7 us per operation of torch.

torch runs on one core per call here: with several, sums (and so contrast) would depend on their number.
"""

import ctypes
import enum
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.extras import need
from spiral_stream.transforms.image.pixel_transform import ForeignTransform, Pixels
from spiral_stream.transforms.transform import AsNumbers, Transform

_PACKAGE: Final = "torchvision.transforms.v2"
_ENUMS: Final = ("InterpolationMode", "AutoAugmentPolicy")
_PRESETS: Final = ("ImageClassification", "SemanticSegmentation")  # of pretrained models: weights.transforms()
_OF_BATCHES: Final = ("MixUp", "CutMix")
_CONVERTS: Final = "Give the field dtype= (and layout=) instead; pixels stay uint8 until then"
_BEGIN: Final = ("ToImage", "PILToTensor", "ToPureTensor", "ToPILImage", "Identity")  # nothing is left to do
_NUMBERS: Final = ("ToDtype", "ConvertImageDtype", "ConvertDtype", "ToTensor")


@final
@dataclass(frozen=True)
class Torchvision(ForeignTransform):
    """A transform of torchvision, as a value of a plan. `Stack` makes it of the transform itself.

    Args:
        config: the class and its parameters, as JSON text.
        release: version of torchvision, which decides the pixels.

    Raises:
        PlanError: the text names no transform of torchvision, or the version is another one.
        MissingExtraError: torchvision is not installed.
    """

    NAME: ClassVar[str] = "torchvision"
    MOVES: ClassVar[bool] = True
    PROBES: ClassVar[tuple[tuple[int, int], ...]] = ((61, 83), (97, 71))

    config: str
    release: str

    def __post_init__(self) -> None:
        if self.release != installed_release():
            msg = (
                f"{self.title}: the plan was made with torchvision {self.release}, here is {installed_release()}, whose pixels "
                "may differ. Install that version, or make the plan again"
            )
            raise PlanError(msg)
        made(self.config)

    @property
    def title(self) -> str:
        """The class, for messages."""
        try:
            return str(json.loads(self.config)["class"])
        except (ValueError, TypeError, KeyError):
            return "torchvision"

    @property
    def deterministic(self) -> bool:
        return _draws_nothing(self.config)

    def evaluation(self) -> tuple[Transform, ...]:
        """The step itself.

        Raises:
            PlanError: it draws random numbers.
        """
        if not self.deterministic:
            msg = (
                f"evaluation: {self.title} of torchvision may draw random numbers, and its form without them is not known. "
                "Collate an evaluation plan of its own, or take the transform of spiral_stream with that name"
            )
            raise PlanError(msg)
        return (self,)

    def apply(self, pixels: Pixels, key: np.uint64) -> Pixels:
        out = self.call(lambda tv: tv.Image(_chw(pixels)), key)
        array = np.ascontiguousarray(out.permute(1, 2, 0).numpy()) if _is_image(out, 3) else None
        if array is None:
            raise self._unfit(out, "a uint8 image of three channels")
        return array

    def apply_to_mask(self, pixels: Pixels, key: np.uint64) -> Pixels:
        out = self.call(lambda tv: tv.Mask(_chw(pixels)), key)
        if out.ndim != 3 or str(out.dtype).removeprefix("torch.") != str(pixels.dtype):  # noqa: PLR2004  C H W
            raise self._unfit(out, "a mask of the type that it was given")
        return np.ascontiguousarray(out.permute(1, 2, 0).numpy())

    def apply_to_points(self, points: NDArray[np.float64], size: tuple[int, int], key: np.uint64) -> Any:
        """Transform points or boxes.

        Args:
            points: shape [N, 2], or boxes of shape [N, 4] as XYXY.
            size: height and width of the image.
            key: of the sample, for this step alone.

        Returns:
            points or boxes of the same shape, and height and width after the step.
        """
        torch = import_module("torch")
        flat = torch.from_numpy(points.astype(np.float32))

        def given(tv: Any) -> Any:
            if points.shape[1] == 2:  # noqa: PLR2004  x, y
                return tv.KeyPoints(flat, canvas_size=size)
            return tv.BoundingBoxes(flat, format="XYXY", canvas_size=size)

        out = self.call(given, key)
        return out.numpy().astype(np.float64), tuple(out.canvas_size)

    def call(self, give: Callable[[Any], Any], key: np.uint64) -> Any:
        """Call the transform with what ``give`` makes of the module of tensor types.

        Raises:
            DataError: it fails.
        """
        torch = import_module("torch")
        types = import_module("torchvision.tv_tensors")
        generator = torch.Generator().manual_seed(int(key) & 0x7FFFFFFFFFFFFFFF)
        try:
            with _one_core(), torch.no_grad(), drawing_mode()(generator):
                return made(self.config)(give(types))
        except Exception as error:  # whatever a transform raises
            msg = f"{self.title} of torchvision failed: {type(error).__name__}: {error!s:.300}"
            raise DataError(msg) from error

    def _unfit(self, out: Any, wanted: str) -> DataError:
        found = f"{type(out).__name__} {getattr(out, 'dtype', '')} {tuple(getattr(out, 'shape', ()))}"
        return DataError(f"{self.title} of torchvision returned {found}; it has to return {wanted}. {_CONVERTS}")


def is_torchvision(value: object) -> bool:
    """Whether a value is a transform of torchvision, or of a class that is derived from one; imports nothing."""
    return any(base.__module__.startswith("torchvision.transforms") for base in type(value).__mro__)


def wrapped(transform: Any) -> list[Any]:
    """Return a transform of torchvision as values of a plan; a `Compose` becomes its parts, and so does the preset of a model.

    One of ``torchvision.transforms`` (version 1) becomes that of the same name in ``v2``: resampling on tensors rounds
    otherwise than Pillow's by a few levels. What turns pixels into numbers becomes `AsNumbers`.

    Raises:
        PlanError: it belongs elsewhere in a plan, or cannot be made again from its parameters.
        MissingExtraError: torchvision is not installed.
    """
    need("torchvision", f"transforms={type(transform).__name__}(...)")
    name = type(transform).__name__
    if type(transform).__module__.startswith("torchvision."):
        if name == "Compose":
            return [part for each in transform.transforms for part in _part(each)]
        if name in _PRESETS:
            return wrapped(_preset(transform))
        if name in _BEGIN:
            return []
        if name in _NUMBERS:
            return _numbers(transform)
        if name == "Normalize":
            from spiral_stream.transforms.image.crop_and_resize import Normalize

            return [Normalize(tuple(map(float, transform.mean)), tuple(map(float, transform.std)))]
        if name in _OF_BATCHES:
            msg = f"images: torchvision's {name} mixes the samples of a batch. Apply it to the batch, in the training loop"
            raise PlanError(msg)
        if name == "RandomIoUCrop":
            msg = (
                "images: torchvision's RandomIoUCrop chooses its crop by the boxes, which other fields have not read yet. Take "
                "RandomResizedCrop or RandomCrop; boxes are cut with the image"
            )
            raise PlanError(msg)
    config = json.dumps(_config(transform), sort_keys=True, allow_nan=False)
    return [Torchvision(config, installed_release())]


def _preset(transform: Any) -> Any:
    """Return what a pretrained model does to images, ``weights.transforms()``, as a pipeline of v2.

    The preset itself resizes in float and rounds: on uint8, by a level otherwise than v2 does.
    """
    package = import_module(_PACKAGE)
    steps = []
    if transform.resize_size is not None:
        how = {"interpolation": transform.interpolation, "antialias": transform.antialias}
        steps.append(package.Resize(transform.resize_size, **how))
    if hasattr(transform, "crop_size"):
        steps.append(package.CenterCrop(transform.crop_size))
    numbers = package.ToDtype(import_module("torch").float32, scale=True)
    return package.Compose([*steps, numbers, package.Normalize(transform.mean, transform.std)])


def _part(transform: Any) -> list[Any]:
    return wrapped(transform) if is_torchvision(transform) else [transform]


def _numbers(transform: Any) -> list[AsNumbers]:
    """Return what a transform does that changes the type of pixels.

    Raises:
        PlanError: it does not scale them to [0, 1].
    """
    name = type(transform).__name__
    given = "torch.float32" if name == "ToTensor" else str(getattr(transform, "dtype", None))
    dtype, scales = given.removeprefix("torch."), getattr(transform, "scale", True)
    if dtype == "uint8":
        return []
    if not scales or dtype not in ("float16", "bfloat16", "float32"):
        msg = (
            f"images: torchvision's {name} gives pixels another type ({dtype}, {'scaled' if scales else 'not scaled'}). "
            f"{_CONVERTS}, or scale them: ToDtype(torch.float32, scale=True)"
        )
        raise PlanError(msg)
    return [AsNumbers(dtype)]


def installed_release() -> str:
    """Return the version of torchvision, without the name of its build."""
    need("torchvision", "a transform of torchvision")
    return str(import_module("torchvision").__version__).partition("+")[0]


@lru_cache(maxsize=256)
def made(config: str) -> Any:
    """Return the transform that a text describes. Its numbers are drawn elsewhere, so threads share it.

    Raises:
        PlanError: the text names no transform of torchvision.
    """
    try:
        found = json.loads(config)
        return _decode(found if isinstance(found, dict) else {"class": found})
    except PlanError:
        raise
    except Exception as error:  # the text may come from a file
        msg = f"images: {shown(config)} is no transform of torchvision that can be made here ({error!s:.200})"
        raise PlanError(msg) from error


def _config(transform: Any) -> Any:
    """Return the class and the parameters of a transform, from which an equal one is made."""
    cls = type(transform)
    package = import_module(_PACKAGE)
    first = cls.__module__ == "torchvision.transforms.transforms"  # version 1
    if first:
        cls = getattr(package, cls.__name__, cls)
    if getattr(package, cls.__name__, None) is not cls:
        msg = (
            f"images: {cls.__module__}.{cls.__qualname__} is no transform of {_PACKAGE}, so a plan cannot make it again. Give a "
            f"function of a uint8 [H, W, 3] array (and of a NumPy generator), or a transform of {_PACKAGE}"
        )
        raise PlanError(msg)
    names = [each for each in signature(cls.__init__).parameters.values() if each.name != "self"]
    given = {each.name: getattr(transform, each.name) for each in names if hasattr(transform, each.name)}
    lacking = [
        e.name for e in names if e.name not in given and e.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    ]
    if cls.__name__ == "RandomErasing" and given["value"] is None:
        given["value"] = "random"
    config = {"class": cls.__name__, "of": {key: _encode(value, cls.__name__) for key, value in given.items()}}
    again = None if [n for n in lacking if n not in _optional(names)] else made(json.dumps(config))
    if again is None or (not first and _public(again) != _public(transform)):
        msg = (
            f"images: {cls.__name__} of torchvision cannot be made again from its parameters. Give a function of a uint8 "
            "[H, W, 3] array that calls it"
        )
        raise PlanError(msg)
    return config


def _optional(names: list[Parameter]) -> list[str]:
    return [each.name for each in names if each.default is not Parameter.empty]


def _public(transform: Any) -> str:
    """Return what a transform holds under public names, as text that is equal for equal transforms."""
    held = {key: _plain(value) for key, value in vars(transform).items() if key[0] != "_" and key != "training"}
    parts = [_public(each) for each in transform.children()]
    return repr(sorted((key, value) for key, value in held.items() if key != "transforms")) + repr(parts)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return repr([_plain(each) for each in value])
    return repr(value.tolist() if hasattr(value, "tolist") else value)


def _encode(value: Any, owner: str) -> Any:
    """Return a parameter as JSON values."""
    if isinstance(value, enum.Enum):
        return {"enum": value.value, "of": type(value).__name__}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) or type(value).__name__ == "ModuleList":
        return [_encode(each, owner) for each in value]
    if is_torchvision(value):
        return _config(value)
    if type(value).__module__ == "torch" and value.numel() < 1 << 12:
        return [_encode(each, owner) for each in value.tolist()]
    msg = (
        f"images: {owner} of torchvision holds {shown(value)}, which a plan cannot write down. Give a function of a uint8 "
        "[H, W, 3] array that calls it"
    )
    raise PlanError(msg)


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if "enum" in value and value["of"] in _ENUMS:
        return getattr(import_module(_PACKAGE), value["of"])(value["enum"])
    package, name = import_module(_PACKAGE), value["class"]
    cls = getattr(package, name) if isinstance(name, str) and name.isidentifier() else None
    if not (isinstance(cls, type) and issubclass(cls, package.Transform)):
        msg = f"images: {shown(name)} is no transform of {_PACKAGE}"
        raise PlanError(msg)
    return cls(**{key: _decode(each) for key, each in value["of"].items()})


@lru_cache(maxsize=256)
def _draws_nothing(config: str) -> bool:
    """Whether a transform draws no random number, from its class: what only seems so would be cached."""
    package = import_module(_PACKAGE)
    return isinstance(
        made(config), (package.Resize, package.CenterCrop, package.Pad, package.Grayscale, package.FiveCrop)
    )


def _chw(pixels: Pixels) -> Any:
    return import_module("torch").from_numpy(pixels).permute(2, 0, 1)


def _is_image(out: Any, channels: int) -> bool:
    return str(getattr(out, "dtype", "")) == "torch.uint8" and out.ndim == 3 and out.shape[0] == channels  # noqa: PLR2004  C H W


@cache
def drawing_mode() -> type:
    """Return the class of dispatch modes that give random operations a generator; made once torch is there."""
    torch = import_module("torch")
    mode: type = import_module("torch.utils._python_dispatch").TorchDispatchMode
    seeded = torch.Tag.nondeterministic_seeded
    known: dict[Any, Any] = {}

    def with_generator(operation: Any) -> Any:
        """Return an operation's form that takes a generator; None if it draws nothing."""
        if seeded not in operation.tags:
            return None
        names = [each.name for each in operation._schema.arguments]  # noqa: SLF001  torch has no other way to ask
        forms = [operation, *(getattr(operation.overloadpacket, each) for each in operation.overloadpacket.overloads())]
        for form in forms:
            takes = [each.name for each in form._schema.arguments]  # noqa: SLF001  likewise
            if "generator" in takes and [n for n in takes if n != "generator"] == [
                n for n in names if n != "generator"
            ]:
                return form
        msg = f"it draws random numbers by {operation}, which takes no generator. Use torch.rand, randint, normal_ or uniform_"
        raise RuntimeError(msg)

    class Drawing(mode):  # type: ignore[misc]  # known at run time
        def __init__(self, generator: Any) -> None:
            super().__init__()
            self.generator = generator

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            if func not in known:
                known[func] = with_generator(func)
            form = known[func]
            if form is None:
                return func(*args, **(kwargs or {}))
            return form(*args, **{**(kwargs or {}), "generator": self.generator})

    return Drawing


@contextmanager
def _one_core() -> Iterator[None]:
    """Let torch use one core in this thread while the block runs; other threads keep theirs."""
    import_module("torch").get_num_threads()  # which sets up this thread; afterwards its own setting counts
    try:
        openmp = ctypes.CDLL(None)
        before, use = openmp.omp_get_max_threads(), openmp.omp_set_num_threads
    except (AttributeError, OSError):  # torch was built without OpenMP, or hides it
        yield
        return
    use(1)
    try:
        yield
    finally:
        use(before)
