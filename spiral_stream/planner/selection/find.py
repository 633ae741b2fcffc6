"""Find the selected rows of a plan: as pieces by shard where that is possible, built once by any process.

Filters, computed columns and joins are decided shard by shard (`derived.kinds.selected_rows`,
`planner.selection.by_shard`), so a shard that did not change is never read again and processes that start together
share the work. What looks at all rows (distinct, sort, limit) is chosen by one process and written in the same form.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream import expr
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived.build import build, load, open_built
from spiral_stream.derived.derivation import Derivation, ShardSource
from spiral_stream.derived.index import RosterFile, keys_of
from spiral_stream.derived.kinds.selected_rows import Survivors, width_of
from spiral_stream.derived.many_sources import together
from spiral_stream.derived.pieces import Pieces
from spiral_stream.derived.work.cooperative_build import one_at_a_time
from spiral_stream.errors import DamageError
from spiral_stream.integrity import seal
from spiral_stream.integrity.publish import mended, publish, publish_file
from spiral_stream.plan import nodes
from spiral_stream.plan.saving.fingerprint import canonical, digest
from spiral_stream.plan.tree import relations_of, spine
from spiral_stream.planner.selection.by_shard import INT64, Outcome, OutcomeRows, Probe, Probed, forget_sides, looked_at
from spiral_stream.planner.selection.fetched_columns import Fetchable
from spiral_stream.planner.selection.narrow_columns import NarrowSource
from spiral_stream.planner.selection.rewrites import Keep, Match, Rewritten, rewrite
from spiral_stream.planner.selection.whole import (
    Chosen,
    ComputedRelation,
    choose,
    joined_rows,
    leaves_of,
    only,
    settled,
    types_of,
)
from spiral_stream.relational.join import FanOutError
from spiral_stream.relational.selection import Selection, all_rows
from spiral_stream.sources.source import ROW

Settled = dict[str, Any]  # what was settled, as JSON values
Opened = Callable[[str], OpenRelation]

SETTLED: Final = "settled"
_FACTS: Final = "selection.json"
_LOCK: Final = ".settling"
_REFUSED: Final = "fan-out.json"
_MOST_INT32: Final = 2**31 - 1
_INT32: Final = np.dtype("<i4")


@final
@dataclass(frozen=True, slots=True)
class Workplace:
    """The folder of derived files, how relations are opened, and their data versions."""

    root: Path
    open_relation: Callable[[str], OpenRelation]  # the same one for the same name
    versions: Mapping[str, str]
    narrow: Callable[[str], NarrowSource]  # that relation, as its kept columns are read; the same one for the same name


@final
@dataclass(frozen=True, slots=True, eq=False)
class Provenance:
    """What is known of the surviving rows of a plan beside them."""

    counts: Sequence[tuple[str, int]]  # rows left by each verb
    pushed: str | None  # the condition in the scan
    rights: Sequence[Mapping[str, str]]  # the joined relations that columns come from
    env: Mapping[str, expr.Expr]  # the columns over leaves
    schema: pa.Schema


def find_rows(
    node: nodes.Node, base: OpenRelation, workplace: Workplace, folder: Path | None = None
) -> tuple[Selection, Provenance]:
    """Return the surviving rows of a plan; what was found before is only opened.

    Args:
        node: the plan.
        base: the relation that it begins with.
        workplace: where things are made.
        folder: of its selection, if it is known.

    Raises:
        PlanError: a join finds several right rows for one left row.
        CacheError: the prepared folder cannot be written.
    """
    run = _Finding(node, base, workplace, folder or selection_folder(node, workplace.root, workplace.versions))
    if run.work is None:
        return run.chosen()
    if not run.work.pushed and not run.work.steps:
        return all_rows(base.manifest.starts), run.provenance(run.work, (), [])
    run.refuse_again()
    try:
        return run.by_shard(run.work)
    except FanOutError:
        run.refuse()
        raise
    finally:
        forget_sides()


def make_together(plans: Sequence[tuple[nodes.Node, OpenRelation]], workplace: Workplace) -> None:
    """Make the pieces that several plans lack; those that are decided alike over different relations in one build.

    A fan-out is told where its plan is looked at.

    Args:
        plans: each with the relation that it begins with.
        workplace: where things are made.

    Raises:
        CacheError: the prepared folder cannot be written.
        SourceError: a relation cannot be read.
    """
    alike: dict[str, tuple[Derivation, dict[str, OpenRelation]]] = {}
    decided = [(node, base) for node, base in plans if not isinstance(node, nodes.Scan)]
    for node, base in decided if len(decided) > 1 else ():
        run = _Finding(node, base, workplace, selection_folder(node, workplace.root, workplace.versions))
        work = run.work
        if work is not None and (work.pushed or work.steps) and not run.is_refused:
            derivation: Derivation = run.derivation(work, run.settled(work))
            alike.setdefault(derivation.fingerprint, (derivation, {}))[1][base.entry.name] = base
    try:
        for what, relations in alike.values():
            if len(relations) > 1:
                with suppress(FanOutError):
                    build(together(list(relations.values())), [what], workplace.root, unasked=True)
    finally:
        forget_sides()


def derived_name(node: nodes.Node, base: OpenRelation, workplace: Workplace) -> str | None:
    """Return the fingerprint of what keeps a plan's surviving rows; None if nothing does. Makes nothing.

    Raises:
        PlanError: the plan cannot be read.
    """
    run = _Finding(node, base, workplace, selection_folder(node, workplace.root, workplace.versions))
    work = run.work
    if work is None:
        return run.outcome_name()
    if not work.pushed and not work.steps:
        return None
    joined = len(leaves_of(work.env, node.schema())[1])
    return run.derivation(work, {"rows": [0] * joined}).fingerprint


def selection_folder(node: nodes.Node, root: Path, versions: Mapping[str, str]) -> Path:
    """Return the folder of a relational plan's selection and of everything derived from it."""
    return (
        root / "selections" / digest([canonical(node), {name: versions[name] for name in sorted(relations_of(node))}])
    )


@final
class _Finding:
    """One plan over one base relation."""

    def __init__(self, node: nodes.Node, base: OpenRelation, workplace: Workplace, folder: Path) -> None:
        self._node, self._base, self._workplace = node, base, workplace
        self._folder = folder / SETTLED
        self._lock = self._folder.with_name(_LOCK)
        verbs = spine(node)[::-1]
        self.work: Rewritten | None = None  # None: not to be decided shard by shard
        if isinstance(verbs[0], nodes.Scan):
            found = rewrite(verbs[0].schema(), verbs[1:])
            self.work = found if all(isinstance(step, Keep | Match) for step in found.steps) else None

    def opened(self, name: str) -> OpenRelation:
        """Open a relation, or return the base."""
        return self._base if name == self._base.entry.name else self._workplace.open_relation(name)

    def provenance(
        self, work: Rewritten, counts: Sequence[tuple[str, int]], rights: Sequence[Mapping[str, str]]
    ) -> Provenance:
        """Return what a selection says of its columns and counts."""
        schema = self._node.schema()
        env = leaves_of(work.env, schema)[0] if work.joins else {name: work.env[name] for name in schema.names}
        return Provenance(counts, work.pushed_text, rights, env, schema)

    def by_shard(self, work: Rewritten) -> tuple[Selection, Provenance]:
        """Make the pieces that are missing, and open all of them."""
        settled = self.settled(work)
        derivation = self.derivation(work, settled)
        opened = partial(self._pieces, derivation, self._base)
        pieces = opened()
        kinds = [kind for _, kind in derivation.rights] if isinstance(derivation, Probed) else []
        counts = list(_counts(work, pieces))
        return Selection(self._base.manifest.starts, pieces, kinds, opened), self.provenance(
            work, counts, settled["rights"]
        )

    def settled(self, work: Rewritten) -> Settled:
        """Return what is known of the right sides, which are settled if nobody has."""
        if not work.joins:
            return {"rights": [], "rows": []}
        return self._settled(lambda draft: self._settle(work, draft))

    @property
    def is_refused(self) -> bool:
        """Whether a fan-out was found before."""
        return self._folder.with_name(_REFUSED).exists()

    def refuse(self) -> None:
        """Name all keys that repeat, and not only those of the first chunk that has some; the answer is kept.

        Raises:
            FanOutError: a join finds several right rows for one left row.
        """
        try:
            choose(self._node, self.opened)
        except FanOutError as error:
            with publish_file(self._folder.with_name(_REFUSED)) as draft:
                draft.write_text(json.dumps({"message": str(error)}))
            raise

    def refuse_again(self) -> None:
        """Raise what was found before.

        Raises:
            FanOutError: as `refuse` raised it.
        """
        if self.is_refused:
            with suppress(DamageError):
                raise FanOutError(seal.read_json(self._folder.with_name(_REFUSED))["message"])

    def chosen(self) -> tuple[Selection, Provenance]:
        """Choose among all rows, unless somebody has; the outcome is kept by shard too."""
        outcome = OutcomeRows(self._base, lambda: choose(self._node, self.opened))
        settled = self._settled(lambda draft: _keep_outcome(outcome.chosen, draft))
        provenance = _provenance(settled)
        if settled["whole"]:
            return all_rows(self._base.manifest.starts), provenance
        derivation = self._outcome(settled)
        file = RosterFile(self._workplace.root, derivation)
        with one_at_a_time(
            self._lock, lambda: bool((load(file).find(keys_of(outcome.manifest.content_keys)) >= 0).all())
        ):
            pieces = self._pieces(derivation, outcome)
        kinds = [INT64] * len(provenance.rights)
        again = partial(self._pieces, derivation, outcome)
        return Selection(self._base.manifest.starts, pieces, kinds, again), provenance

    def outcome_name(self) -> str | None:
        """Return the fingerprint of what was chosen among all rows; None if nothing is settled, or all rows are in."""
        file = self._folder / _FACTS
        settled = seal.read_json(file) if file.exists() else {"whole": True}
        return None if settled["whole"] else self._outcome(settled).fingerprint

    def _outcome(self, settled: Settled) -> Outcome:
        return Outcome(digest([str(self._folder.parent.name)]), len(settled["rights"]))

    def _pieces(self, derivation: Derivation, source: ShardSource) -> Pieces:
        return open_built(source, [derivation], self._workplace.root, unasked=True)[0]

    def _settled(self, settle: Callable[[Path], Settled]) -> Settled:
        """What was settled, by this process or another."""

        def make() -> None:
            with one_at_a_time(self._lock, self._folder.exists):
                if not self._folder.exists():
                    with publish(self._folder) as draft:
                        (draft / _FACTS).write_text(json.dumps(settle(draft)))

        def opened() -> Settled:
            found = seal.read_json(self._folder / _FACTS)
            for name in found["files"]:
                seal.table(self._folder / name)
            return found

        return mended(self._folder, opened, make)

    def _settle(self, work: Rewritten, draft: Path) -> Settled:
        """Settle the right sides of all joins: what probes need, and the columns that the plan uses later."""
        _, used = leaves_of(work.env, self._node.schema())
        specs, rows = list[dict[str, str]](), list[int]()
        for k, step in enumerate(work.joins):
            names = list(dict.fromkeys([*step.verb.right_on, *looked_at(_steps(work), k)]))
            right, table = settled(step, self.opened, names)
            relation, number = joined_rows(right, np.arange(len(table), dtype=np.int64))
            _write(draft / f"side{k}.arrow", table.append_column(ROW, pa.array(number)))
            if k in used:
                specs.append(_keep_right(only(relation, used[k]), draft / f"right{len(specs)}.arrow"))
                rows.append(int(number.max(initial=0)))
        return {"rights": specs, "rows": rows, "files": _files(draft)}

    def derivation(self, work: Rewritten, settled: Settled) -> Survivors | Probed:
        """Return what keeps the surviving rows by shard."""
        pushed = None if work.condition is None else expr.canonical(work.condition, self._base.schema)
        steps = _steps(work)
        read = sorted({*work.read(), *(pushed.columns() if pushed is not None else ())})
        kinds = {name: self._base.schema.field(name).type for name in read}
        types = tuple((name, str(kind)) for name, kind in kinds.items())
        named = digest(self._base.manifest.shard_names.to_pylist()) if set(read) & self._base.synthesised else ""
        if not steps:
            assert pushed is not None
            return Survivors(pushed, types, named, width_of(kinds))
        _, used = leaves_of(work.env, self._node.schema())
        about = {
            "predicate": None if pushed is None else expr.to_json(pushed),
            "types": [list(each) for each in types],
            "shards": named,
            "steps": [self._about(step) for step in steps],
            "rights": list(used),
        }
        sides = [self._folder / f"side{k}.arrow" for k in range(len(steps))]
        made, joins = list[expr.Expr | Probe](), 0
        for step in steps:
            made.append(step.predicate if isinstance(step, Keep) else _probe(step, sides[joins]))
            joins += isinstance(step, Match)
        rights = tuple(
            (k, _INT32 if most <= _MOST_INT32 else INT64) for k, most in zip(used, settled["rows"], strict=True)
        )
        return Probed(tuple(work.read()), pushed, tuple(made), rights, about, width_of(kinds))

    def _about(self, step: Keep | Match) -> list[object]:
        """What a step does, for the fingerprint: a right side by its plan and the versions of its data."""
        if isinstance(step, Keep):
            return ["keep", expr.to_json(step.predicate)]
        versions = {name: self._workplace.versions[name] for name in sorted(relations_of(step.right))}
        keys = [expr.to_json(key) for key in step.keys]
        return ["match", step.verb.how, keys, list(step.verb.right_on), canonical(step.right), versions]


def _steps(work: Rewritten) -> list[Keep | Match]:
    return [step for step in work.steps if isinstance(step, Keep | Match)]


def _probe(step: Match, side: Path) -> Probe:
    verb = step.verb
    kinds = tuple(types_of(verb.source, verb.left_on))
    return Probe(verb.how, tuple(verb.left_on), kinds, step.keys, tuple(verb.right_on), side)


def _counts(work: Rewritten, pieces: Pieces) -> Iterator[tuple[str, int]]:
    """How many rows each verb left, as EXPLAIN shows it."""
    summary = {name: int(each.sum()) for name, each in pieces.summary.items()}
    if work.pushed:
        yield f"filter {work.pushed_text} (in the scan)", summary.get("passed", summary["count"])
    for k, step in enumerate(_steps(work)):
        yield step.text if isinstance(step, Keep) else step.text(summary[f"missed{k}"]), summary[f"left{k}"]


def _keep_outcome(chosen: Chosen, draft: Path) -> Settled:
    """What was chosen among all rows, as JSON values; `_provenance` reads it back."""
    rights = [_keep_right(rows, draft / f"right{k}.arrow") for k, (rows, _) in enumerate(chosen.rights)]
    return {
        "counts": chosen.counts,
        "pushed": None if chosen.pushed is None else str(chosen.pushed),
        "rights": rights,
        "env": {name: expr.to_json(value) for name, value in chosen.env.items()},
        "schema": chosen.schema.serialize().to_pybytes().hex(),
        "whole": chosen.ordinals is None,
        "files": _files(draft),
    }


def _provenance(settled: Settled) -> Provenance:
    env = {name: expr.from_json(value) for name, value in settled["env"].items()}
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(settled["schema"])))
    return Provenance(
        [(what, left) for what, left in settled["counts"]], settled["pushed"], settled["rights"], env, schema
    )


def _write(file: Path, table: pa.Table) -> None:
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.arrow"))


def _keep_right(rows: Fetchable, file: Path) -> dict[str, str]:
    """A joined relation is opened again by name; a computed table is kept."""
    if isinstance(rows, OpenRelation):
        return {"relation": rows.entry.name}
    assert isinstance(rows, ComputedRelation), rows
    table = rows.fetch(np.arange(rows.total, dtype=np.uint64), rows.schema.names)
    _write(file, table)
    return {"table": file.name}
