"""A watched source in Dagster's own daemon: files that come back as they were, and runs that failed."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as spiral
from tests.fixtures.dev_server import BIN, Server, free_port, serving

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
RELATION = "catalog/shop/rows"
LOCATION = """
import dagster as dg
from spiral_assets.assets import relation_assets
from spiral_assets.resources import CatalogResource

defs = dg.Definitions.merge(
    relation_assets("shop.rows", {"kind": "parquet", "path": "rows"}, statistics=False, watch_s=5),
    dg.Definitions(resources={"catalog": CatalogResource(uri="catalog")}),
)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "rows").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "location.py").write_text(LOCATION)
    write(tmp_path, 4)
    port = free_port()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "DAGSTER_HOME": str(tmp_path / "home"), "DAGSTER_DISABLE_TELEMETRY": "1", "PYTHONPATH": path}
    command = [BIN / "dagster", "dev", "-f", "location.py", "-h", "127.0.0.1", "-p", str(port)]
    with serving(command, tmp_path, env, tmp_path / "log", port) as found:
        yield found


def write(folder: Path, rows: int) -> None:
    draft = folder / "draft.parquet"
    pq.write_table(pa.table({"sample_id": [str(row) for row in range(rows)]}), draft)
    draft.replace(folder / "rows" / "part.parquet")


def registered(folder: Path) -> int:
    """How many rows the catalog has now; none before the first registration."""
    catalog = spiral.connect(str(folder / "catalog"))
    return catalog.entry("shop.rows").manifest().total if "shop.rows" in catalog.tables() else 0


def test_files_that_come_back_are_registered_again_and_a_failed_run_is_asked_for_again(
    tmp_path: Path, server: Server
) -> None:
    part, backup = tmp_path / "rows" / "part.parquet", tmp_path / "backup.parquet"
    server.wait_for("the first state", lambda: registered(tmp_path) == 4)
    server.rest()  # its checks read the files too
    shutil.copy2(part, backup)
    write(tmp_path, 9)
    server.wait_for("the second state", lambda: registered(tmp_path) == 9)
    server.rest()
    shutil.copy2(backup, part)  # with its old time
    server.wait_for("the first state again", lambda: registered(tmp_path) == 4)
    server.rest()
    runs = server.requested(RELATION)
    part.write_bytes(b"no Parquet")
    server.wait_for("two failures", lambda: failures(server) >= 2)
    shutil.copy2(backup, part)
    server.wait_for("no run under way", lambda: server.rest() is None)

    assert [each["status"] for each in runs] == ["SUCCESS"] * 3
    keys = [
        tag["value"] for run in server.requested(RELATION) for tag in run["tags"] if tag["key"] == "dagster/run_key"
    ]
    assert len(keys) == len(set(keys)) >= 5
    assert spiral.connect(str(tmp_path / "catalog")).table("shop.rows").to_arrow().num_rows == 4


def failures(server: Server) -> int:
    return sum(each["status"] == "FAILURE" for each in server.requested(RELATION))
