import gc
import multiprocessing
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from tests.fixtures import stores, streams
from tests.fixtures.waits import FAR_S

# What workers of a DataLoader import, once: a spawned one takes 2 to 3 CPU s for it. That such a worker starts is shown by
# the tests that spawn; a forked server's is sent the same.
multiprocessing.set_forkserver_preload(["pytest", "lance", "torch.utils.data", "spiral_stream.adapters.torch"])


@pytest.fixture(scope="session")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """A shared catalog of tiny images; tests that change it or build caches use ``own`` or ``caches``."""
    return streams.make_catalog(tmp_path_factory.mktemp("images"))


@pytest.fixture
def own(tmp_path: Path) -> sp.Catalog:
    """A catalog that the test may change."""
    return streams.make_catalog(tmp_path)


@pytest.fixture
def empty(tmp_path: Path) -> sp.Catalog:
    """A catalog that the test fills: `own` takes 80 CPU ms."""
    return sp.connect(str(tmp_path / "catalog"))


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which this test's caches and selections lie."""
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "prepared"))
    return tmp_path / "prepared"


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """The test ends with no thread of ours alive. One that an earlier test left fails one test, not all that come after."""
    if _alive():
        gc.collect()  # an earlier test may have left a circle
    _need_no_thread()
    yield
    _need_no_thread()


_LEFT: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # threads that failed a test already


def _alive() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("spiral") and each not in _LEFT]


def _need_no_thread() -> None:
    end = time.monotonic() + FAR_S
    for each in _alive():  # those of a stream that was dropped were told to end, and end later
        each.join(max(0.0, end - time.monotonic()))
    alive = _alive()
    _LEFT.update(alive)
    assert [each.name for each in alive] == []


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of an S3 server that runs as long as the tests of this process."""
    with stores.s3_server() as address:
        yield address


@pytest.fixture
def bucket(s3_endpoint: str) -> Iterator[str]:
    """The URI of a new bucket, whose options are given."""
    uri = f"s3://{stores.new_bucket(s3_endpoint)}"
    use_storage("tests", prefix=uri, **stores.options(s3_endpoint))
    yield uri
    use_storage("tests", prefix=uri)
