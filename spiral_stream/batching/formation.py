"""Which samples share a batch: the interface of formations.

A `Formation` is the frozen value of the plan. For each chapter of a lane it makes a `Former`, which takes windows of
samples as arrays (keys, lengths, streams; never payload) and returns the batches that are complete. What it returns is
a pure function of the windows and the `Setting`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream import expr
from spiral_stream.batching.tail import Tail
from spiral_stream.errors import PlanError, shown

CHAPTER_WINDOWS: Final = 64  # windows of a lane after which formation starts anew (docs/decisions/0007)

Int64 = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """S samples that join a chapter's pool, as the arrays that a formation looks at.

    Examples:
        >>> joined = spiral.batching.Window(samples=np.arange(3), streams=np.zeros(3, np.int32), lengths=np.array([4, 9, 2]))
        >>> int(joined.lengths.sum())
        15
    """

    samples: Int64  # [S] numbers in the chapter, ascending; they break ties of keys
    streams: NDArray[np.int32]  # [S] number of the stream in the mixture; zeros without one
    lengths: Int64 | None = (
        None  # [S] tokens per sample, [C, S] of C columns with budgets of their own; None if no field has a length
    )
    keys: tuple[NDArray[Any], ...] = ()  # [S] per bucket key: its values, numbers
    costs: tuple[Int64, ...] = ()  # [S] per additive limit of the budget: what each sample costs
    shares: NDArray[np.float64] | None = None  # [K] target shares from here on; None: unchanged
    offsets: Int64 | None = None  # [S] tokens of each sample that rows before hold already; None: none


@final
@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What a chapter's former knows apart from its windows.

    Examples:
        >>> spiral.batching.Setting(key=17, size=10, batch_size=4).ends
        True
    """

    key: int  # 64 bits, from order seed, epoch and chapter: the same in every lane
    size: int  # samples in the chapter
    multiple: int = 1  # every batch's width T is a multiple of this
    batch_size: int | None = None  # at most (with packing: exactly) this many rows per batch
    shares: NDArray[np.float64] | None = None  # [K] target share of each stream, summing to 1; None without a mixture
    ahead: NDArray[np.float64] | None = (
        None  # [K] samples that each stream is ahead of its share at the chapter's start
    )
    ends: bool = True  # whether nothing may wait after the final window; else what fills no batch does (`Former.left`)
    last: Tail | None = None  # the tail rule, for formations that keep to it themselves
    scarce: bool = (
        False  # whether the window may be too small for shares (`stratified.is_sure`): then the pool may fill up
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Where the samples of a packed batch lie in its rows: S pieces, of S or fewer samples.

    Columns with budgets of their own share the rows, and each has its own places there (`Formation.widths`).

    Examples:
        >>> where = spiral.batching.Packing(*(np.array(each) for each in ([0, 0], [0, 4], [0, 0], [4, 9])))
        >>> where.take(np.array([1])).starts.tolist()
        [4]
    """

    rows: Int64  # [S] row of the batch, non-decreasing
    starts: Int64  # [S], or [C, S]: first place in the row
    offsets: Int64  # [S] first token of the sample; 0 unless a sample was split
    lengths: Int64  # [S], or [C, S]: tokens of the piece

    def take(self, at: Int64) -> "Packing":
        """Return some of the pieces."""
        starts, lengths = (np.take(each, at, axis=-1) for each in (self.starts, self.lengths))
        return Packing(self.rows[at], starts, self.offsets[at], lengths)

    @classmethod
    def concat(cls, parts: Sequence["Packing"]) -> "Packing":
        """Return the pieces of several packings, one behind the other."""
        rows = np.concatenate([part.rows for part in parts])
        names = ("starts", "offsets", "lengths")
        return cls(rows, *(np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Membership:
    """One batch: S samples in their order, and the shape they share.

    Examples:
        >>> spiral.batching.Membership(samples=np.array([4, 7]), rows=2).samples.tolist()
        [4, 7]
    """

    samples: Int64  # [S] numbers in the chapter; with packing one entry per piece
    rows: int  # B
    width: int = 0  # T, a multiple of the setting's, or the sum of `Formation.widths`; 0 if no field has a length
    lengths: Int64 | None = None  # [S] tokens delivered per sample, after truncation; None if no field has a length
    packing: Packing | None = None  # None: sample i is row i, from its start
    filler: Int64 | None = (
        None  # [K] rows that fill the batch with a value (`PadPartial`), ascending; None: no row does
    )
    size: tuple[int, ...] | None = (
        None  # of its pixels: (height, width), or (frames, height, width); None: transforms say it
    )


@dataclass(slots=True)
class OversizeTally:
    """How many samples a former dropped, truncated or delivered alone because they were above the budget.

    Examples:
        >>> spiral.batching.OversizeTally(dropped=2).truncated
        0
    """

    dropped: int = 0
    truncated: int = 0
    alone: int = 0
    first: Int64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # numbers of the dropped samples


@final
@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What fills no batch of a chapter: N samples, or parts of samples, in the order in which they joined.

    Examples:
        >>> spiral.batching.Left(np.array([8, 9])).samples.tolist()
        [8, 9]
    """

    samples: (
        Int64  # [N] numbers in the chapter, ascending; a sample of which several parts are left occurs once for each
    )
    offsets: Int64 | None = None  # [N] first token of each part; None: samples are never cut
    lengths: Int64 | None = None  # [N], or [C, N]: tokens of each part


class Former(ABC):
    """Forms the batches of one chapter, window by window. Not thread-safe.

    Examples:
        >>> former = spiral.WindowedBucket(window_size=8).former(spiral.batching.Setting(key=1, size=5, batch_size=4))
        >>> isinstance(former, spiral.batching.Former), former.room
        (True, 8)
    """

    tally: OversizeTally

    @property
    @abstractmethod
    def room(self) -> int:
        """How many samples the pool can take now; at least 1 after `form` returned."""

    @abstractmethod
    def form(self, window: Window, *, final: bool) -> list[Membership]:
        """Take a window, and return the batches that are complete, in the order of delivery.

        Args:
            window: the next ``min(room, samples left in the chapter)`` samples, without those that a filter refused;
                it may be empty.
            final: whether the chapter ends here; then every sample left in the pool is returned too, or only whole batches
                of them unless the setting ``ends``.

        Raises:
            DataError: a sample is above the budget and the policy is ``raise``; ``sample`` is its number in the chapter.
        """

    def left(self) -> Left:
        """Return what waits: after the final window, what fills no batch. Formations that `leaves` need it."""
        return Left(np.empty(0, dtype=np.int64))


class Formation(ABC):
    """A policy of the plan: frozen, JSON-able, without data. At most ``window_size`` samples wait.

    Examples:
        >>> isinstance(spiral.batching.Packed(max_tokens=64), spiral.batching.Formation)
        True
    """

    VERSION: ClassVar[int] = 1  # part of the fingerprint; a change of any output raises it
    window_size: int
    length: str | None = None  # the expression that gives `Window.lengths`; None: the fields of tokens do

    @property
    @abstractmethod
    def needs_lengths(self) -> bool:
        """Whether windows must have lengths."""

    @property
    def widths(self) -> Mapping[str, int]:
        """T of each token column that has a budget of its own, in the order of `Window.lengths`; empty: all share one."""
        return {}

    @property
    def length_texts(self) -> tuple[str, ...]:
        """The expressions that give `Window.lengths`: one, or one for each of `widths`; none: the fields of tokens do."""
        return () if self.length is None else (self.length,)

    @property
    def key_texts(self) -> tuple[str, ...]:
        """The expressions that give `Window.keys`, such as ``len(tokens)``."""
        return ()

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The additive limits that `Window.costs` counts against: ``frames``, ``bytes``, ``images`` and ``patches``."""
        return ()

    @property
    def counts_samples(self) -> bool:
        """Whether every batch has the plan's number of rows. Then only the epoch's last batches may be short."""
        return True

    @property
    def leaves(self) -> bool:
        """Whether what fills no batch of a chapter waits for the lane's end; then its formers keep to `Setting.ends`."""
        return False

    @property
    def unit(self) -> int:
        """How many batches in a row have one `Membership.size`; 1 where none has one, or each its own."""
        return 1

    def most_left(self, rows: int, streams: int) -> int:
        """Return the most samples, or rows if they are packed, that a chapter cannot fill.

        Args:
            rows: of a whole batch.
            streams: of the mixture; 1 without one.
        """
        del streams
        return rows - 1

    @property
    def cuts_samples(self) -> bool:
        """Whether a batch may hold a part of a sample."""
        return False

    def most_tokens(self, batch_size: int) -> int | None:
        """Return the most tokens that a batch may hold; None if their number has no limit.

        Args:
            batch_size: rows per batch; 1 where the plan gives none.
        """
        del batch_size
        return None

    def most_samples(self, batch_size: int | None, costs: Mapping[str, int]) -> int:
        """Return the most samples that a batch may hold.

        Args:
            batch_size: as the plan gives it.
            costs: what every sample costs of each of `cost_names`.
        """
        del costs
        return self.window_size if batch_size is None else min(batch_size, self.window_size)

    @abstractmethod
    def with_composition(self, composition: "Composition | None") -> "Formation":
        """Return the same formation with another rule for how streams share a batch.

        Raises:
            PlanError: this formation cannot follow the rule.
        """

    @abstractmethod
    def former(self, setting: Setting) -> Former:
        """Return the former of one chapter."""


def length_text(where: str, value: object) -> str | None:
    """Return the text of an expression that gives each sample's length: ``"n_tokens"`` or ``col("n_tokens")``.

    Args:
        where: who takes it, as an error names it.
        value: the expression, its text, or None.

    Raises:
        PlanError: it is something else, or an expression without a text.
    """
    return expression_text(where, "length", value, "a column that says how many tokens a sample has: col('n_tokens')")


def expression_text(
    where: str, name: str, value: object, right: str = "a number of each sample, such as 'len(tokens)'"
) -> str | None:
    """Return the text of an expression over a sample's columns.

    Args:
        where: who takes it, as an error names it.
        name: of the argument.
        value: the expression, its text, or None.
        right: what would be right, as an error says it.

    Raises:
        PlanError: it is something else, or an expression without a text.
    """
    if value is None:
        return None
    text = str(value) if isinstance(value, expr.Expr) else value
    if not isinstance(text, str):
        msg = f"{where}: {name} is {shown(value)}. Give {right}"
        raise PlanError(msg)
    if isinstance(value, expr.Expr) and not expr.parse(text).same_as(value):
        msg = f"{where}: {name}={text} has no short form. Add it as a column first: .with_columns(n_tokens=...)"
        raise PlanError(msg)
    expr.parse(text)
    return text


class Composition(ABC):  # noqa: B024  a closed family of rules; the arithmetic is in `stratified` and `one_stream`
    """How the streams of a mixture share a batch.

    Examples:
        >>> isinstance(spiral.StratifiedByStream(), spiral.batching.Composition)
        True
    """

    VERSION: ClassVar[int] = 1
