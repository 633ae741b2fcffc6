"""*Dagster in ten steps*: its files and commands, in its order, then its UI; with `UI_PICTURES` set, its pictures."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.dev_server import BIN, Server, free_port, serving
from tests.test_documents import DOCS, ROOT, Block, blocks

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1_800)]
PAGE = DOCS / "tutorials" / "dagster.md"
PICTURES = {  # name: page of the UI, width, height
    "relation": ("/assets/catalog/photos", 1_800, 1_700),
    "statistics": ("/assets/stats/photos/shard_stats", 1_900, 1_900),
    "lineage": ("/assets/models/texts?view=lineage&lineageScope=upstream&lineageDepth=3", 1_720, 900),
    "runs": ("/runs", 1_500, 700),
    "model": ("/assets/models/photos", 1_800, 1_600),
}
LARGEST = 200_000  # bytes of a picture
CHAIN_S = 600  # from a new file to a rebuilt stream: two sensors, three runs


def environment(project: Path, exports: list[str]) -> dict[str, str]:
    """That of a terminal in which the page's exports were made."""
    found = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "DAGSTER_DISABLE_TELEMETRY": "1"}
    for name, value in re.findall(r"(\w+)=(\S+)", " ".join(exports)):
        found[name] = value.replace("$PWD", str(project))
    found["PYTHONPATH"] = os.pathsep.join([found["PYTHONPATH"], str(ROOT)])
    for name in ("SPIRAL_CATALOG", "SPIRAL_CACHE", "SPIRAL_DATA_ROOT"):
        found.pop(name, None)
    return found


def follow(block: Block, project: Path, exports: list[str]) -> None:
    """Do what a block of the page says, except what the test does by itself."""
    if block.title:
        file = project / block.title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.code)
    elif block.language == "shell":
        exports += [line for line in block.code.splitlines() if line.startswith("export ")]
        if block.code.strip() != "dg dev":
            done = subprocess.run(
                ["bash", "-e", "-c", block.code],
                cwd=project,
                env=environment(project, exports),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{block.code}\n{done.stdout[-3_000:]}\n{done.stderr[-5_000:]}"


def test_ten_steps_lead_from_an_empty_folder_to_trained_models_that_keep_up(tmp_path: Path) -> None:
    project, exports = tmp_path / "project", list[str]()
    project.mkdir()
    steps = blocks(PAGE)
    last = next(each for each in steps if "one_more" in each.code)
    for block in steps[: steps.index(last)]:
        follow(block, project, exports)
    port = free_port()
    command = [BIN / "dg", "dev", "--host", "127.0.0.1", "--port", str(port)]
    with serving(command, project, environment(project, exports), tmp_path / "log", port) as server:
        check_models(server)
        check_a_new_photo(server, project, last, exports)
        check_a_touch(server, project)
        check_pictures(server, tmp_path)


def check_models(server: Server) -> None:
    checks = "{ assetNodes { assetKey { path } } }"
    keys = {"/".join(node["assetKey"]["path"]) for node in server.ask(checks)["assetNodes"]}
    assert {f"catalog/{name}" for name in ("photos", "articles", "code")} < keys
    for model in ("models/photos", "models/texts"):
        (facts,) = server.materializations(model)
        assert facts["run"]


def check_a_new_photo(server: Server, project: Path, block: Block, exports: list[str]) -> None:
    """The shard that it lies in is built, and what depends on it; the models are not."""
    server.wait_for("a first look", lambda: server.requested("catalog/photos"))
    server.rest()
    before = {key: server.materializations(key) for key in ("caches/photos", "streams/photos", "models/photos")}
    articles = len(server.materializations("caches/articles"))
    follow(block, project, exports)
    keys = ("caches/photos", "streams/photos")
    server.wait_for(
        "a rebuilt cache and stream",
        lambda: all(len(server.materializations(key)) > len(before[key]) for key in keys),
        CHAIN_S,
    )
    server.rest()
    cache = server.materializations("caches/photos")
    assert len(cache) == len(before["caches/photos"]) + 1
    assert (cache[0]["rows_built"], cache[0]["shards_built"]) == (61, 1)
    assert len(server.materializations("models/photos")) == len(before["models/photos"])
    assert len(server.materializations("caches/articles")) == articles


def check_a_touch(server: Server, project: Path) -> None:
    """The relation is registered again with the same data version; nothing else is requested."""
    before: dict[str, list[Any]] = {
        key: server.materializations(key) for key in ("catalog/photos", "caches/photos", "streams/photos")
    }
    for photo in (project / "data" / "photos" / "ball").iterdir():
        photo.touch()
    server.wait_for(
        "a look at it", lambda: len(server.materializations("catalog/photos")) > len(before["catalog/photos"]), CHAIN_S
    )
    server.rest()
    assert server.materializations("catalog/photos")[0]["data_version"] == before["catalog/photos"][0]["data_version"]
    for key in ("caches/photos", "streams/photos"):
        assert len(server.materializations(key)) == len(before[key])


def check_pictures(server: Server, place: Path) -> None:
    """Pages can be drawn; they go into the documents if `UI_PICTURES` is set."""
    if shutil.which("chromium") is None:
        return
    for name, (path, width, height) in PICTURES.items():
        file = server.picture(path, place / f"dagster_{name}.png", width, height)
        assert 10_000 < file.stat().st_size < LARGEST, name
        if os.environ.get("UI_PICTURES"):
            shutil.copy(file, DOCS / "images" / file.name)


def test_the_page_shows_every_picture_that_is_taken() -> None:
    shown = re.findall(r"images/dagster_(\w+)\.png", PAGE.read_text())

    assert sorted(shown) == sorted(PICTURES)
