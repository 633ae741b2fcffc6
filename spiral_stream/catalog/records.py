"""Relations and saved streams as rows of the catalog's tables: written and read back.

A row may be damaged, or come from a catalog that somebody else wrote: each of its
values is checked before it is used, and none of them names a file outside the catalog's
folder but the source's own place.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spiral_stream.catalog.database import CatalogTable
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.shared.mirror import home_of, location_of
from spiral_stream.errors import CatalogError, SpiralError, cut, shown
from spiral_stream.semantic import SEMANTIC, SEMANTIC_TYPES
from spiral_stream.sources.arrow.table import plain
from spiral_stream.sources.serialize import source_from_json, source_to_json
from spiral_stream.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
RELATIONS: Final = CatalogTable(
    "relations",
    pa.schema(
        [
            ("name", pa.utf8()),
            ("source", pa.utf8()),
            ("schema", pa.binary()),
            ("identity", pa.list_(pa.utf8())),
            ("identity_unique", pa.bool_()),
            ("shard", pa.utf8()),
            ("data_version", pa.utf8()),
            ("registered_at", pa.timestamp("us", "UTC")),
            ("manifest_name", pa.utf8()),
            ("rows", pa.int64()),
            ("shards", pa.int64()),
        ]
    ),
)
STREAMS: Final = CatalogTable(
    "streams", pa.schema([("name", pa.utf8()), ("plan", pa.utf8()), ("saved_at", pa.timestamp("us", "UTC"))])
)
_HERE: Final = "catalog:"  # stands for the catalog's own folder in stored paths, so that it can be moved
_MANIFEST: Final = re.compile(r"[0-9a-f]{32}\.arrow")
_VERSION: Final = re.compile(r"[0-9a-f]{32}")
_WRONG: Final = (
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    IndexError,
    OSError,
    RecursionError,
    pa.ArrowException,
)


def need_name(what: str, name: str) -> None:
    """Refuse a name that is not legal in a catalog.

    Raises:
        CatalogError: says which letters a name may have.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        msg = f"{what} {shown(name)}: a name has letters, digits and _ . - only. Rename it"
        raise CatalogError(msg)


def row_of(entry: Entry, manifest: Manifest) -> dict[str, Any]:
    """Return a relation as a row of `RELATIONS`."""
    return {
        "name": entry.name,
        "source": portable(entry.root, entry.source),
        "schema": entry.schema.serialize().to_pybytes(),
        "identity": list(entry.identity),
        "identity_unique": entry.identity_unique,
        "shard": entry.shard,
        "data_version": entry.data_version,
        "registered_at": entry.registered_at,
        "manifest_name": entry.manifest_name,
        "rows": manifest.total,
        "shards": len(manifest.shard_names),
    }


def entry_of(root: Path, row: Mapping[str, Any]) -> Entry:
    """Return the relation in a row of `RELATIONS`.

    Raises:
        CatalogError: the row is not as it was written, or holds what no registration writes.
    """
    name = row["name"]
    with _reading(root, RELATIONS, name, f'Register it again with replace=True, or catalog.drop("{name}")'):
        _need(RELATIONS.is_sound(row), "it is not what was written: damaged, or changed from outside")
        schema = plain(pa.ipc.read_schema(pa.py_buffer(row["schema"])))
        _check_schema(schema)
        identity = tuple(row["identity"])
        _need(bool(identity) and set(identity) <= set(schema.names), "its identity is no column")
        _need(len(set(identity)) == len(identity), "its identity names a column twice")
        _need(row["shard"] is None or row["shard"] in schema.names, "its shard column is no column")
        _need(isinstance(row["identity_unique"], bool), "nothing says whether identities are unique")
        _need(isinstance(row["registered_at"], datetime), "it has no time of registration")
        _need(bool(_VERSION.fullmatch(row["data_version"])), "its data version is none")
        _need(bool(_MANIFEST.fullmatch(row["manifest_name"])), "its manifest has no legal name")
        return Entry(
            name=name,
            source=_source(root, row["source"]),
            schema=schema,
            identity=identity,
            identity_unique=row["identity_unique"],
            shard=row["shard"],
            data_version=row["data_version"],
            registered_at=row["registered_at"],
            root=root,
            manifest_name=row["manifest_name"],
        )


def plan_of(root: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan in a row of `STREAMS`, as JSON values.

    Raises:
        CatalogError: the row is not as it was written.
    """
    name = row["name"]
    with _reading(root, STREAMS, name, f'Save it again with save_stream, or catalog.drop_stream("{name}")'):
        _need(STREAMS.is_sound(row), "it is not what was written: damaged, or changed from outside")
        plan: dict[str, Any] = json.loads(row["plan"])
        _need(isinstance(plan, dict), "its plan is no JSON object")
        return plan


def portable(root: Path, source: Source) -> str:
    """Return the source as JSON, with paths inside the catalog written relative to it."""
    inside = f"{root}{os.sep}"
    fields = source_to_json(source).items()
    within = {
        k: _each_text(v, lambda text: _HERE + text[len(inside) - 1 :] if text.startswith(inside) else text)
        for k, v in fields
    }
    return json.dumps(within, sort_keys=True)


def _source(root: Path, text: str) -> Source:
    saved = json.loads(text)
    _need(isinstance(saved, dict), "its source is no JSON object")
    return source_from_json({k: _each_text(v, lambda text: _here(root, text)) for k, v in saved.items()})


def _here(root: Path, text: str) -> str:
    return text.replace(_HERE, str(root), 1) if text.startswith(_HERE) else text


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A value of a source's field with each of its texts changed: one path, or a list of them."""
    if isinstance(value, str):
        return change(value)
    return [_each_text(each, change) for each in value] if isinstance(value, list | tuple) else value


def _check_schema(schema: pa.Schema) -> None:
    _need(len(set(schema.names)) == len(schema.names), "two columns have one name")
    known = {None, *(kind.encode() for kind in SEMANTIC_TYPES)}
    unknown = [field.name for field in schema if (field.metadata or {}).get(SEMANTIC) not in known]
    if unknown:
        msg = f"column {unknown[0]!r} is of a semantic type unknown to this version"
        raise ValueError(msg)


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


@contextmanager
def _reading(root: Path, kind: CatalogTable, name: str, way_out: str) -> "Iterator[None]":
    try:
        yield
    except (SpiralError, *_WRONG) as error:
        file = home_of(root).place(kind.name, name)
        found = f"{cut(str(error))}{file and f' ({file})'}"
        msg = f"catalog {location_of(root)}: {kind.name.removesuffix('s')} {name!r} cannot be read: {found}. {way_out}"
        raise CatalogError(msg) from error
