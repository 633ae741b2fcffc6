"""Which shards still have the bytes that were registered, although the times of their files changed.

A content key covers size and time of files, so that looking is cheap. `keep_same` compares bytes where these differ: a shard
whose files were only touched, or copied, keeps its content key, and with it everything that is derived from it. Units and
pins are those of the files as they are now.

It needs a digest (XXH3-128) of every file, which lies next to the manifests, 32 bytes each. The first registration reads all
files; later ones read those whose size or time is another. A source whose keys cover no times, such as Lance, is not read; the
files that its rows name are. Files that are imported are compared before (`catalog.imports.files`).
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.relation.on_store import bring_file_of
from spiral_stream.catalog.relation.pin import reference_columns, references_of
from spiral_stream.catalog.relation.row_identity import is_made
from spiral_stream.catalog.shared.records import LostError
from spiral_stream.catalog.verify import Digest, digest_of_file, record_digests
from spiral_stream.errors import CatalogError, SourceError
from spiral_stream.integrity.regular_files import open_file
from spiral_stream.sources.columnar.parquet import Parquet
from spiral_stream.sources.image_folder import ClassFolder
from spiral_stream.sources.internal.imported import ImportedRows
from spiral_stream.sources.pins import SUFFIX, Collected, Numbers, Pin, source_file_name
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.source import ROW, Reader, Source
from spiral_stream.threads import Workers, thread_share

THREADS: Final = 8
RECORD: Final = ".bytes"
_RECENT: Final = 1 << 16  # files of former batches that are remembered: tars that hold many rows


def keep_same(
    old: Entry | None, name: str, source: Source, reader: Reader, schema: pa.Schema, manifest: Manifest, folder: Path
) -> Manifest:
    """Return the manifest in which shards of the same bytes have the content keys that they had; record digests.

    Args:
        old: the relation as it is registered; None if it is not.
        name: of the relation.
        source: where its rows lie.
        reader: the open source.
        schema: the relation's, with semantic types.
        manifest: with the pins of its files.
        folder: where manifests lie.

    Raises:
        CatalogError: the digests cannot be written.
    """
    columns, of_parquet = reference_columns(schema), isinstance(source, Parquet)
    timed = any(map(is_made, schema)) and not isinstance(
        source, ImportedRows
    )  # identities that follow the files' times
    if (not columns and not of_parquet) or timed:
        return manifest
    before = None if old is None else _record(folder, name, old.data_version)
    if old is not None and before is not None and old.data_version == manifest.data_version:
        return manifest
    with Collected() as collected, Workers(thread_share().waiting(THREADS), "spiral-bytes") as pool:
        then = _Then(before, _pins(folder, old))
        reading = _Reading(then, _pins_of(folder, manifest), collected, pool, manifest)
        if of_parquet:
            reading.source_files(reader)
        if columns:
            reading.references(reader, columns)
        same = (
            manifest
            if old is None or before is None
            else _with_former_keys(old.manifest(), manifest, source, reading.same)
        )
        record_digests(collected, folder / f"{name}-{same.data_version}{RECORD}")
    return same


def _with_former_keys(old: Manifest, new: Manifest, source: Source, same: NDArray[np.bool_]) -> Manifest:
    """Give shards of the same rows and bytes the content keys that they had."""
    then = {
        name: (key, row_key, rows)
        for name, key, row_key, rows in zip(
            old.shard_names.to_pylist(),
            old.content_keys.to_pylist(),
            old.row_keys.to_pylist(),
            old.shard_rows.tolist(),
            strict=True,
        )
    }
    follows = isinstance(source, Parquet) or _same_listing(old, new, source)
    keys = []
    for at, (name, key, row_key, rows) in enumerate(
        zip(
            new.shard_names.to_pylist(),
            new.content_keys.to_pylist(),
            new.row_keys.to_pylist(),
            new.shard_rows.tolist(),
            strict=True,
        )
    ):
        former = then.get(name)
        alike = former is not None and former[2] == rows and (follows or former[1] == row_key) and bool(same[at])
        keys.append(former[0] if former is not None and alike else key)
    return replace(new, content_keys=pa.array(keys, pa.utf8()))


def _same_listing(old: Manifest, new: Manifest, source: Source) -> bool:
    """Whether a folder has the classes that it had, so that labels are the same; the rows then follow from the files."""
    return isinstance(source, ClassFolder) and old.unit_names.equals(new.unit_names)


@final
class _Then:
    """What is known of the files as they were."""

    def __init__(self, digests: Numbers | None, pins: Numbers | None) -> None:
        self._digests, self._pins = digests, pins

    def digests(self, name: str) -> list[Digest]:
        """Return the digests of a file; none if it was not there, several where hashes collide."""
        return [] if self._digests is None else self._digests.find(name)

    def looked(self, name: str, pin: Pin) -> Digest | None:
        """Return the digest of a file whose size, time and inode are what they were; None if it is to be read."""
        pins = [] if self._pins is None else self._pins.find(name)
        found = self.digests(name)
        return found[0] if len(pins) == len(found) == 1 and pins[0] == tuple(pin) else None


@final
class _Reading:
    """Digests of the files as they are, and which shards have none that differs."""

    def __init__(self, then: _Then, now: Numbers, collected: Collected, pool: Workers, manifest: Manifest) -> None:
        self._then, self._now, self._collected, self._pool = then, now, collected, pool
        self._manifest = manifest
        self._recent: dict[str, bool] = {}
        self.same = np.ones(len(manifest.shard_names), np.bool_)

    def source_files(self, reader: Reader) -> None:
        """Compare the source's own files; a shard whose rows lie in one that differs does."""
        starts = np.concatenate([[0], np.cumsum(self._manifest.unit_rows)]).astype(np.uint64)
        for unit in range(len(self._manifest.unit_rows)):
            files = {source_file_name(name): path for name, path in reader.files([unit]).items()}
            alike = self._compare(list(files), lambda name, files=files: open_file(files[name]))  # type: ignore[misc]
            if not all(alike.values()):
                rows = np.arange(starts[unit], starts[unit + 1], dtype=np.uint64)
                self.same[self._manifest.shard_of(self._manifest.logical(rows))] = False

    def references(self, reader: Reader, columns: Sequence[str]) -> None:
        """Compare the files that rows name; a shard with a row that names one that differs does."""
        reach = Reach(reader.base, not reader.allow_outside)

        def opened(name: str) -> tuple[int, os.stat_result]:
            handle, _, facts = reach.open(name, 0)
            return handle, facts

        for batch in reader.scan(list(columns)):
            shards = self._manifest.shard_of(self._manifest.logical(batch.column(ROW).to_numpy()))
            for column in columns:
                names, codes = references_of(batch.column(column))
                known = self._compare([name for name in dict.fromkeys(names) if name is not None], opened)
                alike = np.array([name is None or known[name] for name in [*names, None]], np.bool_)
                self.same[shards[~alike[codes]]] = False

    def _compare(self, names: list[str], opened: Callable[[str], tuple[int, os.stat_result]]) -> dict[str, bool]:
        """Return whether each file has the bytes that it had, and collect its digest; one that cannot be read differs."""
        new = [name for name in names if name not in self._recent]
        found = list(zip(new, self._pool.map(lambda name: self._digest(name, opened), new), strict=True))
        self._collected.add([name for name, each in found if each], [each for _, each in found if each])
        self._recent.update({name: each is not None and each in self._then.digests(name) for name, each in found})
        alike = {name: self._recent[name] for name in names}
        if len(self._recent) > _RECENT:
            self._recent = dict(list(self._recent.items())[-_RECENT // 2 :])
        return alike

    def _digest(self, name: str, opened: Callable[[str], tuple[int, os.stat_result]]) -> Digest | None:
        pins = self._now.find(name)
        known = self._then.looked(name, Pin(*pins[0])) if len(pins) == 1 else None
        if known is not None:
            return known
        try:
            return digest_of_file(*opened(name))
        except (OSError, SourceError):  # who reads the row says so
            return None


def _record(folder: Path, name: str, data_version: str) -> Numbers | None:
    path = folder / f"{name}-{data_version}{RECORD}"
    with suppress(LostError, OSError, ValueError):  # one that is missing or damaged is made again
        bring_file_of(folder.parent, path)
        return Numbers(path)
    return None


def _pins(folder: Path, old: Entry | None) -> Numbers | None:
    with suppress(CatalogError):
        return None if old is None else _pins_of(folder, old.manifest())
    return None


def _pins_of(folder: Path, manifest: Manifest) -> Numbers:
    return Numbers(folder / f"{manifest.pins}{SUFFIX}")
