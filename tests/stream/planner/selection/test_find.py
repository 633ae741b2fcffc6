"""Rows that are found shard by shard are those that are chosen from all rows at once; builders that come together share."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Arrow, Catalog, Lance, col
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived.work.executors import Executor, building_with
from spiral_stream.errors import PlanError
from spiral_stream.expr import to_json
from spiral_stream.plan.tree import base_scan
from spiral_stream.planner.selection import find as surviving
from spiral_stream.planner.selection.find import Workplace, find_rows
from spiral_stream.planner.selection.whole import choose
from spiral_stream.relational.join import FanOutError
from tests.fixtures import verbs, warm
from tests.fixtures.examples import few
from tests.fixtures.shards import parts

ROOT = Path(__file__).parents[4]
SHARDS, SHARD_ROWS = 12, 2_000


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return verbs.make_catalog(tmp_path_factory.mktemp("surviving"))


def place(of: Catalog, root: Path) -> Workplace:
    versions = {name: of.entry(name).data_version for name in of.tables()}
    return Workplace(root, lambda name: OpenRelation(of.entry(name)), versions, pytest.fail)


def facts(of: Catalog, node: Any, root: Path) -> dict[str, Any]:
    """All that a selection by shard says."""
    rows, facts = find_rows(node, OpenRelation(of.entry(base_scan(node).relation)), place(of, root))
    every = np.arange(rows.total, dtype=np.uint64)
    return {
        "ordinals": rows.ordinals(every).tolist(),
        "rights": [rows.right(k, every).tolist() for k in range(len(facts.rights))],
        "counts": list(facts.counts),
        "pushed": facts.pushed,
        "env": {name: to_json(value) for name, value in facts.env.items()},
    }


def chosen(of: Catalog, node: Any) -> dict[str, Any]:
    """What choosing from all rows at once says."""
    found = choose(node, lambda name: OpenRelation(of.entry(name)))
    every = np.arange(found.total())
    return {
        "ordinals": every.tolist() if found.ordinals is None else found.ordinals.tolist(),
        "rights": [index.tolist() for _, index in found.rights],
        "counts": found.counts,
        "pushed": None if found.pushed is None else str(found.pushed),
        "env": {name: to_json(value) for name, value in found.env.items()},
    }


def said(work: Any) -> Any:
    """What work returns, or the error that it ends with."""
    try:
        return work()
    except PlanError as error:
        return f"{type(error).__name__}: {error}"


@given(data=st.data(), start=st.sampled_from(["arrow", "lance", "parquet"]))
@few(10, 25)
def test_rows_by_shard_are_those_chosen_from_all_rows(
    catalog: Catalog, data: st.DataObject, start: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chain = data.draw(verbs.chains(catalog, start).filter(lambda each: each.sampled))
    node, root = chain.relation.node, tmp_path_factory.mktemp("s")

    expected = said(lambda: chosen(catalog, node))

    assert said(lambda: facts(catalog, node, root)) == expected, chain.text
    assert said(lambda: facts(catalog, node, root)) == expected, chain.text  # what was kept


@pytest.fixture
def shards(tmp_path: Path) -> Catalog:
    """A relation in a few shards, and labels to join with."""
    rows = SHARDS * SHARD_ROWS
    table = pa.table({"id": np.arange(rows), "k": np.arange(rows) % 100, "x": np.arange(rows) % 1_000 / 1_000})
    lance.write_dataset(table, str(tmp_path / "t.lance"), max_rows_per_file=SHARD_ROWS)
    made = Catalog(str(tmp_path / "catalog"))
    made.register("t", Lance(str(tmp_path / "t.lance")), identity="id")
    labels = pa.table({"k": np.arange(0, 100, 2), "label": np.arange(0, 100, 2) // 10, "odd": np.arange(50) % 2})
    made.register("labels", Arrow(labels), identity="k")
    return made


def joined(of: Catalog) -> Any:
    labels = of.table("labels").project("k", "label", "odd")
    return of.table("t").filter(col("x") >= 0.2).join(labels, on="k", how="left").filter(col("odd") == 1)


def test_processes_write_the_bytes_that_threads_write(shards: Catalog, tmp_path: Path) -> None:
    node = joined(shards).project("id", "label").node

    found = []
    for name in ("threads", "processes"):
        with building_with(Executor(name, 2)):
            found.append(facts(shards, node, tmp_path / name))

    assert found == [chosen(shards, node)] * 2
    assert parts(tmp_path / "threads") == parts(tmp_path / "processes") != {}


def test_keys_that_repeat_on_the_right_are_named_as_when_all_rows_are_looked_at(
    shards: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spiral_stream.derived.build.CHUNK_ROWS", SHARD_ROWS)
    labels = pa.table({"rid": np.arange(6), "k": [3, 3, 7, 7, 7, 2], "label": np.arange(6)})
    shards.register("twice", Arrow(labels), identity="rid")
    node = shards.table("t").join(shards.table("twice").project("k", "label"), on="k").node

    with pytest.raises(FanOutError) as expected:
        chosen(shards, node)
    with pytest.raises(FanOutError) as found:
        facts(shards, node, tmp_path / "s")

    monkeypatch.setattr(surviving, "choose", None)  # the answer is kept
    with pytest.raises(FanOutError) as again:
        facts(shards, node, tmp_path / "s")

    assert str(found.value) == str(again.value) == str(expected.value)
    assert "2 keys have several rows on the right" in str(found.value)


def test_an_appended_shard_costs_that_shard(shards: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, node = tmp_path / "s", joined(shards).node
    facts(shards, node, root)
    more = pa.table({"id": np.arange(10**6, 10**6 + 500), "k": np.arange(500) % 100, "x": np.ones(500)})
    lance.write_dataset(more, str(tmp_path / "t.lance"), mode="append")
    shards.refresh("t")
    looked_at: list[Any] = []
    scan = OpenRelation.scan

    def counted(self: OpenRelation, columns: Any, predicate: Any = None, shards: Any = None) -> Any:
        if self.entry.name == "t":
            looked_at.extend(shards)
        return scan(self, columns, predicate, shards)

    monkeypatch.setattr(OpenRelation, "scan", counted)
    node = joined(shards).node

    found = facts(shards, node, root)

    assert looked_at == [SHARDS]
    monkeypatch.undo()
    assert found == chosen(shards, node)


def test_a_folder_of_an_earlier_version_is_passed_over(shards: Catalog, tmp_path: Path) -> None:
    root, node = tmp_path / "s", joined(shards).node
    folder = surviving.selection_folder(node, root, place(shards, root).versions)
    (folder / "rows").mkdir(parents=True)
    (folder / "selected.json").write_text(json.dumps({"whole": True}))
    (folder / "rows" / "words.npy").write_bytes(b"")

    assert facts(shards, node, root) == chosen(shards, node)


def test_what_looks_at_all_rows_is_chosen_once(
    shards: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = joined(shards).distinct("k").limit(7).node
    expected = chosen(shards, node)
    first = facts(shards, node, tmp_path / "s")
    monkeypatch.setattr(surviving, "choose", None)

    assert first == facts(shards, node, tmp_path / "s") == expected


BUILDER = """
import os, sys, time
from pathlib import Path
import numpy as np
import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived import build
from spiral_stream.threads import Workers
from tests.stream.planner.selection.test_find import joined, place
from spiral_stream.planner.selection.find import find_rows
from tests.fixtures.waits import until
build.CHUNK_ROWS, build.COMMIT_EVERY_S = 2_000, 0.05
catalog, root, pause_s, at_work = sp.connect(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
scan, looked_at = OpenRelation.scan, []
def counted(self, columns, predicate=None, shards=None):
    if self.entry.name == "t":
        looked_at.extend(shards)
        print("working\\n", end="", flush=True)  # several workers say so
        (root.parent / f"at work {os.getpid()}").touch()
        until(lambda: len(list(root.parent.glob("at work *"))) >= at_work)
        time.sleep(pause_s)
    return scan(self, columns, predicate, shards)
OpenRelation.scan = counted
base = OpenRelation(catalog.entry("t"))
work = place(catalog, root)
print("ready", flush=True)
sys.stdin.readline()
rows, _ = find_rows(joined(catalog).node, base, work)
print("done", int(rows.ordinals(np.arange(rows.total, dtype=np.uint64)).sum()), len(looked_at), flush=True)
"""


def builder(of: Catalog, root: Path, pause_s: float, at_work: int = 1) -> "subprocess.Popen[str]":
    """A process that finds rows; none looks at its first shard before so many are about to."""
    command = [sys.executable, "-c", BUILDER, str(of.root), str(root), str(pause_s), str(at_work)]
    made = warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert made.stdout is not None
    assert made.stdout.readline() == "ready\n"
    return made


def done(of: "subprocess.Popen[str]") -> tuple[int, int]:
    """The sum of what it found, and how many shards it looked at."""
    out, _ = of.communicate(timeout=300)
    _, total, looked_at = out.splitlines()[-1].split()
    return int(total), int(looked_at)


def start(of: "subprocess.Popen[str]") -> None:
    assert of.stdin is not None
    of.stdin.write("go\n")
    of.stdin.flush()


def test_processes_that_start_together_make_each_piece_once(shards: Catalog, tmp_path: Path) -> None:
    builders = [builder(shards, tmp_path / "s", 0.05, 2) for _ in range(3)]
    for each in builders:
        start(each)

    found = [done(each) for each in builders]

    expected = sum(chosen(shards, joined(shards).node)["ordinals"])
    assert {total for total, _ in found} == {expected}
    assert sum(looked_at for _, looked_at in found) == SHARDS
    assert sum(looked_at > 0 for _, looked_at in found) > 1


def test_the_others_finish_what_a_killed_builder_had_begun(shards: Catalog, tmp_path: Path) -> None:
    killed, other = builder(shards, tmp_path / "s", 60.0), builder(shards, tmp_path / "s", 0.0)
    start(killed)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "working\n"
    start(other)
    time.sleep(0.5)  # until it waits for what the first one holds
    os.kill(killed.pid, signal.SIGKILL)

    total, looked_at = done(other)

    assert total == sum(chosen(shards, joined(shards).node)["ordinals"])
    assert looked_at == SHARDS
    killed.communicate()
    kept = list((tmp_path / "s").rglob("parts/*"))
    assert all(path.suffix in {".piece", ".sums"} and not path.name.startswith(".") for path in kept)
