"""The store of a URI. Stores are opened once per set of options, so that connections are used again."""

import threading
from contextlib import suppress
from typing import Final

from spiral_stream.errors import MissingExtraError, SourceError
from spiral_stream.storage.faults import AwayError
from spiral_stream.storage.local import Files, Memory
from spiral_stream.storage.node_cache.store import NodeStore
from spiral_stream.storage.objects import Objects
from spiral_stream.storage.profiles import options_of
from spiral_stream.storage.store import Store
from spiral_stream.storage.uri import MEMORY, parse_uri, scheme_of

_OPEN: Final[dict[tuple[str, frozenset[tuple[str, str]]], Store]] = {}
_LOCK: Final = threading.Lock()
_NODE_STORES: Final[dict[int, NodeStore]] = {}  # by the `id` of a store, which is never closed
FILES: Final = Files()


def store_of(uri: str) -> tuple[Store, str]:
    """Return the store that a URI lies in, and its key there.

    Raises:
        MissingExtraError: the package that reads it is not installed.
        SourceError: it names no place that is read here, or the options are wrong.
    """
    if uri.startswith("/"):  # as sources keep them: a microsecond counts for each of a million files
        return FILES, uri
    root, key = parse_uri(uri)
    if not root:
        return FILES, key
    options = {} if scheme_of(root) == MEMORY else options_of(uri)
    known = root, frozenset(options.items())
    with _LOCK:
        if known not in _OPEN:
            _OPEN[known] = Memory(root) if scheme_of(root) == MEMORY else Objects(root, options)
        return _OPEN[known], key


def payload_store_of(uri: str) -> tuple[Store, str]:
    """Return the store that a URI lies in, read through the node cache where there is one; and its key there.

    Raises:
        MissingExtraError: the package that reads it is not installed.
        SourceError: it names no place that is read here, or the options are wrong.
    """
    store, key = store_of(uri)
    if not isinstance(store, Objects):
        return store, key
    with _LOCK:
        return _NODE_STORES.setdefault(id(store), NodeStore(store, parse_uri(uri)[0])), key


def need_answer(uri: str) -> None:
    """Ask the store of a URI for one name, before a library that knows no deadline is let at it; nothing for a path.

    Lance repeats its requests inside of each other: 12 minutes at a store that accepts and never answers.

    Raises:
        AwayError: the store does not answer within the deadline of its options, or lets nobody in.
    """
    with suppress(MissingExtraError):
        try:
            store, key = store_of(uri)
            if not store.MAPS:
                store.stat(f"{key.rstrip('/')}/_versions")  # a folder: there is no such object
        except AwayError:
            raise
        except SourceError:  # the library says what is wrong
            pass
