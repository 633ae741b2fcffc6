"""Where a catalog on an object store is mirrored on this machine, so that code that takes a folder works on it.

The mirror is a folder that says which catalog it mirrors. It may be deleted at any time when no process uses it: what is
needed is fetched again, except data derived on this machine where `$SPIRAL_CACHE` is not set, which is made again.
"""

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

import xxhash

from spiral_stream.catalog.shared.records import Record, SharedCatalog
from spiral_stream.errors import CatalogError, SourceError, cut, shown
from spiral_stream.integrity.publish import take_out, write_file
from spiral_stream.integrity.seal import read_json, sealed_json
from spiral_stream.sources.files.paths import local_folder
from spiral_stream.storage.profiles import options_of, redacted
from spiral_stream.storage.uri import WEB, is_object, joined, printable, scheme_of

MIRROR_ENV: Final = "SPIRAL_CATALOG_MIRROR"
_FOLDER: Final = "~/.cache/spiral/catalogs"
_MARK: Final = "mirrors"  # the file that names the catalog
_SHOWN: Final = 40  # characters of the URI in the folder's name
_ENDPOINTS: Final = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ENDPOINT")
_KNOWN: Final[dict[Path, SharedCatalog]] = {}
_LOCK: Final = threading.Lock()


@final
class FolderCatalog:
    """A catalog in a folder, with what is asked of a `SharedCatalog`: all of it is here, so nothing is sent or fetched.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.uri, self.root = str(root), root

    def records(self, kind: str) -> Mapping[str, Record] | None:
        """Return None: which names there are, the folder says."""

    def record(self, kind: str, name: str) -> Record | None:
        """Return None: no record names files that are elsewhere."""

    def has(self, kind: str, name: str) -> bool:
        """Return True: what a record would name is here."""
        del kind, name
        return True

    def need(self, kind: str, name: str, what: str) -> Record | None:
        """Return None, as `record`."""

    def place(self, kind: str, name: str) -> str:
        """Return "": a folder's tables say where they are."""
        del kind, name
        return ""

    def share(self, kind: str, name: str, files: Callable[[], Sequence[Path]], *, again: bool = False) -> None:
        """Do nothing, as the next four."""

    def remove(self, kind: str, name: str) -> None: ...

    def bring_below(self, kind: str, name: str) -> None: ...

    def bring(
        self, record: Record, below: str, to: Path | None = None, only: Callable[[str], bool] | None = None
    ) -> None: ...

    def bring_again(self, kind: str, name: str, path: Path) -> bool:
        """Return False: there is no other copy."""
        del kind, name, path
        return False

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
        """Return True: the files are where they are kept, and the folder's own lock says who was first."""
        del kind, name, row, files, absent, again
        return True

    def has_all(self, mark: Path) -> bool:
        """Return True: whatever it marks is here."""
        del mark
        return True

    def value(self, kind: str, name: str) -> Any | None:
        """Return the value that `keep_value` kept.

        Raises:
            CacheError: it is not there, or damaged.
        """
        return read_json(self._value_file(kind, name))["value"]

    def keep_value(self, kind: str, name: str, value: Any) -> bool:
        """Keep a JSON value; whether it was written.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self._value_file(kind, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, sealed_json({"value": value}))
        return True

    def remove_below(self, below: str) -> None:
        """Remove a folder with all that is in it.

        Raises:
            OSError: the folder cannot be written.
        """
        take_out(self.root / below)

    def lasting(self, files: Mapping[str, str]) -> Mapping[str, str]:
        """Return those of a relation's own files, by name, whose times say something: all of them."""
        return files

    def _value_file(self, kind: str, name: str) -> Path:
        return self.root / kind / f"{name}.json"


def root_of(uri: str | os.PathLike[str]) -> Path:
    """Return the folder of a catalog: of one on a store that which mirrors it, made if it is missing.

    Raises:
        CatalogError: the URI names no place where a catalog can lie, or the mirror cannot be made.
        SourceError: it is no path, or lies elsewhere; a clause that follows the path.
    """
    if not (isinstance(uri, str) and is_object(uri)):
        return local_folder(uri)
    try:
        if scheme_of(uri) in WEB:
            msg = f"{cut(printable(uri))}: a catalog cannot lie on a web server, which is not written to. "
            msg += "Give a folder, or a place such as s3://bucket/catalog"
            raise CatalogError(msg)
        root = joined(uri, "")
        folder = _folder_of(root)
    except SourceError as error:
        msg = f"catalog {cut(redacted(uri))}: {error}"
        raise CatalogError(msg) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / _MARK).exists():
            write_file(folder / _MARK, root.encode())
    except OSError as error:
        msg = f"catalog {root}: its mirror {folder}: {error.strerror}. Set ${MIRROR_ENV} to a folder of this machine that "
        msg += "can be written"
        raise CatalogError(msg) from error
    return folder


def home_of(root: Path) -> SharedCatalog | FolderCatalog:
    """Return where the records and files of a catalog lie: on the store that its folder mirrors, or in the folder."""
    with _LOCK:
        if root not in _KNOWN:
            with suppress(OSError):
                _KNOWN[root] = SharedCatalog((root / _MARK).read_text(), root)
        return _KNOWN.get(root) or FolderCatalog(root)


def location_of(root: Path) -> str:
    """Return where a catalog lies, for people: the URI that its folder mirrors, or the folder."""
    return home_of(root).uri


def _folder_of(location: str) -> Path:
    """The mirror of one place on one store: its options may name another store of equal buckets."""
    where = os.environ.get(MIRROR_ENV) or _FOLDER
    try:
        above = local_folder(where)
    except SourceError as error:
        msg = f"${MIRROR_ENV}={shown(where)}: a mirror lies in a folder of this machine; this {error}"
        raise CatalogError(msg) from error
    ends = [value for name, value in options_of(location).items() if "endpoint" in name]
    ends += [os.environ[name] for name in _ENDPOINTS if name in os.environ]
    digest = xxhash.xxh3_64_hexdigest("\0".join([location, *ends]).encode())
    return above / f"{re.sub('[^A-Za-z0-9.-]+', '-', location)[:_SHOWN]}-{digest}"
