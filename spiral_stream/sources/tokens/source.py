"""Files of token ids, one row per document. What is kept of a document is where it lies; its ids stay in the file.

A relation has the columns ``tokens`` (a list of ids, gathered from the mapped file when it is read), ``start`` and
``length`` (the first id's place in the file, and how many there are), and ``__file__``.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.arguments import check, class_door, integer, of_kind
from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.host_dtypes import dtype_name
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.listing import absolute_paths, common_folder, listed_units, need_one_root
from spiral_stream.sources.import_source import ImportedSource, ImportUnit, Refused
from spiral_stream.sources.source import Reader
from spiral_stream.sources.tokens.layout import ITEMS, Int64, MegatronIndex, TokenLayout, index_dtype, layout_of
from spiral_stream.sources.tokens.reader import LENGTH, START, RemoteTokenReader, TokenReader
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.file_object import look, maps, read_parts
from spiral_stream.storage.store import ObjectStat

SUFFIXES: Final = (".bin", ".npy")
SCHEMA: Final = pa.schema([(START, pa.int64()), (LENGTH, pa.int64())])
BATCH_ROWS: Final = 1 << 18
BATCH_IDS: Final = 1 << 24  # that are looked through for separators at a time
_INDEX: Final = of_kind(bool | None, "True, False or None; an index lies next to its file, as data.idx")


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class Tokens(ImportedSource):
    """Files of token ids: flat ``.bin``, or ``.npy``.

    One of these says how they are cut into documents:

    * ``separator=50256``: a document ends with this id, which stays its last one;
    * ``length=2048``: each document has as many ids; the last of a file may have fewer;
    * an index as Megatron-LM writes it: ``data.idx`` next to ``data.bin``, used if it is there and nothing else is said;
    * ``.npy`` files of shape [N, length] have N documents.

    Args:
        path: a file, a folder (searched below), a glob, a brace pattern such as ``part-{000..007}.bin``, or a list of these.
        dtype: of the ids, such as ``"uint16"``; by default what an index or a ``.npy`` file says, and uint16 for others.
        separator: the id that ends a document.
        length: ids of each document.
        index: True asks for an index next to each file, False for none.

    Examples:
        >>> np.arange(1_000, dtype=np.uint16).tofile("train.bin")
        >>> entry = catalog.register(
        ...     "from-tokens", spiral.sources.Tokens("train.bin", dtype="uint16", length=128), identity=spiral.RowIdentity()
        ... )
        >>> catalog.table("from-tokens").count()
        8
    """

    KIND: ClassVar[str] = "tokens"
    path: str | tuple[str, ...]
    dtype: str | Any | None = None
    separator: int | None = None
    length: int | None = None
    index: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute_paths(self.path, "Tokens"))
        if self.dtype is not None:
            name = dtype_name(self.dtype)
            if not isinstance(name, str) or name not in ITEMS:
                msg = f"Tokens: dtype={shown(self.dtype)}. Give one of {', '.join(ITEMS)}"
                raise SourceError(msg)
            object.__setattr__(self, "dtype", name)
        separator, length = integer(None, None, "an integer", none=True), integer(1, none=True)
        check(self, "Tokens", "=", SourceError, separator=separator, length=length, index=_INDEX)
        ways = [self.separator is not None, self.length is not None, self.index is True]
        if sum(ways) > 1:
            msg = "Tokens: separator=, length= and index=True each say where documents end. Give one of them"
            raise SourceError(msg)

    @property
    def base(self) -> str:
        return common_folder(self.path)

    def import_units(self) -> Sequence[ImportUnit]:
        need_one_root(self.path, "Tokens")
        units = listed_units(self.path, "Tokens", SUFFIXES)
        return [self._indexed(unit) for unit in units]

    def import_schema(self, units: Sequence[ImportUnit]) -> pa.Schema:
        first = self._dtype(units[0])
        for unit in units[1:]:
            if (found := self._dtype(unit)) != first:
                msg = f"{cut(unit.path)} holds {found}, and {cut(units[0].path)} {first}. Register them separately"
                raise SourceError(msg)
        return SCHEMA

    def import_rows(self, unit: ImportUnit, schema: pa.Schema, refused: Refused) -> Iterator[pa.RecordBatch]:
        del refused
        for starts, lengths in self._documents(unit):
            for at in range(0, len(starts), BATCH_ROWS):
                some = slice(at, at + BATCH_ROWS)
                yield pa.record_batch([pa.array(starts[some]), pa.array(lengths[some])], schema)

    def presented(self, reader: Reader) -> Reader:
        return (
            TokenReader(reader, self.layout)
            if maps(self.base)
            else RemoteTokenReader(reader, self.layout, self._key_of)
        )

    def _key_of(self, name: str, facts: ObjectStat) -> str:
        """The content key of an object, as `import_units` gives it."""
        path = f"{self.base}/{name}"
        unit = ImportUnit(name, path, facts.size, content_key(name, facts.size, facts.mark))
        return self._indexed(unit).content_key

    def layout(self, path: str) -> TokenLayout:
        """Return where the ids of a file lie."""
        return layout_of(path, index_dtype(_index_of(path)) if self._uses_index(path) else self.dtype)

    def _uses_index(self, path: str) -> bool:
        if self.index is not None:
            return self.index
        if self.separator is not None or self.length is not None:
            return False
        try:
            look(_index_of(path))
        except NotThereError:
            return False
        return True

    def _indexed(self, unit: ImportUnit) -> ImportUnit:
        """The unit with the index that it is read with."""
        if not self._uses_index(unit.path):
            return unit
        path = _index_of(unit.path)
        seen = look(path)
        key = content_key("tokens", unit.content_key, seen.size, seen.mark)
        return ImportUnit(unit.name, unit.path, unit.size_bytes, key, (path,))

    def _dtype(self, unit: ImportUnit) -> str:
        found = self.layout(unit.path).dtype
        if self.dtype not in (None, found):
            msg = f"{cut(unit.path)}: its index says {found}, and dtype={self.dtype!r}. Leave dtype out"
            raise SourceError(msg)
        return found

    def _documents(self, unit: ImportUnit) -> Iterator[tuple[Int64, Int64]]:
        """Where the documents of a file begin, and how many ids each has."""
        layout = self.layout(unit.path)
        if self._uses_index(unit.path):
            index = MegatronIndex(_index_of(unit.path))
            for at in range(0, index.document_count, BATCH_ROWS):
                yield index.documents(at, min(at + BATCH_ROWS, index.document_count), layout.count)
            return
        length = self.length or (layout.columns if self.separator is None else None)
        if length is not None:
            for at in range(0, layout.count, length * BATCH_ROWS):
                starts = np.arange(at, min(at + length * BATCH_ROWS, layout.count), length, dtype=np.int64)
                yield starts, np.minimum(length, layout.count - starts)
        elif self.separator is not None:
            yield from _separated(unit.path, layout, self.separator)
        else:
            msg = (
                f"Tokens: nothing says where the documents of {cut(unit.path)} end. Give separator=<id>, length=<ids>, "
                f"or the index {cut(_index_of(unit.path))}"
            )
            raise SourceError(msg)


def _separated(path: str, layout: TokenLayout, separator: int) -> Iterator[tuple[Int64, Int64]]:
    """Documents that end with an id; what follows the last of them is one too."""
    bounds = np.iinfo(layout.dtype)
    if not bounds.min <= separator <= bounds.max:
        msg = f"Tokens: separator={separator} is no {layout.dtype}, which {cut(path)} holds. Give another id, or dtype="
        raise SourceError(msg)
    if not layout.count:
        return
    seen, item, begin = look(path), np.dtype(layout.dtype).itemsize, 0
    for at in range(0, layout.count, BATCH_IDS):
        count = min(BATCH_IDS, layout.count - at)
        [(_, data)] = read_parts(path, seen, [(layout.offset + at * item, count * item)])
        ends = np.flatnonzero(np.frombuffer(data, layout.dtype) == separator).astype(np.int64) + at + 1
        if at + BATCH_IDS >= layout.count and (not len(ends) or ends[-1] < layout.count):
            ends = np.append(ends, layout.count)
        if len(ends):
            starts = np.concatenate([[begin], ends[:-1]])
            begin = int(ends[-1])
            yield starts, ends - starts


def _index_of(path: str) -> str:
    return f"{os.path.splitext(path)[0]}.idx"  # noqa: PTH122
