"""A few rows of a relation as people read them, and what their references name: small pictures, clips and sounds.

Rows are evenly spaced over storage. A payload that cannot be decoded is named, and stops nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.cache.kinds.probes import index_of
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.decoders.image.image import PillowDecoder
from spiral_stream.decoders.limits import CLIPS, IMAGES, need_pixels
from spiral_stream.decoders.sound.sound_selection import SOUNDS, SoundSelection
from spiral_stream.decoders.video.frame_selection import segment_of
from spiral_stream.display.wording import one_line, written
from spiral_stream.errors import DataError, MissingExtraError, SourceError
from spiral_stream.looking.contact_sheet import Sheet, Sound, Strip, Tile
from spiral_stream.looking.media import fitted
from spiral_stream.plan.fields.clips import TIMES
from spiral_stream.semantic import AUDIO_REF, H264_REF, JPEG_REF, is_inline, is_list, is_media, semantic_of
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.ranged import locate
from spiral_stream.sources.references.resolve import resolve

_SIDE: Final = 320  # pixels of a picture that is kept
_COLUMNS: Final = 3  # of references that are shown
_IMAGES: Final = 6  # of a list
_FRAMES: Final = 12  # of a clip, every second one from its first on
_STEP: Final = 2
_RATE_HZ: Final = 16_000
_HEARD: Final = SoundSelection(_RATE_HZ, 4 * _RATE_HZ)

Pixels = NDArray[np.uint8]
Rows = tuple[pa.Table, Reach]  # some rows, and what their references mean


def sample_rows(relation: OpenRelation, count: int) -> list[dict[str, str]]:
    """Return some rows as texts. Payload that lies inline is not read."""
    names = [each.name for each in relation.schema if not is_payload(each)]
    return as_texts(relation.fetch(_spaced(relation, count), names), relation.schema)


def as_texts(rows: pa.Table, schema: pa.Schema) -> list[dict[str, str]]:
    """Write rows as texts; columns of the schema that they lack are payload."""
    hidden = set(schema.names) - set(rows.column_names)
    return [
        {name: "(inline bytes)" if name in hidden else written(row[name]) for name in schema.names}
        for row in rows.to_pylist()
    ]


def sample_sheet(relation: OpenRelation, count: int) -> Sheet | None:
    """Return what the references of some rows name; None if no column refers to anything, or there are no rows."""
    shown = references(relation.schema)
    ordinals = _spaced(relation, count)
    if not shown or not len(ordinals):
        return None
    times = [name for name in TIMES if name in relation.schema.names]
    table = relation.fetch(ordinals, list(dict.fromkeys([*relation.entry.identity, *times, *shown])))
    return sheet_of(table, relation.schema, relation.base, relation.entry.identity)


def references(schema: pa.Schema) -> list[str]:
    """The columns that refer to what can be shown."""
    return [
        each.name
        for each in schema
        if semantic_of(each) == JPEG_REF or (semantic_of(each) in (H264_REF, AUDIO_REF) and not is_list(each.type))
    ][:_COLUMNS]


def sheet_of(table: pa.Table, schema: pa.Schema, base: Reach, identity: Sequence[str]) -> Sheet:
    """Return what the references of rows name.

    Args:
        table: the rows, with columns of references.
        schema: says what the columns refer to.
        base: what the references mean.
        identity: columns that name a row, as far as the table has them.
    """
    found = _Payload(table, base)
    named = [name for name in identity if name in table.column_names]
    rows = table.select(named).to_pylist() if named else [{"row": k} for k in range(len(table))]
    names = [one_line(" ".join(map(str, row.values()))) for row in rows]
    for column in references(schema):
        if column in table.column_names:
            found.look(column, _SHOWN[semantic_of(schema.field(column)) or ""], names)
    tiles = []
    for k, name in enumerate(names):
        tile = Tile(name)
        for column, each in found.at[k].items():
            if isinstance(each, Sound):
                tile.sounds.append(each)
            elif isinstance(each, Strip):
                tile.strips.append(each)
            else:
                tile.labels.append((column, each))
        tiles.append(tile)
    return Sheet(tiles, "", found.faults)


@final
@dataclass
class _Payload:
    """What the references of rows name."""

    table: pa.Table
    base: Reach
    at: list[dict[str, Strip | Sound | str]] = field(init=False)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.at = [{} for _ in range(len(self.table))]

    def look(self, column: str, show: Callable[..., Strip | Sound], names: Sequence[str]) -> None:
        for k, name in enumerate(names):
            try:
                self.at[k][column] = show(self.base, column, self.table, k)
            except MissingExtraError as error:
                self.faults.append(str(error))
                return
            except SourceError as error:
                self.faults.append(f"{name}: {error}")
                self.at[k][column] = "cannot be decoded"


def _spaced(relation: OpenRelation, count: int) -> NDArray[np.uint64]:
    """Evenly spaced rows, each once: all of them, if more are asked for than there are."""
    total = relation.manifest.total
    count = min(count, total)
    return np.unique(np.array([(2 * k + 1) * total // (2 * count) for k in range(count)], np.uint64))


def is_payload(column: pa.Field) -> bool:
    """Whether a column may hold megabytes in a row."""
    kind = column.type.value_type if is_list(column.type) else column.type
    inline = is_inline(kind) or is_media(kind) or isinstance(kind, pa.BaseExtensionType)
    blob = pa.types.is_struct(kind) and {each.name for each in kind} >= {"kind", "position", "size"}
    return bool(inline or blob)


def _small(pixels: Pixels) -> Pixels:
    return pixels if max(pixels.shape[:2]) <= _SIDE else np.asarray(fitted(pixels, _SIDE))


def _images(base: Reach, column: str, table: pa.Table, k: int) -> Strip:
    """The image of a row, or the first of its list."""
    value = table[column].slice(k, 1)
    if is_list(value.type):
        value = pc.list_flatten(value).slice(0, _IMAGES)
        if not len(value):
            msg = "the list has no image"
            raise DataError(msg)
    data = resolve(value, base, IMAGES.bytes)
    return Strip(column, [_small(PillowDecoder().decode(each)) for each in data])


def _clip(base: Reach, column: str, table: pa.Table, k: int) -> Strip:
    """The first frames of a row's segment, upright."""
    (located,) = locate(table[column].slice(k, 1), base)
    index = index_of(located)  # asks for PyAV
    from spiral_stream.decoders.video.rgb import to_rgb
    from spiral_stream.decoders.video.video import decode

    start, lasts = _times(table, k)
    segment = segment_of(index.times_F, index.duration, start, lasts)
    height, width = index.displayed
    need_pixels("first frame", height, width, CLIPS.pixels)
    wanted = np.arange(segment.first, segment.stop, _STEP, dtype=np.int64)[:_FRAMES]
    box, out = np.array([[0, 0, height, width]], np.int32), np.empty((width * 3 * height + 63) & ~63, np.uint8)
    frames = []
    for each in decode(index, located.read, wanted, located.size):
        to_rgb([each], box, index.rotation, index.full_range, index.matrix, out)
        frames.append(_small(out[: width * 3 * height].reshape(height, width, 3)).copy())
    return Strip(column, frames, moves=True)


def _sound(base: Reach, column: str, table: pa.Table, k: int) -> Sound:
    """The first seconds of a row's segment."""
    from spiral_stream.decoders.sound.sound import decode_sound

    start, lasts = _times(table, k)
    segment = None if start is None or lasts is None else (start, lasts)
    (data,) = resolve(table[column].slice(k, 1), base, SOUNDS.bytes)
    values = decode_sound(data, _HEARD, segment_ms=segment)
    heard = np.flatnonzero(values.any(axis=0))  # silence fills up a short one
    return Sound(column, values[:, : heard[-1] + 1 if len(heard) else 1], _RATE_HZ)


_SHOWN: Final[Mapping[str, Callable[..., Strip | Sound]]] = {JPEG_REF: _images, H264_REF: _clip, AUDIO_REF: _sound}


def _times(table: pa.Table, k: int) -> tuple[Any, Any]:
    start, lasts = (table[name][k].as_py() if name in table.column_names else None for name in TIMES)
    return start, lasts
