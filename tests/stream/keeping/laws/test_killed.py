"""A build that is killed at any step: another one gives what an undisturbed one does, and nothing is lost, double or left."""

from typing import Any, Final

import pytest

from tests.fixtures.fault_proxy import FaultProxy
from tests.stream.keeping.laws.conftest import Base
from tests.stream.keeping.laws.kinds import EVERY, by_day
from tests.stream.keeping.laws.trials import Undisturbed, killed

KILLS: Final = 10  # by night, of each kind in each place


def kills_of(base: Undisturbed, count: int) -> list[dict[str, Any]]:
    """Steps spread over a build: changes of files, and of a store each second one by its requests."""
    at = [(k + 0.5) / count for k in range(count)]
    found: list[dict[str, Any]] = [{"file": 1 + int(base.steps * share)} for share in at]
    if base.changes:
        found[::2] = [
            {"request": 1 + int(base.changes * share), "after": k % 2 == 1} for k, share in enumerate(at[::2])
        ]
    return found


@pytest.mark.parametrize(
    ("kind", "place"),
    by_day(
        ("columns", "store"), ("images", "folder"), ("imports", "folder"), ("records", "store"), ("writer", "store")
    ),
)
def test_another_build_gives_the_same_after_a_kill(
    kind: str, place: str, base: Base, faults: FaultProxy | None
) -> None:
    made = base(kind, place)
    [kill] = kills_of(made, 1)
    assert list(killed(made, kill, faults, elsewhere=False)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "place"), EVERY)
def test_at_whichever_step_a_build_is_killed_another_one_gives_the_same(
    kind: str, place: str, base: Base, faults: FaultProxy | None
) -> None:
    made = base(kind, place)
    wrong = {}
    for k, kill in enumerate(kills_of(made, KILLS)):
        elsewhere = place == "store" and k % 4 in (1, 2)
        found = list(killed(made, kill, faults, elsewhere=elsewhere))
        if found:
            wrong[f"{kill}, and then {'another' if elsewhere else 'the same'} machine"] = found
    assert wrong == {}
