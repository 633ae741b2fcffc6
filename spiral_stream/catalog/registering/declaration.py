"""What a user declares at registration (identity, shards, columns), checked against the source's columns."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import pyarrow as pa

from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.registering.unique import check_columns
from spiral_stream.catalog.relation.entry import DESCRIPTION, STORAGE_SHARD
from spiral_stream.catalog.relation.row_identity import unmarked, with_row_id
from spiral_stream.errors import CatalogError, SourceError, shown
from spiral_stream.host_dtypes import unknown_zone
from spiral_stream.semantic import with_semantic
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.serialize import need_saved
from spiral_stream.sources.source import ROW, Source

AUTO: Final = "<storage_shard if the source has it>"  # of the shard column


@final
@dataclass(frozen=True, slots=True)
class Declaration:
    """The arguments of `Catalog.register` other than name and source."""

    identity: tuple[str, ...]
    shard: str | None
    semantic: Mapping[str, str]
    descriptions: Mapping[str, str]
    unique: bool
    row_ids: bool = False  # whether rows get identities that no column stores
    same_bytes: bool = False  # whether shards of the same bytes keep their content keys
    distinct: bool = False  # whether whoever wrote the rows knows that no identity repeats, so that nobody looks

    def applied(self, name: str, schema: pa.Schema) -> tuple[pa.Schema, str | None]:
        """Return the source's columns with their semantic types and descriptions, and the column that names the shards.

        Raises:
            CatalogError: a column that is declared is missing, or its type does not allow what is declared.
        """
        described = self._described(name, schema)
        chosen = shard_column(described, self.shard)
        check_columns(name, described, self.identity)
        return described, chosen

    def _described(self, name: str, schema: pa.Schema) -> pa.Schema:
        _check_names(name, schema.names)
        _check_zones(name, schema)
        schema = unmarked(schema.remove_metadata())
        schema = with_semantic(with_row_id(name, schema) if self.row_ids else schema, self.semantic)
        for column, text in self.descriptions.items():
            at = schema.get_field_index(column)
            if at < 0:
                msg = (
                    f"register {name!r}: descriptions: {column!r} is not a column; {suggestions(column, schema.names)}"
                )
                raise CatalogError(msg)
            field = schema.field(at)
            schema = schema.set(at, field.with_metadata({**(field.metadata or {}), DESCRIPTION: text.encode()}))
        return schema


def _way_out(given: object) -> str:
    if isinstance(given, str | os.PathLike):
        return (
            "Say what lies there: ImageFolder(path), Parquet(path), Jsonl(path), Csv(path), Lance(uri) ...; "
            "`spiral init PATH` looks, and writes the lines"
        )
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "to_parquet") or isinstance(given, dict):
        return "Give it as a table: Arrow(pyarrow.table(data))"
    return "Give one, such as Lance(uri), Parquet(path) or Arrow(table)"


def need_source(name: str, source: object) -> None:
    """Refuse anything that is not a source, and a source that a catalog cannot open again.

    Raises:
        CatalogError: lists the sources that can be registered.
    """
    if not isinstance(source, Source):
        msg = f"register {name!r}: {_shortly(source)} is a {type(source).__name__}, not a source. {_way_out(source)}"
        raise CatalogError(msg)
    if not isinstance(source, Arrow):
        try:
            need_saved(source)
        except SourceError as error:
            msg = f"register {name!r}: {error}"
            raise CatalogError(msg) from error


def shard_column(schema: pa.Schema, named: str | None) -> str | None:
    """Return the column that names the shards; None takes the source's physical units.

    Raises:
        CatalogError: the column that was asked for is missing.
    """
    if named == AUTO:
        return STORAGE_SHARD if STORAGE_SHARD in schema.names else None
    if named is not None and named not in schema.names:
        msg = (
            f"shard {named!r} is not a column; {suggestions(named, schema.names)} "
            "Name one of them, or give shard=None, which takes the source's own units"
        )
        raise CatalogError(msg)
    return named


def complete(schema: pa.Schema) -> pa.Schema:
    """Return the columns with ``storage_shard``, which every registered relation has."""
    return schema if STORAGE_SHARD in schema.names else schema.append(pa.field(STORAGE_SHARD, pa.utf8()))


def _check_names(name: str, names: list[str]) -> None:
    if "" in names or len(set(names)) < len(names):
        found = "a column without a name" if "" in names else f"two columns {shown(max(names, key=names.count))}"
        msg = f"register {name!r}: the source has {found}. Give each column a name of its own"
        raise CatalogError(msg)
    if cut_off := [each for each in names if "\0" in each]:
        msg = f"register {name!r}: column {shown(cut_off[0])} holds a NUL character, at which its name would be cut. Rename it"
        raise CatalogError(msg)
    if ROW in names:
        msg = f"the source has a column {ROW!r}, a name that is reserved for row ordinals. Rename the column"
        raise CatalogError(msg)


def _shortly(value: object) -> str:
    return shown(value) if isinstance(value, str | os.PathLike) else "what was given"


def _check_zones(name: str, schema: pa.Schema) -> None:
    for field in schema:
        if (zone := unknown_zone(field.type)) is not None:
            msg = (
                f"register {name!r}: column {field.name!r} is {field.type}, and this machine knows no time zone {zone!r}. Write "
                'it with one that is known, such as column.cast(pa.timestamp("us", "UTC")), or install the package tzdata'
            )
            raise CatalogError(msg)
