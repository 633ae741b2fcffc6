"""Recompute a few cached values when a stream opens, and compare them: a check that does not rely on fingerprints.

A fingerprint covers what a reading of the code shows. A file that a function reads, an environment variable, or a setting
of a library it does not see. So the first pass of a stream calls the functions for a few rows, drawn by the fingerprint,
and refuses values that differ. Cost: at most `ROWS` calls per boundary, no more once `LIMIT_S` seconds have passed, in
worker 0 of rank 0 alone, and the payload of these rows.
"""

from collections.abc import Iterator
from dataclasses import replace
from time import monotonic
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream import seeding
from spiral_stream.errors import CacheError, DataError, SourceError, shown, warn
from spiral_stream.expr import Expr
from spiral_stream.plan.nodes import Sample
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.maps import SampleFilter, SampleFlatMap
from spiral_stream.plan.verbs.mix import STREAM_ID
from spiral_stream.planner.columns.lineage import MASK, REFUSED, Made
from spiral_stream.planner.columns.streams import fetch
from spiral_stream.planner.columns.values import CachedValues
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.row_maps import rows_through
from spiral_stream.runtime.columns.samples import SampleReader, Samples, as_lists
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.threads import doing

ROWS: Final = 4  # computed again, per boundary
LIMIT_S: Final = 1.0  # past which no further row is begun
_QUICK_S: Final = 0.2  # a first row that took less lets the others come in one call
TOLERANCE: Final = 1e-3  # of the largest number of a value: sums of floats differ between machines


def check_cached(stages: Stages, run_seed: int) -> None:
    """Compare a few values of each boundary that is read with what its functions give now.

    Raises:
        CacheError: they differ; names the row, the function, and the ways out.
    """
    for at, cached in enumerate(stages.values):
        if not cached.keys:
            continue
        reader = SampleReader(replace(stages, values=stages.values[:at]), run_seed, Metrics(), processes=False)
        try:
            _check(stages, reader, cached)
        except SourceError as error:
            msg = (
                f"cache: the kept values of {', '.join(dict.fromkeys(cached.boundary.names))} are read and not checked: the rows "
                f"that they were made of cannot be read here ({error}). They are what was kept; check them once where the rows "
                "are, by opening the stream there"
            )
            warn(msg)
        finally:
            reader.close()


def _check(stages: Stages, reader: SampleReader, cached: CachedValues) -> None:
    begun = monotonic()
    drawn = drawn_rows(cached, [stream.selected.total for stream in stages.streams])
    while len(drawn):
        _compare(stages, reader, cached, drawn.take(np.arange(1)))
        drawn, took = drawn.take(np.arange(1, len(drawn))), monotonic() - begun
        if took > LIMIT_S:
            return
        if took < _QUICK_S and len(drawn):
            _compare(stages, reader, cached, drawn)
            return


def drawn_rows(cached: CachedValues, totals: list[int]) -> StreamRows:
    """Return the rows that are computed again: of all streams, drawn by the fingerprints of the values."""
    ends = np.cumsum(totals)
    total = int(ends[-1]) if len(ends) else 0
    key = seeding.key("kept again", *(each.fingerprint for each in cached.values))
    draws = seeding.mix64(np.arange(ROWS, dtype=np.uint64) + np.uint64(key))
    rows = np.unique(draws % np.uint64(total)) if total else np.zeros(0, np.uint64)
    streams = np.searchsorted(ends, rows, side="right").astype(np.int32)
    first = np.concatenate([[0], ends[:-1]]).astype(np.uint64)[streams] if total else rows
    return StreamRows(streams, rows - first, np.zeros(len(rows), np.uint64))


def _compare(stages: Stages, reader: SampleReader, cached: CachedValues, stream_rows: StreamRows) -> None:
    """Compare the values of some rows.

    Raises:
        CacheError: they differ.
        SourceError: the rows cannot be read.
    """
    boundary, samples = cached.boundary, Samples.at(stream_rows)
    outputs = [key for key, _ in boundary.outputs]
    with doing("computing kept values again"):
        try:
            found = rows_through(reader, samples, boundary.end, outputs, boundary.filters)
        except DataError as error:
            one = error.samples if isinstance(error.samples, Samples) else samples.take(np.array([error.row or 0]))
            raise _differing(stages, one, f"the functions fail now ({error}), and their values are kept") from error
    for key, now in zip(outputs, found, strict=True):
        if key not in cached.keys or key.name == REFUSED:  # the words of an error may differ
            continue
        kind = dict(boundary.outputs)[key]
        was = as_lists(cached.read(key, stream_rows, ragged=False))
        for row, (old, new) in enumerate(zip(_values(was, kind), _values(now, kind), strict=True)):
            if not alike(old, new):
                what = f"{_named(stages, key)} gives {shown(new, 80)} now, and {shown(old, 80)} is kept"
                raise _differing(stages, samples.take(np.array([row])), what)


def _values(values: Any, kind: pa.DataType) -> Iterator[Any]:
    array = values if values.type == kind else values.cast(kind)
    yield from array.to_pylist()  # of at most `ROWS` rows


def alike(old: Any, new: Any) -> bool:
    """Whether two values are the same: floats within `TOLERANCE` of the largest number beside them, all else exactly."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(alike(old[name], new[name]) for name in old)
    if isinstance(old, float) and isinstance(new, float):
        return _close(np.array([old]), np.array([new]))
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return False
        if old and all(isinstance(each, float) for each in (*old, *new)):
            return _close(np.array(old), np.array(new))
        return all(alike(a, b) for a, b in zip(old, new, strict=True))
    return bool(old == new)


def _close(old: NDArray[np.float64], new: NDArray[np.float64]) -> bool:
    finite = np.abs(old[np.isfinite(old)])
    most = float(finite.max()) if len(finite) else 0.0
    return bool(np.isclose(old, new, rtol=TOLERANCE, atol=TOLERANCE * most, equal_nan=True).all())


def _named(stages: Stages, key: Made) -> str:
    step = stages.maps[key.at]
    if isinstance(step, SampleFilter) and not isinstance(step.predicate, Expr) and key.name == MASK:
        return f"filter ({step.predicate.name})"
    if isinstance(step, SampleFlatMap):
        return f"flat_map ({step.function.name})"
    function = getattr(step, "function", None)
    return f"column {key.name!r}" if function is None else f"map ({function.name}): column {key.name!r}"


def _differing(stages: Stages, one: Samples, what: str) -> CacheError:
    names = need(stages.plan, Sample).identity
    row = fetch(stages.streams, one.stream_rows, [each for each in names if each != STREAM_ID]).to_pylist()[0]
    who = ", ".join(f"{name}={shown(value)}" for name, value in row.items())
    relation = stages.streams[int(one.stream_rows.streams[0])].base.entry.name
    return CacheError(
        f"cache: {relation}: sample {who}: {what}. Something that it rests on changed and no fingerprint sees it: a file, an "
        'environment variable, a setting of a library, or randomness. Give the function another version (version="2" in its '
        'verb, or __spiral_version__ = "2" on it) and call stream.materialize(), which makes all values again; or restore '
        "what it rested on, so that a row gives what it gave"
    )
