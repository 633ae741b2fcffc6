"""The files in `deploy` fit together; a slow test runs the Compose services' commands, with a real Postgres, on this machine."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.fixtures.dev_server import BIN, Server, free_port, serving, started
from tests.fixtures.dev_server import ended as stopped

ROOT = Path(__file__).parents[1]
COMPOSE, KUBERNETES = ROOT / "deploy" / "compose", ROOT / "deploy" / "kubernetes"
PLACE = """
type: spiral_assets.components.Catalog
attributes: {}
---
type: spiral_assets.components.Relation
attributes:
  name: rows
  source: {kind: parquet, path: $DATA/rows}
  labels: [label]
"""


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def services() -> dict[str, Any]:
    found: dict[str, Any] = read(COMPOSE / "docker-compose.yaml")["services"]
    return found


def test_compose_says_every_variable_that_its_files_ask_for() -> None:
    compose = (COMPOSE / "docker-compose.yaml").read_text()
    given = services()["code"]["environment"]
    asked = set(re.findall(r"env: (\w+)", (COMPOSE / "dagster.yaml").read_text()))

    assert asked <= set(given)
    example = set(re.findall(r"^(\w+)=", (COMPOSE / ".env.example").read_text(), re.MULTILINE))
    assert set(re.findall(r"\$\{(\w+)", compose)) == example
    assert all(services()[name]["environment"] == given for name in ("webserver", "daemon"))


def test_compose_uses_the_volumes_ports_and_hosts_that_it_declares() -> None:
    declared = set(read(COMPOSE / "docker-compose.yaml")["volumes"])
    named = {each.partition(":")[0] for service in services().values() for each in service.get("volumes", [])}
    assert {each for each in named if not each.startswith("$")} == declared
    (server,) = read(COMPOSE / "workspace.yaml")["load_from"]
    at = server["grpc_server"]
    assert at["host"] in services()
    assert str(at["port"]) in services()[at["host"]]["command"]
    for service in services().values():
        assert set(service.get("depends_on", {})) <= set(services())
    assert "COPY dagster.yaml workspace.yaml" in (COMPOSE / "Dockerfile").read_text()


def test_the_instances_of_compose_and_of_the_demo_build_each_cache_one_at_a_time() -> None:
    for file in (COMPOSE / "dagster.yaml", ROOT / "dagster_home" / "dagster.yaml"):
        settings = read(file)
        assert settings["concurrency"]["pools"] == {"granularity": "op", "default_limit": 1}
        assert settings["run_monitoring"]["free_slots_after_run_end_seconds"] > 0
        assert settings["run_retries"]["retry_on_asset_or_op_failure"] is False
    values = read(KUBERNETES / "values.yaml")
    assert values["concurrency"]["pools"] == {"granularity": "op", "defaultLimit": 1}


def test_runs_and_tasks_of_ray_see_the_same_catalog_at_the_same_path() -> None:
    (shop,) = read(KUBERNETES / "values.yaml")["dagster-user-deployments"]["deployments"]
    ray = read(KUBERNETES / "raycluster.yaml")
    claims = {each["metadata"]["name"] for each in yaml.safe_load_all((KUBERNETES / "storage.yaml").read_text())}
    pods = [group["template"]["spec"] for group in (ray["spec"]["headGroupSpec"], *ray["spec"]["workerGroupSpecs"])]
    environment = {each["name"]: each["value"] for each in shop["env"]}
    for pod in pods:
        (container,) = pod["containers"]
        assert container["image"] == f"{shop['image']['repository']}:{shop['image']['tag']}"
        assert {each["name"]: each["value"] for each in container["env"]}.items() <= environment.items()
        assert container["volumeMounts"] == shop["volumeMounts"]
        assert pod["volumes"] == shop["volumes"]
        assert {each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"]} == claims
    assert environment["RAY_ADDRESS"] == f"ray://{ray['metadata']['name']}-head-svc:10001"


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[int]:
    """A Postgres server with the database and the user of Compose; its port."""
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not homes:
        pytest.skip("no Postgres server on this machine")
    place, port = Path("/tmp") / f"spiral-pg-{os.getpid()}", free_port()
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    place.mkdir()
    if as_user:
        shutil.chown(place, "postgres", "postgres")

    def run(*command: str) -> None:
        subprocess.run([*as_user, *command], cwd=place, check=True, capture_output=True)

    run(str(homes[-1] / "initdb"), "-D", str(place / "data"), "-A", "trust", "-U", "dagster")
    options = f"-p {port} -k {place} -c listen_addresses=127.0.0.1 -c fsync=off"
    run(str(homes[-1] / "pg_ctl"), "-D", str(place / "data"), "-l", str(place / "log"), "-w", "-o", options, "start")
    try:
        run(str(homes[-1] / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "dagster", "dagster")
        yield port
    finally:
        run(str(homes[-1] / "pg_ctl"), "-D", str(place / "data"), "-m", "immediate", "stop")
        shutil.rmtree(place)


def local(command: list[str], ports: dict[str, int], home: Path) -> list[str]:
    """A service's command with the programs, ports and folders of this machine."""
    replaced = {"4000": str(ports["code"]), "3000": str(ports["web"]), "0.0.0.0": "127.0.0.1"}
    words = [replaced.get(word, word.replace("/opt/dagster", str(home))) for word in command]
    return [str(BIN / words[0]), *words[1:]]


@pytest.mark.e2e
@pytest.mark.slow
def test_the_commands_of_compose_run_a_job_with_postgres(tmp_path: Path, postgres: int) -> None:
    pytest.importorskip("dagster_postgres")
    home, project, shared = tmp_path / "home", tmp_path / "project", tmp_path / "spiral"
    for folder in (home, project / "shop" / "defs" / "place", tmp_path / "data" / "rows", shared):
        folder.mkdir(parents=True)
    page = (ROOT / "docs" / "tutorials" / "dagster.md").read_text()
    settings = re.search(r'```toml title="pyproject.toml"\n(.*?)```', page, re.DOTALL)
    assert settings is not None
    (project / "pyproject.toml").write_text(settings[1])
    (project / "shop" / "defs" / "place" / "defs.yaml").write_text(PLACE)
    labels = [row % 2 for row in range(40)]
    pq.write_table(pa.table({"sample_id": range(40), "label": labels}), tmp_path / "data" / "rows" / "part.parquet")
    ports = {"code": free_port(), "web": free_port()}
    shutil.copy(COMPOSE / "dagster.yaml", home)
    text = (COMPOSE / "workspace.yaml").read_text()
    (home / "workspace.yaml").write_text(text.replace("code", "127.0.0.1").replace("4000", str(ports["code"])))
    places = {"/spiral": shared, "/project": project, "/data": tmp_path / "data"}
    given = {k: str(v) for k, v in services()["code"]["environment"].items()}
    for name, value in given.items():
        for inside, outside in places.items():
            if value == inside or value.startswith(inside + "/"):
                given[name] = value.replace(inside, str(outside), 1)
    given |= {"POSTGRES_HOST": "127.0.0.1", "POSTGRES_PORT": str(postgres), "POSTGRES_PASSWORD": "any"}
    given["PYTHONPATH"] = os.pathsep.join([given["PYTHONPATH"], str(ROOT)])
    env = {**os.environ, **given, "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"}
    log = tmp_path / "log"
    with ExitStack() as running:
        for name in ("code", "daemon"):
            process = started(local(services()[name]["command"], ports, home), project, env, log)
            running.callback(stopped, process)
        web = local(services()["webserver"]["command"], ports, home)
        server = running.enter_context(serving(web, project, env, log, ports["web"]))
        check_a_run(server, shared)


def check_a_run(server: Server, shared: Path) -> None:
    """The daemon takes it from the queue, the code server starts it, and the webserver shows its pictures."""
    server.launch("catalog/rows", "stats/rows/shard_stats")
    server.wait_for("statistics", lambda: server.materializations("stats/rows/shard_stats"))
    server.rest()
    assert [each["status"] for each in server.runs()] == ["SUCCESS"]
    (facts,) = server.materializations("catalog/rows")
    assert facts["dagster/row_count"] == 40
    assert (shared / "catalog").is_dir()
    assert list((shared / "logs").rglob("*.svg"))
