"""Whether a saved state may be loaded into a stream: its plan and its data must be those that it was saved with.

A state of another plan or of other data is refused, and the error says where they differ. `rebase` goes on in spite of that.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.state_records import StateRecords
from spiral_stream.errors import ResumeError, listed
from spiral_stream.plan.saving.differences import PlanDifference, differences
from spiral_stream.plan.saving.fingerprint import digest
from spiral_stream.planner.prepared_data.folder import saved_plan
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.saved_state import SavedState

_NAMED: Final = 5  # relations in a message


def check_plan(state: SavedState, stages: Stages, catalog: Registry) -> None:
    """Refuse a state of another plan, and say where the two differ.

    A state of a plan that stops at bad samples is accepted by the same plan that does not stop.

    Raises:
        ResumeError: the plans differ.
    """
    if state.plan == stages.fingerprint:
        return
    old = saved_plan(catalog, state.plan)
    if old is not None and _refused_nothing(old, stages.canonical):
        return
    found, way_out = "where they differ is unknown, because the old plan is not in this catalog", ""
    if old is not None:
        differing = differences(old, stages.canonical)
        if all(each.policy for each in differing):
            raise ResumeError(_of_other_versions(differing))
        found = f"they differ at {'; '.join(map(str, differing))}"
        if any(each.of_shares for each in differing) and all(each.of_shares or each.of_collate for each in differing):
            way_out = (
                ", or keep the place: load the state into a stream of the old plan, then new_stream.rebase(old_stream)"
            )
    msg = (
        f"resume: saved by plan {state.plan[:8]}, this is plan {stages.fingerprint[:8]}; {found}. "
        f"Restore the old plan, or start a new epoch{way_out}"
    )
    raise ResumeError(msg)


def _of_other_versions(differing: Sequence[PlanDifference]) -> str:
    """The error for a state of the same plan by another version of the library, whose policies had other versions."""
    lines = [
        f"{each.policy} was version {each.before}, and is version {each.after} here ({each.at})" for each in differing
    ]
    return (
        f"resume: the plan is the same, but another version of spiral saved the state, and its batches are others: "
        f"{'; '.join(dict.fromkeys(lines))}. Go on with the version of spiral that saved it until the epoch ends, or start a new "
        "epoch with this one; CHANGELOG.md has what changed"
    )


def _refused_nothing(old: Any, new: Any) -> bool:
    """Return whether the new plan differs only by going on where the old one would have stopped."""
    differing = differences(old, new)
    return len(differing) == 1 and (differing[0].at, differing[0].before) == ("collate.on_error", "null")


def check_data(state: SavedState, stages: Stages, catalog: Registry) -> None:
    """Refuse a state of other data, and say which relations changed.

    Raises:
        ResumeError: a relation changed.
    """
    present, name = dict(stages.data_versions), dict(state.list_digests).get("data")
    if digest(present) == name or (name is None and dict(state.data) == present):
        return
    saved = dict(state.data) if name is None else StateRecords(catalog.root).find(name)
    if not isinstance(saved, Mapping):
        msg = (
            f"resume: the data changed since the state was saved, or is that of another machine: {len(present):,} relations "
            f"are {digest(present)[:8]} here, and were {str(name)[:8]}. The catalog that saved the state knows which of them "
            'differ: there catalog.export_state(state, "state.json"), here catalog.import_state("state.json"). Put the old '
            "data back, or start a new epoch on this data"
        )
        raise ResumeError(msg)
    names = [name for name in sorted(saved.keys() | present.keys()) if saved.get(name) != present.get(name)]
    rest = "goes on where each stream stands" if stages.mixed else "delivers the rest of this epoch first"
    lines = [f"{n:.100} ({str(saved.get(n))[:8]} -> {str(present.get(n))[:8]})" for n in names]
    msg = (
        f"resume: the data changed since the state was saved: {listed(lines, _NAMED, '; ', '; and')}. Put the old data back and "
        f"catalog.refresh() it, or start a new epoch on the new data; stream.rebase(state) {rest}{_of_runs(names)}"
    )
    raise ResumeError(msg)


def _of_runs(names: Sequence[str]) -> str:
    """What to read in place of a run that goes on recording."""
    runs = [name for name in names if name.startswith("runs.")]
    if not runs:
        return ""
    return f". {runs[0]} is the trained branch of a run, and moves with it: a plan over a branch, {runs[0]}.<attempt>, replays"
