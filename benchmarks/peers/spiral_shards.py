"""Ours over the same tars and the same MDS shards, read in place."""

from collections.abc import Iterator
from typing import Any

from benchmarks.peers.workload import BATCH, MEAN, SIDE, STD, Data

PACKAGES = ("spiral-stream", "simplejpeg", "pylance", "torch")


def prepare(data: Data, form: str, remote: str = "") -> None:
    if remote:
        opened(data, form, remote)
    elif form == "tars":
        from benchmarks.peers.tar_shards import tars

        tars(data)


def opened(data: Data, form: str, remote: str) -> Any:
    """The catalog, in which the shards are registered."""
    import spiral_stream as spiral

    catalog = spiral.connect(str(data.root / ("catalog-remote" if remote else "catalog")))
    if form not in catalog.tables():
        names = {"image": "jpg", "label": "cls"} if form == "tars" else ["image", "label", "sample_id"]
        source = spiral.sources.WebDataset if form == "tars" else spiral.sources.Mds
        identity = "__key__" if form == "tars" else "sample_id"
        catalog.register(form, source(remote or str(data.root / form), columns=names), identity=identity)
    return catalog


def batches(data: Data, form: str, remote: str = "") -> Iterator[tuple[Any, Any]]:
    import spiral_stream as spiral

    catalog = opened(data, form, remote)
    transforms = [spiral.RandomResizedCrop(SIDE), spiral.RandomHorizontalFlip(), spiral.Normalize(mean=MEAN, std=STD)]
    stream = (
        catalog.table(form)
        .sample(
            identity="__key__" if form == "tars" else "sample_id",
            order=spiral.ShardAwareShuffle(seed=17, shard_key=["storage_shard"], shuffle_block_size=1_000_000),
            epoch=spiral.RuntimeParam("epoch"),
        )
        .collate(
            batch_size=BATCH,
            last=spiral.DropPartial,
            fields={
                "image": spiral.Stack("image", decode="jpeg", transforms=transforms, dtype="float16", device="cuda"),
                "label": spiral.Stack("label", dtype="int64"),
            },
        )
        .to_torch(prefetch=4)
    )
    stream.bind(device="cpu", epoch=0)
    while True:
        for batch in stream:
            yield batch["image"], batch["label"]
