import importlib.metadata
import tomllib
from pathlib import Path

import pytest

import spiral_stream as sp
from spiral_stream import extras as version

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_version_is_stated_once_in_pyproject() -> None:
    assert sp.__version__ == tomllib.loads(PYPROJECT.read_text())["project"]["version"]


def test_a_tree_that_nobody_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)

    assert version.installed() == version.NOT_INSTALLED
