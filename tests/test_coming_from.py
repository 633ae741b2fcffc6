"""What the page on other loaders shows beside each other gives the same: each peer's own package runs here.

A peer that is not installed is skipped by name; the reason says how to run it.
"""

import io
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import spiral_stream as spiral
from spiral_stream import col

ROWS = 240
TABLE = pa.table(
    {
        "id": range(ROWS),
        "feature": np.linspace(0, 1, ROWS, dtype=np.float32),
        "label": [k % 10 for k in range(ROWS)],
        "weight": [0.0 if k % 10 == 0 else 1.0 + k % 3 for k in range(ROWS)],
        "tokens": [[10 + (k * 7 + at) % 80 for at in range(1 + k % 9)] for k in range(ROWS)],
        "target": [[20 + (k + at) % 50 for at in range(1 + (k * 5) % 6)] for k in range(ROWS)],
    }
)
ROWS_OF = TABLE.to_pylist()
PAGE = Path(__file__).parents[1].joinpath("docs", "howto", "coming-from.md").read_text()
HOW = {
    "grain": "make recipes installs it, and runs this file",
    "megatron.energon": "make recipes installs it, and runs this file",
    "streaming": "pip install --no-deps --target peers mosaicml-streaming and what it asks for, then PYTHONPATH=peers",
    "nvidia.dali": "pip install nvidia-dali-cuda130 (300 MB), then run this file",
    "lancedb.streaming": "pip install 'lancedb>=0.40', then run this file",
}


def peer(name: str) -> Any:
    """A peer's package; the test is skipped where it is not installed."""
    return pytest.importorskip(name, reason=f"{name} is not installed: {HOW[name]}", exc_type=ImportError)


def their_example(section: str, **given: Any) -> dict[str, Any]:
    """Run the other library's example as the page shows it, and return its names."""
    found = re.search(rf"^## {section}\n.*?```py\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    assert found, section
    exec(found[1], given)
    return given


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> spiral.Catalog:
    opened = spiral.connect(str(tmp_path_factory.mktemp("peers") / "catalog"))
    opened.register("rows", spiral.Arrow(TABLE), identity="id")
    return opened


@pytest.fixture(scope="module")
def rows(catalog: spiral.Catalog) -> spiral.Relation:
    return catalog.table("rows")


def numbers(relation: spiral.Relation, order: Any, size: int = 16, **options: Any) -> spiral.PreparedStream:
    fields = {name: spiral.Stack(name) for name in ("id", "feature", "label")}
    return relation.sample(order=order).collate(batch_size=size, fields=fields, **options).to_torch()


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


class Rows(Dataset[dict[str, Any]]):
    """A map-style data set as a tutorial writes it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, at: int) -> dict[str, Any]:
        row = ROWS_OF[at]
        return {"id": row["id"], "feature": np.float32(row["feature"]), "label": row["label"]}


def test_torch_in_order_gives_the_same_batches(rows: spiral.Relation) -> None:
    theirs = list(DataLoader(Rows(), batch_size=16, drop_last=False))
    ours = list(numbers(rows, spiral.Sequential(), last=spiral.KeepPartial))

    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert {name: (each.dtype, each.tolist()) for name, each in one.items()} == {
            name: (each.dtype, each.tolist()) for name, each in other.items()
        }


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("size", [7, 16, 100])
def test_torch_batch_sampler_gives_as_many_batches_of_the_same_sizes(
    rows: spiral.Relation, size: int, *, drop: bool
) -> None:
    theirs = [len(each) for each in BatchSampler(RandomSampler(range(ROWS)), size, drop)]
    stream = numbers(rows, spiral.GlobalShuffle(seed=1), size, last=spiral.DropPartial if drop else spiral.KeepPartial)

    assert [len(batch) for batch in ids(stream)] == theirs


def test_torch_subset_random_sampler_draws_the_same_rows_once_each(rows: spiral.Relation) -> None:
    subset = [k for k in range(ROWS) if k % 10 < 4]
    theirs = sorted(SubsetRandomSampler(subset))
    stream = numbers(rows.filter(col("label") < 4), spiral.GlobalShuffle(seed=1), last=spiral.KeepPartial)
    first, second = (flat(ids(stream)) for _ in range(2))

    assert sorted(first) == sorted(second) == theirs
    assert first != second


@pytest.mark.parametrize("world", [2, 3, 4])
def test_torch_distributed_sampler_gives_each_rank_as_many_rows_and_no_row_twice(
    rows: spiral.Relation, world: int
) -> None:
    samplers = [DistributedSampler(Rows(), world, rank, seed=1, drop_last=True) for rank in range(world)]
    theirs = [list(sampler) for sampler in samplers]
    ours = []
    for rank in range(world):
        with numbers(rows, spiral.GlobalShuffle(seed=1), 10) as stream:
            stream.bind(data_parallel_rank=rank, data_parallel_world_size=world)
            ours.append(flat(ids(stream)))

    assert [len(each) for each in ours] == [len(each) for each in theirs]
    assert len({*flat(ours)}) == len({*flat(theirs)}) == ROWS


def test_torch_weighted_random_sampler_draws_rows_as_often(rows: spiral.Relation) -> None:
    passes, weights = 60, TABLE["weight"].to_pylist()
    generator = torch.Generator().manual_seed(1)
    theirs = Counter(WeightedRandomSampler(weights, passes * ROWS, generator=generator))
    order = rows.sample(order=spiral.orders.Weighted("weight", seed=1))
    ours = Counter(k for epoch in range(passes) for k in order.order(epoch).rows(range(ROWS))["id"].to_pylist())

    assert not any(weights[k] == 0 for k in (*theirs, *ours))
    share = np.array(weights) / sum(weights) * passes * ROWS
    spread = np.sqrt(np.maximum(share, 1))
    for drawn in (theirs, ours):  # both lie within five standard deviations of what the weights say
        assert np.abs(np.array([drawn[k] for k in range(ROWS)]) - share).max() < (5 * spread).max()


def test_torch_weighted_random_sampler_without_replacement_draws_each_once(rows: spiral.Relation) -> None:
    heavy = [k for k, weight in enumerate(TABLE["weight"].to_pylist()) if weight]
    theirs = WeightedRandomSampler(TABLE["weight"].to_pylist(), len(heavy), replacement=False)
    ours = rows.sample(order=spiral.orders.Weighted("weight", replacement=False, seed=1)).order()

    assert sorted(ours.rows(range(len(heavy)))["id"].to_pylist()) == sorted(theirs) == heavy


def test_datasets_map_filter_and_format_give_the_same_batches(rows: spiral.Relation) -> None:
    datasets = pytest.importorskip("datasets")
    with_double = (
        datasets.Dataset.from_dict({name: TABLE[name].to_pylist() for name in ("id", "feature", "label")})
        .filter(lambda row: row["label"] != 3)
        .map(lambda row: {"double": row["feature"] * 2})
        .with_format("torch")
    )
    theirs = list(DataLoader(with_double, batch_size=16))
    stream = (
        rows.filter(col("label") != 3)
        .with_columns(double=col("feature") * 2)
        .sample(order=spiral.Sequential())
        .collate(
            batch_size=16,
            last=spiral.KeepPartial,
            fields={"id": spiral.Stack("id"), "double": spiral.Stack("double", dtype="float32")},
        )
        .to_torch()
    )
    ours = list(stream)

    assert ids(ours) == ids(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one["double"], other["double"].float())


def test_datasets_splits_are_of_all_rows_and_disjoint(rows: spiral.Relation) -> None:
    datasets = pytest.importorskip("datasets")
    theirs = datasets.Dataset.from_dict({"id": list(range(ROWS))}).train_test_split(test_size=0.2, seed=1)
    ours = rows.split(train=0.8, test=0.2)
    for parts in ({name: set(each["id"]) for name, each in theirs.items()},):
        assert parts["train"].isdisjoint(parts["test"])
        assert len(parts["train"] | parts["test"]) == ROWS
    parts = {name: set(each.to_arrow()["id"].to_pylist()) for name, each in ours.items()}

    assert parts["train"].isdisjoint(parts["test"])
    assert len(parts["train"] | parts["test"]) == ROWS


# ---- collators of transformers


class Words:
    """What the collators ask of a tokenizer: a padding token, and `pad`."""

    def __new__(cls) -> Any:
        transformers = pytest.importorskip("transformers")
        tokenizers = pytest.importorskip("tokenizers")
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "fox": 1}, unk_token="<pad>"))
        return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")


def collated(rows: spiral.Relation, **fields: Any) -> Iterator[dict[str, Any]]:
    plan = rows.sample(order=spiral.Sequential()).collate(batch_size=16, last=spiral.KeepPartial, fields=fields)
    with plan.to_torch() as stream:
        yield from stream


def theirs_of(collator: Callable[[list[dict[str, Any]]], Any], *names: str) -> Iterator[Any]:
    for first in range(0, ROWS, 16):
        some = ROWS_OF[first : first + 16]
        yield collator([dict(zip(names, (row["tokens"], row["target"]), strict=False)) for row in some])


def assert_same(ours: Iterator[dict[str, Any]], theirs: Iterator[Any]) -> None:
    count = 0
    for one, other in zip(ours, theirs, strict=True):
        assert set(one) == set(other)
        for name in one:
            assert torch.equal(one[name], other[name]), name
        count += 1
    assert count == ROWS // 16


@pytest.mark.parametrize("multiple", [None, 8])
def test_collator_with_padding(rows: spiral.Relation, multiple: int | None) -> None:
    tokenizer = Words()
    from transformers import DataCollatorWithPadding

    ours = collated(
        rows,
        input_ids=spiral.Pad("tokens", pad_to_multiple_of=multiple),
        attention_mask=spiral.PadMask("tokens"),
    )

    assert_same(ours, theirs_of(DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple), "input_ids"))


def test_collator_for_language_modeling(rows: spiral.Relation) -> None:
    tokenizer = Words()
    from transformers import DataCollatorForLanguageModeling

    ours = collated(
        rows,
        input_ids=spiral.Pad("tokens"),
        attention_mask=spiral.PadMask("tokens"),
        labels=spiral.fields.Labels("tokens"),
    )

    assert_same(ours, theirs_of(DataCollatorForLanguageModeling(tokenizer, mlm=False), "input_ids"))


def test_collator_for_seq2seq(rows: spiral.Relation) -> None:
    tokenizer = Words()
    from transformers import DataCollatorForSeq2Seq

    ours = collated(
        rows,
        input_ids=spiral.Pad("tokens"),
        attention_mask=spiral.PadMask("tokens"),
        labels=spiral.Pad("target", pad_value=-100),
    )

    assert_same(ours, theirs_of(DataCollatorForSeq2Seq(tokenizer), "input_ids", "labels"))


# ---- loaders with files of their own


def jpeg(shade: int) -> bytes:
    out = io.BytesIO()
    Image.linear_gradient("L").resize((40, 32)).point(lambda v: (v + shade) % 256).convert("RGB").save(out, "JPEG")
    return out.getvalue()


def pixels(relation: spiral.Relation, size: int = 4, column: str = "jpg") -> list[np.ndarray]:
    fields = {"image": spiral.Stack(column, decode="jpeg"), "label": spiral.Stack("label_id")}
    plan = relation.sample(order=spiral.Sequential()).collate(batch_size=size, fields=fields)
    with plan.to_numpy() as stream:
        return [np.concatenate(each) for each in zip(*((b["image"], b["label"][:, None]) for b in stream), strict=True)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")  # its files
def test_webdataset_gives_the_same_pictures_and_labels(tmp_path: Path, catalog: spiral.Catalog) -> None:
    wds = pytest.importorskip("webdataset")
    with wds.TarWriter(str(tmp_path / "s-000000.tar")) as out:
        for k in range(16):
            out.write({"__key__": f"{k:03d}", "jpg": jpeg(9 * k), "cls": k % 5})
    pattern = str(tmp_path / "s-000000.tar")
    loaded = wds.WebDataset(pattern, shardshuffle=False).decode("torchrgb").to_tuple("jpg", "cls")
    theirs = [torch.stack([image for image, _ in loaded]).numpy(), [label for _, label in loaded]]
    catalog.register("tars", spiral.sources.WebDataset(pattern), identity="__key__", replace=True)
    images, labels = pixels(catalog.table("tars").rename(label_id="cls"))

    assert labels.ravel().tolist() == theirs[1]
    assert np.abs(images / 255 - theirs[0]).max() <= 2 / 255  # two decoders of JPEG differ by a bit or two


def test_grain_maps_filters_and_batches_alike(rows: spiral.Relation) -> None:
    grain = peer("grain")
    theirs = list(
        grain.MapDataset.source([{"id": row["id"], "feature": row["feature"]} for row in ROWS_OF])
        .map(lambda row: {**row, "feature": np.float32(row["feature"] * 2)})
        .batch(16, drop_remainder=True)
    )
    doubled = rows.with_columns(feature=col("feature") * 2).drop("label").with_columns(label=spiral.lit(0))
    ours = list(numbers(doubled, spiral.Sequential()))

    assert ids(ours) == ids(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one["feature"].numpy(), other["feature"], rtol=1e-6)


def test_grain_shuffles_every_row_once_as_we_do(rows: spiral.Relation) -> None:
    grain = peer("grain")
    theirs = list(grain.MapDataset.source(list(range(ROWS))).shuffle(seed=42))
    ours = flat(ids(numbers(rows, spiral.GlobalShuffle(seed=42))))

    assert sorted(ours) == sorted(int(each) for each in theirs) == list(range(ROWS))


@pytest.mark.timeout(300)
def test_the_example_of_grain_runs_and_ours_gives_the_same_samples(rows: spiral.Relation) -> None:
    given = their_example("PyGrain", grain=peer("grain"), records=ROWS_OF)
    batches = [given["again"], *islice(given["iterator"], 40)]
    theirs = {int(k): float(x) for each in batches for k, x in zip(each["id"], each["feature"], strict=True)}
    given["iterator"].close()

    def double(x: dict[str, Any]) -> dict[str, Any]:
        return {"feature": x["feature"] * 2}

    def noisy(x: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"noise": rng.random()}

    def not_three(label: int) -> bool:
        return label != 3

    one = {"batched": False}
    plan = (
        rows.sample(order=spiral.GlobalShuffle(seed=42))
        .map(double, columns=["feature"], returns={"feature": pa.float64()}, **one)
        .filter(not_three, columns=["label"], **one)
        .map(noisy, columns=["label"], returns={"noise": pa.float64()}, random=True, **one)
        .collate(batch_size=4, fields={name: spiral.Stack(name) for name in ("id", "feature", "noise")})
    )
    ours: dict[int, float] = {}
    with plan.to_numpy() as stream:
        for batch in stream:
            ours |= dict(zip(batch["id"].tolist(), batch["feature"].tolist(), strict=True))
        first, state = next(iter(stream)), stream.state_dict()
        following = next(iter(stream))
        stream.load_state_dict(state)
        again = next(iter(stream))

    assert (given["again"]["noise"] == given["following"]["noise"]).all()
    assert (again["noise"] == following["noise"]).all()
    assert (again["noise"] != first["noise"]).any()
    assert ours == {row["id"]: row["feature"] * 2 for row in ROWS_OF if row["label"] != 3}
    assert theirs.items() <= ours.items()
    assert len(theirs) > 100


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")  # its files
def test_the_example_of_energon_runs_and_ours_gives_the_same_pictures_and_captions(
    tmp_path: Path, catalog: spiral.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    energon = peer("megatron.energon")
    monkeypatch.chdir(tmp_path)
    captioned(Path("captioned"))
    given = their_example("Megatron-Energon", **vars(energon))
    theirs: dict[str, tuple[torch.Tensor, str]] = {}
    for batch in islice(given["loader"], 100):
        theirs |= dict(zip(batch.__key__, zip(batch.image, batch.caption, strict=True), strict=True))

    catalog.register("captioned", spiral.sources.WebDataset("captioned/parts/data-{0..1}.tar"), identity="__key__")
    fields = {
        "key": spiral.List("__key__"),
        "image": spiral.Stack("png", decode="image"),
        "caption": spiral.List("txt"),
    }
    samples = catalog.table("captioned").sample(identity="__key__", order=spiral.GlobalShuffle(seed=42))
    keys = []
    with samples.collate(batch_size=4, fields=fields).to_torch() as stream:
        for batch in stream:
            for key, image, caption in zip(batch["key"], batch["image"], batch["caption"], strict=True):
                keys.append(key)
                torch.testing.assert_close(image / 255, theirs[key][0])
                assert caption == theirs[key][1]

    assert sorted(keys) == sorted(theirs) == [f"{k:06d}" for k in range(60)]


def captioned(folder: Path) -> None:
    """Two tars of pictures with captions, and what `energon prepare` adds to them."""
    flavors = pytest.importorskip("megatron.energon.flavors")
    (folder / "parts").mkdir(parents=True)
    for shard in range(2):
        with tarfile.open(folder / "parts" / f"data-{shard}.tar", "w") as tar:
            for k in range(30 * shard, 30 * shard + 30):
                out = io.BytesIO()
                Image.new("RGB", (24, 20), (4 * k, k, 90)).save(out, "PNG")
                for name, data in ((f"{k:06d}.png", out.getvalue()), (f"{k:06d}.txt", f"shade {k}".encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    flavors.BaseWebdatasetFactory.prepare_dataset(folder, ["parts/data-{0..1}.tar"], split_parts_ratio=[("train", 1.0)])
    said = {"sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"}}
    said["field_map"] = {"image": "png", "caption": "txt"}
    (folder / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(said))


def test_lancedb_streaming_data_set_gives_each_row_once_as_we_do(tmp_path: Path, catalog: spiral.Catalog) -> None:
    streaming = peer("lancedb.streaming")
    import lancedb

    table = lancedb.connect(str(tmp_path / "db")).create_table("some", TABLE.select(["id", "feature", "label"]))
    data = streaming.StreamingDataset(
        table, columns=["id", "feature"], filter="label < 4", shuffle_seed=42, num_splits=1
    )
    theirs = sorted(int(k) for batch in data for k in np.atleast_1d(np.asarray(batch["id"])))
    catalog.register("some", table, identity="id", replace=True)
    chosen = catalog.table("some").filter("label < 4")
    ours = flat(ids(numbers(chosen, spiral.GlobalShuffle(seed=42, clump_size=16), last=spiral.KeepPartial)))

    assert sorted(ours) == theirs


def test_mosaic_writes_what_we_read_row_for_row(tmp_path: Path, catalog: spiral.Catalog) -> None:
    mosaic = peer("streaming")
    with mosaic.MDSWriter(out=str(tmp_path / "mds"), columns={"id": "int", "text": "str", "jpg": "bytes"}) as out:
        for k in range(16):
            out.write({"id": k, "text": f"row {k}", "jpg": jpeg(k)})
    theirs = list(mosaic.StreamingDataset(local=str(tmp_path / "mds"), shuffle=False, batch_size=1))
    catalog.register("mds", spiral.sources.Mds(str(tmp_path / "mds")), identity="id", replace=True)
    fields = {name: spiral.List(name) for name in ("id", "text", "jpg")}
    samples = catalog.table("mds").sample(order=spiral.Sequential())
    with samples.collate(batch_size=16, fields=fields).to_numpy() as stream:
        ours = stream.batch(0)

    assert [*zip(ours["id"], ours["text"], ours["jpg"], strict=True)] == [
        (r["id"], r["text"], r["jpg"]) for r in theirs
    ]


def test_dali_decodes_and_labels_alike(tmp_path: Path, catalog: spiral.Catalog) -> None:
    peer("nvidia.dali")
    from nvidia.dali import fn, pipeline_def

    for kind in range(2):
        (tmp_path / "pictures" / f"kind{kind}").mkdir(parents=True)
        for k in range(4):
            (tmp_path / "pictures" / f"kind{kind}" / f"{k}.jpg").write_bytes(jpeg(20 * k + kind))

    @pipeline_def(batch_size=8, num_threads=1, device_id=None)
    def pictures() -> Any:
        files, labels = fn.readers.file(file_root=str(tmp_path / "pictures"))
        return fn.decoders.image(files, device="cpu"), labels

    built = pictures()
    built.build()
    images, labels = (each.as_array() for each in built.run())
    catalog.register("pictures", spiral.ImageFolder(str(tmp_path / "pictures")), replace=True)
    ours, kinds = pixels(catalog.table("pictures"), 8, "image_ref")

    assert kinds.ravel().tolist() == labels.ravel().tolist()
    assert np.abs(ours.transpose(0, 2, 3, 1).astype(int) - images).max() <= 2
