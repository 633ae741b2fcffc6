"""torchvision: its own class folders, torch's own loader."""

import sys

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

photos = ImageFolder(sys.argv[1], transform=ToTensor())
for image, label in DataLoader(photos, batch_size=256, shuffle=True):
    print(image.shape, image.dtype, label.dtype, flush=True)
    break
