"""Grain over ArrayRecord, with threads: decoding releases the GIL; worker processes would copy every batch twice."""

import random
from collections.abc import Iterator

import grain
import lance
import numpy as np
import torch
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.peers.pixels import Finisher, crop_into
from benchmarks.peers.workload import BATCH, SIDE, Data, cores

PACKAGES = ("grain", "array-record", "simplejpeg", "opencv-python-headless")


def prepare(data: Data) -> None:
    """One ArrayRecord file a storage shard: 8 bytes of label, then the JPEG."""
    if data.records.exists():
        return
    unfinished = data.records.with_suffix(".unfinished")
    unfinished.mkdir(exist_ok=True)
    for number, fragment in enumerate(lance.dataset(data.tables / "imagenet_train.lance").get_fragments()):
        writer = ArrayRecordWriter(str(unfinished / f"part-{number:04d}.arrayrecord"), "group_size:1,uncompressed")
        for row in fragment.to_table(columns=["label_id", "image_ref"]).to_pylist():
            writer.write(row["label_id"].to_bytes(8, "little") + row["image_ref"])
        writer.close()
    unfinished.rename(data.records)


def _decode(records: list[bytes], numbers: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    rng = random.Random(int(numbers.integers(1 << 62)))
    pixels = np.empty((len(records), SIDE, SIDE, 3), np.uint8)
    for out, record in zip(pixels, records, strict=True):
        crop_into(memoryview(record)[8:], out, rng)
    return pixels, np.array([int.from_bytes(record[:8], "little") for record in records])


def batches(data: Data) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    source = grain.sources.ArrayRecordDataSource(sorted(map(str, data.records.glob("*.arrayrecord"))))
    dataset = (
        grain.MapDataset.source(source)
        .seed(17)
        .shuffle()
        .repeat()
        .batch(BATCH, drop_remainder=True, batch_fn=list)
        .random_map(_decode)
        .to_iter_dataset(grain.ReadOptions(num_threads=cores(), prefetch_buffer_size=cores() + 2))
    )
    finisher = Finisher()
    for pixels, labels in dataset:
        yield finisher.finish(pixels), torch.from_numpy(labels)
