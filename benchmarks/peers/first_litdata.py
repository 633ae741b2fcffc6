"""LitData: the folder becomes chunks, written by its own processes."""

import sys
from pathlib import Path

import litdata as ld
from PIL import Image


def sample(item):
    path, label = item
    return {"image": Image.open(path), "label": label}


def tensors(item):
    return {"image": item["image"].float() / 255, "label": item["label"]}


if __name__ == "__main__":
    if not Path("chunks").exists():
        folders = sorted(Path(sys.argv[1]).iterdir())
        inputs = [(str(path), label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
        ld.optimize(sample, inputs, "chunks", chunk_bytes="64MB", num_workers=2)
    photos = ld.StreamingDataset("chunks", shuffle=True, transform=tensors)
    for batch in ld.StreamingDataLoader(photos, batch_size=256):
        print(batch["image"].shape, batch["image"].dtype, batch["label"].dtype, flush=True)
        break
