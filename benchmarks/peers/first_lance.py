"""Lance's own loader for torch: the folder becomes a table; rows are taken by number."""

import io
import sys
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import torch
from lance.torch.data import SafeLanceDataset
from PIL import Image
from torch.utils.data import DataLoader

SCHEMA = pa.schema({"image": pa.binary(), "label": pa.int64()})


def rows(root):
    for label, folder in enumerate(sorted(Path(root).iterdir())):
        images = [path.read_bytes() for path in sorted(folder.iterdir())]
        yield pa.record_batch([images, [label] * len(images)], schema=SCHEMA)


def tensors(batch):
    images = [np.asarray(Image.open(io.BytesIO(row["image"]))) for row in batch]
    image = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    return image, torch.tensor([row["label"] for row in batch])


if not Path("photos.lance").exists():
    lance.write_dataset(rows(sys.argv[1]), "photos.lance", schema=SCHEMA)
loader = DataLoader(SafeLanceDataset("photos.lance"), batch_size=256, shuffle=True, collate_fn=tensors)
for image, label in loader:
    print(image.shape, image.dtype, label.dtype, flush=True)
    break
