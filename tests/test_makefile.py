"""What `make` starts, with which settings, and when it installs anew. Nothing is installed or started here."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "spiral_stream").rglob("*.[ch]"))
TOLD = """#!/bin/sh
echo "home $DAGSTER_HOME"
echo "catalog $SPIRAL_CATALOG"
echo "$(basename "$0") $*"
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that says what it is asked for."""
    place = tmp_path / "venv"
    (place / "bin").mkdir(parents=True)
    for name in ("python", "dg"):
        (place / "bin" / name).write_text(TOLD)
        (place / "bin" / name).chmod(0o755)
    (place / ".installed").touch()
    return place


def make(venv: Path, *arguments: str, **variables: str) -> list[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", *arguments, f"VENV={venv}"]
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("target", ["demo", "ui"])
def test_a_dagster_home_that_is_set_is_used(venv: Path, tmp_path: Path, target: str) -> None:
    home = tmp_path / "a home"
    told = make(venv, target, DAGSTER_HOME=str(home))

    assert f"home {home}" in told
    assert (home / "dagster.yaml").read_bytes() == (ROOT / "dagster_home" / "dagster.yaml").read_bytes()
    (home / "dagster.yaml").write_text("mine")
    make(venv, target, DAGSTER_HOME=str(home))
    assert (home / "dagster.yaml").read_text() == "mine"
    assert f"home {ROOT}/dagster_home" in make(venv, target)


def test_the_ui_has_the_port_that_is_asked_for(venv: Path) -> None:
    assert "dg dev -w workspace.yaml --port 3001" in make(venv, "ui", "PORT=3001")
    assert "dg dev -w workspace.yaml" in [line.strip() for line in make(venv, "ui")]


def test_the_ui_has_data_to_materialize(venv: Path) -> None:
    lines = [line.strip() for line in make(venv, "ui")]

    assert lines.index("python -m spiral_assets.demo --data") < lines.index("dg dev -w workspace.yaml")


def test_the_site_is_built_strictly_and_the_tests_of_the_documents_run(venv: Path) -> None:
    (venv / ".docs-installed").touch()
    told = [line for line in make(venv, "docs") if line.startswith("python ")]

    assert told == [
        "python -m mkdocs build --strict",
        "python -m pytest -m not gpu tests/test_documents.py tests/test_references.py tests/test_examples.py",
    ]
    assert all((ROOT / word).is_file() for word in told[1].split() if word.startswith("tests/"))


@pytest.mark.parametrize("code", CODE)
def test_c_code_that_changed_is_built_anew(venv: Path, code: str) -> None:
    assert not any("installing" in line for line in make(venv, "-n", "install"))
    assert any("installing" in line for line in make(venv, "-n", "install", "-W", code))
