"""Ours: the field of the example program `video.training_segments`, from originals or from a clip cache declared in the plan."""

import os
from collections.abc import Iterator
from typing import Any

import torch

import spiral_stream as spiraldb
from benchmarks.peers.segments import BATCH, FRAMES, SHORTER, SIDE, Footage
from spiral_stream import DataParallel, DropPartial, HashBucketed, RuntimeParam, ShuffleBuckets, Stack

PROFILES = {"raw": {"shorter_side": SHORTER}, "jpeg": {"shorter_side": SHORTER, "quality": 90}}


def packages(**_: str) -> tuple[str, ...]:
    return ("spiral-stream", "av", "simplejpeg", "pylance", "torch")


def _stream(footage: Footage, kind: str, cache: str, threads: int | None = None) -> Any:
    os.environ["SPIRAL_CATALOG"] = str(footage.root / "catalog")
    os.environ["SPIRAL_CACHE"] = str(footage.root / f"caches-{cache}")
    catalog = spiraldb.connect(str(footage.root / "catalog"))
    name = f"video.{kind}"
    if name not in catalog.tables():
        source = spiraldb.Lance(str(footage.tables / f"{kind}.lance"))
        semantic = {"clip_ref": "video/h264-ref"}
        catalog.register(name, source, identity="sample_id", shard="storage_shard", semantic=semantic)
    relation = catalog.table(name)
    if cache in PROFILES:
        relation = relation.cache(clip_ref=spiraldb.Frames(**PROFILES[cache]))
    stream = (
        relation.sample(
            identity="sample_id",
            order=HashBucketed(seed=17, bucket_count=64, bucket_order=ShuffleBuckets(seed=17)),
            epoch=RuntimeParam("epoch"),
            assignment=DataParallel(
                rank=RuntimeParam("data_parallel_rank"), world_size=RuntimeParam("data_parallel_world_size")
            ),
        )
        .collate(
            batch_size=BATCH,
            last=DropPartial,
            fields={
                "frames": Stack(
                    "clip_ref", decode="h264", sequence_length=FRAMES, resize_shorter=SHORTER, crop=SIDE,
                    dtype="float16", layout="ntchw", device="cuda",
                ),
                "number": Stack("number", dtype="int64"),
            },
        )
        .to_torch(prefetch=2)
    )  # fmt: skip
    return stream if threads is None else type(stream)(stream.plan, stream.catalog, threads=threads)


def prepare(footage: Footage, kind: str, cache: str) -> dict[str, str]:
    """Build the video index, or the clip cache; how large it is, and what EXPLAIN says of over-read."""
    with _stream(footage, kind, cache) as stream:
        stream.bind(device="cpu", epoch=0, data_parallel_rank=0, data_parallel_world_size=1)
        stream.materialize()
        explained = str(stream.explain()).splitlines()
    folder = footage.root / f"caches-{cache}"
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    notes = {"MB on disk": f"{size / 1e6:,.0f}"}
    for line in explained:
        if "over-read of frames" in line:
            notes["over-read"] = line.partition("over-read of frames")[2].strip()
    return notes


def batches(footage: Footage, kind: str, at_once: int, cache: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    stream = _stream(footage, kind, cache, at_once)
    stream.bind(device="cpu", epoch=0, data_parallel_rank=0, data_parallel_world_size=1)
    while True:  # an exhausted stream stands at the start of the next epoch
        for batch in stream:
            yield batch["frames"], batch["number"]
