"""Who shares a batch: the family's interface, and its tail rules.

A `Formation` is the frozen value of the plan. For each chapter of a lane it makes a
`Former`, which is fed windows of samples as arrays (keys, lengths, streams; never
payload) and answers with the batches that are complete. What it answers is a pure
function of the windows and the `Setting`.

Tail rules are usable as bare names and called: ``last=DropPartial`` and
``last=DropPartial()`` are the same plan.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import PlanError, shown

CHAPTER_WINDOWS: Final = 64  # windows of a lane after which formation starts anew (docs/decisions/0007)

Int64 = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """S samples that join a chapter's pool, as the arrays that formation looks at."""

    samples: Int64  # [S] their numbers in the chapter, ascending; ties of keys are broken by it
    streams: NDArray[np.int32]  # [S] stream of each in the mixture; zeros without one
    lengths: Int64 | None = None  # [S] tokens of each; None where no field has a length
    keys: tuple[NDArray[Any], ...] = ()  # [S] each: the values of the bucket keys, numbers
    costs: tuple[Int64, ...] = ()  # [S] each: what counts against the budget's additive limits, in their order
    shares: NDArray[np.float64] | None = None  # [K] target shares from here on; None: as they were


@final
@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What a chapter's former knows beside its windows."""

    key: int  # 64 bits, of (order seed, epoch, chapter): the same in every lane
    size: int  # samples in the chapter
    multiple: int = 1  # a batch's width T is a multiple of it
    batch_size: int | None = None  # at most (with packing: exactly) this many rows a batch
    shares: NDArray[np.float64] | None = None  # [K] target share of each stream, summing to 1; None without a mixture
    ahead: NDArray[np.float64] | None = (
        None  # [K] samples that each stream is ahead of its share at the chapter's start
    )
    even: bool = True  # whether the chapter's last two batches are cut alike; else the last one is short
    last: "Tail | None" = None  # the tail rule, for formations that keep to it in every chapter
    scarce: bool = (
        False  # whether the window may be too small for shares (`stratified.is_sure`): then the pool may fill up
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Where the samples of a packed batch lie in its rows. S pieces, of S or fewer samples."""

    rows: Int64  # [S] row of the batch, non-decreasing
    starts: Int64  # [S] first place in the row
    offsets: Int64  # [S] first token of the sample; 0 unless a sample was split
    lengths: Int64  # [S] tokens of the piece


@final
@dataclass(frozen=True, slots=True, eq=False)
class Membership:
    """One batch: S samples in their order, and the shape they share."""

    samples: Int64  # [S] numbers in the chapter; with packing one entry a piece
    rows: int  # B
    width: int = 0  # T, a multiple of the setting's; 0 where no field has a length
    lengths: Int64 | None = None  # [S] tokens delivered of each, after truncation; None where no field has a length
    packing: Packing | None = None  # None: sample i is row i, from its start


@dataclass(slots=True)
class OversizeTally:
    """What a former did to samples that no batch can hold as they are, and where."""

    dropped: int = 0
    truncated: int = 0
    alone: int = 0
    first: Int64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # samples dropped, for the ledger


class Former(ABC):
    """Forms the batches of one chapter. Fed windows in order; not thread-safe."""

    tally: OversizeTally

    @property
    @abstractmethod
    def room(self) -> int:
        """How many samples the pool takes now; at least 1 after `form` returned."""

    @abstractmethod
    def form(self, window: Window, *, final: bool) -> list[Membership]:
        """Take a window, and give the batches that are complete, in the order they are delivered.

        Args:
            window: the next ``min(room, samples left in the chapter)`` samples, less those that a
                filter refused: it may be empty.
            final: whether the chapter ends here; then every sample left in the pool is given too.

        Raises:
            DataError: a sample is above the budget and the policy is ``raise``; ``sample`` is its number in the chapter.
        """


class Formation(ABC):
    """A policy of the plan: frozen, JSON-able, without data. ``window_size`` samples wait at most."""

    VERSION: ClassVar[int] = 1  # part of the fingerprint; a change of any output raises it
    window_size: int

    @property
    @abstractmethod
    def needs_lengths(self) -> bool:
        """Whether `Window.lengths` must be given."""

    @property
    def key_texts(self) -> tuple[str, ...]:
        """The expressions whose values are `Window.keys`, such as ``len(tokens)``."""
        return ()

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The additive limits whose costs are `Window.costs`: of ``frames``, ``bytes``."""
        return ()

    @abstractmethod
    def with_composition(self, composition: "Composition | None") -> "Formation":
        """The same formation with streams sharing a batch so.

        Raises:
            PlanError: this formation cannot keep it.
        """

    @abstractmethod
    def former(self, setting: Setting) -> Former:
        """The former of one chapter."""


class Composition(ABC):  # noqa: B024  a closed family of rules; the arithmetic is in `composition` and `windowed`
    """How the streams of a mixture share a batch."""

    VERSION: ClassVar[int] = 1


class Tail(ABC):  # noqa: B024  a closed family of rules; the arithmetic is in `fixed`
    """What becomes of a short batch, and of a last step that lacks batches."""


@final
@dataclass(frozen=True, slots=True)
class DropPartial(Tail):
    """Drop the short batch, then the batches that do not fill a step of all ranks.

    Where formation counts samples (no budget, or packing) a chapter's last batch is short; under a budget none is. With
    ``OneStream(batches=n)`` what a stream has left at a chapter's end and fills no n batches is dropped.
    """


@final
@dataclass(frozen=True, slots=True)
class KeepPartial(Tail):
    """Deliver every sample once; ranks may differ by one step at the very end."""


@final
@dataclass(frozen=True, slots=True)
class PadPartial(Tail):
    """Fill the short batch, and the last step, with samples from the epoch's start.

    Batches of a formation stay as they are, but for those of ``OneStream(batches=n)`` where samples are counted: what a
    stream has left at a chapter's end is filled to n batches with samples of that stream.
    """


def as_tail(value: object) -> Tail:
    """The tail rule that ``last=`` names.

    Args:
        value: `DropPartial`, `KeepPartial` or `PadPartial`, or an instance.

    Raises:
        PlanError: it is something else.
    """
    if isinstance(value, Tail):
        return value
    if isinstance(value, type) and value in (DropPartial, KeepPartial, PadPartial):
        rule: Tail = value()
        return rule
    msg = f"collate: last is {shown(value)}. Give DropPartial, KeepPartial or PadPartial"
    raise PlanError(msg)
