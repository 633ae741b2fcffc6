"""One clip with PyAV, as an expert writes it by hand.

One codec thread (the loader brings the threads), a seek to the key frame before the first wanted time, decoding until the
last wanted frame is there. Then ``swscale``: colour and size in one call of a reformatter kept per thread, which PyAV's
`frame.reformat` and `to_ndarray` would make anew for each frame, on threads of its own; ``opencv``: planes to RGB, the crop's
part of the picture only resized. Measured per CPU second, see `benchmarks/README.md`.
"""

import threading

import av
import cv2
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter

from benchmarks.peers.segments import SIDE, Segment

cv2.setNumThreads(0)  # the loaders bring the threads

_OWN = threading.local()  # a reformatter keeps one swscale context, so each thread has one for each size


def frames_of(segment: Segment) -> tuple[list[av.VideoFrame], int]:
    """The wanted frames in order, one a wanted time, and how many were decoded."""
    wanted, found, decoded = segment.times, [], 0
    with av.open(segment.path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        tick = stream.time_base
        zero = stream.start_time or 0
        due = [zero + int(time / tick + 1e-3) for time in wanted]
        if segment.start > 0:
            container.seek(due[0], stream=stream, backward=True)
        shown = None
        for frame in container.decode(stream):
            decoded += 1
            while len(found) < len(due) and shown is not None and frame.pts > due[len(found)]:
                found.append(shown)
            if len(found) == len(due):
                break
            shown = frame
            if frame.pts + frame.duration > due[-1]:  # it is the last one: the next need not be decoded
                break
        found += [shown] * (len(due) - len(found))
    return found, decoded


def swscale_into(segment: Segment, out: np.ndarray) -> int:
    """Decode, scale with swscale, crop into ``out`` [T, H, W, C]; how many frames were decoded."""
    found, decoded = frames_of(segment)
    width, height = segment.resized
    top, left, bottom, right = segment.box
    if not hasattr(_OWN, "scalers"):
        _OWN.scalers = {}
    scaler = _OWN.scalers.setdefault((segment.width, segment.height), VideoReformatter())
    for slot, frame in zip(out, found, strict=True):
        scaled = scaler.reformat(frame, width, height, "rgb24", interpolation=Interpolation.BILINEAR, threads=1)
        plane = scaled.planes[0]
        picture = (
            np.frombuffer(plane, np.uint8).reshape(height, plane.line_size)[:, : width * 3].reshape(height, width, 3)
        )
        slot[:] = picture[top:bottom, left:right]
    return decoded


def opencv_into(segment: Segment, out: np.ndarray) -> int:
    """Decode, turn into RGB and resize the crop's part with OpenCV into ``out`` [T, H, W, C]; how many were decoded."""
    found, decoded = frames_of(segment)
    width, height = segment.resized
    top, left, bottom, right = segment.box
    down, across = segment.height / height, segment.width / width
    y, x = round(top * down), round(left * across)
    rows, columns = round((bottom - top) * down), round((right - left) * across)
    for slot, frame in zip(out, found, strict=True):
        picture = cv2.cvtColor(frame.to_ndarray(), cv2.COLOR_YUV2RGB_I420)
        cv2.resize(picture[y : y + rows, x : x + columns], (SIDE, SIDE), dst=slot)
    return decoded


INTO = {"swscale": swscale_into, "opencv": opencv_into}
