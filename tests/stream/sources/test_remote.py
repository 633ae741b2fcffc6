"""Tables on an object store give what the same files on disk give, bit for bit; a changed object is named."""

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream.errors import SourceError
from spiral_stream.storage.open import store_of
from spiral_stream.storage.profiles import options_of
from tests.fixtures import stores, streams


def put_all(folder: Path, uri: str) -> None:
    store, key = store_of(uri)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put(f"{key}/{path.relative_to(folder)}", path.read_bytes())


def facts(catalog: sp.Catalog, name: str) -> list[Any]:
    catalog.measure(name)
    plan = streams.plan(catalog.table(name), order=sp.ShardAwareShuffle(seed=3, shuffle_block_size=50))
    with plan.to_numpy(prefetch=2) as stream:
        return list(stream)


def need_same(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for name in one:
            np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]))


@pytest.fixture
def table() -> pa.Table:
    return streams.images(96)


def test_parquet_on_s3_streams_like_local_files(table: pa.Table, tmp_path: Path, bucket: str) -> None:
    for part in range(3):
        (tmp_path / "files" / f"half={part % 2}").mkdir(parents=True, exist_ok=True)
        file = tmp_path / "files" / f"half={part % 2}" / f"part-{part}.parquet"
        pq.write_table(table.slice(part * 32, 32), file, row_group_size=10)
    put_all(tmp_path / "files", f"{bucket}/pre fix")
    catalog = sp.connect(str(tmp_path / "catalog"))
    found = {}
    places = {
        "local": str(tmp_path / "files"),
        "folder": f"{bucket}/pre fix",
        "glob": f"{bucket}/pre fix/**/part-*.parquet",
    }
    for name, path in places.items():
        catalog.register(name, sp.Parquet(path), semantic={"image_ref": "image/jpeg-ref"})
        found[name] = facts(catalog, name)
    need_same(found["folder"], found["local"])
    need_same(found["glob"], found["local"])
    some = sp.col("label_id") < 2
    ids = [catalog.table(name).filter(some).project("sample_id", "half").to_arrow() for name in ("local", "folder")]
    assert ids[0].equals(ids[1])
    with pytest.raises(sp.errors.SourceError, match=r"there is no \*\.parquet at or below"):
        catalog.register("none", sp.Parquet(f"{bucket}/pre fi"))


@pytest.mark.parametrize("kept", [False, True])
def test_a_parquet_object_that_is_exchanged_is_named(
    kept: bool, table: pa.Table, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "node") if kept else "off")
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    store, key = store_of(f"{bucket}/a.parquet")
    store.put(key, (tmp_path / "a.parquet").read_bytes())
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Parquet(f"{bucket}/a.parquet"), semantic={"image_ref": "image/jpeg-ref"})
    plan = streams.plan(catalog.table("rows"))
    with plan.to_numpy(prefetch=1) as stream:
        each = iter(stream)
        next(each)
        pq.write_table(table.slice(0, 95), tmp_path / "a.parquet", row_group_size=10)
        store.put(key, (tmp_path / "a.parquet").read_bytes())
        if kept:  # its bytes of the registration are on the node
            assert len(list(each)) == 5
        else:
            with pytest.raises(sp.errors.SourceError, match=r"a\.parquet changed while it is being read"):
                list(each)
    with pytest.raises(sp.errors.SourceError, match="since registration"), plan.to_numpy() as stream:
        list(stream)


def test_vortex_on_s3_streams_like_local_files(table: pa.Table, tmp_path: Path, bucket: str) -> None:
    vortex = pytest.importorskip("vortex")
    (tmp_path / "files" / "more").mkdir(parents=True)
    for part, name in enumerate(("a", "b", "more/c")):
        vortex.io.write(table.slice(part * 32, 32), str(tmp_path / "files" / f"{name}.vortex"))
    put_all(tmp_path / "files", f"{bucket}/pre fix")
    catalog = sp.connect(str(tmp_path / "catalog"))
    found = {}
    for name, path in {"local": str(tmp_path / "files"), "remote": f"{bucket}/pre fix"}.items():
        source = sp.sources.Vortex(path, base=str(tmp_path))
        catalog.register(name, source, identity="sample_id", semantic={"image_ref": "image/jpeg-ref"})
        found[name] = facts(catalog, name)
    need_same(found["remote"], found["local"])
    some = sp.col("label_id") < 2
    ids = [catalog.table(name).filter(some).project("sample_id").to_arrow() for name in ("local", "remote")]
    assert ids[0].equals(ids[1])


def test_a_vortex_object_that_is_exchanged_or_cut_or_gone_is_named(
    table: pa.Table, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vortex = pytest.importorskip("vortex")
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")
    uri, file = f"{bucket}/a.vortex", tmp_path / "a.vortex"
    vortex.io.write(table, str(file))
    store, key = store_of(uri)
    store.put(key, file.read_bytes())
    with sp.sources.Vortex(uri).open() as reader:
        vortex.io.write(table.slice(0, 95), str(file))
        store.put(key, file.read_bytes())
        with pytest.raises(SourceError, match=r"a\.vortex changed while it is being read"):
            reader.fetch(np.arange(90, dtype=np.uint64), ["sample_id"])
        store.delete(key)
        with pytest.raises(SourceError, match=r"a\.vortex: there is no such object"):
            list(reader.scan(["image_ref"]))
    store.put(key, file.read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"Vortex file s3://.*a\.vortex: .*Check that the file is whole"):
        sp.sources.Vortex(uri).open()


def test_lance_on_s3_streams_like_a_local_dataset(table: pa.Table, tmp_path: Path, bucket: str) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    lance.write_dataset(table, str(tmp_path / "a.lance"), max_rows_per_file=24)
    lance.write_dataset(table, f"{bucket}/a.lance", max_rows_per_file=24, storage_options=options_of(bucket))
    found = {}
    for name, uri in {"local": str(tmp_path / "a.lance"), "remote": f"{bucket}/a.lance"}.items():
        catalog.register(name, sp.Lance(uri), semantic={"image_ref": "image/jpeg-ref"})
        found[name] = facts(catalog, name)
    need_same(found["remote"], found["local"])


def test_no_secret_is_kept_or_shown_anywhere(
    table: pa.Table, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "prepared"))
    lance.write_dataset(table, f"{bucket}/a.lance", max_rows_per_file=24, storage_options=options_of(bucket))
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Lance(f"{bucket}/a.lance"), semantic={"image_ref": "image/jpeg-ref"})
    catalog.measure("rows")
    plan = streams.plan(catalog.table("rows"))
    catalog.save_stream("train", plan.to_numpy())
    with plan.to_numpy() as stream:
        next(iter(stream))
        said = [str(stream.explain()), str(stream.state_dict()), str(stream.metrics), repr(stream), repr(plan)]
    for name in ("sp", "nothing"):
        with pytest.raises(sp.SpiralError) as caught:
            catalog.register(name, sp.Lance(f"{bucket}/{name}.lance"))
        said.append(str(caught.value))
    for uri in (f"https://me:{stores.SECRET}@host/a", f"https://host/a.parquet?sig={stores.SECRET}"):
        with pytest.raises(sp.errors.SourceError):
            sp.Parquet(uri)
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    texts = [each.encode() for each in [*said, *capfd.readouterr()]]
    for secret in (stores.SECRET.encode(), stores.KEY_ID.encode()):
        assert not [data for data in (*kept, *texts) if secret in data]


def rows_of(catalog: sp.Catalog, name: str) -> list[dict[str, Any]]:
    found = catalog.table(name).to_arrow()
    return found.select([each for each in found.schema.names if "row_id" not in each]).to_pylist()


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_text_tables_on_s3_import_like_local_files(kind: str, tmp_path: Path, bucket: str) -> None:
    (tmp_path / "files").mkdir()
    for part in range(2):
        values = [(at, f"text {at}") for at in range(part * 40, part * 40 + 40)]
        if kind == "csv":
            lines = ["n,text", *(f"{n},{text}" for n, text in values)]
            (tmp_path / "files" / f"{part}.csv").write_text("\n".join(lines))
        else:
            lines = [f'{{"n": {n}, "text": "{text}"}}' for n, text in values]
            (tmp_path / "files" / f"{part}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    put_all(tmp_path / "files", f"{bucket}/texts")
    catalog = sp.connect(str(tmp_path / "catalog"))
    source = sp.sources.Csv if kind == "csv" else sp.sources.Jsonl
    for name, path in (("local", str(tmp_path / "files")), ("remote", f"{bucket}/texts")):
        catalog.register(name, source(path), identity=sp.RowIdentity())
    assert rows_of(catalog, "remote") == rows_of(catalog, "local")
    assert len(rows_of(catalog, "remote")) == 80


@pytest.mark.parametrize("packed", [False, True])
def test_tars_on_s3_stream_like_local_tars(packed: bool, table: pa.Table, tmp_path: Path, bucket: str) -> None:
    (tmp_path / "tars").mkdir()
    for part in range(2):
        with tarfile.open(tmp_path / "tars" / f"{part}.tar{'.gz' * packed}", "w:gz" if packed else "w") as tar:
            for at in range(part * 20, part * 20 + 20):
                for suffix, data in (("jpg", table["image_ref"][at].as_py()), ("cls", str(at).encode())):
                    info = tarfile.TarInfo(f"{at:04}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    put_all(tmp_path / "tars", f"{bucket}/tars")
    catalog = sp.connect(str(tmp_path / "catalog"))
    found = {}
    for name, path in (("local", str(tmp_path / "tars")), ("remote", f"{bucket}/tars")):
        catalog.register(name, sp.sources.WebDataset(path), identity=sp.RowIdentity())
        image = sp.Stack("jpg", decode="jpeg", transforms=[sp.transforms.Resize(16), sp.transforms.CenterCrop(16)])
        plan = (
            catalog.table(name)
            .sample(order=sp.Sequential())
            .collate(batch_size=8, fields={"x": image, "y": sp.Stack("cls")})
        )
        with plan.to_numpy() as stream:
            found[name] = list(stream)
    need_same(found["remote"], found["local"])
    assert len(found["local"]) == 5


def test_sidecars_of_tars_on_s3_stream_like_local_ones(table: pa.Table, tmp_path: Path, bucket: str) -> None:
    for part in range(2):
        for kind, fields in (("images", ("jpg", "cls")), ("masks", ("png",))):
            (tmp_path / "set" / kind).mkdir(parents=True, exist_ok=True)
            with tarfile.open(tmp_path / "set" / kind / f"{part}.tar", "w") as tar:
                for at in range(part * 8, part * 8 + 8):
                    for suffix in fields:
                        data = str(at).encode() if suffix == "cls" else table["image_ref"][at].as_py()
                        info = tarfile.TarInfo(f"{at:04}.{suffix}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
    put_all(tmp_path / "set", f"{bucket}/set")
    catalog = sp.connect(str(tmp_path / "catalog"))
    found = {}
    sidecars = {"mask": ("/images/", "/masks/")}
    for name, path in (("local", str(tmp_path / "set")), ("remote", f"{bucket}/set")):
        catalog.register(
            name, sp.sources.WebDataset(f"{path}/images/*.tar", sidecars=sidecars), identity=sp.RowIdentity()
        )
        found[name] = rows_of(catalog, name)
        fields = {each: sp.List(each) for each in ("jpg", "mask_png", "cls")}
        with (
            catalog.table(name).sample(order=sp.Sequential()).collate(batch_size=16, fields=fields).to_numpy() as stream
        ):
            [batch] = list(stream)
        found[f"{name} bytes"] = [batch["jpg"], batch["mask_png"]]
    assert found["remote"] == found["local"]
    assert found["remote bytes"] == found["local bytes"]
    for pair, wrong in {
        ("/images/", "/none/"): "would be .*there is no such object",
        (bucket, f"{bucket}2"): "lie in different buckets",
    }.items():
        source = sp.sources.WebDataset(f"{bucket}/set/images/*.tar", sidecars={"mask": pair})
        with pytest.raises(sp.errors.SourceError, match=wrong):
            catalog.register("none", source, identity=sp.RowIdentity())
