"""The drawn images as tars of 256 samples, ``<id>.jpg`` and ``<id>.cls``, which the webdataset library wrote."""

from pathlib import Path

import webdataset as wds

from benchmarks.peers.workload import Data

SAMPLES = 256


def tars(data: Data) -> Path:
    """Return the folder of the tars; writes it once."""
    out, unfinished = data.root / "tars", data.root / "tars-unfinished"
    if out.exists():
        return out
    unfinished.mkdir(exist_ok=True)
    classes = sorted(path.name for path in (data.folder / "train").iterdir())
    images = sorted((data.folder / "train").glob("*/*.jpg"), key=lambda path: path.name)
    with wds.ShardWriter(f"{unfinished}/%06d.tar", maxcount=SAMPLES, verbose=0) as writer:
        for path in images:
            label = classes.index(path.parent.name)
            writer.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": label})
    unfinished.rename(out)
    return out
