"""What holds in every test: derandomized laws, and no setting of the developer's shell."""

import gc
import importlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# Derandomized: a run on CI and a run on a laptop see the same examples. Nothing is held against a clock: both cores may
# be busy, and on a machine with other work an example is drawn for seconds.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough",
    derandomize=False,
    deadline=None,
    max_examples=1_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


LONG = (
    "tests/test_documents.py",
    "tests/e2e/",
    "tests/assets/",
)  # they begin first, so that no core waits for one at the end


LONGER_S = {"slow": 1_800, "e2e": 600}  # by marker: deadlines of tests that have no `timeout` marker

NODE = pytest.StashKey[str]()  # where remote bytes are kept
TOGETHER = pytest.StashKey[
    str
]()  # what the workers of a run make once, as $TESTS_TOGETHER; the process that starts them has it


def pytest_configure(config: pytest.Config) -> None:
    # When the process ends: nanobind counts what is left. Asked for first, done last, after pytest has collected five times.
    config.add_cleanup(gc.unfreeze)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
    if settings.get_current_profile_name() == "default":
        # Hypothesis parses all modules of ours that are imported for constants to draw (5 CPU s in each worker), so that
        # examples depended on which files the worker had collected, and on the order of its tests.
        providers._get_local_constants = lambda: providers._local_constants
    for name in [name for name in os.environ if name.startswith(("SPIRAL_", "DAGSTER_"))]:
        del os.environ[name]
    # Compiled files are kept, for tests and for the processes that they start: to compile all of them anew took 13 CPU s
    # in each worker, and 0.4 in each process that imports spiral_stream.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"
    # remote bytes are kept on the node by default: never in the home of whoever runs the tests
    config.stash[NODE] = os.environ["SPIRAL_NODE_CACHE"] = tempfile.mkdtemp(prefix="spiral-node-")
    if "TESTS_TOGETHER" not in os.environ:
        config.stash[TOGETHER] = os.environ["TESTS_TOGETHER"] = tempfile.mkdtemp(prefix="spiral-together-")
    # torch's OpenMP threads spin while they wait, on cores that other workers of the suite need: the documents' pages took
    # 57 CPU s, and take 44 with one thread. torch reads this when it is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # No test cuts the power, so none waits for the disk: 2 ms for each file. A handle that is not open is still refused.
    # Processes that tests start do sync.
    os.fsync = os.fstat  # type: ignore[assignment]
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    for name in ("no_proxy", "NO_PROXY"):  # the servers of tests are on this machine
        os.environ[name] = ",".join(filter(None, ["127.0.0.1", "localhost", os.environ.get(name)]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    gc.disable()  # what files import stays: 2,500 walks over it took 3.7 CPU s in each worker
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores: a fifth of the suite's time is spent waiting for processes and stores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


@pytest.hookimpl(tryfirst=True)  # before those are left out that the command does not choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in _at_night(items):
        item.add_marker(pytest.mark.slow)
    for item in items:
        for name, deadline_s in LONGER_S.items():
            if item.get_closest_marker("timeout") is None and item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.timeout(deadline_s))
    if seed := os.environ.get("TESTS_IN_ORDER_OF"):
        random.Random(seed).shuffle(items)
        return
    items.sort(key=lambda item: next((at for at, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG)))


def _at_night(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Of tests that are marked `crossed`: the cases that are not the first, the second ... of all parametrizations."""
    for item in items:
        if item.get_closest_marker("crossed") is not None:
            places = list(_places(item))
            turn, _ = max(places, key=lambda place: place[1])
            if any(at != turn % count for at, count in places):
                yield item


def _places(item: pytest.Item) -> Iterator[tuple[int, int]]:
    """Of each parametrization of a test: which of its cases this is, and how many it has."""
    assert isinstance(item, pytest.Function)
    with_marks = type(pytest.param())
    for mark in item.iter_markers("parametrize"):
        names, cases = mark.args[0], list(mark.args[1])
        several = not isinstance(names, str) or "," in names
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        values = [
            case.values if isinstance(case, with_marks) else tuple(case) if several else (case,) for case in cases
        ]
        given = [item.callspec.params[name] for name in names]
        same = [all(a is b for a, b in zip(given, each, strict=True)) for each in values]
        yield same.index(True), len(cases)


def pytest_collection_finish() -> None:
    """Leave what all files import out of the collector's walks: one took 0.7 CPU s in a worker of the whole suite."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _warm_sql() -> Iterator[None]:
    """SQL text runs in processes that are forked from one that has imported the engine, except in tests of that process."""
    from spiral_stream.relational import sql
    from tests.fixtures.warm import SqlProcess

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sql, "subprocess", types.SimpleNamespace(**{**vars(subprocess), "Popen": SqlProcess}))
        yield


@pytest.fixture
def no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to encode: what is compared with a recording starts from stored files, since encoders give other bytes elsewhere."""
    import av
    import simplejpeg
    from PIL import Image

    importlib.import_module("spiral_stream.decoders.image.region")  # encodes an image once, to look at its library

    def refused(*_: object, **__: object) -> None:
        pytest.fail("encoded on the spot. Start from stored files: another processor or version gives other bytes")

    opened = av.open
    monkeypatch.setattr(simplejpeg, "encode_jpeg", refused)
    monkeypatch.setattr(Image.Image, "save", refused)
    monkeypatch.setattr(
        av, "open", lambda *at, **how: refused() if "w" in (*at[1:2], how.get("mode")) else opened(*at, **how)
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Show all threads of a test that ran past its deadline: pytest-timeout prints them where xdist shows nothing."""
    report = yield
    if call.excinfo is not None and str(call.excinfo.value).startswith("Timeout (>"):
        names = {each.ident: each.name for each in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            stack = "".join(traceback.format_stack(frame))
            report.sections.append((f"thread {names.get(ident, ident)} at the deadline", stack))
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    if (warm := sys.modules.get("tests.fixtures.warm")) is not None:
        warm.close()
    shutil.rmtree(config.stash[NODE], ignore_errors=True)
    if TOGETHER in config.stash:
        shutil.rmtree(os.environ.pop("TESTS_TOGETHER"), ignore_errors=True)
