"""Compare a registration with the registered relation, without reading rows."""

import json
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from spiral_stream.catalog.records import portable
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.errors import shown
from spiral_stream.semantic import semantic_of
from spiral_stream.sources.source import Source, Unit

DATA: Final = "its data: "  # how a difference begins that a refresh takes
_NAMED: Final = 3  # columns or files that a message names


def differences(
    old: Entry,
    source: Source,
    schema: pa.Schema,
    identity: tuple[str, ...],
    shard: str | None,
    units: Sequence[Unit],
    *,
    unique: bool,
) -> list[str]:
    """Say how a registration differs from the present one; empty if it is the same.

    Args:
        old: what is registered.
        source: the source now; a version of a dataset is its data's, and so in the units.
        schema: its columns, with semantic types and descriptions.
        identity: the columns that tell rows apart.
        shard: the column that names the storage shards.
        units: its storage as it is now.
        unique: whether repeated identities would be refused.
    """
    found = []
    before, now = (json.loads(portable(old.root, each)) for each in (old.source, source))
    free = {"version"} if any(map(semantic_of, schema)) else {"version", "base"}  # without references it names nothing
    parts = sorted(key for key in (before.keys() | now.keys()) - free if before.get(key) != now.get(key))
    found += [f"its {key} is {shown(before.get(key))}, now {shown(now.get(key))}" for key in parts]
    if identity != old.identity:
        found.append(f"its identity is {', '.join(old.identity)}, now {', '.join(identity)}")
    elif unique and not old.identity_unique:
        found.append("identities repeat, which unique=False allowed")
    if shard != old.shard:
        found.append(f"its shard column is {old.shard}, now {shard}")
    if columns := [name for name in dict.fromkeys([*old.schema.names, *schema.names]) if not _alike(old, schema, name)]:
        found.append(f"its columns, or what is declared of them: {some(columns)}")
    if not found and (changed := old.manifest().changed_units(units)):
        found.append(DATA + some(changed))
    return found


def _alike(old: Entry, schema: pa.Schema, name: str) -> bool:
    if name not in old.schema.names or name not in schema.names:
        return False
    return bool(old.schema.field(name).equals(schema.field(name), check_metadata=True))


def some(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more
