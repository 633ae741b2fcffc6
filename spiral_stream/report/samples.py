"""A few rows of a relation as people read them, and a contact sheet of its images or of the first frames of its videos.

Rows and pictures are evenly spaced over storage. A picture that cannot be decoded is an empty tile, and the sheet says why.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.cache.probes import index_of
from spiral_stream.catalog.opened import OpenRelation
from spiral_stream.decoders.frame_selection import segment_of
from spiral_stream.decoders.image import PillowDecoder
from spiral_stream.decoders.limits import CLIPS, IMAGES, need_pixels
from spiral_stream.errors import DataError, MissingExtraError, SourceError
from spiral_stream.plan.clips import TIMES
from spiral_stream.semantic import H264_REF, JPEG_REF, is_inline, is_list, is_media, semantic_of
from spiral_stream.sources.located import locate
from spiral_stream.sources.reference import resolve
from spiral_stream.wording import one_line, written

SIDE: Final = 110  # pixels of a tile
_GAP: Final = 4
_ACROSS: Final = 4  # tiles in one row: as wide as the pictures of a report
_PAPER: Final = (255, 255, 255)
_EMPTY: Final = (224, 224, 224)
_QUALITY: Final = 85

Pixels = NDArray[np.uint8]


@final
@dataclass(frozen=True, slots=True)
class ContactSheet:
    """Small pictures of some samples, as one JPEG."""

    column: str
    samples: tuple[str, ...]  # the identity of each tile
    faults: tuple[str, ...]  # what could not be decoded, and why
    width: int
    height: int
    jpeg: bytes


def sample_rows(relation: OpenRelation, count: int) -> list[dict[str, str]]:
    """Return some rows as texts. Payload that lies inline is not read."""
    names = [field.name for field in relation.schema if not _is_payload(field)]
    hidden = [field.name for field in relation.schema if _is_payload(field)]
    rows = relation.fetch(_spaced(relation, count), names).to_pylist()
    return [
        {name: "(inline bytes)" if name in hidden else written(row[name]) for name in relation.schema.names}
        for row in rows
    ]


def contact_sheet(relation: OpenRelation, count: int) -> ContactSheet | None:
    """Return pictures of the first column that refers to images or videos; None if there is none, or no rows."""
    kinds: Mapping[str, Callable[[OpenRelation, str, pa.Table, int], Pixels]] = {
        JPEG_REF: _image,
        H264_REF: _first_frame,
    }
    shown = (
        f for f in relation.schema if semantic_of(f) == JPEG_REF or (semantic_of(f) in kinds and not is_list(f.type))
    )
    found = next(((f.name, kinds[semantic_of(f) or ""]) for f in shown), None)
    ordinals = _spaced(relation, count)
    if found is None or not len(ordinals):
        return None
    column, picture = found
    identity, times = relation.entry.identity, [name for name in TIMES if name in relation.schema.names]
    table = relation.fetch(ordinals, list(dict.fromkeys([*identity, *times, column])))
    names = [one_line(" ".join(str(row[name]) for name in identity)) for row in table.select(identity).to_pylist()]
    tiles, faults = list[Pixels | None](), list[str]()
    for k, name in enumerate(names):
        try:
            tiles.append(picture(relation, column, table, k))
        except MissingExtraError as error:
            return ContactSheet(column, (), (str(error),), 0, 0, b"")
        except SourceError as error:
            tiles.append(None)
            faults.append(f"{name}: {error}")
    width, height, jpeg = _sheet(tiles)
    return ContactSheet(column, tuple(names), tuple(faults), width, height, jpeg)


def _spaced(relation: OpenRelation, count: int) -> NDArray[np.uint64]:
    """Evenly spaced rows, each once: all of them, if more are asked for than there are."""
    total = relation.manifest.total
    count = min(count, total)
    return np.unique(np.array([(2 * k + 1) * total // (2 * count) for k in range(count)], np.uint64))


def _is_payload(field: pa.Field) -> bool:
    """Whether a column may hold megabytes in a row."""
    kind = field.type.value_type if is_list(field.type) else field.type
    inline = is_inline(kind) or is_media(kind) or _is_extension(kind)
    blob = pa.types.is_struct(kind) and {each.name for each in kind} >= {"kind", "position", "size"}
    return bool(inline or blob)


def _is_extension(kind: Any) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


def _image(relation: OpenRelation, column: str, table: pa.Table, k: int) -> Pixels:
    """The image of a row, or the first of its list."""
    value = table[column].slice(k, 1)
    if is_list(value.type):
        value = pc.list_flatten(value).slice(0, 1)
        if not len(value):
            msg = "the list has no image"
            raise DataError(msg)
    (data,) = resolve(value, relation.base, IMAGES.bytes)
    return PillowDecoder().decode(data)


def _first_frame(relation: OpenRelation, column: str, table: pa.Table, k: int) -> Pixels:
    """The first frame of a row's segment, upright."""
    (located,) = locate(table[column].slice(k, 1), relation.base)
    index = index_of(located)  # asks for PyAV
    from spiral_stream.decoders.rgb import to_rgb
    from spiral_stream.decoders.video import decode

    start, lasts = (table[name][k].as_py() if name in table.column_names else None for name in TIMES)
    first = segment_of(index.times_F, index.duration, start, lasts).first
    height, width = index.displayed
    need_pixels("first frame", height, width, CLIPS.pixels)
    frames = decode(index, located.read, np.array([first], np.int64), located.size)
    out = np.empty((width * 3 * height + 63) & ~63, np.uint8)
    to_rgb(frames, np.array([[0, 0, height, width]], np.int32), index.rotation, index.full_range, index.matrix, out)
    return out[: width * 3 * height].reshape(height, width, 3)


def _sheet(tiles: Sequence[Pixels | None]) -> tuple[int, int, bytes]:
    """Lay the pictures out, each as large as its tile allows; return width, height and JPEG."""
    from PIL import Image

    across, step = min(_ACROSS, len(tiles)), SIDE + _GAP
    width, height = across * step + _GAP, -(-len(tiles) // across) * step + _GAP
    paper = Image.new("RGB", (width, height), _PAPER)
    for k, pixels in enumerate(tiles):
        left, top = _GAP + k % across * step, _GAP + k // across * step
        if pixels is None:
            paper.paste(_EMPTY, (left, top, left + SIDE, top + SIDE))
            continue
        tile = Image.fromarray(pixels)
        tile.thumbnail((SIDE, SIDE))
        paper.paste(tile, (left + (SIDE - tile.width) // 2, top + (SIDE - tile.height) // 2))
    file = BytesIO()
    paper.save(file, "JPEG", quality=_QUALITY)
    return width, height, file.getvalue()
