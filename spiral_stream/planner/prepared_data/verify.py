"""Read every derived file of a stream or a relation, and compare it with what was written.

Seals and sums were made when the files were: caches are verified by their sums, everything else by its seal. A version of
a cache whose builder was killed before it noted the digest counts apart. A damaged part of a cache is marked, so that the
next `materialize` builds it again; what is small is built again by the next stream that opens it.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

from spiral_stream.cache.store import ledger
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.catalog.registry import Registry
from spiral_stream.derived.kinds.column_facts import ColumnFacts
from spiral_stream.derived.kinds.identities import Identities
from spiral_stream.derived.kinds.selected_rows import Survivors
from spiral_stream.derived.part import verify_file
from spiral_stream.display.progress import Report, working
from spiral_stream.errors import DamageError, SpiralWarning
from spiral_stream.integrity import seal
from spiral_stream.integrity.one_look import files_below
from spiral_stream.plan import nodes
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.fan_out_join import owned_by_right_side
from spiral_stream.plan.verbs.mix import per_stream
from spiral_stream.planner.made_relations import FACTS, FOLDER, ROWS, need_sound_rows
from spiral_stream.planner.prepared_data.build import caches
from spiral_stream.planner.prepared_data.folder import cache_root
from spiral_stream.planner.selection.by_shard import Outcome, Probed
from spiral_stream.planner.selection.find import selection_folder
from spiral_stream.planner.stages import Stages

SOUND: Final = "sound"
UNVERIFIED: Final = "unverified"
DAMAGED: Final = "damaged"
_ASIDE: Final = ".damaged-"  # what was set aside is nobody's
Others = Callable[[], Iterable[tuple[Path, str, Callable[[], object]]]]


@final
@dataclass(frozen=True, slots=True)
class Checked:
    """One derived file, or one part of a cache with its payload.

    Examples:
        >>> {each.state for each in stream.verify().files} <= {"sound", "unverified", "damaged"}
        True
    """

    path: Path
    what: str  # which cache, or which kind of file
    bytes: int
    state: str  # "sound", "unverified" (its builder was killed before it noted the digest) or "damaged"
    found: str  # what is wrong with it, and the way out


@final
@dataclass(frozen=True, slots=True)
class Verification:
    """What was found in all derived files.

    Examples:
        >>> stream.verify().damaged
        ()
    """

    files: tuple[Checked, ...]
    live_bytes: int  # of caches
    dead_bytes: int  # of caches, until the next build removes them

    @property
    def damaged(self) -> tuple[Checked, ...]:
        """The files that are not what was written."""
        return tuple(each for each in self.files if each.state == DAMAGED)


@final
@dataclass(frozen=True, slots=True)
class _Task:
    path: Path
    what: str
    check: Callable[[], object]  # False: nobody noted what it has to be
    bytes: int


def verify_stream(
    plan: nodes.Deliver, catalog: Registry, lower: Callable[[], Stages], others: Others, report: Report | None = None
) -> Verification:
    """Verify what a stream reads besides its relations: selections and what was made of them, and caches.

    Args:
        plan: the stream's.
        catalog: where its relations are registered.
        lower: gives the stages of the plan.
        others: gives files that the runtime keeps: path, what it is, and a check.
        report: called with what is done so far.
    """
    tasks: list[_Task] = []
    for folder in _selections(plan, catalog):  # before the plan is lowered, which mends them
        tasks += list(_sealed(folder, "selection"))
    rosters = sorted((cache_root(catalog) / "derived").glob("*/*/roster.*"))
    tasks += [_Task(path, "roster of pieces", partial(seal.verify, path), _size(path)) for path in rosters]
    tasks += list(_selected(cache_root(catalog)))
    tasks += list(_relations(cache_root(catalog)))
    found = _run(tasks, report)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpiralWarning)  # what is mended now was reported above
        stages = lower()
        stores = {work.store.folder: work.store for work in caches(stages)}
        more = [_Task(path, what, check, _size(path)) for path, what, check in others()]
        columns = (each for stream in stages.streams for each in stream.selected.narrow.pieces())
        opened_pieces = [*columns, *(each for values in stages.values for each in values.pieces())]
        pieces = dict.fromkeys(path for each in opened_pieces for path in each.files())
        more += [_Task(path, "kept column", partial(verify_file, path), _size(path)) for path in pieces]
    made = _stores(stores.values(), more, report)
    return Verification((*found, *made.files), made.live_bytes, made.dead_bytes)


def verify_relation(name: str, catalog: Registry, report: Report | None = None) -> Verification:
    """Verify the caches of a relation, of whichever plan."""
    return _stores(relation_caches(name, catalog), [], report)


def relation_caches(name: str, catalog: Registry) -> list[CacheStore]:
    """Return the caches of a relation; of one whose facts cannot be read nobody knows whose it is."""
    out = []
    for file in sorted((cache_root(catalog) / "caches").glob("*/cache.json")):
        with suppress(DamageError):
            facts = seal.read_json(file)
            if facts.get("relation") == name:
                out.append(CacheStore(file.parent, {key: facts[key] for key in facts if key != "seal"}))
    return out


def _selections(plan: nodes.Deliver, catalog: Registry) -> Iterator[Path]:
    sample = need(plan, nodes.Sample)
    versions = {name: entry.data_version for name, entry in catalog.relations.entries().items()}
    for _, node in per_stream(sample.source):
        for each in (node, owned_by_right_side(node, sample.identity)):
            if each is not None:
                yield selection_folder(each, cache_root(catalog), versions)


def _stores(stores: Iterable[CacheStore], tasks: list[_Task], report: Report | None) -> Verification:
    live = dead = 0
    for store in stores:
        tasks += list(_cache(store))
        with suppress(DamageError):
            usage = store.usage()
            live, dead = live + usage.live_bytes, dead + usage.dead_bytes
    return Verification(tuple(_run(tasks, report)), live, dead)


def _cache(store: CacheStore) -> Iterator[_Task]:
    facts = store.folder / "cache.json"
    what = f"cache {store.facts.get('relation', '')}.{store.facts.get('column', '')} {store.folder.name[:8]}"
    if facts.exists():
        yield _Task(facts, what, partial(seal.verify, facts), _size(facts))
    manifest = store.newest()
    if manifest is not None:
        yield _Task(manifest, what, store.verify_newest, _size(manifest))
    for path in store.ledger.files():
        yield _Task(path, what, partial(ledger.read, path), _size(path))
        with suppress(DamageError):
            entry = ledger.read(path)
            part = None if entry is None else store.part(entry)
            if entry is not None and part is not None and not store.parts.is_away(entry.path.name, part.data):
                yield _Task(part.data, what, part.verify, _size(part.data) + _size(part.blob))


def _sealed(folder: Path, what: str) -> Iterator[_Task]:
    for path in sorted(files_below(folder)):
        if not any(name.startswith((_ASIDE, ".")) for name in path.relative_to(folder).parts):
            yield _Task(path, what, partial(seal.verify, path), _size(path))


def _selected(root: Path) -> Iterator[_Task]:
    """Pieces that selections are made of, of whichever stream: others share them."""
    alone = (Identities.KIND, ColumnFacts.KIND)
    for kind in (Survivors.KIND, Probed.KIND, Outcome.KIND, *alone):
        folder = root / "derived" / kind
        for path in [*sorted(folder.glob("*/derivation.json")), *sorted(folder.glob("*/parts/[!.]*"))]:
            yield _Task(path, kind if kind in alone else f"selection: {kind}", partial(verify_file, path), _size(path))


def _relations(root: Path) -> Iterator[_Task]:
    """Derived relations, of whichever stream: what they were made of says who needs them."""
    for folder in sorted((root / FOLDER).glob("[!.]*")):
        yield _Task(folder / FACTS, "derived relation", partial(seal.verify, folder / FACTS), _size(folder / FACTS))
        if (folder / ROWS).is_dir():
            size = sum(map(_size, files_below(folder / ROWS)))
            yield _Task(folder / ROWS, "rows of a derived relation", partial(need_sound_rows, folder), size)


def _run(tasks: list[_Task], report: Report | None) -> list[Checked]:
    total, done, out = sum(task.bytes for task in tasks), 0, []
    with working(f"verifying {len(tasks):,} derived files", "bytes", total, report=report) as tell:
        tell(0, total)
        for task in tasks:
            state, found = UNVERIFIED, ""
            try:
                state = UNVERIFIED if task.check() is False else SOUND
            except DamageError as error:
                state, found = DAMAGED, str(error)
            done += task.bytes
            tell(done, total)
            out.append(Checked(task.path, task.what, task.bytes, state, found))
    return out


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
