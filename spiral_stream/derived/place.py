"""Where derived data lies."""

import os
from pathlib import Path
from typing import Final

from spiral_stream.errors import CacheError, SourceError
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
