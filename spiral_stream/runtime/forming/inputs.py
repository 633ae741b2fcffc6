"""What forming needs of a stream: the formation, the columns it looks at, and the positions of each chapter.

Where batches have a fixed number of samples, what a chapter cannot fill waits for the lane's end (docs/decisions/0057).
Chapters then begin at whole batches, as far as arithmetic knows how many samples there are, so nothing waits.

A formation decides on arrays: lengths, bucket keys, costs. `Forming` knows which columns and maps these come from, reads
nothing itself, and says which of them no cache holds, for then every process has to compute them before it knows which
samples share a batch.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream import expr
from spiral_stream.batching.composition import OneStream, StratifiedByStream
from spiral_stream.batching.formation import CHAPTER_WINDOWS, Formation, Window
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.padding_width import common_multiple
from spiral_stream.batching.stratified import Float64, Line, deal
from spiral_stream.batching.windowed import WindowedBucket
from spiral_stream.errors import BindError, DataError, PlanError
from spiral_stream.expr import Expr
from spiral_stream.plan.bad_samples import why_never
from spiral_stream.plan.composed import is_scarce
from spiral_stream.plan.fields.clips import clip_costs
from spiral_stream.plan.fields.flat_images import flat_images
from spiral_stream.plan.fields.image_lists import list_columns
from spiral_stream.plan.nodes import Collate, Sampled
from spiral_stream.plan.tree import find, need
from spiral_stream.plan.verbs.maps import (
    SampleAssembly,
    SampleFilter,
    SampleFlatMap,
    SampleMap,
    SampleRecords,
    SampleTokens,
)
from spiral_stream.plan.verbs.mix import Mix
from spiral_stream.planner.columns.lineage import LISTS, MASK, Key, Lengths, Made, Refusal, identity_keys
from spiral_stream.planner.prepared_data.build import is_built
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.samples import SampleReader, Samples, as_lists, lengths_of
from spiral_stream.sampling.memo import memo
from spiral_stream.sampling.order import UInt64
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.text.image_tokens import sizes_of

Int64 = NDArray[np.int64]
_CHANGES: Final = SampleFilter | SampleFlatMap | SampleAssembly
_FIRSTS: Final = 64  # chapters whose first batches are kept
_LENT: Final = 8  # chapters whose borrowed positions are kept


@final
@dataclass(frozen=True, slots=True, eq=False)
class ChapterPositions:
    """The positions of a chapter, in order: some at its start, a range, and some behind it."""

    head: UInt64
    run: range
    behind: UInt64

    def __len__(self) -> int:
        return len(self.head) + len(self.run) + len(self.behind)

    def take(self, first: int, last: int) -> UInt64:
        """Return the positions at places [first, last)."""
        lead, body = len(self.head), len(self.head) + len(self.run)
        inside = self.run[max(0, first - lead) : max(0, last - lead)]
        positions = np.arange(inside.start, inside.stop, dtype=np.uint64)
        if len(positions) == last - first:
            return positions
        behind = self.behind[max(0, first - body) : max(0, last - body)]
        return np.concatenate((self.head[first:last], positions, behind))


@final
class Forming:
    """The formation of a stream, with its inputs."""

    def __init__(self, stages: Stages, reader: SampleReader, formation: Formation) -> None:
        collate = need(stages.plan, Collate)
        self.stages, self.reader, self.formation = stages, reader, formation
        self.batch_size = collate.batch_size
        self.skippable = not why_never(collate.source)  # whether `on_error` could leave a bad sample to its batch
        self.source = collate.source
        self.keys = [expr.parse(text) for text in formation.key_texts]
        self.costs = clip_costs(collate.fields)  # the same for every sample: the plan fixes a clip's size
        images = list_columns(collate.fields, collate.source.schema()) if "images" in formation.cost_names else []
        flat = flat_images(collate.fields) if {"images", "patches"} & set(formation.cost_names) else []
        images = [name for name in images if name not in {each.column for each in flat}]
        self.lists: list[Key] = [Lengths(name) for name in images]
        self.sequences = sorted({stage.field.column for stage in stages.sequences})
        shared = [column for column in self.sequences if column not in formation.widths]
        self.multiple = common_multiple(stages.multiple(column) for column in shared)
        self.span = formation.window_size * CHAPTER_WINDOWS  # positions of a chapter
        self.fan_out = int(
            np.prod([step.fan_out for step in stages.maps if isinstance(step, SampleFlatMap)], initial=1)
        )
        end, lineage = reader.end, reader.lineage
        wanted: list[Key] = [key for each in self.keys for key in lineage.expression_keys(each, end)]
        self.lengths = [expr.parse(text) for text in formation.length_texts]
        if self.lengths:
            wanted += [key for each in self.lengths for key in lineage.expression_keys(each, end)]
        elif formation.needs_lengths:
            wanted += [lineage.length_key(column) for column in self.sequences]
        self.flat = [(each.layout, lineage.key(each.sizes, end)) for each in flat]  # images end to end, by their sizes
        wanted += [key for _, key in self.flat]
        self.wanted = wanted = [*wanted, *self.lists]  # columns that the formation looks at
        fields = [field for _, field in collate.fields]
        later = [*lineage.keys((name for field in fields for name in field.columns), end), *identity_keys(stages)]
        self._used = lineage.rests_on([*later, *wanted])
        self._uncached: list[str] | None = None
        self._counting: Forming | None = None
        self.scarce = is_scarce(collate)
        composition = formation.composition if isinstance(formation, WindowedBucket) else None
        changes = any(isinstance(step, _CHANGES) for step in stages.maps)
        self.assembles = any(isinstance(step, SampleAssembly) for step in stages.maps)
        self.leaves = formation.leaves  # whether what a chapter cannot fill waits for the lane's end
        self._plain = self.leaves and isinstance(formation, WindowedBucket) and not isinstance(composition, OneStream)
        self.arithmetic = (
            self._plain and not changes
        )  # whether chapters are whole batches, so that counts are arithmetic
        self._lends = self.arithmetic and isinstance(composition, StratifiedByStream)
        first = ["chapter", "number"] if self.assembles else ["position", "part"][: 1 + (self.fan_out > 1)]
        self.rest_columns = (*first, *(("offset", "length") if formation.cuts_samples else ()))
        self.former = formation.former  # makes the former of a chapter
        self._lent_to = memo(self._lent, _LENT)
        self._firsts = memo(self.first_of, _FIRSTS)  # a slice border costs 0.1 ms, and every batch asks for some
        mix = find(collate, Mix)
        self.moves = mix is not None and bool(mix.schedule)  # whether a schedule moves the streams' shares

    def for_counting(self) -> "Forming":
        """Return what forms the same chapters for the number of their batches alone: no token of a cache is read."""
        if self._counting is None:
            self._counting = Forming(self.stages, self.reader.for_counting(), self.formation)
        return self._counting

    # ---- which positions a chapter has

    def begin(self, epoch: int, lane: int, chapter: int) -> int:
        """Return the position of the epoch at which a chapter begins; of the one after the last, the lane's end.

        With a mixture it is a slice border; `lent` says which positions after it belong to the chapter before.
        """
        epochs, lanes = self.stages.epochs, self.stages.batches_of(epoch).lanes
        end = lanes.begin(lane + 1)
        position = lanes.begin(lane) + chapter * self.span
        if chapter == 0 or position >= end:
            return min(position, end)
        if epochs.mixture is not None:
            position = epochs.mixture.border(epoch, position)
        if self.arithmetic and not self._lends:
            position += -(position - lanes.begin(lane)) % self.rows
        return min(position, end)

    @property
    def rows(self) -> int:
        """Rows of a whole batch."""
        return self.batch_size or 1

    def lent(self, epoch: int, lane: int, chapter: int) -> UInt64:
        """Return the positions after a chapter's border that complete the last batch of the chapter before; ascending.

        A stream lends the samples of it that come next, as many as its share calls for (`stratified.deal`). So every stream
        is within a sample of its share after that batch too.
        """
        return self._lent_to(epoch, lane, chapter) if self._lends and chapter else np.empty(0, dtype=np.uint64)

    def _lent(self, epoch: int, lane: int, chapter: int) -> UInt64:
        mixture, lanes = self.stages.epochs.mixture, self.stages.batches_of(epoch).lanes
        assert mixture is not None
        begin, end = self.begin(epoch, lane, chapter), lanes.begin(lane + 1)
        lacks = -(begin - lanes.begin(lane)) % self.rows
        stop = self._lends_until(epoch, lane, chapter)
        positions = np.arange(begin, min(stop, end), dtype=np.uint64)
        if stop > end:
            return positions
        if not len(positions):
            return positions
        streams, uses = mixture.split(epoch, positions)
        shares = mixture.shares(epoch, begin)
        supply = np.bincount(streams, minlength=len(shares)).astype(np.int64)
        by_use = np.lexsort((uses, streams))  # whole slices: the uses of a stream are those that come next
        nth = np.empty(len(positions), dtype=np.int64)
        nth[by_use] = np.arange(len(positions)) - np.repeat(np.cumsum(supply) - supply, supply)
        (counts,) = deal(np.array([lacks]), Line(shares, mixture.ahead(epoch, begin), supply))
        lent: UInt64 = positions[nth < counts[streams]]
        return lent

    def _lends_until(self, epoch: int, lane: int, chapter: int) -> int:
        """Return the slice border before which a chapter lends; where it lies behind the lane's end, it lends all that it has."""
        mixture, lanes = self.stages.epochs.mixture, self.stages.batches_of(epoch).lanes
        assert mixture is not None
        begin = self.begin(epoch, lane, chapter)
        lacks = -(begin - lanes.begin(lane)) % self.rows
        if begin >= lanes.begin(lane + 1) or not lacks:
            return begin
        if begin + lacks > lanes.begin(lane + 1):
            return lanes.begin(lane + 1) + 1
        return mixture.border(epoch, begin + lacks)

    def positions(self, epoch: int, lane: int, chapter: int) -> ChapterPositions:
        """Return the positions of a chapter, in order."""
        begin, end = self.begin(epoch, lane, chapter), self.begin(epoch, lane, chapter + 1)
        before, behind = self.lent(epoch, lane, chapter), self.lent(epoch, lane, chapter + 1)
        rest = min(max(begin, int(before[-1]) + 1), end) if len(before) else begin
        head = np.setdiff1d(np.arange(begin, rest, dtype=np.uint64), before)
        return ChapterPositions(head, range(rest, end), np.setdiff1d(behind, before))

    def balance(self, epoch: int, lane: int, chapter: int) -> tuple[Float64, Float64] | None:
        """Return each stream's share where a chapter begins, and how many samples it is ahead of it; None without a mixture."""
        mixture = self.stages.epochs.mixture
        if mixture is None:
            return None
        begin = self.begin(epoch, lane, chapter)
        shares = mixture.shares(epoch, begin)
        at_border = mixture.border(epoch, begin) == begin  # a lane may begin inside a slice
        ahead = mixture.ahead(epoch, begin) if at_border else np.zeros(len(shares))
        if len(lent := self.lent(epoch, lane, chapter)):
            ahead = ahead + np.bincount(mixture.split(epoch, lent)[0], minlength=len(shares)) - shares * len(lent)
        return shares, ahead

    def chapter_of(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the lane and the chapter of a position of the epoch."""
        lanes = self.stages.batches_of(epoch).lanes
        lane = lanes.lane_of(position)
        number = (position - lanes.begin(lane)) // self.span
        while self.begin(epoch, lane, number) > position:  # chapters of a mixture begin up to a slice later
            number -= 1
        while np.isin(np.uint64(position), self.lent(epoch, lane, number)):
            number -= 1
        return lane, number

    # ---- where counts are arithmetic

    def first_of(self, epoch: int, lane: int, chapter: int) -> int:
        """Return how many batches of a lane come before a chapter; counts are arithmetic."""
        lanes = self.stages.batches_of(epoch).lanes
        if self._lends and chapter and self._lends_until(epoch, lane, chapter) > lanes.begin(lane + 1):
            return self.batches_of(epoch, lane)  # the chapter before has the rest of the lane
        windows = -(-(self.begin(epoch, lane, chapter) - lanes.begin(lane)) // self.rows)
        return min(windows, self.batches_of(epoch, lane))

    @property
    def most_left(self) -> int:
        """The most samples, or rows if they are packed, that a chapter cannot fill; the epoch's end too."""
        return self.formation.most_left(self.rows, len(self.stages.streams))

    def batches_of(self, epoch: int, lane: int) -> int:
        """Return the whole batches of a lane; counts are arithmetic."""
        lanes = self.stages.batches_of(epoch).lanes
        return (lanes.begin(lane + 1) - lanes.begin(lane)) // self.rows

    def holder_of(self, epoch: int, lane: int, k: int) -> tuple[int, int] | None:
        """Return the chapter of a lane's batch ``k``, and its number there; None if the lane has fewer. Counts are arithmetic."""
        if not 0 <= k < self.batches_of(epoch, lane):
            return None
        chapter = k * self.rows // self.span
        while chapter and self._firsts(epoch, lane, chapter) > k:
            chapter -= 1
        return chapter, k - self._firsts(epoch, lane, chapter)

    def last_of(self, epoch: int, lane: int) -> tuple[int, UInt64 | None]:
        """Return the one chapter of a lane that may leave a rest, and the rest's positions; counts are arithmetic.

        None says that the chapter has to be formed for them: its streams decide, or keys, by which samples wait from window to
        window.
        """
        lanes = self.stages.batches_of(epoch).lanes
        rest = (lanes.begin(lane + 1) - lanes.begin(lane)) % self.rows
        chapter = lanes.chapter_count(lane, self.span) - 1
        while chapter and len(self.positions(epoch, lane, chapter)) < rest:
            chapter -= 1
        if (self._lends or self.keys) and rest:
            return chapter, None
        positions = self.positions(epoch, lane, chapter)
        return chapter, positions.take(len(positions) - rest, len(positions))

    # ---- what membership rests on

    def keeps(self, key: Key) -> bool:
        """Whether a window keeps a column for its batches: only what a map computed at some cost."""
        if isinstance(key, Made):
            if key in self.stages.cached:  # a batch reads it again
                return False
            costly = SampleTokens | SampleMap | SampleRecords | SampleFlatMap | SampleAssembly
            return key in self._used and isinstance(self.stages.maps[key.at], costly)
        return isinstance(key, Refusal)

    def decides_on(self) -> list[str]:
        """List the maps that decide which samples share a batch, in words; stored columns are left out."""
        return list(dict.fromkeys(what for what, _ in self._deciding()))

    def _deciding(self, *, declared: bool = False) -> list[tuple[str, bool]]:
        """The maps that decide, in words, and whether their values are kept; ``declared``: or will be."""
        lineage, cached = self.reader.lineage, self.stages.cached
        if declared:
            cached = frozenset(key for each in self.stages.values for key, _ in each.boundary.outputs)
        out: list[tuple[str, bool]] = []
        for at, step in enumerate(self.stages.maps):
            if isinstance(step, SampleFlatMap | SampleAssembly):
                out.append((f"{step.VERB} {step.function.name}", Made(LISTS, at) in cached))
            elif isinstance(step, SampleFilter):
                test = step.predicate
                named = [(f"filter {test.name}", Made(MASK, at) in cached)] if isinstance(test, Function) else []
                out += named or self._named(lineage.rests_on(lineage.test_keys(step, at)), cached)
        return out + self._named(lineage.rests_on(self.wanted), cached)

    @property
    def calls_functions(self) -> bool:
        """Whether a map calls a function of the user's, which need not be thread-safe and may wait for something."""
        return any(_calls(step) for step in self.stages.maps)

    def unknown(self) -> list[str]:
        """List those of `decides_on` that no cache holds."""
        if self._uncached is None:
            cached = {f"len({stage.name})" for stage in self.stages.tokens if is_built(self.stages, stage)}
            unkept = [what for what, is_cached in self._deciding() if not is_cached]
            self._uncached = [each for each in dict.fromkeys(unkept) if each not in cached]
        return self._uncached

    def ways_out(self) -> list[str]:
        """List what would make `unknown` known: tokens of stored text, values of functions, else a column of the relation."""
        cacheable = {f"len({stage.name})" for stage in self.stages.tokens if stage.caches}
        out = []
        if any(each in cacheable for each in self.unknown()):
            out.append("stream.materialize(), or the asset that builds the token cache")
        others = [each for each in self.unknown() if each not in cacheable]
        deciding = {what for what, of_cache in self._deciding(declared=True) if of_cache}
        if declared := [each for each in others if each in deciding]:
            out.append(f"stream.materialize() keeps what {', '.join(declared)} gives")
        assembling = [each for each in others if each.startswith(SampleAssembly.VERB)]
        if assembling:
            out.append(self._assembling_way_out(assembling))
        if rest := [each for each in others if each not in deciding and each not in assembling]:
            more = (
                "put .cache() after its functions and call stream.materialize(), or keep it as a column of the relation"
            )
            out.append(f"no cache holds what {', '.join(rest)} decides: {more}")
        by_length = self.formation.needs_lengths and not self.lengths and not self.keys
        if by_length and set(self.unknown()) & {f"len({name})" for name in self.sequences}:
            each = ", ".join(f'"{name}": col("...")' for name in self.formation.widths)
            given = f"{{{each}}}" if each else 'col("...")'
            out.append(f"give the lengths as a column, {type(self.formation).__name__}(length={given})")
        return out

    def _assembling_way_out(self, assembling: Sequence[str]) -> str:
        return (
            f"what {', '.join(assembling)} makes is known chapter by chapter: plan with lanes= that the number of readers "
            "divides, and call stream.materialize(lengths=True) for the epoch, or bind(steps_per_epoch=...)"
        )

    def need_known(self, world_size: int, workers: int) -> None:
        """Refuse several readers if each would have to compute `unknown` again.

        Raises:
            BindError: says what decides it, and the ways out.
        """
        if world_size * workers == 1 or not (unknown := self.unknown()):
            return
        who = f"{world_size} ranks" if world_size > 1 else f"{workers} workers"
        msg = (
            f"bind: who shares a batch is decided by {', '.join(unknown)}, which is not known before it is computed, and "
            f"{who} would compute it for all samples again. Build it once: {'; '.join(self.ways_out())}; or read "
            "with one rank and no workers"
        )
        raise BindError(msg)

    def _named(self, keys: set[Key], cached: Collection[Key]) -> list[tuple[str, bool]]:
        """The maps that make some columns, in words, and whether their values are kept."""
        out = []
        for key in sorted((key for key in keys if isinstance(key, Made)), key=lambda key: (key.name, key.at)):
            step, is_cached = self.stages.maps[key.at], key in cached
            if isinstance(step, SampleTokens):
                out.append((f"len({step.name})", is_cached))
            elif isinstance(step, SampleMap | SampleRecords):
                out.append((f"map {step.function.name}", is_cached))
        return out

    # ---- what the formation is given

    def moves_in(self, epoch: int, lane: int, chapter: int) -> bool:
        """Return whether the streams' shares move inside a chapter: by a schedule, or because other ones were decided on."""
        mixture = self.stages.epochs.mixture
        if self.moves or mixture is None:
            return self.moves
        begin, end = self.begin(epoch, lane, chapter), self.begin(epoch, lane, chapter + 1)
        return any(begin < each < end for each in mixture.cuts(epoch).tolist())

    def decided_from(self, epoch: int, chapter: int) -> int:
        """Return the first position that no chapter before one of lane 0 delivers, nor any after it: shares may change there."""
        return self._lends_until(epoch, 0, chapter) if self._lends and chapter else self.begin(epoch, 0, chapter)

    def first_from(self, epoch: int, position: int) -> int:
        """Return the first chapter of lane 0 that has a position from one on; those before it end there, or before."""
        chapter = position // self.span
        while chapter and self.begin(epoch, 0, chapter) > position:
            chapter -= 1
        return chapter

    def window(
        self, samples: Samples, first: int, parts: tuple[Int64, Int64] | None = None, *, moves: bool = False
    ) -> Window:
        """Return samples as the arrays that the formation looks at.

        Args:
            samples: with the columns `wanted`.
            first: number of the first of them in its chapter.
            parts: where rows before hold a part of them: the first token that is left, and how many are; shape [S] each.
            moves: whether the streams' shares move in the chapter.

        Raises:
            DataError: the token columns of a packed sample differ in length; ``row`` says which sample it is.
            PlanError: a bucket key is null.
        """
        keys = tuple(
            self._key_values(samples, text, key) for text, key in zip(self.formation.key_texts, self.keys, strict=True)
        )
        numbers = np.arange(first, first + len(samples), dtype=np.int64)
        streams, shares = samples.stream_rows.streams, None
        if moves and len(samples):  # shares have moved on: the window keeps its own
            shares = np.bincount(streams, minlength=len(self.stages.streams)) / len(samples)
        costs = tuple(self._costs(samples, name) for name in self.formation.cost_names)
        if parts is not None:
            return Window(numbers, streams, parts[1], keys, costs, shares, parts[0])
        return Window(numbers, streams, self._lengths(samples), keys, costs, shares)

    def _costs(self, samples: Samples, name: str) -> Int64:
        """What each sample costs of one additive limit, shape [S]."""
        if name in self.costs:
            return np.full(len(samples), self.costs[name], dtype=np.int64)
        total = np.zeros(len(samples), np.int64)
        for layout, key in self.flat:
            sizes, counts = sizes_of(as_lists(samples.columns[key]))
            if name == "patches":
                owners = np.repeat(np.arange(len(counts)), counts)
                counts = np.bincount(owners, layout.patch_counts(sizes), len(counts)).astype(np.int64)
            total += counts
        for lists in self.lists if name == "images" else ():
            total += lengths_of(samples.columns[lists])
        return total

    def _lengths(self, samples: Samples) -> Int64 | None:
        """The longest token column of each sample, or what stands for it; None where the formation needs no lengths.

        Of columns with budgets of their own it is each column, shape [C, S].
        """
        if not self.formation.needs_lengths:
            return None
        if self.lengths:
            texts = self.formation.length_texts
            stated = [self._declared(samples, text, each) for text, each in zip(texts, self.lengths, strict=True)]
            return np.stack(stated) if self.formation.widths else stated[0]
        columns = [lengths_of(samples.columns[self.reader.lineage.length_key(column)]) for column in self.sequences]
        if self.formation.widths:
            return np.stack(columns)  # both are sorted by name
        if isinstance(self.formation, Packed):
            _need_alike(self.formation, *self._groups(columns))
        longest: Int64 = np.maximum.reduce(columns)
        return longest

    def _groups(self, columns: Sequence[Int64]) -> tuple[Sequence[str], Sequence[Int64]]:
        """One column for all that share their places, as long as the longest of them."""
        shared = {stage.field.column: stage.together[:1] or (stage.field.column,) for stage in self.stages.sequences}
        out: dict[str, Int64] = {}
        for name, lengths in zip(self.sequences, columns, strict=True):
            (first,) = shared[name]
            out[first] = np.maximum(out[first], lengths) if first in out else lengths
        return list(out), list(out.values())

    def _declared(self, samples: Samples, text: str, length: Expr) -> Int64:
        """The lengths that a column of the relation states."""
        values = self._readable(samples, self.reader.value(samples, length, self.source, self.reader.end), length)
        if values.null_count:
            msg = (
                f"collate: length={text!r} is null for {values.null_count:,} of {len(values):,} samples of a "
                "window. Filter those rows out"
            )
            raise PlanError(msg)
        found = np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.int64)
        if len(found) and int(found.min()) < 0:
            msg = f"collate: length={text!r} is {int(found.min())}, and no sample is shorter than 0. Mend it"
            raise DataError(msg, row=int(found.argmin()))
        return found

    def _readable(self, samples: Samples, values: pa.Array, expr: Expr) -> pa.Array:
        """Values of an expression with 0 for the samples that are refused; their batch counts them."""
        if not values.null_count:
            return values
        keys = self.reader.lineage.expression_keys(expr, self.reader.end)
        refused = pa.array(self.reader.refused(samples, keys))
        return pc.if_else(refused, pa.scalar(0).cast(values.type), values)

    def _key_values(self, samples: Samples, text: str, key: Expr) -> NDArray[np.float64] | Int64:
        values = self._readable(samples, self.reader.value(samples, key, self.source, self.reader.end), key)
        if values.null_count:
            msg = (
                f"collate: bucket key {text!r} is null for {values.null_count:,} of {len(values):,} samples of a window. "
                "Filter those rows out"
            )
            raise PlanError(msg)
        numbers = values.to_numpy(zero_copy_only=False)
        if pa.types.is_integer(values.type):
            return np.asarray(numbers, dtype=np.int64)
        return np.asarray(numbers, dtype=np.float64)


def _calls(step: Sampled) -> bool:
    if isinstance(step, SampleFilter):
        return isinstance(step.predicate, Function)
    return isinstance(step, SampleMap | SampleRecords | SampleFlatMap | SampleAssembly)


def _need_alike(packed: Packed, names: Sequence[str], lengths: Sequence[Int64]) -> None:
    """Refuse a sample whose token columns differ in length: packed, they share the places of one piece.

    Raises:
        DataError: says which columns; ``row`` is the first such sample.
    """
    if len(names) == 1:
        return
    columns_CS = np.stack(lengths)  # C columns, S samples
    if packed.oversize == "truncate":  # what is cut off need not agree
        columns_CS = np.minimum(columns_CS, packed.row_widths[0])
    unlike = columns_CS != columns_CS[0]
    if packed.oversize == "drop":
        unlike &= columns_CS.max(axis=0) <= packed.row_widths[0]
    if not unlike.any():
        return
    row = int(np.flatnonzero(unlike.any(axis=0))[0])
    other = int(np.flatnonzero(unlike[:, row])[0])
    each = ", ".join(f"{name!r}: {packed.row_text}" for name in names)
    msg = (
        f"collate: it has {int(lengths[0][row]):,} tokens in {names[0]!r} and {int(lengths[other][row]):,} in {names[other]!r}, "
        "and Packed lays the columns of a sample over the same places. Make them equally long, for example with -100 where "
        f"a label is to be ignored, give each column a width of its own (max_tokens={{{each}}}), or use WindowedBucket, which "
        "pads each column by itself"
    )
    raise DataError(msg, row=row)
