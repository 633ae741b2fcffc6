"""Hugging Face datasets: the folder becomes an Arrow table in its cache."""

import sys

from datasets import load_dataset

photos = load_dataset("imagefolder", data_dir=sys.argv[1], split="train", cache_dir="cache")
for batch in photos.shuffle(seed=17).with_format("torch").iter(batch_size=256):
    image = batch["image"].float() / 255
    print(image.shape, image.dtype, batch["label"].dtype, flush=True)
    break
