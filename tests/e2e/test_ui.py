"""`make ui` shows what a run left: read by a browser where there is one, by GraphQL where there is none."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from spiral_assets.corpora.images import write_image_relation
from spiral_assets.corpora.videos import write_video_relations
from spiral_assets.definitions import defs
from tests.fixtures.dev_server import ended, free_port, started
from tests.fixtures.folded_pages import details

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
STATS = ["stats", "vision", "imagenet_train", "shard_stats"]
CLIPS = ["stats", "video", "training_segments", "clip_stats"]
INDEXED = ["caches", "video_index"]
VIDEO = ([*("catalog", "video"), "training_segments"], INDEXED, [*("catalog", "video"), "index"], CLIPS)
START_S = 180  # five processes on two busy cores
BROWSER = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
QUIET = ("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=30000")
QUERY = """
query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  groupName kinds
  assetMaterializations(limit: 1) { metadataEntries { label
    ... on IntMetadataEntry { intValue }
    ... on MarkdownMetadataEntry { mdStr }
    ... on TableMetadataEntry { table { records } } } }
} } }
"""
PARTITIONS = """
query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionKeys partitionStats { numPartitions numMaterialized }
} } }
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`dg dev` as `make ui` starts it, on an instance in which the statistics were measured."""
    place = tmp_path_factory.mktemp("ui")
    home = place / "home"
    home.mkdir()
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", home)
    ours = {
        "SPIRAL_DATA_ROOT": str(place / "data"),
        "SPIRAL_CATALOG": str(place / "catalog"),
        "SPIRAL_CACHE": str(place / "caches"),
        "DAGSTER_HOME": str(home),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ours.items():
            patch.setenv(name, value)
        measure()
    port = free_port()
    command = [str(Path(sys.executable).parent / "dg"), "dev", "-w", "workspace.yaml"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    server = started(command, ROOT, {**os.environ, **ours}, place / "dev.log")
    try:
        wait(f"http://127.0.0.1:{port}", server, place / "dev.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        ended(server)


def measure() -> None:
    """Register a few images and videos and measure them."""
    data = Path(os.environ["SPIRAL_DATA_ROOT"])
    write_image_relation(data / "images", 60, shards=3, progress=False)
    write_video_relations(data / "videos", 4, shards=2, progress=False)
    images = (["catalog", "vision", "imagenet_train"], STATS)
    wanted = dg.AssetSelection.assets(*(dg.AssetKey(key) for key in (*images, *VIDEO)))
    job = dg.define_asset_job("measured", wanted)
    with dg.DagsterInstance.get() as instance:
        whole = dg.Definitions.merge(defs(), dg.Definitions(jobs=[job])).resolve_job_def("measured")
        assert whole.execute_in_process(instance=instance).success


def wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until the server answers."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/server_info", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"no answer in {START_S} s: {log.read_text()}")


def ask(address: str, query: str, **variables: Any) -> Any:
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(f"{address}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = json.load(answer)
    assert "errors" not in found, found
    return found["data"]


def test_the_server_knows_the_assets_and_what_was_measured(address: str) -> None:
    location = ask(address, "{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus } } } }")
    assert location["workspaceOrError"]["locationEntries"] == [{"name": "spiral_assets", "loadStatus": "LOADED"}]

    node = ask(address, QUERY, key={"path": STATS})["assetNodeOrError"]

    assert (node["groupName"], node["kinds"]) == ("stats", ["arrow"])
    entries = {entry["label"]: entry for entry in node["assetMaterializations"][0]["metadataEntries"]}
    assert entries["storage_shards"]["intValue"] == 3
    columns = [row["column"] for row in details(entries["details"]["mdStr"])["columns"]]
    assert {"sample_id", "label_id", "storage_shard"} <= set(columns)


def test_the_index_is_shown_by_groups_of_shards_and_clips_in_plots(address: str) -> None:
    node = ask(address, PARTITIONS, key={"path": INDEXED})["assetNodeOrError"]
    assert node["partitionKeys"] == [f"group-{number:02d}" for number in range(4)]
    assert node["partitionStats"] == {"numPartitions": 4, "numMaterialized": 4}

    found = ask(address, QUERY, key={"path": CLIPS})["assetNodeOrError"]["assetMaterializations"][0]

    entries = {entry["label"]: entry for entry in found["metadataEntries"]}
    assert entries["turned"]["intValue"] == 1
    for plot in ("segments_by_length", "files_by_sizes", "files_by_frame_rates", "files_by_key_distances"):
        assert f"![{plot}](/logs/" in (entries.get(plot) or entries["details"])["mdStr"]


def test_a_browser_shows_the_page_of_the_statistics(address: str, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on the path; GraphQL has read the same in the test before")
    page = f"{address}/assets/{'/'.join(STATS)}"
    done = subprocess.run(
        [browser, *BROWSER, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    for shown in ("label_id_distance_worst", "storage_shards", "details", "Rows, nulls, ranges and histograms"):
        assert shown in done.stdout
