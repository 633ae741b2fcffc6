"""The laws that every source, order, formation and stream keeps, to test your own against.

Each ``check_...`` function raises `AssertionError` at the first place where its law is broken:

==================== ==========================================================================
`check_source`       *source*: units, scans, fetches agree; content keys stand for rows
`check_transform`    *transform*: a value depends on its row and its key alone, wherever it is made
`check_order`        *cover*, *pure*: each pass reads every row once
`check_formation`    *cover*, *bounded*, *pure*: each sample is in one batch, within the limits
`check_replay`       *replay*: the same plan gives the same bytes
`check_resume`       *resume*: a state saved after any step leads to the same batches
`check_loops`        *loops*: however a loop ends, the next one reads the next epoch
`check_elastic`      *elastic*: any number of ranks delivers the same global batches
==================== ==========================================================================

The laws of streams take a function that makes a new stream each time:

    check_resume(lambda: plan.to_numpy())
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import wraps
from itertools import islice
from typing import Any, Final, ParamSpec, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.budget import BatchBudget
from spiral_stream.batching.formation import Formation, Former, Membership, OversizeTally, Packing, Setting, Window
from spiral_stream.batching.tail import DropPartial, KeepPartial, PadPartial, Tail
from spiral_stream.catalog.source_laws import check_source as check_source  # noqa: PLC0414  its door
from spiral_stream.errors import SpiralWarning
from spiral_stream.host_dtypes import as_array
from spiral_stream.planner.transform_laws import check_transform as check_transform  # noqa: PLC0414  its door
from spiral_stream.prepared import PreparedStream
from spiral_stream.sampling.nodes import Nodes
from spiral_stream.sampling.order import Order, Population

MakeStream = Callable[[], PreparedStream]
Loop = Callable[[PreparedStream, int], Iterator[Any]]  # (stream, steps left in the epoch) -> batches of one pass
Int64 = NDArray[np.int64]

P = ParamSpec("P")


def _unwarned(law: Callable[P, None]) -> Callable[P, None]:
    """Silence the warnings of a law that tries more ranks than a small stream can feed."""

    @wraps(law)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpiralWarning)
            law(*args, **kwargs)

    return checked


def _broken_off(stream: PreparedStream, steps: int) -> Iterator[Any]:
    for number, batch in enumerate(stream, 1):
        yield batch
        if number == steps:
            break


LOOPS: Final[Mapping[str, Loop]] = {
    "exhaustion": lambda stream, _: iter(stream),
    "break": _broken_off,
    "islice": islice,
    "zip": lambda stream, steps: (batch for _, batch in zip(range(steps), stream, strict=False)),
}  # each ends after the last batch of an epoch


def same(a: Any, b: Any) -> bool:
    """Return whether two batches, or two fields of them, are equal bit for bit."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return bool(a == b)
    left, right = as_array(a), as_array(b)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def frozen(batch: dict[str, Any]) -> dict[str, Any]:
    """Copy a batch, so that its memory may be used again."""
    return {name: value if isinstance(value, list) else as_array(value).copy() for name, value in batch.items()}


def check_order(order: Order, population: Population, passes: Sequence[int] = (0, 1)) -> None:
    """*cover* and *pure*: each pass reads every row once, and asking for some positions gives what asking for all does.

    An order that repeats rows need not cover, but finds each row wherever it is read.

    Args:
        order: the policy to test.
        population: the rows that it orders.
        passes: the passes over the rows to test.

    Raises:
        AssertionError: the law is broken.
    """
    size = order.size(population)
    everything = np.arange(size, dtype=np.uint64)
    for number in passes:
        arranged = order.arrange(population, number)
        assert arranged.size == size, f"pass {number} has not the positions that size() says"
        rows = arranged.rows(everything)
        if order.repeats_rows:
            some = np.unique(np.linspace(0, population.total - 1, 8).astype(np.int64)).tolist()
            read = [np.flatnonzero(rows == row).tolist() for row in some]
            assert [arranged.places_of(row) for row in some] == read, f"pass {number}: places_of() misses rows"
        else:
            assert len(np.unique(rows)) == size, f"pass {number} does not read every row exactly once"
            back = arranged.positions(rows)
            assert np.array_equal(back, everything), f"pass {number}: positions() is not the inverse"
        half = arranged.rows(everything[: size // 2])
        assert np.array_equal(half, rows[: size // 2]), f"pass {number}: rows depend on what else is asked"


@final
@dataclass
class ChapterSamples:
    """The samples of one chapter, as a formation sees them: N samples in their order, never their payload.

    Args:
        lengths: shape [N]: tokens of each; [C, N] for a formation that gives C columns a width of their own.
        streams: shape [N], int32: the stream of each in a mixture; zeros without one.
        shares: K target shares that sum to 1; None without a mixture.
        ahead: K numbers of samples by which each stream is ahead of its share at the chapter's start.
        keys: the values of the bucket keys, shape [N] each.
        costs: what counts against the budget's ``max_frames`` and ``max_bytes``, shape [N] each, in this order.
        known: whether the samples have lengths at all.
    """

    lengths: NDArray[Any]
    streams: NDArray[Any]
    shares: list[Fraction] | None = None
    ahead: list[Fraction] | None = None
    keys: tuple[NDArray[Any], ...] = ()
    costs: tuple[NDArray[Any], ...] = ()
    known: bool = True

    def window(self, start: int, stop: int) -> Window:
        """Return the samples in ``[start, stop)`` as the window that a former takes."""
        part = slice(start, stop)
        lengths = self.lengths[..., part] if self.known else None
        keys, costs = (tuple(each[part] for each in some) for some in (self.keys, self.costs))
        return Window(np.arange(start, stop), self.streams[part], lengths, keys, costs)

    def setting(
        self,
        key: int = 1,
        multiple: int = 1,
        batch_size: int | None = None,
        last: Tail | None = None,
        *,
        scarce: bool = False,
    ) -> Setting:
        """Return the setting for this chapter; the arguments are those of `Setting`."""
        shares = None if self.shares is None else np.array([float(each) for each in self.shares])
        ahead = None if self.ahead is None else np.array([float(each) for each in self.ahead])
        return Setting(key, len(self.streams), multiple, batch_size, shares, ahead, last=last, scarce=scarce)


@final
@dataclass
class FormedChapter:
    """What a formation made of one chapter."""

    batches: list[Membership] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)  # batches that each window completed
    waited: list[int] = field(default_factory=list)  # samples that waited after each window
    tally: OversizeTally = field(default_factory=OversizeTally)

    def samples(self) -> list[list[int]]:
        """Return the samples of each batch, as numbers in the chapter."""
        return [batch.samples.tolist() for batch in self.batches]


def check_formation(policy: Formation, chapter: ChapterSamples, setting: Setting) -> FormedChapter:
    """*cover*, *bounded* and *pure*: form a chapter as the runtime does, and check what no formation may break.

    Each sample is in exactly one batch, or was dropped and counted; of a packed chapter, each token is. No batch is above
    the budget or the batch size. The pool always takes a sample, and never more than a window. The tail rules may drop
    (`DropPartial`) or repeat (`PadPartial`) samples. Forming the chapter again gives the same batches.

    Args:
        policy: the formation to test.
        chapter: its samples.
        setting: what the former is told, usually ``chapter.setting(...)``.

    Returns:
        The batches, for further checks of your own.

    Raises:
        AssertionError: the law is broken.
        DataError: a sample is above the budget, and the policy refuses those.
    """
    out, again = _formed(policy, chapter, setting), _formed(policy, chapter, setting)
    assert list(map(_as_lists, out.batches)) == list(map(_as_lists, again.batches)), "forming again gives other batches"
    size = len(chapter.streams)
    if out.batches and out.batches[0].packing is not None:
        _check_packed(out, chapter, tuple(policy.widths.values()))
        return out
    given = [sample for batch in out.samples() for sample in batch]
    if setting.last is None or isinstance(setting.last, KeepPartial):
        assert sorted([*given, *out.tally.first.tolist()]) == list(range(size)), (
            "a sample is in no batch, or in several"
        )
        assert out.waited[-1] == 0, f"{out.waited[-1]} samples still wait at the chapter's end"
    else:
        repeated, missing = len(given) - len(set(given)), size - len(set(given))
        assert not repeated or isinstance(setting.last, PadPartial), f"{repeated} samples are in several batches"
        assert not missing or isinstance(setting.last, DropPartial), f"{missing} samples are in no batch"
    for number, batch in enumerate(out.batches):
        _check_batch(number, batch, getattr(policy, "budget", None), chapter, setting)
    return out


def _formed(policy: Formation, chapter: ChapterSamples, setting: Setting) -> FormedChapter:
    """Feed a chapter to a former, window by window."""
    former: Former = policy.former(setting)
    out, at, size = FormedChapter(tally=former.tally), 0, len(chapter.streams)
    while True:
        stop = min(size, at + former.room)
        batches = former.form(chapter.window(at, stop), final=stop == size)
        at = stop
        assert former.room <= policy.window_size, f"room is {former.room}, above window_size {policy.window_size}"
        assert former.room or at == size, f"nothing joins the pool after sample {at}, and {size - at} are left"
        out.batches += batches
        out.windows.append(len(batches))
        out.waited.append(policy.window_size - former.room)
        if at == size:
            return out


def _as_lists(batch: Membership) -> list[Any]:
    packing = batch.packing
    packed = [] if packing is None else [packing.rows, packing.starts, packing.offsets, packing.lengths]
    arrays = [None if each is None else each.tolist() for each in (batch.samples, batch.lengths, *packed)]
    return [batch.rows, batch.width, *arrays]


def _check_batch(
    number: int, batch: Membership, budget: BatchBudget | None, chapter: ChapterSamples, setting: Setting
) -> None:
    assert batch.rows == len(batch.samples) >= 1, (
        f"batch {number} has {len(batch.samples)} samples in {batch.rows} rows"
    )
    if batch.lengths is None or not chapter.known:
        assert (batch.lengths, batch.width) == (None, 0), f"batch {number} has lengths, and its samples have none"
        tokens = 0
    else:
        width = max(1, -(-int(batch.lengths.max()) // setting.multiple)) * setting.multiple
        assert batch.width == width, f"batch {number} has width {batch.width}, and its samples need {width}"
        padded = budget is not None and budget.count == "padded"
        tokens = batch.rows * batch.width if padded else int(batch.lengths.sum())
    if setting.batch_size is not None:
        assert batch.rows <= setting.batch_size, f"batch {number} has {batch.rows} samples, above {setting.batch_size}"
    if budget is None or (budget.oversize == "alone" and batch.rows == 1):
        return
    limits = [limit for limit in (budget.max_frames, budget.max_bytes) if limit is not None]
    spent = [int(cost[batch.samples].sum()) for cost in chapter.costs]
    limits, spent = [budget.max_tokens or tokens, *limits], [tokens, *spent]
    assert all(cost <= limit for cost, limit in zip(spent, limits, strict=True)), (
        f"batch {number} costs {spent}, above the budget's {limits}"
    )


def _check_packed(out: FormedChapter, chapter: ChapterSamples, widths: tuple[int, ...]) -> None:
    """Every token of a sample lies in one place of one row, and no two tokens share a place; in each column by itself."""
    lengths_CN = np.atleast_2d(chapter.lengths)
    for column, lengths in enumerate(lengths_CN):
        found: dict[int, list[tuple[int, int]]] = {}
        for number, batch in enumerate(out.batches):
            assert isinstance(batch.packing, Packing), f"batch {number} is not packed, and others are"
            width = widths[column] if widths else batch.width
            _check_rows(number, batch.packing, column, width, batch.samples, found)
        for sample, pieces in found.items():
            at = 0
            for offset, length in sorted(pieces):
                assert offset == at, f"sample {sample}: tokens from {at} on are missing or repeated"
                at = offset + length
            whole = int(lengths[sample])
            assert at == whole or out.tally.truncated, f"sample {sample} has {whole} tokens, and {at} are in batches"
        missing = set(np.flatnonzero(lengths).tolist()) - set(found) - set(out.tally.first.tolist())
        assert not missing, f"{len(missing)} samples are in no batch"


def _check_rows(
    number: int,
    packing: Packing,
    column: int,
    width: int,
    samples: NDArray[Any],
    found: dict[int, list[tuple[int, int]]],
) -> None:
    """One column of one batch: its pieces lie inside the rows, and apart. They are added to what was found of each sample."""
    starts, lengths = (np.atleast_2d(each)[column] for each in (packing.starts, packing.lengths))
    ends = starts + lengths
    assert bool((ends <= width).all()), f"batch {number}: a piece ends after the width {width}"
    order = np.lexsort((starts, packing.rows))
    apart = starts[order][1:] >= ends[order][:-1]
    same_row = packing.rows[order][1:] == packing.rows[order][:-1]
    assert bool((apart | ~same_row).all()), f"batch {number}: two pieces overlap in a row"
    for sample, *piece in zip(*(each.tolist() for each in (samples, packing.offsets, lengths))):  # noqa: B905  of one length
        found.setdefault(sample, []).append((piece[0], piece[1]))


@_unwarned
def check_replay(make: MakeStream) -> None:
    """*replay*: the same plan gives the same bytes twice, also when every batch of an epoch is held at the same time.

    Args:
        make: returns a new stream.

    Raises:
        AssertionError: the law is broken.
    """
    with make() as first, make() as second:
        held = list(first)
        for at, batch in enumerate(second):
            assert same(held[at], batch), f"batch {at} differs when the stream is replayed"


@_unwarned
def check_resume(make: MakeStream, steps: Sequence[int] | None = None) -> None:
    """*resume*: stop after any step, load the state into a new stream, and the remaining batches are the same.

    The state is saved and loaded twice in a row. A state saved after the last step begins the next epoch.

    Args:
        make: returns a new stream.
        steps: numbers of steps to stop after; None tries all of the epoch.

    Raises:
        AssertionError: the law is broken.
    """
    with make() as whole:
        expected = [frozen(batch) for batch in whole]
        following = [frozen(batch) for batch in whole] if expected and (steps is None or len(expected) in steps) else []
    for stop in range(len(expected) + 1) if steps is None else steps:
        with make() as first:
            run = iter(first)
            for _ in range(stop):
                next(run)
            state = first.state_dict()
            run.close()  # type: ignore[attr-defined]  # a generator
            assert _place(first.state_dict()) == _place(state), f"after step {stop}: leaving the loop moves the place"
        with make() as second, make() as third:
            second.load_state_dict(json.loads(json.dumps(state)))
            again = second.state_dict()
            assert _place(again) == _place(state), f"after step {stop}: loading the state moves the place"
            third.load_state_dict(again)
            tail = [frozen(batch) for batch in third]
        rest = expected[stop:] if stop < len(expected) else following
        assert len(tail) == len(rest), f"after step {stop}: {len(tail)} batches left, not {len(rest)}"
        for at, batch in enumerate(tail):
            assert same(rest[at], batch), f"resumed after step {stop}: batch {at} of the rest differs"


def _place(state: Mapping[str, Any]) -> tuple[Any, ...]:
    return state["epoch"], state["batch"], state["step"]


@_unwarned
def check_loops(make: MakeStream, loops: Mapping[str, Loop] = LOOPS, passes: int = 2) -> None:
    """*loops*: however a loop ends after the last batch of an epoch, the next loop reads the next epoch.

    Args:
        make: returns a new stream.
        loops: ways to loop, by name.
        passes: epochs to read in a row.

    Raises:
        AssertionError: the law is broken.
    """
    with make() as whole:
        expected = [[frozen(batch) for batch in whole] for _ in range(passes)]
    for name, loop in loops.items():
        with make() as stream:
            for number, wanted in enumerate(expected):
                found = [frozen(batch) for batch in loop(stream, len(wanted))]
                assert len(found) == len(wanted), f"{name}: pass {number} has {len(found)} batches, not {len(wanted)}"
                for at, batch in enumerate(found):
                    assert same(wanted[at], batch), f"{name}: batch {at} of pass {number} differs"


@_unwarned
def check_elastic(make: MakeStream, worlds: Sequence[int] = (1, 2, 3, 4), ranks_per_node: int | None = None) -> None:
    """*elastic*: the ranks of any world size together deliver the batches of one rank, in the same order.

    Args:
        make: returns a new stream.
        worlds: numbers of ranks to try.
        ranks_per_node: also bound; divides each of ``worlds``.

    Raises:
        AssertionError: the law is broken.
    """
    with make() as stream:
        whole = [frozen(batch) for batch in stream.bind(rank=0, world_size=1)]
    for world in worlds:
        ranks: list[Any] = []
        for rank in range(world):
            with make() as stream:
                ranks.append([*map(frozen, stream.bind(rank=rank, world_size=world, ranks_per_node=ranks_per_node))])
        placed = [ranks[Nodes(world, ranks_per_node or 1).rank_at(at)] for at in range(world)]
        merged = [batches[s] for s in range(len(whole)) for batches in placed if s < len(batches)]
        for at, batch in enumerate(merged[: len(whole)]):
            assert same(whole[at], batch), f"world size {world}: global batch {at} differs"
