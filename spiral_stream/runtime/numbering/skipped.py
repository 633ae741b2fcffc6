"""What a caller of `skip` names becomes the record of a run; what another plan goes on to skip (docs/decisions/0040)."""

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cursor import Cursor
from spiral_stream.errors import ResumeError, StreamError, shown
from spiral_stream.plan.nodes import Node, Sample
from spiral_stream.plan.tree import need
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.skips import MOST, Skips, Value
from spiral_stream.runtime.numbering.random_access import found_rows
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.runtime.numbering.skipped_tables import as_table, identities_of, is_table, packed
from spiral_stream.sampling.order import LARGEST

Int64 = NDArray[np.int64]
MOST_NAMED: Final = 1_000_000  # in one call


def need_epochs(plan: Node) -> None:
    """Refuse a plan whose epochs are all the same one.

    Raises:
        StreamError: says the way out.
    """
    if isinstance(need(plan, Sample).epoch, int):
        msg = (
            "skip: the plan names its own epoch, so all of its epochs are the same one, and no place is ahead. Leave epoch= "
            "out of sample(...), or leave rows out with .filter(...) before it"
        )
        raise StreamError(msg)


@final
@dataclass(frozen=True, slots=True)
class SkipRequest:
    """What a caller of `skip` names: steps from the place on, batches by number, and identities: a list, or a table."""

    steps: Iterable[int] = ()
    batches: Iterable[int] = ()
    identities: Any = ()

    def added(
        self,
        skips: Skips,
        stages: Stages,
        numbering: RunBatches,
        cursor: Cursor,
        epoch: int,
        keep: Callable[[Any], str | None],
    ) -> Skips:
        """Return a record with what is asked for.

        Args:
            skips: the record so far.
            stages: the lowered plan.
            numbering: the run's batches.
            cursor: the run's place, after `Cursor.enter` with its world size and merge.
            epoch: the epoch of steps and batches.
            keep: keeps a JSON value in the catalog and returns its digest; None where it cannot be written.

        Raises:
            KeyError: the plan keeps no row with such an identity.
            StreamError: a step or a batch was delivered already, or the epoch does not have it; or there are too many.
        """
        since = (cursor.epoch, numbering.skips.number(cursor.epoch, cursor.batch))
        numbers = np.concatenate([self._of_steps(numbering, cursor, epoch), _integer(self.batches, "batches")])
        if len(numbers):
            _need_ahead(numbers, since, epoch, numbering)
            skips = skips.with_batches(epoch, numbers)
            _need_units(skips, epoch, stages)
        if is_table(self.identities):
            return self._with_table(skips, since, identities_of(stages, as_table(self.identities, stages)), keep)
        samples = [_named(stages, identity) for identity in _listed(self.identities, "identities", '["a-17"]')]
        return skips.with_samples(since, samples) if samples else skips

    def _with_table(
        self, skips: Skips, since: tuple[int, int], table: pa.Table, keep: Callable[[Any], str | None]
    ) -> Skips:
        digest = keep(packed(table)) if len(table) else ""
        if digest is None:
            msg = "skip: the catalog cannot be written, and a table of identities is stored there. Make it writable, or list up "
            msg += f"to {MOST:,} identities"
            raise StreamError(msg)
        return skips.with_table(since, len(table), digest)

    def _of_steps(self, numbering: RunBatches, cursor: Cursor, epoch: int) -> Int64:
        """The batches of the steps, as far as the epoch has them: the last step may be short."""
        steps, last = _integer(self.steps, "steps"), cursor.segments[-1]
        here = cursor if epoch == cursor.epoch else Cursor(epoch).enter(last.world_size, last.merge, last.deal)
        if len(steps) and steps.min() < here.step:
            msg = (
                f"skip: step {int(steps.min()):,} of epoch {epoch:,} was delivered already; the run stands before step "
                f"{here.step:,}. Load a state from before it, then skip"
            )
            raise StreamError(msg)
        group = here.segments[-1].group
        if len(steps) and steps.max() > LARGEST // group:
            msg = f"skip: epoch {epoch:,} has no step {int(steps.max()):,} for this many ranks. Name earlier steps"
            raise StreamError(msg)
        delivered = here.segments[-1].first(0) + steps[:, None] * group + np.arange(group)
        numbers = numbering.skips.numbers(epoch, delivered.ravel())
        most = _most(numbering, epoch)
        firsts = numbers.reshape(-1, group)[:, 0] if len(steps) else numbers
        if most is not None and (firsts >= most).any():
            step = int(steps[firsts >= most].min())
            msg = f"skip: epoch {epoch:,} has no step {step:,} for this many ranks; it has {most:,} batches. Name earlier steps"
            raise StreamError(msg)
        return numbers if most is None else numbers[numbers < most]


def _most(numbering: RunBatches, epoch: int) -> int | None:
    """How many batches an epoch has; None where they are not counted."""
    return None if numbering.store.unknown(epoch) else numbering.store.total(epoch)


def _listed(values: object, what: str, example: str) -> list[Any]:
    """The items of what a caller lists.

    Raises:
        StreamError: it is no list, or too long.
    """
    if isinstance(values, Sized) and len(values) > MOST_NAMED:
        msg = f"skip: {what} names {len(values):,}, and may name {MOST_NAMED:,} at a time. Call skip several times"
        raise StreamError(msg)
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        msg = f"skip: {what}={shown(values)}. Give a list, for example {what}={example}"
        raise StreamError(msg)
    return list(values)


def _integer(numbers: object, what: str) -> Int64:
    listed = _listed(numbers, what, "range(100, 200)")
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and 0 <= n <= LARGEST for n in listed):
        msg = f"skip: {what}={shown(numbers)}. Give whole numbers from 0 up, for example {what}=range(100, 200)"
        raise StreamError(msg)
    return np.array(listed, dtype=np.int64)


def _need_ahead(numbers: Int64, since: tuple[int, int], epoch: int, numbering: RunBatches) -> None:
    first, last = int(numbers.min()), int(numbers.max())
    if (epoch, first) < since:
        msg = (
            f"skip: batch {first:,} of epoch {epoch:,} was delivered already; the run stands before batch {since[1]:,} of "
            f"epoch {since[0]:,}. Load a state from before it, then skip"
        )
        raise StreamError(msg)
    most = _most(numbering, epoch)
    if most is not None and last >= most:
        msg = f"skip: epoch {epoch:,} has {most:,} batches, so there is no batch {last:,}. Give numbers below that"
        raise StreamError(msg)


def _need_units(skips: Skips, epoch: int, stages: Stages) -> None:
    """Refuse to skip a part of batches of one shape: all after them would move up, so that ranks would get other shapes.

    Raises:
        StreamError: names the batches that go together.
    """
    unit = 1 if stages.formation is None else stages.formation.unit
    for at, first, count in skips.batches if unit > 1 else ():
        stop = first + count
        if at == epoch and (first % unit or stop % unit):
            msg = (
                f"skip: batches {first:,} to {stop - 1:,}, and OneShape(batches={unit}) delivers {unit} of one shape in a row. "
                f"Skip all of them: batches=range({first // unit * unit}, {-(-stop // unit) * unit})"
            )
            raise StreamError(msg)


def _named(stages: Stages, identity: Any) -> tuple[str, tuple[Value, ...]]:
    """Return the stream and the identity of a sample, as the record has them."""
    identity = tuple(identity) if isinstance(identity, list) else identity  # as JSON returns it
    stream, _ = found_rows(stages, identity, "skip")
    values = (identity if isinstance(identity, tuple) else (identity,))[-len(stages.identity) :]
    return stages.streams[stream].name, tuple(_recorded(value) for value in values)


def _recorded(value: Any) -> Value:
    """Return a value of an identity that was found as the state records it: 5.0 found the row 5 and is that row's 5."""
    plain = value.item() if isinstance(value, np.generic) else value
    plain = int(plain) if isinstance(plain, float) else plain
    if type(plain) not in (str, int, bytes):
        msg = f"skip: {shown(value)} in identities= is a {type(value).__name__}. Give it as a text, an integer or bytes"
        raise StreamError(msg)
    return plain


def carried(skips: Skips, stages: Stages, epoch: int, number: int, begins: int) -> Skips:
    """Return what another plan goes on to skip.

    Args:
        skips: of the run so far.
        stages: the lowered plan that goes on.
        epoch: the epoch in which the run stands.
        number: the number of its next batch.
        begins: the epoch that the other plan begins with.

    Raises:
        ResumeError: batches are skipped that the run has not come to; other batches have their numbers after it.
    """
    if skips.after(epoch, number):
        msg = (
            "rebase: the run skips batches that it has not come to, and the new plan numbers its batches anew. Go past them "
            "first, or load a state from before stream.skip(...)"
        )
        raise ResumeError(msg)
    names = {stream.name for stream in stages.streams}
    tables = tuple(replace(each, since=(begins, 0)) for each in skips.tables)
    left = [(each.stream, each.identity) for each in skips.samples if each.stream in names]
    return Skips(stand_ins=bool(tables), tables=tables).with_samples((begins, 0), left)
