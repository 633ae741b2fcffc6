"""What a saved state says: `SavedState`.

A state is read once into a `SavedState`, which refuses what is damaged. `compatibility` then compares it with the plan and
the data of the stream, before anything in that changes.

A state is small: a list in it (data versions, a rebase, skips, decisions) that is longer than `LISTED_BYTES` lies in the
catalog, and the state has its name (`catalog.state_records`, docs/decisions/0063).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from spiral_stream.arguments import as_integer
from spiral_stream.catalog.state_records import StateRecords, is_name
from spiral_stream.cursor import STATE_VERSION, Cursor
from spiral_stream.errors import ResumeError, shown
from spiral_stream.planner.state.decisions import PLANNED, Decisions
from spiral_stream.planner.state.rebase import Rebase
from spiral_stream.planner.state.skips import NOTHING, Skips
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
    "skips",
    "decided",
    "drawn_seed",
    "run",
)  # the values that the checksum covers
LISTED_BYTES: Final = {
    "data": 320,
    "rebase": 1024,
    "skips": 1024,
    "decided": 1024,
}  # of JSON: a state without edits stays below 1 kB
_HEX: Final = re.compile("[0-9a-f]{1,64}")
_EDITS: Final = ("rebase", "skips", "decided")
_LISTS: Final = ("data", *_EDITS)
_CHAPTERS: Final = "chapters cannot be read:"

Anchor = tuple[int, int, int]  # lane, chapter, and the number in the lane of the chapter's first batch


@final
@dataclass(frozen=True, slots=True)
class SavedState:
    """Where a run stands, and of which plan, data and seed.

    ``chapters`` says where the chapters of formed batches begin; None where batches are counted, or where the state does
    not say. ``sealed`` says whether the state has a checksum; old states have none. ``drawn_seed`` is the order's, if the
    process that began the run drew it. ``list_digests`` names the records of lists that the state does not hold
    itself; data versions that were read from such a state are not looked up before they are needed (`versions`). ``run`` is what
    the run that records the stream says of itself (`runs.run`).
    """

    plan: str
    data: tuple[tuple[str, str], ...]
    run_seed: int
    cursor: Cursor
    chapters: tuple[Anchor, ...] | None = None
    rebase: Rebase | None = None
    skips: Skips = NOTHING
    sealed: bool = True
    drawn_seed: int | None = None
    list_digests: tuple[tuple[str, str], ...] = ()
    decided: Decisions = PLANNED
    run: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values, with a checksum over all of them."""
        out = {
            "spiral": STATE_VERSION,
            "plan": self.plan,
            **self.lists(),
            "run_seed": self.run_seed,
            **self.cursor.to_json(),
            **dict(self.list_digests),
        }
        if self.chapters is not None:
            out["chapters"] = [list(each) for each in self.chapters]
        if self.drawn_seed is not None:
            out["drawn_seed"] = int(self.drawn_seed)
        if self.run is not None:
            out["run"] = dict(self.run)
        return sealed(out)

    def lists(self) -> dict[str, Any]:
        """Return what may grow, as JSON values by their names in the state."""
        out: dict[str, Any] = {"data": dict(self.data)}
        if self.rebase is not None:
            out["rebase"] = self.rebase.to_json()
        if self.skips:
            out["skips"] = self.skips.to_json()
        if self.decided:
            out["decided"] = self.decided.to_json()
        return out

    def shortened(self, keep: Callable[[Any], str | None]) -> "SavedState":
        """Return the same state, where long lists are named.

        Args:
            keep: keeps a list and returns its name; None where it cannot be kept, and then the state holds it.
        """
        long = {name: value for name, value in self.lists().items() if len(json.dumps(value)) > LISTED_BYTES[name]}
        names = {name: keep(value) for name, value in long.items()}
        return replace(self, list_digests=tuple((name, digest) for name, digest in names.items() if digest is not None))

    def versions(self, records: StateRecords) -> dict[str, str]:
        """Return the data version of each relation.

        Raises:
            ResumeError: the state names a list that this catalog does not have.
        """
        name = dict(self.list_digests).get("data")
        return dict(self.data) if name is None else dict(records.need(name, "the data versions"))

    @classmethod
    def from_json(cls, state: Any, records: StateRecords) -> "SavedState":
        """Read `to_json` back, also after a way through JSON.

        Args:
            state: what was saved.
            records: of the catalog, for lists that the state names.

        Raises:
            ResumeError: this is not a state of this version, it was edited or damaged, or it contradicts itself; or it names
                a list that the catalog does not have.
        """
        if not isinstance(state, Mapping) or not _of_version(state.get("spiral")):
            found = state.get("spiral") if isinstance(state, Mapping) else type(state).__name__
            msg = (
                f"resume: this is no state of version {STATE_VERSION} (found {shown(found)}). Pass what state_dict() returned"
                f"{_instead(state)}"
            )
            raise ResumeError(msg)
        seed, data, plan = state.get("run_seed"), state.get("data"), state.get("plan")
        _need(_is_integer(seed), f"run_seed is {shown(seed)}, not an integer")
        _need(isinstance(plan, str) and _HEX.fullmatch(plan), f"plan is {shown(plan)}, not a fingerprint")
        lists = {name: state[name] for name in _LISTS if is_name(state.get(name))}
        texts = isinstance(data, Mapping) and all(isinstance(text, str) for pair in data.items() for text in pair)
        _need(texts or "data" in lists, f"data versions are {shown(data)}")
        _need(not lists or "checksum" in state, "lists are named without a checksum")
        cursor = Cursor.from_json(state)
        begun = not cursor.segments or (cursor.segments[0].first_batch, cursor.segments[0].first_step) == (0, 0)
        _need(begun, "segments do not begin at the start of the epoch")
        edits = {
            name: records.need(lists[name], f"the {name}") if name in lists else state.get(name) for name in _EDITS
        }
        rebase = Rebase.from_json(edits["rebase"])
        _need(rebase is None or rebase.epoch <= cursor.epoch, "rebase begins in a later epoch than its place")
        chapters = _anchors(state.get("chapters"))
        pairs = () if "data" in lists else tuple(sorted(data.items()))  # type: ignore[union-attr]  # checked above
        skips = Skips.from_json(edits["skips"])
        _need(not skips or "checksum" in state, "skips have no checksum")
        decided = Decisions.from_json(edits["decided"])
        _need(not decided or "checksum" in state, "decisions have no checksum")
        begun = rebase is None or not decided or decided.made[0].epoch >= rebase.epoch
        _need(begun, "decisions begin in an epoch before its rebase")
        drawn = state.get("drawn_seed")
        _need(drawn is None or _is_integer(drawn), f"drawn_seed is {shown(drawn)}, not an integer")
        run = state.get("run")
        _need(run is None or isinstance(run, Mapping), f"run is {shown(run)}, not what a run says of itself")
        sound = "checksum" in state
        read = cls(plan, pairs, seed, cursor, chapters, rebase, skips, sound, drawn, tuple(lists.items()), decided, run)  # type: ignore[arg-type]  # as above
        need_sealed(state, read.to_json())
        return read


@final
@dataclass(frozen=True, slots=True)
class WorkerState:
    """Where the pass of one StatefulDataLoader worker stands: where it began, and how many batches it has given."""

    plan: str | None  # None if the worker could not know it
    cursor: Cursor
    worker: tuple[int, int]  # its number, and how many workers there are
    had: int
    edits: str = ""  # digest of what the run skips and of its rebase; empty without any

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values, with a checksum over all of them."""
        edits = {"edits": self.edits} if self.edits else {}
        return sealed({"plan": self.plan, **self.cursor.to_json(), "worker": [*self.worker, self.had], **edits})

    @classmethod
    def from_json(cls, state: Any) -> "WorkerState":
        """Read `to_json` back.

        Raises:
            ResumeError: it is not the state of a worker, or was edited or damaged.
        """
        worker: Any = state.get("worker") if isinstance(state, Mapping) else None
        read = isinstance(worker, list | tuple) and len(worker) == 3 and all(_is_integer(n) and n >= 0 for n in worker)  # noqa: PLR2004
        _need(read, f"worker is {shown(worker)}, not [number, number of workers, batches given]")
        plan = state.get("plan")
        _need(plan is None or isinstance(plan, str), f"plan is {shown(plan)}, not a fingerprint")
        edits = state.get("edits", "")
        _need(isinstance(edits, str), f"edits are {shown(edits)}, not a digest")
        out = cls(plan, Cursor.from_json(state), (worker[0], worker[1]), worker[2], edits)
        need_sealed(state, out.to_json())
        return out


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with its checksum, which covers the values and not how they are written."""
    return {**state, "checksum": _checksum(state)}


def need_sealed(state: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    """Refuse a state whose checksum is not that of the values read from it. Old states have no checksum and pass.

    Raises:
        ResumeError: it was edited or damaged.
    """
    found = state.get("checksum", read["checksum"])
    if not isinstance(found, str) or found != read["checksum"]:
        msg = (
            "resume: the state was edited or damaged: its checksum does not fit. Pass what state_dict() returned, "
            "unchanged; stream.seek(epoch=..., batch=...) goes to a place of your choice"
        )
        raise ResumeError(msg)


def _checksum(state: Mapping[str, Any]) -> str:
    covered = {name: state[name] for name in (*_KEYS, "worker", "edits") if name in state}
    return f"{key('state', json.dumps(covered, sort_keys=True, separators=(',', ':'))):016x}"


def _anchors(chapters: Any) -> tuple[Anchor, ...] | None:
    """Return where a state says that chapters begin."""
    if chapters is None:
        return None
    try:
        found = tuple((lane, chapter, first) for lane, chapter, first in chapters)
    except (TypeError, ValueError):
        found = ()
    read = isinstance(chapters, list | tuple) and len(found) == len(chapters)
    _need(
        read and all(_is_integer(n) and 0 <= n < 1 << 62 for each in found for n in each),
        f"{_CHAPTERS} {shown(chapters)}",
    )
    once = len({lane for lane, *_ in found}) == len(found)
    _need(once and not any(chapter == 0 < first for _, chapter, first in found), f"{_CHAPTERS} {shown(chapters)}")
    return found


def _instead(state: Any) -> str:
    """The way out for somebody who has a number, or the numbers of a place, and no state."""
    number = as_integer(state)
    if number is not None:
        return f". Without a state, stream.seek(step={max(0, number)}) goes to a step"
    if isinstance(state, Mapping) and "spiral" not in state:
        return (
            ". Without a state, stream.seek(epoch=..., batch=...) goes to a batch, and stream.seek(step=...) to a step"
        )
    return ""


def _of_version(found: Any) -> bool:
    return _is_integer(found) and found == STATE_VERSION


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _need(holds: object, found: str) -> None:
    if not holds:
        msg = f"resume: the state's {found}. Pass what state_dict() returned, unchanged"
        raise ResumeError(msg)
