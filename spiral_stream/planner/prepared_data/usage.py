"""What saved streams use in the prepared folder: selections, pieces, caches, and data under a plan's fingerprint.

A plan that cannot be read here, for example since its code is not trusted, counts as one that names everything of its
relations. So what may be in use is never taken for dead.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived.index import Keys, keys_of
from spiral_stream.errors import SpiralError
from spiral_stream.integrity import seal
from spiral_stream.plan import nodes
from spiral_stream.plan.fields.profiles import Original
from spiral_stream.plan.saving.canonical import encode_value
from spiral_stream.plan.saving.fingerprint import fingerprint
from spiral_stream.plan.tree import base_scan, need, relations_of, walk
from spiral_stream.plan.verbs.fan_out_join import owned_by_right_side
from spiral_stream.plan.verbs.maps import SampleTokens
from spiral_stream.plan.verbs.mix import per_stream
from spiral_stream.planner.columns.values import boundaries
from spiral_stream.planner.made_relations import FACTS, MANIFESTS, DerivedRelations, NotMadeError
from spiral_stream.planner.made_relations import FOLDER as RELATIONS
from spiral_stream.planner.selection.find import Workplace, derived_name, selection_folder
from spiral_stream.planner.selection.narrow_columns import NarrowSource

PLAN: Final = "plan"  # in a folder of formation indexes: the fingerprint of their plan
ReadPlan = Callable[[str], nodes.Node]  # a saved stream's plan by its name


@final
@dataclass(frozen=True, slots=True)
class NamedByPlan:
    """What one plan names.

    Attributes:
        plan: its fingerprint.
        relations: folders of derived relations that it needs.
        names: of those that are made.
        selections: folders of them.
        derived: fingerprints of what keeps its surviving rows.
        profiles: the forms of its payload, as JSON.
        encoders: digests of its tokenizers and their options.
        values: digests of the functions whose values it keeps.
    """

    plan: str
    relations: frozenset[str]
    names: frozenset[str]
    selections: frozenset[str]
    derived: frozenset[str]
    profiles: frozenset[str]
    encoders: frozenset[str]
    values: frozenset[str]


@final
@dataclass(frozen=True, slots=True)
class SavedUse:
    """One saved stream.

    Attributes:
        name: its name.
        text: its plan, as JSON.
        relations: those that it reads.
        named: what it names; None where its plan cannot be read.
    """

    name: str
    text: str
    relations: frozenset[str]
    named: NamedByPlan | None

    def has_cache(self, facts: Mapping[str, Any]) -> bool:
        """Whether it may read the payload cache of these facts."""
        if facts.get("relation") not in self.relations:
            return False
        if self.named is None:
            return True
        form = json.dumps(facts.get("profile"), sort_keys=True)
        return self.reads(facts["column"]) and (
            (form in self.named.profiles if "profile" in facts else True)
            and (facts["encoder"] in self.named.encoders if facts.get("kind", [""])[0] == "tokens" else True)
        )

    def reads(self, column: str) -> bool:
        """Whether its plan mentions a column."""
        return json.dumps(column) in self.text


@final
@dataclass(frozen=True, slots=True, eq=False)
class Present:
    """A registered relation: its columns, and the keys of its shards."""

    name: str
    schema: pa.Schema
    keys: Keys

    def has(self, column: str, kind: str | None = None) -> bool:
        """Whether it has a column, of this type."""
        if column not in self.schema.names:
            return False
        found = self.schema.field(column).type
        found = found.value_type if pa.types.is_dictionary(found) else found
        return kind is None or kind in (str(found), str(self.schema.field(column).type))


def present(catalog: Registry) -> Iterator[Present]:
    """Yield the relations of a catalog that can be read.

    Raises:
        CatalogError: one cannot be read, so nobody knows which of its shards are there.
    """
    for name, entry in catalog.relations.entries().items():
        yield Present(name, entry.schema, shard_keys(entry.manifest()))


def shard_keys(manifest: Manifest) -> Keys:
    """Return the keys by which derived data may know the shards of a relation."""
    return np.unique(np.concatenate([keys_of(manifest.content_keys), keys_of(manifest.row_keys)]), axis=0)


def present_derived(root: Path) -> Iterator[tuple[Path, Present]]:
    """Yield the derived relations that lie in a prepared folder and can be read, with their folders."""
    for folder in sorted((root / RELATIONS).glob("[!.]*")):
        with suppress(SpiralError, KeyError, ValueError, pa.ArrowException):
            facts = seal.read_json(folder / FACTS)
            manifest = Manifest.load(folder / MANIFESTS / facts["manifest"])
            schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(facts["schema"])))
            yield folder, Present(facts["name"], schema, keys_of(manifest.content_keys))


def saved_uses(catalog: Registry, read: ReadPlan, root: Path) -> Iterator[SavedUse]:
    """Yield the saved streams of a catalog.

    Args:
        catalog: it.
        read: gives a saved stream's plan.
        root: of the prepared folder.
    """
    every = frozenset(catalog.tables())
    for name in catalog.streams():
        data: dict[str, Any] | None = None
        named, relations = None, every
        with suppress(SpiralError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = catalog.saved.plan(name)
            relations = frozenset(_scanned(data)) if '"sql"' not in json.dumps(data) else every
            node = read(name)
            relations = frozenset(relations_of(node))
            named = _named(need(node, nodes.Deliver), catalog, root)
            relations |= named.names
        yield SavedUse(name, json.dumps(data), relations, named)


def _scanned(data: Any) -> Iterator[str]:
    """The relations that a plan's JSON names."""
    if isinstance(data, dict):
        if data.get("verb") == "scan":
            yield str(data.get("relation"))
        data = list(data.values())
    for each in data if isinstance(data, list) else ():
        yield from _scanned(each)


def _named(plan: nodes.Deliver, catalog: Registry, root: Path) -> NamedByPlan:
    sample = need(plan, nodes.Sample)
    entries = catalog.relations.entries(sorted(relations_of(plan)))
    versions = {name: entry.data_version for name, entry in entries.items()}
    selections, derived = set[str](), set[str | None]()
    with ExitStack() as opened:
        workplace = _workplace(root, entries, versions, opened)
        made = DerivedRelations(workplace, entries, versions, make=False)
        for each in _plans(sample, made):
            selections.add(selection_folder(each, root, versions).name)
            derived.add(derived_name(each, workplace.open_relation(base_scan(each).relation), workplace))
    caches = [profile for each in walk(plan) if isinstance(each, nodes.Cache) for _, profile in each.profiles]
    return NamedByPlan(
        fingerprint(plan),
        frozenset(made.folders),
        frozenset(made.found),
        frozenset(selections),
        frozenset(name for name in derived if name is not None),
        frozenset(json.dumps(encode_value(profile), sort_keys=True) for profile in [Original(), *caches]),
        frozenset(each.digest for each in walk(plan) if isinstance(each, SampleTokens)),
        frozenset(each.steps for each in boundaries(need(plan, nodes.Collate))),
    )


def _plans(sample: nodes.Sample, made: DerivedRelations) -> Iterator[nodes.Node]:
    """The plans over relations whose surviving rows a sampled plan needs: its streams, and what derived relations are of."""
    for _, node in per_stream(sample.source):
        with suppress(NotMadeError):  # so nothing lies there that is of its rows
            found = made.resolved(node, sample.identity)
            pairs = owned_by_right_side(found, sample.identity)
            yield from (found,) if pairs is None else (found, pairs)
    yield from made.sides


def _workplace(root: Path, entries: Mapping[str, Entry], versions: Mapping[str, str], opened: ExitStack) -> Workplace:
    @cache
    def open_relation(name: str) -> OpenRelation:
        relation = OpenRelation(entries[name])
        opened.callback(relation.close)
        return relation

    return Workplace(root, open_relation, versions, lambda name: NarrowSource(open_relation(name), root))
