"""A run on a store that refuses or is damaged, a table that several processes make: nothing that is logged is lost in silence."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from tests.fixtures import fault_proxy, stores, warm

pytestmark = pytest.mark.usefixtures("no_threads_left")
ROOT = Path(__file__).parents[3]


class Pairs:
    """Makes one sample of two."""

    def __init__(self, context: Any) -> None:
        self.held: list[Any] = []

    def push(self, sample: Any) -> Iterator[Any]:
        self.held.append(sample)
        if len(self.held) == 2:
            first, second = self.held
            self.held = []
            yield {"id": first["id"], "text": f"{first['text']} {second['text']}"}

    def finish(self) -> list[Any]:
        return []


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[fault_proxy.FaultProxy]:
    with fault_proxy.fault_proxy(s3_endpoint) as found:
        yield found


@pytest.fixture
def store(s3_endpoint: str, proxy: fault_proxy.FaultProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The URI of a catalog behind the proxy."""
    uri = f"s3://{stores.new_bucket(s3_endpoint)}"
    monkeypatch.setenv("SPIRAL_CATALOG_MIRROR", str(tmp_path / "mirror"))
    sp.use_storage("faulty", prefix=uri, **{**stores.options(proxy.address), "client_retry_timeout": "1"})
    return f"{uri}/catalog"


def made(where: Path | str) -> sp.Catalog:
    found = sp.connect(str(where))
    table = pa.table({"sample_id": range(64), "x": np.arange(64, dtype=np.float32)})
    found.register("numbers", sp.Arrow(table), identity="sample_id", replace=True)
    return found


def opened(catalog: sp.Catalog) -> sp.PreparedStream:
    sampled = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=3))
    return sampled.collate(batch_size=8, fields={"x": sp.Stack("x")}).to_numpy()


def train(catalog: sp.Catalog, name: str, every: int = 2) -> None:
    with opened(catalog) as stream, catalog.run(name, stream, every=every, attempt="a") as run:
        for batch in stream:
            run.log(batch=batch, loss=batch["x"])


def spiral_card(catalog: sp.Catalog, name: str) -> str:
    return sp.report.run_card(catalog, catalog.run(name)).markdown()


def losses(catalog: sp.Catalog, name: str) -> list[float]:
    return sorted(catalog.table(f"runs.{name}").to_arrow()["loss"].to_pylist())


def test_a_store_that_refuses_is_named_and_nothing_logged_is_lost(store: str, proxy: fault_proxy.FaultProxy) -> None:
    catalog = made(store)
    with opened(catalog) as stream:
        run = catalog.run("refused", stream, every=1)
        batches = iter(stream)
        first = next(batches)
        run.log(batch=first, loss=first["x"])
        proxy.set(unwritable=True)
        batch = next(batches)
        with pytest.raises(sp.errors.RunError, match=r"(?s)cannot be written.*on_error=\"warn\""):
            run.log(batch=batch, loss=batch["x"])
        with pytest.raises(sp.errors.RunError, match="cannot be written"):
            stream.state_dict()
        proxy.set()
        state = stream.state_dict()
        for batch in batches:
            run.log(batch=batch, loss=batch["x"])
        run.close()
    assert losses(catalog, "refused") == [*range(64)]
    with opened(catalog) as stream:
        stream.load_state_dict(state)
        catalog.run("refused", stream).close()
    assert len(losses(catalog, "refused")) == 16


def test_a_training_goes_on_while_its_store_is_away(store: str, proxy: fault_proxy.FaultProxy) -> None:
    catalog = made(store)
    with opened(catalog) as stream:
        run = catalog.run("away", stream, every=2, on_error="warn")
        batches = iter(stream)
        proxy.set(away=True)
        batch = next(batches)
        run.log(batch=batch, loss=batch["x"])
        batch = next(batches)
        with pytest.warns(sp.errors.SpiralWarning, match="trains on, and keeps in memory what it logs"):
            run.log(batch=batch, loss=batch["x"])
        batch = next(batches)
        run.log(batch=batch, loss=batch["x"])
        assert stream.state_dict()["run"]["unsealed"]
        proxy.set()
        for batch in batches:
            run.log(batch=batch, loss=batch["x"])
        run.close()
    assert losses(catalog, "away") == [*range(64)]


@pytest.mark.parametrize("way", ["changed", "cut", "removed"])
@pytest.mark.parametrize("what", ["records/runs-records/", "records/runs-history/", "data/"])
def test_damage_on_a_store_is_said_by_whoever_reads_it_first(
    what: str, way: str, store: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, bucket = made(store), store.split("/")[2]
    before = stores.objects(s3_endpoint, bucket)
    train(catalog, "hurt")
    new = [key for key in stores.objects(s3_endpoint, bucket) if key not in before and "reached" not in key]
    keys = [key for key in new if f"catalog/{what}" in key]
    data = stores.object_of(s3_endpoint, bucket, keys[0])
    after = {"changed": data[:-3] + b"???", "cut": data[: len(data) // 2], "removed": None}[way]
    stores.put(s3_endpoint, bucket, keys[0], after)
    monkeypatch.setenv("SPIRAL_CATALOG_MIRROR", str(tmp_path / "another"))  # a machine that has no copy
    catalog = sp.connect(store)
    with pytest.raises(sp.errors.RunError, match=r"restore it, or drop the run, catalog\.drop_run\('hurt'\)"):
        losses(catalog, "hurt")
    stores.put(s3_endpoint, bucket, keys[0], data)
    assert losses(catalog, "hurt") == [*range(64)]


@pytest.mark.parametrize("below", ["data", "_versions"])
@pytest.mark.parametrize("way", ["cut", "removed"])
def test_a_table_whose_files_are_damaged_is_made_anew_and_says_so(below: str, way: str, tmp_path: Path) -> None:
    catalog = made(tmp_path / "catalog")
    train(catalog, "hurt")
    assert losses(catalog, "hurt") == [*range(64)]
    table = catalog.root / "runs" / "hurt" / "table.lance"
    for path in (table / below).iterdir():
        data = path.read_bytes()
        path.unlink()
        if way == "cut":
            path.write_bytes(data[: len(data) // 2])
    with pytest.warns(sp.errors.SpiralWarning, match=r"runs\.hurt: its table is damaged or gone, and is made anew"):
        assert losses(catalog, "hurt") == [*range(64)]
    assert losses(sp.connect(str(tmp_path / "catalog")), "hurt") == [*range(64)]


READ = """
import json, sys
import spiral_stream as sp
catalog = sp.connect(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(json.dumps(sorted(catalog.table("runs.shared").to_arrow()["loss"].to_pylist())))
"""


def test_processes_that_make_the_table_at_once_have_each_row_once(tmp_path: Path) -> None:
    train(made(tmp_path / "catalog"), "shared", every=1)
    program = tmp_path / "read.py"
    program.write_text(READ)
    command: list[Any] = [sys.executable, program, tmp_path / "catalog"]
    readers = [
        warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(3)
    ]
    for each in readers:
        assert each.stdout.readline() == "ready\n"
    for each in readers:
        each.stdin.write("go\n")
        each.stdin.flush()
    out = [each.communicate(timeout=100)[0] for each in readers]
    assert out == [f"{[float(k) for k in range(64)]}\n"] * 3
    assert sp.connect(str(tmp_path / "catalog")).table("runs.shared").count() == 64


def test_samples_that_a_plan_assembles_are_recorded(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    rows = pa.table({"id": range(64), "text": [f"word {k}" for k in range(64)]})
    catalog.register("words", sp.Arrow(rows), identity="id")
    sampled = catalog.table("words").sample(order=sp.GlobalShuffle(seed=3))
    returns = pa.schema([("id", pa.int64()), ("text", pa.utf8())])
    plan = sampled.assemble(Pairs, columns=["id", "text"], returns=returns, batched=False)
    plan = plan.collate(batch_size=4, fields={"id": sp.List("id"), "text": sp.List("text")})
    wanted = []
    with plan.to_numpy() as stream, catalog.run("assembled", stream, attempt="a") as run:
        for number, batch in zip(range(5), stream, strict=False):
            run.log(batch=batch, loss=np.arange(len(batch["id"])) + 10 * number)
            wanted += [(each, k + 10.0 * number) for k, each in enumerate(batch["id"])]
        state = stream.state_dict()
    with plan.to_numpy() as stream:
        stream.load_state_dict(state)
        with catalog.run("assembled", stream, attempt="b") as run:
            batch = next(iter(stream))
            run.log(batch=batch, loss=np.full(len(batch["id"]), 99.0))
            wanted += [(each, 99.0) for each in batch["id"]]
    assert len(catalog.run("assembled").spikes()) == 0
    assert spiral_card(catalog, "assembled").startswith("# Run assembled")
    with pytest.raises(sp.errors.RunError, match=r'group_by\("id"\)'):
        catalog.run("assembled").outliers()
    found = catalog.table("runs.assembled").to_arrow().sort_by([("step", "ascending"), ("index", "ascending")])
    assert list(zip(found["id"].to_pylist(), found["loss"].to_pylist(), strict=True)) == wanted
