"""Which samples of a window share a batch: samples of similar size, as many as the budget allows.

A window's samples join the pool of waiting samples. The pool is sorted by the keys (ties by position) and cut into runs
that keep to every limit; the last run waits unless no further sample can join it. With keys and a limit of tokens, the
runs are those that hold the fewest tokens with their padding, and a quarter of the limit per run (docs/decisions/0064);
else each is as long as the limits allow. At a chapter's end, the last samples that fill no batch wait for the lane's end,
if batches are counted (docs/decisions/0057); under a budget nothing waits, and the last two runs are cut again evenly. A
composition groups the sorted pool in its own way.

Cost: about 1 ms for a window of 8,192 samples, and 8 us per batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self, final

import numpy as np

from spiral_stream import expr
from spiral_stream.arguments import check, class_door, integer, of_kind
from spiral_stream.batching.budget import (
    BatchBudget,
    BatchLimits,
    limits_of,
    oversize_error,
    too_large,
    truncated,
)
from spiral_stream.batching.composition import OneStream, StratifiedByStream
from spiral_stream.batching.cutting import even_end, is_full, run_ends
from spiral_stream.batching.emission import emission_order
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
    length_text,
)
from spiral_stream.batching.grouping import Grouping, Pool, Run
from spiral_stream.batching.one_stream import OneStreamGrouping
from spiral_stream.batching.stratified import StratifiedGrouping
from spiral_stream.errors import PlanError, shown

WINDOW: Final = 8192
_BUDGET: Final = of_kind(BatchBudget | None, "BatchBudget(max_tokens=...), or None")
_COMPOSITION: Final = of_kind(
    StratifiedByStream | OneStream | None, "StratifiedByStream('stream_id'), OneStream() or None"
)
MAX_WINDOW: Final = 2**22
MAX_GROUP: Final = 2**20
_NONE: Final = slice(0, 0)
_SHORT: Final = np.iinfo(np.uint16).max
_PATIENCE: Final = 8  # under a budget, 1 / 8 of the window is kept free, so that a pool is not sorted for a few samples

# S samples of a window or pool


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class BucketKey:
    """A property in which the samples of a batch are similar.

    Args:
        text: an expression over columns, such as ``len(tokens)``, ``width * height`` or ``len(`my column`)``.

    Raises:
        PlanError: the text is not such an expression; the message shows where.

    Examples:
        >>> spiral.BucketKey("len(tokens)").text
        'len(tokens)'
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            msg = f"BucketKey: {shown(self.text)} is not a text. Give an expression such as 'len(tokens)'"
            raise PlanError(msg)
        expr.parse(self.text)


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class WindowedBucket(Formation):
    """Batches of similar samples.

    Args:
        window_size: how many samples are considered together, and how many may wait at most. Larger windows pad less
            and use more memory.
        keys: what samples are sorted by, most important key first. Without keys they keep their order.
        budget: what a batch may hold. None: only ``batch_size`` limits it. Under ``max_tokens`` a sorted window is cut
            where it pads least; a batch more has to save a quarter of ``max_tokens``, so batches need not be full.
        cost_group: how many batches of similar size are delivered in a row. Use at least the world size, so that all
            ranks do similar work in a step.
        composition: how streams share a batch. `collate` sets it.
        length: a stored column that says how many tokens a sample has, such as ``col("n_tokens")``, for the budget's
            ``max_tokens``. Then batches are formed without their tokens, if no key needs those. A sample whose tokens
            are not as many is a `DataError`.

    Raises:
        PlanError: a parameter is of another type, or out of range.

    Examples:
        >>> bucketed = spiral.WindowedBucket(window_size=20, keys=[spiral.BucketKey("len(tokens)")])
        >>> padded = documents.collate(batch_size=4, formation=bucketed, fields={"input_ids": spiral.Pad("tokens")})
        >>> padded.to_numpy()[0]["input_ids"].shape
        (4, 1)
    """

    VERSION: ClassVar[int] = 1
    COUNTED: ClassVar[int] = 3  # without a budget: what a chapter cannot fill waits for the lane's end
    PADDED: ClassVar[int] = 4  # sorted, under max_tokens: cut where the window pads least
    window_size: int = WINDOW
    keys: Sequence[BucketKey] = ()
    budget: BatchBudget | None = None
    cost_group: int = 8
    composition: Composition | None = None
    length: str | expr.Expr | None = None  # type: ignore[assignment]  # a text once it is made

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", length_text("WindowedBucket", self.length))
        check(self, "WindowedBucket", " is ", window_size=integer(1, MAX_WINDOW), cost_group=integer(1, MAX_GROUP))
        if isinstance(self.keys, str | BucketKey) or not isinstance(self.keys, Iterable):
            msg = f"WindowedBucket: keys is {shown(self.keys)}. Give a list of keys: [BucketKey('len(tokens)')]"
            raise PlanError(msg)
        object.__setattr__(self, "keys", tuple(self.keys))
        for each in self.keys:
            if not isinstance(each, BucketKey):
                msg = f"WindowedBucket: {each!r} is not a key. Give BucketKey('len(tokens)'), or one of another expression"
                raise PlanError(msg)
        check(self, "WindowedBucket", " is ", budget=_BUDGET)
        if self.length is not None and not self.needs_lengths:
            msg = "WindowedBucket: length is for the budget's max_tokens, which is not given. Give it, or leave length out"
            raise PlanError(msg)
        check(self, "collate", " is ", composition=_COMPOSITION)

    @property
    def version(self) -> int:
        """The version of the batches it forms: 3 where samples are counted, 4 with keys under ``max_tokens``, else 1."""
        if self.budget is None:
            return self.COUNTED
        return self.PADDED if self.needs_lengths and self.keys else self.VERSION

    @property
    def needs_lengths(self) -> bool:
        return self.budget is not None and self.budget.max_tokens is not None

    @property
    def key_texts(self) -> tuple[str, ...]:
        return tuple(each.text for each in self.keys)

    @property
    def cost_names(self) -> tuple[str, ...]:
        return () if self.budget is None else tuple(self.budget.additive)

    @property
    def counts_samples(self) -> bool:
        return self.budget is None

    @property
    def leaves(self) -> bool:
        return self.budget is None

    def most_left(self, rows: int, streams: int) -> int:
        if isinstance(self.composition, OneStream):
            return streams * (self.composition.batches * rows - 1)
        return rows - 1

    def most_tokens(self, batch_size: int) -> int | None:
        del batch_size
        return None if self.budget is None else self.budget.max_tokens

    def most_samples(self, batch_size: int | None, costs: Mapping[str, int]) -> int:
        counted = self.window_size if batch_size is None else min(batch_size, self.window_size)
        limits = {} if self.budget is None else self.budget.additive
        return max(1, min([counted, *(limit // costs[name] for name, limit in limits.items())]))

    def with_composition(self, composition: Composition | None) -> Self:
        """Return the same formation with another composition.

        Raises:
            PlanError: the composition is not one of this library's.
        """
        return replace(self, composition=composition)

    def former(self, setting: Setting) -> Former:
        """Return the former of one chapter.

        Raises:
            PlanError: there is no limit, or one that no batch can keep to; or there is a composition, but no mixture.
        """
        limits = limits_of(self.budget, setting, sorts=bool(self.keys))
        if self.budget is None and self.window_size < (setting.batch_size or 0):
            msg = (
                f"WindowedBucket: window_size is {self.window_size}, less than a batch of {setting.batch_size}. Give at "
                f"least window_size={setting.batch_size}, and better many times that"
            )
            raise PlanError(msg)
        return WindowedFormer(self, limits, self._grouping(limits, setting), ends=setting.ends)

    def _grouping(self, limits: BatchLimits, setting: Setting) -> Grouping:
        if isinstance(self.composition, StratifiedByStream):
            return StratifiedGrouping(self.composition, limits, setting, self._group)
        if isinstance(self.composition, OneStream):
            return OneStreamGrouping(self.composition, limits, setting, self._group, self.window_size)
        return _SortedRuns(limits, setting, self._group)

    @property
    def _group(self) -> int:
        """Batches that stay together in the order of delivery; without keys all do, in the order of positions."""
        return self.cost_group if self.keys else self.window_size


@final
class _SortedRuns(Grouping):
    """The grouping without composition: the sorted pool, cut from its start."""

    def __init__(self, limits: BatchLimits, setting: Setting, cost_group: int) -> None:
        self._limits = limits
        self._key = setting.key
        self._group = cost_group
        self._window = -1

    def group(self, pool: Pool, patience: int, *, final: bool) -> Sequence[Run]:
        self._window += 1
        ends = run_ends(len(pool.streams), pool.lengths, pool.costs, self._limits)
        if final:
            if not self._limits.only_counts:
                ends = even_end(ends, pool.lengths, pool.costs, self._limits)
        elif len(ends) > 1:
            start, stop = (int(end) for end in ends[-2:])
            if stop - start <= patience and not is_full(start, stop, pool.lengths, pool.costs, self._limits):
                ends = ends[:-1]
        order = emission_order(len(ends) - 1, self._group, self._key, self._window)
        return list(map(slice, ends[order].tolist(), ends[order + 1].tolist()))


@final
class WindowedFormer(Former):
    """Forms the batches of one chapter from its windows."""

    def __init__(self, policy: WindowedBucket, limits: BatchLimits, grouping: Grouping, *, ends: bool) -> None:
        self.tally = OversizeTally()
        self._policy = policy
        self._limits = limits
        self._grouping = grouping
        self._counted = limits.batch_size if policy.budget is None and not grouping.leaves else None
        self._rest_is_short = ends and policy.budget is None and not grouping.settles
        free = 1 if policy.budget is None else max(1, policy.window_size // _PATIENCE)
        self._patience = policy.window_size - free
        self._waiting: Window | None = None

    @property
    def room(self) -> int:
        """How many samples the pool can take now."""
        return self._policy.window_size - (0 if self._waiting is None else len(self._waiting.samples))

    def form(self, window: Window, *, final: bool) -> list[Membership]:
        if window.shares is not None:
            self._grouping.turn(window.shares)
        fitting, alone = self._admitted(window)
        pool = fitting if self._waiting is None else _joined(self._waiting, fitting)
        late = _taken(pool, _NONE)
        if final and self._counted is not None:  # the last to join wait, whatever their keys
            counted = len(pool.samples) // self._counted * self._counted
            joined = np.argsort(pool.samples, kind="stable")
            pool, late = _taken(pool, np.sort(joined[:counted])), _taken(pool, np.sort(joined[counted:]))
        order = _by_keys(pool)
        ranked = Pool(
            pool.streams[order],
            pool.samples[order],
            None if pool.lengths is None else pool.lengths[order],
            tuple(c[order] for c in pool.costs),
        )
        batches = self._grouping.group(ranked, self._patience, final=final)
        waits = np.ones(len(order), dtype=np.bool_)
        for ranks in batches:
            waits[ranks] = False
        waiting = _taken(pool, np.sort(order[waits]))
        self._waiting = _joined(waiting, late) if len(late.samples) else waiting
        formed = self._memberships(ranked, batches)
        formed += self._memberships(alone, [slice(at, at + 1) for at in range(len(alone.samples))])
        if len(alone.samples) and not self._policy.keys and self._policy.composition is None:
            formed.sort(key=lambda batch: int(batch.samples[0]))
        if final and self._rest_is_short and len(self._waiting.samples):
            formed += self._memberships(self._waiting, [_by_keys(self._waiting)])
            self._waiting = None
        return formed

    def left(self) -> Left:
        waiting = np.empty(0, dtype=np.int64) if self._waiting is None else self._waiting.samples
        return Left(np.sort(waiting))

    def _admitted(self, window: Window) -> tuple[Window, Window]:
        """The samples that may share batches, and those that get a batch of their own; counts them in the tally."""
        window = _taken(window, slice(None))
        large = too_large(window, self._limits)
        nothing = _taken(window, _NONE)
        budget = self._policy.budget
        if budget is None or not large.any():
            return window, nothing
        found = np.flatnonzero(large)
        if budget.oversize == "truncate":
            assert window.lengths is not None
            window = replace(window, lengths=truncated(window.lengths, self._limits))
            still = too_large(window, self._limits)
            if still.any():  # frames and bytes cannot be cut
                raise oversize_error(window, int(np.flatnonzero(still)[0]), budget, self._limits)
            self.tally.truncated += len(found)
            return window, nothing
        if budget.oversize == "raise":
            raise oversize_error(window, int(found[0]), budget, self._limits)
        self._grouping.note(window.streams[found])
        rest = _taken(window, np.flatnonzero(~large))
        if budget.oversize == "alone":
            self.tally.alone += len(found)
            return rest, _taken(window, found)
        self.tally.dropped += len(found)
        self.tally.first = np.concatenate((self.tally.first, window.samples[found]))
        return rest, nothing

    def _memberships(self, pool: Pool | Window, runs: Sequence[Run]) -> list[Membership]:
        """Batches of samples of a pool, as views where these are neighbours."""
        samples = [pool.samples[run] for run in runs]
        if pool.lengths is None:
            return [Membership(each, len(each)) for each in samples]
        lengths = [pool.lengths[run] for run in runs]
        widths = self._limits.widths(_longest(pool.lengths, runs)).tolist()
        return [
            Membership(some, len(some), *of)
            for some, of in zip(samples, zip(widths, lengths, strict=True), strict=True)
        ]


def _longest(lengths: Int64, runs: Sequence[Run]) -> Int64:
    """The longest length of each run, shape [J]."""
    if not all(isinstance(run, slice) for run in runs) or not runs:
        return np.array([lengths[run].max() for run in runs], dtype=np.int64)
    bounds = np.array([(run.start, run.stop) for run in runs if isinstance(run, slice)], dtype=np.int64)
    order = np.argsort(bounds[:, 0])
    found = np.empty(len(runs), dtype=np.int64)
    with_gaps = np.maximum.reduceat(np.append(lengths, 0), bounds[order].ravel())
    found[order] = with_gaps[::2]
    return found


def _by_keys(pool: Window) -> Int64:
    """The order of the keys, ties by position; shape [S]."""
    samples, key = pool.samples, pool.keys[0] if len(pool.keys) == 1 else None
    if key is None or not len(key) or not bool((samples[1:] > samples[:-1]).all()):
        return np.lexsort((samples, *reversed(pool.keys)))
    if key.dtype == np.int64 and int(key.max()) - int(least := key.min()) <= _SHORT:
        key = (key - least).astype(np.uint16)  # NumPy sorts 16 bits by radix, in a sixth of the time
    return np.argsort(key, kind="stable")


def _taken(window: Window, index: Int64 | slice) -> Window:
    """The samples at ``index``; views, if it is a slice."""
    return Window(
        np.asarray(window.samples, dtype=np.int64)[index],
        np.asarray(window.streams, dtype=np.int32)[index],
        None if window.lengths is None else np.asarray(window.lengths, dtype=np.int64)[index],
        tuple(np.asarray(values)[index] for values in window.keys),
        tuple(np.asarray(values, dtype=np.int64)[index] for values in window.costs),
    )


def _joined(first: Window, second: Window) -> Window:
    lengths = None
    if first.lengths is not None and second.lengths is not None:
        lengths = np.concatenate((first.lengths, second.lengths))
    return Window(
        np.concatenate((first.samples, second.samples)),
        np.concatenate((first.streams, second.streams)),
        lengths,
        tuple(np.concatenate(pair) for pair in zip(first.keys, second.keys, strict=True)),
        tuple(np.concatenate(pair) for pair in zip(first.costs, second.costs, strict=True)),
    )
