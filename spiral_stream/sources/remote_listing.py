"""Which objects a source's URIs name: as `listing` for files, from one list of what lies below each prefix."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final

from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.braces import expanded
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.opening import store_of
from spiral_stream.storage.store import Facts
from spiral_stream.storage.uri import WEB, place_of, printable, scheme_of

_GLOB: Final = re.compile(r"[*?\[]")
_SHOWN: Final = 5


def objects_of(uri: str, what: str, suffixes: Sequence[str]) -> Iterator[str]:
    """Yield the URIs of the objects that a URI names: one, those below a prefix, a glob, or a brace pattern.

    Raises:
        SourceError: it names none, or the store failed.
    """
    for member in expanded(uri) if "{" in uri else (uri,):
        yield from _matching(member, what, suffixes) if _GLOB.search(member) else _named(member, what, suffixes)


def common_prefix(uris: Sequence[str]) -> str:
    """Return the URI that all of some URIs lie below, without a slash at its end."""
    folders = [_folder(uri).split("/") for uri in uris]
    shared = []
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared)


def _folder(uri: str) -> str:
    mark = re.search(r"[*?\[{]", uri)
    if mark:
        return uri[: mark.start()].rpartition("/")[0]
    name = uri.rpartition("/")[2]
    return uri.rpartition("/")[0] if "." in name else uri.rstrip("/")


def _named(uri: str, what: str, suffixes: Sequence[str]) -> Iterator[str]:
    store, key = store_of(uri)
    if key and not key.endswith("/"):
        try:
            store.stat(key)
        except NotThereError:
            if scheme_of(uri) in WEB:
                raise
        else:
            yield uri
            return
    root, prefix = place_of(uri)[0], f"{key.rstrip('/')}/" if key else ""
    below = [name for name, _ in store.list(prefix)]
    found = [name for name in below if name.endswith(tuple(suffixes))]
    if not found:
        raise _none(uri, what, suffixes, below)
    yield from (f"{root}/{name}" for name in found)


def _matching(uri: str, what: str, suffixes: Sequence[str]) -> Iterator[str]:
    store, key = store_of(uri)
    mark = _GLOB.search(key)
    prefix = key[: mark.start()].rpartition("/")[0] if mark else key
    below = [name for name, _ in without_markers(store.list(f"{prefix}/" if prefix else ""))]
    pattern = _regex(key)
    found = [name for name in below if pattern.fullmatch(name)]
    if not found:
        raise _none(uri, what, suffixes, below)
    yield from (f"{place_of(uri)[0]}/{name}" for name in found)


def without_markers(found: Iterable[tuple[str, Facts]]) -> list[tuple[str, Facts]]:
    """Return keys, sorted, without the empty objects that some tools put for folders.

    The key of one ends at a slash, or other keys lie below it.
    """
    listed = sorted(((name, facts) for name, facts in found if not name.endswith("/")), key=itemgetter(0))

    def is_marker(name: str) -> bool:
        at = bisect_left(listed, f"{name}/", key=itemgetter(0))
        return at < len(listed) and listed[at][0].startswith(f"{name}/")

    return [each for each in listed if each[1].size or not is_marker(each[0])]


def _none(uri: str, what: str, suffixes: Sequence[str], below: Sequence[str]) -> SourceError:
    kinds = " or ".join(f"*{suffix}" for suffix in suffixes)
    there = f"; there is {', '.join(cut(name) for name in sorted(below)[:_SHOWN])}" if below else ", and nothing else"
    return SourceError(f"{what}: there is no {kinds} at or below {cut(printable(uri))}{there}. Correct the URI")


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return what says whether a name matches a glob, as `glob.glob` does: a hidden name only if the pattern says the dot."""
    whole = f"{pattern}/*" if re.search(r"(?:^|/)\*\*$", pattern) else pattern
    regex, hidden = _regex(whole), re.search(r"(?:^|/)\.", pattern)

    def matches(name: str) -> bool:
        return regex.fullmatch(name) is not None and (bool(hidden) or not re.search(r"(?:^|/)\.", name))

    return matches


def _regex(pattern: str) -> re.Pattern[str]:
    """A glob of keys: ``*`` and ``?`` stop at a slash, and ``**/`` does not."""
    out, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
            continue
        letter = pattern[at]
        close = pattern.find("]", at + 2) if letter == "[" else -1
        if close > 0:
            inside = pattern[at + 1 : close].replace("\\", "\\\\")
            out, at = out + f"[{'^' + inside[1:] if inside.startswith('!') else inside}]", close + 1
            continue
        out, at = out + {"*": "[^/]*", "?": "[^/]"}.get(letter, re.escape(letter)), at + 1
    return re.compile(out)
