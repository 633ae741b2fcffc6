"""What lies in the prepared folder, who uses it, and the removal of what nobody uses.

Dead is what no saved stream names, and pieces of shards that no registered relation has any more. Nothing is removed that
somebody reads or makes (locks say so), and nothing that was used or written within a grace: programs that save no
stream use selections and caches too.

Where prepared data lies on a store, copies on this machine are removed; `collected` says what goes from the store.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from spiral_stream.cache.store.retained import StoredCache
from spiral_stream.catalog.holding import unheld
from spiral_stream.catalog.imports.retention import import_use, remove_snapshots
from spiral_stream.catalog.imports.run import IMPORTS
from spiral_stream.catalog.records import RELATIONS as RELATIONS_TABLE
from spiral_stream.catalog.records import STREAMS
from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.vector_indexes import index_facts, index_folders, remove_index
from spiral_stream.derived.folder import StoredPieces, catalogs_of, described
from spiral_stream.derived.index import Keys
from spiral_stream.derived.kinds.column import Column, ListLengths
from spiral_stream.derived.kinds.column_facts import ColumnFacts
from spiral_stream.derived.kinds.identities import Identities
from spiral_stream.derived.kinds.values import Values
from spiral_stream.errors import CacheError, CatalogError, warn
from spiral_stream.integrity import seal
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.publish import is_aside, is_draft, sweep_draft, take_out
from spiral_stream.keeping.in_use import unread
from spiral_stream.keeping.share import share_of
from spiral_stream.planner.made_relations import FACTS
from spiral_stream.planner.made_relations import FOLDER as RELATIONS
from spiral_stream.planner.prepared_data.collected import collected
from spiral_stream.planner.prepared_data.folder import cache_root
from spiral_stream.planner.prepared_data.usage import (
    PLAN,
    Present,
    ReadPlan,
    SavedUse,
    present,
    present_derived,
    saved_uses,
)
from spiral_stream.planner.selection.by_shard import Outcome
from spiral_stream.sources.internal.imported import ImportedRows

GRACE: Final = timedelta(days=7)
IN_USE: Final = "a process has it open"
_YOUNG: Final = "no saved stream names it, but it was used not long ago"
_MIXED: Final = "parts with live pieces stay, and so do parts written not long ago"
_BLIND: Final = "the plan of {} cannot be read here, so it may need this: trust it, register what it reads, or drop it"
_NAMED_STREAMS: Final = 3  # saved streams that a note names
_UNREADABLE: Final = "it cannot be read: run spiral verify"


@final
@dataclass(frozen=True, slots=True)
class PreparedData:
    """Something that lies in the prepared folder; from `Catalog.caches`.

    Attributes:
        kind: ``cache`` (payload), a kind of derived pieces (``columns``, ``lengths``, ``identities``, ``survivors``, ``matches``,
            ``outcomes``, ``values`` of functions), ``relation`` (a derived one), ``selection``, ``formation``, ``quarantine``,
            ``plan``, ``import`` (rows of files, in the catalog's own folder), ``vectors`` (an index, likewise), ``table`` (old
            versions of the catalog's own),
            ``draft`` or ``set aside``.
        name: its fingerprint, or the name of its file.
        about: what it holds, in words.
        relations: the relations that it is of, as far as they are known.
        columns: the columns that it is of.
        path: where it lies.
        bytes: on disk.
        live_bytes: of what is in use or may be.
        dead_bytes: of what nobody can use.
        last_used: when it was used or written last, to the hour.
        used_by: the saved streams that name it, then the relations that need it.
        removed_bytes: how much was removed now.
        note: why it stays, or what became of it.

    Examples:
        >>> first = stream.take(1)
        >>> kinds = {each.kind: each.bytes for each in catalog.caches()}
    """

    kind: str
    name: str
    about: str
    relations: tuple[str, ...]
    columns: tuple[str, ...]
    path: Path
    bytes: int
    live_bytes: int
    dead_bytes: int
    last_used: datetime
    used_by: tuple[str, ...]
    removed_bytes: int = 0
    note: str = ""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Lying:
    """An entry, and what removes what is dead of it: returns False if a process has it open."""

    data: PreparedData
    remove: Callable[[], bool]


def prepared_data(
    catalog: Registry,
    plans: Callable[[Path], tuple[Registry, ReadPlan]],
    *,
    remove_dead: bool = False,
    older_than: timedelta = GRACE,
) -> list[PreparedData]:
    """List what lies in a catalog's prepared folder; other catalogs that share the folder count too.

    Args:
        catalog: whose folder it is.
        plans: opens a catalog, and gives what reads the plans of its saved streams.
        remove_dead: remove what is dead.
        older_than: what was used or written later is not dead.

    Raises:
        CatalogError: a relation cannot be read, so nobody knows which of its shards are there.
        CacheError: the folder cannot be written.
    """
    root, before = cache_root(catalog), time.time() - older_than.total_seconds()
    opened = [plans(folder) for folder in dict.fromkeys([catalog.root, *catalogs_of(root)])]
    relations = [each for one, _ in opened for each in present(one)]
    uses = [each for one, read in opened for each in saved_uses(one, read, root)]
    relations += [
        each for folder, each in present_derived(root) if _needs(uses, folder) or _last_used(folder) >= before
    ]
    survey = _Survey(root, relations, uses, before)
    catalogs = [one for one, _ in opened]
    in_catalogs = (survey.imports, survey.indexes, survey.tables, survey.drafts)  # in their own folders
    found = [*survey.found(), *(each for look in in_catalogs for each in look(catalogs))]
    return [_removed(each) for each in found] if remove_dead else [each.data for each in found]


def _removed(found: _Lying) -> PreparedData:
    """Remove what is dead of an entry; returns what became of it."""
    data = found.data
    if not data.dead_bytes and data.kind != "draft":  # one may be empty yet
        return data
    if not data.path.exists():  # it lay in a folder that is gone
        return replace(data, bytes=0, dead_bytes=0, removed_bytes=data.bytes, note="removed")
    try:
        tried = found.remove()
    except FileNotFoundError as error:  # another process removes it too
        if data.path.exists():
            raise failed(error, "Look again", data.path, "changed while it was removed") from error
        tried = True
    except OSError as error:
        raise failed(error, "Make it writable", data.path, "cannot be removed") from error
    left = _size(data.path)
    gone = max(0, data.bytes - left)
    note = ("removed" if not data.path.exists() else _MIXED if left > data.live_bytes else "") if tried else IN_USE
    return replace(data, bytes=left, dead_bytes=max(0, data.dead_bytes - gone), removed_bytes=gone, note=note)


@final
class _Survey:
    """One look at a prepared folder."""

    def __init__(self, root: Path, relations: Sequence[Present], uses: Sequence[SavedUse], before: float) -> None:
        self._root, self._relations, self._uses, self._before = root, relations, uses, before
        keys = [np.zeros((0, 2), np.uint64), *(each.keys for each in relations)]
        self._keys: Keys = np.unique(np.concatenate(keys), axis=0)
        self._hex = frozenset(self._keys.tobytes()[at : at + 16].hex() for at in range(0, 16 * len(self._keys), 16))

    def found(self) -> Iterator[_Lying]:
        """Yield everything, kind by kind, except what another process removes at this moment."""
        kinds: dict[str, Callable[[Path], _Lying]] = {
            "caches": self._cache,
            **{f"derived/{kind.name}": self._pieces for kind in _inside(self._root / "derived")},
            "selections": lambda path: self._in_use("selection", path, self._named(partial(_has_selection, path.name))),
            RELATIONS: self._relation,
            "formations": lambda path: self._of_plan("formation", path, _plan_of(path)),
            "quarantine": lambda path: self._of_plan("quarantine", path, path.name.split("-")[0]),
            "plans": lambda path: self._of_plan("plan", path, path.stem),
        }
        for kind, look in kinds.items():
            for path in _inside(self._root / kind):
                try:
                    yield self._noted(look(path))
                except FileNotFoundError:
                    if path.exists():
                        raise
        yield from self._left()

    def _noted(self, found: _Lying) -> _Lying:
        """Say of what stays that it does so for a saved stream whose plan cannot be read here."""
        blind = [use.name for use in self._uses if use.named is None and use.name in found.data.used_by]
        if not blind or found.data.note:
            return found
        return replace(found, data=replace(found.data, note=_BLIND.format(", ".join(blind[:_NAMED_STREAMS]))))

    def drafts(self, catalogs: Sequence[Registry]) -> Iterator[_Lying]:
        """Yield the drafts in the folders of catalogs themselves."""
        for catalog in catalogs:
            for path in _marked(catalog.root):
                if is_draft(path) and not path.is_relative_to(self._root):
                    yield self._draft(path)

    def _draft(self, path: Path) -> _Lying:
        """A draft, which goes as soon as its writer is dead."""
        size = _size(path)
        entry = replace(self._entry("draft", path, ()), bytes=size, live_bytes=0, dead_bytes=size)
        return _Lying(entry, partial(sweep_draft, path))

    def imports(self, catalogs: Sequence[Registry]) -> Iterator[_Lying]:
        """Yield the rows that catalogs copied from files."""
        for catalog in catalogs:
            entries = catalog.relations.entries().values()
            having = [(each.name, each.source) for each in entries if isinstance(each.source, ImportedRows)]
            for folder in _inside(catalog.root / IMPORTS):
                yield self._import(
                    catalog, folder, [(name, source) for name, source in having if Path(source.uri) == folder]
                )

    def indexes(self, catalogs: Sequence[Registry]) -> Iterator[_Lying]:
        """Yield the indexes of vectors; those of relations that were dropped or have changed are dead."""
        for catalog in catalogs:
            for folder in index_folders(catalog.root):
                yield self._index(catalog, folder)

    def _index(self, catalog: Registry, folder: Path) -> _Lying:
        try:
            facts = index_facts(folder)
        except CacheError:
            return self._unreadable("vectors", folder)
        name, about = str(facts["relation"]), f"{facts['rows']:,} vectors of {facts['dimensions']:,} numbers"
        now = catalog.relations.entries([name])[name].data_version if name in catalog.relations.names() else None
        users = [name] if now == facts["data_version"] else []
        entry = self._entry("vectors", folder, users, about, [name], [str(facts["column"])])
        return _Lying(entry, bool) if users else self._unnamed(entry, partial(remove_index, folder))

    def tables(self, catalogs: Sequence[Registry]) -> Iterator[_Lying]:
        """Yield the tables of catalogs that have old versions; those that nobody can be reading are dead."""
        for catalog in catalogs:
            for name in (RELATIONS_TABLE.name, STREAMS.name):
                dead = catalog.database.old_bytes(name)
                if dead:
                    entry = self._entry("table", catalog.database.table_folder(name), [], f"{name} of {catalog.root}")
                    entry = replace(entry, live_bytes=entry.bytes - dead, dead_bytes=dead)
                    yield _Lying(entry, partial(catalog.database.tidy, name))

    def _import(self, catalog: Registry, folder: Path, having: Sequence[tuple[str, ImportedRows]]) -> _Lying:
        names = [name for name, _ in having]
        about = f"rows of {having[0][1].of.KIND} files" if having else "rows of files"
        entry = self._entry("import", folder, names, about, names)
        if not having:
            return self._unnamed(entry, partial(catalog.relations.remove_unnamed, folder))
        use = import_use(folder, (source.snapshot for _, source in having), self._before)
        live = entry.bytes - use.dead_bytes
        return _Lying(
            replace(entry, live_bytes=live, dead_bytes=use.dead_bytes),
            partial(_remove_snapshots, catalog, folder, use.dead),
        )

    def _cache(self, folder: Path) -> _Lying:
        try:
            cache = StoredCache(folder)
            usage = cache.usage(self._hex)
        except CacheError:
            return self._unreadable("cache", folder)
        relation, column = str(cache.facts.get("relation", "")), str(cache.facts.get("column", ""))
        users = self._named(lambda use: use.has_cache(cache.facts))
        entry = self._entry("cache", folder, users, cache.form, [relation], [column])
        if not users:
            return self._unnamed(entry, partial(self._unless_read, folder.name, cache.remove))
        size = usage.live_bytes + usage.dead_bytes
        live = usage.live_bytes + max(0, entry.bytes - size)
        return _Lying(
            replace(entry, live_bytes=live, dead_bytes=entry.bytes - live, note=_MIXED if usage.dead_bytes else ""),
            partial(self._unless_read, folder.name, lambda: cache.remove_dead(self._hex, self._before)),
        )

    def _pieces(self, folder: Path) -> _Lying:
        try:
            stored = StoredPieces(self._root, folder)
            by_shard = folder.parent.name != Outcome.KIND  # an outcome's keys are numbers
            parts = list(stored.parts(self._keys if by_shard else None))
        except CacheError:
            return self._unreadable(folder.parent.name, folder)
        columns = _columns(stored.facts)
        relations = self._having(folder.parent.name, stored)
        users = self._users_of(folder, columns, relations, str(stored.facts.get("steps", "")))
        entry = self._entry(folder.parent.name, folder, users, described(stored.facts), relations, columns)
        if not users:
            return self._unnamed(entry, lambda: self._take_out(folder, folder.name))
        dead = sum(part.bytes - part.live_bytes for part in parts)
        return _Lying(
            replace(entry, live_bytes=entry.bytes - dead, dead_bytes=dead, note=_MIXED if dead else ""),
            lambda: stored.remove_dead(self._keys, self._before),
        )

    def _having(self, kind: str, stored: StoredPieces) -> list[str]:
        """The relations that pieces can be of: those with the columns, or with shards that have pieces."""
        facts = stored.facts  # none where they are not written yet
        if facts and kind in (Column.KIND, ListLengths.KIND, Identities.KIND):
            types = facts["types"] if kind == Identities.KIND else [facts["type"]]
            wanted = list(zip(_columns(facts), types, strict=True))
            return [each.name for each in self._relations if all(each.has(*one) for one in wanted)]
        return [each.name for each in self._relations if stored.of(each.keys)]

    def _users_of(self, folder: Path, columns: Sequence[str], relations: Sequence[str], steps: str) -> list[str]:
        kind, shared = folder.parent.name, set(relations)
        if kind in (Column.KIND, ListLengths.KIND, Identities.KIND, ColumnFacts.KIND):
            mentions = self._named(lambda use: bool(use.relations & shared) and all(map(use.reads, columns)))
            return [*mentions, *relations]
        if kind == Values.KIND:
            of = shared.intersection
            return self._named(lambda use: bool(of(use.relations)) and (use.named is None or steps in use.named.values))
        return self._named(
            lambda use: (
                folder.name in use.named.derived
                if use.named is not None
                else kind == Outcome.KIND or bool(use.relations & shared)
            )
        )

    def _relation(self, folder: Path) -> _Lying:
        """A derived relation."""
        try:
            facts = seal.read_json(folder / FACTS)
        except CacheError:
            return self._unreadable("relation", folder)
        users = _needs(self._uses, folder)
        entry = self._entry("relation", folder, users, f"{facts['name']}, {facts['rows']:,} rows", facts["of"])
        return _Lying(entry, bool) if users else self._unnamed(entry, lambda: self._take_out(folder, folder.name))

    def _of_plan(self, kind: str, path: Path, plan: str) -> _Lying:
        users = self._named(lambda use: use.named is None or use.named.plan == plan)
        return self._in_use(kind, path, users, plan)

    def _in_use(self, kind: str, path: Path, users: Sequence[str], lock: str = "") -> _Lying:
        """What is in use as a whole, or not at all."""
        entry = self._entry(kind, path, users)
        if not users:
            return self._unnamed(entry, lambda: self._take_out(path, path.name, *([lock] if lock else [])))
        return _Lying(entry, bool)

    def _unnamed(self, entry: PreparedData, remove: Callable[[], bool]) -> _Lying:
        """What nobody names is dead once it was not used for long."""
        if entry.last_used.timestamp() >= self._before:
            return _Lying(replace(entry, note=_YOUNG), bool)
        return _Lying(replace(entry, live_bytes=0, dead_bytes=entry.bytes), remove)

    def _unreadable(self, kind: str, folder: Path) -> _Lying:
        return _Lying(replace(self._entry(kind, folder, ()), note=_UNREADABLE), bool)

    def _left(self) -> Iterator[_Lying]:
        """Drafts, which go as soon as their writers are dead, and what was set aside."""
        for path in _marked(self._root):
            if is_draft(path):
                yield self._draft(path)
            else:
                yield self._unnamed(self._entry("set aside", path, ()), partial(self._take_out, path))

    def _entry(
        self,
        kind: str,
        path: Path,
        users: Iterable[str],
        about: str = "",
        relations: Iterable[str] = (),
        columns: Iterable[str] = (),
    ) -> PreparedData:
        size, last = _size(path), datetime.fromtimestamp(_last_used(path), UTC)
        who, of = tuple(dict.fromkeys(users)), tuple(relations)
        return PreparedData(kind, path.name, about, of, tuple(columns), path, size, size, 0, last, who)

    def _named(self, names: Callable[[SavedUse], bool]) -> list[str]:
        return [use.name for use in self._uses if names(use)]

    def _unless_read(self, name: str, remove: Callable[[], bool]) -> bool:
        with unread(self._root, name) as is_alone:
            return is_alone and remove()

    def _take_out(self, path: Path, *names: str) -> bool:
        """Remove it whole, unless somebody shares one of these names; whether it is gone."""
        if not names:
            take_out(path)
            return True
        with unread(self._root, names[0]) as is_alone:
            return is_alone and self._take_out(path, *names[1:])


def _remove_snapshots(catalog: Registry, folder: Path, dead: Sequence[str]) -> bool:
    """Remove snapshots of an import, unless somebody is registering one; whether they are gone."""
    with unheld(catalog.root, folder.name) as is_free:
        return is_free and remove_snapshots(folder, dead)


def _needs(uses: Sequence[SavedUse], folder: Path) -> list[str]:
    """The saved streams that need a derived relation, or may."""
    return [use.name for use in uses if use.named is None or folder.name in use.named.relations]


def _plan_of(folder: Path) -> str:
    """The plan that a formation is of, if that is written."""
    plan = folder / PLAN
    return plan.read_text() if plan.exists() else ""


def _has_selection(name: str, use: SavedUse) -> bool:
    return use.named is None or name in use.named.selections


def _columns(facts: Any) -> list[str]:
    """The columns that the facts of a derivation name."""
    if "column" in facts:
        return [str(facts["column"])]
    return [str(name) for name in facts.get("columns", [each[0] for each in facts.get("types", [])])]


def _inside(folder: Path) -> list[Path]:
    """What a folder holds, without drafts and what was set aside."""
    with suppress(OSError):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return []


def _marked(root: Path) -> Iterator[Path]:
    """Drafts, and what was set aside."""
    for at, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(at, name)
            if is_draft(path) or is_aside(path):
                yield path
        folders[:] = [name for name in folders if not name.startswith(".")]


def _files(path: Path) -> Iterator[Path]:
    """The files of an entry, without those that count by themselves."""
    if path.is_file():
        yield path
    for at, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not is_draft(Path(name)) and not is_aside(Path(name))]
        yield from (Path(at, name) for name in files if not is_draft(Path(name)) and not is_aside(Path(name)))


def _size(path: Path) -> int:
    total = 0
    for each in _files(path):
        with suppress(OSError):
            total += each.stat().st_size
    return total


def _last_used(path: Path) -> float:
    """When a file of it was written, or its folder marked as used."""
    times = [0.0]
    for each in [path, *_files(path)]:
        with suppress(OSError):
            facts = each.stat()
            times.append(max(facts.st_mtime, facts.st_ctime if is_aside(each) else 0.0))
    return max(times)


_OF_STORE: Final = frozenset(("caches", "derived"))  # folders that machines share


def looked_over(
    catalog: Registry, plans: Callable[[Path], tuple[Registry, ReadPlan]], *, remove_dead: bool, older_than: timedelta
) -> list[PreparedData]:
    """Return `prepared_data`; where it lies on a store, remove what no catalog needs from there too, and say what stays."""
    found = prepared_data(catalog, plans, remove_dead=remove_dead, older_than=older_than)
    root = cache_root(catalog)
    share, out = share_of(root), list(found)
    if share is None or not remove_dead:
        return out
    for at, each in enumerate(out):
        if each.removed_bytes and each.path.is_relative_to(root) and each.path.relative_to(root).parts[0] in _OF_STORE:
            out[at] = replace(each, note=f"removed from this machine; {share.shown} keeps it")
    try:
        out += [
            _on_store(root, share.shown, *each) for each in collected(share, lambda path: plans(path)[0], older_than)
        ]
    except (CacheError, CatalogError) as error:
        warn(f"caches: dead parts stay on {share.shown}: {error}")
    return out


def _on_store(root: Path, shown: str, folder: str, size: int, dead: int, removed: int, note: str) -> PreparedData:
    """What was done of one folder of a store."""
    path = root / folder
    kind = "cache" if folder.startswith("caches") else path.parent.name
    now = datetime.now(UTC)
    return PreparedData(kind, path.name, f"on {shown}", (), (), path, size, size - dead, dead, now, (), removed, note)
