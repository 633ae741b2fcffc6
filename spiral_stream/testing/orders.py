"""The laws of orders and of formations: each pass reads every row once, and each sample is in one batch, within the limits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.budget import BatchBudget
from spiral_stream.batching.formation import Formation, Former, Membership, OversizeTally, Packing, Setting, Window
from spiral_stream.batching.tail import DropPartial, KeepPartial, PadPartial, Tail
from spiral_stream.sampling.order import Order, Population

Int64 = NDArray[np.int64]


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
            assert [arranged.positions_of(row) for row in some] == read, f"pass {number}: places_of() misses rows"
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
            full_length = int(lengths[sample])
            assert at == full_length or out.tally.truncated, (
                f"sample {sample} has {full_length} tokens, and {at} are in batches"
            )
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
