"""Plan -> stage list: open the relation, settle the selection, compile the fields.

Preparing reads only small columns. What is costly (the selection, the identity
index) is kept under its fingerprint and the data versions, beside the caches, and
memory-mapped by every rank that comes after.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from spiral_stream.batching.fixed import FixedBatches
from spiral_stream.cache.materialize import Progress, ShardWork, build
from spiral_stream.cache.prefix import Prefix
from spiral_stream.cache.store import CacheStore
from spiral_stream.catalog.registry import Catalog
from spiral_stream.errors import CacheError, PlanError
from spiral_stream.fields.stack import Stack
from spiral_stream.plan import nodes
from spiral_stream.plan.fields import field_spec, image_parts
from spiral_stream.plan.fingerprint import canonical, fingerprint
from spiral_stream.plan.profiles import Profile, Source
from spiral_stream.plan.tree import base_scan, need, profiles, walk
from spiral_stream.planner.physical import ImageStage, PlainStage, Stages
from spiral_stream.planner.selected import Workplace, select
from spiral_stream.sampling.order import Population

CACHE_ENV: Final = "SPIRAL_CACHE"


def cache_root(catalog: Catalog) -> Path:
    """Where caches, selections and indexes lie: ``$SPIRAL_CACHE``, else beside the catalog."""
    return Path(os.environ.get(CACHE_ENV) or catalog.root / "prepared")


def lower(plan: nodes.Deliver, catalog: Catalog) -> Stages:
    """Make the stage list of a plan.

    Raises:
        PlanError: the plan cannot run, for example since no row survives.
        SourceError: a relation cannot be read, or changed since registration.
        CacheError: the prepared folder cannot be written.
    """
    sample, collate = need(plan, nodes.Sample), need(plan, nodes.Collate)
    scan = base_scan(sample)
    named = [name for each in walk(sample) for name in _relations(each)]
    versions = {name: catalog.entry(name).data_version for name in named}
    base = catalog.entry(scan.relation).open()
    place = Workplace(cache_root(catalog), lambda name: catalog.entry(name).open(), versions)
    selected = select(sample, base, place)
    if selected.total == 0:
        steps = "; ".join(f"{what}: {left:,} rows left" for what, left in selected.counts)
        msg = f"sample: no row of {scan.relation} is left ({steps}). Loosen the filter, or register other data"
        raise PlanError(msg)
    if not set(base.entry.identity) <= set(sample.identity) or not base.entry.identity_unique:
        selected.require_unique(sample.identity)
    whole = fingerprint(plan)
    _keep_plan(place.root, whole, canonical(plan))
    have, declared = collate.schema(), profiles(sample)
    plains, images = [], []
    for name, field in collate.fields:
        spec = field_spec(name, field, have.field(field.column))
        if isinstance(field, Stack) and field.decode is not None:
            decoder, program = image_parts(field)
            profile = declared.get(field.column, Source())
            assert isinstance(profile, Profile)
            prefix = Prefix(scan.relation, field.column, decoder, profile)
            store = CacheStore(place.root / "caches" / prefix.fingerprint, prefix.facts())
            images.append(ImageStage(name, field.column, spec, prefix, store, program))
        else:
            plains.append(PlainStage(name, field, spec))
    unit_rows, unit_shards = selected.units()
    index = selected.index(sample.identity) if sample.order.needs_index else None
    return Stages(
        plan=plan,
        fingerprint=whole,
        canonical=canonical(plan),
        data_versions=versions,
        base=base,
        selected=selected,
        order=sample.order,
        population=Population(unit_rows, unit_shards, "", index),
        batches=FixedBatches(selected.total, collate.batch_size, sample.assignment.lanes, collate.last),
        identity=sample.identity,
        plains=tuple(plains),
        images=tuple(images),
        warnings=(base.manifest.shard_note,) if base.manifest.shard_note else (),
    )


def _relations(node: nodes.Node) -> tuple[str, ...]:
    """The relations of the catalog that a node reads itself."""
    if isinstance(node, nodes.Scan):
        return (node.relation,)
    return node.relations if isinstance(node, nodes.Sql) else ()


def materialize(stages: Stages, threads: int, report: Callable[[Progress], None] | None = None) -> Progress:
    """Build the caches of a stream for the rows it needs.

    Args:
        stages: the lowered plan.
        threads: decoding threads.
        report: told what is done so far; None draws a progress bar.
    """
    manifest = stages.base.manifest
    works = [
        ShardWork(
            manifest.shard_names[i].as_py(),
            manifest.content_keys[i].as_py(),
            int(manifest.starts[i]),
            int(manifest.shard_rows[i]),
            offsets,
        )
        for i in range(len(manifest.shard_names))
        if len(offsets := stages.selected.offsets_of_shard(i))
    ]
    done = Progress(0, 0, 0, 0, 0, 0)
    for image in {image.prefix.fingerprint: image for image in stages.images}.values():
        if report is not None:
            made = build(stages.base, image.prefix, image.store, works, threads, report)
        else:
            made = _with_bar(stages, image, works, threads)
        done = Progress(*(a + b for a, b in zip(_tuple(done), _tuple(made), strict=True)))
    return done


def _tuple(progress: Progress) -> tuple[int, ...]:
    return tuple(getattr(progress, name) for name in progress.__slots__)


def _with_bar(stages: Stages, image: ImageStage, works: list[ShardWork], threads: int) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, transient=True) as bar:
        task = bar.add_task(f"cache {stages.base.entry.name}.{image.column} as {image.prefix.profile}", total=None)
        return build(
            stages.base,
            image.prefix,
            image.store,
            works,
            threads,
            lambda p: bar.update(task, completed=p.rows, total=p.rows_total),
        )


def _keep_plan(root: Path, name: str, plan: Any) -> None:
    """Keep the canonical plan under its fingerprint, so that a later mismatch can be shown as a diff."""
    path = root / "plans" / f"{name}.json"
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(plan))
        draft.replace(path)
    except OSError as error:
        msg = f"prepare: cannot write under {root} ({error.strerror}); make it writable, or set ${CACHE_ENV} to another folder"
        raise CacheError(msg) from error


def saved_plan(catalog: Catalog, name: str) -> Any | None:
    """The canonical plan kept under a fingerprint, or None."""
    path = cache_root(catalog) / "plans" / f"{name}.json"
    return json.loads(path.read_text()) if name.isalnum() and path.exists() else None
