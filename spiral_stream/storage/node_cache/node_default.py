"""The node cache of this process, as its environment says; None where there is none."""

import fcntl
import os
import threading
from pathlib import Path
from typing import Final

from spiral_stream.errors import CacheError, warn
from spiral_stream.storage.node_cache.cache import FOLDER_ENV, LIMIT_ENV, NodeCache

OFF: Final = "off"
_OPEN: Final[dict[tuple[str, str], NodeCache | None]] = {}
_SAID: Final[set[str]] = set()
_LOCK: Final = threading.Lock()


def beside_node_cache() -> Path:
    """Return the folder of this machine for what is worked on: that of the node cache lies in it."""
    node = os.environ.get(FOLDER_ENV)
    return Path(node).expanduser().absolute().parent if node and node != OFF else Path("~/.cache/spiral").expanduser()


def node_cache() -> NodeCache | None:
    """Return the node cache that remote bytes are kept in; None where it is switched off, or cannot be written."""
    said = os.environ.get(FOLDER_ENV, ""), os.environ.get(LIMIT_ENV, "")
    if said[0] == OFF or not hasattr(fcntl, "F_OFD_SETLK"):  # which Linux alone has
        return None
    with _LOCK:
        if said not in _OPEN:
            _OPEN[said] = _opened()
        return _OPEN[said]


def _opened() -> NodeCache | None:
    try:
        cache = NodeCache()
        probe = cache.folder / "files" / f".{os.getpid()}"
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            msg = f"node cache {cache.folder}: {error.strerror}"
            raise CacheError(msg) from None
    except CacheError as error:
        tell(str(error))
        return None
    return cache


def tell(fault: str) -> None:
    """Warn once that remote bytes are not kept, and why."""
    if fault in _SAID:
        return
    _SAID.add(fault)
    msg = f"{fault}. Bytes of object stores are read again each time; ${FOLDER_ENV}={OFF} says that this is meant"
    warn(msg)
