"""Where a catalog on an object store is mirrored on this machine, so that code that takes a folder works on it.

The mirror is a folder that says which catalog it mirrors. It may be deleted at any time when no process uses it: what is
needed is fetched again, except data derived on this machine where `$SPIRAL_CACHE` is not set, which is made again.
"""

import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import xxhash

from spiral_stream.catalog.shared.records import SharedCatalog
from spiral_stream.errors import CatalogError, SourceError, cut, shown
from spiral_stream.integrity.publish import write_file
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


def mirrored(uri: object) -> bool:
    """Whether a catalog's place is on a store, and not a folder of this machine."""
    return isinstance(uri, str) and is_object(uri)


def mirror_of(uri: str) -> Path:
    """Return the folder of this machine that mirrors a catalog, which is made if it is missing.

    Raises:
        CatalogError: the URI names no place where a catalog can lie, or the folder cannot be made.
    """
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


def shared_of(root: Path) -> SharedCatalog | None:
    """Return the catalog that a folder mirrors; None if it is a catalog of its own."""
    with _LOCK:
        if root not in _KNOWN:
            with suppress(OSError):
                _KNOWN[root] = SharedCatalog((root / _MARK).read_text(), root)
        return _KNOWN.get(root)


def location_of(root: Path) -> str:
    """Return where a catalog lies, for people: the URI that its folder mirrors, or the folder."""
    shared = shared_of(root)
    return str(root) if shared is None else shared.uri


def unmirrored(root: Path, files: Mapping[str, str]) -> Mapping[str, str]:
    """Return those of a relation's own files that its catalog does not mirror: the others have times of this machine.

    Args:
        root: folder of the catalog.
        files: paths by name; they lie in the mirror together, or none does.
    """
    first = next(iter(files.values()), "")
    return {} if first.startswith(f"{root}{os.sep}") and shared_of(root) is not None else files


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
