"""Importing: each unit is read once, whoever reads it and whatever kills them; what is kept is what the files say."""

import os
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream.catalog.imports import unit as import_work
from spiral_stream.catalog.imports.run import IMPORTS
from spiral_stream.catalog.relation.refused import REFUSED
from spiral_stream.derived.work.executors import Executor, building_with
from spiral_stream.sources import import_source as imports
from spiral_stream.sources.internal.imported import ROWS, SNAPSHOTS, ImportedRows
from tests.fixtures import warm
from tests.fixtures.examples import few
from tests.fixtures.lines import Lines, reads, written

ROOT = Path(__file__).parents[4]
RUN = [sys.executable, "-m", "tests.fixtures.lines"]


def numbers(catalog: spiral.Catalog, name: str = "lines") -> list[int]:
    found: list[int] = catalog.table(name).project("number").to_arrow()["number"].to_pylist()
    return found


def kept(catalog: spiral.Catalog, name: str = "lines") -> ImportedRows:
    source = catalog.entry(name).source
    assert isinstance(source, ImportedRows)
    return source


def leftovers(catalog: spiral.Catalog) -> list[str]:
    """Files of imports that no snapshot names, after another import had the chance to remove them."""
    [folder] = (catalog.root / IMPORTS).iterdir()
    named = {Path(path).name for path in kept(catalog).open().files()}
    data = {path.name for path in (folder / ROWS / "data").iterdir()}
    return sorted(data - named) + [path.name for path in (folder / "drafts").iterdir()]


def test_rows_say_which_file_they_come_from(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", 2, 0, 3)
    catalog = spiral.connect(tmp_path / "catalog")

    catalog.register("lines", Lines(str(folder)), identity="number")

    assert catalog.table("lines").to_arrow().to_pydict() == {
        "number": [0, 1, 2000, 2001, 2002],
        "__file__": ["0.num", "0.num", "2.num", "2.num", "2.num"],
        "__index_in_file__": [0, 1, 0, 1, 2],
        "storage_shard": ["0.num", "0.num", "2.num", "2.num", "2.num"],
    }


def test_registering_again_reads_nothing_and_says_so(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", 2, 3)
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("lines", Lines(str(folder)), identity="number")

    again = catalog.register("lines", Lines(str(folder)), identity="number")

    assert not again.changes
    assert again.changes is not None
    assert reads(folder) == {"0.num": 1, "1.num": 1}


def test_registering_changed_files_again_is_refused_with_their_names(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", 2, 3)
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("lines", Lines(str(folder)), identity="number")
    (folder / "new.num").write_text("7")

    with pytest.raises(spiral.errors.CatalogError, match=r"its data: 'new\.num'"):
        catalog.register("lines", Lines(str(folder)), identity="number")
    with pytest.raises(spiral.errors.CatalogError, match="its source, or an option"):
        catalog.register("lines", Lines(str(folder), on_error="skip"), identity="number")


def test_refresh_reads_added_and_changed_files_only(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", 2, 3, 4, 5)
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("lines", Lines(str(folder)), identity="number")
    before = reads(folder)
    (folder / "1.num").write_text("77\n78")
    (folder / "2.num").unlink()
    (folder / "9.num").write_text("99")

    changes = catalog.refresh("lines").changes

    assert changes is not None
    assert (changes.added, changes.changed, changes.removed) == (("9.num",), ("1.num",), ("2.num",))
    assert reads(folder) - before == {"1.num": 1, "9.num": 1}
    assert numbers(catalog) == [0, 1, 77, 78, 3000, 3001, 3002, 3003, 3004, 99]


def test_the_same_files_elsewhere_are_the_same_data(tmp_path: Path) -> None:
    versions = []
    for place in ("a", "b"):
        folder = written(tmp_path / place / "in", 2, 3)
        for file in folder.iterdir():
            os.utime(file, ns=(10**18, 10**18))
        catalog = spiral.connect(tmp_path / place / "catalog")
        versions.append(catalog.register("lines", Lines(str(folder)), identity="number").data_version)

    assert versions[0] == versions[1]


def test_a_large_file_becomes_several_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_work, "FRAGMENT_ROWS", 4)
    folder = written(tmp_path / "in", 10, 2)
    catalog = spiral.connect(tmp_path / "catalog")

    catalog.register("lines", Lines(str(folder)), identity="number")

    shards = catalog.table("lines").to_arrow()["storage_shard"].to_pylist()
    assert list(dict.fromkeys(shards)) == ["0.num#0000", "0.num#0001", "0.num#0002", "1.num"]
    assert numbers(catalog) == [*range(10), 1000, 1001]


def test_a_line_that_cannot_be_read_stops_the_import_and_nothing_is_registered(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", 2, 3)
    (folder / "1.num").write_text("5\nsix\n7")
    catalog = spiral.connect(tmp_path / "catalog")

    with pytest.raises(
        spiral.errors.SourceError, match=r"register 'lines': .*1\.num, line 2: 'six' is no number.*on_error"
    ):
        catalog.register("lines", Lines(str(folder)), identity="number")

    assert catalog.tables() == []
    (folder / "1.num").write_text("5\n6\n7")
    catalog.register("lines", Lines(str(folder)), identity="number")
    assert numbers(catalog) == [0, 1, 5, 6, 7]
    assert leftovers(catalog) == []


def test_lines_that_are_left_out_are_counted_and_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", 2)
    (folder / "1.num").write_text("5\nsix\n7")
    catalog = spiral.connect(tmp_path / "catalog")

    with pytest.warns(spiral.SpiralWarning, match=r"1 rows could not be read .* line 2: 'six' is no number"):
        catalog.register("lines", Lines(str(folder), on_error="skip"), identity="number")

    facts = kept(catalog).facts()
    assert (facts.units, facts.rows, facts.refused, len(facts.examples)) == (2, 4, 1, 1)
    assert facts.source_bytes == sum(path.stat().st_size for path in folder.glob("*.num"))


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    catalog = spiral.connect(tmp_path / "catalog")

    with pytest.raises(spiral.errors.SourceError, match="the files have no rows"):
        catalog.register("lines", Lines(str(written(tmp_path / "in", 0))), identity="number")
    with pytest.raises(spiral.errors.SourceError, match="there are no files"):
        catalog.register("lines", Lines(str(tmp_path)), identity="number")


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_every_executor_keeps_the_same_rows(tmp_path: Path, executor: str) -> None:
    folder = written(tmp_path / "in", 5, 1, 7, 3)
    catalog = spiral.connect(tmp_path / "catalog")

    with building_with(Executor(executor, 2)):
        entry = catalog.register("lines", Lines(str(folder)), identity="number")

    assert numbers(catalog) == [*range(5), 1000, *range(2000, 2007), *range(3000, 3003)]
    assert entry.manifest().total == 16


def test_dropping_the_last_relation_of_an_import_removes_it(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", 2)
    catalog = spiral.connect(tmp_path / "catalog")
    for name in ("a", "b"):
        catalog.register(name, Lines(str(folder)), identity="number")
    assert reads(folder) == {"0.num": 1}

    catalog.drop("a")
    assert numbers(catalog, "b") == [0, 1]
    catalog.drop("b")
    assert list((catalog.root / IMPORTS).iterdir()) == []


def test_a_damaged_snapshot_is_named_and_a_new_registration_mends_it(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", 2, 3)
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("lines", Lines(str(folder)), identity="number")
    [file] = (catalog.root / IMPORTS).glob(f"*/{SNAPSHOTS}/*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    with pytest.raises(spiral.errors.SourceError, match=r"imported rows .* is damaged"):
        numbers(catalog)
    catalog.register("lines", Lines(str(folder)), identity="number", replace=True)

    assert numbers(catalog) == [0, 1, 1000, 1001, 1002]


@pytest.mark.parametrize("how", ["flipped", "cut", "removed"])
def test_damaged_rows_are_read_again_and_never_taken_as_the_data_of_now(tmp_path: Path, how: str) -> None:
    folder = written(tmp_path / "in", 2, 3)
    catalog = spiral.connect(tmp_path / "catalog")
    before = catalog.register("lines", Lines(str(folder)), identity="number").data_version
    file = next((catalog.root / IMPORTS).glob(f"*/{ROWS}/data/*"))
    data = file.read_bytes()
    at = data.find((1001).to_bytes(8, "little")) if (1001).to_bytes(8, "little") in data else len(data) // 2
    changed = {"flipped": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "cut": data[: len(data) // 2]}
    if how == "removed":
        file.unlink()
    else:
        file.write_bytes(changed[how])

    with pytest.raises(spiral.errors.SourceError, match=r'ead the files again with catalog\.refresh\("lines"\)'):
        numbers(catalog)
    again = catalog.refresh("lines")

    assert numbers(catalog) == [0, 1, 1000, 1001, 1002]
    assert (again.data_version, bool(again.changes)) == (before, False)
    assert sum(reads(folder).values()) == 3  # the damaged one twice
    assert leftovers(catalog) == []


def test_a_refresh_mends_a_damaged_snapshot(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", 2, 3)
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("lines", Lines(str(folder)), identity="number")
    [file] = (catalog.root / IMPORTS).glob(f"*/{SNAPSHOTS}/*")
    file.write_bytes(file.read_bytes()[:-9])

    with pytest.raises(spiral.errors.SourceError) as said:
        numbers(catalog)
    assert str(said.value).endswith('Read the files again with catalog.refresh("lines"), or restore the file')
    assert "builds it again" not in str(said.value)
    catalog.refresh("lines")

    assert numbers(catalog) == [0, 1, 1000, 1001, 1002]


@few(5, 10)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any))
def test_streams_of_imported_rows_deliver_each_row_once(
    counts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("law")
    catalog = spiral.connect(place / "catalog")
    catalog.register("lines", Lines(str(written(place / "in", *counts))), identity="number")

    sampled = catalog.table("lines").sample(order=spiral.GlobalShuffle(seed=3), identity="number")
    fields = {"number": spiral.Stack("number")}
    with sampled.collate(batch_size=2, fields=fields, last=spiral.KeepPartial()).to_numpy() as read:
        found = np.concatenate([batch["number"] for batch in read])
    assert sorted(found.tolist()) == sorted(numbers(catalog))


@pytest.mark.parametrize("round_", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 20))])
def test_a_killed_import_goes_on_and_nothing_is_there_twice(tmp_path: Path, round_: int) -> None:
    drawn = random.Random(round_)
    counts = [drawn.randrange(0, 60) for _ in range(130)]
    folder = written(tmp_path / "in", 1, *counts)
    command = [*RUN, str(tmp_path / "catalog"), str(folder), "threads"]
    child = warm.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not reads(folder) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(drawn.uniform(0, 1.2))
    child.send_signal(signal.SIGKILL)
    child.communicate()

    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("lines", Lines(str(folder), slow_s=0.002), identity="number")

    assert sorted(numbers(catalog)) == sorted(
        [0, *(1000 * (k + 1) + n for k, count in enumerate(counts) for n in range(count))]
    )
    assert leftovers(catalog) == []


def test_two_processes_share_an_import(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", *[6] * 300)
    command = [*RUN, str(tmp_path / "catalog"), str(folder)]
    both = [warm.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(2)]
    said = [child.communicate(timeout=280)[1].decode() for child in both]

    assert [child.returncode for child in both] == [0, 0], said
    assert set(reads(folder).values()) == {1}
    assert len(numbers(spiral.connect(tmp_path / "catalog"))) == 1800


def test_rows_of_changed_files_go_with_the_dead(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", 50, 60)
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("lines", Lines(str(folder)), identity="number")
    (folder / "1.num").write_text("7000\n7001")
    catalog.refresh("lines")
    [place] = (catalog.root / IMPORTS).iterdir()
    files = len(list((place / ROWS / "data").iterdir()))

    def imports(**asked: Any) -> list[spiral.results.PreparedData]:
        return [each for each in catalog.caches(**asked) if each.kind == "import"]

    [young] = imports()
    assert (young.dead_bytes, young.used_by) == (0, ("lines",))
    [old] = imports(older_than=timedelta(0))
    assert old.dead_bytes > 0
    [gone] = imports(remove_dead=True, older_than=timedelta(0))
    assert gone.removed_bytes >= old.dead_bytes
    assert len(list((place / ROWS / "data").iterdir())) == files - 1
    assert numbers(catalog) == [*range(50), 7000, 7001]
    assert imports(older_than=timedelta(0))[0].dead_bytes == 0


def test_explain_says_what_an_import_took(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", 5, 6)
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("lines", Lines(str(folder)), identity="number")
    sampled = catalog.table("lines").sample(order=spiral.Sequential(), identity="number")

    with sampled.collate(batch_size=2, fields={"number": spiral.Stack("number")}).to_numpy() as stream:
        explained = str(stream.explain())

    size = sum(path.stat().st_size for path in folder.glob("*.num"))
    assert f"test-lines, 2 storage shards; imported: 2 files, {size} bytes read in" in " ".join(explained.split())


def test_rows_that_are_left_out_are_kept_with_their_place_and_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id": "two"}\n{"id": 3,\n')
    (tmp_path / "b.csv").write_text('id\n1\nx,"y"\n')
    (tmp_path / "c.txt").write_bytes(b"sch\xf6n")
    (tmp_path / "d.txt").write_bytes(b"good")
    sources = {
        "a": spiral.sources.Jsonl(tmp_path, schema={"id": "int64"}, on_error="skip"),
        "b": spiral.sources.Csv(tmp_path, on_error="skip"),
        "c": spiral.sources.TextFiles(tmp_path, on_error="skip"),
    }
    catalog = spiral.connect(tmp_path / "catalog")
    for name, source in sources.items():
        with pytest.warns(spiral.SpiralWarning, match=r"left out.*catalog\.refused\(name\)"):
            catalog.register(name, source, identity=spiral.RowIdentity())

    refused = {name: catalog.refused(name).to_pylist() for name in sources}
    found = {name: [(row["__file__"], row["place"], row["data"]) for row in rows] for name, rows in refused.items()}
    assert found == {
        "a": [("a.jsonl", "line 2", b'{"id": "two"}'), ("a.jsonl", "line 3", b'{"id": 3,')],
        "b": [("b.csv", "line 3", b'x,"y"\n')],
        "c": [("c.txt", "the whole text", b"sch\xf6n")],
    }
    assert "column 'id' holds 'two'" in refused["a"][0]["reason"]
    assert refused["c"][0]["size_bytes"] == 5


def test_refused_rows_are_bounded_and_go_with_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "REFUSED_ROWS", 3)
    monkeypatch.setattr(imports, "ROW_BYTES", 5)
    folder = written(tmp_path / "in", 2)
    (folder / "1.num").write_text("a bad line\n" * 7 + "5")
    catalog = spiral.connect(tmp_path / "catalog")
    with pytest.warns(spiral.SpiralWarning, match="7 rows could not be read"):
        catalog.register("lines", Lines(str(folder), on_error="skip"), identity="number")

    with pytest.warns(spiral.SpiralWarning, match="7 rows were left out, of which the first 3 of their files are kept"):
        rows = catalog.refused("lines").to_pylist()
    assert [(row["place"], row["data"], row["size_bytes"]) for row in rows] == [
        (f"line {k}", b"a bad", 10) for k in (1, 2, 3)
    ]
    (folder / "1.num").write_text("6")
    catalog.refresh("lines")
    assert catalog.refused("lines").num_rows == 0
    [import_folder] = (catalog.root / IMPORTS).iterdir()
    assert len(list((import_folder / REFUSED).iterdir())) == 1
    catalog.caches(remove_dead=True, older_than=timedelta(0))
    assert list((import_folder / REFUSED).iterdir()) == []


@pytest.mark.parametrize("same_bytes", [True, False])
def test_a_touched_file_keeps_its_rows_where_bytes_are_compared(tmp_path: Path, same_bytes: bool) -> None:
    folder = written(tmp_path / "in", 2, 3)
    catalog = spiral.connect(tmp_path / "catalog")
    identity = spiral.RowIdentity()
    catalog.register("lines", Lines(str(folder)), identity=identity, same_bytes=same_bytes)
    before = catalog.table("lines").to_arrow()
    for _ in range(2):
        os.utime(folder / "1.num", ns=(10**18, 10**18 + len(list(folder.iterdir()))))
        changes = catalog.refresh("lines", same_bytes=same_bytes).changes
        assert bool(changes) is not same_bytes
        assert bool(catalog.table("lines").to_arrow().equals(before)) is same_bytes
        (folder / "more").touch()
    assert reads(folder) == {"0.num": 1, "1.num": 1 if same_bytes else 3}

    (folder / "1.num").write_text("70\n71\n72")
    changes = catalog.refresh("lines", same_bytes=same_bytes).changes
    assert changes is not None
    assert changes.changed == ("1.num",)
