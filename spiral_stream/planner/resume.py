"""Whether a saved state is whole, and belongs to this plan, data and run: where it does not, in words.

A state is read once into a `SavedState`, with everything checked that needs no plan; what it
is then held against raises before anything of the stream has changed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from spiral_stream.catalog.registry import Registry
from spiral_stream.cursor import STATE_VERSION, Cursor
from spiral_stream.errors import ResumeError, shown
from spiral_stream.plan.differences import differences
from spiral_stream.planner.lower import saved_plan
from spiral_stream.planner.physical import Stages
from spiral_stream.planner.rebase import Rebase
from spiral_stream.seeding import key

_KEYS: Final = (
    "plan",
    "data",
    "run_seed",
    "epoch",
    "batch",
    "step",
    "segments",
    "chapters",
    "rebase",
)  # that it covers
_HEX: Final = re.compile("[0-9a-f]{1,64}")
_CHAPTERS: Final = "chapters cannot be read:"

Anchor = tuple[int, int, int]  # lane, chapter, and the number in the lane of the chapter's first batch


@final
@dataclass(frozen=True, slots=True)
class SavedState:
    """Where a run stands, with what it stands on.

    ``chapters`` says where chapters of formed batches begin; None where batches are counted, or in a state that
    says nothing of them. ``sealed`` tells a state with a checksum from one of before there were any.
    """

    plan: str
    data: tuple[tuple[str, str], ...]
    run_seed: int
    cursor: Cursor
    chapters: tuple[Anchor, ...] | None = None
    rebase: Rebase | None = None
    sealed: bool = True

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values, with a checksum over all of them."""
        out = {
            "spiral": STATE_VERSION,
            "plan": self.plan,
            "data": dict(self.data),
            "run_seed": self.run_seed,
            **self.cursor.to_json(),
        }
        if self.chapters is not None:
            out["chapters"] = [list(each) for each in self.chapters]
        if self.rebase is not None:
            out["rebase"] = self.rebase.to_json()
        return sealed(out)

    @classmethod
    def from_json(cls, state: Any) -> "SavedState":
        """Read `to_json` back, also after a way through JSON.

        Raises:
            ResumeError: this is no state of this version, it was edited or damaged, or it says what cannot be.
        """
        if not isinstance(state, Mapping) or not _of_version(state.get("spiral")):
            found = state.get("spiral") if isinstance(state, Mapping) else type(state).__name__
            msg = f"resume: this is no state of version {STATE_VERSION} (found {shown(found)}); pass what state_dict() returned"
            raise ResumeError(msg)
        seed, data, plan = state.get("run_seed"), state.get("data"), state.get("plan")
        _need(_is_whole(seed), f"run_seed is {shown(seed)}, not an integer")
        _need(isinstance(plan, str) and _HEX.fullmatch(plan), f"plan is {shown(plan)}, not a fingerprint")
        texts = isinstance(data, Mapping) and all(isinstance(text, str) for pair in data.items() for text in pair)
        _need(texts, f"data versions are {shown(data)}")
        cursor = Cursor.from_json(state)
        begun = not cursor.segments or (cursor.segments[0].first_batch, cursor.segments[0].first_step) == (0, 0)
        _need(begun, "segments do not begin at the start of the epoch")
        rebase = Rebase.from_json(state.get("rebase"))
        _need(rebase is None or rebase.epoch <= cursor.epoch, "rebase begins in a later epoch than its place")
        chapters = _anchors(state.get("chapters"))
        pairs = tuple(sorted(data.items()))  # type: ignore[union-attr]  # checked above
        read = cls(plan, pairs, seed, cursor, chapters, rebase, "checksum" in state)  # type: ignore[arg-type]  # as above
        need_sealed(state, read.to_json())
        return read


@final
@dataclass(frozen=True, slots=True)
class WorkerState:
    """Where the pass of one worker of a StatefulDataLoader stands: where it began, and how many batches it has had."""

    plan: str | None  # None where the worker could not know it
    cursor: Cursor
    worker: tuple[int, int]  # number, of how many
    had: int

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values, with a checksum over all of them."""
        return sealed({"plan": self.plan, **self.cursor.to_json(), "worker": [*self.worker, self.had]})

    @classmethod
    def from_json(cls, state: Any) -> "WorkerState":
        """Read `to_json` back.

        Raises:
            ResumeError: it is no such state, or was edited or damaged.
        """
        worker: Any = state.get("worker") if isinstance(state, Mapping) else None
        read = isinstance(worker, list | tuple) and len(worker) == 3 and all(_is_whole(n) and n >= 0 for n in worker)  # noqa: PLR2004
        _need(read, f"worker is {shown(worker)}, not a number, of how many, and the batches it has had")
        plan = state.get("plan")
        _need(plan is None or isinstance(plan, str), f"plan is {shown(plan)}, not a fingerprint")
        out = cls(plan, Cursor.from_json(state), (worker[0], worker[1]), worker[2])
        need_sealed(state, out.to_json())
        return out


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """A state with its checksum, over what it says and not over how it is written."""
    return {**state, "checksum": _checksum(state)}


def need_sealed(state: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    """Refuse a state whose checksum is not that of what was read from it; one of before there were any has none.

    Raises:
        ResumeError: it was edited or damaged.
    """
    if "checksum" in state and state["checksum"] != read["checksum"]:
        msg = "resume: the state was edited or damaged: its checksum is of another; pass what state_dict() returned, unchanged"
        raise ResumeError(msg)


def _checksum(state: Mapping[str, Any]) -> str:
    covered = {name: state[name] for name in (*_KEYS, "worker") if name in state}
    return f"{key('state', json.dumps(covered, sort_keys=True, separators=(',', ':'))):016x}"


def _anchors(chapters: Any) -> tuple[Anchor, ...] | None:
    """Where a state says that chapters begin."""
    if chapters is None:
        return None
    try:
        found = tuple((lane, chapter, first) for lane, chapter, first in chapters)
    except (TypeError, ValueError):
        found = ()
    read = isinstance(chapters, list | tuple) and len(found) == len(chapters)
    _need(
        read and all(_is_whole(n) and 0 <= n < 1 << 62 for each in found for n in each),
        f"{_CHAPTERS} {shown(chapters)}",
    )
    once = len({lane for lane, *_ in found}) == len(found)
    _need(once and not any(chapter == 0 < first for _, chapter, first in found), f"{_CHAPTERS} {shown(chapters)}")
    return found


def _of_version(found: Any) -> bool:
    return _is_whole(found) and found == STATE_VERSION


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _need(holds: object, found: str) -> None:
    if not holds:
        msg = f"resume: the state's {found}; pass what state_dict() returned, unchanged"
        raise ResumeError(msg)


def check_plan(state: SavedState, stages: Stages, catalog: Registry) -> None:
    """Refuse a state of another plan; says where the two differ. One that only stops at bad samples is no other.

    Raises:
        ResumeError: they differ.
    """
    if state.plan == stages.fingerprint:
        return
    old = saved_plan(catalog, state.plan)
    if old is not None and _refused_nothing(old, stages.canonical):
        return
    found, way_out = "where they differ is unknown, since the old plan is not in this catalog", ""
    if old is not None:
        places = differences(old, stages.canonical)
        found = f"they differ at {'; '.join(map(str, places))}"
        if any(each.of_shares for each in places) and all(each.of_shares or each.of_collate for each in places):
            way_out = ", or take its place over: load the state into a stream of the old plan, then new_stream.rebase(old_stream)"
    msg = (
        f"resume: saved by plan {state.plan[:8]}, this is plan {stages.fingerprint[:8]}; {found}. "
        f"Restore the old plan, or start a new epoch{way_out}"
    )
    raise ResumeError(msg)


def _refused_nothing(old: Any, new: Any) -> bool:
    """Whether the new plan only goes on where the old one would have stopped: all batches so far are alike in both."""
    places = differences(old, new)
    return len(places) == 1 and (places[0].at, places[0].before) == ("collate.on_error", "null")


def check_data(state: SavedState, stages: Stages) -> None:
    """Refuse a state of other data; says which relations changed.

    Raises:
        ResumeError: they changed.
    """
    saved, present = dict(state.data), dict(stages.data_versions)
    if saved == present:
        return
    names = [name for name in sorted(saved.keys() | present.keys()) if saved.get(name) != present.get(name)]
    lines = [f"{n:.100} ({str(saved.get(n))[:8]} -> {str(present.get(n))[:8]})" for n in names[:5]]
    msg = (
        f"resume: the data changed since the state was saved: {'; '.join(lines)}. Put the old data back and "
        "catalog.refresh() it, or start a new epoch on the new data"
    )
    raise ResumeError(msg)
