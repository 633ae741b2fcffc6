"""One clip with torchcodec: `get_frames_played_at` the wanted times, one codec thread (the loader brings the threads).

``mode``: "exact" scans the file's packets when it is opened, "approximate" trusts its header, "mappings" gets the list
of frames that was made once (`prepare`). ``resize``: "decoder" gives its own transforms, Resize and CenterCrop, to the
decoder; "opencv" takes whole frames and resizes the crop's part only.
"""

import json
from functools import cache
from pathlib import Path

import av
import cv2
import numpy as np
import torch
from torchcodec.decoders import VideoDecoder
from torchcodec.transforms import CenterCrop, Resize

from benchmarks.peers.segments import SIDE, Footage, Segment

cv2.setNumThreads(0)  # the loaders bring the threads


def prepare(footage: Footage) -> None:
    """The frames of every file as torchcodec reads them, `<file>.json` beside it."""
    for path in [*footage.films.glob("*.mp4"), *footage.cut.glob("*.mp4")]:
        target = path.with_suffix(".json")
        if target.exists():
            continue
        with av.open(str(path)) as container:
            packets = [packet for packet in container.demux(video=0) if packet.pts is not None]
        frames = [{"pts": p.pts, "duration": p.duration, "key_frame": int(p.is_keyframe)} for p in packets]
        target.write_text(json.dumps({"frames": sorted(frames, key=lambda frame: frame["pts"])}))


@cache
def _mapping(path: str) -> str:
    return Path(path).with_suffix(".json").read_text()


def into(segment: Segment, out: np.ndarray, mode: str, resize: str) -> None:
    """Decode and resize into ``out`` [T, H, W, C]."""
    asked = {"dimension_order": "NHWC", "num_ffmpeg_threads": 1}
    if resize == "decoder":
        width, height = segment.resized
        asked["transforms"] = [Resize((height, width)), CenterCrop((SIDE, SIDE))]
    if mode == "mappings":
        decoder = VideoDecoder(segment.path, custom_frame_mappings=_mapping(segment.path), **asked)
    else:
        decoder = VideoDecoder(segment.path, seek_mode=mode, **asked)
    pictures = decoder.get_frames_played_at(segment.times).data
    if resize == "decoder":
        torch.from_numpy(out).copy_(pictures)
        return
    top, left, bottom, right = segment.box
    down = segment.height / segment.resized[1]
    y, x, side = round(top * down), round(left * down), round((bottom - top) * down)
    assert right - left == bottom - top
    for slot, picture in zip(out, pictures.numpy(), strict=True):
        cv2.resize(picture[y : y + side, x : x + side], (SIDE, SIDE), dst=slot)
