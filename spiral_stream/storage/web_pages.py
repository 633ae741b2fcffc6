"""Pages that a web server sends with status 200 in place of a file: that of a login, or one that says what is missing."""

import threading
from collections.abc import Mapping
from typing import Any, Final

from spiral_stream.errors import cut, warn
from spiral_stream.storage.uri import printable

_NAMES: Final = (".htm", ".html", ".xhtml")
_HOSTS: Final[set[str]] = set()  # that were warned of
_LOCK: Final = threading.Lock()


def warn_of_page(root: str, key: str, attributes: Mapping[str, Any]) -> None:
    """Warn, once per host, of a page under a name that says otherwise. No error: some servers give every file that type.

    Args:
        root: of the web server.
        key: of the file.
        attributes: what the answer says of its content.
    """
    kind = next((str(value) for name, value in attributes.items() if name.lower() == "content-type"), "")
    if not kind.lower().startswith("text/html") or key.lower().endswith(_NAMES):
        return
    with _LOCK:
        if root in _HOSTS:
            return
        _HOSTS.add(root)
    msg = (
        f"{cut(printable(f'{root}/{key}'))}: the server says that this is a web page (text/html), as of a login or a missing "
        "file. Open the address in a browser; a server that gives every file this type can be left as it is"
    )
    warn(msg)
