"""Relations that a plan makes: the results of `union`, `aggregate` and SQL text, which a stream reads (docs/decisions/0042).

A made relation lies in a folder of its own, under (what makes it, the identity of its rows, the data versions of the
relations that it reads). One process makes it while others wait; it appears whole, or not at all. A union stores its shard
table only, since its rows stay where they lie; the others store their rows as a Lance table.

Aggregates and SQL text read the columns that they look at and no others, some rows at a time; the engine spills what does
not fit its memory limit. What they make is a table in memory.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.catalog.registering.declaration import complete
from spiral_stream.catalog.registering.measure import identity_pieces
from spiral_stream.catalog.registering.unique import check_columns, duplicate
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.manifest import Manifest, build_manifest
from spiral_stream.catalog.relation.shard_rows import SourceRows
from spiral_stream.derived.kinds.identities import Identities
from spiral_stream.derived.work.cooperative_build import one_at_a_time
from spiral_stream.errors import CatalogError, DamageError, PlanError, ResumeError, SourceError
from spiral_stream.integrity import seal
from spiral_stream.integrity.folders import files_of, need_written
from spiral_stream.integrity.one_look import size_of
from spiral_stream.integrity.publish import mended, publish
from spiral_stream.keeping.in_use import Reading, reading, used
from spiral_stream.plan import nodes
from spiral_stream.plan.combining import Aggregate, Union
from spiral_stream.plan.fields.profiles import Profile
from spiral_stream.plan.saving.fingerprint import canonical, digest
from spiral_stream.plan.tree import profiles, relations_of, replaced
from spiral_stream.plan.verbs.row_makers import Maker, identity_of_rows, natural_identity, rows_of
from spiral_stream.planner.selection.find import Workplace
from spiral_stream.planner.selection.whole import Base, collect
from spiral_stream.planner.union import Side, UnionRows
from spiral_stream.relational import engine
from spiral_stream.sources.arrow.table import without_dictionaries
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.internal.computed import Computed, write_rows
from spiral_stream.sources.internal.former import FormerRows
from spiral_stream.sources.source import Source, Unit


def aggregated(maker: Aggregate, node: nodes.Node, workplace: Workplace) -> pa.Table:
    """Return the groups of an aggregate, sorted by their keys.

    Args:
        maker: the aggregate.
        node: what it groups, over a relation that ``workplace`` knows.
        workplace: where relations are opened and derived files lie.

    Raises:
        PlanError: the engine cannot measure a column, or a limit is passed.
    """
    read = list(dict.fromkeys([*maker.keys, *(column for column, _, _ in maker.measures)]))
    have = node.schema()
    schema = pa.schema([have.field(name) for name in read])
    side = Side(node, workplace)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in side.in_order(read):
            yield pa.record_batch(batch.columns[:-1], schema=schema)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    return engine.aggregate(reader, maker.keys, maker.measures).cast(maker.schema())


def queried(maker: nodes.Sql, identity: Sequence[str], open_relation: Callable[[str], Base]) -> pa.Table:
    """Return the rows of SQL text in the order of their identity, since the text itself promises none.

    Args:
        maker: the text.
        identity: columns that tell its rows apart; without any, all columns that have an order decide.
        open_relation: gives its relations by name.

    Raises:
        PlanError: the engine refuses the text, a limit is passed, or a column is an interval, which cannot be kept.
    """
    for field in maker.schema():
        if "interval" in str(field.type):
            msg = (
                f"sample: column {field.name!r} of the SQL text is {field.type}, which no table of rows keeps. Write it as "
                f"seconds, epoch({field.name}), or as text, CAST({field.name} AS VARCHAR)"
            )
            raise PlanError(msg)
    rows = collect(maker, open_relation)
    ordered = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    if keys := [(name, "ascending") for name in identity or ordered]:
        rows = rows.take(pc.sort_indices(without_dictionaries(rows.select([name for name, _ in keys])), keys))
    return rows.combine_chunks()


FOLDER: Final = "relations"
_VERSION: Final = 1  # of what is made
FACTS: Final = "relation.json"
ROWS: Final = "rows.lance"
MANIFESTS: Final = "manifests"
_NAMED: Final = 12  # digits of a fingerprint in a name


@final
@dataclass(frozen=True, slots=True, eq=False)
class DerivedRelation:
    """One derived relation that a stream reads.

    Attributes:
        entry: the relation, as if it were registered.
        of: the relations that it was made of.
        facts: what is known of making it.
        held: so that nobody removes its folder.
    """

    entry: Entry
    of: tuple[str, ...]
    facts: Mapping[str, Any]
    held: Reading


class NotMadeError(Exception):
    """A derived relation was not made yet."""


@final
class DerivedRelations:
    """The derived relations of one plan: made where they are missing, and known by name from then on."""

    def __init__(
        self,
        workplace: Workplace,
        entries: MutableMapping[str, Entry],
        versions: MutableMapping[str, str],
        *,
        make: bool = True,
    ) -> None:
        """Begin with the registered relations.

        Args:
            workplace: where relations are opened, those of ``entries`` among them.
            entries: the relations by name; derived ones are added.
            versions: their data versions; those of derived ones are added.
            make: whether missing relations are made.
        """
        self._workplace, self._entries, self._versions, self._make = workplace, entries, versions, make
        self.found: dict[str, DerivedRelation] = {}
        self.folders: set[str] = set()  # names of those that plans need, made or not
        self.sides: list[nodes.Node] = []  # plans that they are made of, over relations

    def resolved(self, node: nodes.Node, identity: Sequence[str]) -> nodes.Node:
        """Return a relational plan whose rows are those of a relation: what makes rows is replaced by a scan.

        Args:
            node: the plan.
            identity: the columns of its result that tell samples apart.

        Raises:
            PlanError: what makes the rows fails, or makes none.
            ResumeError: the relation is one of former data versions, and is not kept.
            NotMadeError: it is missing, and is not to be made.
        """
        maker = rows_of(node)
        if isinstance(maker, nodes.Scan):
            return node
        declared = _declared(maker)
        entry = self._entry(maker, identity_of_rows(node, tuple(identity)))
        rows: nodes.Node = nodes.Scan(entry.name, maker.schema(), entry.identity)
        return replaced(node, maker, nodes.Cache(rows, tuple(declared.items())) if declared else rows)

    def _entry(self, maker: Maker, identity: tuple[str, ...]) -> Entry:
        work = self._work(maker, identity)
        if work.name not in self.found:
            self.folders.add(work.folder.name)
            self.sides += work.sides
            if not self._make and not work.folder.exists():
                raise NotMadeError(work.name)
            found = work.made() if self._make and not work.former else work.opened(verified=self._make)
            self.found[work.name] = found
            self._entries[work.name] = found.entry
            self._versions[work.name] = found.entry.data_version
        return self.found[work.name].entry

    def _work(self, maker: Maker, identity: tuple[str, ...]) -> "_Work":
        """Return one derived relation as something to make or open; the sides of a union are made first."""
        sides = tuple(self.resolved(side, self._side_identity(maker, side, identity)) for side in _sides(maker))
        names = sorted({name for each in (*sides, maker) for name in relations_of(each)})
        entries = {name: self._entries[name] for name in names}
        return _Work(maker, identity, sides, entries, self._workplace, self._is_former(maker))

    @staticmethod
    def _side_identity(maker: Maker, side: nodes.Node, identity: tuple[str, ...]) -> tuple[str, ...]:
        """What tells the rows of a side apart: those of a union as the union's; groups have identities of their own."""
        return identity_of_rows(side, identity) if isinstance(maker, Union) else natural_identity(side)

    def _is_former(self, maker: Maker) -> bool:
        """Whether rows of a relation that it reads can no longer be read."""
        return any(isinstance(self._entries[name].source, FormerRows) for name in relations_of(maker))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """One derived relation."""

    maker: Maker
    identity: tuple[str, ...]
    sides: tuple[nodes.Node, ...]  # what it is made of, over relations
    entries: Mapping[str, Entry]  # the relations that it reads
    workplace: Workplace
    former: bool

    @property
    def name(self) -> str:
        """The relation's name: no registered one is called so."""
        about = digest([_VERSION, canonical(self.maker), list(self.identity)])
        return f"{self.maker.VERB}({about[:_NAMED]})"

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return derived_folder(self.workplace.root, self.maker, self.identity, self.workplace.versions)

    def made(self) -> DerivedRelation:
        """Open the relation; it is made where it is missing, by one process."""
        folder = self.folder
        held = reading(self.workplace.root, folder.name)

        def make() -> None:
            with one_at_a_time(folder.with_name(f".making-{folder.name}"), folder.exists):
                if not folder.exists():
                    with publish(folder) as draft:
                        (draft / FACTS).write_text(json.dumps(self._make(draft)))

        with held.or_released():
            found = mended(folder, lambda: self._read(held), make)
        used(folder)
        return found

    def opened(self, *, verified: bool) -> DerivedRelation:
        """Open the relation as it was made of former data.

        Args:
            verified: whether its rows are compared with what was written.

        Raises:
            ResumeError: it is not kept, or is damaged.
        """
        if not self.folder.exists():
            raise self._lost("is not kept", self.folder)
        held = reading(self.workplace.root, self.folder.name)
        try:
            with held.or_released():
                return self._read(held, verified=verified)
        except DamageError as error:
            found = str(error).removesuffix(seal.MENDED).rstrip()
            raise self._lost("is damaged", found) from error

    def _lost(self, how: str, where: object) -> ResumeError:
        return ResumeError(
            f"rebase: {self.name} was made of data that changed since, and {how} ({where}), so which rows were delivered is not "
            "known. Go on at the end of the epoch without rebase"
        )

    def _make(self, draft: Path) -> dict[str, Any]:
        """Make the rows and their shard table; returns what is kept of both."""
        began = time.process_time()
        source = self._source_in(draft)
        with source.open() as reader:
            if not sum(unit.rows for unit in reader.units()):
                msg = f"sample: {self.maker.VERB} leaves no row of {', '.join(sorted(self.entries))}. Loosen what it reads"
                raise PlanError(msg)
            manifest = build_manifest(reader)
            unique = self._is_unique(source, manifest, reader)
        (draft / MANIFESTS).mkdir()
        draft_folder = draft / MANIFESTS / "draft"
        manifest.save(draft_folder)
        name = f"{content_key(draft_folder.read_bytes())}.arrow"
        draft_folder.rename(draft_folder.with_name(name))
        return {
            "verb": self.maker.VERB,
            "name": self.name,
            "of": sorted(relations_of(self.maker)),
            "identity": list(self.identity),
            "unique": unique,
            "manifest": name,
            "schema": self.maker.schema().serialize().to_pybytes().hex(),
            "rows": manifest.total,
            "files": files_of(draft / ROWS),
            "bytes": sum(size_of(path) for path in draft.rglob("*") if path.is_file()),
            "seconds": round(time.process_time() - began, 3),
        }

    def _source_in(self, draft: Path) -> Source:
        """Make the rows in a draft, and return them as a source."""
        if isinstance(self.maker, Union):
            return self._union()
        if isinstance(self.maker, Aggregate):
            rows = aggregated(self.maker, self.sides[0], self.workplace)
        else:
            rows = queried(self.maker, self.identity, self.workplace.open_relation)
        if not len(rows):
            msg = f"sample: {self.maker.VERB} of {', '.join(sorted(self.entries))} has no rows. Loosen what it reads"
            raise PlanError(msg)
        return write_rows(draft / ROWS, rows)

    def _union(self) -> UnionRows:
        return UnionRows(self.sides, tuple(self.entries.values()), self.maker.schema(), self.workplace.root)

    def _is_unique(self, source: Source, manifest: Manifest, reader: Any) -> bool:
        """Whether the identity tells all rows apart. Groups have keys of their own; others are compared by hash."""
        if isinstance(self.maker, Aggregate) and self.maker.keys and set(self.maker.keys) <= set(self.identity):
            return True
        with suppress(CatalogError):  # of no type that is hashed, or null: the selection looks at the values
            check_columns(self.name, reader.schema, self.identity)
            kinds = tuple(reader.schema.field(name).type for name in self.identity)
            identities, rows = Identities(self.identity, kinds), SourceRows(source, manifest, reader)
            pieces = identity_pieces(rows, identities, self.workplace.root)
            return duplicate(self.name, rows.manifest, reader.fetch, identities, pieces) is None
        return False

    def _read(self, held: Reading, *, verified: bool = True) -> DerivedRelation:
        """Open what was made.

        Raises:
            DamageError: it is not as it was written.
        """
        folder = self.folder
        facts, manifest = _made(folder)
        if verified and not isinstance(self.maker, Union):
            _need_rows(folder, facts, manifest)
        source = self._source_of(folder, manifest)
        entry = Entry(
            name=self.name,
            source=source,
            schema=complete(self.maker.schema()),
            identity=self.identity,
            identity_unique=facts["unique"],
            shard=None,
            data_version=manifest.data_version,
            registered_at=datetime.now(UTC),
            root=folder,
            manifest_name=facts["manifest"],
        )
        return DerivedRelation(entry, tuple(facts["of"]), facts, held)

    def _source_of(self, folder: Path, manifest: Manifest) -> Source:
        keys = manifest.unit_keys.to_pylist()
        if not isinstance(self.maker, Union):
            return Computed(str(folder / ROWS), tuple(keys), self.maker.schema())
        if not self.former:
            return self._union()
        described = zip(manifest.unit_names.to_pylist(), manifest.unit_rows.tolist(), keys, strict=True)
        units = tuple(Unit(name, rows, None, key, ()) for name, rows, key in described)
        return FormerRows(self.name, manifest.data_version, self.maker.schema(), units)


def derived_folder(root: Path, maker: Maker, identity: Sequence[str], versions: Mapping[str, str]) -> Path:
    """Return where the relation lies that a maker makes of data of these versions."""
    read = {name: versions[name] for name in sorted(relations_of(maker))}
    return root / FOLDER / digest([_VERSION, canonical(maker), list(identity), read])


def need_sound_rows(folder: Path) -> bool:
    """Read the rows of a derived relation, and compare them with their digests; True, since they have such.

    Raises:
        DamageError: some are not as they were written, or cannot be read.
    """
    _need_rows(folder, *_made(folder), again=True)
    return True


def _made(folder: Path) -> tuple[dict[str, Any], Manifest]:
    """The facts and the shard table of a derived relation."""
    facts = seal.read_json(folder / FACTS)
    with seal.reading(folder / FACTS):
        path = folder / MANIFESTS / facts["manifest"]
    try:
        return facts, Manifest.load(path, path.stem)
    except CatalogError as error:
        found = error.__cause__ or error
        raise seal.damaged(path, f"it cannot be read ({str(found)[:150]})") from error


def _need_rows(folder: Path, facts: Mapping[str, Any], manifest: Manifest, *, again: bool = False) -> None:
    """Refuse rows that are not as they were written; those from before files had digests are read one by one."""
    if facts.get("files"):
        need_written(folder / ROWS, facts["files"], again=again)
        return
    with seal.reading(folder / FACTS):
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(facts["schema"])))
    keys = tuple(manifest.unit_keys.to_pylist())
    try:
        now = Computed(str(folder / ROWS), keys, schema).digests()
    except SourceError as error:
        raise seal.damaged(folder, str(error)) from error
    except ValueError as error:  # more or fewer shards than it was written with
        raise seal.damaged(folder, f"its shards are not those that were written ({error})") from error
    if now != keys:
        different = sum(a != b for a, b in zip(now, keys, strict=True))
        raise seal.damaged(folder, f"rows of {different} of its shards differ")


def _sides(maker: Maker) -> tuple[nodes.Node, ...]:
    """What a maker reads, as plans."""
    return () if isinstance(maker, nodes.Sql) else maker.inputs()


def _declared(maker: Maker) -> dict[str, Profile]:
    """The cache profiles that are declared before a maker.

    Raises:
        PlanError: the sides of a union declare different ones.
    """
    if not isinstance(maker, Union):
        return {}
    first, *others = [profiles(side) for side in maker.parts]
    if any(each != first for each in others):
        msg = "sample: the sides of the union declare different caches. Declare one after the union: .union(...).cache(...)"
        raise PlanError(msg)
    return first
