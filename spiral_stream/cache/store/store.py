"""One cache on disk: a Lance dataset, and the ledger of finished shards.

    <caches>/<fingerprint>/data.lance        fragments; payload in packed blob v2 files
    <caches>/<fingerprint>/ledger/*.json     one file per finished part of a shard (`ledger`)
    <caches>/<fingerprint>/sums/*            the sums of a part's files (`parts`)
    <caches>/<fingerprint>/committed/*.json  the digest of a version's manifest
    <caches>/<fingerprint>/cache.json        what the fingerprint covers

A part is a fragment with the rows of one source shard, addressed by the shard's
content key. Writing parts needs no lock: fragment names are unique and a ledger
file appears whole or not at all. `commit` makes the parts of the ledger the
dataset's fragments in one Overwrite and repeats until no part is left out, so two
writers end with the union. The columns next to the payload (height and width of an
image, none for tokens) are the kind's own: the rows of the first part bring them,
and the dataset has them from then on.

A reader trusts nothing that it did not verify: the manifest by its digest, which names the digest of each part's sums,
which say what the part's files have to be. Damage is named, and `mend` drops the part from the ledger, so that the
next build makes it again. `sweep` removes what nobody names (`cache.store.sweep` says when).
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.store.checksums import PartFiles
from spiral_stream.cache.store.ledger import LedgerEntry
from spiral_stream.cache.store.part_rows import Chunk, PartRows
from spiral_stream.cache.store.part_schema import ONE_FILE, schema_of
from spiral_stream.cache.store.reader import PARTS, REFUSED, ROW, SUMS, CacheReader, OpenShards, files_of, parts_of
from spiral_stream.cache.store.shared import ABOUT, CacheParts
from spiral_stream.cache.store.sweep import READERS, WRITERS, Usage, remove_dead, remove_old_versions, usage
from spiral_stream.errors import CacheError, DamageError, is_failure, warn
from spiral_stream.integrity import seal
from spiral_stream.integrity.blocks import need_sound
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.locks import alone, share
from spiral_stream.integrity.one_look import size_of
from spiral_stream.integrity.publish import write_file
from spiral_stream.keeping.in_use import used

_ALL_ROWS: Final = (1 << 31) - 1
_OTHERS_CAME_FIRST: Final = ("conflict", "already exists")  # what Lance says of a version, and of the first one
_COMMIT_TRIES: Final = 20
REST: Final = "Make it writable, free space, or set $SPIRAL_CACHE to another folder"
_NEWEST: Final = (1 << 64) - 1  # manifests are named by what is left to it, so that the newest comes first


@final
class CacheStore:
    """The folder of one cache: write parts, commit them, open what is committed."""

    def __init__(self, folder: Path, facts: Mapping[str, object]) -> None:
        self.folder = folder
        self.parts, self.facts = CacheParts(folder, facts), facts
        self.ledger = self.parts.ledger
        self._data = folder / "data.lance"
        self._shards = OpenShards()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return CacheStore, (self.folder, dict(self.facts))

    def covered(self, committed: bool = False) -> dict[str, NDArray[np.bool_]]:
        """Return which rows are finished: a mask over each shard, by content key. Reads the ledger only.

        Args:
            committed: leave out parts that no reader sees yet, such as those of a build that was killed.

        Raises:
            DamageError: the ledger is not what was written; says who mends it.
        """
        self.meet()
        out: dict[str, NDArray[np.bool_]] = {}
        visible = self.visible() if committed else set()
        for entry in self.ledger.entries():
            if committed and entry.file not in visible:
                continue
            out[entry.key] = entry.mask | out[entry.key] if entry.key in out else entry.mask
        return out

    def write(self, key: str, shard_rows: int, chunks: Iterator[Chunk]) -> int:
        """Write one part and enter it into the ledger.

        Args:
            key: content key of the source shard.
            shard_rows: rows of the whole source shard.
            chunks: the rows to store, at least one chunk, each row at most once.

        Returns:
            bytes of payload written.

        Raises:
            CacheError: the folder cannot be written; names it.
        """
        from lance.fragment import write_fragments

        first = next(chunks)
        schema = schema_of(first[1].narrow)
        part = PartRows(schema, shard_rows)
        try:
            self.ledger.folder.mkdir(parents=True, exist_ok=True)
            with self._locked(WRITERS):
                self._create(schema)
                reader = pa.RecordBatchReader.from_batches(schema, part.batches(chain([first], chunks)))
                made = write_fragments(
                    reader,
                    str(self._data),
                    schema=schema,
                    mode="overwrite",  # gives the fields ids 0..n; commits nothing
                    data_storage_version="2.2",
                    max_rows_per_file=_ALL_ROWS,
                    max_bytes_per_file=ONE_FILE,
                )
                assert len(made) == 1, made
                need_sound()  # which rows are stored was read from mapped files
                sums = PartFiles(self.folder, key, made[0].files[0].path).write_sums()
                fragment = json.dumps(made[0].to_json())
                entered = self.ledger.enter(key, part.mask, part.bytes, fragment, sums, part.refused)
            self.parts.push([entered.name])
        except OSError as error:
            if part.failed:
                raise part.failed.pop() from None
            raise failed(error, REST, "cache: cannot write under", self.folder) from error
        return part.bytes

    def pull(self) -> bool:
        """Enter what other machines that share a store put there; whether it has to be committed for readers to see it.

        Raises:
            CacheError: the store failed, or the folder cannot be written.
        """
        if self.parts.share is None or not self.parts.share.is_due(self.folder):
            return False
        with self._locked(WRITERS):
            self.parts.pull()
        return not self.parts.are_committed

    def meet(self) -> None:
        """Let readers see what other machines stored; see `pull`."""
        if self.pull():
            self.commit()
            self.parts.committed()

    def commit(self) -> int:
        """Make every finished part visible to readers that open from now on; return the dataset's version."""
        first_try: set[str] = set()  # files of the first try; what is finished meanwhile waits for the next commit
        for _ in range(_COMMIT_TRIES):
            with self._locked(WRITERS):
                done = self._commit(first_try)
            if done is not None:
                return done
        msg = f"cache: {self._data} was committed by others {_COMMIT_TRIES} times in a row. Run the build again"
        raise CacheError(msg)

    def _commit(self, first_try: set[str]) -> int | None:
        """One try: the version that has all parts, or those of the first try; None if it has to be looked at again."""
        import lance
        from lance.fragment import FragmentMetadata

        dataset = self._dataset() if self._exists() else None
        entries = self.ledger.needed(files_of(dataset))
        parts = [[entry.key, entry.file] for entry in entries]
        if dataset is None and not entries:
            return 0
        have = set(files_of(dataset))
        if dataset is not None and ((first_try and first_try <= have) or sorted(parts_of(dataset)) == sorted(parts)):
            self._record(dataset)
            return int(dataset.version)
        first_try.update(() if first_try else (entry.file for entry in entries))
        sums = {entry.file: entry.sums for entry in entries}
        schema = self._schema_of(entries[0]) if dataset is None else dataset.schema
        schema = schema.with_metadata({PARTS: json.dumps(parts).encode(), SUMS: json.dumps(sums).encode()})
        fragments = [FragmentMetadata.from_json(json.dumps(entry.fragment)) for entry in entries]
        try:
            operation = lance.LanceOperation.Overwrite(schema, fragments)
            made = lance.LanceDataset.commit(str(self._data), operation, enable_stable_row_ids=True)
            self._record(made)
        except OSError as error:
            if not any(each in str(error).lower() for each in _OTHERS_CAME_FIRST):
                otherwise = "Check that the folder is writable and build again"
                raise failed(error, otherwise, "cache: cannot commit", self._data) from error
        return None

    def open(self) -> CacheReader | None:
        """Return the committed cache, pinned at its present version; None if nothing is committed.

        Readers of one store share the shards that they have opened, so that payload is verified once and not in every
        epoch; a shard whose file is no longer what was mapped is opened again.

        Raises:
            DamageError: the version is not what was committed; says who mends it.
        """
        self.meet()
        if not self._exists():
            return None
        held = share(self.folder / READERS)
        try:
            used(self.folder)
            if self._pid != os.getpid():  # a thread of the parent may hold a lock of what was inherited
                self._shards, self._pid = OpenShards(), os.getpid()
            self._shards.forget_changed()
            return CacheReader(self._dataset(), self._data, self._shards, held, self.parts.fetch_files)
        except BaseException:
            if held is not None:
                held.release()  # now, and not once whoever gets the error drops it
            raise

    def mend(self) -> list[str]:
        """Drop what is known to be damaged, so that the next build makes it again; a warning names each.

        Known is what tells at a glance: ledger files, manifests, files that are missing or of another size, and parts
        in which a reader found damage, which are read wholly now. `planner.prepared_data.verify` reads all parts, and marks them.
        """
        dropped = []
        for path in self.ledger.files():
            entry = None
            try:
                entry = self.ledger.read(path)
                if entry is not None:
                    self._look_at(entry)
            except DamageError as error:
                path.unlink(missing_ok=True)
                self.parts.mended(path.name, entry)
                dropped.append(f"{error}. It is dropped from the cache, and built again")
        if self._exists():
            with self._locked(WRITERS):  # a sweep of another builder, which is alone, removes earlier versions
                dropped += self._drop_versions()
        for said in dropped:
            warn(said)
        return dropped

    def _drop_versions(self) -> list[str]:
        """Remove the newest version, and those before it, as long as it is damaged; says each."""
        dropped = []
        while self._exists():
            try:
                self._dataset()
                break
            except DamageError as error:
                newest = self._manifest()
                self._record_of(newest).unlink(missing_ok=True)
                newest.unlink(missing_ok=True)
                dropped.append(f"{error}. The ledger still says what the cache holds, and it is committed again")
        return dropped

    def sweep(self) -> None:
        """Remove what nobody names: parts of killed writers, parts that add no row, versions that no reader is at."""
        if not self.ledger.folder.exists():
            return
        with suppress(DamageError), alone(self.folder / WRITERS) as no_writer:
            if not no_writer:
                return  # the last of them does it
            with alone(self.folder / READERS) as no_reader:
                visible = self.visible()
                needed = self.ledger.needed(visible)
                have = {entry.path for entry in needed}
                rest = [entry for entry in self.ledger.entries() if entry.path not in have]
                remove_dead(self.folder, needed, rest, visible if no_reader else self._ever_visible())
                if no_reader and self._exists():
                    remove_old_versions(self.folder, self._manifest())

    def usage(self) -> Usage:
        """Return bytes on disk: live, and dead until the next `sweep`."""
        live = {entry.stem for entry in self.ledger.needed(self.visible())}
        return usage(self.folder, live)

    def newest(self) -> Path | None:
        """Return the manifest of the newest version; None where there is none."""
        return self._manifest() if self._exists() else None

    def verify_newest(self) -> bool:
        """Verify the newest version's manifest; returns whether there was a digest to verify it by.

        Raises:
            DamageError: it is not what was committed.
        """
        self._dataset()
        return self._record_of(self._manifest()).exists()

    def part(self, entry: LedgerEntry) -> PartFiles:
        """Return the files of a ledger entry."""
        return self.parts.files_of(entry)

    # ---- parts

    def _look_at(self, entry: LedgerEntry) -> None:
        """Refuse a part that is known to be damaged."""
        part = self.part(entry)
        if part.mark.exists():
            part.verify()
            part.mark.unlink(missing_ok=True)
        size = entry.fragment["files"][0].get("file_size_bytes")
        for path, need in ((part.data, size), (part.blob, entry.bytes)):
            held = size_of(path)
            if need is not None and held < int(need) and not self.parts.is_away(entry.path.name, path):
                raise part.damage(path, f"it has {held:,} bytes, {int(need):,} were written")

    # ---- versions

    def _exists(self) -> bool:
        return any(self._data.glob("_versions/*.manifest"))

    def _manifest(self) -> Path:
        """The manifest of the newest version."""
        return min(self._data.glob("_versions/*.manifest"))

    def _dataset(self) -> Any:
        """The newest version, verified.

        Raises:
            DamageError: its manifest is not what was committed.
        """
        manifest = self._manifest()
        record = self._record_of(manifest)
        with self._opening(manifest):
            if record.exists():
                sealed = seal.read_json(record)
                found = seal.digest_of(manifest).hex()
                if "digest" not in sealed:
                    raise seal.damaged(record, "it is no record of a version")
                if found != sealed["digest"]:
                    raise seal.damaged(manifest, f"its digest is {found}, and it was committed with {sealed['digest']}")
            return self._version(manifest)

    def _version(self, manifest: Path) -> Any:
        import lance

        return lance.dataset(str(self._data), version=_NEWEST - int(manifest.stem))

    def _record_of(self, manifest: Path) -> Path:
        """The file with a manifest's digest."""
        return self.folder / "committed" / f"{manifest.stem}.json"

    @contextmanager
    def _opening(self, manifest: Path) -> Iterator[None]:
        try:
            with seal.reading(manifest):
                yield
        except DamageError as error:
            said = str(error).removesuffix(seal.MENDED)
            msg = f"cache: {said}stream.materialize() commits it again from the ledger; no shard is built for that"
            raise DamageError(msg) from error
        except BaseException as error:
            if isinstance(error, CacheError) or not is_failure(error):
                raise
            msg = f"cache: {manifest} is damaged: {str(error)[:200]}; stream.materialize() commits it again from the ledger"
            raise DamageError(msg) from error

    def _record(self, dataset: Any) -> None:
        """Keep the digest of a version's manifest, unless it is kept."""
        manifest = self._data / "_versions" / f"{_NEWEST - int(dataset.version)}.manifest"
        record = self._record_of(manifest)
        if not record.exists() and manifest.exists():
            record.parent.mkdir(exist_ok=True)
            write_file(record, seal.sealed_json({"digest": seal.digest_of(manifest).hex()}))

    def visible(self) -> set[str]:
        """Data files of the newest version."""
        return set(files_of(self._dataset())) if self._exists() else set()

    def _ever_visible(self) -> set[str]:
        """Data files of all versions that are there."""
        out: set[str] = set()
        for manifest in self._data.glob("_versions/*.manifest"):
            with self._opening(manifest):
                out.update(files_of(self._version(manifest)))
        return out

    def _create(self, schema: pa.Schema) -> None:
        """Make the dataset, empty, unless it is there."""
        if not (self.folder / ABOUT).exists():
            write_file(self.folder / ABOUT, self.parts.about())
        if not self._exists():
            import lance

            with suppress(OSError):  # another writer was first
                lance.write_dataset(
                    schema.empty_table(),
                    str(self._data),
                    mode="create",
                    data_storage_version="2.2",
                    enable_stable_row_ids=True,
                )

    def _schema_of(self, entry: LedgerEntry) -> pa.Schema:
        """The columns of a part, where no version is left that says them."""
        from lance.file import LanceFileReader

        part = self.part(entry)
        self.parts.fetch_files(part, payload=False)
        names = list(LanceFileReader(str(part.data)).metadata().schema.names)
        return schema_of(names[names.index(ROW) + 1 : names.index(REFUSED)])

    # ---- locks

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        held = share(self.folder / name)
        try:
            yield
        finally:
            if held is not None:
                held.release()
