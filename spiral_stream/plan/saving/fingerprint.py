"""The fingerprint of a plan: a content hash, equal exactly when two plans mean the same batches.

It covers the verbs, their values, the versions of our policies and the code of
the user's. It leaves out data, bindings (epoch, rank, world size), delivery and
devices. Predicates enter in normal form, so ``a & b`` and ``b & a`` agree.
"""

import dataclasses
import hashlib
import json
from typing import Any, Final

from spiral_stream import expr
from spiral_stream.batching.composition import StratifiedByStream
from spiral_stream.decoders.image.image import codec_version
from spiral_stream.decoders.registry import decode_version
from spiral_stream.errors import PlanError, shown
from spiral_stream.fields.field import Field
from spiral_stream.fields.stack import Stack
from spiral_stream.plan import nodes
from spiral_stream.plan.composed import is_scarce
from spiral_stream.plan.fields.profiles import Profile
from spiral_stream.plan.functions.cached_functions import SampleKept
from spiral_stream.plan.functions.code import code_fingerprint
from spiral_stream.plan.saving.canonical import CLASS, VERSION, is_ours, said, saved_name, version_of
from spiral_stream.plan.tree import find, profiles
from spiral_stream.plan.verbs import maps
from spiral_stream.plan.verbs.mix import Mix, per_stream, stretch_of
from spiral_stream.sampling.assignment import DataParallel
from spiral_stream.sampling.mixing.slices import order_version
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.text.chat import ChatTemplate

FORMAT: Final = 1  # raised when the canonical form changes, so that no old fingerprint can collide with a new one
_LATER: Final = {"formation": None, "on_error": "raise", "cost": None, "balance": None}
_LATER_OF_STACK: Final = {
    each.name: each.default
    for each in dataclasses.fields(Stack)
    if each.name
    in (
        *("sequence_length", "stride", "random_start", "short", "resize_shorter", "crop", "random_crop"),
        *("max_pixels", "max_frames", "max_bytes"),
    )
}
_BINDINGS: Final = {
    *((nodes.Sample, "epoch"), (nodes.Collate, "error_budget")),
    *((DataParallel, "rank"), (DataParallel, "world_size")),
}


def canonical(node: nodes.Node) -> Any:
    """Return what the fingerprint hashes, as JSON values.

    Raises:
        PlanError: a value of the user's cannot be written as JSON.
    """
    # a cache's profiles enter with the sample, if they change pixels; kept values are those of the functions
    if isinstance(node, nodes.Deliver | nodes.Cache | SampleKept):
        return canonical(node.source)
    if isinstance(node, nodes.Scan):
        return {"verb": "scan", "relation": node.relation, "identity": list(node.identity)}
    if isinstance(node, nodes.Sql):
        return {"verb": "sql", "text": node.text}
    if isinstance(
        node, maps.SampleTokens
    ):  # the digest covers tokenizer, options and version; the name is the catalog's own
        facts = {
            "verb": node.VERB,
            "source": canonical(node.source),
            "column": node.transform.column,
            "name": node.name,
            "tokenizer": node.digest,
        }
        return {**facts, **_chat(node, node.transform)} if isinstance(node.transform, ChatTemplate) else facts
    if isinstance(node, nodes.Filter) and isinstance(node.source, nodes.Filter):  # several filters AND together
        merged = nodes.Filter(node.source.source, node.source.predicate & node.predicate)
        return canonical(merged)
    return _facts(node)


def _chat(node: maps.SampleTokens, chat: ChatTemplate) -> dict[str, Any]:
    """What makes tokens of a conversation, one by one, so that a comparison of two plans can name what differs."""
    options = {
        name: _value(value) for name, value in _fields(chat).items() if name not in ("column", "tokenizer", "template")
    }
    return {"mask": node.mask, "template": node.template, "options": options}


def _facts(node: nodes.Node) -> dict[str, Any]:
    """Verb and values of a node, in normal form."""
    out: dict[str, Any] = {"verb": node.VERB}
    for name, value in _fields(node).items():
        if isinstance(value, expr.Expr) or (name == "exprs"):
            have = node.inputs()[0].schema()
            exprs = (value,) if isinstance(value, expr.Expr) else value
            out[name] = [expr.to_json(expr.canonical(each, have)) for each in exprs]
        elif (
            name in _LATER and value == _LATER[name]
        ):  # plans from before there was such a thing keep their fingerprint
            continue
        elif name == "fields":  # the order of fields is the order of the batch's keys, not what is in them
            out[name] = {key: _value(field) for key, field in sorted(value)}
        else:
            out[name] = _value(value)
    if isinstance(node, nodes.Sample):
        found = {stream: _profiles(plan) for stream, plan in per_stream(node.source)}
        out["profiles"] = found[""] if set(found) == {""} else found
        mix = find(node, Mix)
        if mix is not None:
            out["mixture"] = order_version(len(found), stretch_of(mix))
    if isinstance(node, nodes.Collate) and is_scarce(node):
        out["stratified"] = StratifiedByStream.SCARCE
    return out


def _profiles(node: nodes.Node) -> dict[str, Any]:
    return {name: _profile(each) for name, each in sorted(profiles(node).items()) if each.changes_pixels}


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a value that decide batches."""
    found = said(value)
    if isinstance(value, Field):
        found.pop("device", None)
    if isinstance(value, Stack):
        found = {k: each for k, each in found.items() if k not in _LATER_OF_STACK or each != _LATER_OF_STACK[k]}
    for kind, name in _BINDINGS:
        if kind is type(value):
            del found[name]
    return found


def _value(value: Any) -> Any:
    if isinstance(value, nodes.Node):
        return canonical(value)
    if isinstance(value, tuple):
        return [_value(item) for item in value]
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, Function):
        return _function(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        cls, ours = type(value), is_ours(value)
        out = {CLASS: saved_name(cls) if ours else cls.__qualname__, VERSION: version_of(value)}
        if not ours:  # by what it does, wherever it lies
            out["@code"] = code_fingerprint(cls)
        if ours and isinstance(value, Field) and (decode := getattr(value, "decode", None)) is not None:
            out["@decoder"] = decode_version(decode)
        return {**out, **{name: _value(item) for name, item in _fields(value).items()}}
    if value is None or isinstance(value, bool | int | str):
        return value
    msg = f"plan: {shown(value)} is a {type(value).__name__}; values of a plan are numbers, texts, tuples and frozen dataclasses"
    raise PlanError(msg)


def _function(value: Function) -> Any:
    """A user's function by what it does, or by the version that was stated for it."""
    code = ["version", value.name, value.version] if value.version is not None else code_fingerprint(value.function)
    facts = {
        "columns": list(value.columns),
        "returns": str(value.kind),
        "batched": value.batched,
        "random": value.random,
    }
    if value.records:
        facts["records"] = True
    if value.with_index:
        facts["with_index"] = True
    if value.draws is not None:
        facts["draws"] = value.draws
    return {CLASS: "Function", "@code": code, **facts}


def _profile(profile: Profile) -> Any:
    """A profile, and the encoder whose output it stands for."""
    return {**_value(profile), **({"@encoder": codec_version()} if profile.lossy else {})}


def digest(value: Any) -> str:
    """SHA-256 of canonical JSON, 32 hex digits.

    Raises:
        PlanError: a text has no UTF-8 form, or a number is no JSON.
    """
    try:
        text = json.dumps([FORMAT, value], sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]
    except ValueError as error:
        msg = f"plan: it has no fingerprint, because it holds a value that cannot be written ({error!s:.200}). Give another"
        raise PlanError(msg) from error


def value_fingerprint(value: Any) -> str:
    """Return the fingerprint of what a plan holds: a transform, a chain of them, a user's function. 32 hex digits.

    Raises:
        PlanError: it has none; says why.
    """
    return digest(_value(value))


def fingerprint(node: nodes.Node) -> str:
    """Return the fingerprint of a plan or of a part of one: 32 hex digits."""
    return digest(canonical(node))
