"""What every system is asked for, and where its bytes lie.

W1: JPEG -> random resized crop 224 -> flip -> normalise -> float16 NCHW, batches of 256.
"""

import os
from dataclasses import dataclass
from pathlib import Path

BATCH = 256
SIDE = 224
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Data:
    """The same images in every system's own format, under one folder."""

    root: Path

    @property
    def tables(self) -> Path:
        """Lance datasets `imagenet_train` and `imagenet_labels`; also a LanceDB database."""
        return self.root / "tables"

    @property
    def folder(self) -> Path:
        """`train/<class>/<id>.jpg`."""
        return self.root / "folder"

    @property
    def records(self) -> Path:
        """ArrayRecord files, one a storage shard."""
        return self.root / "records"


def cores() -> int:
    """How many cores this process may use; the harness has pinned it."""
    return len(os.sched_getaffinity(0))
