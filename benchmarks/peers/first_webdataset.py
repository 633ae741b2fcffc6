"""webdataset: the folder becomes tars; tars and a buffer of 1,000 samples are shuffled."""

import sys
from pathlib import Path

import torch
import webdataset as wds

if not Path("tars").exists():
    Path("tars").mkdir()
    with wds.ShardWriter("tars/%04d.tar", maxcount=1000, verbose=0) as writer:
        for label, folder in enumerate(sorted(Path(sys.argv[1]).iterdir())):
            for path in sorted(folder.iterdir()):
                writer.write({"__key__": f"{folder.name}_{path.stem}", "jpg": path.read_bytes(), "cls": label})
tars = wds.WebDataset("tars/{0000..0099}.tar", shardshuffle=100).shuffle(1000)
for image, label in tars.decode("torchrgb").to_tuple("jpg", "cls").batched(256):
    labels = torch.as_tensor(label)
    print(image.shape, image.dtype, labels.dtype, flush=True)
    break
