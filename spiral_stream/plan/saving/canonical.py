"""A plan as JSON values: what is saved, compared and hashed. `plan.saving.saved` reads it back.

Every value of a plan is a frozen dataclass. It is written as its class name, its
version and its fields; classes of ours by short name, classes and functions of the
user's by ``module:qualname``, with the fingerprint of their code. Nothing is pickled.
"""

import dataclasses
from typing import Any, Final

import pyarrow as pa

from spiral_stream import expr
from spiral_stream.batching.budget import BatchBudget
from spiral_stream.batching.composition import OneStream, StratifiedByStream
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.row_exchange import RowExchange
from spiral_stream.batching.shapes.one_shape import OneShape
from spiral_stream.batching.tail import DropPartial, KeepPartial, PadPartial
from spiral_stream.batching.windowed import BucketKey, WindowedBucket
from spiral_stream.errors import PlanError, shown
from spiral_stream.fields.boxes import Boxes, BoxLabels, KeyPoints
from spiral_stream.fields.crop_records import CropRecord, CropTopLeft, OriginalSize
from spiral_stream.fields.flat_images import FlatImages, GridPositions, ImageExtents, ImageGrids, ImagePlaces
from spiral_stream.fields.image_layouts import FixedLayout, PatchLayout, TileLayout
from spiral_stream.fields.labels import LabelField, Labels, ShiftedLabels
from spiral_stream.fields.list import List
from spiral_stream.fields.pad import Pad, PadMask, Real
from spiral_stream.fields.patches import Patches, PatchGrid, PatchMask
from spiral_stream.fields.segments import CuSeqlens, Positions, Segments
from spiral_stream.fields.stack import Stack
from spiral_stream.fields.step_total import StepTotal
from spiral_stream.params import RuntimeParam
from spiral_stream.plan import combining, nodes
from spiral_stream.plan.fields import profiles
from spiral_stream.plan.functions import cached_functions as kept
from spiral_stream.plan.functions.code import code_fingerprint, stable_name
from spiral_stream.plan.verbs import extents, maps, mix
from spiral_stream.sampling.assignment import DataParallel
from spiral_stream.sampling.orders.hash_bucketed import HashBucketed, ShuffleBuckets
from spiral_stream.sampling.orders.sequential import Sequential
from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle
from spiral_stream.sampling.orders.shard_order import ExpandedRange, WithinShards
from spiral_stream.sampling.orders.shuffle import GlobalShuffle
from spiral_stream.sampling.orders.weighted import Weighted
from spiral_stream.sampling.orders.window_shuffle import WindowShuffle
from spiral_stream.sampling.orders.with_replacement import WithReplacement
from spiral_stream.transforms.chain import PIXEL_TRANSFORMS
from spiral_stream.transforms.image import crop_and_resize as images
from spiral_stream.transforms.image.albumentations_step import Albumentations
from spiral_stream.transforms.image.crop_and_resize import CenterCropDown
from spiral_stream.transforms.image.torchvision_step import Torchvision
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.text.chat import ChatTemplate
from spiral_stream.transforms.text.image_tokens import ImageTokens
from spiral_stream.transforms.text.tokenize import Tokenize

NODES: Final = {
    cls.VERB: cls
    for cls in (
        *(
            nodes.Filter,
            nodes.Project,
            nodes.WithColumns,
            combining.Join,
            combining.Aggregate,
            nodes.Distinct,
            nodes.Sort,
        ),
        *(nodes.Limit, combining.Union, nodes.Cache, nodes.Sample, nodes.Collate, nodes.Deliver),
        *(
            mix.Mix,
            maps.SampleTokens,
            maps.SampleColumns,
            maps.SampleMap,
            maps.SampleRecords,
            maps.SampleFilter,
            maps.SampleFlatMap,
            maps.SampleAssembly,
            kept.SampleKept,
        ),
        *(extents.SampleLimit, extents.SampleRepeat, extents.SampleSkip),
    )
}
_SAVED_AS: Final[dict[type, str]] = {
    profiles.Original: "Source"
}  # classes that had another name when plans were first saved


def saved_name(cls: type) -> str:
    """Return the saved name of a class of ours, whatever it is called in the code."""
    return _SAVED_AS.get(cls, cls.__name__)


VALUES: Final = {
    saved_name(cls): cls
    for cls in (
        *(DropPartial, KeepPartial, PadPartial, List, Real, Stack, RuntimeParam, DataParallel),
        *(ExpandedRange, GlobalShuffle, HashBucketed, Sequential, ShardAwareShuffle, ShuffleBuckets),
        *(Weighted, WindowShuffle, WithReplacement, WithinShards),
        *(profiles.Original, profiles.Raw, profiles.Jpeg, profiles.Frames),
        *(
            mix.Part,
            WindowedBucket,
            BucketKey,
            BatchBudget,
            StratifiedByStream,
            OneStream,
            OneShape,
            Packed,
            RowExchange,
        ),
        *(Boxes, BoxLabels, KeyPoints, CropRecord, CropTopLeft, OriginalSize, Patches, PatchGrid, PatchMask, StepTotal),
        *(FixedLayout, PatchLayout, TileLayout, ImageTokens),
        *(FlatImages, ImageGrids, ImageExtents, ImagePlaces, GridPositions),
        *(Pad, PadMask, ShiftedLabels, Labels, Segments, Positions, CuSeqlens, ChatTemplate, Tokenize),
        *(
            images.RandomResizedCrop,
            images.RandomHorizontalFlip,
            images.RandomCrop,
            images.CenterCrop,
        ),
        *(images.Resize, images.FitToShape, images.Normalize, CenterCropDown),
        *PIXEL_TRANSFORMS.values(),
        *(Torchvision, Albumentations),
    )
}
_OURS: Final = frozenset(VALUES.values())

CLASS: Final = "@class"  # marked so that no field of a user's class is called the same
VERSION: Final = "@version"
CODE: Final = "@code"
NODE: Final = "@node"
EXPR: Final = "@expr"
FUNCTION: Final = "@function"
_LATER: Final[tuple[tuple[Any, dict[str, Any]], ...]] = (  # fields from after the first plans, and what says nothing
    (mix.Mix, mix.LATER),
    (
        Stack,
        {
            "orient": False,
            "view": None,
            "mode": None,
            "interpolation": "bilinear",
            "sample_rate": None,
            "channels": None,
            "centre": False,
            "draws_alike": False,
        },
    ),
    (
        BatchBudget | Pad | LabelField | maps.SampleTokens,
        dict.fromkeys(("also", "mask", "max_images", "max_patches", "template")),
    ),
    (Packed, {"max_images": None, "max_patches": None}),
    (maps.SampleAssembly, {"drop_last": False}),
    (ChatTemplate, {"images": None}),
    (images.Resize, {"interpolation": images.BILINEAR}),
    (nodes.Collate, {"cost": None, "balance": None}),
    (Packed | WindowedBucket | Pad | PadMask, {"length": None}),
)
_LARGEST: Final = 4096  # bits of a whole number; Python writes at most 4,300 digits


def to_json(node: nodes.Node) -> dict[str, Any]:
    """Return the plan as JSON values, complete: `saved.from_json` gives an equal plan.

    Raises:
        PlanError: it holds a value that no other process could read back.
    """
    if isinstance(node, nodes.Scan):
        return {"verb": "scan", "relation": node.relation}
    if isinstance(node, nodes.Sql):
        return {"verb": "sql", "text": node.text, "relations": list(node.relations)}
    return {"verb": node.VERB, **{name: _encode(each, code=True) for name, each in said(node).items()}}


def encode_value(value: Any, *, code: bool = False) -> dict[str, Any]:
    """One policy, transform, field or profile as JSON values.

    Args:
        value: a frozen dataclass.
        code: add the fingerprint of its code, where its class is the user's.

    Raises:
        PlanError: its class is the user's, and no other process could find it.
    """
    cls, ours = type(value), is_ours(value)
    head = {CLASS: saved_name(cls) if ours else stable_name(cls), VERSION: version_of(value)}
    if code and not ours:
        head[CODE] = code_fingerprint(cls)
    return {**head, **{name: _encode(each, code=code) for name, each in said(value).items()}}


def said(value: Any) -> dict[str, Any]:
    """Return the fields of a value, without later ones that say nothing: plans from before them stay as they were."""
    if isinstance(value, PadPartial) and not value.blanks:
        return {}
    found = {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
    for kinds, later in _LATER:
        if isinstance(value, kinds):
            found = {name: each for name, each in found.items() if name not in later or each != later[name]}
    return found


def _encode(value: Any, *, code: bool) -> Any:
    if isinstance(value, nodes.Node):
        return {NODE: to_json(value)}
    if isinstance(value, expr.Expr):
        return {EXPR: expr.to_json(value)}
    if isinstance(value, tuple):
        return [_encode(item, code=code) for item in value]
    if isinstance(value, Function):
        return _encode_function(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return encode_value(value, code=code)
    if isinstance(value, int) and value.bit_length() > _LARGEST:
        msg = f"plan: a number of {value.bit_length():,} bits cannot be written as JSON. Give a smaller one"
        raise PlanError(msg)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    msg = (
        f"plan: {shown(value)} cannot be written as JSON; values of a plan are numbers, strings, tuples and frozen "
        "dataclasses. Give one of these"
    )
    raise PlanError(msg)


def _encode_function(value: Function) -> dict[str, Any]:
    """A function by its name and its code, or the version that was stated for it."""
    name = stable_name(value.function)
    kind = pa.schema([("", value.kind)]).serialize().to_pybytes().hex()
    facts = {"columns": list(value.columns), "kind": kind, "batched": value.batched, "random": value.random}
    code = code_fingerprint(value.function) if value.version is None else None
    later: dict[str, Any] = {"records": True} if value.records else {}
    if value.workers is not None:
        later["workers"] = value.workers
    if value.with_index:
        later["with_index"] = True
    later |= {name: given for name in ("draws", "call_rows") if (given := getattr(value, name)) is not None}
    return {FUNCTION: name, CODE: code, **facts, "version": value.version, **later}


def version_of(value: Any) -> int:
    """Return the version of the results of a class, or of a value: one of ours may have another for some parameters."""
    stated = getattr(value, "version", None) if is_ours(value) else None
    return int(getattr(value, "VERSION", 1) if stated is None else stated)


def is_ours(value: Any) -> bool:
    """Whether the value's class is one of ours, whose code is versioned by ``VERSION``."""
    return type(value) in _OURS
