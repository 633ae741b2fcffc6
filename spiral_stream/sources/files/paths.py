"""What a path or URI names, how a file is opened, and what to say when nothing is there."""

import difflib
import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from spiral_stream.arguments import of_kind
from spiral_stream.errors import SourceError, cut
from spiral_stream.storage.uri import is_object, parse_uri, unknown

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

_LONGEST_NAME: Final = 255  # characters of a part of a path


def is_remote(uri: str) -> bool:
    """Whether ``uri`` has a scheme, and another than ``file``."""
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme != "file"


def local_path(uri: str) -> str:
    """Return the path that a path or ``file://`` URI means.

    Raises:
        ValueError: the URI names another host, or cannot be taken apart; a clause that follows the URI, with the way out.
    """
    if not uri.startswith("file://"):
        return os.path.expanduser(uri)  # noqa: PTH111
    try:
        parts = urlsplit(uri)
    except ValueError:
        msg = "is no URI that can be read. Give file:///path, or a path"
        raise ValueError(msg) from None
    if parts.netloc not in ("", "localhost"):
        msg = (
            f"names a file of host {cut(parts.netloc)}, and only files of this machine are read. "
            "Give file:///path, or a path"
        )
        raise ValueError(msg)
    return unquote(parts.path, errors="surrogateescape")


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute path: ``~`` expanded, ``file://`` undone; remote URIs stay as they are.

    Links are kept, so that a dataset that is moved behind a link stays registered.

    Raises:
        SourceError: a ``file://`` URI of another host, or one with a password.
    """
    text = os.fspath(path)
    scheme, mark, rest = text.partition("://")
    text = f"{scheme.lower()}://{rest}" if mark and scheme.isalnum() else text
    if is_remote(text):
        if is_object(text):
            parse_uri(text)  # refuses one that carries a password, which a catalog would keep
        return text
    try:
        found = os.path.abspath(local_path(text))  # noqa: PTH100  resolve() would follow links
    except ValueError as error:
        msg = f"{cut(text)} {error}"
        raise SourceError(msg) from error
    except FileNotFoundError as error:  # of the folder that a relative path starts from
        msg = f"{cut(text)}: the working folder of this process was removed. Give an absolute path"
        raise SourceError(msg) from error
    if max(map(len, found.split("/"))) > _LONGEST_NAME:
        msg = f"{cut(text)}: a name in it is longer than {_LONGEST_NAME} characters, as no file's is. Correct the path"
        raise SourceError(msg)
    return found


def absolute_folder(path: str | os.PathLike[str]) -> str:
    """As `absolute`, of a folder: without a slash at its end.

    Raises:
        SourceError: as of `absolute`.
    """
    found = absolute(path)
    return found.rstrip("/") or found


def reference_to(name: str) -> str:
    """Return what a reference below its base says of a file: one that began with ``~`` would be of a home folder."""
    return f"./{name}" if name.startswith("~") else name


def outside_allowed(base: str | None, stated: bool | None) -> bool:
    """Whether a source's references may leave its base: as asked, and by default where no base was given.

    Raises:
        SourceError: what is asked is no yes or no.
    """
    of_kind(bool | None, "True or False").need("allow_outside=", stated, SourceError)
    return base is None if stated is None else stated


def local_folder(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a folder of ours on this machine: a catalog, or what is prepared.

    A text that begins with a scheme is no folder, however many slashes a path library left of it.

    Raises:
        SourceError: it is no path, or lies elsewhere; a clause that follows the path.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        msg = "is no path. Give the path of a folder"
        raise SourceError(msg)
    scheme = _SCHEME.match(text)
    if scheme and not re.match(r"file://(localhost)?/", text):
        msg = (
            f"begins with {cut(scheme[0])}, which no folder of this machine does. Give the path of a folder "
            f"(./{cut(scheme[0])} if one is called so)"
        )
        raise SourceError(msg)
    return Path(absolute(text))


def not_found(path: str, what: str) -> SourceError:
    """Return the error for a path at which there is no ``what``, with what lies near it."""
    if is_remote(path):
        return SourceError(f"{what}: {cut(path)} {unknown(path)}")
    if os.path.lexists(path):  # a folder was looked for
        is_link = not os.path.exists(path)  # noqa: PTH110  which a Path refuses to say where rights are missing
        found = f"is a link to {cut(os.readlink(path))}, which is not there" if is_link else "is a file, not a folder"  # noqa: PTH115
        return SourceError(f"{what}: {cut(path)} {found}. {'Correct the link' if is_link else 'Give the folder'}")
    folder, name = os.path.split(path)
    while not os.path.exists(folder):  # noqa: PTH110  as above
        folder, name = os.path.split(folder)
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208  as above
    except OSError as error:
        found = f"{cut(folder)}: {error.strerror}"
    else:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        found = (
            f"near it: {cut(', '.join(near))}"
            if near
            else f"{cut(folder)} has {cut(', '.join(names[:5])) or 'nothing'}"
        )
    return SourceError(f"{what}: there is none at {cut(path)}; {found}. Correct the path")
