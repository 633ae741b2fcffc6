"""Streams whose payload lies on an object store: the batches of local files, fetched by threads that only wait."""

import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream.runtime.fetch import StreamThreads
from spiral_stream.sources.columnar.parquet import ParquetReader
from spiral_stream.sources.references import objects as asked
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import Store
from tests.fixtures import sounds, stores, streams
from tests.fixtures.waits import FAR_S, until

ROWS = 96


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that read objects that references name."""
    names: list[str] = []

    class Told:
        def __init__(self, store: Store) -> None:
            self._store = store

        def read(self, wanted: Any) -> Any:
            names.append(threading.current_thread().name)
            return self._store.read(wanted)

    monkeypatch.setattr(asked, "payload_store_of", lambda uri: (Told(store_of(uri)[0]), store_of(uri)[1]))
    return names


def put(uri: str, data: bytes) -> str:
    store, key = store_of(uri)
    store.put(key, data)
    return uri


def batches(catalog: sp.Catalog, relation: sp.Relation, field: Any, **how: Any) -> list[dict[str, Any]]:
    plan = relation.sample(identity="sample_id", order=sp.GlobalShuffle(seed=3)).collate(
        batch_size=16, fields={"id": sp.List("sample_id"), "x": field}, **how
    )
    with plan.to_numpy(prefetch=3) as stream:
        return list(stream)


def equal(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert list(one["id"]) == list(other["id"])
        np.testing.assert_array_equal(one["x"], other["x"])


@pytest.fixture
def images(tmp_path: Path, bucket: str) -> dict[str, pa.Table]:
    """The same images inline, as objects of their own, and as ranges of objects that hold many."""
    table = streams.images(ROWS).select(["sample_id", "image_ref"])
    data = table["image_ref"].to_pylist()
    uris = [put(f"{bucket}/one by one/{at:04}.jpg", each) for at, each in enumerate(data)]
    ranges = []
    for first in range(0, ROWS, 32):
        pack, uri = b"", f"{bucket}/packs/{first}.tar"
        for each in data[first : first + 32]:
            ranges.append({"uri": uri, "offset": len(pack) + 512, "length": len(each)})
            pack += bytes(512) + each
        put(uri, pack)
    one = table.drop(["image_ref"])
    return {
        "inline": table,
        "objects": one.append_column("image_ref", pa.array(uris)),
        "ranges": one.append_column("image_ref", pa.array(ranges)),
    }


@pytest.mark.parametrize("form", ["objects", "ranges"])
def test_images_on_s3_are_those_of_local_bytes_and_no_decoding_thread_waits(
    form: str, images: dict[str, pa.Table], tmp_path: Path, readers: list[str]
) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    for name in ("inline", form):
        catalog.register(name, sp.Arrow(images[name]), semantic={"image_ref": "image/jpeg-ref"})
    field = sp.Stack("image_ref", decode="jpeg", transforms=[sp.RandomResizedCrop(size=16)])
    equal(batches(catalog, catalog.table(form), field), batches(catalog, catalog.table("inline"), field))
    assert readers
    assert {name.partition("_")[0] for name in readers} - {"spiral-ahead"} == {"spiral-fetch"}


@pytest.mark.parametrize("length", [None, 5])
def test_lists_of_images_on_s3_are_those_of_local_bytes_and_no_decoding_thread_waits(
    length: int | None, images: dict[str, pa.Table], bucket: str, tmp_path: Path, readers: list[str]
) -> None:
    put(f"{bucket}/broken.jpg", b"no image")
    catalog = sp.connect(str(tmp_path / "catalog"))
    cuts = np.minimum(np.cumsum([0, 0, 0, 0, *([1, 4, 2, 5, 0] * 9)]), ROWS)  # three lists are empty at first
    for name, broken in (
        ("inline", b"no image"),
        ("ranges", {"uri": f"{bucket}/broken.jpg", "offset": 0, "length": 8}),
    ):
        flat = images[name]["image_ref"].to_pylist()
        lists = [flat[a:b] for a, b in pairwise(cuts)]
        lists[6] = [*lists[6][:2], broken]
        rows = pa.table({"sample_id": [f"{at:03}" for at in range(len(lists))], "images": lists})
        catalog.register(name, sp.Arrow(rows), semantic={"images": "image/jpeg-ref"})
    field = sp.Stack("images", decode="jpeg", sequence_length=length, transforms=[sp.RandomResizedCrop(size=16)])
    found, right = (batches(catalog, catalog.table(name), field, on_error="skip") for name in ("ranges", "inline"))
    equal(found, right)
    assert sum(len(batch["id"]) for batch in found) == 47
    assert {name.partition("_")[0] for name in readers} - {"spiral-ahead"} == {"spiral-fetch"}


def test_a_missing_object_is_one_refused_sample(images: dict[str, pa.Table], tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("objects", sp.Arrow(images["objects"]), semantic={"image_ref": "image/jpeg-ref"})
    broken = images["objects"]["image_ref"][5].as_py()
    put(broken, b"no image")
    catalog.refresh("objects")
    field = sp.Stack("image_ref", decode="jpeg", transforms=[sp.transforms.Resize(16), sp.transforms.CenterCrop(16)])
    found = batches(catalog, catalog.table("objects"), field, on_error="skip")
    assert sum(len(batch["id"]) for batch in found) == ROWS - 1


def test_an_object_that_changed_since_registration_is_named(images: dict[str, pa.Table], tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    before = catalog.register("objects", sp.Arrow(images["objects"]), semantic={"image_ref": "image/jpeg-ref"})
    changed = images["objects"]["image_ref"][5].as_py()
    put(changed, bytes(store_of(changed)[0].get(store_of(changed)[1]).data[::-1]))
    field = sp.Stack("image_ref", decode="jpeg", transforms=[sp.transforms.Resize(16), sp.transforms.CenterCrop(16)])
    with pytest.raises(sp.errors.SourceError, match=r"0005\.jpg changed since registration: .* another etag") as caught:
        batches(catalog, catalog.table("objects"), field)
    assert stores.SECRET not in str(caught.value)
    assert catalog.refresh("objects").data_version != before.data_version


def test_sound_on_s3_is_that_of_local_files(tmp_path: Path, bucket: str, readers: list[str]) -> None:
    data = [sounds.recording("wav", 0.3, 300.0 + 40 * at)[0] for at in range(4)]
    table = pa.table({"sample_id": [str(at) for at in range(32)]})
    catalog = sp.connect(str(tmp_path / "catalog"))
    for at, each in enumerate(data):
        put(f"{bucket}/{at}.wav", each)
    uris = pa.array([f"{bucket}/{at % 4}.wav" for at in range(32)])
    inline = pa.array([data[at % 4] for at in range(32)])
    for name, column in (("remote", uris), ("local", inline)):
        catalog.register(name, sp.Arrow(table.append_column("sound", column)), semantic={"sound": "audio/ref"})
    field = sp.Stack("sound", decode="audio", sample_rate=8000, sequence_length=1600)
    equal(batches(catalog, catalog.table("remote"), field), batches(catalog, catalog.table("local"), field))
    assert {name.partition("_")[0] for name in readers} - {"spiral-ahead"} == {"spiral-fetch"}


def test_references_of_a_base_stay_below_it(bucket: str, tmp_path: Path) -> None:
    from spiral_stream.sources.references.policy import Reach, ReferenceSourceError
    from spiral_stream.sources.references.resolve import resolve

    put(f"{bucket}/in/a", b"inside")
    put(f"{bucket}/outside", b"outside")
    reach = Reach(f"{bucket}/in", confined=True)
    assert bytes(resolve(pa.array(["a"]), reach)[0]) == b"inside"
    for name in ("../outside", f"{bucket}/outside", f"{bucket}/in/../outside", "/etc/hostname", "https://host/a"):
        with pytest.raises(ReferenceSourceError, match=r"lies outside|keys with an empty part"):
            resolve(pa.array([name]), reach)
    with pytest.raises(ReferenceSourceError, match=r"lies outside|keys with an empty part"):
        resolve(pa.array([f"{bucket}/in/a"]), Reach(str(tmp_path), confined=True))


def waiting(pool: StreamThreads) -> int:
    """Work that is ready and that no thread has taken."""
    return pool._ready.qsize()


@pytest.mark.parametrize("stopped", [False, True])
def test_what_was_asked_for_first_is_worked_on_first_or_cancelled(stopped: bool) -> None:
    pool, free, first = StreamThreads(1), threading.Event(), threading.Event()
    began = threading.Event()
    worked: list[int] = []

    def hold() -> None:
        began.set()
        free.wait()

    held = pool.submit(hold)
    assert began.wait(FAR_S)
    found = [pool.submit_after(partial(fetched, number, first), worked.append) for number in range(4)]
    until(lambda: waiting(pool) == 3)
    first.set()
    until(lambda: waiting(pool) == 4)
    if stopped:
        pool.stop()
    free.set()
    held.result(FAR_S)
    if stopped:
        assert all(each.cancelled() for each in found)
        assert worked == []
    else:
        for each in found:
            each.result(FAR_S)
        assert worked == [0, 1, 2, 3]
        pool.stop()
    assert waiting(pool) == 0


def fetched(number: int, first: threading.Event) -> int:
    if not number:
        first.wait()
    return number


def test_of_a_union_of_tables_on_s3_no_decoding_thread_waits(
    images: dict[str, pa.Table], bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    fetch = ParquetReader.fetch

    def told(self: ParquetReader, rows: Any, columns: Any) -> pa.Table:
        if "image_ref" in columns:
            names.append(threading.current_thread().name)
        return fetch(self, rows, columns)

    monkeypatch.setattr(ParquetReader, "fetch", told)
    pq.write_table(images["inline"], tmp_path / "rows.parquet", row_group_size=16)
    put(f"{bucket}/rows.parquet", (tmp_path / "rows.parquet").read_bytes())
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Parquet(f"{bucket}/rows.parquet"), semantic={"image_ref": "image/jpeg-ref"})
    rows, half = catalog.table("rows"), images["inline"]["sample_id"][ROWS // 2].as_py()
    both = rows.filter(sp.col("sample_id") < half).union(rows.filter(sp.col("sample_id") >= half))
    field = sp.Stack("image_ref", decode="jpeg", transforms=[sp.transforms.Resize(16), sp.transforms.CenterCrop(16)])
    equal(batches(catalog, both, field), batches(catalog, rows, field))
    assert names
    assert {name.partition("_")[0] for name in names} - {"spiral-ahead"} == {"spiral-fetch"}


def test_of_what_the_loop_does_not_wait_for_yet_the_bytes_come_with_what_lies_around() -> None:
    pool, lock, begun, on_its_way = StreamThreads(1), threading.Lock(), list[int](), [True]
    fetched: list[int] = []

    def near(number: int) -> Any:
        with lock:
            begun.append(number)
        return lambda: on_its_way[0]

    def fetch(number: int) -> int:
        with lock:
            fetched.append(number)
        return number

    def batch(first: int) -> list[Any]:
        pool.begin()
        numbers = range(first, first + 6)
        return [pool.submit_after(partial(fetch, each), worked.append, partial(near, each)) for each in numbers]

    worked: list[int] = []
    try:
        found = batch(0)
        pool.want()
        found += batch(6) + batch(12)
        until(lambda: set(begun) >= set(range(12)))
        assert sorted(fetched) == list(range(6))
        pool.want()
        until(lambda: sorted(fetched) == list(range(12)))
        on_its_way[0] = False
        for each in found:
            each.result(FAR_S)
        assert sorted(begun) == sorted(worked) == list(range(18))
    finally:
        pool.stop()
