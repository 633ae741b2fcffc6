"""Which objects a source's URIs name: as `listing` for files, from one list of what lies below each prefix."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from spiral_stream.errors import SourceError, anew, cut
from spiral_stream.sources.files.braces import expanded
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.file_object import look, look_all
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import Facts
from spiral_stream.storage.uri import WEB, place_of, printable, scheme_of

_GLOB: Final = re.compile(r"[*?\[]")
_SHOWN: Final = 5


class FoundObject(NamedTuple):
    """An object that a source's URIs name."""

    given: str  # the URI that names it
    uri: str
    facts: Facts
    looked: bool  # whether a look said what it is like; otherwise a list did


def objects_of(uris: Sequence[str], what: str, suffixes: Sequence[str]) -> Iterator[FoundObject]:
    """Yield the objects that URIs name: each one, those below a prefix, a glob, or a brace pattern.

    Those that are named one by one are looked at together.

    Raises:
        SourceError: a URI names none, or the store failed.
    """
    members = [(uri, member) for uri in uris for member in (expanded(uri) if "{" in uri else (uri,))]
    alone = [member for _, member in members if not _GLOB.search(member) and _names_one(member)]
    looks = dict(zip(alone, look_all(alone), strict=True))
    for given, member in members:
        seen = looks.get(member)
        if isinstance(seen, Facts):
            yield FoundObject(given, member, seen, looked=True)
            continue
        if seen is not None and not (isinstance(seen, NotThereError) and scheme_of(member) not in WEB):
            raise anew(seen)
        found = _matching if _GLOB.search(member) else _below
        for uri, facts in found(member, what, suffixes):
            yield FoundObject(given, uri, facts, looked=False)


def confirmed(found: Sequence[FoundObject]) -> list[Facts]:
    """Return what objects are like, as looks say it: a look at one of a bucket tells whether its lists say the same.

    Raises:
        SourceError: one is gone, or the store failed.
    """
    buckets: dict[str, list[int]] = {}
    for at, each in enumerate(found):
        if not each.looked:
            buckets.setdefault(place_of(each.uri).root, []).append(at)
    facts = [each.facts for each in found]
    for places in buckets.values():
        first, mine = found[places[0]], facts[places[0]]
        now = look(first.uri)
        if (now.size, now.mark) == (mine.size, mine.mark):
            continue
        for at, seen in zip(places, look_all([found[at].uri for at in places]), strict=True):
            if isinstance(seen, SourceError):
                raise anew(seen)
            facts[at] = seen
    return facts


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


def _names_one(uri: str) -> bool:
    """Whether a URI may be that of one object."""
    key = place_of(uri).key
    return bool(key) and not key.endswith("/")


def _below(uri: str, what: str, suffixes: Sequence[str]) -> Iterator[tuple[str, Facts]]:
    store, key = store_of(uri)
    root, prefix = place_of(uri).root, f"{key.rstrip('/')}/" if key else ""
    below = list(store.list(prefix))
    found = [(f"{root}/{name}", facts) for name, facts in below if name.endswith(tuple(suffixes))]
    if not found:
        raise _none(uri, what, suffixes, [name for name, _ in below])
    yield from found


def _matching(uri: str, what: str, suffixes: Sequence[str]) -> Iterator[tuple[str, Facts]]:
    store, key = store_of(uri)
    mark = _GLOB.search(key)
    prefix = key[: mark.start()].rpartition("/")[0] if mark else key
    below = without_markers(store.list(f"{prefix}/" if prefix else ""))
    pattern = _regex(key)
    found = [(f"{place_of(uri).root}/{name}", facts) for name, facts in below if pattern.fullmatch(name)]
    if not found:
        raise _none(uri, what, suffixes, [name for name, _ in below])
    yield from found


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
