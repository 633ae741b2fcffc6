"""The catalog's folder: several writers, killed writers, damage, and folders that may only be read."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spiral_stream import Arrow, Parquet
from spiral_stream.catalog import database, lock
from spiral_stream.catalog.database import CatalogTable, Database
from spiral_stream.catalog.registry import Registry, connect
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import CatalogError
from tests.fixtures import warm

ENV = {**os.environ, "PYTHONPATH": str(Path.cwd())}


TABLE = CatalogTable("things", pa.schema({"name": pa.string(), "value": pa.int64()}))


def rows(count: int = 3) -> Arrow:
    return Arrow(pa.table({"sample_id": range(count)}))


def copy_of(catalog: Registry, count: int = 3) -> Path:
    return catalog.root / f"rows-{rows(count).digest()}.lance"


def python(text: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENV)


REGISTER = """
import sys
import pyarrow as pa
from spiral_stream.catalog.registry import connect
from spiral_stream.sources.arrow.table import Arrow

name = sys.argv[2]
catalog = connect(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for i in range(3):
    catalog.register(f"{name}.t{i}", Arrow(pa.table({"sample_id": [name, str(i)]})))
    catalog.register("labels", Arrow(pa.table({"sample_id": ["shared"]})))
    catalog.saved.save(f"{name}.s{i}", {"i": i})
"""


def test_three_processes_that_register_at_once_all_land(tmp_path: Path) -> None:
    """All begin with no folder, want one name alike, and write 21 rows between them."""
    names = [f"p{i}" for i in range(3)]
    processes = [python(REGISTER, tmp_path / "catalog", name) for name in names]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
    for process in processes:
        process.stdin.write("\n")
        process.stdin.close()

    assert [process.wait(120) for process in processes] == [0] * 3
    for process in processes:
        process.stdout.close()
    catalog = connect(tmp_path / "catalog")
    assert catalog.tables() == ["labels", *(f"{name}.t{i}" for name in names for i in range(3))]
    assert catalog.streams() == [f"{name}.s{i}" for name in names for i in range(3)]
    with OpenRelation(catalog.entry("p2.t2")) as relation:
        assert relation.fetch(np.arange(2, dtype=np.uint64), ["sample_id"])["sample_id"].to_pylist() == ["p2", "2"]


def test_a_writer_that_waits_too_long_names_who_holds_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = connect(tmp_path / "catalog")
    catalog.register("t", rows())
    monkeypatch.setattr(lock, "DEADLINE_S", 0.3)
    with lock.locked(catalog.root / ".lock", "another writer"):  # another descriptor is another holder
        assert catalog.tables() == ["t"]  # who only reads does not wait
        assert catalog.register("t", rows()).name == "t"
        for change in (
            lambda: catalog.register("u", rows(4)),
            lambda: catalog.saved.save("s", {}),
            lambda: catalog.drop("t"),
        ):
            with pytest.raises(
                CatalogError,
                match=rf"locked for 0\.3 s by process {os.getpid()} on {socket.gethostname()} .* since .*"
                r"Wait for it and try again, or end that process",
            ):
                change()
    catalog.register("u", rows(4))

    assert catalog.tables() == ["t", "u"]


def test_a_commit_that_was_overtaken_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = connect(tmp_path / "catalog")
    catalog.register("t", rows())
    failures = iter([RuntimeError("lance error: Commit conflict for version 7"), OSError("Retryable commit conflict")])
    delete = lance.LanceDataset.delete

    def overtaken(*args: Any, **named: Any) -> Any:
        if error := next(failures, None):
            raise error
        return delete(*args, **named)

    monkeypatch.setattr(lance.LanceDataset, "delete", overtaken)
    catalog.drop("t")

    assert catalog.tables() == []
    assert next(failures, None) is None


class EndedError(BaseException):
    """Like Dagster's, with which it ends a step."""


@pytest.mark.parametrize("end", [KeyboardInterrupt, EndedError])
def test_an_interrupt_is_no_damage_of_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    catalog = connect(tmp_path / "catalog")

    def interrupted(*_: Any, **__: Any) -> Any:
        raise end

    with monkeypatch.context() as patch:
        patch.setattr(lance, "write_dataset", interrupted)
        with pytest.raises(end):
            catalog.register("t", rows())
    catalog.register("t", rows())

    assert catalog.tables() == ["t"]


KILLED = """
import os, sys
import lance
import pyarrow as pa
from spiral_stream.catalog.registry import connect
from spiral_stream.sources.arrow.table import Arrow

def killed(rows, place, **kwargs):
    if place.endswith("relations.lance"):
        os.makedirs(f"{place}/data")  # begun, not committed
        os._exit(9)
    return original(rows, place, **kwargs)
original, lance.write_dataset = lance.write_dataset, killed
connect(sys.argv[1]).register("t", Arrow(pa.table({"sample_id": range(3)})))
"""


def test_a_writer_killed_while_it_makes_a_table_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    with python(KILLED, tmp_path / "catalog") as process:
        assert process.wait(60) == 9
    catalog = connect(tmp_path / "catalog")

    assert copy_of(catalog).exists()
    assert catalog.tables() == []
    with OpenRelation(catalog.register("t", rows())) as relation:
        assert relation.manifest.total == 3
    assert connect(tmp_path / "catalog").tables() == ["t"]


def test_half_a_copy_of_rows_is_copied_anew(tmp_path: Path) -> None:
    catalog = connect(tmp_path / "catalog")
    (copy_of(catalog) / "data").mkdir(parents=True)
    (copy_of(catalog) / "data" / "half.lance").write_bytes(b"half")

    with OpenRelation(catalog.register("t", rows())) as relation:
        assert relation.fetch(np.array([2], np.uint64), ["sample_id"]).to_pydict() == {"sample_id": [2]}


def test_a_table_from_before_there_were_digests_is_read_and_then_rewritten(tmp_path: Path) -> None:
    catalog = connect(tmp_path / "catalog")
    first = catalog.register("a", rows())
    table = str(catalog.root / "relations.lance")
    lance.write_dataset(lance.dataset(table).to_table().drop_columns(["digest"]), table, mode="overwrite")

    assert catalog.entry("a") == first
    second = catalog.register("b", rows(4))
    assert (catalog.entry("a"), catalog.entry("b")) == (first, second)
    written = lance.dataset(table).to_table()
    assert all(len(digest) == 32 for digest in written["digest"].to_pylist())


DAMAGE: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "overwritten": lambda path: path.write_bytes(bytes(b ^ 0x55 for b in path.read_bytes())),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    catalog = connect(folder / "catalog")
    pq.write_table(rows().table, folder / "t.parquet")
    catalog.register("t", Parquet(str(folder / "t.parquet")))
    catalog.saved.save("s", {"verb": "deliver"})
    return catalog.root


@pytest.mark.crossed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize(
    "files",
    [
        "relations.lance/data/*.lance",
        "relations.lance/_versions/*.manifest",
        "streams.lance/data/*.lance",
        "manifests/*",
    ],
)
def test_a_damaged_folder_is_named_with_the_way_out(tmp_path: Path, sound: Path, files: str, how: str) -> None:
    root = tmp_path / "catalog"
    shutil.copytree(sound, root)
    for file in root.glob(files):
        DAMAGE[how](file)
    catalog = connect(root)
    if files.startswith("relations.lance/_versions") and how == "gone":
        assert catalog.tables() == []  # as if the table had never been completed
        return

    def use() -> None:
        catalog.saved.plan("s")
        catalog.entry("t").manifest()

    with pytest.raises(
        CatalogError, match=rf"{root}.*(restore the folder from a copy, or delete|catalog\.refresh)"
    ) as told:
        use()
    assert len(str(told.value)) < 1500
    if files == "manifests/*":
        assert catalog.refresh("t").manifest().total == 3


READ_ONLY = """
import os, pkgutil, sys
from importlib import import_module
import numpy as np
import spiral_stream as sp
import pyarrow as pa
import pyarrow.compute, pyarrow.dataset, pyarrow.parquet
from spiral_stream.catalog.registry import connect  # all that is imported later, before rights are dropped
import lance, lance.file, lance.fragment, duckdb
for room in pkgutil.walk_packages(sp.__path__, "spiral_stream."):
    if not room.name.startswith(("spiral_stream.adapters", "spiral_stream.__main__")):
        import_module(room.name)
from spiral_stream.errors import CatalogError

root, home = sys.argv[1:3]
sp.connect(root).table("t").to_arrow()
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
os.environ["SPIRAL_CACHE"] = home
catalog = sp.connect(root)
assert catalog.tables() == ["t"] and catalog.streams() == ["s"]
assert catalog.table("t").filter(sp.col("sample_id") > 0).to_arrow().num_rows == 2
stream = catalog.open_stream("s")
assert [batch["id"] for batch in stream] == [[0, 1], [2]]
for change in (
    lambda: catalog.register("u", sp.Arrow(pa.table({"sample_id": [1]}))),
    lambda: catalog.register("t", sp.Arrow(pa.table({"sample_id": [1]})), replace=True),
    lambda: catalog.save_stream("z", stream),
    lambda: catalog.refresh("t"),
    lambda: catalog.drop("t"),
    lambda: catalog.measure("t"),
    lambda: catalog.register_tokenizer("w", "none.json"),
):
    try:
        change()
    except CatalogError as error:
        print(str(error).replace(chr(10), " "))
    else:
        raise AssertionError(change)
assert catalog.register("t", sp.Parquet(sys.argv[3])).name == "t"  # unchanged: nothing is written
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that other users reach; pytest's own it closes to them."""
    with tempfile.TemporaryDirectory(prefix="spiral-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_catalog_that_may_only_be_read_is_read_and_not_changed(open_to_all: Path) -> None:
    import spiral_stream as sp

    tmp_path = open_to_all
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    pq.write_table(rows().table, tmp_path / "t.parquet")
    (tmp_path / "t.parquet").chmod(0o644)  # whatever the umask
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("t", sp.Parquet(str(tmp_path / "t.parquet")))
    plan = catalog.table("t").sample(identity="sample_id", order=sp.Sequential(), epoch=0)
    catalog.save_stream(
        "s", plan.collate(batch_size=2, last=sp.KeepPartial, fields={"id": sp.List("sample_id")}).to_numpy()
    )
    before = {path: path.read_bytes() for path in catalog.root.rglob("*") if path.is_file()}
    for path in [catalog.root, *catalog.root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        command = [sys.executable, "-c", READ_ONLY, str(catalog.root), str(home), str(tmp_path / "t.parquet")]
        done = warm.run(command, cwd=home, env=ENV, capture_output=True, text=True, check=False)
    finally:
        for path in [catalog.root, *catalog.root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)

    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert len(told) == 7
    for line in told[:-1]:
        assert "permission denied" in line.lower(), line
        assert "in another folder: connect(folder) or $SPIRAL_CATALOG" in line, line
    assert {path: path.read_bytes() for path in catalog.root.rglob("*") if path.is_file()} == before


def versions(catalog: Registry, table: str = "relations") -> int:
    return len(list((catalog.root / f"{table}.lance" / "_versions").glob("*.manifest")))


def test_a_writer_tidies_up_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "TIDY_EVERY", 4)
    catalog = connect(tmp_path)
    for k in range(20):
        catalog.saved.save(f"s{k % 3}", {"k": k})
    assert versions(catalog, "streams") > 20  # somebody may read them
    monkeypatch.setattr(database, "READABLE_FOR", timedelta(0))
    for k in range(4):
        catalog.saved.save(f"s{k % 3}", {"k": 20 + k})

    assert versions(catalog, "streams") <= 4
    assert [catalog.saved.plan(f"s{k}") for k in range(3)] == [{"k": 23}, {"k": 21}, {"k": 22}]


def test_tidying_up_removes_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = connect(tmp_path)
    for k in range(5):
        catalog.register("t", rows(k + 1), replace=True)
    catalog.drop("t")
    catalog.register("u", rows())
    assert catalog.database.old_bytes("relations") == 0
    monkeypatch.setattr(database, "READABLE_FOR", timedelta(0))

    def size() -> int:
        return sum(file.stat().st_size for file in (tmp_path / "relations.lance").rglob("*.*"))

    assert not catalog.database.tidy("never-made")
    catalog.database.tidy("relations")
    assert catalog.database.old_bytes("relations") == 0
    before = size()
    catalog.register("u", rows(7), replace=True)
    catalog.register("u", rows(8), replace=True)
    dead, added = catalog.database.old_bytes("relations"), size() - before
    assert 0 < dead < added + before
    catalog.database.tidy("relations")

    assert catalog.database.old_bytes("relations") == 0
    assert versions(catalog) == 1
    assert catalog.entry("u").manifest().total == 8


def test_a_reader_whose_version_was_removed_reads_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = connect(tmp_path)
    catalog.register("t", rows())
    opened = lance.dataset
    old = [opened(str(catalog.database.table_folder("relations")))]
    catalog.register("u", rows())
    monkeypatch.setattr(database, "READABLE_FOR", timedelta(0))
    catalog.database.tidy("relations")
    monkeypatch.setattr(lance, "dataset", lambda *args, **named: old.pop() if old else opened(*args, **named))

    assert catalog.tables() == ["t", "u"]
    assert not old


def test_two_processes_register_while_a_third_tidies_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "READABLE_FOR", timedelta(0))  # whatever they read may go at once
    names = ["p0", "p1"]
    processes = [python(REGISTER, tmp_path / "catalog", name) for name in names]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
    for process in processes:
        process.stdin.write("\n")
        process.stdin.close()
    catalog, times = connect(tmp_path / "catalog"), 0
    while any(process.poll() is None for process in processes):
        times += catalog.database.tidy("relations") + catalog.database.tidy("streams")
    for process in processes:
        process.stdout.close()

    assert [process.returncode for process in processes] == [0, 0]
    assert times > 2
    assert catalog.tables() == ["labels", *(f"{name}.t{i}" for name in names for i in range(3))]
    assert catalog.streams() == [f"{name}.s{i}" for name in names for i in range(3)]
    assert [catalog.entry(name).manifest().total for name in catalog.tables()] == [1, *[2] * 6]


def test_a_table_without_a_new_version_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other, read = Database(tmp_path), Database(tmp_path), list[object]()
    real = lance.dataset
    other.put(TABLE, {"name": "a", "value": 1})
    monkeypatch.setattr(lance, "dataset", lambda *args: (read.append(args), real(*args))[1])

    first = mine.rows(TABLE)
    with pytest.raises(TypeError, match="does not support item assignment"):
        first["a"]["value"] = 9  # type: ignore[index]  # rows are everybody's
    assert [row["value"] for row in mine.rows(TABLE).values()] == [1]
    assert len(read) == 1

    monkeypatch.undo()
    other.put(TABLE, {"name": "a", "value": 2})  # in another process, as far as the first one knows
    assert [row["value"] for row in mine.rows(TABLE).values()] == [2]
    shutil.rmtree(tmp_path / "things.lance")
    assert mine.rows(TABLE) == {}
    other.put(TABLE, {"name": "a", "value": 3})  # the same version numbers in a new folder
    assert [row["value"] for row in mine.rows(TABLE).values()] == [3]
