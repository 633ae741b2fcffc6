"""Which byte ranges of an object are read in one request: those that lie nearer to each other than a round trip costs."""

from collections.abc import Sequence
from typing import Final

from spiral_stream.storage.store import Get

GAP_BYTES: Final = 64 << 10  # ranges of one object nearer than this are one request: less than a round trip costs
READ_BYTES: Final = 32 << 20  # most bytes of one request for several ranges


def coalesced(wanted: Sequence[Get]) -> list[list[int]]:
    """Return which of the asked bytes are read in one request, as places in ``wanted``."""
    runs: list[list[int]] = []
    end = 0
    ordered = sorted(range(len(wanted)), key=lambda at: (wanted[at].key, wanted[at].length is None, wanted[at].start))
    for at in ordered:
        each = wanted[at]
        first = wanted[runs[-1][0]] if runs else None
        if first is None or first.key != each.key or (first.length is None) != (each.length is None):
            runs.append([at])
        elif each.length is None:
            near = first.start == each.start and first.most_bytes == each.most_bytes
            runs[-1].append(at) if near else runs.append([at])
            continue
        elif each.start < end + GAP_BYTES and max(end, each.start + each.length) - first.start <= READ_BYTES:
            runs[-1].append(at)
            end = max(end, each.start + each.length)
            continue
        else:
            runs.append([at])
        end = each.start + (each.length or 0)
    return runs
