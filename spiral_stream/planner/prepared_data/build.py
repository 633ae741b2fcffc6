"""Build the caches of a lowered plan for the rows that its selections need, and report how far each is built."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from spiral_stream.cache.kinds.kind import Kind
from spiral_stream.cache.materialize import build
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.derived.work.executors import Executor
from spiral_stream.display.progress import Progress, Report, in_rows, working
from spiral_stream.errors import warn
from spiral_stream.plan.functions.cached_functions import function_of
from spiral_stream.plan.nodes import Sample
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.maps import SampleAssembly
from spiral_stream.plan.verbs.mix import STREAM_ID
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.planner.field_stages import FieldStage
from spiral_stream.planner.stages import Stages, TokenStage


@final
@dataclass(frozen=True, slots=True, eq=False)
class CacheWork:
    """One cache of one stream."""

    payload: Payload
    kind: Kind
    store: CacheStore
    field: str  # of the batch, or the column that a map adds


@final
@dataclass(frozen=True, slots=True)
class CacheStatus:
    """How far one cache of a stream is built; from `PreparedStream.caches`.

    Attributes:
        field: the batch field that the cache serves, or the token column that a ``map`` adds.
        relation: the relation that holds the source bytes.
        column: the column of that relation.
        form: what is stored per row: the profile, ``"video index"``, or the integer type of tokens.
        fingerprint: 32 hex digits over relation, column, form and code version; it names the folder.
        folder: where the cache lies on disk.
        rows: rows that the stream reads of the relation.
        built: how many of those rows the cache holds.
        payload_bytes: bytes of payload in the cache, of rows that other streams read too.

    Examples:
        >>> image = spiral.Stack("image", decode="jpeg", transforms=[spiral.transforms.Resize((16, 16))])
        >>> kept = photos.cache(image=spiral.profiles.Jpeg(shorter_side=18)).sample(order=shuffle)
        >>> status = kept.collate(batch_size=8, fields={"image": image}).to_numpy().caches()[0]
        >>> status.column, status.built, status.rows
        ('image', 0, 48)
    """

    field: str
    relation: str
    column: str
    form: str
    fingerprint: str
    folder: Path
    rows: int
    built: int
    payload_bytes: int

    @property
    def complete(self) -> bool:
        """Whether the cache holds every row that the stream reads."""
        return self.built == self.rows


def caches(stages: Stages) -> Iterator[CacheWork]:
    """Yield the caches of a plan, each once per stream; fields that share one count as the last of them."""
    for k in range(len(stages.streams)):
        shared = {stage.caches[k].kind.fingerprint: stage for stage in stages.fields if stage.caches}
        readers: list[FieldStage | TokenStage] = [*shared.values(), *stages.tokens]
        for stage in readers:
            if stage.caches:
                cache = stage.caches[k]
                yield CacheWork(cache.payload, cache.kind, cache.store, stage.name)


def built(work: CacheWork) -> int:
    """Count the rows that a stream reads and its cache holds. Reads no payload."""
    covered = work.store.covered(committed=True)
    return sum(
        int(covered[shard.key][shard.offsets.astype(np.int64)].sum())
        for shard in work.payload.needed()
        if shard.key in covered
    )


def needed(work: CacheWork) -> int:
    """Count the rows that a stream reads of the relation that holds the payload."""
    return sum(len(shard.offsets) for shard in work.payload.needed())


def status(work: CacheWork) -> CacheStatus:
    """Return how far a cache is built. Reads its ledger and no payload.

    Raises:
        DamageError: the ledger is not what was written; says who mends it.
    """
    kind = work.kind
    return CacheStatus(
        field=work.field,
        relation=kind.relation,
        column=kind.column,
        form=kind.form,
        fingerprint=kind.fingerprint,
        folder=work.store.folder,
        rows=needed(work),
        built=built(work),
        payload_bytes=sum(entry.bytes for entry in work.store.ledger.entries()),
    )


def is_built(stages: Stages, tokens: TokenStage) -> bool:
    """Whether a token column is cached for every row that the plan keeps."""
    works = [work for work in caches(stages) if work.field == tokens.name]
    return bool(works) and all(built(work) == needed(work) for work in works)


def materialize(
    stages: Stages,
    threads: int,
    executor: Executor,
    report: Callable[[Progress], None] | None = None,
    *,
    more: bool = False,
    then: Callable[[Report | None], Progress] | None = None,
) -> Progress:
    """Build the caches of a stream for the rows it needs.

    Args:
        stages: the lowered plan.
        threads: threads that decode and encode.
        executor: that is in force (`building_with`).
        report: called with what is done so far; None shows it on a terminal.
        more: whether the caller goes on with something else, so that it is no surprise if there is nothing here.
        then: builds what the runtime makes; called with what its builds tell.

    Warns:
        SpiralWarning: the plan has nothing that can be kept.
    """
    works = list(caches(stages))
    with working("materialize", hidden=report is not None):
        columns = _keep_columns(stages)
        if not works and not columns and not more and not stages.values:
            warn(_no_cache(stages))
        done = Progress()
        for work in works:
            rows = work.payload.needed()
            done += build(work.payload.relation, work.kind, work.store, rows, threads, report, executor)
        if then is not None:
            done += then(in_rows(report))
    return done


def _keep_columns(stages: Stages) -> list[str]:
    """Keep the columns that batches read and that are too large to be kept without being asked; returns which."""
    stored = need(stages.plan, Sample).schema().names
    read = dict.fromkeys([*stages.columns, *(name for stage in stages.sequences for name in stage.field.columns)])
    out: list[str] = []
    for stream in stages.streams:
        names = [name for name in read if name in stored and name != STREAM_ID and name not in stream.selected.narrow]
        if names:
            with working(f"keeping columns {', '.join(names)} of {stream.base.entry.name}"):
                out += stream.selected.narrow.build(names)
    return out


def _no_cache(stages: Stages) -> str:
    """Say why a plan has no cache, and what to do instead."""
    steps = [(step, function_of(step)) for step in stages.maps]
    verbs = {"keep": "filter", "map_records": "map"}
    found = [f"{verbs.get(step.VERB, step.VERB)} {each.name}" for step, each in steps if each is not None]
    drawn = [function.name for _, function in steps if function is not None and function.random]
    with_index = [function.name for _, function in steps if function is not None and function.with_index]
    cached_by = "tokens of a stored text column, and values of functions before a .cache() that comes after sample"
    computed = [f"{each.name} is made of {each.column!r}, which the plan computes" for each in stages.tokens]
    if any(not isinstance(step, SampleAssembly) and each is not None and each.of_the_row for step, each in steps):
        refusal = f"what a Python function makes is not kept unless the plan asks for it ({', '.join(found)})"
        why = "; ".join([refusal, *computed])
        way_out = "Put .cache() after the functions: .map(f, ...).cache()"
    elif found:
        why = f"{', '.join(found)} cannot be kept: " + (
            f"{', '.join(drawn)} draws random numbers"
            if drawn
            else f"{', '.join(with_index)} takes the place of a sample in the epoch"
            if with_index
            else "an assembler sees samples of a chapter, not rows"
        )
        way_out = "Nothing can be built; batches call the functions"
    else:
        why = "; ".join(computed) or "no field decodes, and nothing is tokenized"
        way_out = "Nothing needs to be built: batches read the relation's own columns"
        if computed:
            way_out = "Register rows that hold it as a column, and read that: catalog.register(name, Arrow(table), identity=...)"
    return f"materialize: nothing is built: {why}. A cache keeps decoded images, clips, {cached_by}. {way_out}"
