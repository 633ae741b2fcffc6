"""Google Cloud Storage, by its XML interface in front of moto: conditions of puts, tables, and a stream that lies there."""

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.errors import SourceError
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.open import store_of
from spiral_stream.storage.profiles import options_of
from tests.fixtures import gcs_front, stores, streams
from tests.stream.sources.test_remote import need_same, rows_of


@pytest.fixture(scope="module")
def address(s3_endpoint: str) -> Iterator[str]:
    with gcs_front.gcs_front(s3_endpoint) as found:
        yield found


@pytest.fixture
def place(s3_endpoint: str, address: str) -> Iterator[str]:
    """The URI of an empty bucket."""
    uri = f"gs://{stores.new_bucket(s3_endpoint)}"
    use_storage("google", prefix=uri, **gcs_front.options(address))
    yield uri
    use_storage("google", prefix=uri)


def test_of_two_puts_under_one_condition_one_holds(place: str) -> None:
    store, _ = store_of(place)
    first = store.put("a/é b.bin", b"12345", absent=True)
    assert first is not None
    assert first.version is not None
    assert store.put("a/é b.bin", b"2", absent=True) is None
    assert store.put("a/é b.bin", b"678", unchanged=first) is not None
    assert store.put("a/é b.bin", b"9", unchanged=first) is None
    assert store.put("none", b"9", unchanged=first) is None
    assert bytes(store.get("a/é b.bin", 1, 2).data or b"") == b"78"
    [(name, facts)] = store.list("a/")
    assert (name, facts.size, facts.mark) == ("a/é b.bin", 3, store.stat("a/é b.bin").mark)
    store.delete("a/é b.bin")
    store.delete("a/é b.bin")
    with pytest.raises(NotThereError, match=rf"{place}/a/é b\.bin: there is no such object"):
        store.stat("a/é b.bin")


def test_a_large_file_is_put_in_parts(place: str, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(20 << 20))
    store, _ = store_of(place)
    store.put_file("large", tmp_path / "large")
    assert bytes(store.get("large").data or b"") == (tmp_path / "large").read_bytes()


def test_tables_have_the_rows_of_local_ones(place: str, tmp_path: Path) -> None:
    table, store = pa.table({"id": range(50), "text": [f"text {at}" for at in range(50)]}), store_of(place)[0]
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "0.tar", "w") as tar:
        for at in range(9):
            info = tarfile.TarInfo(f"{at}.cls")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"%d" % at))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(f"{at},text {at}\n" for at in range(50)))
    lance.write_dataset(table, str(tmp_path / "a.lance"))
    lance.write_dataset(table, f"{place}/a.lance", storage_options=options_of(place))
    for name in ("a.parquet", "a.csv", "tars/0.tar"):
        store.put(name, (tmp_path / name).read_bytes())
    catalog = sp.connect(str(tmp_path / "catalog"))
    for name, kind in (
        ("a.parquet", sp.Parquet),
        ("a.csv", sp.sources.Csv),
        ("tars", sp.sources.WebDataset),
        ("a.lance", sp.Lance),
    ):
        found = []
        for at, where in enumerate((str(tmp_path), place)):
            catalog.register(f"{kind.__name__}{at}", kind(f"{where}/{name}"), identity=sp.RowIdentity())
            found.append(rows_of(catalog, f"{kind.__name__}{at}"))
        assert found[0] == found[1] != []


def test_a_stream_gives_the_batches_of_local_files_and_no_secret_is_told(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, store = streams.images(32), store_of(place)[0]
    (tmp_path / "images").mkdir()
    names = [f"{at:03}.jpg" for at in range(32)]
    for name, data in zip(names, table["image_ref"].to_pylist(), strict=True):
        (tmp_path / "images" / name).write_bytes(data)
        store.put(f"images/{name}", data)

    def read(where: str, catalog: str, machine: str) -> list[Any]:
        monkeypatch.setenv("SPIRAL_CATALOG_MIRROR", str(tmp_path / machine / "mirror"))
        monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / machine / "node"))
        opened = sp.connect(catalog)
        if "images" not in opened.tables():
            rows = table.set_column(2, "image_ref", pa.array([f"{where}/images/{name}" for name in names]))
            if where == place:
                lance.write_dataset(rows, f"{where}/rows.lance", storage_options=options_of(where))
            source = sp.Lance(f"{where}/rows.lance") if where == place else sp.Arrow(rows)
            opened.register("images", source, semantic={"image_ref": "image/jpeg-ref"})
        relation = opened.table("images").cache(image_ref=sp.Raw(shorter_side=40))
        with streams.plan(relation, order=sp.GlobalShuffle(seed=1), batch_size=16).to_numpy() as stream:
            stream.materialize(lambda _: None)
            return list(stream)

    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "caches"))
    local = read(str(tmp_path), str(tmp_path / "catalog"), "here")
    monkeypatch.setenv("SPIRAL_CACHE", f"{place}/prepared")
    for machine in ("one", "two"):
        need_same(read(place, f"{place}/catalog", machine), local)
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    kept += [bytes(store.get(name).data or b"") for name, _ in store.list("")]
    assert not [data for data in kept if stores.SECRET.encode() in data]
    with pytest.raises(SourceError) as caught:
        store_of(f"{place}-none")[0].stat("a")
    assert stores.SECRET not in str(caught.value)
    assert np.asarray(local[0]["image"]).size
