"""The history of a run: its changes, the tree of its attempts, and the legs that follow from both.

An attempt begins where a process opens the run, and where its stream goes on from a state after it has delivered. Its parent is
the attempt that saved that state, up to the place of the state. So two resumes of one checkpoint are two attempts with one
parent, and neither overwrites the other. A branch is the way from the root to one attempt; that of the newest attempt is the
trained one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

from spiral_stream.catalog.state_records import StateRecords
from spiral_stream.cursor import Cursor
from spiral_stream.errors import RunError, shown
from spiral_stream.runs.files import RunFiles
from spiral_stream.runs.leg import Leg

ANEW: Final = "anew"


@final
@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in an attempt: how many batches of an epoch were delivered in a leg."""

    leg: int
    epoch: int
    batch: int

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "Mark":
        """Read a place of a note or a state."""
        return cls(int(value["leg"]), int(value["epoch"]), int(value["batch"]))

    def to_json(self) -> dict[str, int]:
        """Return the place as JSON values."""
        return {"leg": self.leg, "epoch": self.epoch, "batch": self.batch}


@final
@dataclass(frozen=True, slots=True, repr=False)
class RunChange:
    """One note of the history.

    Attributes:
        attempt: that it is of.
        why: ``open``, ``anew``, ``resume``, ``set_epoch``, ``seek``, ``bind``, ``rebase``, ``skip``, ``decide``, ``epoch``.
        at: when, in UTC, as ISO 8601.
        leg: that begins with it.
        before: what was delivered when it came; None where nothing was.
        parent: the attempt that this one goes on from; None for one that begins anew.
        cut: where in the parent.
        step: steps of the run before it.
        plan: the name of the plan's record in the catalog.
        state: of the stream after it.
        segment: world size and merge.
        by: the process that wrote it.
        alongside: attempts that other processes recorded when it came, as far as was known.

    Examples:
        >>> run = catalog.run("changed", stream)
        >>> stream.set_epoch(2)
        >>> [(change.why, change.leg) for change in run.history()]
        [('open', 0), ('set_epoch', 1)]
    """

    attempt: str
    why: str
    at: str
    leg: int
    before: Mark | None
    parent: str | None
    cut: Mark | None
    step: int
    plan: str
    state: Mapping[str, Any]
    segment: Mapping[str, int]
    by: str = ""
    alongside: tuple[str, ...] = ()

    @classmethod
    def of(cls, attempt: str, value: Mapping[str, Any]) -> "RunChange":
        """Read a note.

        Raises:
            RunError: it is none of this version.
        """
        try:
            before, cut = (None if value[name] is None else Mark.of(value[name]) for name in ("before", "cut"))
            return cls(
                attempt, str(value["why"]), str(value["at"]), int(value["leg"]), before, value["parent"], cut,
                int(value["step"]), str(value["plan"]), dict(value["state"]), dict(value["segment"]), str(value.get("by", "")),
                tuple(value.get("alongside", ())),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            msg = (
                f"run: a note of attempt {attempt} cannot be read ({shown(error)}): another version of Spiral wrote it"
            )
            raise RunError(msg) from error

    def to_json(self) -> dict[str, Any]:
        """Return the note as JSON values."""
        return {
            "why": self.why, "at": self.at, "leg": self.leg, "step": self.step, "plan": self.plan, "state": dict(self.state),
            "parent": self.parent, "segment": dict(self.segment),
            "before": None if self.before is None else self.before.to_json(),
            "cut": None if self.cut is None else self.cut.to_json(), "by": self.by, "alongside": list(self.alongside),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<RunChange {self.why!r} of attempt {self.attempt}, leg {self.leg}, at {_standing(self.state)}>"


@final
@dataclass(frozen=True, slots=True, repr=False)
class Attempt:
    """One way of a run: from where it was opened or resumed until it ended or was killed.

    Attributes:
        name: of the attempt.
        changes: in order; the first one opened it.
        reached: what it is known to have delivered; None where nothing was.
        alongside: attempts that were recorded while it was, as far as is known: two trainings under one name.

    Examples:
        >>> run = catalog.run("tried", stream, attempt="monday")
        >>> [attempt.name for attempt in run.attempts()]
        ['monday']
    """

    name: str
    changes: tuple[RunChange, ...]
    reached: Mark | None
    alongside: tuple[str, ...] = ()

    @property
    def parent(self) -> str | None:
        """The attempt that it goes on from."""
        return self.changes[-1].parent

    @property
    def cut(self) -> Mark | None:
        """Where in its parent it goes on."""
        return self.changes[-1].cut

    @property
    def begun(self) -> str:
        """When it was opened."""
        return self.changes[0].at

    @property
    def is_anew(self) -> bool:
        """Whether it was said to begin anew on purpose."""
        return self.changes[0].why == ANEW

    @property
    def by(self) -> str:
        """The process that opened it."""
        return self.changes[0].by

    def __repr__(self) -> str:
        origin = "begun anew" if self.parent is None else f"from {self.parent}"
        return f"<Attempt {self.name!r}, {origin}, {len(self.changes)} changes, reached {_mark(self.reached)}>"


@final
class History:
    """All attempts of a run, as its notes say now.

    Args:
        files: of the run.
        records: of the catalog, which has the plans.
    """

    def __init__(self, files: RunFiles, records: StateRecords) -> None:
        self.name, self._records = files.name, records
        changes, reached = _noted(files)
        alongside: dict[str, set[str]] = {name: set() for name in changes}
        for name, some in changes.items():
            for other in {
                *reached.get(name, _NOTHING).alongside,
                *(each for change in some for each in change.alongside),
            }:
                alongside[name].add(other)
                alongside.setdefault(other, set()).add(name)
        found = [
            Attempt(
                name, tuple(some), _furthest(some, reached.get(name, _NOTHING).mark), tuple(sorted(alongside[name]))
            )
            for name, some in changes.items()
        ]
        self.attempts = {each.name: each for each in _in_order(found)}

    @property
    def newest(self) -> str:
        """The attempt that was opened last. One that goes on from no other counts once it delivers, or if it is anew on purpose.

        Raises:
            RunError: there is none.
        """
        if not self.attempts:
            msg = f"run {self.name!r} has no history: nobody has opened it with a stream yet. catalog.run(name, stream) does"
            raise RunError(msg)
        counts = [
            name
            for name, each in self.attempts.items()
            if each.reached is not None or each.parent is not None or each.is_anew
        ]
        return (counts or list(self.attempts))[-1]

    def branch(self, attempt: str | None = None) -> list[tuple[Attempt, Mark | None]]:
        """Return the attempts from the root to one, each with the place at which the next one leaves it.

        Args:
            attempt: the last one; None takes the newest.

        Raises:
            RunError: there is none of this name.
        """
        name = self.newest if attempt is None else attempt
        if name not in self.attempts:
            msg = f"run {self.name!r} has no attempt {shown(name)}; run.attempts() lists them"
            raise RunError(msg)
        out: list[tuple[Attempt, Mark | None]] = [(self.attempts[name], None)]
        while (parent := out[-1][0].parent) in self.attempts and parent not in {each.name for each, _ in out}:
            assert parent is not None
            out.append((self.attempts[parent], out[-1][0].cut))
        return out[::-1]

    def legs(self, attempt: str | None = None) -> list[Leg]:
        """Return what a branch delivered, in order.

        Args:
            attempt: the last one of the branch; None takes the newest.

        Raises:
            RunError: there is no such attempt.
        """
        return [leg for each, cut in self.branch(attempt) for leg in self._legs_of(each, cut)]

    def change_at(self, attempt: Attempt, leg: int, epoch: int | None) -> int:
        """Return which change of an attempt a leg and epoch began with, by its place among them."""
        wanted = leg, 0 if epoch is None else epoch
        begins = [(each.leg, Cursor.from_json(each.state).epoch) for each in attempt.changes]
        return max((at for at, begin in enumerate(begins) if begin <= wanted), default=0)

    def leg_at(self, attempt: Attempt, at: int, epoch: int | None = None) -> Leg:
        """Return the leg that began with a change, without what it delivered: to open what it read by."""
        change = attempt.changes[at]
        begun, segment = Cursor.from_json(change.state), change.segment
        first = begun.batch if epoch in (None, begun.epoch) else 0
        number = begun.epoch if epoch is None else epoch
        shape = segment["world_size"], segment["merge"]
        return Leg(
            attempt.name, at, change.why, self.plan(change), change.state, number, first, first, change.step, *shape
        )

    def plan(self, change: RunChange) -> Mapping[str, Any] | None:
        """Return the plan of a change as JSON values; None where the catalog has lost it."""
        found: Mapping[str, Any] | None = self._records.find(change.plan)
        return found

    def _legs_of(self, attempt: Attempt, cut: Mark | None) -> list[Leg]:
        end = attempt.reached if cut is None else cut
        out = list[Leg]()
        for at, change in enumerate(attempt.changes):
            begun = Cursor.from_json(change.state)
            until = attempt.changes[at + 1].before if at + 1 < len(attempt.changes) else end
            until = until if cut is None or until is None else min(until, cut)
            here = Mark(change.leg, begun.epoch, begun.batch)
            if until is None or end is None or until <= here or here >= end or until.epoch != begun.epoch:
                continue
            world, merge = change.segment["world_size"], change.segment["merge"]
            plan = self.plan(change)
            out.append(
                Leg(attempt.name, len(out), change.why, plan, change.state, begun.epoch, begun.batch, until.batch, change.step,
                    world, merge)
            )  # fmt: skip
        return out


class _Reached(NamedTuple):
    """What an attempt has said of how far it has come, and of others."""

    mark: Mark | None
    alongside: tuple[str, ...]


_NOTHING: Final = _Reached(None, ())


def _noted(files: RunFiles) -> tuple[dict[str, list[RunChange]], dict[str, _Reached]]:
    """The changes of each attempt, and how far it has come."""
    changes: dict[str, list[RunChange]] = {}
    reached: dict[str, _Reached] = {}
    for name, value in files.notes().items():
        attempt, _, kind = name.rpartition(".")
        if kind == "reached":
            reached[attempt] = _Reached(Mark.of(value), tuple(value.get("alongside", ())))
        else:
            attempt = attempt.rpartition(".")[0]
            changes.setdefault(attempt, []).append(RunChange.of(attempt, value))
    return changes, reached


def reached_of(files: RunFiles) -> dict[str, Mark]:
    """Return how far each attempt is known to have come that has delivered anything.

    Raises:
        RunError: a note cannot be read.
    """
    changes, reached = _noted(files)
    found = {name: _furthest(some, reached.get(name, _NOTHING).mark) for name, some in changes.items()}
    return {name: mark for name, mark in found.items() if mark is not None}


def attempt_rows(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Return what is shown of attempts."""
    return [
        {
            "attempt": each.name, "goes on from": each.parent or ("nothing, on purpose" if each.is_anew else "nothing"),
            "from": "-" if each.cut is None else _mark(each.cut), "reached": _mark(each.reached),
            "opened": each.begun[:16].replace("T", " "), "by": each.by or "-", "alongside": ", ".join(each.alongside) or "-",
        }
        for each in attempts
    ]  # fmt: skip


def change_rows(changes: Sequence[RunChange]) -> list[dict[str, Any]]:
    """Return what is shown of changes."""
    return [
        {
            "attempt": each.attempt, "leg": each.leg, "change": each.why, "at": each.at[:19].replace("T", " "), "step": each.step,
            "stands at": _standing(each.state), "ranks": each.segment.get("world_size"), "merge": each.segment.get("merge"),
            "plan": str(each.state.get("plan"))[:8],
        }
        for each in changes
    ]  # fmt: skip


def _standing(state: Mapping[str, Any]) -> str:
    return f"epoch {state['epoch']:,} batch {state['batch']:,}"


def _mark(mark: Mark | None) -> str:
    return "nothing" if mark is None else f"epoch {mark.epoch:,} batch {mark.batch:,}"


def _furthest(changes: Sequence[RunChange], reached: Mark | None) -> Mark | None:
    marks = [each.before for each in changes if each.before is not None]
    return max([*marks, reached] if reached is not None else marks, default=None)


def _in_order(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Attempts by when they were opened, each after its parent, whatever the clocks of their machines said."""
    by_name = {each.name: each for each in attempts}

    def opened(attempt: Attempt) -> tuple[str, int, str]:
        at, depth, seen = attempt.begun, 0, {attempt.name}
        parent = by_name.get(attempt.parent or "")
        while parent is not None and parent.name not in seen:
            at, depth = max(at, parent.begun), depth + 1
            seen.add(parent.name)
            parent = by_name.get(parent.parent or "")
        return at, depth, attempt.name

    return sorted(attempts, key=opened)
