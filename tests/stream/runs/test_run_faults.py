"""What goes wrong around a run: damage, full disks, two that do the same, names that clash. Nothing is lost in silence."""

import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    found = sp.connect(tmp_path / "catalog")
    table = pa.table({"sample_id": range(64), "x": np.arange(64, dtype=np.float32)})
    found.register("numbers", sp.Arrow(table), identity="sample_id")
    return found


def plan(catalog: sp.Catalog) -> Any:
    sampled = catalog.table("numbers").sample(order=sp.GlobalShuffle(seed=3))
    return sampled.collate(batch_size=8, fields={"x": sp.Stack("x"), "id": sp.List("sample_id")})


def train(catalog: sp.Catalog, name: str, batches: int = 8, **options: Any) -> None:
    with plan(catalog).to_numpy() as stream:
        run = catalog.run(name, stream, **options)
        for _, batch in zip(range(batches), stream, strict=False):
            run.log(batch=batch, loss=batch["x"])
        run.close()


def losses(catalog: sp.Catalog, name: str) -> list[float]:
    return sorted(catalog.table(f"runs.{name}").to_arrow()["loss"].to_pylist())


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "head": lambda data: bytes([data[0] ^ 4]) + data[1:],
    "middle": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :],
    "tail": lambda data: data[:-1] + bytes([data[-1] ^ 4]),
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda _: b"",
    "removed": lambda _: None,
    "longer": lambda data: data + b"more",
}


@pytest.mark.parametrize("way", DAMAGE)
@pytest.mark.parametrize("kind", ["history/*.000000.json", "history/*.reached.json", "records/*.000001.part"])
def test_damage_to_a_run_is_said_and_never_read_as_something_else(catalog: sp.Catalog, kind: str, way: str) -> None:
    train(catalog, "hurt", every=2)
    [path] = (catalog.root / "runs" / "hurt").glob(kind)
    before = path.read_bytes()
    after = DAMAGE[way](before)
    path.unlink()
    if after is not None:
        path.write_bytes(after)
    if "reached" in kind and way == "removed":  # as if the process was killed before it could say so
        assert losses(catalog, "hurt") == [*range(64)]
        return
    with pytest.raises(sp.errors.RunError, match=r"restore it, or drop the run, catalog.drop_run\('hurt'\)"):
        losses(catalog, "hurt")
    path.write_bytes(before)
    assert losses(catalog, "hurt") == [*range(64)]


@pytest.mark.parametrize("way", DAMAGE)
def test_damage_to_what_the_table_is_made_of_makes_it_anew(catalog: sp.Catalog, way: str) -> None:
    train(catalog, "hurt")
    assert losses(catalog, "hurt") == [*range(64)]
    [path] = (catalog.root / "runs" / "hurt" / "built").glob("*.json")
    after = DAMAGE[way](path.read_bytes())
    path.unlink() if after is None else path.write_bytes(after)
    assert losses(catalog, "hurt") == [*range(64)]
    shutil.rmtree(catalog.root / "runs" / "hurt" / "table.lance")
    with pytest.warns(sp.errors.SpiralWarning, match=r"runs\.hurt: its table is damaged or gone, and is made anew"):
        assert losses(catalog, "hurt") == [*range(64)]


def test_processes_that_build_the_table_together_have_each_row_once(catalog: sp.Catalog) -> None:
    train(catalog, "shared", every=1)
    catalogs = [sp.connect(catalog.root) for _ in range(4)]
    found: list[Any] = [None] * 4

    def read(k: int) -> None:
        found[k] = losses(catalogs[k], "shared")

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [[*range(64)]] * 4


def test_an_attempt_belongs_to_one_process_of_each_rank(catalog: sp.Catalog) -> None:
    with plan(catalog).to_numpy() as first, plan(catalog).to_numpy() as second:
        run = catalog.run("one", first.bind(rank=1, world_size=2), attempt="monday", every=1)
        with pytest.raises(sp.errors.RunError, match=r"Give each start of the training an attempt= of its own"):
            catalog.run("one", second.bind(rank=1, world_size=2), attempt="monday")
        for batch in first:
            run.log(batch=batch, loss=batch["x"])
        catalog.run("one", second.bind(rank=0, world_size=2), attempt="monday").close()
        run.close()
    assert catalog.table("runs.one").count() == 32
    with plan(catalog).to_numpy() as stream, pytest.raises(sp.errors.CatalogError, match="letters, digits"):
        catalog.run("one", stream, attempt="../../one")


def test_two_attempts_at_once_are_two_branches(catalog: sp.Catalog) -> None:
    with plan(catalog).to_numpy() as first, plan(catalog).to_numpy() as second:
        runs = [catalog.run("both", first, attempt="a")]
        with pytest.warns(sp.errors.SpiralWarning, match=r"is being recorded now"):
            runs.append(catalog.run("both", second, attempt="b", anew=True))
        for k, batches in enumerate(zip(first, second, strict=True)):
            for run, batch, sign in zip(runs, batches, (1, -1), strict=True):
                if k < 5:
                    run.log(batch=batch, loss=sign * batch["x"])
        with pytest.warns(sp.errors.SpiralWarning, match=r"was begun while a records"):
            runs[0].close()
        runs[1].close()
    assert catalog.table("runs.both").count() == 40
    assert all(each <= 0 for each in losses(catalog, "both"))
    assert catalog.run("both").registered("a").name == "runs.both.a"
    assert all(each >= 0 for each in losses(catalog, "both.a"))


def test_names_that_contain_each_other_are_told_apart(catalog: sp.Catalog) -> None:
    train(catalog, "a.b", attempt="c")
    with plan(catalog).to_numpy() as stream:
        catalog.run("a", stream, attempt="b").close()  # has recorded nothing
        assert losses(catalog, "a.b") == [*range(64)]
        other = catalog.run("a", plan(catalog).to_numpy(), attempt="b.2")
    other.close()
    with plan(catalog).to_numpy() as stream:
        run = catalog.run("a", stream, attempt="b-3", anew=True)
        run.log(batch=next(iter(stream)), loss=1.0)
        run.close()
    assert catalog.sql('select count(*) as n from "runs.a.b"').to_arrow()["n"].to_pylist() == [64]
    train(catalog, "a", 1, attempt="b.4", anew=True)
    train(catalog, "a", 1, attempt="b4", anew=True)
    train(catalog, "c.d")
    losses(catalog, "c.d")
    train(catalog, "c", attempt="d")
    with pytest.raises(sp.errors.RunError, match="another name"):
        catalog.run("c").registered("d")
    assert losses(catalog, "c.d") == [*range(64)]
    catalog.register("runs.mine", sp.Arrow(pa.table({"k": [1]})), identity="k")
    train(catalog, "mine")
    with pytest.raises(sp.errors.RunError, match=r"catalog\.drop\('runs\.mine'\)"):
        catalog.table("runs.mine")


def test_a_dropped_run_is_gone_with_its_relations_and_no_other(catalog: sp.Catalog) -> None:
    for name in ("gone", "gone.too"):
        train(catalog, name, attempt="one")
        losses(catalog, name)
    catalog.run("gone").registered("one")
    catalog.drop("runs.gone")  # made anew when somebody asks
    assert losses(catalog, "gone") == [*range(64)]
    catalog.drop_run("gone")
    assert catalog.runs() == ["gone.too"]
    assert sorted(catalog.tables()) == ["numbers", "runs.gone.too"]
    with pytest.raises(sp.errors.CatalogError, match=r"runs\.gone"):
        catalog.table("runs.gone")
    with pytest.raises(sp.errors.RunError, match="is not in catalog"):
        catalog.drop_run("gone")
    train(catalog, "gone", 2, attempt="one")
    assert len(losses(catalog, "gone")) == 16


def test_a_run_that_is_dropped_while_it_records_or_is_read_is_an_error_of_ours(catalog: sp.Catalog) -> None:
    with plan(catalog).to_numpy() as stream:
        run = catalog.run("away", stream)
        batches = iter(stream)
        run.log(batch=next(batches), loss=1.0)
        run.flush()
        reader = catalog.run("away")
        table = catalog.table("runs.away")
        catalog.drop_run("away")
        run.log(batch=next(batches), loss=1.0)
        with pytest.raises(sp.errors.RunError, match=r"was dropped"):
            run.flush()
        with pytest.raises(sp.errors.RunError):
            stream.state_dict()
        with pytest.raises(sp.errors.RunError):
            run.close()
        assert "run" not in stream.state_dict()  # closed, and it goes on unrecorded
        assert len(list(batches)) == 6
    with pytest.raises(sp.errors.RunError):
        reader.registered()
    with pytest.raises(sp.SpiralError):
        table.to_arrow()


def full(folder: Path) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this user may not mount a disk")


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as out:
        while out.write(b"x" * 4096):
            pass


def test_a_full_disk_is_named_and_nothing_sealed_is_lost(catalog: sp.Catalog) -> None:
    folder = catalog.root / "runs"
    folder.mkdir()
    full(folder)
    try:
        with plan(catalog).to_numpy() as stream:
            run = catalog.run("full", stream, every=1)
            batches = iter(stream)
            for _ in range(3):
                batch = next(batches)
                run.log(batch=batch, loss=batch["x"])
            state = stream.state_dict()
            filler = folder / "filler"
            fill(filler)
            batch = next(batches)
            for verb in (lambda: run.log(batch=batch, loss=batch["x"]), stream.state_dict, run.flush):
                with pytest.raises(sp.errors.RunError, match=r"(?s)cannot be written.*No space left.*Free space"):
                    verb()
            filler.unlink()
            for batch in batches:
                run.log(batch=batch, loss=batch["x"])
            run.close()
        assert losses(catalog, "full") == [*range(64)]
        with plan(catalog).to_numpy() as stream:
            stream.load_state_dict(state)
            catalog.run("full", stream, attempt="again").close()
        assert len(losses(catalog, "full")) == 24
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_run_opened_in_mid_loop_is_refused(catalog: sp.Catalog) -> None:
    with plan(catalog).to_numpy() as stream:
        batches = iter(stream)
        next(batches)
        with pytest.raises(sp.errors.StreamError, match="before the loop begins, or leave the loop first"):
            catalog.run("late", stream)
        assert len(list(batches)) == 7


def test_a_closed_run_records_no_more_and_the_state_still_names_it(catalog: sp.Catalog) -> None:
    with plan(catalog).to_numpy() as stream:
        run = catalog.run("closed", stream, attempt="a")
        batches = iter(stream)
        for _ in range(3):
            batch = next(batches)
            run.log(batch=batch, loss=batch["x"])
        run.close()
        run.close()
        state = stream.state_dict()
        with pytest.raises(sp.errors.RunError, match="is closed"):
            run.log(batch=batch, loss=1.0)
        assert len(list(batches)) == 5
        assert "run" not in stream.state_dict()
    with plan(catalog).to_numpy() as stream:
        stream.load_state_dict(state)
        run = catalog.run("closed", stream, attempt="b")
        for batch in stream:
            run.log(batch=batch, loss=batch["x"])
        run.close()
    assert losses(catalog, "closed") == [*range(64)]
    assert [(leg.attempt, leg.first, leg.end) for leg in catalog.run("closed").legs()] == [("a", 0, 3), ("b", 3, 8)]


def test_the_trained_branch_does_not_depend_on_clocks(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    train(catalog, "clocks", 3, attempt="a")
    with plan(catalog).to_numpy() as stream:
        run = catalog.run("clocks2", stream, attempt="a")
        next(iter(stream))
        state = stream.state_dict()
        run.close()
    from datetime import datetime as real

    class Behind(real):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real.now(tz).replace(year=2001)

    monkeypatch.setattr("spiral_stream.runs.records.recording.datetime", Behind)
    with plan(catalog).to_numpy() as stream:
        stream.load_state_dict(state)
        catalog.run("clocks2", stream, attempt="b").close()
    assert catalog.run("clocks2").attempt == "b"


def test_a_training_goes_on_while_the_catalog_cannot_be_written(catalog: sp.Catalog) -> None:
    folder = catalog.root / "runs"
    folder.mkdir()
    full(folder)
    try:
        with plan(catalog).to_numpy() as stream:
            run = catalog.run("full", stream, every=2, on_error="warn", attempt="a")
            batches = iter(stream)
            filler = folder / "filler"
            fill(filler)
            first, second, third = (next(batches) for _ in range(3))
            run.log(batch=first, loss=first["x"])
            with pytest.warns(sp.errors.SpiralWarning, match=r"(?s)keeps in memory what it logs.*No space left"):
                run.log(batch=second, loss=second["x"])
            run.log(batch=third, loss=third["x"])  # warned once
            state = stream.state_dict()
            assert state["run"]["unsealed"] is True
            filler.unlink()
            for batch in batches:
                run.log(batch=batch, loss=batch["x"])
            assert "unsealed" not in stream.state_dict()["run"]
            run.close()
        assert losses(catalog, "full") == [*range(64)]
        with plan(catalog).to_numpy() as stream:
            stream.load_state_dict(state)
            with pytest.warns(
                sp.errors.SpiralWarning, match=r"attempt a could not write what it had logged when this state was"
            ):
                catalog.run("full", stream, attempt="b").close()
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_training_in_a_catalog_that_is_read_only_goes_on_if_it_is_asked_to(catalog: sp.Catalog) -> None:
    (catalog.root / "runs").write_text("no folder")  # as on a node where the catalog cannot be written
    with plan(catalog).to_numpy() as stream:
        with pytest.raises(sp.errors.RunError, match=r'cannot be written.*on_error="warn"'):
            catalog.run("away", stream)
        with pytest.warns(sp.errors.SpiralWarning, match="trains on, and records nothing.*cannot be written"):
            run = catalog.run("away", stream, on_error="warn")
        assert not run.is_recording
        for batch in stream:
            run.log(batch=batch, loss=batch["x"])
        run.flush()
        assert run.metrics() == {"duplicates": 0, "waited": 0}
        assert "run" not in stream.state_dict()
        run.close()
    with plan(catalog).to_numpy() as stream, pytest.raises(sp.errors.RunError, match='"raise" or "warn"'):
        catalog.run("away", stream, on_error="skip")
