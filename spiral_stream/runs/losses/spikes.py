"""Steps whose mean loss stands out of the steps before them, and who carries it: by stream, by storage shard, by sample.

A step stands out by `baseline`; neighbours that do are one spike. A step with a value that is no number, or infinite, is
one too. The excess of a row is its value less what its stream had before the spike; a group's share is its part of the sum
of all of them, so the shares of a spike's streams sum to 1, as those of its shards do. Where values are not finite, shares
are of how many are not. One scan for all steps; two for the rows of the spikes that are shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.arguments import integer, is_number
from spiral_stream.display.wording import number, share
from spiral_stream.errors import RunError, shown
from spiral_stream.expr import Expr, col
from spiral_stream.runs.losses.baseline import FIRST, LEAST, WINDOW, forecast, grouped, judged
from spiral_stream.runs.losses.step_series import Floats, StepSeries, step_series
from spiral_stream.runs.losses.table_query import RunRows, Sources, column_name, identity_of, with_stream_names
from spiral_stream.runs.losses.way_out import (
    Skip,
    Without,
    filter_of_shard,
    filters_of_samples,
    skip_of_samples,
    skips_of_batches,
)

GAP: Final = 1  # steps between two of one spike
_SAMPLES: Final = 100  # of a spike that are listed
_CARRIES: Final = 0.5  # of the excess: a stream or shard that has as much is named,
_MORE: Final = 2.0  # if its rows have so many times the excess of the others
_MOST_OF_IT: Final = 0.8  # of the excess: the fewest samples that have as much carry it,
_ALL: Final = 0.995
_SEVERAL: Final = 4  # rows of a shard that may be bad as a whole
_FEW: Final = 0.25  # if they are no larger part of the rows
_LIMIT: Final = integer(1, 1_000, "how many spikes, from 1 to 1,000")
_WINDOW: Final = integer(LEAST, 100_000, f"steps of the window before, from {LEAST} to 100,000")

_ROWS: Final = """
WITH found AS (
  SELECT s.spike, r.*, r.v - s.base AS excess, isfinite(r.v) AS finite
  FROM (SELECT * REPLACE (v::DOUBLE AS v) FROM rows WHERE v IS NOT NULL) r
  JOIN spiked s ON r.stream = s.stream AND r.step = s.step
)
"""
_BY_SHARD: Final = """
SELECT spike, stream, shard::BIGINT AS shard, epoch::BIGINT AS epoch, batch, count(*) AS rows,
  coalesce(sum(excess) FILTER (finite), 0) AS excess, count(*) FILTER (NOT finite) AS not_finite,
  coalesce(sum(v) FILTER (finite), 0) AS total
FROM found GROUP BY spike, stream, shard, epoch, batch ORDER BY spike, stream, shard, epoch, batch
"""
_BY_SAMPLE: Final = """
SELECT * FROM (
  SELECT *, row_number() OVER (PARTITION BY spike ORDER BY not_finite DESC, excess DESC, stream, row, part) AS k FROM (
    SELECT spike, stream, min(shard)::BIGINT AS shard, row, part, count(*) AS occurrences,
      coalesce(sum(excess) FILTER (finite), 0) AS excess, favg(v) FILTER (finite) AS mean,
      count(*) FILTER (NOT finite) AS not_finite, min(step) AS first_step
    FROM found GROUP BY spike, stream, row, part
  ) WHERE excess > 0 OR not_finite > 0
) WHERE k <= {limit} ORDER BY spike, k
"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Spike:
    """Steps that follow each other and stand out, and who carries it.

    Attributes:
        first_step: of the run.
        last_step: of the run.
        peak_step: the step that stands out most.
        score: of that step, in robust standard deviations; infinite where a value is not finite.
        mean: of that step; None where no value is finite.
        expected: of that step, from the steps before it; None where there are too few.
        rows: of all its steps, with a value.
        not_finite: of them, how many have a value that is no number, or infinite.
        applied: whether all its steps were trained on.
        batches: (epoch, number) of its batches, as `PreparedStream.ledger` numbers them.
        streams: a row per stream: ``stream``, ``rows``, ``mean``, ``excess``, ``not_finite``, ``share``.
        shards: a row per storage shard: ``stream``, ``shard``, ``name``, and the same.
        samples: those with the largest excess: identity, ``stream``, ``shard``, ``row``, ``part``, ``occurrences``,
            ``mean``, ``excess``, ``not_finite``, ``share``.
        identity: names of the identity columns in ``samples``.
        sources: of the run's streams.

    Examples:
        >>> run = catalog.run("lost", stream)
        >>> for step, batch in enumerate(stream):
        ...     run.log(batch=batch, loss=batch["width"] * (np.nan if step == 2 else 1))
        >>> run.close()
        >>> spike = run.spikes()[0]
        >>> spike.steps_text, spike.not_finite, spike.batches
        ('step 2', 8, ((0, 2),))
        >>> print(spike.skips[0])
        stream.skip(batches=[2], epoch=0)
    """

    first_step: int
    last_step: int
    peak_step: int
    score: float
    mean: float | None
    expected: float | None
    rows: int
    not_finite: int
    applied: bool
    batches: tuple[tuple[int, int], ...]
    streams: pa.Table
    shards: pa.Table
    samples: pa.Table
    identity: tuple[str, ...]
    sources: Sources

    @property
    def skips(self) -> tuple[Skip, ...]:
        """The calls that go on without its batches: ``stream.skip(**each.arguments)``, one for each epoch."""
        return skips_of_batches(self.batches)

    @property
    def culprits(self) -> pa.Table:
        """The fewest of ``samples`` that carry most of it, where that is a small part of its rows; else none."""
        count = self.not_finite
        if not count:
            shares = np.cumsum(self.samples.column("share").fill_null(0.0).to_numpy())
            count = int(np.searchsorted(shares, _MOST_OF_IT - 1e-9)) + 1
        few = count <= min(len(self.samples), max(1, int(_FEW * self.rows)))
        return self.samples.slice(0, count if few else 0)

    @property
    def skip_samples(self) -> Skip | None:
        """The call that goes on without `culprits`; None if there are none."""
        return skip_of_samples(self.culprits, self.identity, mixed=self.sources.mixed)

    @property
    def filters(self) -> tuple[Without, ...]:
        """What leaves its rows out for good: the shards that carry it, where most of their rows do; else `culprits`."""
        culprits = self.culprits
        shards = [row for row in _carrying(self.shards) if row["name"] and self._is_bad(row, culprits)]
        if shards or not len(culprits):
            return tuple(filter_of_shard(self.sources.relation(row["stream"]), row["name"]) for row in shards)
        return filters_of_samples(culprits, self.identity, self.sources)

    def _is_bad(self, shard: Mapping[str, Any], culprits: pa.Table) -> bool:
        """Whether a shard is bad as a whole: several of its rows are there, and no few samples carry it, or half of them."""
        same = pc.and_(
            pc.equal(culprits.column("stream"), shard["stream"]), pc.equal(culprits.column("shard"), shard["shard"])
        )
        found = pc.sum(pc.cast(same, pa.int64())).as_py() or 0
        return shard["rows"] >= _SEVERAL and (not len(culprits) or 2 * found >= shard["rows"])

    @property
    def steps_text(self) -> str:
        """Its steps, in words."""
        if self.first_step == self.last_step:
            return f"step {self.first_step:,}"
        return f"steps {self.first_step:,} to {self.last_step:,}"

    def text(self, value: str) -> str:
        """Return one line on it.

        Examples:
            >>> run = catalog.run("said", stream)
            >>> for step, batch in enumerate(stream):
            ...     run.log(batch=batch, loss=batch["width"] * (np.nan if step == 2 else 1))
            >>> run.close()
            >>> run.spikes()[0].text("loss")
            'step 2: 8 of 8 values of loss are not finite'
        """
        if self.not_finite:
            found = f"{self.not_finite:,} of {self.rows:,} values of {value} are not finite"
        else:
            usual = f"{number(self.expected or 0.0)} ({number(self.score)} deviations)"
            found = f"{value} {number(self.mean or 0.0)}, expected {usual}"
        return f"{self.steps_text}: {found}" + ("" if self.applied else "; not applied")

    def carriers(self) -> list[str]:
        """Return lines on who carries it.

        Examples:
            >>> run = catalog.run("carried", stream)
            >>> for step, batch in enumerate(stream):
            ...     run.log(batch=batch, loss=batch["width"] * (np.nan if step == 2 else 1))
            >>> run.close()
            >>> run.spikes()[0].carriers()
            ['it is spread over its rows: no shard and no few samples carry it']
        """
        out = []
        for what, table in (("stream", self.streams), ("shard", self.shards)):
            for row in _carrying(table) if what == "shard" or self.sources.mixed else ():
                name = row["stream"] if what == "stream" else row["name"] or str(row["shard"])
                of = f" of {row['stream']}" if what == "shard" and self.sources.mixed else ""
                lost = f", {row['not_finite']:,} of them not finite" if row["not_finite"] else ""
                rows = f"{row['rows']:,} of {self.rows:,} rows{lost}"
                out.append(f"{what} {name}{of} carries {_part(row['share'])}: {rows}")
        if count := len(self.culprits):
            carry = "1 sample carries" if count == 1 else f"{count:,} samples carry"
            out.append(f"{carry} {'all' if self.not_finite else 'most'} of it, of {self.rows:,} rows")
        return out or ["it is spread over its rows: no shard and no few samples carry it"]

    def ways_out(self) -> list[str]:
        """Return what to do, as calls.

        Examples:
            >>> run = catalog.run("left", stream)
            >>> for step, batch in enumerate(stream):
            ...     run.log(batch=batch, loss=batch["width"] * (np.nan if step == 2 else 1))
            >>> run.close()
            >>> run.spikes()[0].ways_out()
            ['go on without its batches: stream.skip(batches=[2], epoch=0)']
        """
        lines = [f"go on without its batches: {each}" for each in self.skips]
        if self.skip_samples is not None:
            lines.append(f"or without its samples: {self.skip_samples}")
        return lines + [f"leave them out for good: {each}" for each in self.filters]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Spikes(Sequence[Spike]):
    """The spikes of a run, the largest first: by how far their steps lie above what was expected, summed.

    A sequence of `Spike`; print it, or look at one.

    Attributes:
        run: its name.
        value: which was looked at.
        steps: a row per step: ``step``, ``epoch``, ``rows``, ``mean``, ``expected``, ``score``, ``applied``, ``spike``.
        found: the spikes, the largest first.
        total: how many there are; ``found`` has the largest.
        note: why nothing can be said; empty if it can.
        window: steps before a step whose scatter says how far it may lie off.

    Examples:
        >>> run = catalog.run("quiet", stream)
        >>> for batch in stream:
        ...     run.log(batch=batch, loss=batch["width"] / 1_000)
        >>> run.close()
        >>> spikes = run.spikes()
        >>> len(spikes), spikes.steps["rows"].to_pylist()
        (0, [8, 8, 8, 8, 8, 8])
    """

    run: str
    value: str
    steps: pa.Table
    found: tuple[Spike, ...]
    total: int
    note: str = ""
    window: int = field(default=WINDOW)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, number: Any) -> Any:
        return self.found[number]

    def __str__(self) -> str:
        if self.note:
            return f"run {self.run}: {self.note}"
        head = f"run {self.run}: {self.total:,} spikes of {self.value} in {len(self.steps):,} steps"
        lines = [head if len(self) == self.total else f"{head}; the largest {len(self):,}"]
        for each in self.found:
            lines += [each.text(self.value), *(f"  {line}" for line in [*each.carriers(), *each.ways_out()])]
        return "\n".join(lines)

    __repr__ = __str__


def _part(part: float) -> str:
    """A share in words: others may lie below what was expected, so that one has more than all."""
    return "all of it" if part >= _ALL else share(part, 1)


def _carrying(table: pa.Table) -> list[dict[str, Any]]:
    """The streams or shards that carry half of a spike or more, and more by row than the others do."""
    total, out = pc.sum(table.column("rows")).as_py() or 1, []
    for row in table.to_pylist():
        part, others = row["share"] or 0.0, total - row["rows"]
        if part >= _CARRIES and part * others >= _MORE * (1.0 - part) * row["rows"]:
            out.append(row)
    return out


def find_spikes(
    rows: RunRows,
    value: str = "loss",
    *,
    limit: int = 10,
    window: int = WINDOW,
    lowest: float = 6.0,
) -> Spikes:
    """Return the steps of a run that stand out.

    Args:
        rows: of the run's table.
        value: which was logged.
        limit: how many spikes are looked into: the largest.
        window: steps before a step whose scatter says how far it may lie off.
        lowest: score of a step that stands out, in robust standard deviations.

    Raises:
        RunError: no such value was logged, or an argument is out of range.
    """
    rows.need_value("spikes", value)
    _LIMIT.need("spikes: limit=", limit, RunError)
    _WINDOW.need("spikes: window=", window, RunError)
    if not is_number(lowest) or not lowest > 0:
        msg = f"spikes: lowest={shown(lowest)}. Give a score above 0"
        raise RunError(msg)
    by_stream = step_series(rows, value)
    series = by_stream.all_streams()
    expected, score = _scores(series, lowest, window)
    ranges = grouped(score, lowest, GAP)
    peaks = [first + int(np.argmax(score[first : last + 1])) for first, last in ranges]
    height = _heights(series, expected, score, ranges)
    order = sorted(range(len(ranges)), key=lambda k: (-height[k], ranges[k][0]))[:limit]
    spike = np.full(len(series.step), -1, np.int32)
    for k, (first, last) in enumerate(ranges):
        spike[first : last + 1] = k
    looked = [(ranges[k], peaks[k]) for k in order]
    found = _looked_into(rows, value, by_stream, series, (expected, score), looked, window)
    return Spikes(
        rows.name, value, _steps(series, expected, score, spike), found, len(ranges), _note(value, series), window
    )


def _note(value: str, series: StepSeries) -> str:
    if not len(series.step):
        return f"no row has a {value} yet. Train some steps, and call run.log(batch=batch, {value}=...)"
    if len(series.step) <= FIRST + LEAST and (series.finite == series.rows).all():
        before = f"a step is compared with {FIRST + LEAST} before it"
        return f"{len(series.step):,} steps with a {value} are too few: {before}. Train on"
    return ""


def _scores(series: StepSeries, lowest: float, window: int) -> tuple[Floats, Floats]:
    """What every step was expected to be, and its score: infinite where a value is not finite."""
    means = series.means()
    known = np.flatnonzero(series.finite > 0)
    expected, score = np.full(len(means), np.nan), np.zeros(len(means))
    expected[known], score[known] = judged(means[known], series.finite[known], lowest, window)
    score[series.finite < series.rows] = np.inf
    return expected, score


def _heights(series: StepSeries, expected: Floats, score: Floats, ranges: Sequence[tuple[int, int]]) -> list[float]:
    """How far the steps of spikes lie above what was expected, summed; infinite where a value is not finite."""
    above = np.where(np.isinf(score), np.inf, np.nan_to_num(series.means() - expected))
    return [float(above[first : last + 1].sum()) for first, last in ranges]


def _steps(series: StepSeries, expected: Floats, score: Floats, spike: NDArray[np.int32]) -> pa.Table:
    means = series.means()
    return pa.table(
        {
            "step": series.step,
            "epoch": series.epoch,
            "rows": series.rows,
            "mean": pa.array(means, mask=np.isnan(means)),
            "expected": pa.array(expected, mask=np.isnan(expected)),
            "score": score,
            "applied": series.applied,
            "spike": pa.array(spike, mask=spike < 0),
        }
    )


# ---- who carries it


def _looked_into(
    rows: RunRows,
    value: str,
    by_stream: StepSeries,
    series: StepSeries,
    judged: tuple[Floats, Floats],
    looked: Sequence[tuple[tuple[int, int], int]],
    window: int,
) -> tuple[Spike, ...]:
    """Return the spikes, given as places in ``series``: first, last and peak."""
    if not looked:
        return ()
    spiked = pa.concat_tables(
        [_bases(k, by_stream, series, judged[0], bounds, window) for k, (bounds, _) in enumerate(looked)]
    )
    where = _in_steps([(int(series.step[first]), int(series.step[last])) for (first, last), _ in looked])
    columns = {name: name for name in ("stream", "shard", "row", "part", "step", "epoch", "batch")} | {"v": value}
    shards = rows.answer(_ROWS + _BY_SHARD, rows.reader(columns, by_stream.streams, where), spiked=spiked)
    text = _ROWS + _BY_SAMPLE.format(limit=_SAMPLES)
    samples = rows.answer(text, rows.reader(columns, by_stream.streams, where), spiked=spiked)
    samples = identity_of(rows, by_stream.streams, samples)
    means = series.means()
    out = []
    for k, ((first, last), peak) in enumerate(looked):
        carried = with_stream_names(shards.filter(pc.equal(shards.column("spike"), k)), by_stream.streams)
        lost, gained = pc.sum(carried.column("not_finite")).as_py(), pc.sum(carried.column("excess")).as_py()
        here = samples.filter(pc.equal(samples.column("spike"), k)).drop_columns(["spike", "k", "first_step"])
        by_shard = _shared(carried, ["stream", "shard"], lost, gained)
        names = [rows.sources.shard_name(row["stream"], row["shard"]) for row in by_shard.to_pylist()]
        batches = {(row["epoch"], row["batch"]) for row in carried.select(["epoch", "batch"]).to_pylist()}
        out.append(
            Spike(
                first_step=int(series.step[first]),
                last_step=int(series.step[last]),
                peak_step=int(series.step[peak]),
                score=float(judged[1][peak]),
                mean=None if np.isnan(means[peak]) else float(means[peak]),
                expected=None if np.isnan(judged[0][peak]) else float(judged[0][peak]),
                rows=int(series.rows[first : last + 1].sum()),
                not_finite=lost,
                applied=bool(series.applied[first : last + 1].all()),
                batches=tuple(sorted(batches)),
                streams=_shared(carried, ["stream"], lost, gained),
                shards=by_shard.add_column(2, "name", pa.array(names, pa.utf8())),
                samples=here.append_column("share", _shares(here, lost, gained)),
                identity=tuple(column_name(name) for name in rows.identity),
                sources=rows.sources.with_streams(by_stream.streams),
            )
        )
    return tuple(out)


def _bases(
    k: int, by_stream: StepSeries, series: StepSeries, expected: Floats, bounds: tuple[int, int], window: int
) -> pa.Table:
    """What the streams had before a spike, for the pairs of stream and step that are in it: ``stream, step, spike, base``."""
    first, last = int(series.step[bounds[0]]), int(series.step[bounds[1]])
    pairs = np.flatnonzero((by_stream.step >= first) & (by_stream.step <= last))
    means, base = by_stream.means(), np.full(len(by_stream.streams), np.nan)
    overall = expected[bounds[0]]
    if np.isnan(overall):  # in the first steps, or in one without a finite value
        before = series.means()[max(0, bounds[0] - window) : bounds[0]]
        before = before[np.isfinite(before)]
        overall = np.median(before) if len(before) else 0.0
    for stream in np.unique(by_stream.stream[pairs]).tolist():
        begin, end = np.searchsorted(by_stream.stream, [stream, stream + 1])
        at = begin + int(np.searchsorted(by_stream.step[begin:end], first))
        before = means[max(begin, at - window) : at]
        found = forecast(before[np.isfinite(before)])
        base[stream] = overall if np.isnan(found) else found
    taken = by_stream.pairs().take(pa.array(pairs))
    spike = pa.array(np.full(len(pairs), k, np.int32))
    return taken.append_column("spike", spike).append_column("base", pa.array(base[by_stream.stream[pairs]]))


def _in_steps(ranges: Sequence[tuple[int, int]]) -> Expr:
    first, *others = (col("step").between(begin, end) for begin, end in ranges)
    for each in others:
        first = first | each
    return first


def _shared(carried: pa.Table, keys: list[str], lost: int, gained: float) -> pa.Table:
    """Sum a spike's rows by some keys, the largest share first."""
    sums = [(name, "sum") for name in ("rows", "total", "excess", "not_finite")]
    found = pa.TableGroupBy(carried, keys, use_threads=False).aggregate(sums)
    found = found.rename_columns([name.removesuffix("_sum") for name in found.column_names])
    finite = pc.subtract(found.column("rows"), found.column("not_finite"))
    mean = pc.if_else(pc.greater(finite, 0), pc.divide(found.column("total"), pc.cast(finite, pa.float64())), None)
    found = found.select([*keys, "rows", "excess", "not_finite"]).add_column(len(keys) + 1, "mean", mean)
    found = found.append_column("share", _shares(found, lost, gained))
    return found.sort_by([("share", "descending"), *((key, "ascending") for key in keys)])


def _shares(table: pa.Table, lost: int, gained: float) -> pa.Array:
    """Parts of the excess, or of the values that are not finite; null where neither is above 0."""
    name, total = ("not_finite", float(lost)) if lost else ("excess", gained)
    if not total > 0:
        return pa.nulls(len(table), pa.float64())
    return pc.divide(pc.cast(table.column(name), pa.float64()), total)
