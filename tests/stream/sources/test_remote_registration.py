"""Registering files on an object store asks for each of them once, and for many at a time."""

import gzip
import io
import tarfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.catalog.relation import pin as object_looks
from spiral_stream.sources import ImportedSource, Refused
from spiral_stream.sources.files import units as pieces
from spiral_stream.sources.tar.headers import members
from spiral_stream.sources.tar.stream import open_tar
from spiral_stream.storage.local import Memory
from spiral_stream.storage.objects import Objects
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import Get, Got, ObjectStat
from tests.fixtures import stores
from tests.fixtures.fault_proxy import FaultProxy, fault_proxy
from tests.fixtures.waits import FAR_S
from tests.stream.sources.test_remote import put_all, rows_of

MDS = Path(__file__).parents[2] / "data" / "mds"
TARS = 24


@pytest.fixture(autouse=True)
def no_node_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")


@pytest.fixture(scope="module")
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    with fault_proxy(s3_endpoint) as found:
        yield found


@pytest.fixture
def far(s3_endpoint: str, proxy: FaultProxy) -> Iterator[str]:
    """The URI of a new bucket, which is asked through the proxy."""
    uri = f"s3://{stores.new_bucket(s3_endpoint)}"
    use_storage("far", prefix=uri, **stores.options(proxy.address))
    yield uri
    use_storage("far", prefix=uri)


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def put_tars(uri: str) -> None:
    for at in range(TARS):
        files = {f"{at:03}{k}.{kind}": b"%d" % k for k in range(3) for kind in ("bin", "cls")}
        store_of(uri)[0].put(f"tars/{at:03}.tar", tar_of(files))


def asked(proxy: FaultProxy, catalog: sp.Catalog, name: str, source: ImportedSource) -> dict[str, int]:
    """What registering a source asks for."""
    proxy.set()
    catalog.register(name, source, identity=sp.RowIdentity())
    counts = proxy.counts()
    return {method: counts[method] for method in ("GET", "HEAD")}


def test_tars_of_a_folder_cost_one_read_and_one_look_each(
    far: str, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_tars(far)
    catalog, most = sp.connect(str(tmp_path / "catalog")), 16  # tars that the columns are taken from
    of_folder = asked(proxy, catalog, "folder", sp.sources.WebDataset(f"{far}/tars"))
    # a list, columns, rows; a look whether lists are right, one at the folder itself, and the pins of the tars
    assert of_folder == {"GET": 1 + most + TARS, "HEAD": 2 + TARS}
    by_name = asked(proxy, catalog, "names", sp.sources.WebDataset(f"{far}/tars/{{000..{TARS - 1:03}}}.tar"))
    # a look and a list whether the pattern itself is the name of something; the same files: their rows are kept already
    assert by_name == {"GET": 1 + most, "HEAD": 1 + 2 * TARS}
    proxy.set()
    catalog.refresh("folder")
    assert proxy.counts()["requests"] == 3 + TARS
    monkeypatch.setattr(object_looks, "WORTH", TARS)
    proxy.set()
    catalog.refresh("folder")  # the fragments of all tars name them together, so that a list is worth it
    assert proxy.counts()["requests"] == 3 + 2
    assert rows_of(catalog, "folder") == rows_of(catalog, "names")
    assert len(rows_of(catalog, "folder")) == 3 * TARS


def test_text_tables_cost_one_read_each(far: str, proxy: FaultProxy, tmp_path: Path) -> None:
    for at in range(20):
        store_of(far)[0].put(f"csv/{at:02}.csv", b"n,text\n%d,a\n" % at)
        store_of(far)[0].put(f"jsonl/{at:02}.jsonl", b'{"n": %d}\n' % at)
    catalog = sp.connect(str(tmp_path / "catalog"))
    for name, source in (("csv", sp.sources.Csv(f"{far}/csv")), ("jsonl", sp.sources.Jsonl(f"{far}/jsonl"))):
        assert asked(proxy, catalog, name, source) == {"GET": 1 + 16 + 20, "HEAD": 2}
        assert [row["n"] for row in rows_of(catalog, name)] == list(range(20))


def test_mds_shards_cost_one_read_each_and_their_index_one(far: str, proxy: FaultProxy, tmp_path: Path) -> None:
    put_all(MDS / "streams", f"{far}/mds")
    shards = len([*(MDS / "streams").rglob("*.mds*")])
    indexes = len([*(MDS / "streams").rglob("index.json")])
    catalog = sp.connect(str(tmp_path / "catalog"))
    counts = asked(proxy, catalog, "mds", sp.sources.Mds(f"{far}/mds"))
    assert counts["GET"] <= 1 + indexes + 2 * shards  # a list; what columns of JSON hold is seen in some shards
    assert counts["HEAD"] <= shards  # the pins of those whose payload stays there


@pytest.mark.parametrize("kind", ["tar", "csv"])
def test_several_files_are_read_at_a_time(
    kind: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "tar":
        put_tars(bucket)
    else:
        for at in range(TARS):
            store_of(bucket)[0].put(f"csv/{at:03}.csv", b"number\n%d\n" % at)
    read, names = Objects.read, set[str]()
    met = threading.Barrier(4)

    def reading(store: Objects, wanted: Sequence[Get]) -> list[Got | Any]:
        if threading.current_thread().name.startswith(("spiral-import", "spiral-columns")):
            names.add(threading.current_thread().name.rpartition("_")[0])
            met.wait(timeout=FAR_S)  # nobody goes on alone
        return read(store, wanted)

    monkeypatch.setattr(Objects, "read", reading)
    catalog = sp.connect(str(tmp_path / "catalog"))
    source = sp.sources.WebDataset(f"{bucket}/tars") if kind == "tar" else sp.sources.Csv(f"{bucket}/csv")
    catalog.register("rows", source, identity=sp.RowIdentity())
    assert names == {"spiral-import", "spiral-columns"}


def test_many_small_tables_have_the_rows_of_local_ones_and_refuse_the_same(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "FEW_FILES", 8)  # so that they are one unit
    (tmp_path / "files").mkdir()
    for at in range(70):
        wrong = "x" if at % 7 == 3 else at
        (tmp_path / "files" / f"{at:02}.csv.gz").write_bytes(gzip.compress(f"n,m\n{wrong},1\n{at},2\n".encode()))
    put_all(tmp_path / "files", f"{bucket}/files")
    catalog = sp.connect(str(tmp_path / "catalog"))
    refused = {}
    for name, path in (("local", str(tmp_path / "files")), ("remote", f"{bucket}/files")):
        source = sp.sources.Csv(path, schema={"n": "int64", "m": "int64"}, on_error="skip")
        with pytest.warns(sp.SpiralWarning, match="10 rows could not be read"):
            catalog.register(name, source, identity=sp.RowIdentity())
        refused[name] = catalog.refused(name).to_pylist()
    assert refused["remote"] == refused["local"]
    assert len(refused["local"]) == 10
    assert rows_of(catalog, "remote") == rows_of(catalog, "local")
    with pytest.raises(sp.errors.SourceError, match=r"03\.csv\.gz, line 2: column 'n' holds 'x'"):
        catalog.register("strict", sp.sources.Csv(f"{bucket}/files", schema={"n": "int64"}), identity=sp.RowIdentity())


def test_a_tar_is_read_in_few_requests_and_large_members_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[int] = []
    read = Memory.read

    def reading(store: Memory, wanted: Sequence[Get]) -> list[Got | Any]:
        ranges.extend(get.length or 0 for get in wanted)
        return read(store, wanted)

    monkeypatch.setattr(Memory, "read", reading)
    uri = f"memory://{tmp_path.name}"
    for name, size, count, most, part in (("small", 50_000, 600, 8, 1.0), ("large", 3 << 20, 20, 22, 0.1)):
        data = tar_of({f"{at}.bin": bytes(size) for at in range(count)})
        store_of(uri)[0].put(f"{name}.tar", data)
        (tmp_path / f"{name}.tar").write_bytes(data)
        ranges.clear()
        found = {}
        for path in (f"{uri}/{name}.tar", str(tmp_path / f"{name}.tar")):
            with open_tar(path) as tar:
                found[path] = list(members(tar))
        assert len(ranges) <= most
        assert sum(ranges) <= part * len(data)
        one, other = found.values()
        assert one == other
        assert len(one) == count


def test_a_store_whose_lists_say_other_etags_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, found = f"memory://{tmp_path.name}", Memory.list
    for at in range(3):
        store_of(uri)[0].put(f"csv/{at}.csv", b"n\n%d\n" % at)
    right = {unit.name: unit.seen for unit in sp.sources.Csv(f"{uri}/csv/{{0..2}}.csv").import_units()}

    def listing(store: Memory, prefix: str) -> Iterator[tuple[str, ObjectStat]]:
        for key, facts in found(store, prefix):
            yield key, ObjectStat(facts.size, f"{facts.etag}-listed")

    monkeypatch.setattr(Memory, "list", listing)
    units = sp.sources.Csv(f"{uri}/csv").import_units()
    assert {unit.name: unit.seen for unit in units} == right
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.sources.Csv(f"{uri}/csv"), identity=sp.RowIdentity())
    assert catalog.table("rows").to_arrow().num_rows == 3


def test_an_object_that_changes_after_it_was_listed_is_named(bucket: str) -> None:
    store = store_of(bucket)[0]
    store.put("a.tar", tar_of({"1.bin": b"one", "2.bin": b"two"}))
    source = sp.sources.WebDataset(f"{bucket}/a.tar")
    [unit] = source.import_units()
    schema = source.import_schema([unit])
    store.put("a.tar", tar_of({"1.bin": b"one", "2.bin": b"six"}))
    with pytest.raises(sp.errors.SourceError, match=r"a\.tar changed while it is being read"):
        list(source.import_rows(unit, schema, Refused(unit)))
