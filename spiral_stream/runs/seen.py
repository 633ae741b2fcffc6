"""What a run saw: samples, tokens and passes of each stream, counted from its legs.

Batches of a fixed size are counted by arithmetic where nothing of them is skipped or refused: without a mixture from their
number, with one from the mixture's own counts. All others are drawn, many a call, without payload (about a million samples
a second and core). Tokens are those that the formation counted, or stored lengths; where only the text says how many there
are, they are not known.

A sample that could not be read is not seen: the quarantine says which, as far as this catalog has it. Rows that only fill a
batch are no samples. A sample that is delivered twice counts twice, also where `PadPartial` repeats it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.tail import DropPartial, PadPartial, fills_with_value
from spiral_stream.display.progress import working
from spiral_stream.explain.figure import Figure
from spiral_stream.explain.text import Explained, Explanation
from spiral_stream.planner.columns.lineage import Key, Lengths, Made
from spiral_stream.planner.prepared_data.build import is_built
from spiral_stream.planner.state.rebase import ALONE
from spiral_stream.runs.leg import Leg
from spiral_stream.runs.manifest import SeenManifest, manifest_of
from spiral_stream.runs.opened_leg import Delivered, NotApplied, OpenedLeg, OpenedLegs, lacking_of
from spiral_stream.runs.rows_seen import identities_of
from spiral_stream.runtime.columns.samples import lengths_of

Int64 = NDArray[np.int64]
UNKNOWN: Final = "not known"
_STEP: Final = 1 << 20  # batches whose sizes are summed at a time


@final
@dataclass(frozen=True, slots=True)
class StreamSeen:
    """What a run saw of one stream.

    Attributes:
        stream: its name in a mixture; of a plan without one, the relation's.
        relation: that its rows are of.
        rows: rows that pass the plan's filters and joins.
        samples: delivered, each as often as it was.
        tokens: of them as delivered; None where they are not known.
        applied: samples of batches that were trained on.
        applied_tokens: of them; None where they are not known.
        refused: samples that could not be read, so that no batch held them. They are not among ``samples``.

    Examples:
        >>> batches = list(stream)
        >>> stream.seen().streams[0].relation
        'photos'
    """

    stream: str
    relation: str
    rows: int
    samples: int = 0
    tokens: int | None = 0
    applied: int = 0
    applied_tokens: int | None = 0
    refused: int = 0

    @property
    def passes(self) -> float:
        """Samples per row."""
        return self.samples / self.rows if self.rows else 0.0


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SeenSamples(Explained):
    """What a run saw; printing it shows a table. Made by `PreparedStream.seen`.

    Attributes:
        streams: what was seen of each stream.
        batches: global batches that were delivered.
        not_recorded: what nothing is known of, in words; empty if all is recorded.
        legs: what it was counted from.

    Examples:
        >>> loop = iter(stream)
        >>> first, second = next(loop), next(loop)
        >>> loop.close()
        >>> stream.seen().samples
        16
    """

    streams: tuple[StreamSeen, ...]
    batches: int
    not_recorded: tuple[str, ...]
    legs: tuple[Leg, ...]
    _opening: Callable[[], OpenedLegs]
    _not_applied: NotApplied = ()

    @property
    def samples(self) -> int:
        """Samples delivered, over all streams."""
        return sum(each.samples for each in self.streams)

    @property
    def applied(self) -> int:
        """Samples trained on, over all streams."""
        return sum(each.applied for each in self.streams)

    @property
    def tokens(self) -> int | None:
        """Tokens delivered, over all streams; None where they are not known of one."""
        return _sum([each.tokens for each in self.streams])

    @property
    def applied_tokens(self) -> int | None:
        """Tokens trained on, over all streams; None where they are not known of one."""
        return _sum([each.applied_tokens for each in self.streams])

    def to_arrow(self) -> pa.Table:
        """Return one row per stream.

        Examples:
            >>> stream.seen().to_arrow().column_names[:4]
            ['stream', 'relation', 'rows', 'samples']
        """
        rows = [{**_fields(each), "passes": each.passes} for each in self.streams]
        whole = ("rows", "samples", "tokens", "applied", "applied_tokens", "refused")
        kinds = [
            ("stream", pa.utf8()),
            ("relation", pa.utf8()),
            *((n, pa.int64()) for n in whole),
            ("passes", pa.float64()),
        ]
        return pa.Table.from_pylist(rows, pa.schema(kinds))

    def identities(self, *, applied: bool = False) -> pa.Table:
        """Return the rows that were seen, each once, with how often; draws the batches.

        Args:
            applied: leave out what was delivered and not trained on.

        Returns:
            ``relation``, the columns of the identity, and ``times``; relations one after the other, each by its rows' order.

        Examples:
            >>> stream.take(1)[0]["id"][0] in stream.seen().identities()["photo_id"].to_pylist()
            False
        """
        with self._opening() as opened:
            return identities_of(self.legs, opened, self._not_applied if applied else ())

    def manifest(self) -> SeenManifest:
        """Return a record of what was seen: plan, data, ranges of batches, edits, counts, and a root over all identities.

        Examples:
            >>> manifest = stream.seen().manifest()
            >>> sorted(manifest.to_dict())[:3]
            ['batches', 'data', 'edits']
        """
        with self._opening() as opened:
            return manifest_of(self.legs, opened, [_fields(each) for each in self.streams], self.not_recorded)

    def explanation(self) -> Explanation:
        """Return the facts as EXPLAIN shows facts: sections of words and tables."""
        return Explanation({"seen": self._facts(), "not recorded": list(self.not_recorded) or "none: all is recorded"})

    def _facts(self) -> dict[str, Any]:
        apart = self.applied != self.samples
        refused = any(each.refused for each in self.streams)
        rows = [_row(each, apart=apart, refused=refused) for each in self.streams]
        if len(rows) > 1:
            total = StreamSeen(
                "total",
                "",
                sum(each.rows for each in self.streams),
                self.samples,
                self.tokens,
                self.applied,
                self.applied_tokens,
                sum(each.refused for each in self.streams),
            )
            rows.append({**_row(total, apart=apart, refused=refused), "passes": "", "rows": ""})
        return {"batches": Figure(self.batches, "batches"), "epochs": _epochs(self.legs), "streams": rows}


def seen(legs: Sequence[Leg], opening: Callable[[], OpenedLegs], not_applied: NotApplied = ()) -> SeenSamples:
    """Count what legs delivered.

    Args:
        legs: in the order of the run.
        opening: makes what opens them; called again by methods of the result that draw batches.
        not_applied: batches that were delivered and not trained on.

    Raises:
        ResumeError: a state is damaged, or not of its plan.
        CatalogError: the catalog does not know a plan, or the data that a state is of.
    """
    tally = _Tally(not_applied)
    unrecorded = [_unknown(leg, before) for before, leg in pairwise((None, *legs)) if leg is not None and not leg.known]
    total = sum(leg.batches for leg in legs)
    with opening() as opened, working(f"count what was seen: {total:,} batches", "batches", total) as tell:
        for leg in legs:
            if leg.known and (leg.batches or not tally.streams):
                found = opened.of(leg)
                unrecorded += _before_rebase(found)
                tally.add(found, tell.advance)
    notes = tuple(dict.fromkeys(unrecorded))
    return SeenSamples(tuple(tally.streams.values()), tally.batches, notes, tuple(legs), opening, not_applied)


@final
class _Tally:
    """Counts of streams while legs are added."""

    def __init__(self, not_applied: NotApplied) -> None:
        self.streams: dict[tuple[str, str], StreamSeen] = {}
        self.batches = 0
        self._not_applied = not_applied

    def add(self, found: OpenedLeg, tell: Callable[[int], object]) -> None:
        stages = found.stages
        keys = [(each.name or each.base.entry.name, each.base.entry.name) for each in stages.streams]
        for key, stream in zip(keys, stages.streams, strict=True):
            before = self.streams.get(key, StreamSeen(*key, 0))
            self.streams[key] = replace(before, rows=stream.selected.total)
        self.batches += max(0, found.end - found.leg.first)
        lacking, lengths = lacking_of(found, self._not_applied), token_keys(found)
        if _by_arithmetic(found) and not lengths:
            none = np.zeros(len(keys), dtype=np.int64)
            counts, out = _counted(found), none
            for each in _only(found, lacking):
                out = out + _per_stream(each, each.begins, len(keys))
            tokens = None if stages.sequences else none
            self._enter(keys, _Counts(counts, tokens, counts - out, tokens, none))
            tell(found.end - found.leg.first)
            return
        for each in found.delivered():
            tokens = token_counts(found, each, lengths)
            used = ~np.isin(found.numbers(each.batches), lacking)
            self._enter(keys, _counts_of(each, tokens, used, len(keys)))
            tell(each.end - each.first)

    def _enter(self, keys: Sequence[tuple[str, str]], more: "_Counts") -> None:
        """Add counts of each stream, shape [K], to those of its name."""
        for k, key in enumerate(keys):
            before = self.streams[key]
            self.streams[key] = replace(
                before,
                samples=before.samples + int(more.samples[k]),
                tokens=_plus(before.tokens, more.tokens, k),
                applied=before.applied + int(more.applied[k]),
                applied_tokens=_plus(before.applied_tokens, more.applied_tokens, k),
                refused=before.refused + int(more.refused[k]),
            )


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    """Counts of each stream, shape [K] each; tokens are None where they are not known."""

    samples: Int64
    tokens: Int64 | None
    applied: Int64
    applied_tokens: Int64 | None
    refused: Int64


def _counts_of(delivered: Delivered, tokens: Int64 | None, used: NDArray[np.bool_], streams: int) -> _Counts:
    """The counts of some batches.

    Args:
        delivered: their samples.
        tokens: of each sample, shape [S].
        used: whether its batch was trained on, shape [S].
        streams: how many there are.
    """
    every = np.ones(len(used), dtype=np.bool_)
    known = [None if tokens is None else _per_stream(delivered, where, streams, tokens) for where in (every, used)]
    samples = [_per_stream(delivered, delivered.begins & where, streams) for where in (every, used)]
    return _Counts(samples[0], known[0], samples[1], known[1], delivered.refused)


def _per_stream(delivered: Delivered, where: NDArray[np.bool_], streams: int, weights: Int64 | None = None) -> Int64:
    """How many samples are of each stream, or the sum of their weights: shape [S] -> [K]."""
    of = delivered.samples.stream_rows.streams[where]
    counted = np.bincount(of, weights=None if weights is None else weights[where], minlength=streams)
    return counted.astype(np.int64)


def _plus(before: int | None, more: Int64 | None, k: int) -> int | None:
    return None if before is None or more is None else before + int(more[k])


# ---- by arithmetic


def _by_arithmetic(found: OpenedLeg) -> bool:
    """Whether the samples of each stream follow from the numbers of the batches alone."""
    return found.stages.formation is None and not found.saved.skips.lacks_samples and not found.refusals


def _counted(found: OpenedLeg) -> Int64:
    """Samples of each stream in the batches of a leg, of fixed batches: shape [K]."""
    first, end = found.leg.first, max(found.leg.first, found.end)
    batches = found.stages.batches_of(found.epoch)
    mixture, complete = found.stages.epochs.mixture, batches.total // batches.batch_size
    if mixture is None:
        return np.array([_sizes(found, first, end)])
    out = np.zeros(len(found.stages.streams), dtype=np.int64)
    if batches.lanes.count == 1 and not found.saved.skips.batches:
        until = min(end, complete)
        if until > first:
            size = batches.batch_size
            out += _of_mixture(found, until * size) - _of_mixture(found, first * size)
        first = max(first, until)
    while first < end:
        stop = min(end, first + found.at_a_time)
        positions = [_positions(found, number) for number in found.numbers(np.arange(first, stop)).tolist()]
        out += np.bincount(mixture.split(found.epoch, np.concatenate(positions))[0], minlength=len(out))
        first = stop
    return out


def _positions(found: OpenedLeg, number: int) -> NDArray[np.uint64]:
    """The positions of a batch that hold samples."""
    batches = found.stages.batches_of(found.epoch)
    positions, filler = batches.positions(number), batches.filler(number)
    return positions if filler is None else np.delete(positions, filler)


def _of_mixture(found: OpenedLeg, position: int) -> Int64:
    """Samples of each stream before a position of the epoch: shape [K]."""
    mixture, epoch = found.stages.epochs.mixture, found.epoch
    assert mixture is not None
    return mixture.taken(epoch, position)


def _sizes(found: OpenedLeg, first: int, end: int) -> int:
    """Samples of batches [first, end) of one stream."""
    batches, last = found.stages.batches_of(found.epoch), found.stages.batches.last
    size = batches.batch_size
    full = isinstance(last, DropPartial) or (isinstance(last, PadPartial) and not fills_with_value(last))
    if full:
        return (end - first) * size
    total = 0
    if not found.saved.skips.batches:  # all but the last one or two are full
        until = max(first, min(end, batches.total // size))
        total, first = (until - first) * size, until
    for begin in range(first, end, _STEP):
        numbers = found.numbers(np.arange(begin, min(end, begin + _STEP)))
        total += int(np.clip(batches.total - numbers * size, 0, size).sum())
    return total


# ---- by drawing


def token_keys(found: OpenedLeg) -> list[Key]:
    """Return the columns that say how many tokens samples have, without payload; empty where nothing but the text says it."""
    stages, reader = found.stages, found.opened.reader
    names = sorted({stage.field.column for stage in stages.sequences})
    keys = [reader.lineage.length_key(name) for name in names]
    built = {stage.name for stage in stages.tokens if is_built(stages, stage)}
    known = [
        isinstance(key, Lengths) or (isinstance(key, Made) and (key in stages.cached or key.name in built))
        for key in keys
    ]
    return list(keys) if known and all(known) else []


def token_counts(found: OpenedLeg, delivered: Delivered, keys: Sequence[Key]) -> Int64 | None:
    """Return the tokens of each sample: shape [S]; None where they are not known."""
    if delivered.lengths is not None:
        return delivered.lengths
    if not found.stages.sequences:
        return np.zeros(len(delivered.samples), dtype=np.int64)
    if not keys:
        return None
    found.opened.reader.for_counting().need(found.epoch, delivered.samples, keys)
    return np.sum([lengths_of(delivered.samples.columns[key]) for key in keys], axis=0)  # type: ignore[no-any-return]  # int64


def _only(found: OpenedLeg, numbers: Int64) -> Iterator[Delivered]:
    """The samples of some batches of a leg, by their numbers."""
    for number in numbers.tolist():
        at = found.saved.skips.delivered(found.epoch, number)
        if at is not None and found.leg.first <= at < found.end:
            yield from found.delivered(at, at + 1)


# ---- words


def _unknown(leg: Leg, before: Leg | None) -> str:
    """What a leg that is not recorded leaves unknown, after the one before it."""
    if leg.attempt:
        return f"epoch {leg.epoch:,} of attempt {leg.attempt}: not recorded"
    if leg.first:
        return (
            f"epoch {leg.epoch:,} from batch {leg.first:,} on: not recorded. A state from before its end would say more"
        )
    if before is not None:
        to = f", to the end of epoch {leg.epoch:,}" if leg.epoch > before.epoch else ""
        more = "States from before their ends" if to else "A state from before its end"
        return f"epoch {before.epoch:,} from batch {before.end:,} on{to}: not recorded. {more} would say more"
    what = "epoch 0" if not leg.epoch else f"epochs 0 to {leg.epoch:,}"
    return f"{what}: not recorded. A state knows its own epoch; give a state of each, or keep a run's history: catalog.run(...)"


def _before_rebase(found: OpenedLeg) -> list[str]:
    """What the plan before a rebase delivered of the same epoch."""
    rebase = found.saved.rebase
    if found.leg.attempt or rebase is None or rebase.epoch != found.leg.epoch or rebase.left_over(ALONE) is None:
        return []
    return [
        f"epoch {rebase.epoch:,} before the rebase: not recorded. The last state of the plan before it says what that was"
    ]


def _epochs(legs: Sequence[Leg]) -> str:
    known = [leg for leg in legs if leg.known and leg.batches]
    if not known:
        return "none"
    spans: dict[int, list[tuple[int, int]]] = {}
    for leg in known:
        spans.setdefault(leg.epoch, []).append((leg.first, leg.end))
    words = [
        f"{epoch:,} (batches {min(a for a, _ in of):,} to {max(b for _, b in of) - 1:,})" for epoch, of in spans.items()
    ]
    return ", ".join(words[:3]) + (f", and {len(words) - 3:,} more" if len(words) > 3 else "")  # noqa: PLR2004  of a line


def _row(of: StreamSeen, *, apart: bool, refused: bool) -> dict[str, Any]:
    def tokens(count: int | None) -> Any:
        return UNKNOWN if count is None else Figure(count, "tokens")

    has = of.tokens is None or of.tokens
    row: dict[str, Any] = {
        "stream": of.stream,
        "rows": Figure(of.rows, "rows"),
        "samples": Figure(of.samples, "samples"),
    }
    row |= {"tokens": tokens(of.tokens)} if has else {}
    row["passes"] = Figure(of.passes, "passes", form=".3g")
    if apart:
        row["samples applied"] = Figure(of.applied, "samples")
        row |= {"tokens applied": tokens(of.applied_tokens)} if has else {}
    if refused:
        row["could not be read"] = Figure(of.refused, "samples")
    return row


def _fields(of: StreamSeen) -> Mapping[str, Any]:
    return {name: getattr(of, name) for name in StreamSeen.__slots__}


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [each for each in counts if each is not None]
    return sum(known) if len(known) == len(counts) else None
