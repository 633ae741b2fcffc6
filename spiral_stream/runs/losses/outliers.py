"""Samples whose loss stands out among those of the same step and stream, over all epochs.

Each occurrence is compared with the samples of its stream in the same step: its distance to their median, measured by how
far the others lie apart. With few samples in a step, neighbouring steps of the stream are taken together. The score of a
sample is the mean over its occurrences, with one usual occurrence added, so that one surprise weighs less than several.

The distance (docs/decisions/0083) is in robust standard deviations: 1.4826 times the median of the absolute deviations, or
what 99 % stay below divided by 2.326, whichever is larger, since losses have one long tail. It is cut at `MOST`, so that no
single occurrence decides, and summed as a whole number, so that the order of rows does not matter. A value that is no number
counts as infinite. Five scans of the table; one sort, which spills.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import integer, is_number
from spiral_stream.display.wording import number, one_line
from spiral_stream.errors import RunError, shown
from spiral_stream.runs.losses.step_series import Floats, Int64, StepSeries, step_series
from spiral_stream.runs.losses.table_query import STREAM, RunRows, Sources, column_name, identity_of, with_stream_names
from spiral_stream.runs.losses.way_out import Skip, Without, filters_of_samples, skip_of_samples

MOST: Final = 100.0  # robust standard deviations of one occurrence
MIDDLE_ROWS: Final = 16  # samples of a median: fewer in a step, and its neighbours join it
SCALE_ROWS: Final = 1_024  # and of how far they lie apart
_MAD: Final = 1.4826  # of normal values, the standard deviation over the median absolute deviation
_TAILS: Final = (
    (512, 0.99, 2.3263),
    (40, 0.95, 1.6449),
)  # from so many samples on: a share, and what of normal values has it
_LEAST_SCALE: Final = 0.01  # of the stream's usual one
_UNIT: Final = 65_536  # parts of a standard deviation that sums count
_SHARDS: Final = 10
_USUAL: Final = 3  # deviations that a row counts at most for its shard, so that one row does not decide
_ALONE: Final = 8  # usual rows that are added to those of a shard

_LIMIT: Final = integer(1, 100_000, "how many samples, from 1 to 100,000")
_LEAST: Final = integer(1, None, "how many occurrences, from 1 up")

_SCORED: Final = """
WITH scored AS (
  SELECT r.stream, r.shard, r.row, r.part, r.step, n.centre, r.v, isfinite(r.v) AS finite,
    CASE WHEN isnan(r.v) THEN {most} WHEN n.scale > 0 THEN greatest(-{most}, least({most}, (r.v - n.centre) / n.scale))
         WHEN r.v > n.centre THEN {most} WHEN r.v < n.centre THEN -{most} ELSE 0 END AS z
  FROM (SELECT stream, shard, row, part, step, v::DOUBLE AS v FROM rows WHERE v IS NOT NULL) r
  JOIN norms n ON r.stream = n.stream AND r.step = n.step
), counted AS (
  SELECT *, CAST(round(z * {unit}) AS BIGINT) AS units,
    CAST(round(CASE WHEN finite THEN greatest(-1e6, least(1e6, v - centre)) ELSE 1e6 END * 4096) AS BIGINT) AS excess
  FROM scored
)
"""
_SAMPLES: Final = """
SELECT *, count(*) OVER () AS standing_out FROM (
  SELECT stream, min(shard)::BIGINT AS shard, row, part, count(*) AS occurrences,
    sum(units) / {unit}.0 / (count(*) + 1) AS score, favg(v) FILTER (finite) AS mean, favg(centre) AS expected,
    count(*) FILTER (NOT finite) AS not_finite, min(step) AS first_step, max(step) AS last_step, sum(excess) AS excess
  FROM counted GROUP BY stream, row, part
  HAVING count(*) >= {least} AND sum(units) / {unit}.0 / (count(*) + 1) >= {lowest}
) ORDER BY score DESC, excess DESC, stream, row, part LIMIT {limit}
"""
_BY_SHARD: Final = """
SELECT stream, shard::BIGINT AS shard, count(*) AS rows,
  sum(least(units, {usual} * {unit})) / {unit}.0 / (count(*) + {alone}) AS score,
  favg(v) FILTER (finite) AS mean, favg(centre) AS expected, count(*) FILTER (NOT finite) AS not_finite
FROM counted GROUP BY stream, shard HAVING sum(least(units, {usual} * {unit})) > 0
ORDER BY score DESC, stream, shard LIMIT {limit}
"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Outliers:
    """Samples of a run that stand out, the most conspicuous first. Print it; a notebook shows it.

    Attributes:
        run: its name.
        value: which was looked at.
        table: a row per sample: identity, ``stream``, ``shard``, ``row``, ``part``, ``occurrences``, ``score``, ``mean`` of
            the value, ``expected`` (of the samples around it), ``not_finite`` occurrences, ``first_step``, ``last_step``.
        shards: the storage shards whose rows lie highest on average: ``stream``, ``shard``, ``rows``, ``score``, ``mean``,
            ``expected``, ``not_finite``.
        standing_out: how many samples reached the score; the table has the first ones.
        steps: how many steps were compared.
        identity: names of the identity columns in ``table``.
        sources: of the run's streams.
        note: why there is nothing to compare; empty if there is.

    Examples:
        >>> run = catalog.run("noted", stream)
        >>> for batch in stream:
        ...     run.log(batch=batch, loss=batch["width"] / 1_000)
        >>> run.close()
        >>> found = run.outliers()
        >>> len(found), found.table.column_names[:3]
        (0, ['photo_id', 'stream', 'shard'])
    """

    run: str
    value: str
    table: pa.Table
    shards: pa.Table
    standing_out: int
    steps: int
    identity: tuple[str, ...]
    sources: Sources
    note: str = ""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def skip(self) -> Skip | None:
        """The call that goes on without them: ``stream.skip(**found.skip.arguments)``; None if there are none."""
        return skip_of_samples(self.table, self.identity, mixed=self.sources.mixed)

    @property
    def filters(self) -> tuple[Without, ...]:
        """What leaves them out for good: ``relation.filter(each.condition)``, one for each stream."""
        return filters_of_samples(self.table, self.identity, self.sources)

    def rows(self) -> list[dict[str, str]]:
        """Return the table as texts.

        Examples:
            >>> run = catalog.run("texts", stream)
            >>> for batch in stream:
            ...     run.log(batch=batch, loss=batch["width"] / 1_000)
            >>> run.close()
            >>> run.outliers().rows()
            []
        """
        return [
            {
                **{name: one_line(str(row[name])) for name in self.identity if row[name] is not None},
                **({STREAM: row[STREAM]} if self.sources.mixed else {}),
                "shard": self.sources.shard_name(row["stream"], row["shard"]) or str(row["shard"]),
                "score": number(row["score"]),
                self.value: "NaN" if row["mean"] is None else number(row["mean"]),
                "expected": number(row["expected"]),
                "occurrences": f"{row['occurrences']:,}",
                "steps": f"{row['first_step']:,} to {row['last_step']:,}",
            }
            for row in self.table.to_pylist()
        ]

    def __str__(self) -> str:
        head = f"run {self.run}: {self.standing_out:,} samples stand out in {self.value}, of {self.steps:,} steps"
        if self.note:
            return f"run {self.run}: {self.note}"
        lines = [head if len(self) == self.standing_out else f"{head}; the first {len(self):,}"]
        lines += ["  " + "  ".join(f"{name} {text}" for name, text in row.items()) for row in self.rows()]
        if self.skip is not None:
            lines += [f"go on without them: {self.skip}"]
            lines += [f"leave them out for good: {each}" for each in self.filters]
        return "\n".join(lines)

    __repr__ = __str__


def find_outliers(
    rows: RunRows, value: str = "loss", *, limit: int = 25, least: int = 1, lowest: float = 3.0
) -> Outliers:
    """Return the samples of a run that stand out.

    Args:
        rows: of the run's table.
        value: which was logged.
        limit: how many samples the table has at most.
        least: occurrences that a sample needs.
        lowest: score that a sample needs, in robust standard deviations.

    Raises:
        RunError: no such value was logged, or an argument is out of range.
    """
    rows.need_value("outliers", value)
    _LIMIT.need("outliers: limit=", limit, RunError)
    _LEAST.need("outliers: least=", least, RunError)
    if not is_number(lowest) or not 0 < lowest < MOST:
        msg = f"outliers: lowest={shown(lowest)}. Give a score above 0 and below {MOST:g}"
        raise RunError(msg)
    series = step_series(rows, value)
    norms = _norms(rows, value, series)
    terms = {
        "most": MOST,
        "unit": _UNIT,
        "least": least,
        "lowest": float(lowest),
        "limit": limit,
        "alone": _ALONE,
        "usual": _USUAL,
    }
    columns = {name: name for name in ("stream", "shard", "row", "part", "step")} | {"v": value}
    found = rows.answer((_SCORED + _SAMPLES).format(**terms), rows.reader(columns, series.streams), norms=norms)
    terms["limit"] = _SHARDS
    shards = rows.answer((_SCORED + _BY_SHARD).format(**terms), rows.reader(columns, series.streams), norms=norms)
    standing_out = found.column("standing_out")[0].as_py() if len(found) else 0
    identity = tuple(column_name(name) for name in rows.identity)
    return Outliers(
        run=rows.name,
        value=value,
        table=identity_of(rows, series.streams, found.drop_columns(["standing_out", "excess"])),
        shards=with_stream_names(shards, series.streams),
        standing_out=standing_out,
        steps=len(np.unique(series.step)),
        identity=identity,
        sources=rows.sources.with_streams(series.streams),
        note=_note(value, series, norms),
    )


def _note(value: str, series: StepSeries, norms: pa.Table) -> str:
    if not len(series.step):
        return f"no row has a {value} yet. Train some steps, and call run.log(batch=batch, {value}=...)"
    if not len(norms):
        return (
            f"{int(series.rows.sum()):,} values of {value} in {len(np.unique(series.step)):,} steps are too few to compare: a "
            f"stream needs {MIDDLE_ROWS}, most of them finite. Train on"
        )
    return ""


# ---- what is usual


def _norms(rows: RunRows, value: str, series: StepSeries) -> pa.Table:
    """Return the median and the scale of every stream in every step: ``stream, step, centre, scale``; those that have one."""
    middle = windows(series.rows, series.stream, MIDDLE_ROWS)
    count = int(middle[-1]) + 1 if len(middle) else 0
    firsts = np.searchsorted(middle, np.arange(count))
    held = np.bincount(middle, weights=series.rows, minlength=count).astype(np.int64)
    wide = windows(held, series.stream[firsts], SCALE_ROWS)
    wide_of = wide[middle] if count else middle
    centre, scale = np.full(count, np.nan), np.full(count, np.nan)
    windowed = series.pairs().append_column("c", pa.array(middle)).append_column("s", pa.array(wide_of))
    for groups, chunk in _in_windows(rows, value, series, windowed):
        _measure(groups, chunk, wide, centre, scale)
    usual = np.full(len(series.streams), np.nan)
    for stream in range(len(series.streams)):
        scales = scale[(series.stream[firsts] == stream) & np.isfinite(scale)] if count else scale
        usual[stream] = np.median(scales) if len(scales) else np.nan
    least = _LEAST_SCALE * usual[series.stream]
    table = series.pairs().append_column("centre", pa.array(centre[middle]))
    table = table.append_column("scale", pa.array(np.maximum(scale[middle], least)))
    enough = held[middle] >= MIDDLE_ROWS
    return table.filter(pa.array(enough & np.isfinite(centre[middle]) & np.isfinite(scale[middle])))


def windows(rows: Int64, stream: NDArray[np.int32], least: int) -> Int64:
    """Take neighbouring steps of a stream together, until they have enough rows; a short rest joins those before it.

    Args:
        rows: [N], positive: of the steps, sorted by stream.
        stream: [N].
        least: rows of a window.

    Returns:
        [N], ascending from 0: the window of the step.
    """
    starts = np.zeros(len(rows), np.bool_)
    for begin, end in _runs(stream):
        ends = np.cumsum(rows[begin:end])
        at = 0
        while at < end - begin:  # once for a window
            before = ends[at - 1] if at else 0
            if at and ends[-1] - before < least:
                break
            starts[begin + at] = True
            at = int(np.searchsorted(ends, before + least)) + 1
    return np.cumsum(starts) - 1


def _runs(values: NDArray[Any]) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(values)) + 1
    bounds = [0, *edges.tolist(), len(values)]
    return ((a, b) for a, b in pairwise(bounds) if b > a)


def _in_windows(rows: RunRows, value: str, series: StepSeries, windowed: pa.Table) -> Iterator[tuple[Int64, Floats]]:
    """Yield values with the number of their window of a median; windows of a scale are never cut."""
    text = (
        "SELECT w.s AS s, w.c AS c, r.v::DOUBLE AS v FROM rows r JOIN windowed w ON r.stream = w.stream AND r.step = w.step "
        "WHERE r.v IS NOT NULL ORDER BY w.s"
    )
    reader = rows.reader({"stream": "stream", "step": "step", "v": value}, series.streams)
    left: pa.Table | None = None
    for batch in rows.answer_in_parts(text, reader, windowed=windowed):
        here = pa.Table.from_batches([batch])
        here = here if left is None else pa.concat_tables([left, here])
        wide = here.column("s").to_numpy()
        cut = int(np.searchsorted(wide, wide[-1])) if len(wide) else 0
        if cut:
            yield here.column("c").to_numpy()[:cut], here.column("v").to_numpy()[:cut]
        left = here.slice(cut)
    if left is not None and len(left):
        yield left.column("c").to_numpy(), left.column("v").to_numpy()


def _measure(groups: Int64, values: Floats, wide: Int64, centre: Floats, scale: Floats) -> None:
    """Write the medians and scales of some windows, all of whose values are here."""
    values = np.where(np.isnan(values), np.inf, values)
    found, medians = _medians(values, groups)
    centre[found] = medians
    with np.errstate(invalid="ignore"):
        residuals = values - centre[groups]
    known = np.isfinite(centre[groups])
    residuals, scopes = residuals[known], wide[groups[known]]
    if not len(scopes):
        return
    numbers, spread = _medians(np.abs(residuals), scopes)
    order = np.lexsort((residuals, scopes))
    begins, ends = np.searchsorted(scopes[order], numbers), np.searchsorted(scopes[order], numbers, side="right")
    upper = np.zeros(len(numbers))
    for least, share, deviations in reversed(_TAILS):
        tail = residuals[order][begins + np.ceil(share * (ends - begins)).astype(np.int64) - 1] / deviations
        upper = np.where((ends - begins >= least) & np.isfinite(tail), tail, upper)
    at = np.searchsorted(numbers, wide[found])
    at = np.minimum(at, len(numbers) - 1)
    hit = numbers[at] == wide[found]
    scale[found[hit]] = np.maximum(_MAD * spread, upper)[at[hit]]


def _medians(values: Floats, groups: Int64) -> tuple[Int64, Floats]:
    """Return the groups, ascending, and the median of the values of each; no value is NaN."""
    order = np.lexsort((values, groups))
    ordered, names = values[order], groups[order]
    found, begins, counts = np.unique(names, return_index=True, return_counts=True)
    low, high = ordered[begins + (counts - 1) // 2], ordered[begins + counts // 2]
    with np.errstate(invalid="ignore"):
        return found, np.where(low == high, low, 0.5 * low + 0.5 * high)
