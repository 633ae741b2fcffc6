"""The content hash of a plan: equal when and only when the batches are meant equal.

It covers the verbs, their values, the versions of our policies and the code of
the user's. It leaves out data, bindings (epoch, rank, world size), delivery and
devices. Predicates enter in normal form, so ``a & b`` and ``b & a`` agree.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from spiral_stream import expr
from spiral_stream.params import RuntimeParam
from spiral_stream.plan import nodes
from spiral_stream.plan.canonical import encode_value, is_ours
from spiral_stream.plan.code import code_fingerprint

FORMAT: Final = 1  # raised when the canonical form changes, so that no old fingerprint can collide with a new one
_LINE: Final = 60  # characters of a value in a message
_BINDINGS: Final = {("Sample", "epoch"), ("DataParallel", "rank"), ("DataParallel", "world_size"), ("Stack", "device")}


def canonical(node: nodes.Node) -> Any:
    """What the fingerprint hashes, as JSON values."""
    if isinstance(node, nodes.Deliver):
        return canonical(node.source)
    if isinstance(node, nodes.Scan):
        return {"verb": "scan", "relation": node.relation, "identity": list(node.identity)}
    if isinstance(node, nodes.Sql):
        return {"verb": "sql", "text": node.text}
    if isinstance(node, nodes.Filter) and isinstance(node.source, nodes.Filter):  # several filters AND together
        merged = nodes.Filter(node.source.source, node.source.predicate & node.predicate)
        return canonical(merged)
    out: dict[str, Any] = {"verb": node.VERB}
    for name, value in _fields(node):
        if isinstance(value, expr.Expr) or (name == "exprs"):
            have = node.inputs()[0].schema()
            exprs = (value,) if isinstance(value, expr.Expr) else value
            out[name] = [expr.to_json(expr.canonical(each, have)) for each in exprs]
        elif name == "fields":  # the order of fields is the order of the batch's keys, not what is in them
            out[name] = {key: _value(field) for key, field in sorted(value)}
        else:
            out[name] = _value(value)
    return out


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    for each in dataclasses.fields(value):
        if (type(value).__name__, each.name) not in _BINDINGS:
            yield each.name, getattr(value, each.name)


def _value(value: Any) -> Any:
    if isinstance(value, nodes.Node):
        return canonical(value)
    if isinstance(value, tuple):
        return [_value(item) for item in value]
    if isinstance(value, RuntimeParam):
        return {"param": value.name}
    if isinstance(value, float):
        return {"float": value.hex()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        head = {key: item for key, item in encode_value(value).items() if key in ("class", "version")}
        code = {} if is_ours(value) else {"code": code_fingerprint(type(value))}
        return {**head, **code, **{name: _value(item) for name, item in _fields(value)}}
    return value


def digest(value: Any) -> str:
    """SHA-256 of canonical JSON, 32 hex digits."""
    text = json.dumps([FORMAT, value], sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def fingerprint(node: nodes.Node) -> str:
    """The fingerprint of a plan or of a part of one: 32 hex digits."""
    return digest(canonical(node))


def differences(old: Any, new: Any, at: str = "") -> list[str]:
    """Where two canonical plans differ: ``collate.batch_size (256 -> 512)``."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        old_verb, new_verb = old.get("verb"), new.get("verb")
        if old_verb != new_verb:
            return [f"{at or 'plan'} ({old_verb or old.get('class')} -> {new_verb or new.get('class')})"]
        if old_verb is not None:
            at = str(old_verb)
        out: list[str] = []
        for key in sorted(set(old) | set(new)):
            path = key if not at else at if key in ("source", "verb") else f"{at}.{key}"
            out += differences(old.get(key), new.get(key), path)
        return out
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for i, (a, b) in enumerate(zip(old, new, strict=True)) for line in differences(a, b, f"{at}[{i}]")]
    return [] if old == new else [f"{at} ({_brief(old)} -> {_brief(new)})"]


def _brief(value: Any) -> str:
    if isinstance(value, Mapping) and set(value) == {"float"}:
        return repr(float.fromhex(value["float"]))
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LINE else text[: _LINE - 3] + "..."
