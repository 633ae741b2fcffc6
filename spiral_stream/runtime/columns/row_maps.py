"""The maps that change which samples there are: filter, flat_map and assemble, window by window.

`through` runs them for the samples of a window. `rows_through` runs them for rows of the relation, whatever the epoch, to
keep what their functions give.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import DataError, SourceError
from spiral_stream.expr import Expr
from spiral_stream.plan.functions.cached_functions import function_of
from spiral_stream.plan.functions.context import Context
from spiral_stream.plan.nodes import Sampled
from spiral_stream.plan.verbs.maps import PART, SampleAssembly, SampleFilter, SampleFlatMap, SampleTokens
from spiral_stream.planner.columns.lineage import LISTS, MASK, REFUSED, Key, Made, identity_keys
from spiral_stream.runtime.columns.functions import assembler, called, finished, pushed
from spiral_stream.runtime.columns.samples import Int64, Lost, SampleReader, Samples, as_lists, lengths_of, names_of
from spiral_stream.runtime.metrics import timed
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sources.arrow.table import no_rows
from spiral_stream.threads import doing


def assemblers(reader: SampleReader, context: Context) -> dict[int, Any]:
    """Make a fresh assembler for each `assemble` of the plan, by the number of its map.

    Raises:
        DataError: an assembler cannot be made, or has no ``push`` or ``finish``.
    """
    return {
        at: assembler(step, context) for at, step in enumerate(reader.stages.maps) if isinstance(step, SampleAssembly)
    }


def through(
    reader: SampleReader, epoch: int, samples: Samples, assemblers: Mapping[int, Any], *, final: bool
) -> tuple[Samples, int, list[Lost]]:
    """Run every filter, flat_map and assemble.

    Returns:
        the samples after them, how many were filtered out, and those that an assembler could not be given.

    Args:
        reader: computes columns.
        epoch: the epoch.
        samples: the samples of a window.
        assemblers: the chapter's, from `assemblers`.
        final: whether this is the chapter's last window.
    """
    dropped, lost = 0, list[Lost]()
    for at, step in enumerate(reader.stages.maps):
        if isinstance(step, SampleFilter):
            with remembering_sample(samples):
                samples_left = _passing(reader, epoch, samples, step, at)
            dropped += len(samples) - len(samples_left)
            samples = samples if len(samples_left) == len(samples) else samples.take(samples_left)
        elif isinstance(step, SampleFlatMap):
            with remembering_sample(samples):
                samples = _fanned(reader, epoch, samples, step, at)
        elif isinstance(step, SampleAssembly):
            with remembering_sample(samples):
                samples = _assembled(reader, epoch, samples, step, at, assemblers[at], lost, final=final)
    return samples, dropped, lost


def _passing(reader: SampleReader, epoch: int, samples: Samples, step: SampleFilter, at: int) -> Int64:
    """Shape [passed], int64: the samples for which a filter is true."""
    keys, mask_key = reader.lineage.test_keys(step, at), Made(MASK, at)
    reader.need(epoch, samples, keys)
    mask: pa.Array
    if mask_key in reader.cached_by:
        mask = as_lists(samples.columns.pop(mask_key))
    elif isinstance(step.predicate, Expr):
        mask = reader.value(samples, step.predicate, step.source, at)
    else:
        mask = reader.called(epoch, samples, step, at)
    passed = mask.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    return np.flatnonzero(passed | reader.refused_by(samples, keys, at))  # refused ones stay: their batch counts them


def rows_through(
    reader: SampleReader, rows: Samples, upto: int, outputs: Sequence[Made], leaves_out: Iterable[int]
) -> list[pa.Array]:
    """Return what maps give for rows of the relation, whatever the epoch: null where a map before leaves the row out.

    Args:
        reader: computes columns.
        rows: S samples without columns.
        upto: how many maps.
        outputs: what is wanted of them: columns, answers of filters, lists of flat_maps.
        leaves_out: the filters and flat_maps that leave out rows.
    """
    samples, alive, found = rows, np.arange(len(rows)), dict[Made, pa.Array]()
    left_out = set(leaves_out)
    for at in range(upto):
        step = reader.stages.maps[at]
        made = [key for key in outputs if key.at == at]
        wanted: list[Key] = [key for key in made if key.name not in (MASK, LISTS, REFUSED)]
        if isinstance(step, SampleFilter | SampleFlatMap) and (made or at in left_out):
            wanted += (
                reader.lineage.test_keys(step, at) if isinstance(step, SampleFilter) else _list_keys(reader, step, at)
            )
        with remembering_sample(samples):
            reader.need(0, samples, wanted)
            for key in made:
                if key.name == REFUSED:  # the last of its map
                    found[key] = _spread(reader.reasons(samples, _inputs(reader, step, at), at), alive, len(rows))
                    continue
                if key not in samples.columns:
                    samples.columns.update(reader.made(0, samples, key))
                found[key] = _spread(as_lists(samples.columns[key]), alive, len(rows))
            passing = _leaving(reader, samples, step, at) if at in left_out else None
        if passing is not None and len(passing) < len(samples):
            samples, alive = samples.take(passing), alive[passing]
    return [found[key] for key in outputs]


def _leaving(reader: SampleReader, samples: Samples, step: Sampled, at: int) -> Int64:
    """The samples that a filter or a flat_map leaves; what it gave is among the columns already, if it is wanted."""
    if isinstance(step, SampleFilter):
        mask = samples.columns.get(Made(MASK, at))
        if isinstance(mask, pa.Array):
            passed = mask.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
            return np.flatnonzero(passed | reader.refused_by(samples, reader.lineage.test_keys(step, at), at))
        return _passing(reader, 0, samples, step, at)
    assert isinstance(step, SampleFlatMap), step
    lists = samples.columns.get(Made(LISTS, at))
    counts = lengths_of(reader.called(0, samples, step, at) if lists is None else lists)
    return np.flatnonzero((counts > 0) | reader.refused_by(samples, _list_keys(reader, step, at), at))


def _inputs(reader: SampleReader, step: Sampled, at: int) -> Sequence[Key]:
    """What a map reads."""
    if isinstance(step, SampleFilter):
        return reader.lineage.test_keys(step, at)
    if isinstance(step, SampleTokens):
        return reader.lineage.keys(step.transform.columns, at)
    function = function_of(step)
    return [] if function is None else reader.lineage.keys(function.columns, at)


def _list_keys(reader: SampleReader, step: SampleFlatMap, at: int) -> list[Key]:
    """What a flat_map reads: what it gave, if that is kept."""
    lists_key = Made(LISTS, at)
    return [lists_key] if lists_key in reader.cached_by else list(reader.lineage.keys(step.function.columns, at))


def _assembled(
    reader: SampleReader,
    epoch: int,
    samples: Samples,
    step: SampleAssembly,
    at: int,
    made_by: Any,
    lost: list[Lost],
    *,
    final: bool,
) -> Samples:
    names = step.function.columns
    keys = reader.lineage.keys(names, at)
    reader.need(epoch, samples, keys)
    why: dict[int, str] | None = None
    if reader.tolerant:  # of samples that cannot be pushed
        texts = reader.reasons(samples, keys, at).to_pylist()
        why = {row: text for row, text in enumerate(texts) if text is not None}
    given = pa.table([as_lists(samples.columns[key]) for key in keys], names=list(names))
    with timed(reader.metrics, "map_s", names_of(reader.stages.maps)[at]), doing(called(step.function)):
        made = [pushed(step, made_by, given, why)] if len(samples) else []
        made += [finished(step, made_by)] if final else []
    if why:
        rows = sorted(why)
        bad = samples.take(np.array(rows))
        before = reader.need_identity(epoch, bad, at)
        bad.columns.update(
            {key: bad.columns[column] for key, column in zip(identity_keys(reader.stages), before, strict=True)}
        )
        lost.append(Lost(bad, [why[row] for row in rows], step.function.name))
    table = pa.concat_tables([no_rows(step.schema()), *made])
    count = len(table)
    nowhere = np.zeros(count, dtype=np.uint64)
    sources = StreamRows(np.zeros(count, dtype=np.int32), nowhere, nowhere)
    columns: dict[Key, Any] = {Made(name, at): table[name].combine_chunks() for name in table.column_names}
    return Samples(sources, np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), columns)


def _fanned(reader: SampleReader, epoch: int, samples: Samples, step: SampleFlatMap, at: int) -> Samples:
    keys = _list_keys(reader, step, at)
    reader.need(epoch, samples, keys)
    found = samples.columns.pop(Made(LISTS, at), None)
    lists: pa.Array = reader.called(epoch, samples, step, at) if found is None else as_lists(found)
    refused = reader.refused_by(samples, keys, at)
    counts = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    counts[refused] = 1  # a part that its batch counts
    if counts.size and counts.max() > step.fan_out:
        row = int(counts.argmax())
        msg = (
            f"flat_map ({step.function.name}): a sample became {counts[row]:,} samples, fan_out is {step.fan_out}. "
            "Raise fan_out, or return fewer"
        )
        raise DataError(msg, row=row)
    parents = np.repeat(np.arange(len(counts)), counts)
    parts = (np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.int32)
    out = samples.take(parents)
    again = out.parts + parts.astype(np.int64) * reader.lineage.fan_out(at + 1)
    made = Samples(out.stream_rows, again, out.origins, out.columns)
    made.columns[Made(step.name, at)] = _parts(lists, refused, parents)
    made.columns[Made(PART, at)] = pa.array(parts)
    return made


def _parts(lists: pa.Array, refused: NDArray[np.bool_], parents: Int64) -> pa.Array:
    """The items of lists, one for each part; null for that of a refused sample."""
    if not refused.any():
        return lists.flatten()
    empty = refused[parents]
    flat = lists.take(pa.array(np.flatnonzero(~refused))).flatten()
    return flat.take(pa.array(np.cumsum(~empty) - 1, mask=empty))


def _spread(values: pa.Array, alive: Int64, count: int) -> pa.Array:
    """Shape [count]: values at these places, null elsewhere."""
    if len(alive) == count:
        return values
    at, missing = np.zeros(count, np.int64), np.ones(count, np.bool_)
    at[alive], missing[alive] = np.arange(len(alive)), False
    return values.take(pa.array(at, mask=missing))


@contextmanager
def remembering_sample(samples: Samples) -> Iterator[None]:
    """Attach the sample itself to an error that carries its row: the maps change which samples there are."""
    try:
        yield
    except SourceError as error:
        if error.row is not None and error.samples is None:
            error.samples = samples.take(np.array([error.row]))
        raise
