import io
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

import spiral_stream as spiral
from spiral_stream import col, use_storage
from spiral_stream.errors import SourceError
from spiral_stream.semantic import JPEG_REF, SEMANTIC
from spiral_stream.sources import ROW, HuggingFace, Known, Refused
from spiral_stream.sources.columnar.features import FeaturedReader
from spiral_stream.storage.open import store_of
from spiral_stream.testing import check_source
from tests.fixtures import stores
from tests.fixtures.fault_proxy import fault_proxy
from tests.stream.sources.test_remote import put_all

datasets.disable_progress_bars()


def png(number: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (number, 2 * number, 7)).save(out, "PNG")
    return out.getvalue()


FEATURES = datasets.Features(
    {
        "id": datasets.Value("int64"),
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["cat", "dog"]),
        "image": datasets.Image(),
        "tokens": datasets.List(datasets.Value("int32")),
        "matrix": datasets.Array2D((2, 2), "float32"),
        "day": datasets.Value("date32"),
        "about": {"score": datasets.Value("float64"), "tags": datasets.List(datasets.Value("string"))},
    }
)


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": at,
            "text": None if at == 5 else f"row {at} ü",
            "label": at % 2,
            "image": None if at == 7 else {"bytes": png(at), "path": f"{at}.png"},
            "tokens": list(range(at % 4)),
            "matrix": [[at, 2.0], [3.0, -0.0]],
            "day": date(2020, 1, 1 + at % 28),
            "about": {"score": at / 7, "tags": ["x"] * (at % 3)},
        }
        for at in range(count)
    ]


@pytest.fixture(scope="module")
def written() -> datasets.Dataset:
    return datasets.Dataset.from_list(rows(40), features=FEATURES)


def as_loaded(dataset: datasets.Dataset) -> list[dict[str, Any]]:
    """Rows as ``datasets`` gives them, images as their bytes."""
    plain = dataset.cast_column("image", datasets.Image(decode=False))
    found = []
    for row in plain:
        image = row.pop("image")
        found.append({**row, "image": None if image is None else image["bytes"]})
    return found


def as_read(source: HuggingFace) -> list[dict[str, Any]]:
    with source.open() as reader:
        names = [name for name in reader.schema.names if name != "image_path"]
        found = pa.Table.from_batches(reader.scan(names))
        shuffled = np.random.default_rng(1).permutation(len(found)).astype(np.uint64)
        fetched = reader.fetch(shuffled, names)

        assert found[ROW].to_pylist() == list(range(len(found)))
        assert fetched.equals(found.drop_columns(ROW).take(pa.array(shuffled)))
    return found.drop_columns(ROW).to_pylist()


def test_a_saved_dataset_has_the_rows_that_datasets_loads(written: datasets.Dataset, tmp_path: Path) -> None:
    written.save_to_disk(tmp_path / "saved", num_shards=3)
    source = HuggingFace(str(tmp_path / "saved"))

    assert as_read(source) == as_loaded(datasets.load_from_disk(tmp_path / "saved"))
    with source.open() as reader:
        assert [unit.rows for unit in reader.units()] == [14, 13, 13]
        assert reader.schema.field("matrix").type == pa.list_(pa.list_(pa.float32()))
        assert reader.schema.field("image").metadata == {SEMANTIC: JPEG_REF.encode()}
        assert reader.schema.field("label").metadata == {b"description": b"class label: 0 = cat, 1 = dog"}
        assert reader.fetch(np.array([3], np.uint64), ["image_path"])["image_path"].to_pylist() == ["3.png"]


def test_a_chosen_and_shuffled_dataset_is_saved_with_its_rows_alone(written: datasets.Dataset, tmp_path: Path) -> None:
    chosen = written.shuffle(seed=3).select(range(9))
    chosen.save_to_disk(tmp_path / "saved")

    assert as_read(HuggingFace(str(tmp_path / "saved"))) == as_loaded(chosen)


def test_an_indices_mapping_is_refused(written: datasets.Dataset, tmp_path: Path) -> None:
    written.save_to_disk(tmp_path / "saved")
    state = json.loads((tmp_path / "saved" / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "saved" / "state.json").write_text(json.dumps(state))
    with pytest.raises(SourceError, match=r"has an indices mapping .*flatten_indices\(\)\.save_to_disk"):
        HuggingFace(str(tmp_path / "saved")).open()


def test_one_split_of_a_dataset_dict_is_read(written: datasets.Dataset, tmp_path: Path) -> None:
    both = datasets.DatasetDict(train=written, test=written.select(range(4)))
    both.save_to_disk(tmp_path / "saved")

    assert as_read(HuggingFace(str(tmp_path / "saved"), split="test")) == as_loaded(both["test"])
    with pytest.raises(SourceError, match=r"has several splits: there are train, test. Name one with split="):
        HuggingFace(str(tmp_path / "saved")).open()
    with pytest.raises(SourceError, match="has no split 'dev': there are train, test"):
        HuggingFace(str(tmp_path / "saved"), split="dev").open()
    with pytest.raises(SourceError, match=r"a dataset without splits.*Give no split"):
        HuggingFace(str(tmp_path / "saved" / "train"), split="train").open()


def test_parquet_as_the_hub_has_it_gives_the_same_rows(written: datasets.Dataset, tmp_path: Path) -> None:
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for at in range(2):
        shard = written.shard(2, at, contiguous=True)
        shard.to_parquet(tmp_path / "hub" / "data" / f"train-{at:05d}-of-00002.parquet")
    written.select(range(3)).to_parquet(tmp_path / "hub" / "data" / "test-00000-of-00001-0123456789abcdef.parquet")
    loaded = datasets.load_dataset(str(tmp_path / "hub"), cache_dir=str(tmp_path / "cache"))

    for split in ("train", "test"):
        source = HuggingFace(str(tmp_path / "hub"), split=split)
        assert as_read(source) == as_loaded(loaded[split])
        with source.open() as reader:
            assert reader.schema.field("image").metadata == {SEMANTIC: JPEG_REF.encode()}
            assert reader.schema.field("label").metadata == {b"description": b"class label: 0 = cat, 1 = dog"}


@pytest.mark.parametrize(
    ("files", "split"),
    [
        (["train/0000.parquet", "train/0001.parquet", "test/0000.parquet"], "train"),
        (["train.parquet", "test.parquet"], "train"),
        (["one.parquet", "two.parquet"], None),
    ],
)
def test_other_layouts_of_parquet_have_the_splits_that_datasets_sees(
    files: list[str], split: str | None, tmp_path: Path
) -> None:
    for at, name in enumerate(files):
        path = tmp_path / "hub" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict({"id": [at, -at]}).to_parquet(path)
    loaded = datasets.load_dataset(str(tmp_path / "hub"), cache_dir=str(tmp_path / "cache"))
    with HuggingFace(str(tmp_path / "hub"), split=split).open() as reader:
        found = pa.Table.from_batches(reader.scan(["id"]))

    assert found["id"].to_pylist() == loaded["train"]["id"][:]


def test_several_configurations_are_refused(tmp_path: Path) -> None:
    for name in ("en", "de"):
        (tmp_path / name).mkdir()
        datasets.Dataset.from_dict({"id": [1]}).to_parquet(tmp_path / name / "train-00000-of-00001.parquet")
    with pytest.raises(
        SourceError, match=r"several configurations: de, en\. Give the folder of one: HuggingFace\(.*/de"
    ):
        HuggingFace(str(tmp_path)).open()


def struct(values: list[dict[str, Any] | None]) -> pa.Array:
    return pa.array(values, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


def save(folder: Path, images: list[dict[str, Any] | None], kind: str = "Image") -> HuggingFace:
    """A folder as save_to_disk writes it, of images that it would have embedded."""
    folder.mkdir(parents=True)
    table = pa.table({"id": range(len(images)), "image": struct(images)})
    with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as out:
        out.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"image": {"_type": kind}}}))
    return HuggingFace(str(folder))


def test_images_that_are_paths_become_files_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(9))
    source = save(tmp_path / "saved", [{"bytes": None, "path": str(tmp_path / "x.png")}, None])
    with source.open() as reader:
        assert reader.schema.names == ["id", "image"]
        assert reader.schema.field("image").type == pa.utf8()
        assert reader.fetch(np.array([0, 1], np.uint64), ["image"])["image"].to_pylist() == [
            str(tmp_path / "x.png"),
            None,
        ]


def test_rows_that_hold_bytes_and_rows_that_are_paths_are_refused_together(tmp_path: Path) -> None:
    source = save(tmp_path / "saved", [{"bytes": b"x", "path": "a.png"}, {"bytes": None, "path": "/b.png"}])
    with (
        source.open() as reader,
        pytest.raises(SourceError, match=r"hold their bytes, but one has only the path /b\.png"),
    ):
        reader.fetch(np.array([1], np.uint64), ["image"])


def test_sounds_hold_their_bytes_and_have_no_semantic_type_yet(tmp_path: Path) -> None:
    with save(tmp_path / "saved", [{"bytes": b"RIFF", "path": "a.wav"}], "Audio").open() as reader:
        assert reader.schema.field("image").type == pa.binary()
        assert reader.schema.field("image").metadata is None


def test_conditions_on_stored_and_on_made_columns_find_the_same_rows(written: datasets.Dataset, tmp_path: Path) -> None:
    written.save_to_disk(tmp_path / "saved", num_shards=2)
    with HuggingFace(str(tmp_path / "saved")).open() as reader:
        assert isinstance(reader, FeaturedReader)
        found = pa.Table.from_batches(reader.scan(["id"], ~col("image").is_null() & (col("id") > 5)))
        by_name = pa.Table.from_batches(reader.scan([], col("image_path") == "33.png"))

    assert found["id"].to_pylist() == [at for at in range(40) if at > 5 and at != 7]
    assert by_name[ROW].to_pylist() == [33]


def test_a_registered_dataset_streams_images_and_says_where_rows_come_from(
    written: datasets.Dataset, tmp_path: Path
) -> None:
    written.save_to_disk(tmp_path / "saved", num_shards=2)
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("hf", HuggingFace(str(tmp_path / "saved"), origin=True), identity="id")
    table = catalog.table("hf").filter(~col("image").is_null())
    plan = table.sample(identity="id", order=spiral.GlobalShuffle(seed=1))
    fields = {
        "id": spiral.List("id"),
        "file": spiral.List("__file__"),
        "image": spiral.Stack("image", decode="image", layout="nhwc"),
    }
    with plan.collate(batch_size=39, fields=fields).to_numpy() as stream:
        batch = next(iter(stream))

    assert sorted(batch["id"]) == [at for at in range(40) if at != 7]
    assert [pixels[0, 0].tolist() for pixels in batch["image"]] == [[at, 2 * at, 7] for at in batch["id"]]
    assert set(batch["file"]) == {"data-00000-of-00002.arrow", "data-00001-of-00002.arrow"}


def test_known_files_are_walked_when_they_are_read(written: datasets.Dataset, tmp_path: Path) -> None:
    written.save_to_disk(tmp_path / "saved", num_shards=4)
    source = HuggingFace(str(tmp_path / "saved"))
    with source.open() as reader:
        units = reader.units()
    names, keys = pa.array([unit.name for unit in units]), pa.array([unit.content_key for unit in units])
    known = Known(names, np.array([unit.rows for unit in units], np.uint64), keys)
    with source.open_known(known) as reader:
        assert reader.trusting
        assert reader.fetch(np.array([39], np.uint64), ["id"])["id"].to_pylist() == [39]
    (tmp_path / "saved" / units[2].name).write_bytes((tmp_path / "saved" / units[3].name).read_bytes())
    with source.open_known(known) as reader, pytest.raises(SourceError, match="changed since registration"):
        reader.fetch(np.array([25], np.uint64), ["id"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:200], r"data-00000-of-00002\.arrow: .*Replace the file, or save the dataset again"),
        (lambda data: data[:-8], "without Arrow's mark of an end: it was cut, or not closed"),
        (lambda data: b"", "Replace the file"),
        (lambda data: b"ARROW1\0\0" + data, "an Arrow file with an index at its end"),
    ],
)
def test_a_damaged_file_is_named(damage: Any, message: str, written: datasets.Dataset, tmp_path: Path) -> None:
    written.save_to_disk(tmp_path / "saved", num_shards=2)
    path = tmp_path / "saved" / "data-00000-of-00002.arrow"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SourceError, match=message):
        HuggingFace(str(tmp_path / "saved")).open()


def test_rows_that_were_read_stay_when_their_file_is_cut(tmp_path: Path) -> None:
    source = save(tmp_path / "saved", [{"bytes": b"x" * 100_000, "path": None}] * 8)
    with source.open() as reader:
        fetched = reader.fetch(np.array([7], np.uint64), ["image", "id"])
        (scanned,) = reader.scan(["image"])
        with (tmp_path / "saved" / "data-00000-of-00001.arrow").open("r+b") as file:
            file.truncate(0)

        assert fetched.to_pydict() == {"image": [b"x" * 100_000], "id": [7]}
        assert set(scanned["image"].to_pylist()) == {b"x" * 100_000}


def test_a_file_that_shrinks_while_it_is_read_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    source = save(tmp_path / "saved", [{"bytes": b"x" * 100_000, "path": None}] * 8)
    with source.open() as reader:
        path = tmp_path / "saved" / "data-00000-of-00001.arrow"
        with path.open("r+b") as file:
            file.truncate(1000)
        with pytest.raises(SourceError, match=r"data-00000-of-00001\.arrow.*while it is being read"):
            reader.fetch(np.array([7], np.uint64), ["image"])
        del reader


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("state.json", "{", "state.json: .*Save the dataset again"),
        ("state.json", '{"_data_files": [{"filename": "../x.arrow"}]}', "lists no data files of its folder"),
        ("dataset_info.json", "[]", "dataset_info.json is no JSON object"),
    ],
)
def test_damaged_descriptions_are_refused(file: str, text: str, message: str, tmp_path: Path) -> None:
    source = save(tmp_path / "saved", [None])
    (tmp_path / "saved" / file).write_text(text)
    with pytest.raises(SourceError, match=message):
        source.open()


def test_a_folder_of_another_kind_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "readme").touch()
    with pytest.raises(SourceError, match=r"has neither state.json nor .*Give a folder that dataset.save_to_disk"):
        HuggingFace(str(tmp_path)).open()
    (tmp_path / "data.arrow").write_bytes(b"")
    with pytest.raises(SourceError, match=r"has data\.arrow without the state\.json"):
        HuggingFace(str(tmp_path)).open()
    with pytest.raises(SourceError, match="Correct the path"):
        HuggingFace(str(tmp_path / "nowhere")).open()


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_rows_are_the_same_where_datasets_is_not_installed(
    form: str, written: datasets.Dataset, tmp_path: Path
) -> None:
    if form == "arrow":
        written.save_to_disk(tmp_path / "saved", num_shards=2)
    else:
        (tmp_path / "saved").mkdir()
        written.to_parquet(tmp_path / "saved" / "train-00000-of-00001.parquet")
    script = (
        "import sys; sys.modules['datasets'] = None\n"
        "from spiral_stream.sources.columnar.huggingface import HuggingFace\n"
        f"reader = HuggingFace({str(tmp_path / 'saved')!r}).open()\n"
        "import numpy as np; rows = reader.fetch(np.array([3, 0], np.uint64), ['id', 'matrix', 'about'])\n"
        "print(reader.schema.to_string(), [unit.content_key for unit in reader.units()], rows.to_pylist())"
    )
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    with HuggingFace(str(tmp_path / "saved")).open() as reader:
        rows = reader.fetch(np.array([3, 0], np.uint64), ["id", "matrix", "about"])
        here = f"{reader.schema.to_string()} {[unit.content_key for unit in reader.units()]} {rows.to_pylist()}\n"

    assert elsewhere == here


def test_parquet_on_s3_gives_the_rows_and_images_of_local_files(
    written: datasets.Dataset, tmp_path: Path, bucket: str
) -> None:
    (tmp_path / "hub.data" / "data").mkdir(parents=True)
    for at, shard in enumerate((written.select(range(25)), written.select(range(25, 40)))):
        shard.to_parquet(tmp_path / "hub.data" / "data" / f"train-{at:05d}-of-00002.parquet")
    written.select(range(3)).to_parquet(tmp_path / "hub.data" / "data" / "test-00000-of-00001.parquet")
    put_all(tmp_path / "hub.data", f"{bucket}/hub.data")
    sources = [HuggingFace(path, "train", origin=True) for path in (tmp_path / "hub.data", f"{bucket}/hub.data/")]
    assert as_read(sources[1]) == as_read(sources[0])
    catalog = spiral.connect(tmp_path / "catalog")
    found = []
    for name, source in zip(("local", "remote"), sources, strict=True):
        catalog.register(name, source, identity="id")
        relation = catalog.table(name).filter(~col("image").is_null())
        fields = {"image": spiral.Stack("image", decode="image", crop=6), "id": spiral.Stack("id")}
        sampled = relation.sample(identity="id", order=spiral.GlobalShuffle(seed=1), epoch=0)
        with sampled.collate(batch_size=13, fields=fields).to_numpy(prefetch=2) as stream:
            found.append(list(stream))
    for one, other in zip(*found, strict=True):
        assert (np.asarray(one["image"]) == np.asarray(other["image"])).all()
        assert (np.asarray(one["id"]) == np.asarray(other["id"])).all()
    assert len(found[0]) == 3


def kept(folder: Path, source: HuggingFace) -> Any:
    """The rows of a saved dataset on a store, which a catalog reads once and keeps."""
    return spiral.connect(folder).register("kept", source, identity=spiral.RowIdentity(), replace=True).source


def test_saved_datasets_on_s3_are_kept_with_the_rows_of_local_ones(
    written: datasets.Dataset, tmp_path: Path, bucket: str
) -> None:
    written.save_to_disk(tmp_path / "saved", num_shards=3)
    datasets.DatasetDict(train=written, test=written.select(range(4))).save_to_disk(tmp_path / "both")
    put_all(tmp_path, f"{bucket}/all")
    for name, split in (("saved", None), ("both", "train"), ("both", "test")):
        for origin in (True, False):
            local, remote = (HuggingFace(f"{at}/{name}", split, origin=origin) for at in (tmp_path, f"{bucket}/all"))
            rows = kept(tmp_path / f"catalog-{name}-{split}", remote)
            assert as_read(rows) == as_read(local)
            with local.open() as here, rows.open() as there:
                assert there.schema.names == here.schema.names
                assert there.schema.types == here.schema.types
                for field in written.column_names:
                    assert there.schema.field(field).equals(here.schema.field(field), check_metadata=True)
                assert [unit.rows for unit in there.units()] == [unit.rows for unit in here.units()]
                assert there.fetch(np.array([3], np.uint64), ["image_path"])["image_path"].to_pylist() == ["3.png"]
    with pytest.raises(SourceError, match=r"read from a catalog, which keeps them\. Register it"):
        HuggingFace(f"{bucket}/all/saved").open()
    with pytest.raises(SourceError, match="has several splits: there are train, test"):
        HuggingFace(f"{bucket}/all/both").open()
    with pytest.raises(SourceError, match="nothing lies below"):
        HuggingFace(f"{bucket}/none").open()
    store, key = store_of(f"{bucket}/all/saved/data-00001-of-00003.arrow")
    store.delete(key)
    with pytest.raises(SourceError, match=r"state\.json lists data-00001-of-00003\.arrow, which is not there"):
        kept(tmp_path / "catalog", HuggingFace(f"{bucket}/all/saved"))


def test_a_saved_dataset_on_a_store_keeps_the_laws_of_sources(written: datasets.Dataset, tmp_path: Path) -> None:
    uri = f"memory://{tmp_path.name}"

    def save(rows: int) -> None:
        written.select(range(rows)).save_to_disk(tmp_path / "saved", num_shards=2)
        put_all(tmp_path / "saved", f"{uri}/saved")

    save(40)
    check_source(HuggingFace(f"{uri}/saved"), lambda: save(39))


def test_every_type_on_s3_is_that_of_the_local_file(tmp_path: Path, bucket: str) -> None:
    rng = np.random.default_rng(3)
    lists = [None if at % 5 == 1 else list(range(at % 4)) for at in range(300)]
    table = pa.table(
        {
            "flag": pa.array([None if at % 3 == 0 else at % 2 == 0 for at in range(300)]),
            "half": rng.random(300).astype(np.float16),
            "when": pa.array(np.arange(300), pa.timestamp("us", "UTC")),
            "exact": pa.array(list(range(300))).cast(pa.decimal128(25, 2)),
            "fixed": pa.array([b"%03d" % at for at in range(300)], pa.binary(3)),
            "nothing": pa.nulls(300),
            "large": pa.array([None if at % 7 == 0 else "é" * (at % 9) for at in range(300)], pa.large_string()),
            "lists": pa.array(lists, pa.list_(pa.int16())),
            "texts": pa.array([each and [str(k) * k for k in each] for each in lists], pa.large_list(pa.string())),
            "pairs": pa.array(
                [each and [[k, k + 1] for k in each] for each in lists], pa.list_(pa.list_(pa.int8(), 2))
            ),
            "flags": pa.array([[at % 2 == 0, None, True] for at in range(300)], pa.list_(pa.bool_(), 3)),
            "map": pa.array([each and [(str(k), k) for k in each] for each in lists], pa.map_(pa.string(), pa.int32())),
            "deep": pa.array([None if at % 11 == 0 else {"a": {"b": each}} for at, each in enumerate(lists)]),
        }
    )
    (tmp_path / "saved").mkdir()

    def save(table: pa.Table, **options: Any) -> None:
        with pa.ipc.new_stream(
            tmp_path / "saved" / "data.arrow", table.schema, options=pa.ipc.IpcWriteOptions(**options)
        ) as writer:
            for start, count in ((0, 100), (100, 0), (100, 7), (107, 193)):
                writer.write_table(table.slice(start, count))
        put_all(tmp_path / "saved", f"{bucket}/saved")

    (tmp_path / "saved" / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (tmp_path / "saved" / "dataset_info.json").write_text("{}")
    save(table)
    remote = HuggingFace(f"{bucket}/saved")
    with HuggingFace(str(tmp_path / "saved")).open() as here, kept(tmp_path / "catalog", remote).open() as there:
        for some in (rng.integers(0, 300, 64), np.arange(90, 120), np.array([299]), np.array([0])):
            rows = some.astype(np.uint64)
            one, other = (reader.fetch(rows, table.column_names) for reader in (here, there))
            one.validate(full=True), other.validate(full=True)
            assert other.equals(one)
        one, other = (pa.Table.from_batches(list(reader.scan(table.column_names))) for reader in (here, there))
        assert other.equals(one)
        chosen = [
            pa.Table.from_batches(list(reader.scan(["flag", "lists"], col("large") == "éé"))).to_pylist()
            for reader in (here, there)
        ]
        assert chosen[0] == chosen[1] != []
    for changed, options in (
        (pa.table({"a": pa.array(["x"] * 300).dictionary_encode()}), {}),
        (pa.table({"a": pa.array(["x"] * 300).cast(pa.string_view())}), {}),
        (pa.table({"a": ["x" * 99] * 300}), {"compression": "zstd"}),
    ):
        save(changed, **options)
        with HuggingFace(str(tmp_path / "saved")).open() as here, kept(tmp_path / "catalog", remote).open() as there:
            assert there.schema.equals(here.schema)
            assert there.fetch(np.arange(300), ["a"]).to_pylist() == here.fetch(np.arange(300), ["a"]).to_pylist()


def test_a_saved_dataset_on_s3_is_read_once_and_streams_and_resumes(
    tmp_path: Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")
    noise = np.random.default_rng(1)
    images = [{"bytes": png(at) + noise.bytes(200_000), "path": None} for at in range(32)]
    save(tmp_path / "saved", images)
    uri = f"s3://{stores.new_bucket(s3_endpoint)}"
    with fault_proxy(s3_endpoint) as proxy:
        use_storage("arrow", prefix=uri, **stores.options(proxy.address))
        put_all(tmp_path / "saved", f"{uri}/saved")
        catalog = spiral.connect(tmp_path / "catalog")
        for name, place in (("local", str(tmp_path / "saved")), ("remote", f"{uri}/saved")):
            proxy.set()
            catalog.register(name, HuggingFace(place), identity="id")
        assert proxy.counts()["requests"] <= 24
        assert proxy.counts()["bytes"] < 2.2 * 6_400_000  # once for the columns, and once for the rows

        def plan(name: str) -> Any:
            fields = {"image": spiral.Stack("image", decode="image", crop=6), "id": spiral.Stack("id")}
            sampled = catalog.table(name).sample(identity="id", order=spiral.GlobalShuffle(seed=1), epoch=0)
            return sampled.collate(batch_size=8, fields=fields)

        proxy.set()
        found = {}
        for name in ("local", "remote"):
            with plan(name).to_numpy(prefetch=1) as stream:
                found[name] = [(batch["image"].tobytes(), batch["id"].tolist()) for batch in stream]
        assert found["remote"] == found["local"]
        with plan("remote").to_numpy(prefetch=1) as stream:
            each = iter(stream)
            next(each)
            state = stream.state_dict()
        with plan("remote").to_numpy(prefetch=1) as stream:
            stream.load_state_dict(state)
            assert [(batch["image"].tobytes(), batch["id"].tolist()) for batch in stream] == found["local"][1:]
        assert not proxy.counts()["requests"]  # what streams is what the catalog keeps

        save(tmp_path / "more", images[:7])
        put_all(tmp_path / "more", f"{uri}/saved")
        catalog.refresh("remote")
        assert catalog.table("remote").count() == 7
        store, name = store_of(uri)[0], "saved/data-00000-of-00001.arrow"
        store.put(name, bytes(store.get(name).data or b"")[:-8] + b"other\0\0\0")
        with pytest.raises(
            SourceError, match=r"data-00000-of-00001\.arrow: .*Replace the file, or save the dataset again"
        ):
            catalog.refresh("remote")
    use_storage("arrow", prefix=uri)


def test_images_that_are_paths_on_s3_are_told_by_the_rows(tmp_path: Path, bucket: str) -> None:
    for name, images in (
        ("paths", [None, {"bytes": None, "path": "a.png"}]),
        ("bytes", [None, {"bytes": png(1), "path": None}]),
    ):
        save(tmp_path / name, images)
        put_all(tmp_path / name, f"{bucket}/{name}")
        remote = kept(tmp_path / "catalog", HuggingFace(f"{bucket}/{name}"))
        with HuggingFace(str(tmp_path / name)).open() as here, remote.open() as there:
            assert there.schema.field("image").type == here.schema.field("image").type
            assert there.base == f"{bucket}/{name}"


def test_a_damaged_object_is_named_or_read(tmp_path: Path) -> None:
    save(tmp_path / "saved", [None if at % 5 == 0 else {"bytes": b"x" * at, "path": str(at)} for at in range(40)])
    uri, rng, named = f"memory://{tmp_path.name}", np.random.default_rng(0), list[str]()
    put_all(tmp_path / "saved", f"{uri}/saved")
    store, name = store_of(uri)[0], "saved/data-00000-of-00001.arrow"
    data = bytes(store.get(name).data or b"")
    source = HuggingFace(f"{uri}/saved")
    for turn in range(200):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 2).tolist():
            damaged[at] = int(rng.integers(0, 256))
        store.put(name, bytes(damaged[: int(rng.integers(0, len(data)))] if turn % 10 == 0 else damaged))
        try:
            [unit] = source.import_units()
            schema = source.import_schema([unit])
            for batch in source.import_rows(unit, schema, Refused(unit)):
                batch.validate(full=True)
        except SourceError as error:
            named.append(str(error))
    assert 50 < len(named) < 200
    assert all("saved" in each for each in named)


def _on_the_hub(folder: Path) -> Path:
    data = folder / "data"
    data.mkdir(parents=True)
    for part in range(2):
        pa.parquet.write_table(pa.table({"id": [part]}), data / f"train-{part:05d}-of-00002.parquet")
    return data


def test_a_file_of_the_hub_that_cannot_be_read_is_no_fewer_rows(tmp_path: Path) -> None:
    def pruned(data: Path) -> None:
        (data / "train-00001-of-00002.parquet").unlink()
        (data / "train-00001-of-00002.parquet").symlink_to("../blobs/gone")

    def circle(data: Path) -> None:
        (data / "train-00001-of-00002.parquet").unlink()
        (data / "train-00001-of-00002.parquet").symlink_to("train-00001-of-00002.parquet")

    def fifo(data: Path) -> None:
        os.mkfifo(data / "a.parquet")

    def latin(data: Path) -> None:
        Path(os.fsdecode(os.fsencode(data) + b"/\xff.parquet")).write_bytes(b"")

    for spoilt, message in (
        (pruned, r"train-00001-of-00002\.parquet: No such file or directory\. Restore it"),
        (circle, r"train-00001-of-00002\.parquet: Too many levels of symbolic links\. Restore it"),
        (fifo, r"a\.parquet: it is a FIFO, not a file\. Restore it"),
        (latin, r"is not UTF-8\. Rename it"),
    ):
        data = _on_the_hub(tmp_path / spoilt.__name__)
        spoilt(data)
        with pytest.raises(SourceError, match=message):
            HuggingFace(str(data.parent)).open()


def test_links_beside_the_files_of_the_hub_do_no_harm(tmp_path: Path) -> None:
    data = _on_the_hub(tmp_path)
    (tmp_path / "README.md").symlink_to("README.md")
    (data / "latest").symlink_to("gone")

    with HuggingFace(str(tmp_path)).open() as reader:
        assert [unit.rows for unit in reader.units()] == [1, 1]
