"""What is left of a run when another plan takes over: the rest of the running epoch, or what each stream of a mixture has left.

It is expressed as rows, which the other plan finds again, maybe over other data (docs/decisions/0039). The rows of a storage
shard whose content key is known are found by their number in it. Those of other shards are found by the hash of their
identity. Memory: a byte per row of the two plans, and 8 bytes per row of the shards that changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.catalog.registering.measure import identity_pieces
from spiral_stream.catalog.relation.row_identity import ROW_ID, is_made
from spiral_stream.catalog.relation.shard_rows import SourceRows
from spiral_stream.derived.kinds.identities import Identities, rows_of
from spiral_stream.errors import ResumeError, warn
from spiral_stream.plan.nodes import Sample
from spiral_stream.plan.saving.fingerprint import canonical
from spiral_stream.plan.tree import need, relations_of
from spiral_stream.plan.verbs.maps import SampleAssembly
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.rebase import ALONE, Rebase
from spiral_stream.runtime.numbering.numbering import BatchStore
from spiral_stream.sampling.mixing.decided import AnyMixture
from spiral_stream.sampling.mixing.remainder import LeftOver, as_ranges, joined_ranges
from spiral_stream.sampling.mixing.stream_end import passes_of, use_of
from spiral_stream.sampling.order import Order

Mask = NDArray[np.bool_]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

_AT_ONCE: Final = 1 << 20  # positions
_AT_ITS_END: Final = "Go on at the end of its epoch, without rebase"


def rows_left(
    earlier: Stages, batches: BatchStore, epoch: int, number: int, now: Stages, root: Path
) -> tuple[int, Rebase | None]:
    """Return where a plan goes on with the running epoch of another one.

    Args:
        earlier: the plan so far.
        batches: all of it.
        epoch: the epoch in which it stands.
        number: how many batches of that epoch were delivered.
        now: the plan that goes on.
        root: the folder of derived files.

    Returns:
        the epoch, and what it has left; None if it is a whole one.

    Raises:
        ResumeError: a plan cannot hand its place on, or take one over.
        SourceError: rows that changed since would have to be read.
    """
    _need_places(earlier, now)
    delivered = found_again(earlier.streams[0], _delivered(earlier, batches, epoch, number), now.streams[0], root)
    if not delivered.any():
        return epoch, None
    if delivered.all():
        return epoch + 1, None
    uses = _uses_left(now.streams[0], now.order, epoch, delivered)
    return epoch, Rebase(epoch, ((ALONE, LeftOver(tuple(as_ranges(uses)), (epoch + 1) * now.epochs.total)),))


def owed_again(
    earlier: StreamStage, order: Order, owed: LeftOver, now: StreamStage, order_now: Order, root: Path
) -> LeftOver:
    """Return what a stream of a mixture has left, after its rows or their order changed.

    Every pass that the earlier plan had begun goes on with the rows of it that were not delivered, and with new ones.

    Args:
        earlier: the stream so far.
        order: its order.
        owed: what it has left, as uses of its rows.
        now: the stream that goes on.
        order_now: its order.
        root: the folder of derived files.

    Raises:
        ResumeError: rows of changed shards cannot be told by their identities.
    """
    rows = earlier.selected.total
    passes = passes_of(owed.left[0][0] if owed.left else owed.then, owed.then, rows)
    uses = [np.empty(0, dtype=np.int64)]
    for number in passes:
        delivered = np.ones(rows, dtype=np.bool_)
        arranged = order.arrange(earlier.population, number)
        for first, end in [(first, first + count) for first, count in owed.left] + [(owed.then, (number + 1) * rows)]:
            for begin in range(max(first - number * rows, 0), min(end - number * rows, rows), _AT_ONCE):
                stop = min(begin + _AT_ONCE, end - number * rows, rows)
                delivered[arranged.rows(np.arange(begin, stop, dtype=np.uint64))] = False
        uses.append(_uses_left(now, order_now, number, found_again(earlier, delivered, now, root)))
    return LeftOver(tuple(as_ranges(np.concatenate(uses))), passes.stop * now.selected.total)


def _uses_left(stream: StreamStage, order: Order, number: int, delivered: Mask) -> Int64:
    """Return the uses of a pass whose rows were not delivered, ascending."""
    total = stream.selected.total
    arranged = order.arrange(stream.population, number)
    uses = [np.empty(0, dtype=np.int64)]
    for begin in range(0, total, _AT_ONCE):
        positions = np.arange(begin, min(begin + _AT_ONCE, total), dtype=np.uint64)
        uses.append(positions[~delivered[arranged.rows(positions)]].astype(np.int64) + use_of(number, 0, total))
    return np.concatenate(uses)


def _need_places(earlier: Stages, now: Stages) -> None:
    """Refuse plans between which a place means nothing.

    Raises:
        ResumeError: says which of them, and the way out.
    """
    if any(isinstance(each, SampleAssembly) for each in earlier.maps) or earlier.batches.lanes.count > 1:
        lanes = earlier.batches.lanes.count
        found = f"has {lanes} lanes" if lanes > 1 else "assembles samples"
        msg = f"rebase: the earlier plan {found}; only a plan of one lane can hand its place on. {_AT_ITS_END}"
        raise ResumeError(msg)
    for at in (earlier, now):
        need_whole_passes(at)
    pinned = next((at for at in (earlier, now) if isinstance(need(at.plan, Sample).epoch, int)), None)
    if pinned is not None:
        msg = (
            "rebase: a plan names its own epoch, so all of its epochs are the same one and what was delivered has no end. "
            "Leave epoch= out of sample(...)"
        )
        raise ResumeError(msg)
    was, found = earlier.streams[0].base.entry.name, now.streams[0].base.entry.name
    if was != found:
        msg = f"rebase: the samples were rows of {was} and are rows of {found}, so none is found again. {_AT_ITS_END}"
        raise ResumeError(msg)


def need_whole_passes(stages: Stages) -> None:
    """Refuse a plan that does not read every row once in a pass, or whose epochs are not passes.

    Raises:
        ResumeError: says which.
    """
    order, extent = stages.order, stages.epochs.extent
    if order.repeats_rows or order.weighted_by is not None:
        msg = f"rebase: {type(order).__name__} draws rows, so none of an epoch is left over for another plan. {_AT_ITS_END}"
        raise ResumeError(msg)
    if extent.parts:
        msg = f"rebase: a plan has limit, skip or repeat after sample, so its epochs are not passes over its rows. {_AT_ITS_END}"
        raise ResumeError(msg)


def _delivered(earlier: Stages, batches: BatchStore, epoch: int, number: int) -> Mask:
    """Which surviving rows are not owed any more in an epoch: shape [N], bool."""
    epochs = earlier.epochs
    begun, position = batches.undelivered(epoch, number) if number else (np.empty(0, dtype=np.uint64), 0)
    out = np.ones(epochs.total, dtype=np.bool_)
    out[epochs.stream_rows(epoch, begun).rows] = False
    length = epochs.length(epoch)
    for begin in range(position, length, _AT_ONCE):
        positions = np.arange(begin, min(begin + _AT_ONCE, length), dtype=np.uint64)
        out[epochs.stream_rows(epoch, positions).rows] = False
    return out


def found_again(before: StreamStage, marked: Mask, now: StreamStage, root: Path) -> Mask:
    """Return which surviving rows of one plan are marked rows of another, maybe at another data version.

    Args:
        before: the plan whose rows are marked.
        marked: shape [N], bool: its rows.
        now: the other plan.
        root: the folder of derived files.

    Returns:
        shape [M], bool.

    Raises:
        ResumeError: rows of changed shards cannot be told by their identities.
    """
    old, new = before.base.by_shard(), now.base.by_shard()
    out = np.zeros(now.selected.total, dtype=np.bool_)
    same = _same_shards(old, new)
    for here, there in same.items():
        offsets = _offsets(before, there)[marked[_rows(before, there)]]
        out[_rows(now, here)] = np.isin(_offsets(now, here), offsets, assume_unique=True)
    gone = sorted(set(range(len(old.manifest.shard_rows))) - set(same.values()))
    gone = [shard for shard in gone if marked[_rows(before, shard)].any()]
    others = [shard for shard in range(len(new.manifest.shard_rows)) if shard not in same]
    if gone and others:
        _need_identities(before, now)
        computed = all(_is_computed(each) for each in (before, now))
        hashes = old.row_words if computed else _hashes(before, old, root)
        wanted = np.concatenate([hashes(s)[_offsets(before, s)[marked[_rows(before, s)]]] for s in gone])
        hashes = new.row_words if computed else _hashes(now, new, root)
        for shard in others:
            out[_rows(now, shard)] = np.isin(hashes(shard)[_offsets(now, shard)], wanted)
    return out


def _same_shards(old: SourceRows, new: SourceRows) -> dict[int, int]:
    """Which storage shards were there before: number now -> number then."""
    then, now = old.manifest.content_keys.to_pylist(), new.manifest.content_keys.to_pylist()
    if then == now:
        return {shard: shard for shard in range(len(now))}
    places = {key: shard for shard, key in enumerate(then)}
    return {shard: places[key] for shard, key in enumerate(now) if key in places}


def _need_identities(before: StreamStage, now: StreamStage) -> None:
    was, entry = before.base.entry, now.base.entry
    if was.identity != entry.identity or not (was.identity_unique and entry.identity_unique):
        found = f"identities of {entry.name} repeat"
        if was.identity != entry.identity:
            found = f"the identity of {entry.name} was {', '.join(was.identity)} and is {', '.join(entry.identity)}"
        msg = f"rebase: {found}, so rows of changed storage shards are not found again. {_AT_ITS_END}"
        raise ResumeError(msg)


def _rows(stream: StreamStage, shard: int) -> slice:
    firsts = stream.selected.firsts
    return slice(int(firsts[shard]), int(firsts[shard + 1]))


def _offsets(stream: StreamStage, shard: int) -> NDArray[np.int64]:
    return stream.selected.offsets_of_shard(shard).astype(np.int64)


def _is_computed(stream: StreamStage) -> bool:
    """Whether rows have computed identities, of which a half tells them apart: nothing is read."""
    entry = stream.base.entry
    return entry.identity == (ROW_ID,) and is_made(entry.schema.field(ROW_ID))


def _hashes(stream: StreamStage, rows: SourceRows, root: Path) -> Callable[[int], UInt64]:
    """A function that returns the hash of the identity of each row of a shard: uint64."""
    entry = stream.base.entry
    identities = Identities(entry.identity, tuple(entry.schema.field(name).type for name in entry.identity))
    pieces = identity_pieces(rows, identities, root, unasked=True)

    def of(shard: int) -> UInt64:
        out = np.empty(int(rows.manifest.shard_rows[shard]), dtype=np.uint64)
        out[rows_of(pieces, shard)] = pieces.array("hashes", shard)
        return out

    return of


def need_stream(earlier: object, kind: type) -> None:
    """Refuse to rebase on something other than a stream.

    Raises:
        ResumeError: the message says how a state becomes a stream.
    """
    if not isinstance(earlier, kind):
        msg = (
            f"rebase: got a {type(earlier).__name__}. Give the earlier stream, or what its state_dict() returned. Load a "
            "state of another plan into a stream of that plan first: old.load_state_dict(state), then new.rebase(old)"
        )
        raise ResumeError(msg)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """The plan so far: its batches, the epoch in which it stands, batches of it delivered, and its own rebase."""

    stages: Stages
    batches: BatchStore
    epoch: int
    number: int
    rebase: Rebase | None


def taken_over(before: Before, now: Stages, root: Path) -> tuple[int, Rebase | None]:
    """Return where a plan goes on with the run of another one.

    Args:
        before: the plan so far.
        now: the plan that goes on.
        root: the folder of derived files.

    Returns:
        the epoch that it begins with, and what is left of the earlier plan; None if that epoch is a whole one.

    Raises:
        ResumeError: the plans have no places in common.
        SourceError: rows that changed since would have to be read.
    """
    if before.stages.mixed or now.mixed:
        rebase = left_over(before, now, root)
        return rebase.epoch, rebase
    return rows_left(before.stages, before.batches, before.epoch, before.number, now, root)


def left_over(before: Before, now: Stages, root: Path) -> Rebase:
    """Return what each stream of a mixture has not delivered yet.

    Args:
        before: the plan so far. Of its own rebase, streams that it lacks keep their places.
        now: the plan that goes on.
        root: the folder of derived files.

    Raises:
        ResumeError: a plan mixes nothing, the earlier one has several lanes, or a stream has rows of another relation.
    """
    earlier, batches, epoch, number = before.stages, before.batches, before.epoch, before.number
    mixture, epochs = _carried(earlier, now), earlier.epochs
    begun, position = batches.undelivered(epoch, number) if number else (np.empty(0, dtype=np.uint64), 0)
    streams, uses = epochs.uses(epoch, begun)
    left = mixture.left(epoch, position)
    out = {} if before.rebase is None else dict(before.rebase.left_overs)
    there = {stream.name: stream for stream in now.streams}
    for k, stream in enumerate(earlier.streams):
        own, then = uses[streams == k].astype(np.int64), int(left.then[k])
        # An epoch may be too short for all that an earlier plan left.
        end = max(mixture.span(epoch, k)[1], then, epochs.left(k))
        parts = [*((first, first + count) for first, count in as_ranges(left.ahead[k])), (then, end)]
        later = [(a, b - a) for part in parts for a, b in epochs.next_uses(k, *part)]
        after = epochs.next_uses(k, end, end + 1)[0][0]
        ranges = sorted([*as_ranges(own), *later])
        rest = joined_ranges([each for each in ranges if each[0] < after])
        out[stream.name] = LeftOver(rest, after)
        goes_on = there.get(stream.name)
        if goes_on is not None and (earlier.order != now.order or _rows_of(stream, earlier) != _rows_of(goes_on, now)):
            need_whole_passes(earlier)
            need_whole_passes(now)
            out[stream.name] = owed_again(stream, earlier.order, out[stream.name], goes_on, now.order, root)
    rebase = Rebase(epoch + (number > 0), tuple(out.items()))
    _warn_of_long_waits(rebase, now)
    return rebase


def _warn_of_long_waits(rebase: Rebase, now: Stages) -> None:
    """Warn of streams whose rows take more than an epoch to catch up with the rest of their stream.

    Inside a chapter, the batches of a formation do not come in the order of the rows' uses. Where a run stops, some rows of
    a small stream may have been used once more than others. The others come first, at the pace of the new plan.
    """
    assert now.epochs.mixture is not None
    quotas = now.epochs.mixture.quotas(rebase.epoch)
    for stream, quota in zip(now.streams, quotas.tolist(), strict=True):
        waiting = rebase.left_over(stream.name)
        waits = 0 if waiting is None else waiting.overtaken(stream.selected.total)
        if waits > quota:
            msg = (
                f"rebase: stream {stream.name!r} still owes {waits:,} uses of rows from a pass that its other rows have "
                f"finished. They come first, at {quota:,} samples per epoch: about {-(-waits // max(1, quota)):,} epochs. "
                "Give the stream a larger share, or rebase at the end of an epoch"
            )
            warn(msg)


def _carried(earlier: Stages, now: Stages) -> AnyMixture:
    """Return the mixture whose streams go on in another plan.

    Raises:
        ResumeError: they cannot.
    """
    mixture = earlier.epochs.mixture
    assembled = any(isinstance(each, SampleAssembly) for each in earlier.maps)
    if mixture is None or earlier.batches.lanes.count > 1 or assembled:
        found = "mixes nothing" if mixture is None else f"has {earlier.batches.lanes.count} lanes"
        found = "assembles samples" if assembled else found
        msg = f"rebase: the earlier plan {found}; only a mixture of one lane can hand its place on. Go on at the end of its epoch"
        raise ResumeError(msg)
    if now.epochs.mixture is None:
        msg = (
            "rebase: this plan mixes nothing, so it has no streams to go on with. Begin it with mix([Stream(...), ...])"
        )
        raise ResumeError(msg)
    old = {stream.name: stream.base.entry.name for stream in earlier.streams}
    for stream in now.streams:
        was, found = old.get(stream.name), stream.base.entry.name
        if was not in (None, found):
            msg = (
                f"rebase: the rows of stream {stream.name!r} were those of {was} and are those of {found}, so none is found "
                "again. Give the stream another name: then it starts at its beginning"
            )
            raise ResumeError(msg)
    return mixture


def _rows_of(stream: StreamStage, stages: Stages) -> tuple[Any, dict[str, str]]:
    """What decides which rows a stream has: its relational plan, and the data versions of what that reads."""
    return canonical(stream.node), {name: stages.data_versions[name] for name in sorted(relations_of(stream.node))}
