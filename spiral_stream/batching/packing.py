"""Which samples share a row, and where each lies in it: rows of one width, with as few empty places as possible.

Columns that are not equally long, such as inputs and targets, may have a width each; then a sample joins a row only where
all of its columns fit. One column is the same with one width.

A pool of samples is packed at once. First fit takes samples by position and puts each into the first row with room. Best
fit takes the longest first and puts each into the fullest row with room (Johnson 1973: at most 22 % more rows than
needed; on text lengths under 0.5 %). Concatenate-and-split lays samples end to end and cuts after every ``max_tokens``
tokens. Whole batches of the fullest rows are emitted in a keyed order; the emptiest rows are taken apart, and their
samples are packed again with the next window. The loops are in `_packing.c`.

Cost: about 0.1 us per sample in windows of 8,192, plus 3 us per batch. Of two columns first fit takes
0.6 us per sample, and best fit 1 us where a window makes 1,600 rows: it looks at all of them. Where no row that has room in
one column has any in the other, first fit takes up to 7 us.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal, Self, cast, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream import expr
from spiral_stream.arguments import check, class_door, integer, one_of
from spiral_stream.batching import _packing
from spiral_stream.batching.formation import (
    Composition,
    Formation,
    Former,
    Int64,
    Left,
    Membership,
    OversizeTally,
    Packing,
    Setting,
    Window,
    length_text,
)
from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.seeding import combine, key

Strategy = Literal["best_fit", "first_fit", "concat_and_split"]
Oversize = Literal["raise", "truncate", "drop", "split"]

STRATEGIES: Final = ("best_fit", "first_fit", "concat_and_split")
OVERSIZE: Final = ("raise", "truncate", "drop", "split")
MAX_TOKENS: Final = 2**24 - 1  # what the kernel's bitmap of free places covers
MAX_WINDOW: Final = 2**22  # sums of lengths stay exact
MAX_COLUMNS: Final = 16  # with budgets of their own
_WINDOW: Final = integer(1, MAX_WINDOW, f"an integer in [1, {MAX_WINDOW}]")
_WIDTH: Final = integer(
    1, MAX_TOKENS, f"an integer in [1, {MAX_TOKENS}], or one for each token column: {{'inputs': 512, 'targets': 128}}"
)
_SEGMENTS: Final = integer(1, MAX_WINDOW, f"an integer in [1, {MAX_WINDOW}], or None for any number", none=True)
_LIMIT: Final = integer(1, MAX_TOKENS, f"an integer in [1, {MAX_TOKENS}], or None for any number", none=True)
_PAIR: Final = 2
_SHARE: Final = 2**28  # of a whole width; the sum of 16 squares stays exact
_GROWTH: Final = 8  # a pool that fills no batch grows by an eighth, so that it is not packed again for a few samples


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class Packed(Formation):
    """Rows of exactly ``max_tokens`` places, each shared by samples that do not overlap; ``batch_size`` rows per batch.

    With one ``max_tokens`` all token columns of a sample are equally long and lie at the same places. With one for each
    column, such as ``{"inputs": 512, "targets": 128}``, each column has places of its own in the row: a sample joins a row
    only where all of its columns fit, and is the same segment in each.

    Every sample is delivered once. A sample without tokens is a piece of length 0 in a row that can take another segment;
    its ``start`` may be ``max_tokens``. Only the last batch of an epoch has fewer than ``batch_size`` rows.

    Some samples wait for the next window, and at a chapter's end for the lane's. They are those of the emptiest rows (at
    least one row, at most ``batch_size``), which later samples may still fill. With ``concat_and_split`` they are those
    of the last rows that do not make up a batch, and of the last row if it is not full. They are fewer than
    ``window_size``, unless so many samples do not fill a batch: then the pool grows until it does.

    Args:
        max_tokens: width T of a row; or the width of each token column, by name: at most 16.
        strategy: ``first_fit`` takes samples by position, each into the first row with room. ``best_fit`` takes the
            longest first (ties by position), each into the fullest row with room (ties: the row that took a sample
            last); of several columns, a sample is as long as the squares of its shares of the widths, summed, and a row as
            full as its fullest column. ``concat_and_split`` lays samples end to end, so a sample may go on in the next
            row or batch; it takes one width.
        max_segments: most pieces per row (TransformerEngine needs a bound); None: any number.
        window_size: samples packed together.
        oversize: what to do with a sample of more than ``max_tokens``: ``"raise"`` an error, ``"truncate"`` or
            ``"drop"`` it (metrics count both), or ``"split"`` it into pieces of ``max_tokens`` and a rest, which are
            packed like samples. ``concat_and_split`` always splits. None: ``"raise"``, or ``"split"`` with
            ``concat_and_split``. Of several columns one above its width is enough; each is truncated to its own, and
            none can be split.
        length: a stored column that says how many tokens a sample has, such as ``col("n_tokens")``; of several columns
            one for each, by name. Then batches are formed without their tokens. A sample whose tokens are not as many is
            a `DataError`.
        max_images: most images of a row, counted in the lists of its samples. A sample above it is as one above
            ``max_tokens``; it can be dropped, but neither truncated nor split.
        max_patches: most pieces of images of a row: patches or tiles, as the layout of `FlatImages` counts them.

    Raises:
        PlanError: a parameter is of another type, or out of range.

    Examples:
        >>> packed = documents.collate(
        ...     batch_size=2,
        ...     formation=spiral.batching.Packed(max_tokens=16, window_size=20),
        ...     fields={"input_ids": spiral.Pad("tokens")},
        ... )
        >>> packed.to_numpy()[0]["input_ids"].shape
        (2, 16)
        >>> dict(spiral.batching.Packed(max_tokens={"inputs": 512, "targets": 128}).widths)
        {'inputs': 512, 'targets': 128}
    """

    VERSION: ClassVar[int] = 2
    needs_lengths: ClassVar[bool] = True
    leaves: ClassVar[bool] = True
    max_tokens: int | Mapping[str, int] | tuple[tuple[str, int], ...]
    strategy: Strategy = "best_fit"
    max_segments: int | None = None
    window_size: int = 8192
    oversize: Oversize | None = None
    length: str | expr.Expr | Mapping[str, str | expr.Expr] | tuple[tuple[str, str], ...] | None = None  # type: ignore[assignment]  # texts once it is made
    max_images: int | None = None
    max_patches: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_tokens", _checked_widths(self.max_tokens))
        check(self, "Packed", " is ", max_images=_LIMIT, max_patches=_LIMIT)
        object.__setattr__(self, "length", self._checked_length())
        check(self, "Packed", " is ", window_size=_WINDOW, max_segments=_SEGMENTS, strategy=one_of(STRATEGIES))
        self._check_cuts()
        if self.oversize is None:
            object.__setattr__(self, "oversize", "split" if self.concatenates else "raise")
        check(self, "Packed", " is ", oversize=one_of(OVERSIZE))
        if self.concatenates and self.oversize != "split":
            msg = (
                f"Packed: oversize={shown(self.oversize)}, but concat_and_split cuts every sample at a row's end, so none is "
                "too long. Leave oversize out, or filter on the length before .sample(...)"
            )
            raise PlanError(msg)

    def _checked_length(self) -> str | tuple[tuple[str, str], ...] | None:
        """The text of the expression that gives the lengths; or those of the columns, sorted by name."""
        if self.length is not None and isinstance(self.length, Mapping | tuple) != bool(self.widths):
            each = ", ".join(f"{name!r}: col('...')" for name in self.widths)
            found, right = (
                ("each column has a max_tokens of its own", f"length={{{each}}}")
                if self.widths
                else ("max_tokens is one for all columns", "length=col('...')")
            )
            msg = f"Packed: length={shown(self.length)}, and {found}. Give {right}, or leave length out"
            raise PlanError(msg)
        if not isinstance(self.length, Mapping | tuple):
            return length_text("Packed", self.length)
        texts = {name: length_text("Packed", each) for name, each in _pairs("length", self.length)}
        known = tuple((name, text) for name, text in texts.items() if text is not None)
        if [name for name, _ in known] != list(self.widths):
            msg = (
                f"Packed: length is given for {_listed(name for name, _ in known)}, and max_tokens for {_listed(self.widths)}. "
                "Give both for the same columns, or leave length out"
            )
            raise PlanError(msg)
        return known

    def _check_cuts(self) -> None:
        """Refuse to cut samples whose columns have a width each, or that have images: their parts would lie apart.

        Raises:
            PlanError: the parameters ask for it.
        """
        if self.limits and (self.concatenates or self.oversize in ("split", "truncate")):
            what = "strategy='concat_and_split'" if self.concatenates else f"oversize={self.oversize!r}"
            msg = (
                f"Packed: {what} cuts samples, and max_{next(iter(self.limits))} counts images, which would be parted from their "
                "tokens. Give strategy='best_fit' or 'first_fit', and oversize='drop' or 'raise'"
            )
            raise PlanError(msg)
        if not self.widths or (self.oversize != "split" and not self.concatenates):
            return
        what = "strategy='concat_and_split'" if self.concatenates else "oversize='split'"
        msg = (
            f"Packed: {what} cuts samples, and with a max_tokens for each column the parts of a sample would lie in different "
            "rows. Give strategy='best_fit' or 'first_fit', and oversize='truncate', 'drop' or 'raise'"
        )
        raise PlanError(msg)

    @property
    def widths(self) -> Mapping[str, int]:
        return dict(self.max_tokens) if isinstance(self.max_tokens, tuple) else {}

    @property
    def limits(self) -> Mapping[str, int]:
        """The budgets of a row beside its tokens, by name."""
        given = {"images": self.max_images, "patches": self.max_patches}
        return {name: most for name, most in given.items() if most is not None}

    @property
    def cost_names(self) -> tuple[str, ...]:
        return tuple(self.limits)

    @property
    def row_widths(self) -> tuple[int, ...]:
        """T of each column with a budget of its own, or the one T of all."""
        return (self.max_tokens,) if isinstance(self.max_tokens, int) else tuple(self.widths.values())

    @property
    def row_text(self) -> str:
        """The width of a row in words: ``2,048``, or ``inputs 512, targets 128``."""
        return ", ".join(f"{name} {width:,}" for name, width in self.widths.items()) or f"{self.row_widths[0]:,}"

    @property
    def length_texts(self) -> tuple[str, ...]:
        if isinstance(self.length, tuple):
            return tuple(text for _, text in self.length)
        return () if self.length is None else (str(self.length),)

    @property
    def concatenates(self) -> bool:
        """Whether samples are laid end to end."""
        return self.strategy == "concat_and_split"

    @property
    def cuts_samples(self) -> bool:
        return self.oversize == "split"

    def most_tokens(self, batch_size: int) -> int:
        return sum(self.row_widths) * batch_size

    def with_composition(self, composition: Composition | None) -> Self:
        """Return this formation, which has no composition.

        Raises:
            PlanError: a composition is given.
        """
        if composition is None:
            return self
        msg = (
            f"collate: composition={type(composition).__name__} with Packed, whose rows hold whichever samples fit. Leave "
            "the composition out (the mix keeps its proportions by position), or use WindowedBucket for stratified batches"
        )
        raise PlanError(msg)

    def former(self, setting: Setting) -> Former:
        """Return the former of one chapter.

        Raises:
            PlanError: a width is not a multiple of the setting's ``multiple``.
        """
        for name, width in self.widths.items() or (("", self.row_widths[0]),):
            check_multiple(name, width, setting.multiple)
        return PackedFormer(self, setting)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """N samples, or parts of samples, in the order of sample and offset."""

    samples: Int64  # [N]
    offsets: Int64  # [N] first token
    lengths: Int64  # [C, N]; behind the columns of tokens, what the samples cost of each budget beside them


@final
@dataclass(frozen=True, slots=True, eq=False)
class _PackedRows:
    """R rows made of a pool: P pieces in the order in which they were placed."""

    parts: Int64  # [P] index into the pool
    rows: Int64  # [P]
    starts: Int64  # [C, P]
    offsets: Int64  # [P] first token, counted from the part's own
    lengths: Int64  # [C, P]
    count: int  # R


@final
class PackedFormer(Former):
    """Packs one chapter. `Packed` says which samples wait."""

    def __init__(self, policy: Packed, setting: Setting) -> None:
        self.tally = OversizeTally()
        self._policy = policy
        self._batch_rows = setting.batch_size or 1
        self._ends = setting.ends
        self._key = setting.key
        self._columns = len(policy.row_widths)  # of tokens
        self._widths = np.array(_bounds(policy), dtype=np.int64)  # [C]
        none = np.empty(0, dtype=np.int64)
        self._pool = _Pool(none, none, np.empty((len(self._widths), 0), dtype=np.int64))
        self._waiting = 0
        self._windows = 0

    @property
    def room(self) -> int:
        size = self._policy.window_size
        return min(size, max(size - self._waiting, self._waiting // _GROWTH, 1))

    def form(self, window: Window, *, final: bool) -> list[Membership]:
        pool = self._joined(window)
        packed = (_cut if self._policy.concatenates else _fit)(pool, self._policy)
        order = self._order(packed)
        count = self._count(packed, final=final)
        waits = np.ones(packed.count, dtype=np.bool_)
        waits[order[:count]] = False
        self._pool = _left(pool, packed, waits[packed.rows])
        self._waiting = int(np.count_nonzero(np.diff(self._pool.samples, prepend=-1)))
        emitted = order[:count] if self._policy.concatenates else self._shuffled(order[:count])
        self._windows += 1
        return self._batches(pool, packed, emitted)

    def left(self) -> Left:
        return Left(self._pool.samples, self._pool.offsets, self._given(self._pool.lengths))

    def _given(self, values_CN: Int64) -> Int64:
        """Values by column of tokens as others see them: of one width for all columns there is no C."""
        return values_CN[: self._columns] if self._policy.widths else values_CN[0]

    def _joined(self, window: Window) -> _Pool:
        """The samples that waited and those of the window; none is longer than a row unless rows cut samples."""
        if window.lengths is None:
            msg = "Packed: the window has no lengths. Give a field with a length, such as Pad('tokens')"
            raise PlanError(msg)
        samples = np.asarray(window.samples, dtype=np.int64)
        costs = [np.asarray(each, dtype=np.int64)[None] for each in window.costs]
        offsets, lengths = np.zeros_like(samples), np.atleast_2d(np.asarray(window.lengths, dtype=np.int64))
        lengths = np.concatenate([lengths, *costs])
        if (
            window.offsets is not None
        ):  # rows before hold the rest; a part is never longer than a row where rows cut none
            offsets = np.asarray(window.offsets, dtype=np.int64)
        too_long = (lengths > self._widths[:, None]).any(axis=0)
        if not self._policy.concatenates and too_long.any():
            if self._policy.oversize == "raise":
                at = int(np.flatnonzero(too_long)[0])
                raise _too_long(int(samples[at]), lengths[:, at].tolist(), self._policy)
            if self._policy.oversize == "truncate":
                self.tally.truncated += int(np.count_nonzero(too_long))
                lengths = np.minimum(lengths, self._widths[:, None])
            elif self._policy.oversize == "drop":
                self.tally.dropped += int(np.count_nonzero(too_long))
                self.tally.first = np.concatenate((self.tally.first, samples[too_long]))
                samples, offsets, lengths = (a[..., ~too_long] for a in (samples, offsets, lengths))
            else:
                samples, offsets, lengths = _split(samples, lengths[0], int(self._widths[0]))
        pool = self._pool
        if len(samples) + len(pool.samples) > MAX_WINDOW:
            msg = (
                f"Packed: {len(samples) + len(pool.samples):,} samples do not fill a batch of {self._batch_rows:,} rows of "
                f"{self._policy.row_text}. Lower batch_size or max_tokens"
            )
            raise DataError(msg)
        old = (pool.samples, pool.offsets, pool.lengths)
        return _Pool(*(np.concatenate(pair, axis=-1) for pair in zip(old, (samples, offsets, lengths), strict=True)))

    def _order(self, packed: _PackedRows) -> Int64:
        """Rows in the order in which they may be emitted, shape [R]: the fullest first, or as they lie."""
        if self._policy.concatenates:
            return np.arange(packed.count)
        used = [np.bincount(packed.rows, weights=each, minlength=packed.count) for each in packed.lengths]
        fullest = np.maximum.reduce([each / width for each, width in zip(used, self._widths, strict=True)])
        return np.argsort(-fullest, kind="stable")

    def _count(self, packed: _PackedRows, *, final: bool) -> int:
        """How many rows to emit: whole batches of them, or all at the end."""
        if final and self._ends:
            return packed.count
        closed = packed.count - (not final)  # the emptiest row always waits for the next window
        if self._policy.concatenates and packed.count:
            last = packed.rows == packed.count - 1
            full = int(packed.lengths[0, last].sum()) == self._widths[0]
            closed = packed.count - (not full and int(np.count_nonzero(last)) != self._policy.max_segments)
        return max(closed, 0) // self._batch_rows * self._batch_rows

    def _shuffled(self, rows: Int64) -> Int64:
        """Rows in a keyed order, so that those of long samples do not come first."""
        shuffle_seed = np.uint64(key("packing", self._key, self._windows))
        return rows[np.argsort(combine(shuffle_seed, rows.astype(np.uint64)), kind="stable")]

    def _batches(self, pool: _Pool, packed: _PackedRows, emitted: Int64) -> list[Membership]:
        """The rows emitted, in that order, cut into batches."""
        # [R] at which place each row is delivered; len(emitted) if it is not delivered yet
        batch_of = np.full(packed.count, len(emitted), dtype=np.int64)
        batch_of[emitted] = np.arange(len(emitted))
        batch_of = batch_of[packed.rows]  # [P]
        pieces = np.argsort(_narrow(batch_of, len(emitted)), kind="stable")[: np.count_nonzero(batch_of < len(emitted))]
        starts, lengths = (self._given(np.take(each, pieces, axis=1)) for each in (packed.starts, packed.lengths))
        rows, totals = batch_of[pieces], lengths.sum(axis=0) if self._policy.widths else lengths
        parts = packed.parts[pieces]
        samples, offsets = pool.samples[parts], pool.offsets[parts] + packed.offsets[pieces]
        firsts = np.arange(
            0, len(emitted) + self._batch_rows, self._batch_rows
        )  # first row of each batch, and the end of the last
        bounds = np.searchsorted(rows, firsts).tolist()
        rows = rows % self._batch_rows
        batches, width = [], sum(self._policy.row_widths)
        for begin, end in pairwise(bounds):  # 3 us per batch
            part = slice(begin, end)
            packing = Packing(rows[part], starts[..., part], offsets[part], lengths[..., part])
            count = int(rows[end - 1]) + 1
            batches.append(Membership(samples[part], count, width, totals[part], packing))
        return batches


def _pairs(name: str, given: Mapping[Any, Any] | tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """What is given for each column, sorted by name: the order in which they are given says nothing."""
    pairs = list(given.items() if isinstance(given, Mapping) else given)
    columns = [pair[0] for pair in pairs if isinstance(pair, tuple) and len(pair) == _PAIR and pair[0]]
    if not pairs or not len(columns) == len(pairs) == len({each for each in columns if isinstance(each, str)}):
        msg = (
            f"Packed: {name}={shown(given)}. Give one for each token column, by name: {{'inputs': ..., 'targets': ...}}"
        )
        raise PlanError(msg)
    return sorted(pairs)


def _checked_widths(given: object) -> int | tuple[tuple[str, int], ...]:
    """The width of a row, or those of its columns."""
    if not isinstance(given, Mapping | tuple):
        _WIDTH.need("Packed: max_tokens is ", given)
        return cast("int", given)
    pairs = [
        (name, width.item() if isinstance(width, np.integer) else width) for name, width in _pairs("max_tokens", given)
    ]
    if len(pairs) > MAX_COLUMNS:
        msg = f"Packed: max_tokens names {len(pairs)} columns. Give at most {MAX_COLUMNS}"
        raise PlanError(msg)
    for name, width in pairs:
        integer(1, MAX_TOKENS, f"an integer in [1, {MAX_TOKENS}]").need(f"Packed: max_tokens of {name!r} is ", width)
    return tuple(pairs)


def check_multiple(name: str, width: int, multiple: int) -> None:
    """Refuse a width of a row, or of one column of it, that its fields cannot have.

    Raises:
        PlanError: it is not a multiple.
    """
    if width % multiple == 0:
        return
    below, above = width // multiple * multiple, -(-width // multiple) * multiple
    of, key = (f" of {name!r}", f"{name!r}: ") if name else ("", "max_tokens=")
    msg = (
        f"Packed: max_tokens{of} is {width}, but a row's width has to be a multiple of {multiple} "
        f"(pad_to_multiple_of of a field). Give {key}{above}" + (f" or {below}" if below else "")
    )
    raise PlanError(msg)


def _bounds(policy: Packed) -> tuple[int, ...]:
    """What a row holds of each column of tokens, and then of each budget beside them."""
    return (*policy.row_widths, *policy.limits.values())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _sizes(lengths_CN: Int64, widths: Int64) -> tuple[Int64, int]:
    """How long each piece is, shape [N], and how long it may be: tokens; of several columns the squares of their shares.

    Of the sizes tried, this one fills rows best: the sum of shares puts samples of long inputs and samples of long targets
    into the order by turns or apart, as their numbers happen to be (up to 12 % more rows); the largest share knows too
    little of the others (3 %).
    """
    if len(widths) == 1:
        return lengths_CN[0], int(widths[0])
    sizes: Int64 = np.square(lengths_CN * _SHARE // widths[:, None]).sum(axis=0)
    return sizes, len(widths) * _SHARE**2


def _fit(pool: _Pool, policy: Packed) -> _PackedRows:
    """Rows by first or best fit."""
    best, widths = policy.strategy == "best_fit", np.array(_bounds(policy), dtype=np.int64)
    count = len(pool.samples)
    parts, lengths = np.arange(count), np.ascontiguousarray(pool.lengths)
    if best:
        sizes, most = _sizes(lengths, widths)
        parts = np.argsort(_narrow(most - sizes, most), kind="stable")
        lengths = np.take(lengths, parts, axis=1)
    rows, starts = np.empty(count, dtype=np.int64), np.empty_like(lengths)
    opened = _packing.fit(lengths, widths, rows, starts, policy.max_segments or 0, best)
    return _PackedRows(parts, rows, starts, np.zeros(count, dtype=np.int64), lengths, opened)


def _cut(pool: _Pool, policy: Packed) -> _PackedRows:
    """Rows by laying the samples end to end, of one width."""
    (width,) = policy.row_widths
    bound = len(pool.samples) + int(pool.lengths.sum()) // width
    arrays = [np.empty(bound, dtype=np.int64) for _ in range(5)]
    pieces = _packing.cut(pool.lengths[0], width, policy.max_segments or 0, *arrays)
    parts, rows, starts, offsets, lengths = (array[:pieces] for array in arrays)
    return _PackedRows(parts, rows, starts[None], offsets, lengths[None], int(rows[-1]) + 1 if pieces else 0)


def _left(pool: _Pool, packed: _PackedRows, waits: NDArray[np.bool_]) -> _Pool:
    """The waiting pieces as a pool, with the pieces of one part joined again; ``waits`` has shape [P]."""
    pieces = np.flatnonzero(waits)
    pieces = pieces[np.argsort(packed.parts[pieces], kind="stable")]
    parts, firsts = np.unique(packed.parts[pieces], return_index=True)
    offsets = pool.offsets[parts] + packed.offsets[pieces[firsts]]
    lengths = packed.lengths[:, pieces]
    lengths = np.add.reduceat(lengths, firsts, axis=1) if len(pieces) else lengths
    return _Pool(pool.samples[parts], offsets, lengths)


def _split(samples: Int64, lengths: Int64, width: int) -> tuple[Int64, Int64, Int64]:
    """Samples [N], offsets [N] and lengths [1, N] of the parts of at most ``width`` tokens; an empty sample is one part."""
    counts = np.maximum(-(-lengths // width), 1)
    ends = np.cumsum(counts)
    nth = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    offsets = nth * width
    cut: Int64 = np.minimum(np.repeat(lengths, counts) - offsets, width)
    return np.repeat(samples, counts), offsets, cut[None]


def _narrow(values: Int64, most: int) -> NDArray[np.integer]:
    """Values in [0, most] as the type that sorts fastest: NumPy's stable sort of 16 bits is a radix sort, 8 times faster."""
    return values.astype(np.uint16) if most < 2**16 else values


def _too_long(sample: int, lengths: list[int], policy: Packed) -> DataError:
    """The error for a sample longer than a row; ``sample`` is its number in the chapter."""
    tokens = [("tokens", f" in {name!r}", f"{width} of it") for name, width in policy.widths.items()]
    counted = tokens or [("tokens", "", str(policy.row_widths[0]))]
    counted += [(name, "", f"{most:,}") for name, most in policy.limits.items()]
    found = [
        f"{length} {what}{of}, but a row holds {most}"
        for length, (what, of, most), bound in zip(lengths, counted, _bounds(policy), strict=True)
        if length > bound
    ]
    ways = "'truncate' or 'drop'" if policy.widths else "'split', 'truncate' or 'drop'"
    if policy.limits:
        msg = f"Packed: a sample has {'; '.join(found)}. Raise the budget, filter on what it counts, or choose oversize='drop'"
    else:
        msg = f"Packed: a sample has {'; '.join(found)}. Raise max_tokens, filter on the length, or choose oversize={ways}"
    return DataError(msg, sample=sample)
