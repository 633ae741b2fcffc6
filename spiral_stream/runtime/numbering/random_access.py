"""Look up samples of an epoch: by position, by identity, or one sample built by itself."""

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from spiral_stream.batching.formation import Membership
from spiral_stream.batching.packing import Packed
from spiral_stream.batching.shapes.one_shape import OneShape
from spiral_stream.batching.tail import KeepPartial
from spiral_stream.errors import PlanError, StreamError, shown
from spiral_stream.integrity.blocks import sound
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.plan.verbs.maps import SampleAssembly, SampleFilter, SampleFlatMap
from spiral_stream.plan.verbs.mix import STREAM_ID
from spiral_stream.planner.columns.streams import fetch, ordinals, split
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.numbering.drawn import Drawn
from spiral_stream.runtime.numbering.numbering import BatchStore
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64


def found_rows(stages: Stages, identity: Any, verb: str) -> tuple[int, UInt64]:
    """Find the rows of an identity, among those that the plan keeps.

    Args:
        stages: the lowered plan.
        identity: a value, or a tuple: the stream's name (optional, in mixtures only), then the identity's columns.
        verb: who asks, for messages.

    Returns:
        The stream's number, and the surviving rows: at least one, ascending. There are several if the relation was
        registered with identities that repeat.

    Raises:
        KeyError: no row has it, or rows of several streams do and the identity names none of them.
    """
    if any(isinstance(each, SampleAssembly) for each in stages.maps):
        msg = f"{verb}: an assembled sample has no row of its own; ledger(number) lists the samples of a batch"
        raise KeyError(msg)
    values = identity if isinstance(identity, tuple) else (identity,)
    streams = list(range(len(stages.streams)))
    if len(values) == len(stages.identity) + 1:
        streams = [k for k in streams if stages.streams[k].name == values[0]]
        values = values[1:]
    if len(values) != len(stages.identity):
        msg = f"{verb}: {shown(identity)} has {len(values)} values; an identity here is ({', '.join(stages.identity)})"
        raise KeyError(msg)
    if any(each is None for each in values):
        msg = f"{verb}: {shown(identity)} has a null, which names no sample. Fill nulls of the identity's columns in"
        raise KeyError(msg)
    wanted = dict(zip(stages.identity, values, strict=True))
    with sound():
        found = [(k, rows) for k in streams if len(rows := stages.streams[k].selected.find(wanted))]
    if not found:
        msg = f"{verb}: no row that the plan keeps has {', '.join(stages.identity)} = {shown(identity)}"
        if any(isinstance(each, SampleFlatMap) for each in stages.maps):
            msg += ". Leave out the part number, which flat_map adds"
        raise KeyError(msg)
    if len(found) > 1:
        names = ", ".join(repr(stages.streams[k].name) for k, _ in found)
        msg = f"{verb}: {shown(identity)} is in streams {names}. Give (stream, identity)"
        raise KeyError(msg)
    return found[0]


ROWS: Final = "__row__"
PASSES: Final = "__pass__"
_MOST: Final = 1 << 16  # positions at a time


@final
class OrderedRows:
    """The order of one epoch of a stream. It reads no payload, and nothing but the rows that are asked for.

    Made by ``stream.order(epoch)`` and ``relation.order(epoch)``.

    Examples:
        >>> order = stream.order(epoch=1)
        >>> len(order)
        48
    """

    def __init__(self, stages: Stages, epoch: int) -> None:
        self._stages, self.epoch = stages, epoch

    def __len__(self) -> int:
        """Return the positions of the epoch: samples before any filter, flat_map or assemble."""
        return self._stages.epochs.length(self.epoch)

    def rows(self, positions: ArrayLike) -> pa.Table:
        """Return the samples at positions of the epoch, in the order asked. The cost depends on how many are asked for.

        Args:
            positions: integers in [0, len), of any order; repeats are allowed.

        Returns:
            one row per position: ``stream_id`` where streams are mixed, the identity's columns, ``__row__`` (the row's
            number in the relation that owns it), and ``__pass__`` (over its stream; with replacement, the draw).

        Raises:
            IndexError: a position is not in the epoch.

        Examples:
            >>> stream.order().rows([0, 1])["photo_id"].to_pylist()
            ['p19', 'p17']
        """
        at = self._checked(positions)
        stages, tables = self._stages, list[pa.Table]()
        with sound():
            for begin in range(0, max(1, len(at)), _MOST):
                tables.append(self._table(stages.epochs.stream_rows(self.epoch, at[begin : begin + _MOST])))
        return pa.concat_tables(tables)

    def positions(self, identity: Any) -> list[int]:
        """Return every position of a sample in the epoch, ascending; without a mixture or replacement that is one.

        Args:
            identity: as in `PreparedStream.ledger`.

        Raises:
            KeyError: the plan keeps no row with this identity.

        Examples:
            >>> stream.order().positions("p07")
            [37]
        """
        stream, rows = found_rows(self._stages, identity, "order")
        with sound():
            return self._stages.epochs.positions(self.epoch, stream, int(rows[0]))

    def _checked(self, positions: ArrayLike) -> UInt64:
        try:
            requested = np.atleast_1d(np.asarray(positions))
        except (TypeError, ValueError) as error:
            msg = f"order: positions={shown(positions)} are no list of numbers. Give a list or an array of integers"
            raise IndexError(msg) from error
        if requested.size and (requested.dtype.kind not in "iu" or requested.ndim != 1):
            msg = f"order: positions are {requested.dtype} of shape {requested.shape}. Give a list or an array of integers"
            raise IndexError(msg)
        outside = np.flatnonzero((requested < 0) | (requested >= len(self))) if requested.size else requested
        if len(outside):
            found = int(requested[outside[0]])
            msg = f"order: position {found:,} of epoch {self.epoch:,}. Give positions in [0, {len(self):,})"
            raise IndexError(msg)
        return requested.astype(np.uint64)

    def _table(self, stream_rows: StreamRows) -> pa.Table:
        stages = self._stages
        names = [*([STREAM_ID] if stages.mixed else []), *(name for name in stages.identity if name != STREAM_ID)]
        table = fetch(stages.streams, stream_rows, names)
        numbers = np.empty(len(stream_rows), dtype=np.uint64)
        for stream, where in split(stream_rows):
            numbers[where] = ordinals(stages.streams, stream, stream_rows.rows[where])
        return table.append_column(ROWS, pa.array(numbers)).append_column(PASSES, pa.array(stream_rows.passes))


@final
class OneSample(BatchStore):
    """A single batch that holds the sample at one position of an epoch."""

    last = KeepPartial()

    def __init__(self, stages: Stages, position: int) -> None:
        """Take the sample at a position.

        Raises:
            StreamError: batches of the plan are not samples in order: it packs them, or maps change which there are.
        """
        collate = need(stages.plan, Collate)
        changed = next((m for m in stages.maps if isinstance(m, SampleFilter | SampleFlatMap | SampleAssembly)), None)
        packed = isinstance(collate.formation, Packed | OneShape)
        if changed is not None or packed:
            found = "packs samples into rows"
            if changed is not None:
                found = f"has {changed.VERB}, which decides what samples there are"
            elif isinstance(collate.formation, OneShape):
                found = "cuts samples to the shape of their batch"
            msg = (
                f"sample: the plan {found}. Ask for a whole batch, batch(number), or for rows: order(epoch).rows([...])"
            )
            raise StreamError(msg)
        self._stages, self._position = stages, np.array([position], dtype=np.uint64)

    def exists(self, epoch: int, number: int) -> bool:
        del epoch
        return number == 0

    def total(self, epoch: int) -> int:
        del epoch
        return 1

    def draw(self, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        samples = self._stages.epochs.stream_rows(epoch, self._position)
        return [Drawn(Samples.at(samples), Membership(np.arange(1), 1)) for _ in numbers]


def position_in(stages: Stages, epoch: int, position: object) -> int:
    """Return a position of an epoch, counted from its end if it is negative.

    Raises:
        IndexError: the epoch has no such position.
        PlanError: it is not an integer.
    """
    if isinstance(position, bool) or not isinstance(position, int | np.integer):
        msg = f"sample: {shown(position)} is a {type(position).__name__}. Give an integer"
        raise PlanError(msg)
    length = stages.epochs.length(epoch)
    found = int(position) + (length if position < 0 else 0)
    if not 0 <= found < length:
        msg = f"sample {int(position):,} of epoch {epoch:,}, which has {length:,}. Give a number in [0, {length:,})"
        raise IndexError(msg)
    return found


def alone(batch: Any) -> dict[str, Any]:
    """Return the sample of a batch of one: its fields, each without the dimension of the batch.

    Raises:
        StreamError: the sample could not be read, and the plan's ``on_error`` left it out.
    """
    if any(len(value) == 0 for value in batch.values()):
        msg = "sample: it cannot be read, and on_error leaves it out; stream.quarantine() says why"
        raise StreamError(msg)
    return {name: value[0] for name, value in batch.items()}
