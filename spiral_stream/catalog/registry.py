"""Which relations and streams there are: names in a LanceDB database.

The database holds one small table of relations and one of saved streams, and the
rows of relations that were registered from memory. Shard tables and statistics
lie beside it as Arrow files. Changes are made under a file lock, which the kernel
releases when a process dies, so that several processes may use one catalog. What is
only read needs no right to write.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace as replaced
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spiral_stream.catalog.again import differences
from spiral_stream.catalog.database import Database, trying
from spiral_stream.catalog.entry import DESCRIPTION, STORAGE_SHARD, Entry
from spiral_stream.catalog.identity import check_columns, duplicate, identity_columns
from spiral_stream.catalog.manifest import Manifest, build_manifest
from spiral_stream.catalog.pinning import pinned
from spiral_stream.catalog.rows import NAME, RELATIONS, STREAMS, entry_of, plan_of, row_of
from spiral_stream.catalog.suggestions import suggestions
from spiral_stream.errors import CatalogError, PlanError, SourceError, SpiralError, cut, shown
from spiral_stream.semantic import with_semantic
from spiral_stream.sources.arrow import Arrow
from spiral_stream.sources.lance import Lance
from spiral_stream.sources.paths import local_folder
from spiral_stream.sources.saved import SAVED, is_saved
from spiral_stream.sources.source import ROW, Reader, Source, content_key

if TYPE_CHECKING:
    from spiral_stream.catalog.tokenizers import TokenizerEntry, Tokenizers

DEFAULT_FOLDER: Final = "catalog"
_AUTO: Final = "<storage_shard if the source has it>"


def default_folder() -> str:
    """``$SPIRAL_CATALOG``, else ``./catalog``."""
    return os.environ.get("SPIRAL_CATALOG") or DEFAULT_FOLDER


def connect(uri: str | os.PathLike[str] | None = None) -> "Registry":
    """Open or create a catalog.

    Args:
        uri: its folder; by default ``$SPIRAL_CATALOG``, else ``./catalog``.

    Raises:
        CatalogError: the folder cannot be made or is on an object store.
    """
    return Registry(default_folder() if uri is None else uri)


class Registry:
    """A LanceDB database of relations and streams; `spiral_stream.relation` adds the verbs to it."""

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        try:
            self.root = local_folder(uri)
        except SourceError as error:
            msg = f"catalog {cut(str(uri))}: a catalog lies in a local folder (its relations need not); this {error}"
            raise CatalogError(msg) from error
        self._database = Database(self.root)
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

        Registering again what is registered already, unchanged, returns the entry and reads no rows.

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
        _need_name("register", name)
        _need_source(name, source)
        columns = identity_columns(name, identity)
        old = None if replace else self._found(name)
        if old is not None:
            return self._again(old, source, columns, shard, semantic or {}, descriptions or {}, unique=unique)

        def measured(at: Source) -> tuple[pa.Schema, str | None, Manifest, bool]:
            with _registering(name), at.open() as reader:
                schema, chosen = _declared(name, reader.schema, columns, shard, semantic or {}, descriptions or {})
                manifest, is_unique = _measure(name, reader, columns, chosen, unique)
                if not isinstance(at, Arrow):
                    manifest = pinned(manifest, reader, schema, self.root / "manifests")
                return schema, chosen, manifest, is_unique

        if isinstance(source, Arrow):
            measured(source)  # refused rows are not copied
        with _registering(name):
            stored = self._stored(source).pinned()
        schema, chosen, manifest, is_unique = measured(stored)
        entry = self._new_entry(
            name, stored, schema, identity=columns, shard=chosen, manifest=manifest, identity_unique=is_unique
        )
        if not self._database.put(RELATIONS, row_of(entry, manifest), replace=replace):  # another process was faster
            return self._again(
                self.entry(name), source, columns, shard, semantic or {}, descriptions or {}, unique=unique
            )
        return entry

    def _again(
        self,
        old: Entry,
        source: Source,
        columns: tuple[str, ...],
        shard: str | None,
        semantic: Mapping[str, str],
        descriptions: Mapping[str, str],
        *,
        unique: bool,
    ) -> Entry:
        """The registered relation, if it is what would be registered now; compares what is declared, and content keys."""
        found = ["its rows differ"]
        copy = self._copy_of(source) if isinstance(source, Arrow) else None
        if copy is None or copy.uri == getattr(old.source, "uri", None):
            with _registering(old.name), (source.pinned() if copy is None else old.source).open() as reader:
                schema, chosen = _declared(old.name, reader.schema, columns, shard, semantic, descriptions)
                now, units = copy or source, reader.units()
                found = differences(old, now, _complete(schema), columns, chosen, units, unique=unique)
            if not found:
                old.open().close()  # finds files that were changed in place
        if found:
            msg = (
                f"register {old.name!r}: the name is taken, by another registration: {'; '.join(found)}. "
                "Pass replace=True, or drop it first"
            )
            raise CatalogError(msg)
        return old

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
        self._database.put(RELATIONS, row_of(entry, manifest))
        return entry

    def entry(self, name: str) -> Entry:
        """The registered relation of this name.

        Raises:
            CatalogError: there is none; lists near matches.
        """
        rows = self._rows()
        if name not in rows:
            msg = f"relation {shown(name)} is not in catalog {self.root}; {suggestions(str(name), rows)} Register it first"
            raise CatalogError(msg)
        return entry_of(self.root, rows[name])

    def schemas(self) -> dict[str, pa.Schema]:
        """Name -> columns of every relation that can be read."""
        found = {}
        for name, row in self._rows().items():
            with suppress(CatalogError):  # said when it is asked for by name
                found[name] = entry_of(self.root, row).schema
        return found

    def tables(self) -> list[str]:
        """The names of all relations, sorted."""
        return sorted(self._rows())

    def drop(self, name: str) -> None:
        """Forget a relation; its source's files stay, rows copied from memory go.

        Raises:
            CatalogError: there is none of this name.
        """
        rows = self._rows()
        if name not in rows:
            self.entry(name)
        self._database.remove(RELATIONS, name)
        with suppress(CatalogError):  # a damaged row names no rows to delete
            source = entry_of(self.root, rows[name]).source
            if isinstance(source, Lance) and Path(source.uri).parent == self.root:
                copy = Path(source.uri).name  # other relations may have these rows, with another base too
                if not any(copy in str(row["source"]) for row in self._rows().values()):
                    self._database.forget(Path(copy).stem)

    def store_plan(self, name: str, plan: Mapping[str, Any]) -> None:
        """Keep a stream's plan (JSON) under a name, in place of an older one.

        Raises:
            CatalogError: the name is not legal.
        """
        _need_name("stream", name)
        row = {"name": name, "plan": json.dumps(plan, sort_keys=True), "saved_at": datetime.now(UTC)}
        self._database.put(STREAMS, row)

    def stored_plan(self, name: str) -> dict[str, Any]:
        """The saved plan of this name.

        Raises:
            CatalogError: there is none; lists near matches.
        """
        rows = {row["name"]: row for row in self._database.rows(STREAMS)}
        if name not in rows:
            way_out = f"{suggestions(str(name), rows)} Save it with save_stream first"
            msg = f"stream {shown(name)} is not in catalog {self.root}; {way_out}"
            raise CatalogError(msg)
        return plan_of(self.root, rows[name])

    def streams(self) -> list[str]:
        """The names of all saved streams, sorted."""
        return sorted({row["name"] for row in self._database.rows(STREAMS)})

    def drop_stream(self, name: str) -> None:
        """Forget a saved stream.

        Raises:
            CatalogError: there is none of this name.
        """
        if name not in self.streams():
            self.stored_plan(name)
        self._database.remove(STREAMS, name)

    def register_tokenizer(self, name: str, source: Any, *, replace: bool = False) -> "TokenizerEntry":
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
        _need_name("tokenizer", name)
        return self._tokenizers().register(name, source, replace=replace)

    def tokenizer(self, name: str) -> "TokenizerEntry":
        """The tokenizer of this name, or of the ``tokenizer.json`` at this path.

        Raises:
            CatalogError: there is neither; lists near matches.
        """
        return self._tokenizers().entry(name)

    def tokenizers(self) -> list[str]:
        """The names of all tokenizers, sorted."""
        return self._tokenizers().names()

    def drop_tokenizer(self, name: str) -> None:
        """Forget a tokenizer; its source stays.

        Raises:
            CatalogError: there is none of this name.
        """
        self._tokenizers().drop(name)

    def _tokenizers(self) -> "Tokenizers":
        from spiral_stream.catalog.tokenizers import Tokenizers

        return Tokenizers(self.root)

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
        return Entry(
            name=name,
            source=source,
            schema=_complete(schema),
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
        with trying(self.root, "keep a manifest"):
            manifest.save(draft)
            final_name = f"{content_key(draft.read_bytes())}.arrow"
            draft.replace(folder / final_name)
        return final_name

    def _stored(self, source: Source) -> Source:
        """The source itself, or for rows in memory their copy inside the catalog."""
        if not isinstance(source, Arrow):
            return source
        copy = self._copy_of(source)
        self._database.copy(Path(copy.uri).stem, source.table)
        return copy

    def _copy_of(self, source: Arrow) -> Lance:
        """Where rows from memory are kept."""
        return Lance(
            str(self._database.place(f"rows-{source.digest()}")), base=source.base, allow_outside=source.allow_outside
        )

    def _found(self, name: str) -> Entry | None:
        """The registered relation of this name, if there is one."""
        rows = self._rows()
        return entry_of(self.root, rows[name]) if name in rows else None

    def _rows(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self._database.rows(RELATIONS)}


def _need_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        msg = f"{what} {shown(name)}: a name has letters, digits and _ . - only. Rename it"
        raise CatalogError(msg)


def _need_source(name: str, source: object) -> None:
    if not isinstance(source, Source):
        msg = (
            f"register {name!r}: {_shortly(source)} is a {type(source).__name__}, not a source; give Lance(uri), "
            "Parquet(uri), ImageFolder(path), VideoFolder(path) or Arrow(table)"
        )
        raise CatalogError(msg)
    if not isinstance(source, Arrow) and not is_saved(source):
        msg = (
            f"register {name!r}: {type(source).__name__} is a source of your own, which a catalog cannot open again: it "
            f"keeps {', '.join(SAVED)} and Arrow. Write its rows to Parquet or Lance, or read them into Arrow(table)"
        )
        raise CatalogError(msg)


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


def _declared(
    name: str,
    schema: pa.Schema,
    identity: tuple[str, ...],
    shard: str | None,
    semantic: Mapping[str, str],
    descriptions: Mapping[str, str],
) -> tuple[pa.Schema, str | None]:
    """The columns with what the user says of them, and the column that names the shards."""
    described = _described(name, schema, semantic, descriptions)
    chosen = _shard_column(described, shard)
    check_columns(name, described, identity)
    return described, chosen


def _complete(schema: pa.Schema) -> pa.Schema:
    """The columns of a relation, which always has ``storage_shard``."""
    return schema if STORAGE_SHARD in schema.names else schema.append(pa.field(STORAGE_SHARD, pa.utf8()))


def _described(name: str, schema: pa.Schema, semantic: Mapping[str, str], descriptions: Mapping[str, str]) -> pa.Schema:
    names = schema.names
    if "" in names or len(set(names)) < len(names):
        found = "a column without a name" if "" in names else f"two columns {shown(max(names, key=names.count))}"
        msg = f"register {name!r}: the source has {found}. Give each column a name of its own"
        raise CatalogError(msg)
    if cut_off := [each for each in names if "\0" in each]:
        msg = f"register {name!r}: column {shown(cut_off[0])} holds a NUL character, at which its name would be cut. Rename it"
        raise CatalogError(msg)
    if ROW in schema.names:
        msg = f"the source has a column {ROW!r}, which is the name of row ordinals. Rename the column"
        raise CatalogError(msg)
    schema = with_semantic(schema.remove_metadata(), semantic)
    for column, text in descriptions.items():
        at = schema.get_field_index(column)
        if at < 0:
            msg = f"register {name!r}: descriptions: {column!r} is not a column; {suggestions(column, schema.names)}"
            raise CatalogError(msg)
        field = schema.field(at)
        schema = schema.set(at, field.with_metadata({**(field.metadata or {}), DESCRIPTION: text.encode()}))
    return schema


def _shard_column(schema: pa.Schema, asked: str | None) -> str | None:
    if asked == _AUTO:
        return STORAGE_SHARD if STORAGE_SHARD in schema.names else None
    if asked is not None and asked not in schema.names:
        msg = f"shard {asked!r} is not a column; {suggestions(asked, schema.names)}"
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
    return shown(value) if isinstance(value, str | os.PathLike) else "what was given"
