"""Who shares a batch where every batch has one shape: samples whose nearest shape it is, in the order in which they come.

Each shape's samples fill *units* of ``batches`` whole batches; a unit is delivered in a row, so ranks that share one work on
one shape. Units of a window are shuffled. What fills no unit waits for the next window, and at a chapter's end for the
lane's and the epoch's end (docs/decisions/0057). There the tail rule decides: `DropPartial` leaves it out, `PadPartial`
repeats samples of the same shape, and `KeepPartial` makes batches shorter, so that a unit has as many as ever. A shape that
has fewer samples in the whole epoch than a unit has batches lends them to its nearest neighbour, so that no sample is lost
and no rank waits with another shape.

Cost: 1 ms for a window of 8,192 samples and 40 shapes, and 10 us per unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream import expr
from spiral_stream.arguments import check, class_door, integer, is_integer
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
    expression_text,
)
from spiral_stream.batching.shapes.choice import Shape, nearest, neighbours
from spiral_stream.batching.tail import DropPartial, PadPartial, fills_with_value
from spiral_stream.errors import DataError, PlanError, shown

WINDOW: Final = 8192
MAX_WINDOW: Final = 2**22
MAX_UNIT: Final = 2**20
MAX_SHAPES: Final = 4096
MAX_SIDE: Final = 1 << 15
_IMAGE, _CLIP = 2, 3  # numbers in a shape

# S samples, K shapes, R batches of a unit


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class OneShape(Formation):
    """Every batch has one shape of a list: the nearest to each of its samples, by aspect ratio.

    Which shape a sample gets follows from columns, before a byte of its payload is read. The field that decodes it says
    `transforms.FitToShape`, which resizes and crops to the shape of its batch.

    Args:
        shapes: (height, width) of each, such as ``[(512, 512), (448, 576), (576, 448)]``; of clips (frames, height, width).
        batches: how many batches in a row have the same shape. Give the number of ranks, or a multiple: any number of ranks
            that divides it works on one shape in each step. Others are refused.
        width: the column, or expression, that says how many pixels wide a sample is.
        height: likewise.
        frames: likewise the number of frames, where shapes have one. A clip gets the most frames that it has.
        window_size: how many samples are considered together, and how many may wait at most.

    Raises:
        PlanError: a shape is none, or a parameter is of another type or out of range.

    Examples:
        >>> formed = spiral.batching.OneShape([(16, 16), (16, 24), (24, 16)], batches=2, height="width // 2")
        >>> image = spiral.Stack("image", decode="jpeg", transforms=[spiral.transforms.FitToShape()])
        >>> shaped = samples.collate(batch_size=4, formation=formed, fields={"image": image}).to_numpy()
        >>> first, second = shaped.take(2)
        >>> first["image"].shape == second["image"].shape, first["image"].shape[2:] in formed.shapes
        (True, True)
    """

    shapes: Sequence[Shape]
    batches: int = 1
    width: str | expr.Expr = "width"
    height: str | expr.Expr = "height"
    frames: str | expr.Expr | None = None
    window_size: int = WINDOW

    def __post_init__(self) -> None:
        given = self.shapes if isinstance(self.shapes, Sequence) and not isinstance(self.shapes, str) else ()
        object.__setattr__(self, "shapes", tuple(_checked(each, given[0]) for each in given))
        if not 0 < len(self.shapes) <= MAX_SHAPES or len(set(self.shapes)) < len(self.shapes):
            found = shown(self.shapes) if given else shown(given)
            msg = f"OneShape: shapes is {found}. Give a list of different sizes, such as [(512, 512), (448, 576)]"
            raise PlanError(msg)
        check(self, "OneShape", " is ", batches=integer(1, MAX_UNIT), window_size=integer(1, MAX_WINDOW))
        for name in ("width", "height", "frames"):
            right = f"a column that says it of each sample, such as '{name}'"
            object.__setattr__(self, name, expression_text("OneShape", name, getattr(self, name), right))
        if self.width is None or self.height is None:
            msg = 'OneShape: width and height say how large samples are. Give their columns: width="width", height="height"'
            raise PlanError(msg)
        if (self.frames is None) == self.has_frames:
            msg = (
                "OneShape: shapes have a number of frames, and frames is not given. Give its column: frames='frame_count'"
                if self.has_frames
                else f"OneShape: frames={self.frames!r}, and shapes have no number of frames. Give (frames, height, width)"
            )
            raise PlanError(msg)

    @property
    def has_frames(self) -> bool:
        """Whether a shape says how many frames a clip has."""
        return len(self.shapes[0]) == _CLIP

    @property
    def needs_lengths(self) -> bool:
        return False

    @property
    def key_texts(self) -> tuple[str, ...]:
        given = (self.width, self.height, self.frames)
        return tuple(str(each) for each in given if each is not None)

    @property
    def leaves(self) -> bool:
        return True

    @property
    def unit(self) -> int:
        return self.batches

    def most_left(self, rows: int, streams: int) -> int:
        del streams
        return len(self.shapes) * (2 * self.batches * rows - 1)

    def with_composition(self, composition: Composition | None) -> Self:
        """Return the formation itself; it knows no composition.

        Raises:
            PlanError: there is one.
        """
        if composition is not None:
            msg = (
                f"collate: OneShape with composition={type(composition).__name__}; batches of one shape hold what streams have "
                "of it. Leave the composition out, or filter a stream by its sizes"
            )
            raise PlanError(msg)
        return self

    def choose(self, widths: Int64, heights: Int64, frames: Int64 | None = None) -> Int64:
        """Return the place in ``shapes`` of each sample's shape; shape [S].

        Examples:
            >>> formed = spiral.batching.OneShape([(16, 16), (16, 24), (24, 16)])
            >>> formed.choose(widths=np.array([640, 300]), heights=np.array([480, 300])).tolist()
            [1, 0]
        """
        return nearest(self.shapes, widths, heights, frames)

    def former(self, setting: Setting) -> Former:
        """Return the former of one chapter.

        Raises:
            PlanError: ``batch_size`` is None, or samples of all shapes may fill the window before one has a unit.
        """
        if setting.batch_size is None:
            msg = "collate: batch_size is None, and OneShape counts samples. Give batch_size"
            raise PlanError(msg)
        least = len(self.shapes) * (self.batches * setting.batch_size - 1) + 1
        if self.window_size < least:
            msg = (
                f"OneShape: window_size is {self.window_size:,}, and samples of {len(self.shapes):,} shapes may wait with "
                f"{least - 1:,} for {self.batches:,} batches of {setting.batch_size:,} in a row, so that none can be made. Give "
                f"window_size={least:,} or more, fewer shapes, or a smaller batch_size"
            )
            raise PlanError(msg)
        return ShapeFormer(self, setting)


def _checked(shape: object, first: object) -> Shape:
    """A shape as a tuple.

    Raises:
        PlanError: it is none, or of another kind than the first one.
    """
    given, other = (tuple(each) if isinstance(each, list | tuple) else () for each in (shape, first))
    sides = all(is_integer(side, 1, MAX_SIDE) for side in given)
    if len(given) not in (_IMAGE, _CLIP) or len(given) != len(other) or not sides:
        msg = (
            f"OneShape: {shown(shape)} is no shape. Give (height, width) of images, or (frames, height, width) of clips, each "
            f"from 1 to {MAX_SIDE}, and all of one kind"
        )
        raise PlanError(msg)
    return given


@final
class ShapeFormer(Former):
    """Forms the batches of one chapter from its windows."""

    def __init__(self, policy: OneShape, setting: Setting) -> None:
        self.tally = OversizeTally()
        self._policy, self._key = policy, setting.key
        self._rows = setting.batch_size or 1  # of a batch
        self._last, self._ends = setting.last, setting.ends
        self._samples = np.empty(0, dtype=np.int64)  # that wait, in the order in which they joined
        self._shapes = np.empty(0, dtype=np.int64)  # of each
        self._window = -1

    @property
    def room(self) -> int:
        return self._policy.window_size - len(self._samples)

    def form(self, window: Window, *, final: bool) -> list[Membership]:
        self._window += 1
        samples = np.concatenate((self._samples, np.asarray(window.samples, dtype=np.int64)))
        shapes = np.concatenate((self._shapes, self._chosen(window)))
        by_shape = np.argsort(shapes, kind="stable")
        count = np.bincount(shapes, minlength=len(self._policy.shapes))
        members = np.split(by_shape, np.cumsum(count)[:-1])  # of each shape, in order
        if final and self._ends and not isinstance(self._last, DropPartial | PadPartial):
            members = lent(members, self._policy.batches, self._rows, neighbours(self._policy.shapes))
        full, short = list[tuple[int, list[Membership]]](), list[tuple[int, list[Membership]]]()
        taken = np.zeros(len(samples), dtype=np.bool_)
        for k, mine in enumerate(members):
            for unit in self._units(mine, final=final):
                taken[np.concatenate([batch for batch, _ in unit])] = True
                batches = [self._membership(k, samples[batch], real) for batch, real in unit]
                is_full = sum(real for _, real in unit) == self._policy.batches * self._rows
                (full if is_full else short).append((k, batches))
        self._samples, self._shapes = samples[~taken], shapes[~taken]
        drawn = emission_order(len(full), 1, self._key, self._window).tolist()
        short.sort(key=lambda unit: (-len(unit[1]), unit[0]))  # a unit of too few batches comes last
        return [batch for _, batches in [*(full[at] for at in drawn), *short] for batch in batches]

    def left(self) -> Left:
        return Left(np.sort(self._samples))

    def _chosen(self, window: Window) -> Int64:
        """The shape of each sample of a window.

        Raises:
            DataError: a width, a height or a number of frames is below 1.
        """
        keys = [np.asarray(each) for each in window.keys]
        for text, values in zip(self._policy.key_texts, keys, strict=True):
            if len(values) and not values.min() >= 1:
                at = int(np.flatnonzero(~(values >= 1))[0])
                msg = f"OneShape: {text} is {values[at]:g}, and samples have at least 1. Mend it, or filter such samples out"
                raise DataError(msg, sample=int(window.samples[at]))
        return self._policy.choose(*(each.astype(np.int64) for each in keys))

    def _units(self, mine: Int64, *, final: bool) -> list[list[tuple[Int64, int]]]:
        """The units of one shape: batches of its members, and how many of these come for the first time."""
        unit, rows = self._policy.batches, self._policy.batches * self._rows
        full, left_out = len(mine) // rows, isinstance(self._last, DropPartial | PadPartial)
        if not final or not self._ends:
            full -= final and not left_out and full > 0  # one will share with what is left at the end
            return _cut(mine, [self._rows] * unit * full, unit)
        if isinstance(self._last, DropPartial):
            return _cut(mine, [self._rows] * unit * full, unit)
        if isinstance(self._last, PadPartial):
            return _cut(mine, [self._rows] * unit * -(-len(mine) // rows), unit)
        return _cut(mine, sizes_of(len(mine), unit, self._rows), unit)

    def _membership(self, k: int, members: Int64, real: int) -> Membership:
        fills = self._last is not None and fills_with_value(self._last) and real < len(members)
        filler = np.arange(real, len(members)) if fills else None
        return Membership(members, len(members), filler=filler, size=self._policy.shapes[k])


def _cut(members: Int64, sizes: Sequence[int], unit: int) -> list[list[tuple[Int64, int]]]:
    """Batches of these sizes, ``unit`` of them at a time; members come again where they are too few."""
    ends = np.cumsum([0, *sizes], dtype=np.int64).tolist()
    every = np.resize(members, ends[-1])
    batches = [(every[a:b], min(max(0, len(members) - a), b - a)) for a, b in pairwise(ends)]
    return [batches[at : at + unit] for at in range(0, len(batches), unit)]


def sizes_of(count: int, unit: int, rows: int) -> list[int]:
    """Return the sizes of the batches that ``count`` samples of one shape make where none is left out.

    They are whole units of ``unit`` batches of ``rows`` samples; what is left shares a unit, or two together with the unit
    before it, so that batches are about equal. Too few samples for that make a unit of too few batches.
    """
    full, rest = divmod(count, unit * rows)
    together = rest + unit * rows
    if rest and full and together >= 2 * unit:
        full, rest, short = full - 1, together, 2 * unit
    elif rest >= unit:
        short = unit
    else:
        short = -(-rest // rows)
    ends = np.arange(short + 1) * rest // max(1, short)
    return [*[rows] * unit * full, *np.diff(ends).tolist()]


def lent(members: list[Int64], unit: int, rows: int, near: NDArray[np.int64]) -> list[Int64]:
    """Return the members of each shape, after shapes with too few for a unit have lent theirs to a neighbour.

    Args:
        members: of each shape.
        unit: batches in a row.
        rows: samples of a batch.
        near: shape [K, K - 1]: the other shapes, nearest first.
    """
    members = list(members)

    def lacking(k: int) -> int:
        """How many samples of a shape make no unit."""
        rest = len(members[k]) % (unit * rows)
        shares = len(members[k]) >= unit * rows and rest + unit * rows >= 2 * unit
        return 0 if shares or rest >= unit else rest

    while True:
        thin = [(lacking(k), k) for k in range(len(members)) if lacking(k)]
        if not thin:
            return members
        some, k = min(thin)
        takes = [each for each in near[k].tolist() if (lacking(each) if rows == 1 else len(members[each]))]
        if not takes:
            return members
        stays = len(members[k]) - some
        moved, members[k] = members[k][stays:], members[k][:stays]
        members[takes[0]] = np.concatenate((members[takes[0]], moved))
