"""Which relations and streams there are: names in an embedded LanceDB database.

The database holds one small table of relations and one of saved streams, and the
rows of relations that were registered from memory. Shard tables and statistics
lie beside it as Arrow files. Changes are made under a file lock, which the kernel
releases when a process dies, so that several processes may use one catalog.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as replaced
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spiral_stream.catalog.entry import DESCRIPTION, STORAGE_SHARD, Entry
from spiral_stream.catalog.identity import check_columns, duplicate
from spiral_stream.catalog.manifest import Manifest, build_manifest
from spiral_stream.catalog.near import near
from spiral_stream.catalog.pinning import pinned
from spiral_stream.catalog.tokenizers import TokenizerEntry, Tokenizers
from spiral_stream.errors import CatalogError, PlanError, SpiralError
from spiral_stream.schema import with_semantic
from spiral_stream.sources.arrow import Arrow
from spiral_stream.sources.lance import Lance
from spiral_stream.sources.paths import absolute, is_remote
from spiral_stream.sources.saved import source_from_json, source_to_json
from spiral_stream.sources.source import ROW, Reader, Source, content_key

if TYPE_CHECKING:
    import lancedb

DEFAULT_FOLDER: Final = "catalog"
_AUTO: Final = "<storage_shard if the source has it>"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_HERE: Final = "catalog:"  # stands for the catalog's own folder in stored paths, so that it can be moved
_RELATIONS: Final = pa.schema(
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
)
_STREAMS: Final = pa.schema([("name", pa.utf8()), ("plan", pa.utf8()), ("saved_at", pa.timestamp("us", "UTC"))])


def default_folder() -> str:
    """``$SPIRAL_CATALOG``, else ``./catalog``."""
    return os.environ.get("SPIRAL_CATALOG") or DEFAULT_FOLDER


def connect(uri: str | os.PathLike[str] | None = None) -> "Catalog":
    """Open or create a catalog.

    Args:
        uri: its folder; by default ``$SPIRAL_CATALOG``, else ``./catalog``.

    Raises:
        CatalogError: the folder cannot be made or is on an object store.
    """
    return Catalog(default_folder() if uri is None else uri)


class Catalog:
    """An embedded LanceDB database of relations and streams; `spiral_stream.relation` adds the verbs to it."""

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        text = absolute(uri)
        if is_remote(text):
            msg = f"catalog {text}: a catalog lies in a local folder (its relations need not). Give a folder"
            raise CatalogError(msg)
        self.root = Path(text)
        try:
            (self.root / "manifests").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"catalog {self.root}: {error.strerror}. Give a folder that can be written, or set $SPIRAL_CATALOG"
            raise CatalogError(msg) from error

    def register(
        self,
        name: str,
        source: Source,
        *,
        identity: str | Sequence[str] = "sample_id",
        shard: str | None = _AUTO,
        semantic: Mapping[str, str] | None = None,
        descriptions: Mapping[str, str] | None = None,
        unique: bool = True,
        replace: bool = False,
    ) -> Entry:
        """Register a source under a name: pin it, find its shards, check its identities.

        Args:
            name: letters, digits, ``_ . -``; dots group names (``vision.imagenet_train``).
            source: what to register; the rows of an `Arrow` are copied into the catalog.
            identity: the column (or columns) that tell rows apart for good.
            shard: the column that names the storage shards; by default
                ``storage_shard`` if there is one; None takes the physical units.
            semantic: column -> semantic type, such as ``image/jpeg-ref``.
            descriptions: column -> what it means, for people.
            unique: refuse repeated identities. False is for relations that are only
                joined, and records what was found.
            replace: take the place of a registered relation.

        Raises:
            CatalogError: the name is taken, or a column, type or identity is wrong.
            SourceError: the source cannot be read.
        """
        if not _NAME.fullmatch(name):
            msg = f"register {name!r}: a name has letters, digits and _ . - only. Rename it"
            raise CatalogError(msg)
        if not replace and name in self.tables():
            msg = f"register {name!r}: the name is taken. Pass replace=True, or drop it first"
            raise CatalogError(msg)
        if not isinstance(source, Source):
            msg = (
                f"register {name!r}: {_shortly(source)} is a {type(source).__name__}, not a source; give Lance(uri), "
                "Parquet(uri), ImageFolder(path), VideoFolder(path) or Arrow(table)"
            )
            raise CatalogError(msg)
        columns = (identity,) if isinstance(identity, str) else tuple(identity)

        def measured(at: Source) -> tuple[pa.Schema, str | None, Manifest, bool]:
            with _registering(name), at.open() as reader:
                schema = _described(name, reader.schema, semantic or {}, descriptions or {})
                chosen = _shard_column(schema, shard)
                check_columns(name, schema, columns)
                manifest, is_unique = _measure(name, reader, columns, chosen, unique)
                return (
                    schema,
                    chosen,
                    manifest if isinstance(at, Arrow) else pinned(manifest, reader, schema, self.root / "manifests"),
                    is_unique,
                )

        if isinstance(source, Arrow):
            measured(source)  # refused rows are not copied
        stored = self._stored(source).pinned()
        schema, chosen, manifest, is_unique = measured(stored)
        entry = self._new_entry(
            name, stored, schema, identity=columns, shard=chosen, manifest=manifest, identity_unique=is_unique
        )
        self._commit(entry, manifest, replace)
        return entry

    def refresh(self, name: str) -> Entry:
        """Register a relation anew at its source's present version.

        Raises:
            CatalogError: the name is unknown, or the new rows are not legal.
            SourceError: the source cannot be read, or lost a column.
        """
        old = self.entry(name)
        latest = replaced(old.source, version=None) if isinstance(old.source, Lance) else old.source
        stored = latest.pinned()
        with _registering(name), stored.open() as reader:
            marked = [old.schema.field(f.name) if f.name in old.schema.names else f for f in reader.schema]
            _shard_column(reader.schema, old.shard)
            types = pa.schema(
                [
                    f.with_type(now.type).with_nullable(now.nullable)
                    for f, now in zip(marked, reader.schema, strict=True)
                ]
            )
            check_columns(name, types, old.identity)
            manifest, unique = _measure(name, reader, old.identity, old.shard, old.identity_unique)
            manifest = pinned(manifest, reader, types, self.root / "manifests")
        entry = self._new_entry(
            name, stored, types, identity=old.identity, shard=old.shard, manifest=manifest, identity_unique=unique
        )
        if entry.data_version == old.data_version and entry.schema.equals(old.schema, check_metadata=True):
            entry = replaced(entry, registered_at=old.registered_at)
        self._commit(entry, manifest, replace=True)
        return entry

    def entry(self, name: str) -> Entry:
        """The registered relation of this name.

        Raises:
            CatalogError: there is none; lists near matches.
        """
        rows = {row["name"]: row for row in self._rows("relations", _RELATIONS)}
        if name not in rows:
            msg = f"relation {name!r} is not in catalog {self.root}; {near(name, rows)} Register it first"
            raise CatalogError(msg)
        return self._entry(rows[name])

    def tables(self) -> list[str]:
        """The names of all relations, sorted."""
        return sorted(row["name"] for row in self._rows("relations", _RELATIONS))

    def drop(self, name: str) -> None:
        """Forget a relation; its source's files stay, rows copied from memory go.

        Raises:
            CatalogError: there is none of this name.
        """
        source = self.entry(name).source
        with self._locked() as database:
            database.open_table("relations").delete(f"name = '{name}'")
            others = [row["source"] for row in self._rows("relations", _RELATIONS)]
            unused = self._portable(source) not in others
            if unused and isinstance(source, Lance) and Path(source.uri).parent == self.root:
                database.drop_table(Path(source.uri).stem)

    def store_plan(self, name: str, plan: Mapping[str, Any]) -> None:
        """Keep a stream's plan (JSON) under a name, in place of an older one.

        Raises:
            CatalogError: the name is not legal.
        """
        if not _NAME.fullmatch(name):
            msg = f"stream {name!r}: a name has letters, digits and _ . - only. Rename it"
            raise CatalogError(msg)
        row = {"name": name, "plan": json.dumps(plan, sort_keys=True), "saved_at": datetime.now(UTC)}
        self._upsert("streams", _STREAMS, row)

    def stored_plan(self, name: str) -> dict[str, Any]:
        """The saved plan of this name.

        Raises:
            CatalogError: there is none; lists near matches.
        """
        rows = {row["name"]: row for row in self._rows("streams", _STREAMS)}
        if name not in rows:
            msg = f"stream {name!r} is not in catalog {self.root}; {near(name, rows)} Save it with save_stream first"
            raise CatalogError(msg)
        plan: dict[str, Any] = json.loads(rows[name]["plan"])
        return plan

    def streams(self) -> list[str]:
        """The names of all saved streams, sorted."""
        return sorted(row["name"] for row in self._rows("streams", _STREAMS))

    def drop_stream(self, name: str) -> None:
        """Forget a saved stream.

        Raises:
            CatalogError: there is none of this name.
        """
        self.stored_plan(name)
        with self._locked() as database:
            database.open_table("streams").delete(f"name = '{name}'")

    def register_tokenizer(self, name: str, source: Any, *, replace: bool = False) -> TokenizerEntry:
        """Copy a tokenizer into the catalog under a name; some seconds go into proving its fast engine.

        Args:
            name: letters, digits, ``_ . -``.
            source: path of a ``tokenizer.json``, a folder that transformers can load, a tokenizer object of
                tokenizers or transformers, or a hub name where no path is called so.
            replace: take the place of another content.

        Raises:
            CatalogError: the name is not legal or taken by another content, or the source is none.
            SourceError: a file is no tokenizer.
        """
        if not _NAME.fullmatch(name):
            msg = f"tokenizer {name!r}: a name has letters, digits and _ . - only. Rename it"
            raise CatalogError(msg)
        return Tokenizers(self.root).register(name, source, replace=replace)

    def tokenizer(self, name: str) -> TokenizerEntry:
        """The tokenizer of this name, or of the ``tokenizer.json`` at this path.

        Raises:
            CatalogError: there is neither; lists near matches.
        """
        return Tokenizers(self.root).entry(name)

    def tokenizers(self) -> list[str]:
        """The names of all tokenizers, sorted."""
        return Tokenizers(self.root).names()

    def drop_tokenizer(self, name: str) -> None:
        """Forget a tokenizer; its source stays.

        Raises:
            CatalogError: there is none of this name.
        """
        Tokenizers(self.root).drop(name)

    def _new_entry(
        self,
        name: str,
        source: Source,
        schema: pa.Schema,
        *,
        identity: tuple[str, ...],
        shard: str | None,
        manifest: Manifest,
        identity_unique: bool,
    ) -> Entry:
        if STORAGE_SHARD not in schema.names:
            schema = schema.append(pa.field(STORAGE_SHARD, pa.utf8()))
        return Entry(
            name=name,
            source=source,
            schema=schema,
            identity=identity,
            identity_unique=identity_unique,
            shard=shard,
            data_version=manifest.data_version,
            registered_at=datetime.now(UTC),
            root=self.root,
            manifest_name=self._keep(manifest),
        )

    def _keep(self, manifest: Manifest) -> str:
        """Write the manifest under its own digest; the name appears only when it is whole."""
        folder = self.root / "manifests"
        draft = folder / f".{os.getpid()}-{manifest.data_version}"
        manifest.save(draft)
        final_name = f"{content_key(draft.read_bytes())}.arrow"
        draft.replace(folder / final_name)
        return final_name

    def _stored(self, source: Source) -> Source:
        """The source itself, or for rows in memory their copy inside the catalog."""
        if not isinstance(source, Arrow):
            return source
        table_name = f"rows-{source.digest()}"
        with self._locked() as database:
            if table_name not in _names(database):
                database.create_table(table_name, source.table)
        return Lance(str(self.root / f"{table_name}.lance"), base=source.base, allow_outside=source.allow_outside)

    def _commit(self, entry: Entry, manifest: Manifest, replace: bool) -> None:
        row = {
            "name": entry.name,
            "source": self._portable(entry.source),
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
        self._upsert("relations", _RELATIONS, row, replace=replace)

    def _entry(self, row: Mapping[str, Any]) -> Entry:
        saved = {
            k: v.replace(_HERE, str(self.root), 1) if _is_here(v) else v for k, v in json.loads(row["source"]).items()
        }
        return Entry(
            name=row["name"],
            source=source_from_json(saved),
            schema=pa.ipc.read_schema(pa.py_buffer(row["schema"])),
            identity=tuple(row["identity"]),
            identity_unique=row["identity_unique"],
            shard=row["shard"],
            data_version=row["data_version"],
            registered_at=row["registered_at"],
            root=self.root,
            manifest_name=row["manifest_name"],
        )

    def _portable(self, source: Source) -> str:
        """The source as JSON, with paths inside the catalog written relative to it."""
        inside = f"{self.root}{os.sep}"
        fields = source_to_json(source).items()
        within = {
            k: _HERE + v[len(inside) - 1 :] if isinstance(v, str) and v.startswith(inside) else v for k, v in fields
        }
        return json.dumps(within, sort_keys=True)

    def _rows(self, table: str, schema: pa.Schema) -> list[dict[str, Any]]:
        database = self._database()
        if table not in _names(database):
            return []
        rows: list[dict[str, Any]] = database.open_table(table).to_arrow().select(schema.names).to_pylist()
        return rows

    def _upsert(self, table: str, schema: pa.Schema, row: dict[str, Any], *, replace: bool = True) -> None:
        with self._locked() as database:
            opened = database.create_table(table, schema=schema, exist_ok=True)
            if not replace and opened.count_rows(f"name = '{row['name']}'"):
                msg = f"register {row['name']!r}: another process took the name. Pass replace=True, or choose another"
                raise CatalogError(msg)
            change = opened.merge_insert("name").when_matched_update_all().when_not_matched_insert_all()
            change.execute(pa.Table.from_pylist([row], schema=schema))

    def _database(self) -> "lancedb.DBConnection":
        import lancedb

        return lancedb.connect(str(self.root))

    @contextmanager
    def _locked(self) -> Iterator["lancedb.DBConnection"]:
        """The database, for one writer at a time."""
        try:
            with (self.root / ".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield self._database()
        except (OSError, RuntimeError, ValueError) as error:  # LanceDB raises all three
            msg = f"catalog {self.root}: {error}. Check its rights and free space"
            raise CatalogError(msg) from error


@contextmanager
def _registering(name: str) -> Iterator[None]:
    """Say which registration an error belongs to."""
    try:
        yield
    except SpiralError as error:
        prefix = f"register {name!r}: "
        if str(error).startswith(prefix):
            raise
        kind = CatalogError if isinstance(error, PlanError) else type(error)
        raise kind(prefix + str(error)) from error


def _described(name: str, schema: pa.Schema, semantic: Mapping[str, str], descriptions: Mapping[str, str]) -> pa.Schema:
    if ROW in schema.names:
        msg = f"the source has a column {ROW!r}, which is the name of row ordinals. Rename the column"
        raise CatalogError(msg)
    schema = with_semantic(schema.remove_metadata(), semantic)
    for column, text in descriptions.items():
        at = schema.get_field_index(column)
        if at < 0:
            msg = f"register {name!r}: descriptions: {column!r} is not a column; {near(column, schema.names)}"
            raise CatalogError(msg)
        field = schema.field(at)
        schema = schema.set(at, field.with_metadata({**(field.metadata or {}), DESCRIPTION: text.encode()}))
    return schema


def _shard_column(schema: pa.Schema, asked: str | None) -> str | None:
    if asked == _AUTO:
        return STORAGE_SHARD if STORAGE_SHARD in schema.names else None
    if asked is not None and asked not in schema.names:
        msg = f"shard {asked!r} is not a column; {near(asked, schema.names)}"
        raise CatalogError(msg)
    return asked


def _measure(
    name: str, reader: Reader, identity: Sequence[str], shard: str | None, unique: bool
) -> tuple[Manifest, bool]:
    """The shard table, and whether every identity stands once."""
    manifest = build_manifest(reader, shard)
    found = duplicate(name, reader, manifest, identity)
    if found is not None and unique:
        msg = (
            f"identity repeats: {found}. Name a unique column or several (identity=[...]), "
            "or pass unique=False for a relation that is only joined"
        )
        raise CatalogError(msg)
    return manifest, found is None


def _shortly(value: object) -> str:
    return repr(value) if isinstance(value, str | os.PathLike) else "what was given"


def _is_here(value: object) -> bool:
    return isinstance(value, str) and value.startswith(_HERE)


def _names(database: "lancedb.DBConnection") -> set[str]:
    """The names of all tables; the list comes in pages."""
    names: set[str] = set()
    token: str | None = None
    while True:
        page = database.list_tables(page_token=token)
        names.update(page.tables)
        token = page.page_token
        if not token:
            return names
