"""The webserver serves the pictures of a relation's page; a browser shows all that fits, and the rest in a dialog."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as spiral
from spiral_assets.facts.folded import MOST
from tests.e2e.test_ui import START_S
from tests.fixtures.browser import browser
from tests.fixtures.dev_server import ended, started

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROW = "each.innerText.includes('storage_shards')"
TABLE = f"[...document.querySelectorAll('table')].find(each => {ROW})"
LOCATION = """
import dagster as dg

import spiral_stream as spiral
from spiral_assets import pages
from spiral_assets.resources import CatalogResource


@dg.asset
def rows(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult:
    report = spiral.report.report_relation(catalog.open(), "my.rows", labels=["label"])
    return dg.MaterializeResult(metadata=pages.statistics_page(context, report))


defs = dg.Definitions(assets=[rows], resources={"catalog": CatalogResource(uri="catalog")})
if __name__ == "__main__":
    with dg.DagsterInstance.get() as instance:
        assert defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance).success
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A webserver over one materialized asset: its address, and its home."""
    home = tmp_path_factory.mktemp("pages")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    (home / "location.py").write_text(LOCATION)
    shard = np.arange(200) // 50
    table = pa.table({"sample_id": np.arange(200), "label": shard, "storage_shard": [f"s{k}" for k in shard]})
    catalog = spiral.connect(str(home / "catalog"))
    catalog.register("my.rows", spiral.Arrow(table))
    catalog.measure("my.rows")
    ours = {**os.environ, "DAGSTER_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "location.py"], cwd=home, env=ours, check=True, capture_output=True)
    port = 3_000 + os.getpid() % 1_000
    command = [sys.executable, "-m", "dagster_webserver", "-f", "location.py", "-h", "127.0.0.1", "-p", str(port)]
    server = started(command, home, ours, home / "log")
    try:
        _wait(f"http://127.0.0.1:{port}/server_info", server)
        yield f"http://127.0.0.1:{port}", home
    finally:
        ended(server)


def _wait(address: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail("no answer")


def test_pictures_are_served_as_pictures(place: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    address, home = place
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey("rows"))
    assert event is not None
    assert event.asset_materialization is not None
    text = str(event.asset_materialization.metadata["details"].value)
    paths = re.findall(r"\]\((/logs/[^)]+)\)", text)

    assert len(paths) == 4
    for path in paths:
        with urllib.request.urlopen(address + path, timeout=30) as answer:
            assert answer.headers["content-type"] == "image/svg+xml"
            assert b"<svg" in answer.read(1000)


def test_a_browser_shows_what_fits_the_page_and_the_pictures_in_a_dialog(
    place: tuple[str, Path], tmp_path: Path
) -> None:
    address, _ = place
    with browser(tmp_path) as page:
        for width in (1280, 1920):
            page.open(f"{address}/assets/rows", width)
            page.until(f"[...document.querySelectorAll('table')].some(each => {ROW})")
            wide = page.value(f"(t => [t.offsetWidth, t.parentElement.clientWidth])({TABLE})")
            assert wide[0] <= wide[1]  # nothing is pushed out of sight
            assert "one folder per class" in page.value("document.body.innerText")
            assert page.value(f"{TABLE}.tBodies[0].rows.length") <= MOST
            page.value(
                f"[...{TABLE}.querySelectorAll('*')].filter(each => each.innerText === '[Show Markdown]').pop().click()"
            )
            shown = "[...document.images].filter(each => each.src.includes('/logs/') && each.naturalWidth > 0).length"
            page.until(f"{shown} === 4")
