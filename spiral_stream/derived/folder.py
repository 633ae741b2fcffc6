"""Where derived data lies."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import xxhash

from spiral_stream.derived.share.share import working_folder
from spiral_stream.errors import CacheError, SourceError, cut
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.publish import write_file
from spiral_stream.sources.files.paths import local_folder
from spiral_stream.storage.node_cache.cache import FOLDER_ENV
from spiral_stream.storage.uri import MEMORY, OBJECTS, printable, scheme_of

CACHE_ENV: Final = "SPIRAL_CACHE"
SHARED: Final = OBJECTS | {MEMORY}  # schemes of places that machines share


def derived_root(catalog: Path) -> Path:
    """Return the folder of all derived data: ``$SPIRAL_CACHE``, else ``prepared`` in the catalog's own folder.

    Where ``$SPIRAL_CACHE`` is the URI of an object store, it is the working folder of this machine (`share`).

    Raises:
        CacheError: ``$SPIRAL_CACHE`` names neither a folder of this machine nor a place on an object store.
    """
    place = os.environ.get(CACHE_ENV) or catalog / "prepared"
    try:
        if isinstance(place, str) and scheme_of(place) in SHARED:
            return working_folder(place)
        return local_folder(place)
    except SourceError as error:
        clause = str(error).removeprefix(f"{place} ")
        shown = cut(printable(str(place)))
        msg = f"${CACHE_ENV}={shown}: caches lie in a local folder, or on an object store (s3://, gs://, az://); this {clause}"
        raise CacheError(msg) from None
    except OSError as error:
        raise failed(
            error, f"Set ${FOLDER_ENV} to a folder that can be written", "its working folder", "cannot be made"
        ) from error


def note_catalog(root: Path, catalog: Path) -> None:
    """Note that a catalog keeps derived data outside of its own folder, so that no other one takes that for dead."""
    if root == catalog / "prepared":
        return
    file = root / "catalogs" / xxhash.xxh3_64_hexdigest(str(catalog).encode())
    if not file.exists():
        with suppress(OSError):  # where nothing can be written nothing is removed either
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, str(catalog).encode())


def catalogs_of(root: Path) -> Iterator[Path]:
    """Yield the catalogs that were noted and are still there."""
    for file in sorted((root / "catalogs").glob("[!.]*")):
        folder = Path(file.read_text())
        if folder.is_dir():
            yield folder
