"""One measurement of video: one system, in a process of its own, pinned to its cores.

Clips between batch borders over whole epochs, after one epoch, so that every clip counts equally often. `--verify`
compares a batch's frames with a decode of the whole file: each must be nearer to the wanted frame than to the ones
before and after it. `--memory` gives the peak of the process tree's proportional memory (PSS) with ``--at-once`` clips
decoded at a time.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.cell import tree_cpu_s
from benchmarks.peers.segments import BATCH, FRAMES, SHORTER, SIDE, Footage, Segment

Batch = tuple[torch.Tensor, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kind", default="segments", choices=("segments", "cut"))
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=0, help="clips decoded at a time; as many as cores unless given")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warmup", type=int, default=6, help="batches")
    for action in ("prepare", "verify", "memory"):
        parser.add_argument(f"--{action}", action="store_true")
    asked = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.cores])
    footage = Footage(asked.data)
    try:
        peer = importlib.import_module(f"benchmarks.peers.{asked.module}")
        if asked.prepare:
            notes = peer.prepare(footage, asked.kind, **asked.options) if hasattr(peer, "prepare") else None
            versions = {name: importlib.metadata.version(name) for name in peer.packages(**asked.options)}
            print(json.dumps({"versions": versions, "notes": notes or {}}))
            return
    except (ImportError, OSError) as error:  # a package is not installed, or a library that it loads
        print(json.dumps({"missing": str(error)}))
        return
    began = time.perf_counter()
    source = iter(peer.batches(footage, asked.kind, asked.at_once or asked.cores, **asked.options))
    if asked.verify:
        found = verify(next(source), {segment.number: segment for segment in footage.segments(asked.kind)})
    elif asked.memory:
        found = memory(source, asked.warmup)
    else:
        epoch = len(footage.segments(asked.kind)) // BATCH
        found = measure(source, began, asked.warmup, asked.seconds, epoch)
    print(json.dumps(found), flush=True)
    os._exit(0)  # peers' threads and workers may wait for a consumer that has left


def measure(source: Iterator[Batch], began: float, warmup: int, seconds: float, epoch: int) -> dict[str, float]:
    """Count clips over whole epochs of ``epoch`` batches, for ``seconds`` or longer, after ``warmup`` batches."""
    check(*next(source))
    first_s = time.perf_counter() - began
    for _ in range(warmup - 1):
        next(source)
    start, cpu, clips = time.perf_counter(), tree_cpu_s(os.getpid()), 0
    while clips == 0 or time.perf_counter() - start < seconds:
        for _ in range(epoch):
            next(source)
            clips += BATCH
    wall_s, cpu_s = time.perf_counter() - start, tree_cpu_s(os.getpid()) - cpu
    return {
        "clips": clips, "wall_s": wall_s, "cpu_s": cpu_s, "per_cpu_s": clips / cpu_s, "per_s": clips / wall_s,
        "first_s": first_s,
    }  # fmt: skip


def check(frames: torch.Tensor, numbers: torch.Tensor) -> None:
    """The batch is what was asked for: shape, type, layout, and values between 0 and 1."""
    assert frames.shape == (BATCH, FRAMES, 3, SIDE, SIDE), frames.shape
    assert frames.dtype == torch.float16, frames.dtype
    assert numbers.shape == (BATCH,), numbers.shape
    assert numbers.dtype == torch.int64, numbers.dtype
    assert 0 <= frames[::8].min() <= frames[::8].max() <= 1


def verify(batch: Batch, segments: dict[int, Segment]) -> dict[str, float]:
    """Compare eight clips with their files: the mean difference, in steps of 1/255, and the share of right frames.

    A frame is right that is nearer to the wanted one than to those beside it. Who crops before resizing is off by up to
    half a pixel, and a slow camera moves less than that between two frames.

    Raises:
        AssertionError: more than a twentieth of the frames look more like a neighbour in the film than like the wanted one.
    """
    check(*batch)
    differences, right = [], []
    for frames, number in zip(batch[0][::4], batch[1][::4].tolist(), strict=True):
        film = references(segments[number])
        for got, ordinal in zip(frames.float() * 255, segments[number].ordinals, strict=True):
            near = {
                at: float((got - film[at]).abs().mean()) for at in (ordinal - 1, ordinal, ordinal + 1) if at in film
            }
            right.append(min(near, key=near.__getitem__) == ordinal)
            differences.append(near[ordinal])
    share = sum(right) / len(right)
    assert share >= 0.95, f"{1 - share:.0%} of the frames are nearer to another one than to the wanted one"
    return {"difference": sum(differences) / len(differences), "right": share}


def references(segment: Segment) -> dict[int, torch.Tensor]:
    """The wanted frames and their neighbours, [3, SIDE, SIDE] float32 in 0 to 255, by number, from a decode of the whole file."""
    import av

    wanted = {ordinal + step for ordinal in segment.ordinals for step in (-1, 0, 1)}
    found = {}
    with av.open(segment.path) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                found[number] = _rendered(torch.from_numpy(frame.to_ndarray(format="rgb24")))
    return found


def _rendered(picture: torch.Tensor) -> torch.Tensor:
    from torchvision.transforms import v2

    resized = v2.functional.resize(picture.permute(2, 0, 1), [SHORTER], antialias=True)
    return v2.functional.center_crop(resized, [SIDE, SIDE]).float()


def memory(source: Iterator[Batch], batches: int) -> dict[str, float]:
    """Megabytes of the process tree: PSS before the first batch was asked for, and its peak over ``batches``."""
    before, peak, done = tree_pss_mb(os.getpid()), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            peak[0] = max(peak[0], tree_pss_mb(os.getpid()))

    watcher = threading.Thread(target=watch, name="watch-memory")
    watcher.start()
    for _ in range(batches):
        next(source)
    done.set()
    watcher.join()
    return {"before_mb": before, "peak_mb": peak[0]}


def tree_pss_mb(root: int) -> float:
    """Proportional set size of a process and its living descendants: shared pages are counted once."""
    waiting, total = [root], 0
    while waiting:
        pid = waiting.pop()
        folder = Path(f"/proc/{pid}")
        try:
            for line in (folder / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
            for task in (folder / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended since the listing
    return total / 1_000


if __name__ == "__main__":
    main()
