"""What the batches of an epoch look like: the first windows are formed as the run would form them, and measured.

Batches are drawn as the run numbers them, from all lanes, apart from those of the run. What they are compared with (the same
samples in their order) needs the windows too: for the first chapter, the plan's formation is wrapped in one that passes every
window on and records it. Only lengths and small columns are read; if batches depend on anything else, the answer says what
would have to be built first. Cost: about 10 ms per window of 8,192 samples, for eight windows that are recorded and 64 of
which batches are drawn.
"""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.budget import BatchLimits, limits_of, too_large, truncated
from spiral_stream.batching.cutting import cut
from spiral_stream.batching.formation import (
    Composition,
    Formation,
    Former,
    Int64,
    Left,
    Membership,
    OversizeTally,
    Setting,
    Window,
)
from spiral_stream.batching.windowed import WindowedBucket
from spiral_stream.errors import DataError, PlanError
from spiral_stream.explain.figure import FigureSource, marked
from spiral_stream.plan.verbs.maps import SampleFilter
from spiral_stream.planner.columns.lineage import Lengths, Stored
from spiral_stream.runtime.forming.batches import FormedBatches
from spiral_stream.runtime.forming.chapter import Chapter
from spiral_stream.runtime.forming.inputs import Forming
from spiral_stream.runtime.numbering.numbering import BatchStore

SAMPLES: Final = 1 << 16  # in windows that are recorded, if the chapter has as many
DRAWN: Final = 1 << 19  # in batches that are drawn: a chapter of common size, whose last batches are not like its first

# S samples, J batches, K streams


@final
@dataclass(eq=False, slots=True)
class Seen:
    """The windows that a former was given, and the batches that it returned."""

    setting: Setting
    former: Former
    windows: list[Window] = field(default_factory=list)
    batches: list[Membership] = field(default_factory=list)
    joined: int = 0  # samples of all windows


@final
class _Watched(Former):
    """A former that records what it does."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    @property
    def tally(self) -> OversizeTally:  # type: ignore[override]  # the interface's is an attribute
        return self._seen.former.tally

    @property
    def room(self) -> int:
        return self._seen.former.room

    def form(self, window: Window, *, final: bool) -> list[Membership]:
        self._seen.windows.append(window)
        self._seen.joined += len(window.samples)
        formed = self._seen.former.form(window, final=final)
        self._seen.batches += formed
        return formed

    def left(self) -> Left:
        return self._seen.former.left()


@final
class _Watching(Formation):
    """A formation whose formers record what they do."""

    def __init__(self, formation: Formation) -> None:
        self.window_size, self.length = formation.window_size, formation.length
        self.seen: list[Seen] = []
        self._formation = formation

    @property
    def needs_lengths(self) -> bool:
        return self._formation.needs_lengths

    @property
    def key_texts(self) -> tuple[str, ...]:
        return self._formation.key_texts

    @property
    def cost_names(self) -> tuple[str, ...]:
        return self._formation.cost_names

    def with_composition(self, composition: Composition | None) -> Formation:
        return _Watching(self._formation.with_composition(composition))

    def former(self, setting: Setting) -> Former:
        self.seen.append(Seen(setting, self._formation.former(setting)))
        return _Watched(self.seen[-1])


@final
@dataclass(frozen=True, eq=False, slots=True)
class FirstBatches:
    """The first J batches of an epoch, and the windows of its first chapter in lane 0."""

    formation: Formation
    setting: Setting  # of the first chapter
    windows: list[Window]  # of the first chapter
    formed: list[Membership]  # of these windows
    positions: int  # of the epoch, that the windows took
    batches: list[Membership]
    streams: list[NDArray[np.int32]]  # of each batch: the stream of each sample; with packing, of each piece
    keys: list[tuple[NDArray[Any], ...]]  # of each batch of clips, or of one shape: the bucket keys of its samples
    tally: OversizeTally
    filtered: int  # samples that filters left out
    is_complete: bool  # whether these are all batches of the epoch

    @property
    def source(self) -> FigureSource:
        """Of the figures of these batches."""
        name = "all batches" if self.is_complete else f"the first {len(self.batches):,} batches"
        return FigureSource(name, marked(self.is_complete))

    @property
    def joined(self) -> int:
        """Samples of the windows."""
        return sum(len(window.samples) for window in self.windows)

    @property
    def samples(self) -> Int64:
        """Samples that begin in each batch; shape [J]."""
        return np.array([np.count_nonzero(begins(batch)) for batch in self.batches], dtype=np.int64)

    def estimated(self, total: int) -> int:
        """Return about how many batches ``total`` positions make."""
        share = max(0, self.joined - self.tally.dropped) / max(1, self.positions)
        return round(total * share / max(1.0, float(self.samples.mean()))) if self.batches else 0

    @property
    def rows(self) -> Int64:
        """Rows of each batch; shape [J]."""
        return np.array([batch.rows for batch in self.batches], dtype=np.int64)

    @property
    def widths(self) -> Int64:
        """T of each batch, 0 if no field has a length; shape [J]."""
        return np.array([batch.width for batch in self.batches], dtype=np.int64)

    @property
    def tokens(self) -> Int64:
        """Tokens of each batch without padding; shape [J]."""
        return np.array([_total(batch) for batch in self.batches], dtype=np.int64)

    @property
    def cells(self) -> int:
        """Tokens of all batches with padding."""
        return int((self.rows * self.widths).sum())

    def limits(self) -> BatchLimits | None:
        """Return the limits of every batch; None for a packing."""
        if not isinstance(self.formation, WindowedBucket):
            return None
        return limits_of(self.formation.budget, self.setting)

    def formed_by(self, formation: Formation) -> list[Membership]:
        """Return the batches that another formation makes of the recorded windows, as if the chapter ended with them.

        Raises:
            DataError: a sample is above the other budget.
            PlanError: the other budget holds no sample.
        """
        former = formation.former(self.setting)
        joined = _joined_all(self.windows)
        batches: list[Membership] = []
        at, size = 0, len(joined.samples)
        while at < size:
            begin, at = at, min(size, at + former.room)
            batches += former.form(_part(joined, slice(begin, at)), final=at == size)
        return batches

    def unsorted(self) -> tuple[int, int] | None:
        """Return tokens without and with padding if batches were as long as they may be, in order; None without lengths."""
        limits = self.limits()
        if limits is None or limits.additive or any(window.lengths is None for window in self.windows):
            return None
        lengths = np.concatenate([np.empty(0, np.int64), *map(_held, self.windows, [limits] * len(self.windows))])
        if not len(lengths):
            return None
        ends = cut(len(lengths), lengths, (), limits)
        longest = np.maximum.reduceat(lengths, ends[:-1])
        return int(lengths.sum()), int((np.diff(ends) * limits.widths(longest)).sum())


def _joined_all(windows: list[Window]) -> Window:
    """The recorded windows as one."""
    lengths = [window.lengths for window in windows]
    known = [each for each in lengths if each is not None]
    return Window(
        np.concatenate([window.samples for window in windows]),
        np.concatenate([window.streams for window in windows]),
        np.concatenate(known, axis=-1) if len(known) == len(windows) else None,
        tuple(np.concatenate(each) for each in zip(*(window.keys for window in windows), strict=True)),
        tuple(np.concatenate(each) for each in zip(*(window.costs for window in windows), strict=True)),
    )


def _part(window: Window, part: slice) -> Window:
    return Window(
        window.samples[part],
        window.streams[part],
        None if window.lengths is None else window.lengths[..., part],
        tuple(each[part] for each in window.keys),
        tuple(each[part] for each in window.costs),
    )


def _total(batch: Membership) -> int:
    return 0 if batch.lengths is None else int(batch.lengths.sum())


def _held(window: Window, limits: BatchLimits) -> Int64:
    """The lengths of a window's samples that may share a batch."""
    lengths = truncated(np.asarray(window.lengths, dtype=np.int64), limits)
    cut_down = Window(window.samples, window.streams, lengths)
    return lengths[~too_large(cut_down, limits)]


def begins(batch: Membership) -> NDArray[np.bool_]:
    """Return which entries of a batch begin a sample: all of them without a packing."""
    return np.ones(len(batch.samples), dtype=np.bool_) if batch.packing is None else batch.packing.offsets == 0


def first_batches(forming: Forming, known: BatchStore, epoch: int, payload: frozenset[str]) -> FirstBatches | str:
    """Form the first batches of an epoch.

    Args:
        forming: what the chapters share.
        known: the batches, with what is known of them.
        epoch: the epoch.
        payload: columns that may not be read.

    Returns:
        the batches; or why they are not known, and what would make them known.
    """
    unknown = _unknown(forming, known, epoch, payload)
    if unknown is not None:
        return unknown
    watching, before = _Watching(forming.formation), forming.reader.metrics.filtered
    try:
        watched = Forming(forming.stages, forming.reader, forming.formation)
        watched.former = watching.former
        chapter = Chapter(watched, epoch, 0, 0)
        (seen,) = watching.seen
        while not chapter.complete and seen.joined < SAMPLES:
            chapter.has(len(chapter.batches))
        taken = seen.setting.size if chapter.complete else seen.joined + forming.reader.metrics.filtered - before
        drawn = _drawn(forming, epoch)
    except (DataError, PlanError) as error:
        return f"unknown: the epoch's first samples cannot be formed: {error}"
    return FirstBatches(forming.formation, seen.setting, seen.windows, seen.batches, taken, *drawn)


def _drawn(
    forming: Forming, epoch: int
) -> tuple[list[Membership], list[NDArray[np.int32]], list[tuple[NDArray[Any], ...]], OversizeTally, int, bool]:
    """Draw the first batches: memberships, streams, keys, what was above the budget or filtered, whether these are all."""
    metrics, names = forming.reader.metrics, ("dropped", "truncated", "alone", "filtered")
    before = [getattr(metrics, name) for name in names]
    batches: list[Membership] = []
    streams: list[NDArray[np.int32]] = []
    keys: list[tuple[NDArray[Any], ...]] = []
    with TemporaryDirectory() as folder:  # of an index that nobody else reads
        every = FormedBatches(Forming(forming.stages, forming.reader, forming.formation), Path(folder))
        held = 0
        while held < DRAWN and every.exists(epoch, len(batches)):
            (drawn,) = every.draw(epoch, [len(batches)])
            batches.append(drawn.membership)
            streams.append(drawn.samples.stream_rows.streams)
            held += len(drawn.samples)
            sized = drawn.membership.size is not None
            if sized or (forming.formation.key_texts and any(stage.frames for stage in forming.stages.fields)):
                forming.reader.need(epoch, drawn.samples, forming.wanted)
                keys.append(forming.window(drawn.samples, 0).keys)
        is_complete = held < DRAWN or not every.exists(epoch, len(batches))
    counts = [getattr(metrics, name) - was for name, was in zip(names, before, strict=True)]
    return batches, streams, keys, OversizeTally(*counts[:3]), counts[3], is_complete


def _unknown(forming: Forming, known: BatchStore, epoch: int, payload: frozenset[str]) -> str | None:
    """Why batches cannot be formed without reading payload; None if they can."""
    computed = forming.unknown()
    if computed:
        return f"unknown: {', '.join(computed)} decides, and is in no cache: {'; '.join(forming.ways_out())}"
    heavy = sorted(_looked_at(forming) & payload)
    if heavy:
        return f"unknown: {', '.join(heavy)} decides, and is payload: keep what decides as a column of the relation"
    stored = _stored_lists(forming)
    if stored and not _formed_before(forming, known, epoch):
        return f"unknown: lengths of {', '.join(stored)} are read once, by the first chapter: loop, or stream.count()"
    return None


def _looked_at(forming: Forming) -> set[str]:
    """Columns of the relations that decide which samples share a batch."""
    lineage = forming.reader.lineage
    keys = list(forming.wanted)
    for at, step in enumerate(forming.stages.maps):
        keys += lineage.test_keys(step, at) if isinstance(step, SampleFilter) else []
    return {key.name for key in lineage.rests_on(keys) if isinstance(key, Stored)}


def _stored_lists(forming: Forming) -> list[str]:
    """Stored list columns whose lengths decide which samples share a batch."""
    named = {name for key in forming.keys for name in key.columns()}
    if forming.formation.needs_lengths and not forming.lengths:
        named |= set(forming.sequences)
    keys = {name: forming.reader.lineage.length_key(name) for name in sorted(named)}
    return [name for name, key in keys.items() if isinstance(key, Lengths)]


def _formed_before(forming: Forming, known: BatchStore, epoch: int) -> bool:
    """Whether a chapter of this epoch or the first was formed: forming stores the lengths of list columns."""
    lanes = forming.stages.batches.lanes
    chapters = sum(lanes.chapter_count(lane, forming.span) for lane in range(lanes.count))
    return any(known.unknown(each) < chapters for each in {epoch, 0})
