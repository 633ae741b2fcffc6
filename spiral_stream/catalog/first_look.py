"""What a few files show before any is decoded: videos of a codec that Spiral refuses.

A listing knows names and sizes. Whether a film is H.264 stands in its header, which costs 1 to 5 ms of CPU to read. So
`LOOKED_AT` files are looked at, spread over all: all files of most folders. Files on a store are not, since each look is a
request. Films in the rows themselves are not, since reading one of them reads all.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Final

import numpy as np
import pyarrow as pa

from spiral_stream.errors import SpiralError
from spiral_stream.semantic import H264_REF, file_names, is_media, semantic_of
from spiral_stream.sources.references.objects import names_objects
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.ranged import locate
from spiral_stream.sources.source import Reader
from spiral_stream.threads import thread_share

LOOKED_AT: Final = 256
_THREADS: Final = 4
_READ: Final = "h264"


def refused_videos(reader: Reader, schema: pa.Schema) -> str | None:
    """Say how many videos of which codec will be refused; None where all that were looked at are read, or none were.

    Args:
        reader: the open source.
        schema: of the relation, with semantic types.
    """
    columns = [
        field.name
        for field in schema
        if semantic_of(field) == H264_REF and field.name in reader.schema.names and _names_files(field.type)
    ]
    total = sum(unit.rows for unit in reader.units())
    if not columns or not total or reader.remote or find_spec("av") is None:
        return None
    rows = np.unique(np.linspace(0, total - 1, min(total, LOOKED_AT)).astype(np.uint64))
    found, looked = Counter[str](), 0
    reach = Reach(reader.base, confined=not reader.allow_outside)
    for column in columns:
        values = reader.fetch(rows, [column])[column].drop_null()
        if names_objects(values, reach):
            continue
        with ThreadPoolExecutor(thread_share().waiting(_THREADS)) as pool:
            codecs = list(pool.map(lambda at, values=values: _codec(values.slice(at, 1), reach), range(len(values))))
        looked += len(codecs)
        found.update(codec for codec in codecs if codec not in ("", _READ))
    if not found:
        return None
    named = ", ".join(f"{count:,} {'is' if count == 1 else 'are'} {codec}" for codec, count in found.most_common())
    of = f"of {looked:,} videos" if looked >= total * len(columns) else f"of {looked:,} videos that were looked at"
    return (
        f"{of} {named}, which will be refused, since {_READ} is what is decoded. Re-encode them "
        "(ffmpeg -i in -c:v libx264 out.mp4), or filter their rows out"
    )


def _names_files(kind: pa.DataType) -> bool:
    return not is_media(kind) and file_names(pa.nulls(0, kind)) is not None


def _codec(reference: pa.ChunkedArray, reach: Reach) -> str:
    """The codec of a video; "" where none can be told, which whoever decodes it says."""
    from spiral_stream.decoders.video.probing import codec_of

    try:
        [located] = locate(reference, reach)
        return codec_of(located.read, located.size, located.name)
    except SpiralError:
        return ""
