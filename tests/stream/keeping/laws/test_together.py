"""Two build the same at once, processes on one folder or machines on one store: the same values, and each thing once."""

import time

import pytest

from tests.fixtures.fault_proxy import FaultProxy
from tests.stream.keeping.laws.conftest import Base
from tests.stream.keeping.laws.kinds import EVERY, by_day
from tests.stream.keeping.laws.trials import ended, other_files, run, started, wrong_with


def tried(base: Base, kind: str, place: str, builders: int) -> list[str]:
    """Start builders together; returns what is wrong."""
    made = base(kind, place)
    made.made.again()
    machines = [made.ground.on("abcd"[k] if place == "store" else "a") for k in range(builders)]
    go = time.time() + 0.5
    building = [started(each, made.kind, "build", "read", go=go) for each in machines]
    found = [wrong_with(made, ended(each)) for each in building]
    found.append(wrong_with(made, run(made.ground, made.kind, "read", "tidy")))
    return [text for each in found for text in each] + list(other_files(made, made.ground))


@pytest.mark.usefixtures("faults")
@pytest.mark.parametrize(("kind", "place"), by_day(("columns", "store"), ("writer", "store"), ("imports", "folder")))
def test_two_that_build_at_once_have_each_thing_once(kind: str, place: str, base: Base) -> None:
    assert tried(base, kind, place, 2) == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "place"), EVERY)
def test_four_that_build_at_once_have_each_thing_once(
    kind: str, place: str, base: Base, faults: FaultProxy | None
) -> None:
    del faults
    assert [tried(base, kind, place, 4) for _ in range(2)] == [[], []]
