"""Building caches: batches do not depend on what is built; killed, rival, wider and changed builds end well."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream.cache import materialize as room
from spiral_stream.cache.kinds.tokens import TokenKind
from spiral_stream.cache.materialize import build
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived.work import cooperative_build as together
from spiral_stream.derived.work import executors
from spiral_stream.results import Progress
from spiral_stream.testing import frozen, same
from tests.fixtures import warm
from tests.fixtures.kinds import BAD, CASES, Case, works
from tests.fixtures.kinds import ROWS as TEXTS
from tests.fixtures.kinds import SHARDS as PARTS
from tests.fixtures.streams import FIXED, RANDOM, ROWS, SHARDS, images, maker, our_threads, plan

pytestmark = pytest.mark.usefixtures("no_threads_left")

PROFILES = {
    "source": sp.profiles.Original(),
    "raw": sp.Raw(shorter_side=20),
    "exact raw": sp.Raw(),
    "jpeg": sp.profiles.Jpeg(shorter_side=20),
}
WHOLE_CASE = [list(range(TEXTS // PARTS))] * PARTS
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


@pytest.mark.crossed
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


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = CASES[request.param]
    return found


@pytest.fixture
def rows(case: Case, tmp_path: Path) -> sp.Catalog:
    return case.catalog(tmp_path)


def test_cached_half_cached_and_uncached_rows_are_the_same_refused_ones_included(
    case: Case, rows: sp.Catalog, tmp_path: Path
) -> None:
    without, uncached = case.rows(rows, None)
    first = case.build(rows, tmp_path, range(20, 70))
    half, half_metrics = case.rows(rows, tmp_path)
    second = case.build(rows, tmp_path)
    full, full_metrics = case.rows(rows, tmp_path)

    assert without == half == full
    assert sum(isinstance(each, str) for each in without) == len(BAD) == first.refused + second.refused
    assert uncached.cached_rows == 0 < uncached.source_bytes
    assert 0 < half_metrics.source_bytes < uncached.source_bytes
    assert (full_metrics.source_rows, full_metrics.source_bytes) == (0, 0)


def test_a_second_build_finds_nothing_to_do_and_a_wider_one_adds(case: Case, rows: sp.Catalog, tmp_path: Path) -> None:
    first = case.build(rows, tmp_path, range(10, 45))
    again = case.build(rows, tmp_path, range(10, 45))
    files = ledger(tmp_path)
    wider = case.build(rows, tmp_path)

    assert first.rows == first.rows_total == 35
    assert (again.rows, again.shards, again.shards_total) == (0, 0, 0)
    assert wider.rows == TEXTS - 35
    assert files.items() <= ledger(tmp_path).items()
    assert sorted(map(sorted, rows_by_shard(tmp_path).values())) == WHOLE_CASE


def test_a_build_reports_its_progress(case: Case, rows: sp.Catalog, tmp_path: Path) -> None:
    seen: list[Progress] = []
    done = case.build(rows, tmp_path, report=seen.append)

    assert [p.rows for p in seen] == sorted(p.rows for p in seen)
    assert seen[-1] == done
    assert (done.shards, done.rows, done.rows_total, done.refused) == (PARTS, TEXTS, TEXTS, len(BAD))
    assert done.payload_bytes == sum(p.stat().st_size for p in tmp_path.rglob("*.blob"))


def written(folder: Path) -> dict[str, tuple[list[bytes], Any]]:
    """The payload files of each part, and its rows, by the shard's content key.

    The bytes of the rows' own file differ from run to run: Lance writes a map of its metadata in any order.
    """
    dataset = lance.dataset(str(next(folder.glob("caches/*/data.lance"))))
    keys = {file: key for key, file in json.loads(dataset.schema.metadata[b"spiral:parts"])}
    found = {}
    for fragment in dataset.get_fragments():
        file = fragment.metadata.files[0].path
        blobs = (Path(dataset.uri) / "data" / Path(file).stem).iterdir()
        found[keys[file]] = ([path.read_bytes() for path in blobs], fragment.to_table().to_pylist())
    return found


EXECUTORS = [
    executors.Executor("threads", 1),
    executors.Executor("threads", 5),
    executors.Executor("processes", 2),
    pytest.param(
        executors.Executor("ray", 2) if find_spec("ray") else None,
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
            pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
        ],
    ),
]


@pytest.mark.parametrize("executor", EXECUTORS, ids=["one thread", "five threads", "processes", "ray"])
def test_the_parts_are_the_same_bits_from_each_executor(
    case: Case, rows: sp.Catalog, tmp_path: Path, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Progress] = []
    monkeypatch.setattr(room.part_boundaries, "UNIT_ROWS", 1)
    case.build(rows, tmp_path / "a")
    done = case.build(rows, tmp_path / "b", report=seen.append, executor=executor)

    assert written(tmp_path / "a") == written(tmp_path / "b")
    assert len(written(tmp_path / "b")) == PARTS
    assert done == seen[-1]
    assert (done.shards, done.rows, done.refused) == (PARTS, TEXTS, len(BAD))
    assert [p.rows for p in seen] == sorted(p.rows for p in seen)
    assert {p.name for p in next((tmp_path / "b").glob("caches/*")).iterdir()} == {
        *("cache.json", "claims", "committed", "data.lance", "ledger", "sums", "writers", "readers")
    }


def test_an_error_in_another_process_is_the_error_of_the_build(case: Case, rows: sp.Catalog, tmp_path: Path) -> None:
    for file in sorted((tmp_path / "rows").iterdir())[:1]:
        opened = OpenRelation(rows.entry("rows"))
        todo = works(opened)
        file.write_bytes(file.read_bytes()[:-9])
    chosen = executors.Executor("processes", 1)
    with (
        opened,
        executors.building_with(chosen),
        pytest.raises(sp.errors.SourceError, match="magic bytes not found"),
    ):
        build(opened, case.kind, case.store(tmp_path), todo, 1, executor=chosen)


BUILD = """
import sys, time
from pathlib import Path
import spiral_stream as sp
from spiral_stream.cache import materialize
from spiral_stream.cache.store.store import CacheStore
from tests.fixtures.kinds import CASES

materialize.part_boundaries.UNIT_ROWS = materialize.WRITERS = 1
name, folder, quick_shards, pause_s = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
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
CASES[name].build(sp.connect(str(folder / "catalog")), folder)
print("done", flush=True)
"""


def start_build(name: str, folder: Path, quick_shards: int, pause_s: float) -> "subprocess.Popen[str]":
    return warm.Popen(
        [sys.executable, "-c", BUILD, name, str(folder), str(quick_shards), str(pause_s)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


# One kind by default: what processes leave each other does not depend on it.
KINDS = [name if name == "images" else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("name", KINDS)
def test_a_killed_build_goes_on_where_it_stopped(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    catalog = case.catalog(tmp_path)
    without, _ = case.rows(catalog, None)
    with start_build(name, tmp_path, quick_shards=2, pause_s=60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "chunk\n"  # it is inside the third shard
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    finished = ledger(tmp_path)
    seen, metrics = case.rows(catalog, tmp_path)
    rest = case.build(catalog, tmp_path)
    after, metrics_after = case.rows(catalog, tmp_path)

    assert metrics.cached_rows == 0  # nothing was committed, and nothing half-written is read
    assert len(finished) == 2
    assert finished.items() <= ledger(tmp_path).items()
    assert (rest.shards, rest.rows) == (PARTS - 2, TEXTS // 2)
    assert without == seen == after
    assert metrics_after.source_rows == 0
    assert sorted(map(sorted, rows_by_shard(tmp_path).values())) == WHOLE_CASE


@pytest.mark.parametrize("name", KINDS)
def test_two_processes_build_one_cache_together(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.part_boundaries, "UNIT_ROWS", 1)
    case = CASES[name]
    catalog = case.catalog(tmp_path)
    without, _ = case.rows(catalog, None)
    with start_build(name, tmp_path, quick_shards=0, pause_s=0.2) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "chunk\n"  # it is inside the first shard
        ours = case.build(catalog, tmp_path)
        assert process.stdout.read().splitlines()[-1] == "done"
    assert (process.returncode, ours.rows) == (0, TEXTS)  # whoever did it
    assert len(ledger(tmp_path)) == PARTS  # and each shard once
    stored = rows_by_shard(tmp_path)
    seen, metrics = case.rows(catalog, tmp_path)

    assert sorted(map(sorted, stored.values())) == WHOLE_CASE
    assert without == seen
    assert metrics.source_rows == 0
    assert case.build(catalog, tmp_path).rows == 0


def test_a_shard_that_takes_long_is_waited_for_while_its_rows_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["tokens"]
    catalog = case.catalog(tmp_path)
    written, begun, now = list[str](), threading.Event(), [0.0]
    write = CacheStore.write

    def slow(self: CacheStore, key: str, rows: int, chunks: Any) -> int:
        def slowed() -> Any:
            for chunk in chunks:
                yield chunk
                begun.set()
                for _ in range(5):  # while the other looks
                    now[0] += 0.05
                    time.sleep(0.02)

        written.append(key)
        return write(self, key, rows, slowed())

    monkeypatch.setattr(CacheStore, "write", slow)
    monkeypatch.setattr(TokenKind, "FIRST_ROWS", 1)
    monkeypatch.setattr(TokenKind, "RUN_ROWS", 3)  # a shard takes longer than others wait
    monkeypatch.setattr("spiral_stream.threads.monotonic", lambda: now[0])
    monkeypatch.setattr(together, "WAIT_S", 0.5)
    first = threading.Thread(target=case.build, args=(catalog, tmp_path))
    first.start()
    begun.wait()
    case.build(catalog, tmp_path)
    first.join()

    assert len(written) == len(set(written)) == PARTS


def test_of_a_changed_relation_the_changed_shard_is_built_again_alone(
    case: Case, rows: sp.Catalog, tmp_path: Path
) -> None:
    case.build(rows, tmp_path)
    before, _ = case.rows(rows, tmp_path)
    table = case.table()
    size = len(table) // PARTS
    other = table.slice(3 * size).take(np.roll(np.arange(size), 1))
    case.write_shard(tmp_path, 3, pa.concat_tables([table.slice(0, 3 * size), other]))
    rows.refresh("rows")
    without, _ = case.rows(rows, None)
    rebuilt = case.build(rows, tmp_path)
    after, metrics = case.rows(rows, tmp_path)

    assert (rebuilt.shards, rebuilt.rows) == (1, size)
    assert after == without
    assert before != after
    assert metrics.source_rows == 0


def test_a_build_that_fails_says_why_and_leaves_no_thread(case: Case, rows: sp.Catalog, tmp_path: Path) -> None:
    class Gone:
        base = ""

        def fetch(self, ordinals: Any, columns: Any) -> pa.Table:
            raise sp.errors.SourceError("rows: the disk is gone; mount it")

    with OpenRelation(rows.entry("rows")) as relation:
        todo = works(relation)
    with pytest.raises(sp.errors.SourceError, match="the disk is gone; mount it"):
        build(Gone(), case.kind, case.store(tmp_path), todo, 2)

    assert ledger(tmp_path) == {}


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
        with make() as stream, pytest.raises(sp.errors.SourceError, match=rf'since registration.*refresh\("{name}"\)'):
            stream.batch(0)
    own.refresh(name)
    with make() as stream:
        rebuilt = stream.materialize(quiet)
        seen = [frozen(batch) for batch in stream]
        metrics = stream.metrics()
        message = rf"data changed since the state was saved: {name} \(\w{{8}} -> \w{{8}}\).*start a new epoch"
        with pytest.raises(sp.errors.ResumeError, match=message):
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
    with pytest.raises(sp.errors.CacheError, match=rf"{blocked}.* cannot be written.*\$SPIRAL_CACHE"):
        len(maker(catalog)())

    blocked.unlink()
    blocked.mkdir()
    (blocked / "caches").write_text("a file in the folder's place")
    with maker(catalog, profile=sp.Raw(20))() as stream:
        message = rf"cannot write under {blocked}/caches/\w+ .*Make it writable, free space, or set \$SPIRAL_CACHE"
        with pytest.raises(sp.errors.CacheError, match=message):
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
