"""A store that refuses: it is said which store and why, nothing is half, and what is there is read."""

import pytest

from tests.fixtures.fault_proxy import FaultProxy
from tests.stream.keeping.laws.conftest import Base
from tests.stream.keeping.laws.kinds import KINDS
from tests.stream.keeping.laws.trials import other_files, run, wrong_with

REFUSALS = {
    "unwritable": "s3://.* status 403",
    "unconditional": "s3://.* (status 501|conditional|Error performing PUT)",
}


@pytest.fixture
def place() -> str:
    return "store"


def tried(base: Base, kind: str, refusal: str, faults: FaultProxy) -> list[str]:
    """Build while the store refuses, and then while it does not; returns what is wrong."""
    import re

    made = base(kind, "store")
    made.made.again()
    faults.set(**{refusal: True})
    first = run(made.ground, made.kind, "build")
    faults.set()
    said = " ".join([first.get("error", ""), *first["warnings"]])
    wrong = [f"raw: {first['raw']}"] if "raw" in first else []
    if not re.search(REFUSALS[refusal], said):
        wrong.append(f"not said: {said}")
    again = run(made.ground, made.kind, "build", "read", "tidy")
    return wrong + list(wrong_with(made, again)) + list(other_files(made, made.ground))


@pytest.mark.slow
@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_takes_nothing_is_named_and_later_all_goes_through(
    kind: str, refusal: str, base: Base, faults: FaultProxy
) -> None:
    assert tried(base, kind, refusal, faults) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_complete_is_read_by_a_new_machine_that_may_not_write(
    kind: str, base: Base, faults: FaultProxy
) -> None:
    made = base(kind, "store")
    made.built.again()
    run(made.ground, made.kind, "read")  # builds what only who reads needs
    before = made.ground.files()
    faults.set(unwritable=True)
    assert list(wrong_with(made, run(made.ground.on("reader"), made.kind, "read"))) == []
    assert made.ground.files() == before
