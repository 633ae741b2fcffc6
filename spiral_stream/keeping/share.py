"""Prepared data shared through an object store: a working folder per machine, and objects that never change.

``$SPIRAL_CACHE=s3://team/prepared`` names the store. Everything works on the working folder; names below it are the keys
of the store. What is finished is put: its data first, and then its record, which nobody overwrites. Records of others are
listed and entered here; their data comes when somebody opens it. So nothing needs a lock on the store, and a process that
is killed leaves objects without a record, which nobody reads.

``format.json`` says in which format all of it is written (docs/decisions/0078). An older program would take what a later one
wrote for damaged, mark it, and make it again; so each process reads that object before it asks for another, and touches
nothing if it does not know the format. Where there is none, it is put before anything else is.
"""

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, final

import xxhash

from spiral_stream.errors import CacheError, DamageError, SourceError, anew, cut, shown, warn
from spiral_stream.integrity import seal
from spiral_stream.integrity.locks import wait_for
from spiral_stream.integrity.publish import new_draft, sweep_drafts, write_file
from spiral_stream.keeping.leases import Claims
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.node_cache.cache import working_root
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import Get, Got, ObjectStat, Store
from spiral_stream.storage.uri import parse_uri, printable

FORMAT: Final = 1  # of records, marks and leases, and of what they name
FORMAT_FILE: Final = "format.json"  # at the root of the store
STORE: Final = "store.json"  # in a working folder: which store it is for
STORED: Final = "stored"  # in the folder of a derivation or cache: a file for each record that is known to be stored
DAMAGED: Final = ".damaged"  # of an object that says that another one is damaged
_FETCHING: Final = "fetching"  # in a working folder: drafts of what comes
_DEEP: Final = 5  # folders from a working folder down to any that asks
_RANGE_BYTES: Final = 16 << 20
_RANGES: Final = 4  # at a time
_ASK_EVERY_S: Final = 2.0  # how often one folder of the store is listed, unless there is a reason
_ASK_SHARE: Final = 20  # ... and of the time, listing takes one part in so many at most
_WAIT_S: Final = 600.0  # for another process of this machine that fetches the same; then it is fetched twice
_TRIES: Final = 2  # before a file that comes damaged is named


@final
@dataclass(slots=True)
class ShareCounters:
    """What one process asked of the store. Counted to one: threads add to it under the share's lock."""

    lists: int = 0
    records: int = 0  # read
    fetched: int = 0  # files
    fetched_bytes: int = 0
    put: int = 0  # files
    put_bytes: int = 0


@final
class ObjectDamageError(DamageError):
    """An object of the store is not what was written."""


@final
class Share:
    """One store, and the working folder of this machine. Thread-safe.

    Args:
        root: the working folder.
        uri: where the same lies on the store.
        store_id: names this working folder.
        where: begins the messages of the store's errors.
        has_format: whether ``format.json`` says what all of it is written in; a dataset of Lance's has a format of its own.
    """

    def __init__(
        self, root: Path, uri: str, store_id: str, where: str = "$SPIRAL_CACHE", *, has_format: bool = True
    ) -> None:
        self.root, self.uri, self.counters = root, uri, ShareCounters()
        self.working_id = f"{store_id} {os.uname().nodename}"  # where locks of the kernel are seen
        self._where = where
        self._pid: int | None = None  # that spoke to the store
        self._format = None if has_format else FORMAT  # of the store, once it was asked; 0 where nobody has put any
        self._next: dict[Path, float] = {}  # when a folder is to be listed again
        self._lock = threading.Lock()

    @property
    def shown(self) -> str:
        """The URI, for messages."""
        return cut(printable(self.uri))

    def uri_of(self, path: Path) -> str:
        """Return the URI of something in the working folder."""
        return f"{self.uri}/{path.relative_to(self.root).as_posix()}"

    @property
    def forked(self) -> bool:
        """Whether this process was forked from one that spoke to the store; then it cannot."""
        return self._pid is not None and self._pid != os.getpid()

    def is_due(self, folder: Path) -> bool:
        """Whether a folder should be listed now: it was not for a while, is not here, or `ask_again` said so."""
        return not self.forked and (time.monotonic() >= self._next.get(folder, 0.0) or not folder.exists())

    def ask_again(self, folder: Path) -> None:
        """Let a folder be listed at the next occasion."""
        self._next.pop(folder, None)

    def names(self, folder: Path) -> tuple[set[str], set[str]]:
        """Return the names of the objects in a folder of the store, and those that are marked as damaged.

        Raises:
            CacheError: the store failed.
        """
        start = time.monotonic()
        with self._asking(folder) as (store, key):
            found = {each[len(key) + 1 :] for each, _ in store.list(f"{key}/")}
        self._count(lists=1)
        now = time.monotonic()
        self._next[folder.parent] = now + max(_ASK_EVERY_S, _ASK_SHARE * (now - start))
        marks = {name for name in found if name.endswith(DAMAGED)}
        return found - marks, {name.removesuffix(DAMAGED) for name in marks}

    def read(self, paths: Sequence[Path]) -> list[bytes | None]:
        """Return small objects; None for one that is not there.

        Raises:
            CacheError: the store failed.
        """
        if not paths:
            return []
        with self._asking(paths[0].parent) as (store, key):
            found = store.read([Get(f"{key}/{path.name}") for path in paths])
            out: list[bytes | None] = []
            for each in found:
                if isinstance(each, SourceError) and not isinstance(each, NotThereError):
                    raise anew(each)
                out.append(bytes(each.data or b"") if isinstance(each, Got) else None)
        self._count(records=len(out))
        return out

    def look(self, path: Path) -> tuple[bytes, ObjectStat] | None:
        """Return a small object and what it is like; None where there is none.

        Raises:
            CacheError: the store failed.
        """
        with self._asking(path) as (store, key), suppress(NotThereError):
            got = store.get(key)
            return bytes(got.data or b""), got.facts
        return None

    def put(
        self, path: Path, data: bytes, *, absent: bool = False, unchanged: ObjectStat | None = None
    ) -> ObjectStat | None:
        """Write a small object; None if the condition does not hold.

        Raises:
            CacheError: the store failed.
        """
        with self._asking(path, puts=True) as (store, key):
            return store.put(key, data, absent=absent, unchanged=unchanged)

    def remove(self, path: Path) -> None:
        """Remove a small object; one that is not there is none to remove.

        Raises:
            CacheError: the store failed.
        """
        with self._asking(path) as (store, key):
            store.delete(key)

    def put_file(self, path: Path, held: Path) -> None:
        """Write an object from a file.

        Args:
            path: of the working folder; nobody else gives this name to other bytes.
            held: has the bytes.

        Raises:
            CacheError: the store failed.
        """
        with self._asking(path, puts=True) as (store, key):
            store.put_file(key, held)
        self._count(put=1, put_bytes=held.stat().st_size)

    def fetch(self, path: Path, size: int | None, check: Callable[[Path], str | None]) -> None:
        """Let a file of the store appear in the working folder, whole and verified, unless it is there.

        Processes and threads of this machine that want the same wait for one of them.

        Args:
            path: where it shall lie.
            size: of the file; None if it is small, and its seal says what it has to be.
            check: says what is wrong with a draft of it.

        Raises:
            ObjectDamageError: the object is missing, or not what was written; nothing appeared.
            CacheError: the store failed.
        """
        if path.exists():
            return
        with self.turn(path):
            if path.exists():
                return
            found: str | None = None
            for _ in range(_TRIES):
                found = self._fetch(path, size, check)
                if found is None:
                    return
        shown = cut(printable(self.uri_of(path)))
        msg = f"{shown} is damaged: {found}; it would have to be as it was written. It is not used; the next build makes it again"
        raise ObjectDamageError(msg)

    def mark_damaged(self, record: Path) -> None:
        """Note on the store that nobody should use a record; where that may not be written, only this machine knows."""
        with suppress(CacheError):
            self.put(record.with_name(record.name + DAMAGED), b"", absent=True)

    @contextmanager
    def turn(self, path: Path) -> Iterator[None]:
        """One process or thread of this machine at a time, per path."""
        folder = self.root / _FETCHING
        folder.mkdir(parents=True, exist_ok=True)
        claims = Claims(folder)
        key = xxhash.xxh3_64_intdigest(str(path).encode())
        try:
            with suppress(TimeoutError):
                wait_for(lambda: claims.take(key) or None, folder, _WAIT_S, quiet=True)
            yield
        finally:
            claims.close()

    def _fetch(self, path: Path, size: int | None, check: Callable[[Path], str | None]) -> str | None:
        """One try; returns what is wrong."""
        folder = self.root / _FETCHING
        sweep_drafts(folder)
        work, held = new_draft(folder / path.name, Path.touch)
        try:
            found = self._download(path, size, work) or check(work)
            if found is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                work.replace(path)
            return found
        finally:
            held.release()
            work.unlink(missing_ok=True)

    def _download(self, path: Path, size: int | None, work: Path) -> str | None:
        with self._asking(path) as (store, key), work.open("r+b") as out:
            try:
                for got in _ranges(store, key, size):
                    if size is not None and got.facts.size != size:
                        return f"it has {got.facts.size:,} bytes, {size:,} were written"
                    out.write(got.data or b"")
                    self._count(fetched_bytes=len(got.data or b""))
            except NotThereError:
                return "it is missing"
            except SourceError:
                facts = store.stat(key)
                if size is None or facts.size == size:
                    raise
                return f"it has {facts.size:,} bytes, {size:,} were written"
            out.flush()
            os.fsync(out.fileno())
        self._count(fetched=1)
        return None

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, value in more.items():
                setattr(self.counters, name, getattr(self.counters, name) + value)

    @contextmanager
    def _asking(self, path: Path, *, puts: bool = False) -> Iterator[tuple[Store, str]]:
        """The store, and the key of something in the working folder; its errors are those of a cache."""
        try:
            found = store_of(self.uri_of(path))
            self._pid = self._pid or os.getpid()
            if self._format is None or (puts and not self._format):
                self._format = self._format_of(*store_of(self.uri_of(self.root / FORMAT_FILE)), puts=puts)
            yield found
        except SourceError as error:
            msg = f"{self._where}: {error}"
            raise CacheError(msg) from None

    def _format_of(self, store: Store, key: str, *, puts: bool) -> int:
        """The format of the store, which is put where there is none and something else will be; 0 where there is none.

        Raises:
            CacheError: it is not ours, or cannot be read.
            SourceError: the store failed.
        """
        for _ in range(_TRIES):
            with suppress(NotThereError):
                data = bytes(store.get(key).data or b"")
                break
            if not puts:
                return 0
            if store.put(key, seal.sealed_json({"format": FORMAT}), absent=True) is not None:
                return FORMAT
        else:
            return 0  # somebody removes it again and again
        where = f"{self._where}: {cut(printable(self.uri_of(self.root / FORMAT_FILE)))}"
        try:
            found = seal.parse_json(Path(FORMAT_FILE), data)["format"]
        except (DamageError, KeyError):
            msg = (
                f"{where} is damaged, so nobody knows which version of Spiral wrote what lies there. Delete that "
                "object if all who use the store have this version; else name another place"
            )
            raise CacheError(msg) from None
        if found != FORMAT:
            msg = (
                f"{where} says that a later version of Spiral wrote what lies there, in format {shown(found)}; "
                f"this one knows format {FORMAT}. Nothing was read or written. Upgrade Spiral here, or name another place"
            )
            raise CacheError(msg)
        return FORMAT


def _ranges(store: Store, key: str, size: int | None) -> Iterator[Got]:
    """Yield an object, a few ranges at a time.

    Raises:
        SourceError: the store failed, or the object ends before ``size``.
    """
    if size is None:
        yield store.get(key)
        return
    begins = range(0, max(size, 1), _RANGE_BYTES)
    for at in range(0, len(begins), _RANGES):
        some = begins[at : at + _RANGES]
        for got in store.read([Get(key, begin, min(_RANGE_BYTES, size - begin)) for begin in some]):
            if isinstance(got, SourceError):
                raise anew(got)
            yield got


def working_folder(uri: str) -> Path:
    """Return the folder of this machine for prepared data that lies on a store, and note in it which store that is.

    It lies next to the node cache: ``prepared`` in the parent of ``$SPIRAL_NODE_CACHE``, else in ``~/.cache/spiral``.

    Raises:
        SourceError: the URI names no place.
        OSError: it cannot be made.
    """
    root, key = parse_uri(uri)
    bare = f"{root}/{key}".rstrip("/")
    folder = working_root() / "prepared" / xxhash.xxh3_64_hexdigest(bare.encode())
    if not (folder / STORE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / STORE, seal.sealed_json({"uri": bare, "place": uuid.uuid4().hex}))
    return folder


def working_folders(node: Path) -> list[tuple[Path, str]]:
    """Return the working folders next to a node cache, and the URIs of their stores, for people."""
    found = [each.parent for each in sorted(node.absolute().parent.glob(f"prepared/*/{STORE}"))]
    return [(root, _share(root).shown) for root in found]


@lru_cache(1 << 12)
def share_of(folder: Path) -> Share | None:
    """Return the share that a folder belongs to, a working folder or one in it; None: it is of this machine only."""
    for root in [folder, *folder.parents][:_DEEP]:
        if (root / STORE).exists():
            return _share(root)
    return None


@lru_cache(64)
def _share(root: Path) -> Share:
    facts = seal.read_json(root / STORE)
    return Share(root, str(facts["uri"]), str(facts["place"]))


def note(folder: Path, name: str) -> None:
    """Note in the folder of a derivation or cache that a record is stored, or known."""
    marks = folder / STORED
    marks.mkdir(parents=True, exist_ok=True)
    (marks / name).touch()


def noted(folder: Path) -> set[str]:
    """Return the records that were noted."""
    with suppress(OSError):
        return set(os.listdir(folder / STORED))  # noqa: PTH208
    return set()


def is_noted(folder: Path, name: str) -> bool:
    """Whether a record was noted."""
    return bool(name) and (folder / STORED / name).exists()


def forget(folder: Path, name: str) -> None:
    """Forget a record, so that it is looked for on the store again."""
    with suppress(OSError):
        (folder / STORED / name).unlink()
    share = share_of(folder)
    if share is not None:
        share.ask_again(folder)


def skipped(share: Share, record: Path, said: str) -> None:
    """Warn of a record that is not what was written, and mark it, so that nobody reads it and its work is done again."""
    share.mark_damaged(record)
    found = said.partition(" is damaged: ")[2].partition(";")[0] or said
    shown = cut(printable(share.uri_of(record)))
    msg = f"{shown} is damaged: {found}. It is not used; the next build makes again what it held"
    warn(msg)
