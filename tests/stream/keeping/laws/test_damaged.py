"""What is kept and then damaged: it is built again, or refused with a way out that goes out; other values are never read."""

from typing import Final

import pytest

from tests.fixtures.fault_proxy import FaultProxy
from tests.stream.keeping.laws.conftest import Base
from tests.stream.keeping.laws.damage import WAYS, damaged, files_of
from tests.stream.keeping.laws.kinds import EVERY, KINDS, by_day

BY_PLACE: Final = {"folder": tuple(WAYS), "store": ("middle", "cut", "removed", "another")}


@pytest.mark.usefixtures("faults")
@pytest.mark.parametrize(("kind", "place"), by_day(("imports", "folder"), ("images", "folder"), ("columns", "store")))
def test_one_damaged_file_gives_no_other_values(kind: str, place: str, base: Base) -> None:
    files = list(files_of(base(kind, place)).values())
    if not files and KINDS[kind].of_each_machine:
        return
    turn = list(KINDS).index(kind)
    assert list(damaged(base(kind, place), files[turn % len(files)], [*WAYS][turn % len(WAYS)])) == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "place"), EVERY)
def test_no_damage_to_any_file_gives_other_values(kind: str, place: str, base: Base, faults: FaultProxy | None) -> None:
    del faults
    wrong = {}
    assert files_of(base(kind, place)) or KINDS[kind].of_each_machine
    for alike, names in files_of(base(kind, place)).items():
        for way in BY_PLACE[place]:
            found = list(damaged(base(kind, place), names, way))
            if found:
                wrong[f"{alike}, {way}"] = found
    assert wrong == {}
