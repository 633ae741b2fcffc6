"""What holds in every test: derandomized laws, and no setting of the developer's shell."""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

# Derandomized: a run on CI and a run on a laptop see the same examples. Nothing is held against a clock: both cores may
# be busy, and on a machine with other work an example is drawn for seconds.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough",
    derandomize=False,
    deadline=None,
    max_examples=1_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
    for name in [name for name in os.environ if name.startswith(("SPIRAL_", "DAGSTER_"))]:
        del os.environ[name]
    os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"
    # torch's OpenMP threads spin while they wait, on cores that other workers of the suite need: the documents' pages took
    # 57 CPU s, and take 44 with one thread. torch reads this when it is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)


def pytest_collection_finish() -> None:
    """Leave what all files import out of the collector's walks: one took 0.7 CPU s in a worker of the whole suite."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # nanobind counts what is left when the process ends
