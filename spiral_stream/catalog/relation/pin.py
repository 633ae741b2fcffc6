"""Pin the files of a relation at registration: record each file's size and time, or an object's etag, in the data version.

Reference columns are scanned once, in the order the source stores them. Each file is looked at once in some batches, by
`THREADS` threads, since a look may cost a round trip. Memory holds these batches, a bounded number of pins (`sources.pins`)
and some bytes per shard. Cost: about 11 us of CPU per file, 1 us per row that names a file of many rows.

Objects on a store are looked at one by one, or by a list of their folder. A page of a list brings size and etag of 1,000
objects, and costs about as much as three looks. So a folder that holds `WORTH` references of one batch is listed, once, with
all that lies below it; at most four times the rows of the relation, so that a folder with many other objects costs little.
24 bytes per listed object are held. What no list has is looked at, many together. A store whose lists say another etag
than its looks is not listed: the first object tells.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from spiral_stream.catalog.database import trying
from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.shared.mirror import home_of
from spiral_stream.display.progress import working
from spiral_stream.errors import SourceError, anew
from spiral_stream.integrity.publish import drafting
from spiral_stream.semantic import file_names, is_list, is_media, semantic_of
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.pins import NOT_THERE, SUFFIX, Collected, Pin, pin_of, source_file_name
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.resolve import flattened
from spiral_stream.sources.source import ROW, Reader
from spiral_stream.storage.faults import AwayError
from spiral_stream.storage.open import FILES, store_of
from spiral_stream.storage.store import ObjectStat, Store
from spiral_stream.storage.uri import WEB, scheme_of
from spiral_stream.threads import Workers, thread_share

WORTH: Final = 256  # references of one batch in one folder
LEAST: Final = 10_000  # objects that a list may bring, however few rows there are
MOST: Final = 1 << 23  # objects that are kept
_LISTS: Final = 64  # of one relation
_TASKS: Final = 8  # of looks, at a time
_TOGETHER: Final = 256  # looks of one task at least


@final
class Looks:
    """Looks at files and objects, each once as long as it is remembered.

    Args:
        pool: its threads wait for file systems and stores.
        reach: where relative references start.
        confined: the same for references that are URIs themselves.
        rows: of the relation.
        found: is told every pin.
        listed: what a list of the source said of some of them.
    """

    def __init__(
        self,
        pool: Workers,
        reach: Reach,
        confined: Reach,
        rows: int,
        found: Collected,
        listed: Callable[[str], Pin | None],
    ) -> None:
        self._pool, self._reach, self._confined = pool, reach, confined
        self._listed, self._found = listed, found
        self._recent: dict[str, Pin] = {}
        self._left = min(MOST, LEAST + 4 * rows)
        self._lists: list[_List] = []

    def know(self, names: Sequence[str | None]) -> None:
        """Look at what some references name that was not looked at of late.

        Raises:
            AwayError: a store stays away.
        """
        wanted = dict.fromkeys(name for name in names if name is not None)
        new = [name for name in wanted if name not in self._recent]
        if len(self._recent) > RECENT:
            self._recent = {name: pin for name, pin in self._recent.items() if name in wanted}
        if new:
            pins = self.pins(new)
            self._found.add(new, [pins[name] for name in new])
            self._recent |= pins

    def facts(self, names: Sequence[str | None], codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Shape [N, 2], int64: size and time of the file that each reference names, which `know` was told."""
        table = [NOT_THERE if name is None else self._recent[name] for name in names]
        sizes_N2 = np.array([pin[:2] for pin in [*table, NOT_THERE]], np.int64)
        facts_N2: NDArray[np.int64] = sizes_N2[codes]
        return facts_N2

    def pins(self, names: Sequence[str]) -> dict[str, Pin]:
        """Return the pins of what references name.

        Raises:
            ReferenceDataError: a reference holds a NUL.
            AwayError: a store stays away.
        """
        found: dict[str, Pin] = {}
        stores: dict[int, tuple[Store, dict[str, str]]] = {}  # by the `id` of a store: reference -> key
        for name in names:
            if (pin := self._listed(name)) is not None:
                found[name] = pin
                continue
            try:
                reach = self._confined if scheme_of(name) else self._reach
                named = reach.object_of(name, 0) or reach.path_of(name, 0)
                store, key = store_of(named)
                listable = not store.MAPS and scheme_of(named) not in WEB
                stores.setdefault(id(store) * 2 + listable, (store, {}))[1][name] = key
            except SourceError:  # the reader will raise it
                found[name] = NOT_THERE
        for kind, (store, keys) in stores.items():
            found |= self._of(store, keys, listable=bool(kind % 2))
        return found

    def _of(self, store: Store, keys: dict[str, str], *, listable: bool) -> dict[str, Pin]:
        found: dict[str, Pin] = {}
        if listable:
            self._list(store, [key for key in keys.values() if not self._is_listed(store, key)])
        for each in self._lists:
            if each.store is store:
                left = [name for name in keys if name not in found and keys[name].startswith(each.folder)]
                found |= each.pins({name: keys[name] for name in left})
        left = [name for name in keys if name not in found]
        # a look at a file is a call each, of threads; a store is asked for many together
        size = min(_TASK, -(-len(left) // THREADS)) or 1 if store.MAPS else max(_TOGETHER, -(-len(left) // _TASKS))
        parts = [left[at : at + size] for at in range(0, len(left), size)]
        for part, pins in zip(
            parts, self._pool.map(lambda part: _looked(store, [keys[n] for n in part]), parts), strict=True
        ):
            found.update(zip(part, pins, strict=True))
        return found

    def _is_listed(self, store: Store, key: str) -> bool:
        return any(each.store is store and key.startswith(each.folder) for each in self._lists)

    def _list(self, store: Store, keys: Sequence[str]) -> None:
        """List the folder that these objects lie in, if that is worth it."""
        if len(keys) < WORTH or len(self._lists) >= _LISTS or not self._left:
            return
        low, high = min(keys), max(keys)
        same = next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
        found = _List(store, low[: low.rfind("/", 0, same) + 1], self._left)
        found.check(keys)
        self._lists.append(found)
        self._left -= found.count


@final
class _List:
    """What lies below a folder of a store, as far as it was listed."""

    def __init__(self, store: Store, folder: str, most: int) -> None:
        self.store, self.folder, self.count = store, folder, 0
        hashes, sizes, marks = array("Q"), array("q"), array("q")
        try:
            for key, facts in islice(store.list(folder), most):
                pin = pin_of(facts)
                hashes.append(_hash(key))
                sizes.append(pin.size)
                marks.append(pin.mtime_ns)
        except AwayError:
            raise
        except SourceError:  # who may not list may look
            pass
        self.count = len(hashes)
        distinct, first, times = np.unique(np.frombuffer(hashes, np.uint64), return_index=True, return_counts=True)
        self._hashes, first = distinct[times == 1], first[times == 1]
        self._sizes, self._marks = np.frombuffer(sizes, np.int64)[first], np.frombuffer(marks, np.int64)[first]

    def check(self, keys: Sequence[str]) -> None:
        """Look at one of these objects; where that says something else than the list, the list is of no use.

        Raises:
            AwayError: the store stays away.
        """
        here = next(iter(self.pins({key: key for key in keys}).items()), None)
        if here is not None and _looked(self.store, [here[0]]) != [here[1]]:
            self._hashes = self._hashes[:0]

    def pins(self, keys: dict[str, str]) -> dict[str, Pin]:
        """Return the pins of those references whose objects were listed.

        Args:
            keys: reference -> key.
        """
        if not len(self._hashes) or not keys:
            return {}
        wanted = np.array([_hash(key) for key in keys.values()], np.uint64)
        at = np.minimum(np.searchsorted(self._hashes, wanted), len(self._hashes) - 1)
        there, sizes, marks = (self._hashes[at] == wanted).tolist(), self._sizes[at].tolist(), self._marks[at].tolist()
        return {
            name: Pin(size, mark, 0) for name, size, mark, here in zip(keys, sizes, marks, there, strict=True) if here
        }


def _looked(store: Store, keys: Sequence[str]) -> list[Pin]:
    """Look at objects together.

    Raises:
        AwayError: the store stays away: an object that was not looked at would never be compared.
    """
    pins = []
    for seen in store.look(keys):
        if isinstance(seen, AwayError):
            raise anew(seen)
        pins.append(pin_of(seen) if isinstance(seen, ObjectStat) else NOT_THERE)
    return pins


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode(errors="surrogatepass"))


THREADS: Final = 16
_TASK: Final = 256  # files of one task, at most: few files are dealt to all threads
_ROWS: Final = 1 << 18  # of several batches whose files are looked at together
_NAMES: Final = 1 << 12  # that these name
_VERSION: Final = 1  # of what enters content keys
RECENT: Final = 1 << 16  # files of former batches that are remembered: tars that hold many rows
_FIRST: Final = 16  # rows that tell whether a column of struct<bytes, path> holds bytes


def reference_columns(schema: pa.Schema) -> list[str]:
    """Return the columns whose values name files."""
    return [field.name for field in schema if semantic_of(field) is not None and _names_files(field.type)]


def _names_files(kind: pa.DataType) -> bool:
    if is_list(kind):
        return _names_files(kind.value_type)
    return file_names(pa.nulls(0, kind)) is not None


def _hold_bytes(reader: Reader, schema: pa.Schema, column: str) -> bool:
    """Whether the first rows of struct<bytes, path> hold bytes, so that none of the others is read to look for paths."""
    kind = schema.field(column).type
    rows = min(_FIRST, sum(unit.rows for unit in reader.units()))
    if not rows or not is_media(kind.value_type if is_list(kind) else kind):
        return False
    values = reader.fetch(np.arange(rows, dtype=np.uint64), [column])[column].combine_chunks()
    return all(name is None for name in references_of(values)[0]) and values.null_count < len(values)


def pinned(manifest: Manifest, reader: Reader, schema: pa.Schema, folder: Path) -> Manifest:
    """Return the manifest with the pins of the relation's files, which are written next to it.

    The content key of a shard whose rows name files covers the size and time of each. Files of the source itself are
    pinned too, outside the content key: a copy of a dataset has the same rows.

    Args:
        manifest: as the source alone says.
        reader: the open source.
        schema: the relation's, with semantic types.
        folder: where manifests lie.

    Raises:
        SourceError: the source cannot be read.
        CatalogError: the folder cannot be written.
    """
    reader.refuse_outside()
    columns = [name for name in reference_columns(schema) if not _hold_bytes(reader, schema, name)]
    source_files = home_of(folder.parent).lasting(reader.files())
    if not columns and not source_files:
        return manifest
    with trying(folder.parent, "keep pins"), drafting(folder, "pins") as draft, Collected() as found:
        with working(f"looking at {len(source_files):,} files", "files", len(source_files)):
            pins = _looked(FILES, list(source_files.values()))
            found.add([source_file_name(name) for name in source_files], pins)
        keys = _keys(manifest, reader, columns, found) if columns else manifest.content_keys
        name = found.write(draft)
        draft.replace(folder / f"{name}{SUFFIX}")
    return replace(manifest, content_keys=keys, pins=name)


def _keys(manifest: Manifest, reader: Reader, columns: Sequence[str], found: Collected) -> pa.StringArray:
    """Content keys that cover what the references of each shard name."""
    shards = _Shards(manifest)
    # a look at a file reads nothing, and who opens it asks whether it may; a look at an object is a request to a stranger
    reach, confined = Reach(reader.base), Reach(reader.base, confined=not reader.allow_outside)
    count = int(manifest.shard_rows.sum())
    with (
        working(f"looking at the files that {count:,} rows name", "rows", count) as shown,
        Workers(thread_share().waiting(THREADS), "spiral-pins") as pool,
    ):
        passed = 0
        looks = Looks(pool, reach, confined, count, found, reader.listed)
        for some in _together(reader.scan(list(columns)), columns):
            looks.know([name for _, named in some for names, _ in named for name in names])
            for batch, named in some:
                rows = manifest.shard_of(manifest.logical(batch.column(ROW).to_numpy()))
                for column, (names, codes) in zip(columns, named, strict=True):
                    references = batch.column(column)
                    owners = flattened(references)[1] if is_list(references.type) else slice(None)
                    if len(rows[owners]):
                        shards.add(rows[owners], looks.facts(names, codes))
                shards.passed(rows)
                passed += len(rows)
                shown(passed)
    return shards.keys()


_Named = tuple[list[str | None], NDArray[np.int64]]  # as `references_of`


def _together(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[list[tuple[pa.RecordBatch, list[_Named]]]]:
    """Batches with what each column names, some at a time: many may name one tar each, and looks are asked for together."""
    some: list[tuple[pa.RecordBatch, list[_Named]]] = []
    rows = names = 0
    for batch in batches:
        named = [references_of(batch.column(column)) for column in columns]
        some.append((batch, named))
        rows, names = rows + len(batch), names + sum(len(found) for found, _ in named)
        if rows >= _ROWS or names >= _NAMES:
            yield some
            some, rows, names = [], 0, 0
    if some:
        yield some


def references_of(references: pa.Array) -> tuple[list[str | None], NDArray[np.int64]]:
    """Return the distinct names of references (None for one that is not text), and the index of each reference's name, [N].

    Lists of references are taken one after the other.
    """
    import pyarrow.compute as pc

    if is_list(references.type):
        references = flattened(references)[0]
    texts = file_names(references)
    assert texts is not None  # of a column that names files
    if pa.types.is_struct(references.type) and references.null_count:
        texts = pc.if_else(references.is_valid(), texts, None)
    encoded = texts.dictionary_encode()
    names = _texts(encoded.dictionary)
    codes: NDArray[np.int64] = encoded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
    return names, codes


def _texts(dictionary: pa.Array) -> list[str | None]:
    """The distinct references; None for one that is no text."""
    try:
        found: list[str | None] = dictionary.to_pylist()
    except UnicodeDecodeError:
        return [_text(each) for each in dictionary]
    return [each if isinstance(each, str) else None for each in found]


def _text(value: Any) -> str | None:
    with suppress(UnicodeDecodeError):
        found: str = value.as_py()
        return found
    return None


@final
class _Shards:
    """One digest for each shard whose rows are under way, over size and time of what they name, in physical order."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._left = manifest.shard_rows.astype(np.int64)
        self._open: dict[int, Any] = {}
        self._digests: dict[int, bytes] = {}

    def add(self, shards: NDArray[np.intp], facts_N2: NDArray[np.int64]) -> None:
        """Enter one column of a batch: the shard of each row, and what its file is like."""
        borders = np.flatnonzero(np.diff(shards)) + 1
        for shard, part in zip(shards[np.append(0, borders)].tolist(), np.split(facts_N2, borders), strict=True):
            self._open.setdefault(shard, xxhash.xxh3_128()).update(np.ascontiguousarray(part).tobytes())

    def passed(self, shards: NDArray[np.intp]) -> None:
        """Close the shards whose last rows these were."""
        np.subtract.at(self._left, shards, 1)
        for shard in np.unique(shards).tolist():
            if not self._left[shard]:
                self._digests[shard] = self._open.pop(shard).digest()

    def keys(self) -> pa.StringArray:
        """Return the content key of each shard with its digest."""
        names = self._manifest.content_keys.to_pylist()
        return pa.array(
            [content_key(key, "pins", _VERSION, self._digests.get(at, b"")) for at, key in enumerate(names)], pa.utf8()
        )
