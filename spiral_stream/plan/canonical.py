"""A plan as JSON values, and back: what is saved, compared and hashed.

Every value of a plan is a frozen dataclass. It is written as its class name, its
version and its fields; classes of ours by short name, a user's by
``module:qualname``. Nothing is pickled, and reading back imports only classes.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from spiral_stream import expr
from spiral_stream.batching.budget import BatchBudget
from spiral_stream.batching.composition import OneStream, StratifiedByStream
from spiral_stream.batching.formation import DropPartial, KeepPartial, PadPartial
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.windowed import BucketKey, WindowedBucket
from spiral_stream.errors import PlanError
from spiral_stream.fields.labels import Labels, ShiftedLabels
from spiral_stream.fields.list import List
from spiral_stream.fields.pad import Pad, PadMask
from spiral_stream.fields.segments import CuSeqlens, Positions, Segments
from spiral_stream.fields.stack import Stack
from spiral_stream.params import RuntimeParam
from spiral_stream.plan import maps, mix, nodes, profiles
from spiral_stream.plan.code import stable_name
from spiral_stream.plan.origin import lookup
from spiral_stream.sampling.assignment import DataParallel
from spiral_stream.sampling.hash_bucketed import HashBucketed, ShuffleBuckets
from spiral_stream.sampling.sequential import Sequential
from spiral_stream.sampling.shard_aware import ShardAwareShuffle
from spiral_stream.sampling.shuffle import GlobalShuffle
from spiral_stream.transforms import steps
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.text import Tokenize

_NODES: Final = {
    cls.VERB: cls
    for cls in (
        *(nodes.Filter, nodes.Project, nodes.WithColumns, nodes.Join, nodes.Aggregate, nodes.Distinct, nodes.Sort),
        *(nodes.Limit, nodes.Union, nodes.Cache, nodes.Sample, nodes.Collate, nodes.Deliver),
        *(mix.Mix, maps.Tokenized, maps.Computed, maps.Mapped, maps.Kept, maps.FlatMapped, maps.Assembled),
    )
}
_VALUES: Final = {
    cls.__name__: cls
    for cls in (
        *(DropPartial, KeepPartial, PadPartial, List, Stack, RuntimeParam, DataParallel),
        *(HashBucketed, ShuffleBuckets, Sequential, ShardAwareShuffle, GlobalShuffle),
        *(profiles.Source, profiles.Raw, profiles.Jpeg, profiles.Frames),
        *(mix.Part, WindowedBucket, BucketKey, BatchBudget, StratifiedByStream, OneStream, Packed),
        *(Pad, PadMask, ShiftedLabels, Labels, Segments, Positions, CuSeqlens, Tokenize),
        *(steps.RandomResizedCrop, steps.RandomHorizontalFlip, steps.RandomCrop, steps.CenterCrop),
        *(steps.Resize, steps.Normalize),
    )
}

CLASS: Final = "@class"  # marked so that no field of a user's class is called the same
VERSION: Final = "@version"
_NODE: Final = "@node"
_EXPR: Final = "@expr"
_FUNCTION: Final = "@function"

Resolve = Callable[[str], nodes.Scan]
ResolveSql = Callable[[str], nodes.Sql]


def to_json(node: nodes.Node) -> dict[str, Any]:
    """The plan as JSON values, complete: `from_json` gives an equal plan."""
    if isinstance(node, nodes.Scan):
        return {"verb": "scan", "relation": node.relation}
    if isinstance(node, nodes.Sql):
        return {"verb": "sql", "text": node.text, "relations": list(node.relations)}
    out: dict[str, Any] = {"verb": node.VERB}
    for each in dataclasses.fields(node):  # type: ignore[arg-type]  # every node is a dataclass
        if each.init:
            out[each.name] = _encode(getattr(node, each.name))
    return out


def from_json(data: Mapping[str, Any], resolve: Resolve, resolve_sql: ResolveSql) -> nodes.Node:
    """Read a plan back.

    Args:
        data: what `to_json` wrote.
        resolve: gives the scan of a relation by name.
        resolve_sql: gives the node of a SQL text.

    Raises:
        PlanError: a verb or class is unknown here, with what to install or upgrade.
    """
    if data["verb"] == "scan":
        return resolve(data["relation"])
    if data["verb"] == "sql":
        return resolve_sql(data["text"])
    cls = _NODES.get(data["verb"])
    if cls is None:
        msg = f"saved plan: verb {data['verb']!r} is unknown to this version; upgrade spiral, or save the stream again"
        raise PlanError(msg)
    rest = {name: _decode(value, resolve, resolve_sql) for name, value in data.items() if name != "verb"}
    node: nodes.Node = _made(cls, str(data["verb"]), rest)
    return node


def _made(cls: Callable[..., Any], name: str, fields: Mapping[str, Any]) -> Any:
    try:
        return cls(**fields)
    except TypeError as error:
        msg = f"saved plan: {name} cannot be read here ({error}); upgrade spiral, or save the stream again"
        raise PlanError(msg) from error


def _encode(value: Any) -> Any:
    if isinstance(value, nodes.Node):
        return {_NODE: to_json(value)}
    if isinstance(value, expr.Expr):
        return {_EXPR: expr.to_json(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Function):
        return {_FUNCTION: stable_name(value.function), **_encode_function(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return encode_value(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    msg = f"plan: {value!r} cannot be written as JSON; values of a plan are numbers, strings, tuples and frozen dataclasses"
    raise PlanError(msg)


def _encode_function(value: Function) -> dict[str, Any]:
    kind = pa.schema([("", value.kind)]).serialize().to_pybytes().hex()
    facts = {"batched": value.batched, "random": value.random, "version": value.version}
    return {"columns": list(value.columns), "kind": kind, **facts}


def _decode_function(data: Mapping[str, Any]) -> Function:
    module, _, qualname = data[_FUNCTION].partition(":")
    try:
        importlib.import_module(module)
        found = lookup(module, qualname)
    except ImportError:
        found = None
    if found is None:
        msg = f"saved plan: function {data[_FUNCTION]!r} cannot be imported; put its module on the path, or save the stream again"
        raise PlanError(msg)
    kind = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(data["kind"]))).field(0).type
    return Function(found, tuple(data["columns"]), kind, data["batched"], data["random"], data["version"])


def encode_value(value: Any) -> dict[str, Any]:
    """One policy, transform, field or profile as JSON values.

    Raises:
        PlanError: its class is the user's, and no other process could find it.
    """
    cls = type(value)
    name = cls.__name__ if is_ours(value) else stable_name(cls)
    fields = {each.name: _encode(getattr(value, each.name)) for each in dataclasses.fields(value) if each.init}
    return {CLASS: name, VERSION: version_of(cls), **fields}


def _decode(value: Any, resolve: Resolve, resolve_sql: ResolveSql) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item, resolve, resolve_sql) for item in value)
    if not isinstance(value, dict):
        return value
    if _NODE in value:
        return from_json(value[_NODE], resolve, resolve_sql)
    if _EXPR in value:
        return expr.from_json(value[_EXPR])
    if _FUNCTION in value:
        return _decode_function(value)
    cls = class_named(value[CLASS])
    if version_of(cls) != value[VERSION]:
        msg = (
            f"saved plan: {value[CLASS]} was saved at version {value[VERSION]}, here it is {version_of(cls)}: "
            "its results differ. Run the version of spiral that saved it, or save the stream again"
        )
        raise PlanError(msg)
    rest = {k: _decode(v, resolve, resolve_sql) for k, v in value.items() if k not in (CLASS, VERSION)}
    return _made(cls, value[CLASS], rest)


def class_named(name: str) -> type[Any]:
    """A class of ours by short name, or a user's by ``module:qualname``.

    Raises:
        PlanError: it cannot be imported, or is not a dataclass.
    """
    if name in _VALUES:
        return _VALUES[name]
    module, _, qualname = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"saved plan: class {name!r} cannot be imported ({error}); put its module on the path, or save the stream again"
        raise PlanError(msg) from error
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        msg = f"saved plan: {name!r} is not a frozen dataclass, so it cannot be read back from its fields"
        raise PlanError(msg)
    return found


def version_of(cls: type[Any]) -> int:
    """The version of a class's results."""
    return int(getattr(cls, "VERSION", 1))


def is_ours(value: Any) -> bool:
    """Whether the value's class is one of ours, whose code is versioned by ``VERSION``."""
    return _VALUES.get(type(value).__name__) is type(value)
