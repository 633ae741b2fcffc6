"""Grounds of the laws: each kind, in a folder and on a store, built once by whoever asks first."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures import fault_proxy, stores
from tests.stream.keeping.laws.ground import Ground
from tests.stream.keeping.laws.kinds import KINDS
from tests.stream.keeping.laws.trials import Undisturbed

Base = Callable[[str, str], Undisturbed]


@pytest.fixture(scope="session")
def proxy(s3_endpoint: str) -> Iterator[fault_proxy.FaultProxy]:
    """What stands before the store, and does what networks, stores and those who kill do."""
    with fault_proxy.fault_proxy(s3_endpoint) as found:
        yield found


@pytest.fixture(scope="session")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    """What a build of a kind gives in a place that nobody disturbs."""
    known: dict[tuple[str, str], Undisturbed] = {}
    folders: list[Path] = []

    def found(kind: str, place: str) -> Undisturbed:
        if (kind, place) not in known:
            folders.append(tmp_path_factory.mktemp(f"{kind}-{place}"))
            ground, before = Ground(folders[-1] / "ground"), None
            if place == "store":
                before = request.getfixturevalue("proxy")
                endpoint = request.getfixturevalue("s3_endpoint")
                ground = Ground(ground.home, before.address, stores.new_bucket(endpoint))
            known[kind, place] = Undisturbed.of(ground, KINDS[kind], before)
        return known[kind, place]

    yield found
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Iterator[fault_proxy.FaultProxy | None]:
    """The proxy, if the place is a store; nothing goes wrong before and after."""
    found = None
    if request.getfixturevalue("place") == "store":
        found = request.getfixturevalue("proxy")
        found.set()
    yield found
    if found is not None:
        found.set()
