"""The project of `examples/shop`, as somebody has it who copied it: what its CI runs passes, and its image knows the data."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "shop"
LEFT = ("Install", "Build the image")  # which need a package index, and Docker

# As a code server loads them: it looks at nothing.
KEYS = """
from spiral_assets.project import defs

print(*(key.to_user_string() for key in defs().resolve_asset_graph().get_all_asset_keys()))
"""


def steps() -> dict[str, str]:
    """What CI runs here, by the names of its steps."""
    (job,) = yaml.safe_load((SHOP / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    return {each["name"]: each["run"] for each in job["steps"] if "run" in each}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what git knows of it."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "examples/shop"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if not names.stdout:
        pytest.skip("not a git checkout: which files belong to the repository cannot be told")
    for name in filter(None, names.stdout.split("\0")):
        target = tmp_path / "shop" / Path(name).relative_to("examples/shop")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return tmp_path / "shop"


def run(project: Path, command: str, **variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "SPIRAL_", "PYTEST_"))}
    env |= {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{project}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}",
        "SPIRAL_CATALOG": str(project / "lake" / "catalog"),
        "SPIRAL_DATA_ROOT": str(project / "lake"),
    }
    command = command.replace("python -m", f"{sys.executable} -m")
    done = subprocess.run(
        command, shell=True, cwd=project, env=env | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_its_ci_runs_passes_and_its_image_knows_what_there_was(project: Path) -> None:
    data = project / "mounted"
    data.mkdir()
    (data / "orders.jsonl").write_text('{"order_id": 1}\n')
    pq.write_table(pa.table({"order_id": [1]}), data / "refunds.parquet")
    ran = steps()
    assert set(LEFT) < set(ran)
    for name, command in ran.items():
        if name not in LEFT:
            run(project, command, DATA=str(data))

    image = project.with_name("image")  # what `COPY shop shop` brings
    shutil.copytree(project / "shop", image / "shop")
    shutil.copy(project / "pyproject.toml", image)
    (image / "keys_of_it.py").write_text(KEYS)
    shutil.rmtree(data)
    (project / "empty").mkdir()
    listed = run(image, "python -m keys_of_it", DATA=str(data), DAGSTER_HOME=str(project / "empty"))

    assert {"catalog/shop/orders", "catalog/shop/refunds", "catalog/shop/photos", "shop/duplicates"} <= set(
        listed.split()
    )


@pytest.mark.timeout(600)
def test_its_own_tests_pass(project: Path) -> None:
    run(project, steps()["Test"] + " -q -p no:cacheprovider -k test_plans")


def test_its_files_say_the_same() -> None:
    said = tomllib.loads((SHOP / "pyproject.toml").read_text())
    docker, ignored = (SHOP / "Dockerfile").read_text(), (SHOP / ".dockerignore").read_text()
    (extra,) = [each for each in said["project"]["dependencies"] if each.startswith("spiral-stream")]

    assert extra.startswith("spiral-stream[dagster]")
    assert ".local_defs_state" not in [line for line in ignored.splitlines() if not line.startswith("#")]
    assert said["tool"]["dg"]["project"]["code_location_target_module"] in docker
    assert "COPY shop shop" in docker
    for name in ("DATA", "SPIRAL_CATALOG", "SPIRAL_CACHE", "SPIRAL_DATA_ROOT", "DAGSTER_HOME"):
        assert f"{name}=" in docker
    mentioned = [line.split("`")[1] for line in (SHOP / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert all((SHOP / name).exists() for name in mentioned)
