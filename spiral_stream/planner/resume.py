"""Whether a saved state belongs to this plan, data and run: where it does not, in words."""

import re
from collections.abc import Mapping
from typing import Any, Final

from spiral_stream.catalog.registry import Catalog
from spiral_stream.cursor import STATE_VERSION
from spiral_stream.errors import ResumeError
from spiral_stream.plan.fingerprint import differences
from spiral_stream.planner.lower import saved_plan
from spiral_stream.planner.physical import Stages

# what a mixture gives its streams, as `differences` writes it: a stream's own rows are another matter
_SHARES: Final = re.compile(
    r"mix(\.\w+|( \(stream .*?\))*( \((new|left out|order of streams)\)|\.(proportion|repeat|choose)\b))"
)


def check_state(state: Any) -> Mapping[str, Any]:
    """Refuse what is no state of this version, or has no run seed.

    Raises:
        ResumeError: what was found instead.
    """
    if not isinstance(state, Mapping) or state.get("spiral") != STATE_VERSION:
        found = state.get("spiral") if isinstance(state, Mapping) else type(state).__name__
        msg = f"resume: this is no state of version {STATE_VERSION} (found {found!r}); pass what state_dict() returned"
        raise ResumeError(msg)
    seed = state.get("run_seed")
    if not isinstance(seed, int):
        msg = f"resume: the state's run_seed is {seed!r}, not an integer; pass what state_dict() returned, unchanged"
        raise ResumeError(msg)
    return state


def check_plan(state: Mapping[str, Any], stages: Stages, catalog: Catalog) -> None:
    """Refuse a state of another plan; says where the two differ. One that only stops at bad samples is no other.

    Raises:
        ResumeError: they differ.
    """
    if state.get("plan") == stages.fingerprint:
        return
    old = saved_plan(catalog, str(state.get("plan")))
    if old is not None and _refused_nothing(old, stages.canonical):
        return
    found, way_out = "where they differ is unknown, since the old plan is not in this catalog", ""
    if old is not None:
        lines = differences(old, stages.canonical)
        found = f"they differ at {'; '.join(lines)}"
        shares = [line for line in lines if _SHARES.match(line)]
        if shares and all(line in shares or line.startswith("collate.") for line in lines):
            way_out = ", or take its place over: load the state into a stream of the old plan, then new_stream.rebase(old_stream)"
    msg = (
        f"resume: saved by plan {str(state.get('plan'))[:8]}, this is plan {stages.fingerprint[:8]}; {found}. "
        f"Restore the old plan, or start a new epoch{way_out}"
    )
    raise ResumeError(msg)


def _refused_nothing(old: Any, new: Any) -> bool:
    """Whether the new plan only goes on where the old one would have stopped: all batches so far are alike in both."""
    lines = differences(old, new)
    return len(lines) == 1 and lines[0].startswith("collate.on_error (null -> ")


def check_data(state: Mapping[str, Any], stages: Stages) -> None:
    """Refuse a state of other data; says which relations changed.

    Raises:
        ResumeError: they changed.
    """
    saved, present = state.get("data"), dict(stages.data_versions)
    if saved == present:
        return
    if not isinstance(saved, Mapping):
        msg = f"resume: the state's data versions are {saved!r}; pass what state_dict() returned, unchanged"
        raise ResumeError(msg)
    names = [name for name in sorted(saved.keys() | present.keys()) if saved.get(name) != present.get(name)]
    lines = [f"{n} ({str(saved.get(n))[:8]} -> {str(present.get(n))[:8]})" for n in names]
    msg = (
        f"resume: the data changed since the state was saved: {'; '.join(lines)}. Put the old data back and "
        "catalog.refresh() it, or start a new epoch on the new data"
    )
    raise ResumeError(msg)


def anchors_of(state: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """Where the state says that chapters begin: lane, chapter, number in the lane of its first batch.

    Raises:
        ResumeError: it cannot be read.
    """
    try:
        return [(int(lane), int(chapter), int(first)) for lane, chapter, first in state.get("chapters", ())]
    except (TypeError, ValueError) as error:
        msg = f"resume: the state's chapters cannot be read ({error!r}); pass what state_dict() returned, unchanged"
        raise ResumeError(msg) from error
