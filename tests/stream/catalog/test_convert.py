"""Rows of any source are copied once, in their order, and a second call goes on where one was killed."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

import spiral_stream as sp
from spiral_stream.catalog import convert as room
from spiral_stream.catalog.convert import convert
from spiral_stream.commands.cli import app
from spiral_stream.errors import SourceError
from spiral_stream.semantic import JPEG_REF, semantic_of, with_semantic
from spiral_stream.sources import ROW
from spiral_stream.sources.lance import fragments as lance_append
from spiral_stream.sources.serialize import library_kinds
from spiral_stream.sources.writing import destinations as targets
from spiral_stream.storage.open import store_of
from tests.fixtures import stores, warm
from tests.fixtures.every_source import made
from tests.fixtures.lines import Lines
from tests.fixtures.waits import FAR_S, once

ROWS = 50  # of a file


def write(folder: Path, files: int, first: int = 0) -> sp.Parquet:
    folder.mkdir(exist_ok=True)
    for k in range(first, first + files):
        table = pa.table({"n": range(ROWS * k, ROWS * (k + 1)), "text": [f"t{n}" for n in range(ROWS)]})
        pq.write_table(table, folder / f"{k:03d}.parquet", row_group_size=9)
    return sp.Parquet(str(folder))


def numbers(place: Path) -> list[int]:
    found: list[int] = lance.dataset(str(place)).to_table(columns=["n"])["n"].to_pylist()
    return found


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_are_copied_in_the_order_of_the_source(tmp_path: Path, workers: int) -> None:
    said: list[tuple[int, int]] = []
    source, place = write(tmp_path / "in", 5), tmp_path / "out.lance"
    done = convert(source, str(place), workers=workers, report=lambda *each: said.append(each))

    assert numbers(place) == list(range(5 * ROWS))
    assert (done.rows, done.shards) == (5 * ROWS, 5)
    assert said == [(ROWS * k, 5 * ROWS) for k in range(6)]
    assert names(place) == {"_transactions", "_versions", "data"}


def test_a_second_call_adds_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    place = tmp_path / "out.lance"
    convert(write(tmp_path / "in", 3), str(place))
    again = convert(sp.Parquet(str(tmp_path / "in")), str(place))
    more = convert(write(tmp_path / "in", 2, first=3), str(place))

    assert (again.rows, again.shards, more.rows) == (0, 0, 2 * ROWS)
    assert numbers(place) == list(range(5 * ROWS))


def test_a_moved_source_is_the_same(tmp_path: Path) -> None:
    convert(write(tmp_path / "in", 2), str(tmp_path / "out.lance"))
    (tmp_path / "in").rename(tmp_path / "moved")

    assert convert(sp.Parquet(str(tmp_path / "moved")), str(tmp_path / "out.lance")).rows == 0


def test_a_changed_file_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    source, place = write(tmp_path / "in", 2), tmp_path / "out.lance"
    convert(source, str(place))
    os.utime(tmp_path / "in" / "001.parquet", ns=(1, 1))
    with pytest.raises(
        SourceError, match=r"files changed since .* rows would be there twice\. Convert to another folder"
    ):
        convert(source, str(place))

    assert numbers(place) == list(range(2 * ROWS))
    assert names(place) == {"_transactions", "_versions", "data"}


def test_two_sources_go_into_one_dataset(tmp_path: Path) -> None:
    place = tmp_path / "out.lance"
    for name, first in (("a", 0), ("b", 1)):
        lance.write_dataset(
            write(tmp_path / name, 1, first).open().fetch([0, 1], ["n", "text"]), tmp_path / f"{name}.lance"
        )
        assert convert(sp.Lance(str(tmp_path / f"{name}.lance")), str(place)).rows == 2

    assert numbers(place) == [0, 1, ROWS, ROWS + 1]


def test_other_columns_are_refused_before_anything_is_copied(tmp_path: Path) -> None:
    place = tmp_path / "out.lance"
    convert(write(tmp_path / "in", 1), str(place))
    with pytest.raises(SourceError, match="column 'n' is int64, in the rows to write it is not there"):
        convert(sp.Arrow(pa.table({"x": [1]})), str(place))

    assert names(place) == {"_transactions", "_versions", "data"}


def test_shards_have_about_the_bytes_asked_for(tmp_path: Path) -> None:
    rows = pa.table({"data": [bytes(1000)] * 100})
    done = convert(sp.Arrow(rows), str(tmp_path / "out.lance"), shard_bytes=10_000)

    assert 9 <= done.shards <= 11


def test_files_that_are_imported_are_converted_too(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for k in range(3):
        (tmp_path / "in" / f"{k}.num").write_text("\n".join(str(10 * k + n) for n in range(10)))
    done = convert(Lines(str(tmp_path / "in")), str(tmp_path / "out.lance"))
    rows = lance.dataset(str(tmp_path / "out.lance")).to_table()

    assert done.rows == 30
    assert rows["number"].to_pylist() == list(range(30))
    assert rows["__file__"].to_pylist()[::10] == ["0.num", "1.num", "2.num"]
    assert names(tmp_path / "out.lance") == {"_transactions", "_versions", "data"}
    assert convert(Lines(str(tmp_path / "in")), str(tmp_path / "out.lance")).rows == 0


@pytest.mark.parametrize("kind", sorted(library_kinds()))
def test_every_source_of_the_library_is_converted(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source, place = made(kind, tmp_path / "in"), tmp_path / "out.lance"
    entry = sp.connect(str(tmp_path / "catalog")).register("t", source, identity=sp.RowIdentity())
    done = convert(source, str(place))
    with entry.source.open() as reader, sp.Lance(str(place)).open() as copy:
        columns = [field.name for field in reader.schema if semantic_of(field) is None]
        theirs = pa.Table.from_batches(reader.scan(columns)).drop_columns([ROW])
        ours = pa.Table.from_batches(copy.scan(columns)).drop_columns([ROW])

    assert done.rows == len(theirs) > 0
    assert repr(ours.to_pylist()) == repr(theirs.to_pylist())
    assert convert(source, str(place)).rows == 0


def jpeg(grey: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (16, 16), grey).save(out, "jpeg")
    return out.getvalue()


@pytest.mark.parametrize("workers", [1, 2])
def test_images_of_a_folder_come_along_and_are_decoded(tmp_path: Path, workers: int, caches: Path) -> None:
    for name, grey in (("a", 10), ("b", 200)):
        (tmp_path / "in" / name).mkdir(parents=True)
        for k in range(70):
            (tmp_path / "in" / name / f"{k:02d}.jpg").write_bytes(jpeg(grey))
    convert(sp.ImageFolder(str(tmp_path / "in")), str(tmp_path / "out.lance"), workers=workers)
    for path in (tmp_path / "in").rglob("*.jpg"):
        path.unlink()
    catalog = sp.connect(str(tmp_path / "catalog"))
    entry = catalog.register("images", sp.Lance(str(tmp_path / "out.lance")))
    fields = {"x": sp.Stack("image_ref", decode="image"), "label": sp.List("label_id")}
    with (
        catalog.table("images")
        .sample(order=sp.Sequential())
        .collate(batch_size=140, fields=fields)
        .to_numpy() as stream
    ):
        [batch] = list(stream)

    assert entry.schema.field("image_ref").type == pa.large_binary()
    assert batch["label"] == [0] * 70 + [1] * 70
    assert [int(each.mean()) for each in batch["x"][[0, 139]]] == [10, 200]


def test_references_in_lists_and_byte_ranges_and_nulls_become_bytes(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"0123456789")
    where = pa.struct([("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int64())])
    part = [{"uri": "bytes", "offset": 2, "length": 3}, None, {"uri": "bytes", "offset": 0, "length": 1}]
    schema = with_semantic(pa.schema([("part", where), ("whole", pa.utf8())]), {"part": JPEG_REF, "whole": JPEG_REF})
    rows = pa.table({"part": part, "whole": ["bytes", None, "bytes"]}, schema=schema)
    convert(sp.Arrow(rows, base=str(tmp_path)), str(tmp_path / "out.lance"))

    assert lance.dataset(str(tmp_path / "out.lance")).to_table().to_pydict() == {
        "part": [b"234", None, b"0"],
        "whole": [b"0123456789", None, b"0123456789"],
    }


def test_a_missing_file_is_named_and_nothing_is_visible(tmp_path: Path) -> None:
    schema = with_semantic(pa.schema([("image", pa.utf8())]), {"image": JPEG_REF})
    with pytest.raises(SourceError, match=r"gone\.jpg"):
        convert(
            sp.Arrow(pa.table({"image": ["gone.jpg"]}, schema=schema), base=str(tmp_path)), str(tmp_path / "o.lance")
        )

    assert not (tmp_path / "o.lance" / "_versions").exists()


RUN = "from spiral_stream.commands.cli import main; main()"
SLOW = """
import sys
import time
from spiral_stream.catalog import convert as room
from spiral_stream.commands.cli import main

inlined = room.inlined
def slowly(*args):
    time.sleep(0.02)
    yield from inlined(*args)
room.inlined = slowly
main()
"""


@pytest.mark.parametrize("moment", [1, *(pytest.param(k, marks=pytest.mark.slow) for k in range(2, 20))])
def test_a_killed_conversion_goes_on_and_nothing_is_there_twice(tmp_path: Path, moment: int) -> None:
    write(tmp_path / "in", 12)
    place, draw = tmp_path / "out.lance", random.Random(moment)
    arguments = ["convert", str(tmp_path / "in"), str(place)]
    with warm.Popen([sys.executable, "-c", SLOW, *arguments], stderr=subprocess.PIPE) as child:
        staged: list[Path] = []
        while len(staged) < 1 and child.poll() is None:
            staged = list(place.glob("_drafts/staged-*"))
            time.sleep(0.005)
        time.sleep(draw.random() * 0.8)
        child.send_signal(signal.SIGKILL)
        child.communicate()
    kept = {path.name: path.stat().st_ino for path in place.glob("_drafts/staged-*/data/*")}
    warm.run([sys.executable, "-c", RUN, *arguments, "--workers", str(1 + moment % 2)], check=True, timeout=280)

    assert numbers(place) == list(range(12 * ROWS))
    assert names(place) == {"_transactions", "_versions", "data"}
    assert kept.items() <= {path.name: path.stat().st_ino for path in (place / "data").iterdir()}.items()


class Killed(BaseException):
    """Ends a conversion as a signal does."""


def die(*_: Any) -> Any:
    raise Killed


@pytest.mark.parametrize("moment", ["append", "taken_back"])
def test_a_conversion_that_dies_while_it_publishes_goes_on(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, place = write(tmp_path / "in", 3), tmp_path / "out.lance"
    with monkeypatch.context() as patch:
        if moment == "append":
            patch.setattr("spiral_stream.sources.writing.destinations.append", die)
        else:
            patch.setattr(room, "taken_back", die)
        with pytest.raises(Killed):
            convert(source, str(place))
    convert(source, str(place))

    assert numbers(place) == list(range(3 * ROWS))
    assert names(place) == {"_transactions", "_versions", "data"}


def test_the_command_converts_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "in", 2)
    arguments = ["convert", str(tmp_path / "in"), str(tmp_path / "out.lance")]

    assert "out.lance: 100 rows in 2 shards added" in CliRunner().invoke(app, arguments).output
    assert "it has all rows of" in CliRunner().invoke(app, arguments).output


def on_store(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str = "one") -> str:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / machine / "node"))
    return f"{bucket}/out.lance"


def stored(uri: str) -> list[int]:
    """The rows, when each file is named by the newest version and nothing else lies there."""
    store, key = store_of(f"{uri}/")
    found = lance_append.present(uri)
    assert found is not None
    data = {name.rpartition("/")[2] for name, _ in store.list(key) if "/data/" in name}
    assert data == found.files
    assert {name[len(key) :].partition("/")[0] for name, _ in store.list(key)} == {"_transactions", "_versions", "data"}
    with sp.Lance(uri).open() as reader:
        return [n for batch in reader.scan(["n"]) for n in batch["n"].to_pylist()]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_source_is_copied_to_an_object_store(
    bucket: str, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, source = on_store(bucket, tmp_path, monkeypatch), write(tmp_path / "in", 3)
    done = convert(source, uri, workers=workers)
    again = convert(source, uri)
    write(tmp_path / "in", 1, first=3)

    assert (done.rows, done.shards, again.rows) == (3 * ROWS, 3, 0)
    assert (
        "out.lance: 50 rows in 1 shards added" in CliRunner().invoke(app, ["convert", str(tmp_path / "in"), uri]).output
    )
    assert stored(uri) == list(range(4 * ROWS))
    assert list((tmp_path / "one" / "writing").glob("*/*")) == []


def test_a_conversion_that_dies_while_it_puts_goes_on_and_puts_nothing_twice(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(self: Any, key: str, path: Path) -> None:
        if len(put) == 2:
            raise Killed
        put_file(self, key, path)
        put.append(key)

    uri, source = on_store(bucket, tmp_path, monkeypatch), write(tmp_path / "in", 4)
    kind, put = type(store_of(uri)[0]), list[str]()
    put_file = kind.put_file
    monkeypatch.setattr(targets, "FILES", 1)
    monkeypatch.setattr(kind, "put_file", counted)
    with pytest.raises(Killed):
        convert(source, uri)
    assert lance_append.present(uri) is None
    copied = list((tmp_path / "one" / "writing").glob("*/_drafts/staged-*"))
    assert len(copied) >= 3
    assert (
        len([path for part in copied for path in part.glob("data/*")]) == len(copied) - 2
    )  # what is put takes no disk
    put.append("")  # so that it is not killed again
    convert(source, uri)

    assert len(put) == len(set(put)) == 4 + 1
    assert stored(uri) == list(range(4 * ROWS))


CONVERT = """
import sys, warnings
import spiral_stream as sp
from spiral_stream.catalog.convert import convert

warnings.simplefilter("ignore")
print(convert(sp.sources.declared_source({"kind": sys.argv[1], "path": sys.argv[2]}), sys.argv[3]).rows)
"""


@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("to_store", [False, True])
def test_several_that_convert_the_same_at_once_all_succeed_and_add_it_once(
    kind: str, to_store: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """On this machine, and on a store, where each process is a machine of its own."""
    source, place = tmp_path / "in", str(tmp_path / "out.lance")
    write(source, 6)
    if kind == "jsonl":
        for path in list(source.iterdir()):
            lines = [json.dumps(row) for row in pq.read_table(path).to_pylist()]
            path.with_suffix(".jsonl").write_text("\n".join(lines))
            path.unlink()
    environment = dict(os.environ)
    if to_store:
        place = f"{request.getfixturevalue('bucket')}/out.lance"
        options = stores.options(request.getfixturevalue("s3_endpoint"))
        lines = [f'{name} = "{value}"' for name, value in options.items()]
        (tmp_path / "profiles.toml").write_text("\n".join(["[tests]", 'prefix = "s3://"', *lines]))
        environment["SPIRAL_STORAGE"] = str(tmp_path / "profiles.toml")
    running = [
        warm.Popen(
            [sys.executable, "-c", CONVERT, kind, str(source), place],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "SPIRAL_NODE_CACHE": str(tmp_path / f"machine-{k if to_store else 0}" / "node")},
        )
        for k in range(3)
    ]
    said = [process.communicate(timeout=200) for process in running]

    assert [process.returncode for process in running] == [0, 0, 0], said
    assert sorted(int(out) for out, _ in said) == [0, 0, 6 * ROWS]
    if to_store:
        assert stored(place) == list(range(6 * ROWS))
    else:
        assert numbers(Path(place)) == list(range(6 * ROWS))
        assert names(Path(place)) == {"_transactions", "_versions", "data"}


def test_who_waits_for_another_conversion_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, place = write(tmp_path / "in", 2), tmp_path / "out.lance"
    begun, go_on = threading.Event(), threading.Event()
    copy = room.copy_unit

    def held(*args: Any) -> None:
        begun.set()
        go_on.wait()
        copy(*args)

    monkeypatch.setattr(room, "copy_unit", held)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(convert, source, str(place))
        assert begun.wait(FAR_S)
        words = r"another process copies the same rows to .*out\.lance"
        with pytest.warns(sp.SpiralWarning, match=words) as said, once(lambda: said.list, go_on.set):
            added = pool.submit(convert, source, str(place)).result().rows
        assert first.result().rows == 2 * ROWS
    assert added == 0


@pytest.mark.parametrize("files", ["", "000.parquet"])
def test_two_machines_that_convert_the_same_files_add_them_once(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str
) -> None:
    def overtaken(*args: Any) -> int:
        if not taken:
            on_store(bucket, tmp_path, monkeypatch, "two")
            taken.append(0)
            taken[0] = convert(sp.Parquet(str(tmp_path / "in" / files)), uri).rows
        return commit(*args)

    uri, source = on_store(bucket, tmp_path, monkeypatch), write(tmp_path / "in", 3)
    monkeypatch.setattr("spiral_stream.keeping.store_leases.DEAD_S", 0.0)  # the first one is taken for dead
    commit, taken = targets.append_alone, list[int]()
    monkeypatch.setattr(targets, "append_alone", overtaken)
    done = convert(source, uri)

    assert taken == [ROWS if files else 3 * ROWS]
    assert done.rows == 3 * ROWS - taken[0]
    assert stored(uri) == list(range(3 * ROWS))
    assert list((tmp_path / "one" / "writing").glob("*/*")) == []


def test_a_part_that_another_process_published_and_is_removing_keeps_its_files(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, source = on_store(bucket, tmp_path, monkeypatch), write(tmp_path / "in", 2)
    with monkeypatch.context() as patch:
        patch.setattr(room, "taken_back", die)
        patch.setattr("spiral_stream.catalog.convert.shutil.rmtree", lambda *_args, **_options: None)
        with pytest.raises(Killed):
            convert(source, uri)
    for mark in (tmp_path / "one" / "writing").glob("*/_drafts/staged-*/committing"):
        mark.unlink()
    convert(source, uri)

    assert stored(uri) == list(range(2 * ROWS))
    assert list((tmp_path / "one" / "writing").glob("*/*")) == []
