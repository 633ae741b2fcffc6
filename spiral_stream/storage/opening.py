"""The store of a URI. Stores are opened once per set of options, so that connections are used again."""

import threading
from typing import Final

from spiral_stream.storage.files import Files, Memory
from spiral_stream.storage.objects import Objects
from spiral_stream.storage.profiles import options_of
from spiral_stream.storage.store import Store
from spiral_stream.storage.uri import MEMORY, place_of, scheme_of

_OPEN: Final[dict[tuple[str, frozenset[tuple[str, str]]], Store]] = {}
_LOCK: Final = threading.Lock()
_FILES: Final = Files()


def store_of(uri: str) -> tuple[Store, str]:
    """Return the store that a URI lies in, and its key there.

    Raises:
        MissingExtraError: the package that reads it is not installed.
        SourceError: it names no place that is read here, or the options are wrong.
    """
    root, key = place_of(uri)
    if not root:
        return _FILES, key
    options = {} if scheme_of(root) == MEMORY else options_of(uri)
    known = root, frozenset(options.items())
    with _LOCK:
        if known not in _OPEN:
            _OPEN[known] = Memory(root) if scheme_of(root) == MEMORY else Objects(root, options)
        return _OPEN[known], key
