"""Ours: the example program of `vision.imagenet_train`, from originals or from a cache declared in the plan."""

import os
from collections.abc import Iterator
from typing import Any

from benchmarks.peers.workload import BATCH, MEAN, SIDE, STD, Data

PACKAGES = ("spiral-stream", "simplejpeg", "pylance", "torch")


def program(data: Data, cache: str) -> Any:
    """The stream of that example program on the benchmark's catalog, with ``cache`` one of none, source, jpeg, raw."""
    os.environ["SPIRAL_CATALOG"] = str(data.root / "catalog")
    # Without a declared profile the bytes are kept as they are, so "none" and "source" differ in the folder alone.
    os.environ["SPIRAL_CACHE"] = str(data.root / ("caches" if cache != "source" else "caches-source"))
    import spiral_stream as spiraldb
    from spiral_stream import (
        DataParallel,
        DropPartial,
        List,
        Normalize,
        RandomHorizontalFlip,
        RandomResizedCrop,
        Raw,
        RuntimeParam,
        ShardAwareShuffle,
        Stack,
        col,
    )
    from spiral_stream.profiles import Jpeg

    catalog = spiraldb.connect(str(data.root / "catalog"))
    if "vision.imagenet_train" not in catalog.tables():
        catalog.register(
            "vision.imagenet_train", spiraldb.Lance(str(data.tables / "imagenet_train.lance")), identity="sample_id",
            shard="storage_shard", semantic={"image_ref": "image/jpeg-ref"},
        )  # fmt: skip
        catalog.register(
            "vision.imagenet_labels", spiraldb.Lance(str(data.tables / "imagenet_labels.lance")), identity="label_id"
        )
    relation = (
        spiraldb.table("vision.imagenet_train")
        .join(spiraldb.table("vision.imagenet_labels"), on="label_id")
        .filter(col("split") == "train")
    )
    if cache in ("jpeg", "raw"):
        relation = relation.cache(image_ref={"jpeg": Jpeg, "raw": Raw}[cache](shorter_side=256))
    return (
        relation.sample(
            identity="sample_id",
            order=ShardAwareShuffle(seed=17, shard_key=["storage_shard"], shuffle_block_size=1_000_000),
            epoch=RuntimeParam("epoch"),
            assignment=DataParallel(
                rank=RuntimeParam("data_parallel_rank"), world_size=RuntimeParam("data_parallel_world_size")
            ),
        )
        .collate(
            batch_size=BATCH,
            last=DropPartial,
            fields={
                "image": Stack(
                    "image_ref",
                    decode="jpeg",
                    transforms=[RandomResizedCrop(size=SIDE), RandomHorizontalFlip(), Normalize(mean=MEAN, std=STD)],
                    dtype="float16",
                    layout="nchw",
                    device="cuda",
                ),
                "label": Stack("label_id", dtype="int64"),
                "sample_id": List("sample_id"),
            },
        )
        .to_torch(prefetch=4)
    )


def prepare(data: Data, cache: str) -> None:
    if cache != "none":
        program(data, cache).materialize()


def batches(data: Data, cache: str) -> Iterator[tuple[Any, Any]]:
    stream = program(data, cache)
    stream.bind(device="cpu", epoch=0, data_parallel_rank=0, data_parallel_world_size=1)
    while True:  # an exhausted stream stands at the start of the next epoch
        for batch in stream:
            yield batch["image"], batch["label"]
