"""What tests of wrong YAML stand on: modules with plans, and the folder of a location."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.wrong_yaml import PLANS


@pytest.fixture(scope="module", autouse=True)
def plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Modules with plans, which nobody may import."""
    folder = tmp_path_factory.mktemp("plans")
    (folder / "p.py").write_text(PLANS)
    (folder / "other_plans.py").write_text("def imported(catalog, relation): ...\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        yield folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a location that is loaded as `dg` loads it."""
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    monkeypatch.chdir(tmp_path)
    for each in ("SPIRAL_NOT_SET", "SPIRAL_CATALOG", "DAGSTER_HOME"):
        monkeypatch.delenv(each, raising=False)
    return tmp_path
