"""NETWORK: requests and bytes of an epoch as a server counts them; rates and lanes from the plan."""

import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.sources import read_kept
from spiral_stream.storage import objects
from spiral_stream.storage.node_cache import store as node_store
from spiral_stream.storage.node_cache.cache import FOLDER_ENV, LIMIT_ENV, NodeCache
from spiral_stream.storage.open import store_of
from spiral_stream.storage.profiles import options_of
from spiral_stream.storage.ranges import GAP_BYTES
from tests.fixtures import relations, stores
from tests.stream.explain.words import in_words

ROWS, TARS = 320, 10
LINK = "10 Gbit/s, 50 ms"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("web")
    with stores.counting_server(folder) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_ENV, "off")  # each batch asks the server
        use_storage("counting", prefix=address, allow_http="true")
        yield address, folder
        use_storage("counting", prefix=address)


@pytest.fixture(scope="module")
def catalog(server: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """The same images as objects of their own, and as ranges of ten packs, 400 bytes to 80 kB apart."""
    address, folder = server
    table = relations.imagenet_train(ROWS, labels=5, shards=TARS, side=24)
    data = table["image_ref"].to_pylist()
    objects, ranges = [], []
    for at, each in enumerate(data):
        (folder / f"{at:04}.jpg").write_bytes(each)
        objects.append(f"{address}/{at:04}.jpg")
    for pack in range(TARS):
        body = b""
        for at, each in list(enumerate(data))[pack * ROWS // TARS : (pack + 1) * ROWS // TARS]:
            body += bytes(80_000 if at % 4 == 0 else 400)
            ranges.append({"uri": f"{address}/{pack}.tar", "offset": len(body), "length": len(each)})
            body += each
        (folder / f"{pack}.tar").write_bytes(body)
    rest = table.select(["sample_id", "label_id"])
    catalog = sp.connect(str(tmp_path_factory.mktemp("network") / "catalog"))
    for name, column in (("objects", pa.array(objects)), ("ranges", pa.array(ranges))):
        shards = pa.array([f"{at * TARS // ROWS:03}" for at in range(ROWS)])
        made = rest.append_column("image_ref", column).append_column("storage_shard", shards)
        catalog.register(name, sp.Arrow(made), identity="sample_id", semantic={"image_ref": "image/jpeg-ref"})
    catalog.register("local", sp.Arrow(table), identity="sample_id", semantic={"image_ref": "image/jpeg-ref"})
    return catalog


def stream(catalog: sp.Catalog, name: str, *, order: Any = None, lanes: int = 1, prefetch: int = 4, **how: Any) -> Any:
    ranks = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=lanes)
    order = order or sp.ShardAwareShuffle(seed=3, shuffle_block_size=64)
    sampled = catalog.table(name).sample(identity="sample_id", order=order, assignment=ranks)
    image = sp.Stack("image_ref", decode="jpeg", transforms=[sp.transforms.CenterCrop(16)], dtype="uint8")
    return sampled.collate(fields={"image": image, "id": sp.List("sample_id")}, **{"batch_size": 48, **how}).to_numpy(
        prefetch=prefetch
    )


def numbers(text: str) -> list[float]:
    """The numbers in a text, in order."""
    return [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


@pytest.mark.parametrize(
    ("name", "order", "last"),
    [
        ("objects", sp.GlobalShuffle(seed=5), sp.DropPartial),
        ("ranges", sp.GlobalShuffle(seed=5), sp.KeepPartial),
        ("ranges", sp.ShardAwareShuffle(seed=3, shuffle_block_size=64), sp.DropPartial),
        ("ranges", sp.ShardAwareShuffle(seed=3, shuffle_block_size=64), sp.batching.PadPartial),
    ],
)
def test_an_epoch_makes_the_requests_that_were_said(
    catalog: sp.Catalog, server: tuple[str, Path], name: str, order: Any, last: Any
) -> None:
    with stream(catalog, name, order=order, last=last, batch_size=72) as opened:
        stores.seen(server[0])
        said = in_words(opened.explain(network=LINK))["network"]
        assert stores.seen(server[0]) == {"requests": 0, "bytes": 0}
        for _ in opened:
            pass
    found = stores.seen(server[0])

    assert found == {
        "requests": int(numbers(said["requests an epoch"])[0]),
        "bytes": int(numbers(said["bytes an epoch"])[0]),
    }
    assert found["requests"] > 10


@pytest.mark.parametrize("merge", [1, 2])
def test_ranks_share_the_requests_as_they_share_batches(
    catalog: sp.Catalog, server: tuple[str, Path], merge: int
) -> None:
    stores.seen(server[0])
    with stream(catalog, "ranges", batch_size=16, lanes=4) as opened:
        opened.bind(rank=1, world_size=4, ranks_per_node=2, merge=merge)
        said = in_words(opened.explain(network=LINK))["network"]
        for _ in opened:
            pass
    found = stores.seen(server[0])

    of_all, own = numbers(said["requests an epoch"])[:2]
    assert found["requests"] == own
    assert own < of_all
    assert found["bytes"] == numbers(said["bytes an epoch"])[1]


def joined(ranges: list[tuple[int, int]]) -> int:
    """Bytes that a store brings for ranges: neighbours with what lies between them."""
    ends = [at + length for at, length in ranges]
    gaps = [at - end for (at, _), end in zip(ranges[1:], ends, strict=False)]
    return sum(length for _, length in ranges) + sum(gap for gap in gaps if gap < GAP_BYTES)


def through_a_node_cache(
    opened: Any, catalog: sp.Catalog, sizes: dict[str, int], limit: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Bytes that a node cache fetches in each of two epochs, asked for what each batch reads."""
    rows = catalog.table("ranges").to_arrow()
    named = dict(zip(rows["sample_id"].to_pylist(), rows["image_ref"].to_pylist(), strict=True))
    epochs: list[int] = []
    came: list[tuple[int, int]] = []

    def download(offset: int, length: int) -> bytes:
        came.append((offset, length))
        return bytes(length)

    passes = [[batch["id"] for batch in opened] for _ in range(2)]
    cache = NodeCache(folder, limit)  # from here on the stream reads nothing
    monkeypatch.setattr(node_store, "node_cache", lambda: cache)
    for batches in passes:
        fetched = 0
        for ids in batches:
            asked: dict[str, list[tuple[int, int]]] = {}
            for each in map(named.__getitem__, ids):
                asked.setdefault(each["uri"], []).append((each["offset"], each["length"]))
            for uri in sorted(asked):
                came.clear()
                read_kept(uri, "1", sizes[uri], download, sorted(asked[uri]))
                fetched += joined(sorted(came))
        epochs.append(fetched)
    return epochs


def test_what_a_node_cache_of_a_third_fetches_again_is_what_was_said(
    catalog: sp.Catalog, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order = sp.ShardAwareShuffle(seed=3, shuffle_block_size=160)
    sizes = {f"{server[0]}/{path.name}": path.stat().st_size for path in server[1].glob("*.tar")}
    limit = sum(sizes.values()) // 3
    monkeypatch.setenv(LIMIT_ENV, str(limit))
    with stream(catalog, "ranges", order=order, batch_size=8) as opened:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(FOLDER_ENV)
            found = opened.explain(network=LINK)
        fetched = through_a_node_cache(opened, catalog, sizes, limit, tmp_path, monkeypatch)
    said = in_words(found)["network"]

    assert [numbers(said[name])[0] for name in ("first epoch", "later epochs")] == fetched
    assert fetched[1] > 0
    assert any(
        "of what comes in the first epoch comes again. Raise $SPIRAL_NODE_CACHE_BYTES" in each
        for each in found.facts["warnings"]
    )


@pytest.mark.parametrize(("prefetch", "ranks", "crowded"), [(1, 1, False), (8, 2, True)])
def test_a_first_epoch_with_much_under_way_has_no_tolerance(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch, prefetch: int, ranks: int, *, crowded: bool
) -> None:
    with stream(catalog, "ranges", order=sp.GlobalShuffle(seed=3), batch_size=16, lanes=2, prefetch=prefetch) as opened:
        opened.bind(rank=0, world_size=ranks, ranks_per_node=ranks)
        size = numbers(in_words(opened.explain(network=LINK))["network"]["bytes a batch"])[0]
        monkeypatch.setenv(LIMIT_ENV, str(int(size * 4.5)))
        monkeypatch.delenv(FOLDER_ENV)
        said = in_words(opened.explain(network=LINK))["network"]["node cache"]
    assert said.endswith(
        "more than half of the room: lower prefetch" if crowded else "within 10% in the first two epochs"
    )


def test_lanes_of_nodes_are_compared_by_what_a_node_reads(catalog: sp.Catalog) -> None:
    order = sp.ShardAwareShuffle(seed=3, shuffle_block_size=32)
    with stream(catalog, "ranges", order=order, batch_size=4, lanes=2) as opened:
        facts = in_words(opened.bind(rank=0, world_size=8, ranks_per_node=4).explain(network=LINK))["network"]
    one, now, each = facts["by lanes"]

    assert [(row["lanes"].strip(), row["dealt to"]) for row in (one, now, each)] == [
        ("1", "ranks"),
        ("-> 2", "nodes"),
        ("8", "ranks"),
    ]
    assert (one["files"], now["files"], each["files"]) == (10, 5, 5)
    assert now["live files"] < each["live files"]
    assert numbers(facts["a node reads"])[0] == now["bytes a node reads"] < one["bytes a node reads"]
    assert facts["node"] == "0 of 2, 4 ranks each"


def test_the_smaller_of_two_rates_counts(catalog: sp.Catalog) -> None:
    with stream(catalog, "objects", batch_size=16, prefetch=3) as opened:
        slow = in_words(opened.explain(network="10 Gbit/s, 500 ms"))["network"]
        narrow = in_words(opened.explain(network="10 kB/s, 1 ms"))["network"]
        size = numbers(narrow["bytes a batch"])[0]

    assert slow["steady"].startswith("~8 batches/s, ~128 samples/s a rank, bound by latency; bandwidth alone allows ")
    assert slow["under way"] == "~64 requests, of 256 at most (8 tasks of 32). prefetch=7 would keep all tasks busy"
    assert slow["first batch"].startswith("~1.5 s, connecting included")
    assert narrow["node cache"] == "none: each epoch asks for all of its bytes"
    assert "bound by bandwidth; latency alone allows" in narrow["steady"]
    assert numbers(narrow["steady"])[0] == pytest.approx(10_000 / size, rel=1e-3)


@pytest.mark.parametrize("formed", [False, True])
def test_mixtures_and_formations_are_counted_too(catalog: sp.Catalog, server: tuple[str, Path], formed: bool) -> None:
    rows = catalog.table("ranges")
    few, many = rows.filter(sp.col("label_id") < 2), rows.filter(sp.col("label_id") >= 2)
    mixed = sp.mix([sp.Stream("few", few, 0.5), sp.Stream("many", many, 0.5)], epoch_size=200)
    image = sp.Stack("image_ref", decode="jpeg", transforms=[sp.transforms.CenterCrop(16)], dtype="uint8")
    how: Any = {"batch_size": 16}
    if formed:
        how["formation"] = sp.WindowedBucket(64, [sp.BucketKey("label_id")])
    sampled = mixed.sample(identity="sample_id", order=sp.GlobalShuffle(seed=2))
    stores.seen(server[0])
    with sampled.collate(fields={"image": image}, **how).to_numpy(prefetch=2) as opened:
        said = in_words(opened.explain(network=LINK))["network"]
        for _ in opened:
            pass
        opened.set_epoch(0)
        again = in_words(opened.explain(network=LINK))["network"]
    found = stores.seen(server[0])

    assert found["requests"] == pytest.approx(numbers(said["requests an epoch"])[0], rel=0.1 if formed else 0)
    assert found["bytes"] == pytest.approx(numbers(said["bytes an epoch"])[0], rel=0.1 if formed else 0)
    assert found["requests"] == numbers(again["requests an epoch"])[0]  # what a formation forms is known by now


def test_what_is_prepared_or_local_is_not_asked_for(catalog: sp.Catalog, caches: Path) -> None:
    with stream(catalog, "local") as opened:
        facts = in_words(opened.explain(network=LINK))
        assert facts["network"] == {"over the network": "nothing: what this stream reads lies on this machine"}
        assert "network" not in opened.explain().facts
        text = str(opened.explain(network=LINK))
        assert text.index("RESUME") < text.index("NETWORK") < text.index("WARNINGS")


def test_a_stream_alone_has_a_network(catalog: sp.Catalog) -> None:
    with stream(catalog, "ranges") as opened:
        catalog.save_stream("far", opened)
        with pytest.raises(sp.errors.PlanError, match=r'a request: "10 Gbit/s, 50 ms"'):
            opened.explain(network="fast")

    assert in_words(catalog.explain("far", network=LINK))["network"]["link"].startswith(LINK)
    asked: Any = catalog.sql(f"EXPLAIN DATA NETWORK '{LINK}' far")
    assert in_words(asked)["network"]["link"].startswith(LINK)
    with pytest.raises(
        sp.errors.PlanError, match=r"only a stream reads over a network. Leave NETWORK out, or save_stream it"
    ):
        catalog.explain("ranges", network=LINK)


def test_tables_and_tars_on_a_store_are_named(bucket: str, tmp_path: Path) -> None:
    table = relations.imagenet_train(64, labels=5, side=24).select(["sample_id", "image_ref"])
    catalog = sp.connect(str(tmp_path / "catalog"))
    lance.write_dataset(table, f"{bucket}/a.lance", storage_options=options_of(bucket))
    catalog.register("inline", sp.Lance(f"{bucket}/a.lance"), semantic={"image_ref": "image/jpeg-ref"})
    with stream(catalog, "inline", batch_size=16) as opened:
        facts = in_words(opened.explain(network=LINK))["network"]

    assert facts["over the network"] == "no payload"
    assert facts["tables"].startswith("inline: references and small columns come from the store too")
    assert facts["unknown"] == "image: image_ref lies in the table inline, and its reader decides what is asked"


def test_tars_on_a_store_are_asked_as_was_said(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_ENV, "off")
    data = relations.imagenet_train(96, labels=5, side=24)["image_ref"].to_pylist()
    for shard in range(3):
        body = io.BytesIO()
        with tarfile.open(fileobj=body, mode="w") as tar:
            for at in range(shard * 32, shard * 32 + 32):
                member = tarfile.TarInfo(f"{at:04}.jpg")
                member.size = len(data[at])
                tar.addfile(member, io.BytesIO(data[at]))
        store, key = store_of(f"{bucket}/tars/{shard}.tar")
        store.put(key, body.getvalue())
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("tars", sp.sources.WebDataset(f"{bucket}/tars/{{0..2}}.tar"), identity="__key__")
    image = sp.Stack("jpg", decode="jpeg", transforms=[sp.transforms.CenterCrop(16)], dtype="uint8")
    sampled = catalog.table("tars").sample(order=sp.GlobalShuffle(seed=1))
    asked: list[int] = []
    get = objects.Objects.get_range

    def counted(self: Any, key: str, start: int, stop: int | None, most: int | None) -> Any:
        asked.append((stop or 0) - start)
        return get(self, key, start, stop, most)

    with sampled.collate(batch_size=16, fields={"image": image}).to_numpy(prefetch=2) as opened:
        said = in_words(opened.explain(network=LINK))["network"]
        monkeypatch.setattr(objects.Objects, "get_range", counted)
        for _ in opened:
            pass

    assert len(asked) == numbers(said["requests an epoch"])[0]
    assert sum(asked) == numbers(said["bytes an epoch"])[0]
