"""One clip with SPDL's own decoder: demux the segment, decode once, and let FFmpeg's filters select, scale and crop.

Only the selected frames are scaled and turned into RGB; `sample_decode_video` would do that to every frame.
"""

import numpy as np
import spdl.io

from benchmarks.peers.segments import SIDE, Segment


def into(segment: Segment, out: np.ndarray) -> None:
    """Decode and resize into ``out`` [T, H, W, C]."""
    packets = spdl.io.demux_video(segment.path, timestamp=(segment.start, segment.times[-1] + 1 / segment.fps))
    first = round(min(packets.get_timestamps(raw=True)) * segment.fps)  # the key frame before the segment
    chosen = "+".join(f"eq(n\\,{ordinal - first})" for ordinal in segment.ordinals)
    width, height = segment.resized
    graph = f"select='{chosen}',scale={width}:{height}:flags=bilinear,crop={SIDE}:{SIDE},format=pix_fmts=rgb24"
    frames = spdl.io.decode_packets(packets, filter_desc=graph)
    out[:] = spdl.io.to_numpy(spdl.io.convert_frames(frames))
