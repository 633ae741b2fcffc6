"""Mosaic streaming: the folder becomes MDS shards."""

import sys
from pathlib import Path

from PIL import Image
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader
from torchvision.transforms.functional import to_tensor


class Photos(StreamingDataset):
    def __getitem__(self, at):
        sample = super().__getitem__(at)
        return to_tensor(sample["image"]), sample["label"]


if not Path("shards").exists():
    with MDSWriter(out="shards", columns={"image": "jpeg", "label": "int"}) as writer:
        for label, folder in enumerate(sorted(Path(sys.argv[1]).iterdir())):
            for path in sorted(folder.iterdir()):
                writer.write({"image": Image.open(path), "label": label})
photos = Photos(local="shards", shuffle=True, batch_size=256)
for image, label in DataLoader(photos, batch_size=256):
    print(image.shape, image.dtype, label.dtype, flush=True)
    break
