"""Which place a user's path means, and what to say when nothing is there."""

import difflib
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spiral_stream.errors import SourceError


def is_remote(uri: str) -> bool:
    """Whether ``uri`` names an object store (any scheme but ``file``)."""
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme != "file"


def absolute(path: str | os.PathLike[str]) -> str:
    """The absolute path: ``~`` expanded, ``file://`` undone; remote URIs stay as they are.

    Links are kept, so that a dataset that is moved behind a link stays registered.
    """
    text = os.fspath(path)
    if is_remote(text):
        return text
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111  resolve() would follow links


def not_found(path: str, what: str) -> SourceError:
    """The error for a path at which there is no ``what``, with what lies near it."""
    place = Path(path)
    while not place.parent.exists():
        place = place.parent
    names = sorted(entry.name for entry in place.parent.iterdir()) if place.parent.is_dir() else []
    near = difflib.get_close_matches(place.name, names, n=3, cutoff=0.5)
    found = f"near it: {', '.join(near)}" if near else f"{place.parent} has {', '.join(names[:5]) or 'nothing'}"
    return SourceError(f"{what}: there is none at {path}; {found}. Correct the path")
