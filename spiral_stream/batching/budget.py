"""What a batch may hold: the budget of a plan, and the limits of a chapter's batches.

A budget bounds a batch's tokens, with or without padding, and sums over its samples. Every limit is monotone: a run of
samples that breaks it still breaks it when samples are added, so one comparison of arrays finds the longest run that
fits. A sample that breaks a limit on its own is handled by the budget's ``oversize`` policy before any batch is formed.
Packed rows have a ``max_tokens`` of their own, in `packing`.
"""

from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import check, class_door, integer, one_of
from spiral_stream.batching.formation import Int64, Setting, Window
from spiral_stream.batching.padding_width import padded
from spiral_stream.errors import DataError, PlanError

Bool = NDArray[np.bool_]
Count = Literal["padded", "real"]
Oversize = Literal["raise", "truncate", "alone", "drop"]

COUNTS: Final = ("padded", "real")
OVERSIZE: Final = ("raise", "truncate", "alone", "drop")
MAX_LIMIT: Final = 2**53  # sums over a window stay exact
SHARE: Final = 4  # a batch costs a quarter of max_tokens (docs/decisions/0064)
MAX_PRICE: Final = 2**39  # sums over a window stay below 2**63

# S samples, A additive limits


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class BatchBudget:
    """Limits that hold for every batch.

    Args:
        max_tokens: most tokens per batch. ``count`` says which tokens these are.
        max_frames: most video frames per batch, summed over its samples.
        max_bytes: most bytes of decoded video frames per batch, as they are delivered. Text does not count.
        max_images: most images per batch, summed over the lists of its samples; padding does not count.
        max_patches: most pieces of images per batch: patches or tiles, as the layout of `FlatImages` counts them.
        count: ``"padded"`` counts rows times width, padding included; ``"real"`` counts the tokens of the samples.
        oversize: what to do with a sample that breaks a limit on its own: ``"raise"`` an error, ``"truncate"`` it to
            the tokens that fit, deliver it ``"alone"`` in a batch above the budget, or ``"drop"`` it. Metrics count
            truncated, lone and dropped samples.

    Raises:
        PlanError: a parameter is not one of these, or there is no limit.

    Examples:
        >>> bucketed = spiral.WindowedBucket(window_size=20, budget=spiral.BatchBudget(max_tokens=32))
        >>> padded = documents.collate(
        ...     batch_size=None, formation=bucketed, fields={"input_ids": spiral.Pad("tokens")}
        ... )
        >>> padded.to_numpy()[0]["input_ids"].size <= 32
        True
    """

    max_tokens: int | None = None
    max_frames: int | None = None
    max_bytes: int | None = None
    count: Count = "padded"
    oversize: Oversize = "raise"
    max_images: int | None = None
    max_patches: int | None = None

    def __post_init__(self) -> None:
        limits = {"max_tokens": self.max_tokens, **{f"max_{name}": limit for name, limit in self._sums.items()}}
        for name, value in limits.items():
            if value is not None:
                integer(1, MAX_LIMIT).need(f"BatchBudget: {name} is ", value)
        if all(value is None for value in limits.values()):
            msg = "BatchBudget: no limit is given. Give max_tokens, max_frames, max_bytes, max_images or max_patches"
            raise PlanError(msg)
        check(self, "BatchBudget", " is ", count=one_of(COUNTS), oversize=one_of(OVERSIZE))
        if self.oversize == "truncate" and self.max_tokens is None:
            msg = "BatchBudget: oversize='truncate' cuts tokens, and there is no max_tokens. Give it, or another policy"
            raise PlanError(msg)

    @property
    def additive(self) -> dict[str, int]:
        """The limits of sums that are given, by name: of ``frames``, ``bytes``, ``images`` and ``patches``."""
        return {name: limit for name, limit in self._sums.items() if limit is not None}

    @property
    def _sums(self) -> dict[str, int | None]:
        most = (self.max_frames, self.max_bytes, self.max_images, self.max_patches)
        return dict(zip(("frames", "bytes", "images", "patches"), most, strict=True))


@final
@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of every batch of a chapter."""

    multiple: int
    batch_size: int | None
    max_tokens: int | None
    padded: bool
    additive: tuple[int, ...]  # A
    price: int | None = (
        None  # of a batch, in tokens, where windows are cut to pad least; None: batches as long as they may be
    )

    @property
    def only_counts(self) -> bool:
        """Whether the number of samples is the only limit."""
        return self.max_tokens is None and not self.additive

    def widths(self, longest: Int64) -> Int64:
        """Return the width T of batches from the length of their longest sample; any shape, int64."""
        return padded(longest, self.multiple)

    def hold(self, counts: Int64, longest: Int64 | None, tokens: Int64 | None, sums: tuple[Int64, ...]) -> Bool:
        """Return whether batches keep to every limit.

        Args:
            counts: shape [N], samples per batch.
            longest: shape [N], the longest length in each batch; None if no field has a length.
            tokens: shape [N], the sum of the lengths in each batch; None if no field has a length.
            sums: A arrays of shape [N], the additive costs of each batch.

        Returns:
            shape [N], bool.
        """
        good = np.ones(len(counts), dtype=np.bool_) if self.batch_size is None else counts <= self.batch_size
        if self.max_tokens is not None:
            assert longest is not None
            assert tokens is not None
            good &= (counts * self.widths(longest) if self.padded else tokens) <= self.max_tokens
        for limit, total in zip(self.additive, sums, strict=True):
            good &= total <= limit
        return good


def limits_of(budget: BatchBudget | None, setting: Setting, *, sorts: bool = False) -> BatchLimits:
    """Return the limits of a chapter's batches.

    Args:
        budget: of the plan.
        setting: of the chapter.
        sorts: whether samples are sorted, so that under ``max_tokens`` it matters for padding where they are cut.

    Raises:
        PlanError: there is no limit, or one that no sample can keep to.
    """
    if budget is None:
        if setting.batch_size is None:
            msg = "collate: batch_size is None and there is no budget. Give batch_size, or budget=BatchBudget(max_tokens=...)"
            raise PlanError(msg)
        return BatchLimits(setting.multiple, setting.batch_size, None, padded=True, additive=())
    padded = budget.count == "padded"
    if budget.max_tokens is not None and padded and budget.max_tokens < setting.multiple:
        msg = (
            f"BatchBudget: max_tokens is {budget.max_tokens}, but one row is already {setting.multiple} wide "
            "(pad_to_multiple_of of a field). Raise max_tokens, or lower pad_to_multiple_of"
        )
        raise PlanError(msg)
    additive = tuple(budget.additive.values())
    price = min(budget.max_tokens // SHARE, MAX_PRICE) if sorts and budget.max_tokens is not None else None
    return BatchLimits(setting.multiple, setting.batch_size, budget.max_tokens, padded, additive, price)


def too_large(window: Window, limits: BatchLimits) -> Bool:
    """Return which samples break a limit on their own; shape [S]."""
    lengths = None if window.lengths is None else np.asarray(window.lengths, dtype=np.int64)
    costs = tuple(np.asarray(cost, dtype=np.int64) for cost in window.costs)
    return ~limits.hold(np.ones(len(window.samples), dtype=np.int64), lengths, lengths, costs)


def truncated(lengths: Int64, limits: BatchLimits) -> Int64:
    """Return lengths cut to what one row may hold; shape [S]."""
    if limits.max_tokens is None:
        return lengths
    width = limits.max_tokens // limits.multiple * limits.multiple if limits.padded else limits.max_tokens
    return np.minimum(lengths, width)


def oversize_error(window: Window, index: int, budget: BatchBudget, limits: BatchLimits) -> DataError:
    """Return the error for a sample that breaks a limit on its own; ``sample`` is its number in the chapter."""
    names = ("tokens", *budget.additive)
    values = (0 if window.lengths is None else int(window.lengths[index]), *(int(cost[index]) for cost in window.costs))
    allowed = (limits.max_tokens, *limits.additive)
    found = [
        f"{value} {name}, and a batch may hold {limit}"
        for name, value, limit in zip(names, values, allowed, strict=True)
        if limit is not None and value > (int(truncated(np.array([value]), limits)[0]) if name == "tokens" else limit)
    ]
    others = [policy for policy in OVERSIZE if policy not in ("raise", budget.oversize)]
    if limits.max_tokens is None:
        others.remove("truncate")
    msg = (
        f"collate: a sample has {'; '.join(found)} (rows are padded to a multiple of {limits.multiple}). Raise the budget, "
        f"filter on the length, or choose oversize={' or '.join(repr(policy) for policy in others)} in BatchBudget"
    )
    return DataError(msg, sample=int(window.samples[index]))
