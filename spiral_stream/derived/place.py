"""Where derived data lies."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import xxhash

from spiral_stream.errors import CacheError, SourceError
from spiral_stream.integrity.publish import write_file
from spiral_stream.sources.paths import local_folder

CACHE_ENV: Final = "SPIRAL_CACHE"


def derived_root(catalog: Path) -> Path:
    """Return the folder of all derived data: ``$SPIRAL_CACHE``, else ``prepared`` in the catalog's own folder.

    Raises:
        CacheError: ``$SPIRAL_CACHE`` names no folder of this machine.
    """
    place = os.environ.get(CACHE_ENV) or catalog / "prepared"
    try:
        return local_folder(place)
    except SourceError as error:
        msg = f"${CACHE_ENV}={place}: caches lie in a local folder; this {error}"
        raise CacheError(msg) from error


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
