"""Hugging Face datasets, streaming: nothing is kept, and a buffer of 1,000 samples is shuffled."""

import sys

from datasets import load_dataset

photos = load_dataset("imagefolder", data_dir=sys.argv[1], split="train", streaming=True)
for batch in photos.shuffle(seed=17, buffer_size=1000).with_format("torch").iter(batch_size=256):
    image = batch["image"].float() / 255
    print(image.shape, image.dtype, batch["label"].dtype, flush=True)
    break
