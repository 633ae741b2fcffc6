"""What a URI names: a root (a bucket, a container, a host), and a key in it.

Whatever opens a store, looks up its options or prints a place takes a URI apart here, so that no password or signature of
one reaches a message.
"""

import os
import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from spiral_stream.errors import SourceError, cut

OBJECTS: Final = frozenset(("s3", "s3a", "gs", "az", "azure", "abfs", "abfss"))
WEB: Final = frozenset(("http", "https"))
MEMORY: Final = "memory"
_ELSEWHERE: Final = frozenset(("gcs", "adl", "r2", "oss", "cos", "hf", "hdfs"))
_HIDDEN: Final = re.compile(r"(?<=://)[^@\s]*:[^@\s]*@")  # a password may hold a slash
_BAD_PART: Final = re.compile(r"^/|//|(?:^|/)\.\.?(?:/|$)")
_QUERY: Final = re.compile(r"(?<=[^\s?])\?[^\s#?]*=[^\s]*")


class Address(NamedTuple):
    """One object, or a prefix of some."""

    root: str  # scheme://bucket, without a slash at its end; "" for files of this machine
    key: str  # without a slash at its beginning; of files the absolute path


def scheme_of(uri: str) -> str:
    """Return the scheme of a URI in small letters; "" for a path."""
    scheme, mark, _ = uri.partition("://")
    return scheme.lower() if mark else ""


def is_object(uri: str) -> bool:
    """Whether a URI names an object of a store that is read here: not a local file, and no other scheme."""
    scheme = scheme_of(uri)
    return scheme in OBJECTS or scheme in WEB or scheme == MEMORY


def unknown(uri: str) -> str:
    """Say what a URI is that nothing here reads, and the way out; a clause that follows the URI."""
    scheme = scheme_of(uri)
    if scheme in _ELSEWHERE:
        return "lies in a store that is not read here. Copy it, or register local paths"
    if scheme == "tar":
        return (
            "names a member of a tar, which no URI does here. Give struct<uri, offset, length>: "
            "the tar's path, and where the member's bytes lie"
        )
    known = ", ".join(f"{each}://" for each in sorted(OBJECTS | WEB))
    return f"begins with {cut(scheme)}://, a scheme that is not known here. Give a local path, or a file:/// URI, or {known}"


def printable(text: str) -> str:
    """Return a URI, or a text with URIs, without the passwords and queries that may be in it."""
    return _QUERY.sub("?...", _HIDDEN.sub("...@", text))


def parse_uri(uri: str) -> Address:
    """Take a URI apart.

    Raises:
        SourceError: it names no place that is read here, carries a password or a query, or its key has an empty part.
    """
    scheme = scheme_of(uri)
    if scheme in ("", "file"):
        path = unquote(urlsplit(uri).path, errors="surrogateescape") if scheme else os.path.expanduser(uri)  # noqa: PTH111
        return Address("", os.path.abspath(path))  # noqa: PTH100  resolve() would follow links
    shown = cut(printable(uri))
    if not is_object(uri):
        msg = f"{shown} {unknown(uri)}"
        raise SourceError(msg)
    netloc, _, key = uri.partition("://")[2].partition("/")
    port = netloc.rpartition(":")[2] if ":" in netloc else "0"
    if ("@" in netloc and (":" in netloc.partition("@")[0] or scheme in WEB)) or ("@" in key and not port.isdigit()):
        msg = f"{shown} carries a password. Leave it out, and give it in a profile of storage ($SPIRAL_STORAGE)"
        raise SourceError(msg)
    if scheme in WEB and ("?" in key or "#" in key):
        msg = f"{shown} has a query, which would be kept wherever the URI is. Give the address alone, "
        msg += "and tokens in a profile of storage ($SPIRAL_STORAGE)"
        raise SourceError(msg)
    if not netloc or "?" in netloc or "\0" in uri:
        msg = f"{shown} names no {'host' if scheme in WEB else 'bucket'}. Give {scheme}://name/key"
        raise SourceError(msg)
    if scheme not in WEB and _BAD_PART.search(key):
        raise SourceError(_no_key(shown))
    return Address(f"{scheme}://{netloc}", unquote(key) if scheme in WEB else key)


def _no_key(shown: str) -> str:
    return (
        f"{cut(shown)}: keys with an empty part, or with . or .. as a part, are not read: clients take them for others. "
        "Correct the URI, or copy the object to another key"
    )


def joined(base: str, name: str) -> str:
    """Return the path or URI of a name below a folder or URI; a name that is a path or URI itself stands for that.

    ``.`` and ``..`` are taken away, without a look at any link.

    Raises:
        SourceError: it leads out of the root, or has an empty part.
    """
    if scheme_of(name):
        base, name = name, ""
    root, key = parse_uri(base)
    if not root:
        return os.path.normpath(os.path.join(key, name))  # noqa: PTH118
    if "//" in name:
        raise SourceError(_no_key(name))
    parts: list[str] = []
    for part in [*key.split("/"), *name.split("/")]:
        if part == ".." and not parts:
            msg = f"{cut(name)} leads out of {cut(printable(base))}. Correct it"
            raise SourceError(msg)
        if part == "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    path = "/".join(parts)
    return f"{root}/{quote(path) if scheme_of(root) in WEB else path}"
