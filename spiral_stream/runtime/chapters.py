"""Who shares a batch, where formation says so: chapter by chapter, window by window.

A chapter is about 64 windows of a lane and a pure function of plan, data version, epoch,
lane and number (docs/decisions/0007). Its windows are taken only as far as batches are asked for:
of each the membership keys are measured (lengths from a cache, columns by address, maps
where they decide), and the plan's `Former` answers with batches. What is known of a sample
is kept until the batch that holds it has been built.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream import expr, seeding
from spiral_stream.batching.formation import (
    CHAPTER_WINDOWS,
    DropPartial,
    Formation,
    Former,
    Membership,
    PadPartial,
    Setting,
    Window,
)
from spiral_stream.batching.packing import Packed
from spiral_stream.errors import DataError, PlanError, SourceError
from spiral_stream.expr import Expr
from spiral_stream.plan.clips import clip_costs
from spiral_stream.plan.composed import is_scarce
from spiral_stream.plan.maps import Context, SampleAssembly, SampleFilter, SampleFlatMap, SampleMap, SampleTokens
from spiral_stream.plan.mix import Mix
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import find, need
from spiral_stream.planner.build import is_built
from spiral_stream.planner.physical import Stages
from spiral_stream.runtime.blame import blaming
from spiral_stream.runtime.samples import (
    REFUSED,
    Key,
    SampleReader,
    Samples,
    identity_keys,
    lengths_of,
    remembering_sample,
)
from spiral_stream.threads import doing
from spiral_stream.transforms.python import Function

Int64 = NDArray[np.int64]
Grown = Callable[["Chapter"], None]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """The samples of one batch, and how they lie in it."""

    samples: Samples
    membership: Membership


@final
class Forming:
    """What all chapters of a stream share: the formation, its keys, and how samples are read."""

    def __init__(self, stages: Stages, reader: SampleReader, formation: Formation) -> None:
        collate = need(stages.plan, Collate)
        self.stages, self.reader, self.formation = stages, reader, formation
        self.batch_size = collate.batch_size
        self.source = collate.source
        self.keys = [expr.parse(text) for text in formation.key_texts]
        costs = clip_costs(collate.fields)
        self.costs = [
            costs[name] for name in formation.cost_names
        ]  # the same for every sample: the plan fixes a clip's size
        self.sequences = sorted({stage.field.column for stage in stages.sequences})
        self.multiple = lcm(*(stages.multiple(column) for column in self.sequences))
        self.span = formation.window_size * CHAPTER_WINDOWS
        self.fan_out = int(
            np.prod([step.fan_out for step in stages.maps if isinstance(step, SampleFlatMap)], initial=1)
        )
        end = reader.end
        wanted = [key for each in self.keys for key in reader.expression_keys(each, end)]
        if formation.needs_lengths:
            wanted += [reader.length_key(column) for column in self.sequences]
        self.wanted = wanted
        fields = [field for _, field in collate.fields]
        later = [*(reader.key(field.column, end) for field in fields), *identity_keys(stages)]
        self._kept = reader.rests_on([*later, *wanted])
        self._unknown: list[str] | None = None
        counted = isinstance(formation, Packed) or getattr(formation, "budget", None) is None
        self.whole = counted and isinstance(
            collate.last, DropPartial
        )  # batches of a fixed count: a short one is dropped
        self.scarce = is_scarce(collate)
        mix = find(collate, Mix)
        self.moves = mix is not None and bool(mix.schedule)

    def kept(self, key: Key) -> bool:
        """Whether a column of a window is kept for its batches: what a map made at some cost."""
        at = key[1]
        return (
            at >= 0
            and (key in self._kept or key[0] == REFUSED)
            and isinstance(self.stages.maps[at], SampleTokens | SampleMap | SampleFlatMap | SampleAssembly)
        )

    def decides_on(self) -> list[str]:
        """What membership needs beside stored columns: maps that run before anybody knows who shares a batch."""
        reader = self.reader
        out: list[str] = []
        for at, step in enumerate(self.stages.maps):
            if isinstance(step, SampleFlatMap | SampleAssembly):
                out.append(f"{step.VERB} {step.function.name}")
            elif isinstance(step, SampleFilter):
                test = step.predicate
                named = [f"filter {test.name}"] if isinstance(test, Function) else []
                out += named or self._made(reader.rests_on(reader.test_keys(step, at)))
        return list(dict.fromkeys([*out, *self._made(reader.rests_on(self.wanted))]))

    def unknown(self) -> list[str]:
        """Of these, what is in no cache."""
        if self._unknown is None:
            kept = {f"len({stage.name})" for stage in self.stages.tokens if is_built(self.stages, stage)}
            self._unknown = [each for each in self.decides_on() if each not in kept]
        return self._unknown

    def ways_out(self) -> list[str]:
        """What would make known what is `unknown`: a cache for tokens of stored text, else a column of the relation."""
        kept = {f"len({stage.name})" for stage in self.stages.tokens if stage.kinds}
        out = ["stream.materialize(), or the asset that builds the token cache"] * any(
            each in kept for each in self.unknown()
        )
        others = [each for each in self.unknown() if each not in kept]
        if others:
            out.append(f"no cache holds what {', '.join(others)} decides, so keep it as a column of the relation")
        return out

    def begin(self, epoch: int, lane: int, chapter: int) -> int:
        """The position of the epoch at which a chapter begins; of the one after the last, the lane's end."""
        epochs, lanes = self.stages.epochs, self.stages.batches.lanes
        end = epochs.total * (lane + 1) // lanes
        position = epochs.total * lane // lanes + chapter * self.span
        if chapter == 0 or position >= end or epochs.mixture is None:
            return min(position, end)
        return min(epochs.mixture.border(epoch, position), end)

    def _made(self, keys: set[Key]) -> list[str]:
        out = []
        for _, at in sorted(keys):
            step = self.stages.maps[at] if at >= 0 else None
            if isinstance(step, SampleTokens):
                out.append(f"len({step.name})")
            elif isinstance(step, SampleMap):
                out.append(f"map {step.function.name}")
        return out


def _need_alike(packed: Packed, names: Sequence[str], lengths: Sequence[Int64]) -> None:
    """Refuse a sample whose token columns differ in length: packed, they share the places of one piece.

    Raises:
        DataError: says which columns; ``row`` is the first such sample.
    """
    if len(names) == 1:
        return
    columns_CS = np.stack(lengths)  # C columns, S samples
    if packed.oversize == "truncate":  # what is cut off need not agree
        columns_CS = np.minimum(columns_CS, packed.max_tokens)
    unlike = columns_CS != columns_CS[0]
    if packed.oversize == "drop":
        unlike &= columns_CS.max(axis=0) <= packed.max_tokens
    if not unlike.any():
        return
    row = int(np.flatnonzero(unlike.any(axis=0))[0])
    other = int(np.flatnonzero(unlike[:, row])[0])
    msg = (
        f"collate: it has {int(lengths[0][row]):,} tokens in {names[0]!r} and {int(lengths[other][row]):,} in {names[other]!r}, "
        "and Packed lays the columns of a sample over the same places. Make them equally long, for example with -100 where "
        "a label is to be ignored, or use WindowedBucket, which pads each column by itself"
    )
    error = DataError(msg)
    error.row = row  # type: ignore[attr-defined]  # read by `remembering_sample`
    raise error


def chapter_count(total: int, lanes: int, lane: int, span: int) -> int:
    """Chapters of a lane; one of no samples where the lane has none."""
    return max(1, -(-(total * (lane + 1) // lanes - total * lane // lanes) // span))


@final
class Chapter:
    """One chapter on its way. Not thread-safe."""

    def __init__(self, forming: Forming, epoch: int, lane: int, number: int) -> None:
        self._forming, self._epoch = forming, epoch
        self.lane, self.number = lane, number
        self._at = forming.begin(epoch, lane, number)
        self.end = forming.begin(epoch, lane, number + 1)
        self._assemblers = forming.reader.assemblers(Context(epoch, lane, number))
        self._former: Former = forming.formation.former(self._setting())
        self.batches: list[Membership] = []
        self._dropped: list[Membership] = []  # short ones that the tail rule leaves out
        self.done = False
        self._told = (0, 0, 0)  # dropped, truncated, alone: what the metrics have heard of
        self._count = 0  # samples numbered so far
        self._held: list[tuple[int, Samples]] = []  # first number, and what is known from there on
        self._firsts = np.empty(0, dtype=np.int64)  # first number of each held window
        self._positions: list[NDArray[np.uint64]] = []  # of the samples of each held window
        self._left: list[int] = []  # samples of each held window that no drawn batch has begun
        self._gone = 0  # windows before this one hold nothing any more
        self.drawn = 0  # batches drawn: what earlier ones held may be gone
        self.sound = True  # False once a step of it was broken off, by an error or an interrupt: form it anew
        self._begin = self._at

    def _setting(self) -> Setting:
        forming, mixture = self._forming, self._forming.stages.epochs.mixture
        shares = ahead = None
        if mixture is not None:
            shares = mixture.shares(self._epoch, self._at)
            at_border = mixture.border(self._epoch, self._at) == self._at  # a lane may begin inside a slice
            ahead = mixture.ahead(self._epoch, self._at) if at_border else np.zeros(len(shares))
        return Setting(
            key=seeding.key("chapter", forming.stages.order.run_seed, self._epoch, self.number),
            size=self.end - self._at,
            multiple=forming.multiple,
            batch_size=forming.batch_size,
            even=not forming.whole,
            last=self._forming.stages.batches.last,
            scarce=self._forming.scarce,
            shares=shares,
            ahead=ahead,
        )

    @property
    def formed(self) -> int:
        """Samples that its windows have taken so far."""
        return self._at - self._begin

    def has(self, index: int, grown: Grown | None = None) -> bool:
        """Whether the chapter has this batch; forms windows until that is known, and calls ``grown`` after each."""
        while not self.done and len(self.batches) <= index:
            self._grow(grown)
        return index < len(self.batches)

    def finish(self, grown: Grown | None = None) -> int:
        """How many batches the chapter has; forms all of them, and calls ``grown`` after each window."""
        while not self.done:
            self._grow(grown)
        return len(self.batches)

    def _grow(self, grown: Grown | None) -> None:
        self.sound = False
        with doing(f"forming chapter {self.number:,} of lane {self.lane}"):
            self._take_window()
        self.sound = True
        if grown is not None:
            grown(self)

    def _take_window(self) -> None:
        forming, reader = self._forming, self._forming.reader
        take = min(max(1, self._former.room // forming.fan_out), self.end - self._at)
        final = self._at + take >= self.end
        positions = np.arange(self._at, self._at + take, dtype=np.uint64)
        places = forming.stages.epochs.places(self._epoch, positions)
        with blaming(forming.stages):
            samples, filtered = reader.run(self._epoch, Samples.at(places), self._assemblers, final=final)
            with remembering_sample(samples):
                reader.need(self._epoch, samples, forming.wanted)
        self._at += take
        self.done = final
        self._admit(samples, positions, final=final)
        tally = self._former.tally
        now = (tally.dropped, tally.truncated, tally.alone)
        dropped, truncated, alone = (after - before for before, after in zip(self._told, now, strict=True))
        self._told = now
        reader.metrics.add(filtered=filtered, dropped=dropped, truncated=truncated, alone=alone)

    def _admit(self, samples: Samples, positions: NDArray[np.uint64], *, final: bool) -> None:
        """Hand samples to the former: at once, but where flat_map or assemble made more of them than it has room for."""
        first = 0
        while True:
            last = min(len(samples), first + max(1, self._former.room))
            part = samples if last - first == len(samples) else samples.take(np.arange(first, last))
            with blaming(self._forming.stages), remembering_sample(part):
                window = self._window(part)
            self._hold(part, positions)
            with blaming(self._forming.stages):
                formed = self._formed(window, final=final and last == len(samples))
            self._keep_repeated(formed)
            self.batches += formed
            first = last
            if first == len(samples):
                return

    def _hold(self, samples: Samples, positions: NDArray[np.uint64]) -> None:
        """Number samples, and keep what is known of them until their batches are built."""
        if not len(samples):
            return
        kept = [key for key in samples.columns if self._forming.kept(key)]
        self._firsts = np.append(self._firsts, self._count)
        self._held.append((self._count, samples.only(kept)))
        self._positions.append(positions[samples.origins])
        self._left.append(len(samples))
        self._count += len(samples)

    def _keep_repeated(self, formed: list[Membership]) -> None:
        """Hold the windows of samples that fill batches until all of these are drawn."""
        if not isinstance(self._forming.stages.batches.last, PadPartial) or isinstance(self._forming.formation, Packed):
            return
        numbers, counts = np.unique(
            np.concatenate([np.empty(0, np.int64), *(b.samples for b in formed)]), return_counts=True
        )
        for at, more in zip(
            self._window_of(numbers[counts > 1]).tolist(), (counts[counts > 1] - 1).tolist(), strict=True
        ):
            self._left[at] += more

    def _formed(self, window: Window, *, final: bool) -> list[Membership]:
        try:
            formed = self._former.form(window, final=final)
            if not final or not self._forming.whole:
                return formed
            self._dropped = [batch for batch in formed if batch.rows != (self._forming.batch_size or 1)]
            return [batch for batch in formed if batch.rows == (self._forming.batch_size or 1)]
        except SourceError as error:
            number = getattr(error, "sample", None)
            if number is not None:
                error.samples = self._samples(np.array([number]))  # type: ignore[attr-defined]  # read by `blaming`
            raise

    def _window(self, samples: Samples) -> Window:
        forming, reader = self._forming, self._forming.reader
        keys = tuple(
            self._key(samples, text, each) for text, each in zip(forming.formation.key_texts, forming.keys, strict=True)
        )
        lengths = None
        if forming.formation.needs_lengths:
            columns = [lengths_of(samples.columns[reader.length_key(column)]) for column in forming.sequences]
            if isinstance(forming.formation, Packed):
                _need_alike(forming.formation, forming.sequences, columns)
            lengths = np.maximum.reduce(columns)
        numbers = np.arange(self._count, self._count + len(samples), dtype=np.int64)
        streams, shares = samples.places.streams, None
        if forming.moves and len(samples):  # a schedule moves the shares: those of the window are its own
            shares = np.bincount(streams, minlength=len(forming.stages.streams)) / len(samples)
        costs = tuple(np.full(len(samples), each, dtype=np.int64) for each in forming.costs)
        return Window(numbers, streams, lengths, keys, costs, shares)

    def _key(self, samples: Samples, text: str, key: Expr) -> NDArray[np.float64] | Int64:
        forming = self._forming
        values = forming.reader.value(samples, key, forming.source, forming.reader.end)
        if values.null_count:
            msg = (
                f"collate: bucket key {text!r} is null for {values.null_count:,} of {len(values):,} samples of a window; "
                "filter those rows out"
            )
            raise PlanError(msg)
        found = values.to_numpy(zero_copy_only=False)
        if pa.types.is_integer(values.type):
            return np.asarray(found, dtype=np.int64)
        return np.asarray(found, dtype=np.float64)

    # ---- what a batch holds

    def draw(self, index: int) -> Drawn:
        """The samples of a batch, in its order; each batch once, in ascending order, but any may be left out at the start."""
        membership = self.batches[index]
        samples = self._samples(membership.samples)
        self.sound = False
        self.drawn = index + 1
        self._release(membership)
        self.sound = True
        return Drawn(samples, membership)

    def skip(self, count: int) -> None:
        """Go past the first batches without reading what they hold."""
        self.sound = False
        for index in range(self.drawn, count):
            self._release(self.batches[index])
        self.drawn = max(self.drawn, count)
        self.sound = True

    def _release(self, membership: Membership) -> None:
        """Forget windows all of whose samples are delivered; where samples are split, pieces may come later."""
        packing, formation = membership.packing, self._forming.formation
        if isinstance(formation, Packed) and formation.oversize == "split" and not formation.concatenates:
            return  # pieces of one sample come in any order
        begun = membership.samples if packing is None else membership.samples[packing.offsets == 0]
        for at, count in enumerate(np.bincount(self._window_of(begun)).tolist()):
            self._left[at] -= count
        upto = len(self._held)
        if isinstance(formation, Packed) and formation.concatenates:  # split samples go on in the batches that follow
            upto = int(self._window_of(membership.samples).min(initial=upto))
        for at in range(self._gone, upto):
            first, held = self._held[at]
            if self._left[at] == 0 and held.columns:
                self._held[at] = (first, held.only(()))
        while self._gone < upto and self._left[self._gone] == 0:
            self._gone += 1

    def positions_from(self, index: int) -> NDArray[np.uint64]:
        """The positions of a finished chapter's samples that the batches before ``index`` do not deliver to their end.

        What the tail rule leaves out is among them; what the budget drops is not.
        """
        none = np.empty(0, dtype=np.int64)
        later = np.concatenate([none, *(batch.samples for batch in (*self.batches[index:], *self._dropped))])
        before = np.concatenate([none, *(batch.samples for batch in self.batches[:index])])
        wanted = np.ones(self._count, dtype=np.bool_)
        wanted[before] = wanted[self._former.tally.first] = False
        wanted[later] = True
        return np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *self._positions])[wanted])

    def holding(self, stream: int, row: int) -> list[int]:
        """The batches of a finished chapter, none of them drawn, that hold a surviving row."""
        numbers = [
            first + np.flatnonzero((held.places.streams == stream) & (held.places.rows == row))
            for first, held in self._held
        ]
        wanted = np.concatenate([np.empty(0, dtype=np.int64), *numbers])
        return [at for at, batch in enumerate(self.batches) if np.isin(wanted, batch.samples).any()]

    def _window_of(self, numbers: Int64) -> Int64:
        return np.searchsorted(self._firsts, numbers, side="right") - 1

    def _samples(self, numbers: Int64) -> Samples:
        window = self._window_of(numbers)
        if len(window) and window.min() == (at := int(window.max())):  # most batches are of one window
            first, held = self._held[at]
            return held.take(numbers - first)
        by = np.argsort(window, kind="stable")
        found = []
        for at in np.unique(window).tolist():
            first, held = self._held[at]
            found.append(held.take(numbers[by][window[by] == at] - first))
        back = np.empty(len(by), dtype=np.int64)
        back[by] = np.arange(len(by))
        return Samples.concat(found).take(back)
