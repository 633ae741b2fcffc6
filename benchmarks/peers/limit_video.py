"""No loader and no pixels: libavcodec alone, a thread a core, on the same segments.

``all``: every frame from the key frame to the last wanted one, as every peer decodes them; nothing over it can
beat it. ``needed``: the same with the disposable frames that nobody wants left out (`skip_frame`), a trick that none
of the peers knows.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import av
import torch

from benchmarks.peers.pyav_clip import frames_of
from benchmarks.peers.segments import BATCH, FRAMES, SIDE, Footage, Segment, cores, shuffled


def packages(**_: str) -> tuple[str, ...]:
    return ("av",)


def _all(segment: Segment) -> int:
    return frames_of(segment)[1]


def _needed(segment: Segment) -> int:
    """How many frames came out; the decoder is told to drop unwanted frames that no other refers to."""
    wanted, decoded = set(segment.ordinals), 0
    with av.open(segment.path) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        context.thread_count = 1
        tick = stream.time_base
        zero = stream.start_time or 0
        if segment.start > 0:
            container.seek(zero + int(segment.times[0] / tick), stream=stream, backward=True)
        for packet in container.demux(stream):
            ordinal = None if packet.pts is None else round((packet.pts - zero) * tick * segment.fps)
            context.skip_frame = "DEFAULT" if ordinal is None or ordinal in wanted else "NONREF"
            shown = packet.decode()
            decoded += len(shown)
            if any(round((frame.pts - zero) * tick * segment.fps) >= max(wanted) for frame in shown):
                break
    return decoded


def prepare(footage: Footage, kind: str, frames: str) -> dict[str, str]:
    """How many frames are decoded for each one kept."""
    segments = footage.segments(kind)
    with ThreadPoolExecutor(cores()) as pool:
        decoded = sum(pool.map({"all": _all, "needed": _needed}[frames], segments))
    return {"frames decoded for each one kept": f"{decoded / len(segments) / FRAMES:.2f}"}


def batches(footage: Footage, kind: str, at_once: int, frames: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    torch.set_num_threads(1)
    decode = {"all": _all, "needed": _needed}[frames]
    segments = footage.segments(kind)
    nothing = torch.zeros((), dtype=torch.float16).expand(BATCH, FRAMES, 3, SIDE, SIDE)
    order = (number for numbers in shuffled(len(segments)) for number in numbers)
    with ThreadPoolExecutor(at_once) as pool:
        waiting = [(n, pool.submit(decode, segments[n])) for n in islice(order, 2 * BATCH)]
        while True:
            done, waiting = waiting[:BATCH], waiting[BATCH:]
            for _, clip in done:
                clip.result()
            waiting += [(n, pool.submit(decode, segments[n])) for n in islice(order, BATCH)]
            yield nothing, torch.tensor([n for n, _ in done])
