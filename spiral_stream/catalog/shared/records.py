"""The records of a catalog on an object store: small objects by name, and the files that they name.

A record is one JSON object under its own seal. It is put whole, after the files that it names, so whoever reads sees all of it
or none. A name that shall be new is put on the condition that it is not there: of two who register it, one wins. A
listing of the records is the table. Nothing relies on a rename or a lock of the store.
"""

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from spiral_stream.arguments import is_integer
from spiral_stream.catalog.shared.files import LostPartError, SharedFile, fetch, files_from, send
from spiral_stream.errors import CatalogError, MissingExtraError, SourceError, SpiralError, anew
from spiral_stream.integrity.publish import take_out, write_file
from spiral_stream.integrity.seal import parse_json, sealed_json
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import Get, ObjectStat, Store

_VERSION: Final = 1  # of records
_MOST_BYTES: Final = 256 << 20  # of a record; an import of 100,000 files has 15 MB
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_RECORDS: Final = (
    ".records"  # folder of the mirror: records as they were read last, each after a line that says its mark
)
_TRIES: Final = 4  # of a name that comes and goes while it is made


class LostError(CatalogError):
    """A record, or a file that it names, is not there or not what was written: who has it can keep it again."""


@final
@dataclass(frozen=True, slots=True)
class Record:
    """What a name stands for."""

    name: str
    row: Mapping[str, Any] | None  # None if it is damaged
    files: Mapping[str, SharedFile]  # by their paths in the catalog


@final
class SharedCatalog:
    """The records and files of one catalog on a store. Thread-safe; asks nothing of the store before it is used.

    Args:
        uri: of the catalog, without a slash at its end.
        root: the folder of this machine that mirrors it.
    """

    def __init__(self, uri: str, root: Path) -> None:
        self.uri, self.root = uri, root
        self._known: dict[tuple[str, str], tuple[str, Record]] = {}

    def records(self, kind: str) -> dict[str, Record]:
        """Return the records of a kind by name: one request, and one for each that changed since it was read here.

        Raises:
            CatalogError: the store failed.
        """
        with self._asking(f"read its {kind}"):
            store, prefix = self._record_file(f"records/{kind}/")
            listed = dict(_named(prefix, store.list(prefix)))
            new = [name for name, facts in listed.items() if not self._knows(kind, name, _mark(facts))]
            answers = store.read([Get(f"{prefix}{name}.json", most_bytes=_MOST_BYTES) for name in new])
            for name, got in zip(new, answers, strict=True):
                if isinstance(got, NotThereError):  # removed since it was listed
                    listed.pop(name)
                elif isinstance(got, SourceError):
                    raise anew(got)
                else:
                    self._learn(kind, name, _mark(got.facts), bytes(got.data or b""))
        return {name: self._known[kind, name][1] for name in sorted(listed)}

    def record(self, kind: str, name: str) -> Record | None:
        """Return one record; None if there is none.

        Raises:
            LostError: the record is damaged.
            CatalogError: the store failed.
        """
        with self._asking(f"read {name!r} of its {kind}"):
            data = self._get(kind, name)
            found = None if data is None else _parsed(kind, name, data)
        if found is not None and found.row is None:
            msg = f"catalog {self.uri}: {self.place(kind, name)} is damaged. Register again with replace=True what it belongs "
            msg += "to, or delete that object and register what it belongs to, or restore it"
            raise LostError(msg)
        return found

    def place(self, kind: str, name: str) -> str:
        """Return where a record lies, for people."""
        return f"{self.uri}/records/{kind}/{name}.json"

    def keep(
        self,
        kind: str,
        name: str,
        row: Mapping[str, Any],
        files: Sequence[Path] = (),
        *,
        absent: bool = False,
        again: bool = False,
    ) -> bool:
        """Write a record, after the files that it names; whether it was written.

        Args:
            kind: of the record.
            name: of the record; parts of it may be separated by slashes.
            row: what it says.
            files: in the mirror.
            absent: only where there is none of this name.
            again: files that are there may be damaged.

        Raises:
            CatalogError: the store failed, or may not be written.
        """
        with self._asking(f"keep {name!r} of its {kind}"):
            store, data = self._record_file("data/")
            sent = send(store, data, self.root, [str(path.relative_to(self.root)) for path in files], again=again)
            named = {path: [file.size, list(file.parts)] for path, file in sent.items()}
            body = {"version": _VERSION, "kind": kind, "name": name, "by": uuid.uuid4().hex}
            sealed = sealed_json({**body, "row": dict(row), "files": named})
            store, key = self._record_file(f"records/{kind}/{name}.json")
            for _ in range(_TRIES):
                if store.put(key, sealed, absent=absent) is not None:
                    return True
                there = self._get(kind, name)
                if there is not None:  # ours if its answer was lost, and the client asked again
                    return there == sealed
            return False

    def remove(self, kind: str, name: str) -> None:
        """Delete a record; files that it named stay, because others may name them.

        Raises:
            CatalogError: the store failed, or may not be written.
        """
        with self._asking(f"drop {name!r} of its {kind}"):
            store, key = self._record_file(f"records/{kind}/{name}.json")
            store.delete(key)

    def has(self, kind: str, name: str) -> bool:
        """Whether there is a record.

        Raises:
            CatalogError: the store failed, or the record is damaged.
        """
        return self.record(kind, name) is not None

    def need(self, kind: str, name: str, what: str) -> Record:
        """Return one record.

        Args:
            kind: of the record.
            name: of the record.
            what: it stands for, for people.

        Raises:
            LostError: it is damaged, or there is none.
            CatalogError: the store failed.
        """
        found = self.record(kind, name)
        if found is None:
            msg = f"catalog {self.uri}: {what} is not there: {self.place(kind, name)}. Restore it, or register the relation "
            msg += "again with replace=True"
            raise LostError(msg)
        return found

    def share(self, kind: str, name: str, files: Callable[[], Sequence[Path]], *, again: bool = False) -> None:
        """Write a record that stands for one content, and its files before it, unless it is there.

        Args:
            kind: of the record.
            name: of the record.
            files: in the mirror.
            again: write it although it is there: it, or a file, may be damaged.

        Raises:
            CatalogError: the store failed, or may not be written.
        """
        if again or self.record(kind, name) is None:
            self.keep(kind, name, {}, files(), absent=not again, again=again)

    def bring_below(self, kind: str, name: str) -> None:
        """Fetch the files of the records whose first part is this one; they lie in the folder of their kind.

        Raises:
            CatalogError: the store failed, a file is damaged, or the mirror cannot be written.
        """
        with self._asking(f"read its {kind}"):
            store, prefix = self._record_file(f"records/{kind}/{name}/")
            names = sorted(each for each, _ in _named(prefix, store.list(prefix)))
        for each in names:
            if (record := self.record(kind, f"{name}/{each}")) is not None:
                self.bring(record, f"{kind}/")

    def bring_again(self, kind: str, name: str, path: Path) -> bool:
        """Fetch a file of a record again if it is damaged here; whether it was here.

        Raises:
            CatalogError: the store failed, the file is damaged there too, or the mirror cannot be written.
        """
        if not path.exists():
            return False
        path.unlink(missing_ok=True)
        if (record := self.record(kind, name)) is not None:
            self.bring(record, f"{kind}/")
        return True

    def has_all(self, mark: Path) -> bool:
        """Whether what a file of the mirror marks was fetched."""
        return mark.exists()

    def value(self, kind: str, name: str) -> Any | None:
        """Return the value that `keep_value` kept; None if there is none.

        Raises:
            CatalogError: the store failed, or it is damaged.
        """
        found = self.record(kind, name)
        return None if found is None or found.row is None else found.row["value"]

    def keep_value(self, kind: str, name: str, value: Any) -> bool:
        """Keep a JSON value; whether it was written.

        Raises:
            CatalogError: the store failed, or may not be written.
        """
        return self.keep(kind, name, {"value": value})

    def remove_below(self, below: str) -> None:
        """Delete the objects below a folder of the catalog that no record names, and the folder of the mirror.

        Raises:
            CatalogError: the store failed, or may not be written.
            OSError: the mirror cannot be written.
        """
        with self._asking(f"remove {below!r}"):
            store, prefix = self._record_file(f"{below}/")
            for key, _ in store.list(prefix):
                store.delete(key)
        take_out(self.root / below)

    def lasting(self, files: Mapping[str, str]) -> Mapping[str, str]:
        """Return those of a relation's own files, by name, whose times say something: those here are of this machine.

        Args:
            files: paths by name; they lie in the mirror together, or none does.
        """
        first = next(iter(files.values()), "")
        return {} if first.startswith(f"{self.root}{os.sep}") else files

    def bring(
        self, record: Record, below: str, to: Path | None = None, only: Callable[[str], bool] | None = None
    ) -> None:
        """Fetch files of a record that are not here.

        Args:
            record: names them.
            below: what their paths begin with; others are not fetched.
            to: the folder that they come to lie in; the mirror by default.
            only: which of them; all by default.

        Raises:
            LostError: a file is damaged, or is not there.
            CatalogError: the store failed, or the mirror cannot be written.
        """
        folder = self.root if to is None else to
        paths = [path for path in record.files if path.startswith(below) and (only is None or only(path))]
        wanted = {folder / path: record.files[path] for path in paths}
        with self._asking(f"fetch files of {record.name!r}"):
            store, data = self._record_file("data/")
            fetch(store, data, self.uri, {path: file for path, file in wanted.items() if not _is_here(path, file)})

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (CatalogError, MissingExtraError):
            raise
        except SpiralError as error:
            msg = f"catalog {self.uri}: cannot {doing}: {error}"
            raise (LostError if isinstance(error, LostPartError) else CatalogError)(msg) from error
        except OSError as error:
            msg = f"catalog {self.uri}: cannot {doing}: {error.filename or self.root}: {error.strerror}. "
            msg += (
                "Make the mirror here writable, free space on its disk, or set $SPIRAL_CATALOG_MIRROR to another folder"
            )
            raise CatalogError(msg) from error

    def _record_file(self, below: str) -> tuple[Store, str]:
        return store_of(f"{self.uri}/{below}")

    def _get(self, kind: str, name: str) -> bytes | None:
        store, key = self._record_file(f"records/{kind}/{name}.json")
        [got] = store.read([Get(key, most_bytes=_MOST_BYTES)])
        if isinstance(got, NotThereError):
            if "bucket is not there" in str(got):
                raise anew(got)
            return None
        if isinstance(got, SourceError):
            raise anew(got)
        return bytes(got.data or b"")

    def _knows(self, kind: str, name: str, mark: str) -> bool:
        """Whether the record that is listed was read before, by any process of this machine."""
        if (kind, name) not in self._known:
            with suppress(OSError):
                first, _, data = (self.root / _RECORDS / kind / name).read_bytes().partition(b"\n")
                self._known[kind, name] = first.decode(errors="replace"), _parsed(kind, name, data)
        known = self._known.get((kind, name))
        return known is not None and known[0] == mark and known[1].row is not None

    def _learn(self, kind: str, name: str, mark: str, data: bytes) -> None:
        self._known[kind, name] = mark, _parsed(kind, name, data)
        path = self.root / _RECORDS / kind / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, mark.encode() + b"\n" + data)


def _named(prefix: str, listed: Iterator[tuple[str, ObjectStat]]) -> Iterator[tuple[str, ObjectStat]]:
    """Names of records and what their objects are like; objects of other names are not ours."""
    for key, facts in listed:
        name = key[len(prefix) :].removesuffix(".json")
        if key.endswith(".json") and _NAME.fullmatch(name):
            yield name, facts


def _mark(facts: ObjectStat) -> str:
    return f"{facts.size:x}-{facts.mark:x}"


def _parsed(kind: str, name: str, data: bytes) -> Record:
    """The record in the bytes of an object; one without a row if they are not what was written under this name.

    Raises:
        SourceError: a later version of Spiral wrote it.
    """
    version: object = None
    with suppress(SpiralError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        found = parse_json(Path(name), data)
        version = found["version"]
        if (version, found["kind"], found["name"]) == (_VERSION, kind, name) and type(found["row"]) is dict:
            return Record(name, found["row"], files_from(found["files"]))
    if is_integer(version, _VERSION + 1):
        msg = (
            f"record {name!r} is of version {version}: a later version of Spiral wrote it, and this one knows version "
            f"{_VERSION}. Upgrade Spiral here"
        )
        raise SourceError(msg)
    return Record(name, None, {})


def _is_here(path: Path, file: SharedFile) -> bool:
    try:
        return path.stat().st_size == file.size
    except OSError:
        return False
