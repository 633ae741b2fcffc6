"""Columns of Hugging Face datasets as columns of Spiral: images, videos and sounds name bytes, class labels are described.

Such a dataset stores an image as struct<bytes, path>: the bytes, or where they lie. Here it is a reference column: binary
where the rows hold the bytes, else utf8. Where they hold the bytes, ``<column>_path`` is the name that the file had. Lists of
images stay lists of struct<bytes, path>, which the reader of references takes as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, cut
from spiral_stream.expr import Expr
from spiral_stream.semantic import BYTES, H264_REF, JPEG_REF, PATH, SEMANTIC, SHAPE, is_list, is_media
from spiral_stream.sources.arrow.stream import stored, stored_column
from spiral_stream.sources.row_filter import needed, passing, split_without
from spiral_stream.sources.source import ROW, Reader, ReaderOver

Features = Mapping[str, Mapping[str, Any]]  # column -> what the dataset says of it

_MEDIA: Final[Mapping[str, str | None]] = {"Audio": None, "Image": JPEG_REF, "Video": H264_REF}
_ARRAYS: Final = frozenset(("Array2D", "Array3D", "Array4D", "Array5D"))
_DESCRIPTION: Final = b"description"  # as the catalog calls it


def media_columns(schema: pa.Schema, features: Features) -> list[str]:
    """Return the columns that hold an image, a video or a sound per row."""
    return [field.name for field in schema if _kind_of(features, field.name) in _MEDIA and is_media(field.type)]


@final
class FeaturedColumns:
    """Columns of Spiral's types, made of stored ones.

    Args:
        rows: the stored columns.
        features: what the dataset says of them.
        inline: the media columns, and whether their rows hold the bytes.
        path: where the dataset lies, for messages.
    """

    def __init__(self, rows: pa.Schema, features: Features, inline: Mapping[str, bool], path: str) -> None:
        self._inline, self._path = inline, path
        types = stored(rows)
        self._paths = {
            f"{n}_path": n for n in inline if inline[n] and f"{n}_path" not in types.names
        }  # -> the media column
        fields = [_described(_as_reference(field, inline, features), features) for field in types]
        self.schema = pa.schema([*fields, *(pa.field(name, pa.utf8()) for name in self._paths)])
        same = {field.name for field in rows if field.name not in inline and types.field(field.name).type == field.type}
        self.made = frozenset(self.schema.names) - same

    def stored(self, columns: Sequence[str]) -> list[str]:
        """Return the stored columns that these are made of."""
        return list(dict.fromkeys(self._paths.get(name, name) for name in columns))

    def column(self, rows: pa.Table | pa.RecordBatch, name: str) -> pa.Array | pa.ChunkedArray:
        """Return a column of stored rows.

        Raises:
            SourceError: some rows hold the bytes of an image, and others its path.
        """
        import pyarrow.compute as pc

        column = rows.column(self._paths.get(name, name))
        if name in self._paths:
            return pc.struct_field(column, PATH)
        if name not in self._inline:
            field = self.schema.field(name)
            if isinstance(column, pa.ChunkedArray):
                return pa.chunked_array([stored_column(chunk, field) for chunk in column.chunks], field.type)
            return stored_column(column, field)
        wanted, other = (BYTES, PATH) if self._inline[name] else (PATH, BYTES)
        found = pc.struct_field(column, wanted)
        if found.null_count:
            self._refuse_mixed(name, found, pc.struct_field(column, other), wanted)
        return found

    def _refuse_mixed(self, name: str, found: pa.Array, others: pa.Array, wanted: str) -> None:
        import pyarrow.compute as pc

        left = pc.and_(found.is_null(), others.is_valid())
        if pc.any(left).as_py():
            says = "their bytes" if wanted == BYTES else "a path"
            where = others.filter(left)[0].as_py()
            which = f"one has only the path {cut(where)}" if wanted == BYTES else f"one has only {len(where):,} bytes"
            msg = (
                f"Hugging Face dataset in {cut(self._path)}: rows of column {name!r} hold {says}, but {which}. Save the dataset "
                "again with save_to_disk or push_to_hub, which store the bytes of all"
            )
            raise SourceError(msg)


@final
class FeaturedReader(ReaderOver):
    """The rows of another reader, with columns of Spiral's types.

    Args:
        rows: as they are stored.
        features: what the dataset says of its columns.
        inline: the media columns, and whether their rows hold the bytes.
    """

    def __init__(self, rows: Reader, features: Features, inline: Mapping[str, bool]) -> None:
        super().__init__(rows)
        self._columns = FeaturedColumns(rows.schema, features, inline, rows.base)
        self.schema = self._columns.schema

    def scan(
        self,
        columns: Sequence[str],
        predicate: Expr | None = None,
        units: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        pushed, late = split_without(predicate, self.schema, self._columns.made)
        read = needed(columns, late)
        schema = pa.schema([*(self.schema.field(name) for name in read), pa.field(ROW, pa.uint64())])
        for batch in self._rows.scan(self._columns.stored(read), pushed, units):
            arrays = [self._columns.column(batch, name) for name in read]
            table = pa.Table.from_batches([pa.record_batch([*arrays, batch.column(ROW)], schema=schema)])
            yield from passing(table, late, [*columns, ROW]).to_batches()

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        found = self._rows.fetch(rows, self._columns.stored(columns))
        if not columns:
            return found
        schema = pa.schema([self.schema.field(name) for name in columns])
        return pa.table([self._columns.column(found, name) for name in columns], schema=schema)


def _kind_of(features: Features, name: str) -> str:
    about = features.get(name)
    return str(about.get("_type", "")) if isinstance(about, Mapping) else ""


def _as_reference(field: pa.Field, inline: Mapping[str, bool], features: Features) -> pa.Field:
    if field.name not in inline:
        semantic = _MEDIA.get(_item_kind(features.get(field.name)))
        if semantic is None or not (is_list(field.type) and is_media(field.type.value_type)):
            return field
        return field.with_metadata({**(field.metadata or {}), SEMANTIC: semantic.encode()})
    semantic = _MEDIA[_kind_of(features, field.name)]
    kind = field.type.field(BYTES if inline[field.name] else PATH).type
    return pa.field(field.name, kind, metadata=None if semantic is None else {SEMANTIC: semantic.encode()})


def _item_kind(about: Any) -> str:
    """What the items of a list are: ``{"feature": ...}``, or ``[...]`` as older versions of ``datasets`` wrote it."""
    inside = (
        about.get("feature") if isinstance(about, Mapping) else about[0] if isinstance(about, list) and about else None
    )
    return str(inside.get("_type", "")) if isinstance(inside, Mapping) else ""


def _shape_of(about: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of all arrays of a column; () where they differ."""
    shape = about.get("shape")
    fixed = isinstance(shape, list) and all(isinstance(size, int) and size > 0 for size in shape)
    return tuple(shape) if fixed and isinstance(shape, list) else ()


def _described(field: pa.Field, features: Features) -> pa.Field:
    if _kind_of(features, field.name) in _ARRAYS and (shape := _shape_of(features[field.name])):
        return field.with_metadata({**(field.metadata or {}), SHAPE: ",".join(map(str, shape)).encode()})
    if _kind_of(features, field.name) != "ClassLabel":
        return field
    names = features[field.name].get("names")
    if not isinstance(names, list) or not names:
        return field
    text = "class label: " + ", ".join(f"{at} = {name}" for at, name in enumerate(names))
    return field.with_metadata({**(field.metadata or {}), _DESCRIPTION: text.encode()})
