"""Building caches: batches do not depend on what is built; killed, rival, wider and changed builds end well."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream.cache.materialize import Progress
from spiral_stream.testing import frozen, same
from tests.fixtures.streams import FIXED, RANDOM, ROWS, SHARDS, images, maker, our_threads, plan

pytestmark = pytest.mark.usefixtures("no_threads_left")

PROFILES = {
    "source": sp.Source(),
    "raw": sp.Raw(shorter_side=20),
    "exact raw": sp.Raw(),
    "jpeg": sp.Jpeg(shorter_side=20),
}
WHOLE = [list(range(ROWS // SHARDS))] * SHARDS
ROOT = Path(__file__).parents[3]


def quiet(_: Progress) -> None: ...


def batches(make: Callable[[], Any]) -> list[dict[str, Any]]:
    with make() as stream:
        return [frozen(batch) for batch in stream]


def ledger(caches: Path) -> dict[str, str]:
    """Ledger files, and what is in them."""
    return {path.name: path.read_text() for path in caches.glob("caches/*/ledger/*.json")}


def rows_by_shard(caches: Path) -> dict[str, list[int]]:
    """The row offsets that the committed dataset holds, by content key."""
    dataset = lance.dataset(str(next(caches.glob("caches/*/data.lance"))))
    parts = {file: key for key, file in json.loads(dataset.schema.metadata[b"spiral:parts"])}
    found: dict[str, list[int]] = {}
    for fragment in dataset.get_fragments():
        rows = fragment.to_table(columns=["row"])["row"].to_pylist()
        found.setdefault(parts[fragment.metadata.files[0].path], []).extend(rows)
    return found


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("transforms", [RANDOM, FIXED], ids=["random", "fixed"])
def test_no_half_and_full_cache_give_the_same_bytes(
    catalog: sp.Catalog, caches: Path, name: str, transforms: Any
) -> None:
    options = {"profile": PROFILES[name], "transforms": transforms, "last": sp.KeepPartial, "batch_size": 50}
    make = maker(catalog, **options)
    without = batches(make)
    half = catalog.table("lance").filter(sp.col("label_id") < 2)
    with plan(half, **options).to_numpy() as narrow:
        built = narrow.materialize(quiet)
    with make() as stream:
        with_half = [frozen(batch) for batch in stream]
        hit_half = stream.metrics()["cached_rows"]
        wider = stream.materialize(quiet)
        with_full = [frozen(batch) for batch in stream]  # the stream looks again at each epoch's start
        stream.set_epoch(0)
    with make() as stream:
        with_full = [frozen(batch) for batch in stream]
        metrics = stream.metrics()

    assert all(same(a, b) for a, b in zip(without, with_half, strict=True))
    assert all(same(a, b) for a, b in zip(without, with_full, strict=True))
    assert 0 < hit_half == built.rows < ROWS
    assert wider.rows == ROWS - built.rows
    assert (metrics["cached_rows"], metrics["source_rows"]) == (ROWS, 0)


def test_a_second_build_finds_nothing_to_do_and_a_wider_one_adds(catalog: sp.Catalog, caches: Path) -> None:
    narrow = catalog.table("lance").filter(sp.col("label_id") == 1)
    with plan(narrow, profile=sp.Raw(20)).to_numpy() as stream:
        first = stream.materialize(quiet)
        again = stream.materialize(quiet)
    files = ledger(caches)
    with maker(catalog, profile=sp.Raw(20))() as stream:
        wider = stream.materialize(quiet)

    assert first.rows == first.rows_total > 0
    assert (again.rows, again.shards, again.shards_total) == (0, 0, 0)
    assert wider.rows == ROWS - first.rows
    assert files.items() <= ledger(caches).items()
    assert len(list((caches / "caches").iterdir())) == 1  # filters never enter the fingerprint
    assert sorted(map(sorted, rows_by_shard(caches).values())) == WHOLE


def test_a_build_reports_its_progress(catalog: sp.Catalog, caches: Path) -> None:
    seen: list[Progress] = []
    with maker(catalog, profile=sp.Raw(20))() as stream:
        done = stream.materialize(seen.append)

    assert [p.rows for p in seen] == sorted(p.rows for p in seen)
    assert seen[-1] == done
    assert (done.shards, done.rows, done.rows_total, done.refused) == (SHARDS, ROWS, ROWS, 0)
    assert done.payload_bytes == sum(p.stat().st_size for p in caches.rglob("*.blob"))


BUILD = """
import sys, time
import spiral_stream as sp
from spiral_stream.cache.store import CacheStore
from tests.fixtures.streams import maker

root, quick_shards, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
write, written = CacheStore.write, 0

def slow(self, key, rows, chunks):
    def slowed():
        for chunk in chunks:
            yield chunk
            if written >= quick_shards:
                print("chunk", flush=True)
                time.sleep(pause_s)
    global written
    size = write(self, key, rows, slowed())
    written += 1
    return size

CacheStore.write = slow
with maker(sp.connect(root), profile=sp.Raw(20))() as stream:
    stream.materialize(lambda _: None)
print("done", flush=True)
"""


def start_build(catalog: sp.Catalog, caches: Path, quick_shards: int, pause_s: float) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(catalog.root), str(quick_shards), str(pause_s)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "SPIRAL_CACHE": str(caches)},
    )


def test_a_killed_build_goes_on_where_it_stopped(catalog: sp.Catalog, caches: Path) -> None:
    without = batches(maker(catalog, profile=sp.Raw(20)))
    with start_build(catalog, caches, quick_shards=2, pause_s=60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "chunk\n"  # it is inside the third shard
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    finished = ledger(caches)

    with maker(catalog, profile=sp.Raw(20))() as stream:
        seen = [frozen(batch) for batch in stream]
        assert stream.metrics()["cached_rows"] == 0  # nothing was committed, and nothing half-written is read
        rest = stream.materialize(quiet)
    after = batches(maker(catalog, profile=sp.Raw(20)))

    assert len(finished) == 2
    assert finished.items() <= ledger(caches).items()
    assert rest.shards == SHARDS - 2
    assert rest.rows == ROWS // 2
    assert all(same(a, b) for a, b in zip(without, seen, strict=True))
    assert all(same(a, b) for a, b in zip(without, after, strict=True))
    assert sorted(map(sorted, rows_by_shard(caches).values())) == WHOLE


def test_two_processes_build_one_cache(catalog: sp.Catalog, caches: Path) -> None:
    without = batches(maker(catalog, profile=sp.Raw(20)))
    processes = [start_build(catalog, caches, quick_shards=0, pause_s=0.05) for _ in range(2)]
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert out.splitlines()[-1] == "done"
        assert process.returncode == 0
    rows = rows_by_shard(caches)
    with maker(catalog, profile=sp.Raw(20))() as stream:
        seen = [frozen(batch) for batch in stream]
        metrics = stream.metrics()
        again = stream.materialize(quiet)

    assert sorted(map(sorted, rows.values())) == WHOLE
    assert all(same(a, b) for a, b in zip(without, seen, strict=True))
    assert metrics["source_rows"] == 0
    assert again.rows == 0


def test_readers_of_a_growing_cache_see_whole_shards_only(catalog: sp.Catalog, caches: Path) -> None:
    make = maker(catalog, profile=sp.Raw(20))
    without = batches(make)
    stop = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not stop.is_set():
            seen = batches(make)
            if not all(same(a, b) for a, b in zip(without, seen, strict=True)):
                wrong.append("a batch differs")

    reader = threading.Thread(target=read)
    reader.start()
    for name in ("shard-00000", "shard-00001", "shard-00002", "shard-00003"):
        some = catalog.table("lance").filter(sp.col("storage_shard") == name)
        with plan(some, profile=sp.Raw(20)).to_numpy() as stream:
            assert stream.materialize(quiet).rows == ROWS // SHARDS
    stop.set()
    reader.join()

    assert wrong == []


@pytest.mark.parametrize("name", ["lance", "parquet"])
def test_a_changed_shard_is_rebuilt_alone(own: sp.Catalog, tmp_path: Path, name: str) -> None:
    make = maker(own, name, profile=sp.Raw(20))
    with make() as stream:
        whole = stream.materialize(quiet)
        state = stream.state_dict()
    before = {batch["id"][k]: batch["image"][k].tobytes() for batch in batches(make) for k in range(16)}
    changed = change_one_shard(tmp_path, name)
    if name == "lance":  # a version is pinned, so the old rows are still there
        assert batches(make)[0]["id"]
    else:
        with make() as stream, pytest.raises(sp.SourceError, match=rf'since registration.*refresh\("{name}"\)'):
            stream.batch(0)
    own.refresh(name)
    with make() as stream:
        rebuilt = stream.materialize(quiet)
        seen = [frozen(batch) for batch in stream]
        metrics = stream.metrics()
        message = rf"data changed since the state was saved: {name} \(\w{{8}} -> \w{{8}}\).*start a new epoch"
        with pytest.raises(sp.ResumeError, match=message):
            stream.load_state_dict(state)

    assert whole.rows == ROWS
    assert 0 < rebuilt.rows < ROWS
    assert rebuilt.rows % len(changed) == 0
    assert metrics["source_rows"] == 0
    after = {batch["id"][k]: batch["image"][k].tobytes() for batch in seen for k in range(16)}
    differing = {each for each in before.keys() & after.keys() if before[each] != after[each]}
    assert differing
    assert differing <= changed


def change_one_shard(folder: Path, name: str) -> set[str]:
    """Give the rows of one storage shard other pixels; returns their identities."""
    table = images()
    last = table.slice(ROWS - ROWS // (SHARDS if name == "lance" else 2))
    rolled = pa.chunked_array([np.roll(last["image_ref"].to_numpy(), 1)], pa.large_binary())
    new = last.set_column(2, last.field(2), rolled)
    if name == "lance":
        dataset = lance.dataset(str(folder / "images.lance"))
        dataset.delete(f"sample_id >= '{new['sample_id'][0].as_py()}'")
        dataset = lance.dataset(str(folder / "images.lance"))
        lance.write_dataset(new, str(folder / "images.lance"), mode="append")
    else:
        pq.write_table(new, folder / "files" / "part-1.parquet")
    return set(new["sample_id"].to_pylist())


def test_an_unwritable_cache_folder_is_named_with_the_way_out(
    catalog: sp.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "prepared"
    monkeypatch.setenv("SPIRAL_CACHE", str(blocked))
    blocked.write_text("a file in the folder's place")
    with pytest.raises(sp.CacheError, match=rf"{blocked}.* cannot be written.*\$SPIRAL_CACHE"):
        len(maker(catalog)())

    blocked.unlink()
    blocked.mkdir()
    (blocked / "caches").write_text("a file in the folder's place")
    with maker(catalog, profile=sp.Raw(20))() as stream:
        message = rf"cannot write under {blocked}/caches/\w+ .*make it writable, free space, or set \$SPIRAL_CACHE"
        with pytest.raises(sp.CacheError, match=message):
            stream.materialize(quiet)
        assert our_threads() == []
        assert len(list(stream)) == 15  # what cannot be kept is still streamed


def test_without_a_progress_callback_a_bar_is_drawn(
    catalog: sp.Catalog, caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with maker(catalog, profile=sp.Raw(20))() as stream:
        done = stream.materialize()

    assert done.rows == ROWS
    assert "error" not in capsys.readouterr().err.lower()
