"""Which files or objects a source's paths name: one path, or several; each a file, a folder, a glob or a brace pattern.

What exists is taken as it is written, whatever letters it has. Names are relative to the folder that all of them lie
below, so that data that is moved keeps its names, and sorted, so that no file system and no order of a list matters.
Objects come from one list of each prefix, with sizes and etags, so that no object is looked at alone.

Brace patterns mean what a shell makes of them: ``part-{000..007}.tar``, ``{train,val}/*.jsonl``. Patterns may have several
groups, and groups inside groups. The leftmost group varies slowest. Zeros in front set the width of a range. What is no
group (``{x}``, an open brace) stays as it is written. Numbers of a range are made one by one: 10^12 of them cost nothing
until they are asked for.
"""

import fnmatch
import glob
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from operator import itemgetter
from typing import Any, Final, NamedTuple

from spiral_stream.errors import SourceError, anew, cut, shown
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.paths import absolute, is_remote, not_found, outside_allowed
from spiral_stream.sources.import_source import ImportUnit
from spiral_stream.storage.faults import AwayError, NotThereError
from spiral_stream.storage.file_object import look, look_all, maps
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import ObjectStat
from spiral_stream.storage.uri import WEB, is_object, parse_uri, printable, scheme_of

_NUMBERS: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_LETTERS: Final = re.compile(r"(?:([a-z])\.\.([a-z])|([A-Z])\.\.([A-Z]))(?:\.\.-?(\d+))?")
_MOST_DIGITS: Final = 18  # of a number in a range


def expanded(pattern: str) -> Iterator[str]:
    """Yield each text that the pattern stands for; the pattern itself if it has no group."""
    start = pattern.find("{")
    while start >= 0:
        commas = _group(pattern, start)
        choices = _choices(pattern, commas) if commas else None
        if choices is not None:
            for choice in choices:
                for rest in expanded(pattern[commas[-1] + 1 :]):
                    yield f"{pattern[:start]}{choice}{rest}"
            return
        start = pattern.find("{", start + 1)
    yield pattern


def _group(pattern: str, start: int) -> list[int]:
    """Places of the opening brace, of the commas between its choices, and of its closing brace; [] if it stays open."""
    depth, marks = 0, [start]
    for at in range(start, len(pattern)):
        letter = pattern[at]
        if letter == "{":
            depth += 1
        elif letter == "," and depth == 1:
            marks.append(at)
        elif letter == "}":
            depth -= 1
            if depth == 0:
                return [*marks, at]
    return []


def _choices(pattern: str, marks: list[int]) -> Iterator[str] | None:
    """The choices of a group, or None if it is neither a list nor a range."""
    texts = [pattern[left + 1 : right] for left, right in pairwise(marks)]
    if len(texts) > 1:
        return (choice for text in texts for choice in expanded(text))
    if found := _NUMBERS.fullmatch(texts[0]):
        first, last, step = found.groups()
        if max(len(first), len(last), len(step or "")) > _MOST_DIGITS:
            return None
        padded = any(text.lstrip("-").startswith("0") and text.lstrip("-") != "0" for text in (first, last))
        width = max(len(first), len(last)) if padded else 0
        return (f"{number:0{width}d}" for number in _steps(int(first), int(last), step))
    if found := _LETTERS.fullmatch(texts[0]):
        small, to_small, large, to_large, step = found.groups()
        return (chr(code) for code in _steps(ord(small or large), ord(to_small or to_large), step))
    return None


def _steps(first: int, last: int, step: str | None) -> range:
    by = int(step or 1) or 1
    return range(first, last + 1, by) if first <= last else range(first, last - 1, -by)


_OBJECT_GLOB: Final = re.compile(r"[*?\[]")
_SHOWN_NAME: Final = r"(?!\.)"
_ANY_FOLDERS: Final = rf"(?:{_SHOWN_NAME}[^/]+/)*"
_SHOWN: Final = 5


class ListedObject(NamedTuple):
    """A file or an object that a source's paths name."""

    given: str  # the path or URI that names it
    uri: str  # its own
    facts: ObjectStat | None  # what it is like; None where nobody looked yet
    looked: bool  # whether a look said it; otherwise a list did


def _objects(uris: Sequence[str], what: str, suffixes: Sequence[str]) -> Iterator[ListedObject]:
    """The objects that URIs name: each one, those below a prefix, a glob, or a brace pattern.

    Those that are named one by one are looked at together.

    Raises:
        SourceError: a URI names none, or the store failed.
    """
    literal = _as_written(uris)
    members = [
        (uri, member) for uri in uris for member in (expanded(uri) if "{" in uri and uri not in literal else (uri,))
    ]
    is_glob = {member: member not in literal and bool(_OBJECT_GLOB.search(member)) for _, member in members}
    alone = [member for _, member in members if not is_glob[member] and _names_one(member)]
    looks = dict(zip(alone, look_all(alone), strict=True))
    for given, member in members:
        seen = looks.get(member)
        if isinstance(seen, ObjectStat) and (seen.size or not _is_folder(member)):
            yield ListedObject(given, member, seen, looked=True)
            continue
        if isinstance(seen, SourceError) and not (isinstance(seen, NotThereError) and scheme_of(member) not in WEB):
            raise anew(seen)
        found = _matching if is_glob[member] else _objects_below
        for uri, facts in found(member, what, suffixes):
            yield ListedObject(given, uri, facts, looked=False)


def _as_written(uris: Sequence[str]) -> frozenset[str]:
    """The URIs with letters of a pattern that are there as they are written: of an object, or of a folder."""
    marked = [uri for uri in uris if any(mark in uri for mark in _MARKS)]
    objects = [uri for uri in marked if _names_one(uri)]
    looks = dict(zip(objects, look_all(objects), strict=True))
    if away := next((seen for seen in looks.values() if isinstance(seen, AwayError)), None):
        raise anew(away)
    return frozenset(uri for uri in marked if isinstance(looks.get(uri), ObjectStat) or _is_folder(uri))


def _is_folder(uri: str) -> bool:
    """Whether objects lie below a URI; no where nobody may ask."""
    if scheme_of(uri) in WEB:
        return False
    store, key = store_of(uri)
    try:
        return next(iter(store.list(f"{key.rstrip('/')}/")), None) is not None
    except AwayError:
        raise
    except SourceError:
        return False


def confirmed(found: Sequence[ListedObject]) -> list[ObjectStat]:
    """Return what files and objects are like, as looks say it: of a bucket one tells whether its lists say the same.

    Raises:
        SourceError: one is gone, or the store failed.
    """
    unsure = [at for at, each in enumerate(found) if each.facts is None]
    buckets: dict[str, list[int]] = {}
    for at, each in enumerate(found):
        if each.facts is not None and not each.looked:
            buckets.setdefault(parse_uri(each.uri).root, []).append(at)
    for indices in buckets.values():
        mine, now = found[indices[0]].facts, look(found[indices[0]].uri)
        if mine is None or (now.size, now.mark) != (mine.size, mine.mark):
            unsure += indices
    facts = {at: each.facts for at, each in enumerate(found) if each.facts is not None}
    for at, seen in zip(unsure, look_all([found[at].uri for at in unsure]), strict=True):
        if isinstance(seen, SourceError):
            raise anew(seen)
        facts[at] = seen
    return [facts[at] for at in range(len(found))]


_OF_KEY: Final = 3  # slashes of a URI that has a key


def _object_folder(uri: str) -> str:
    if uri.count("/") < _OF_KEY:  # a bucket, whose name may hold a dot
        return uri
    mark = re.search(r"[*?\[{]", uri)
    if mark:
        return uri[: mark.start()].rpartition("/")[0]
    name = uri.rpartition("/")[2]
    return uri.rpartition("/")[0] if "." in name else uri.rstrip("/")


def _names_one(uri: str) -> bool:
    """Whether a URI may be that of one object."""
    key = parse_uri(uri).key
    return bool(key) and not key.endswith("/")


def _objects_below(uri: str, what: str, suffixes: Sequence[str]) -> Iterator[tuple[str, ObjectStat]]:
    store, key = store_of(uri)
    root, prefix = parse_uri(uri).root, f"{key.rstrip('/')}/" if key else ""
    below = without_markers(store.list(prefix))
    found = [(f"{root}/{name}", facts) for name, facts in below if name.endswith(tuple(suffixes))]
    if not found:
        raise _none(uri, what, suffixes, [name for name, _ in below])
    yield from found


def _matching(uri: str, what: str, suffixes: Sequence[str]) -> Iterator[tuple[str, ObjectStat]]:
    store, key = store_of(uri)
    mark = _OBJECT_GLOB.search(key)
    prefix = key[: mark.start()].rpartition("/")[0] if mark else key
    below = without_markers(store.list(f"{prefix}/" if prefix else ""))
    matches = matcher(key)
    found = [(f"{parse_uri(uri).root}/{name}", facts) for name, facts in below if matches(name)]
    if not found:
        raise _none(uri, what, suffixes, [name for name, _ in below])
    yield from found


def without_markers(found: Iterable[tuple[str, ObjectStat]]) -> list[tuple[str, ObjectStat]]:
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
    """Return what says whether a name matches a glob, as `glob.glob` does: ``**`` stands for any folders.

    A hidden name, or one in a hidden folder, matches only where the pattern says its dot.
    """
    *folders, last = pattern.split("/")
    parts = [_ANY_FOLDERS if part == "**" else f"{_regex(part)}/" for part in folders]
    parts.append(f"{_ANY_FOLDERS}{_regex('*')}" if last == "**" else _regex(last))
    regex = re.compile("".join(parts), re.DOTALL)
    return lambda name: regex.fullmatch(name) is not None


def _regex(part: str) -> str:
    """One part of a glob, between slashes."""
    out, at = "" if part.startswith(".") else _SHOWN_NAME, 0
    while at < len(part):
        letter = part[at]
        close = part.find("]", at + (3 if part.startswith("!", at + 1) else 2)) if letter == "[" else -1
        if close > 0:
            out += fnmatch.translate(part[at : close + 1])[:-2]  # without the mark of the end
            at = close + 1
            continue
        out, at = out + {"*": "[^/]*", "?": "[^/]"}.get(letter, re.escape(letter)), at + 1
    return out


Paths = str | tuple[str, ...]

PACKED: Final = (".br", ".bz2", ".gz", ".lz4", ".snappy", ".xz", ".zst", ".zstd")  # how names of compressed files end
_GLOB: Final = "*?["
_MARKS: Final = _GLOB + "{"


def absolute_paths(paths: object, what: str) -> Paths:
    """Return the paths of a source as it keeps them: absolute, several as a tuple.

    Args:
        paths: one path, or a list or tuple of them.
        what: the source, for messages.

    Raises:
        SourceError: these are no paths, or none.
    """
    if isinstance(paths, str | os.PathLike):
        return _absolute(paths, what)
    if not isinstance(paths, list | tuple) or not paths:
        msg = f"{what}: {shown(paths)} names no files. Give a path, a pattern, or a list of them"
        raise SourceError(msg)
    return tuple(_absolute(path, what) for path in paths)


def listed(paths: Paths, what: str, suffixes: Sequence[str]) -> tuple[str, list[str]]:
    """Find the files or objects that paths name.

    Args:
        paths: as `absolute_paths` returns them.
        what: the source, for messages.
        suffixes: how the files of a folder end, such as ``(".jsonl", ".jsonl.gz")``; files that are named one by one, or
            by a pattern, end as they like.

    Returns:
        the common folder, and the sorted names of the files relative to it.

    Raises:
        SourceError: a path names nothing, a file is named twice, or a folder cannot be read.
    """
    need_one_root(paths, what)
    root = common_folder(paths)
    return root, sorted(_name(each.uri, root, what) for each in _listed(paths, what, suffixes))


def need_one_root(paths: Paths, what: str) -> None:
    """Refuse objects of several buckets or hosts, where rows name their files from one folder.

    Raises:
        SourceError: names two.
    """
    given = (paths,) if isinstance(paths, str) else paths
    roots = [parse_uri(path).root for path in given if is_object(path)] if len(given) > 1 else []
    if other := next((root for root in roots if root != roots[0]), None):
        msg = f"{what}: the paths lie in different buckets, {cut(printable(roots[0]))} and {cut(printable(other))}"
        msg += ". Register them separately"
        raise SourceError(msg)


def _listed(paths: Paths, what: str, suffixes: Sequence[str]) -> list[ListedObject]:
    """The files or objects that paths name, each once, sorted."""
    given = (paths,) if isinstance(paths, str) else paths
    unread = next((path for path in given if is_remote(path) and not is_object(path)), None)
    if unread is not None:
        raise not_found(unread, what)
    here = [maps(path) for path in given]
    if len(set(here)) > 1:
        msg = f"{what}: {cut(given[here.index(False)])} lies on an object store, and other paths do not. Register them separately"
        raise SourceError(msg)
    found: dict[str, ListedObject] = {}
    for each in (_files if here[0] else _objects)(given, what, suffixes):
        if each.uri in found:
            raise _twice(each.uri, found[each.uri].given, each.given, what)
        found[each.uri] = each
    return sorted(found.values(), key=itemgetter(1) if here[0] else None)


def common_folder(paths: Paths) -> str:
    """Return the folder that all files lie below, or the URI: what `listed` returns, without a look into any folder."""
    folders = [_folder(path) for path in ((paths,) if isinstance(paths, str) else paths)]
    if len(folders) == 1:
        return folders[0]
    alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*(each.split("/") for each in folders), strict=False))
    return "/".join(parts[0] for parts in alike) or "/"


def listed_units(paths: Paths, what: str, suffixes: Sequence[str], base: str | None = None) -> list[ImportUnit]:
    """Find the files that paths name, here or on an object store, as one unit per file.

    A unit's content key says the size of the file, and its time or etag. Of a folder of objects these come from the list of
    it, so that objects are looked at only where they are named one by one.

    Args:
        paths: as `absolute_paths` returns them.
        what: the source, for messages.
        suffixes: how the files of a folder end.
        base: the folder, or the URI, that names are relative to; by default the common one of the files.

    Raises:
        SourceError: as `listed`; or a file is there in two compressions.
    """
    units = found_units(paths, what, suffixes, base)
    need_one_compression([unit.path for unit in units], what)
    return units


def found_units(paths: Paths, what: str, suffixes: Sequence[str], base: str | None = None) -> list[ImportUnit]:
    """As `listed_units`, with each file that is there in two compressions twice.

    Raises:
        SourceError: as `listed`.
    """
    base = common_folder(paths) if base is None else base
    found = _listed(paths, what, suffixes)
    units = []
    for each, facts in zip(found, confirmed(found), strict=True):
        name = _name(each.uri, base, what)
        units.append(ImportUnit(name, each.uri, facts.size, content_key(name, facts.size, facts.mark), seen=(facts,)))
    return units


def unpacked(name: str) -> str:
    """Return what a file is called when it is not compressed; `shard.csv` of `shard.csv.gz`."""
    for end in PACKED:
        if name.endswith(end):
            return name.removesuffix(end)
    return f"{name.removesuffix('.tgz')}.tar" if name.endswith(".tgz") else name


def need_one_compression(paths: Sequence[str], what: str) -> None:
    """Refuse a file that is there twice, as `gunzip -k` leaves it.

    Raises:
        SourceError: names both.
    """
    if not any(path.endswith((*PACKED, ".tgz")) for path in paths):
        return
    seen: dict[str, str] = {}
    for path in paths:
        other = seen.setdefault(unpacked(path), path)
        if other != path:
            msg = (
                f"{what}: {cut(other)} and {cut(path)} are one file in two compressions, and its rows would be read twice. "
                f"Remove one of them, or name the files that you mean with a pattern, such as *{cut(_ending(path))}"
            )
            raise SourceError(msg)


def set_given_paths(source: Any, what: str) -> None:
    """Set ``path``, ``base`` and ``allow_outside`` of a source of files, from what was given; no base stays None.

    Raises:
        SourceError: one is none.
    """
    object.__setattr__(source, "path", absolute_paths(source.path, what))
    object.__setattr__(source, "allow_outside", outside_allowed(source.base, source.allow_outside))
    if source.base is not None:
        object.__setattr__(source, "base", absolute(source.base))


def set_paths(source: Any, what: str) -> None:
    """As `set_given_paths`; without a base it is the common folder of the files.

    Raises:
        SourceError: one is none.
    """
    set_given_paths(source, what)
    if source.base is None:
        object.__setattr__(source, "base", common_folder(source.path))


def _absolute(path: object, what: str) -> str:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str) or not os.fspath(path):
        msg = f"{what}: {shown(path)} is no path. Give a text or a pathlib.Path"
        raise SourceError(msg)
    if "\0" in os.fspath(path):
        msg = f"{what}: {shown(path)} holds a NUL, which no path does. Correct the path"
        raise SourceError(msg)
    return absolute(path)


def _folder(path: str) -> str:
    """The folder, or the URI, that the files of one path lie below."""
    if is_object(path):
        return _object_folder(path)
    if not os.path.exists(path) and any(mark in path for mark in _MARKS):  # noqa: PTH110
        path = path[: min(path.index(mark) for mark in _MARKS if mark in path)]
        return os.path.dirname(path)  # noqa: PTH120
    return path if os.path.isdir(path) else os.path.dirname(path)  # noqa: PTH112,PTH120


def _files(paths: Sequence[str], what: str, suffixes: Sequence[str]) -> Iterator[ListedObject]:
    """The files that paths name; of a brace pattern the one that is missing is named by its number."""
    for path in paths:
        members = [path] if os.path.exists(path) or "{" not in path else expanded(path)  # noqa: PTH110
        for number, member in enumerate(members, start=1):
            try:
                yield from (ListedObject(path, file, None, looked=False) for file in _named(member, what, suffixes))
            except SourceError as error:
                if member == path:
                    raise
                msg = f"{what}: {cut(path)} names {cut(member)} as number {number}. {error}"
                raise SourceError(msg) from error


def _named(path: str, what: str, suffixes: Sequence[str]) -> Iterator[str]:
    """The files of a path without braces."""
    if os.path.isdir(path):  # noqa: PTH112
        yield from _need_some(_below(path, suffixes, what), path, what, suffixes)
    elif os.path.exists(path):  # noqa: PTH110
        yield path
    elif any(mark in path for mark in _GLOB):
        found = dict.fromkeys(globbed(path, what))
        files = [name for name in found if not os.path.isdir(name)]  # noqa: PTH112
        if found and not files:
            msg = f"{what}: {cut(path)} matches folders only. Write {cut(path)}/**/*{suffixes[0]} for the files in them"
            raise SourceError(msg)
        if not files:
            raise not_found(path, what)
        yield from files
    else:
        raise not_found(path, what)


def globbed(pattern: str, what: str, folder: str = "") -> Iterator[str]:
    """Yield what a glob matches, links to folders followed; relative to a folder where one is given.

    Raises:
        SourceError: a link leads to a folder that it lies in, below which ``**`` would find all files again and again.
    """
    real: dict[str, str] = {}  # by folder: where it lies when all links are followed; a look per folder

    def need_no_circle(path: str) -> str:
        if path in real:
            return real[path]
        above, name = os.path.split(path)
        is_link = bool(name) and os.path.islink(path)  # noqa: PTH114  a Path costs as much as the call
        base = need_no_circle(above) if name else path
        real[path] = os.path.realpath(path) if is_link else os.path.join(base, name)  # noqa: PTH118
        while real[path] != path:  # behind a link
            if real[above] == real[path]:
                msg = f"{what}: {cut(path)} leads to a folder that it lies in, so {cut(pattern)} would find its files again "
                msg += "and again. Remove the link, or write the folders in place of **"
                raise SourceError(msg)
            if above == os.path.dirname(above):  # noqa: PTH120
                break
            above = os.path.dirname(above)  # noqa: PTH120
        return real[path]

    for name in glob.iglob(pattern, root_dir=folder or None, recursive=True):  # noqa: PTH207
        if "**" in pattern:
            need_no_circle(os.path.dirname(os.path.join(folder, name)))  # noqa: PTH118,PTH120
        yield name


def _need_some(files: Iterator[str], path: str, what: str, suffixes: Sequence[str]) -> Iterator[str]:
    first = next(files, None)
    if first is None:
        kinds = " or ".join(f"*{suffix}" for suffix in suffixes)
        msg = f"{what}: there is no {kinds} in or below {cut(path)}. Correct the path"
        raise SourceError(msg)
    yield first
    yield from files


def _below(folder: str, suffixes: Sequence[str], what: str) -> Iterator[str]:
    """Files in a folder and below it; links to folders are not followed."""
    endings = tuple(suffixes)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    if not entry.is_symlink():
                        yield from _below(entry.path, suffixes, what)
                elif entry.name.endswith(endings):
                    yield entry.path
    except OSError as error:
        msg = f"{what}: {cut(folder)}: {error.strerror}. Check its rights"
        raise SourceError(msg) from error


def _name(path: str, root: str, what: str) -> str:
    """The name of a file relative to a folder.

    Raises:
        SourceError: it is not UTF-8.
    """
    below = root if root.endswith("/") else f"{root}/"
    name = path[len(below) :] if path.startswith(below) else os.path.relpath(path, root)
    need_utf8((name,), root, what)
    return name


def need_utf8(names: Iterable[str], root: str, what: str) -> None:
    """Refuse names that no catalog and no column of texts can hold.

    Raises:
        SourceError: says the name.
    """
    for name in names:
        try:
            name.isascii() or name.encode()
        except UnicodeEncodeError as error:
            msg = f"{what}: the name {shown(os.fsencode(name))} in {cut(root)} is not UTF-8. Rename it, or leave it out"
            raise SourceError(msg) from error


def _twice(file: str, first: str, second: str, what: str) -> SourceError:
    by = f"by {cut(first)} and by {cut(second)}" if first != second else f"by {cut(first)}"
    return SourceError(f"{what}: {cut(file)} is named twice, {by}. Name each file once")


def _ending(name: str) -> str:
    """How a name ends: `.csv.gz`."""
    file = name.rpartition("/")[2]
    return file.removeprefix(os.path.splitext(unpacked(file))[0])  # noqa: PTH122


class Listed(NamedTuple):
    """One object."""

    name: str  # relative to the URI
    facts: ObjectStat


def listed_below(uri: str, what: str) -> list[Listed]:
    """Return the files below a folder, or the objects below a URI, sorted by name.

    Args:
        uri: or the folder; without a slash at its end.
        what: the source, for messages.

    Raises:
        SourceError: nothing does, or the store failed.
    """
    found = found_below(uri, what)
    if not found:
        msg = f"{what}: nothing lies below {cut(printable(uri))}/. Correct the path"
        raise SourceError(msg)
    return found


def found_below(uri: str, what: str, ending: str = "") -> list[Listed]:
    """As `listed_below`, of names that end so; none where nothing does.

    Raises:
        SourceError: there is no such folder, or the store failed.
    """
    store, key = store_of(uri)
    if store.MAPS and not os.path.isdir(key):  # noqa: PTH112
        raise not_found(uri, what)
    prefix = f"{key.rstrip('/')}/" if key else ""
    return [Listed(name[len(prefix) :], facts) for name, facts in without_markers(store.list(prefix, ending))]


def matching(folder: str, pattern: str, what: str) -> list[Listed]:
    """Return the files in a folder, or the objects below a URI, whose names match a glob, sorted by name.

    Raises:
        SourceError: none does, or there is no such folder; or the store failed.
    """
    if is_object(folder):
        there, matches = listed_below(folder, what), matcher(pattern)
        found = [each for each in there if matches(each.name)]
    elif not os.path.isdir(folder):  # noqa: PTH112
        raise not_found(folder, what)
    else:  # links to folders are followed
        names = sorted(set(globbed(pattern, what, folder)))
        need_utf8(names, folder, what)
        there, found = [], []
        for name, seen in zip(names, look_all([f"{folder}/{name}" for name in names]), strict=True):
            if isinstance(seen, ObjectStat):
                found.append(Listed(name, seen))
            elif not os.path.isdir(f"{folder}/{name}"):  # noqa: PTH112
                raise anew(seen)
    if not found:
        more = f"; there is {', '.join(cut(each.name) for each in there[:_SHOWN])}" if there else ""
        msg = f"{what}: nothing in {cut(printable(folder))} matches {shown(pattern)}{more}. Correct the pattern"
        raise SourceError(msg)
    return found


def shown_files(found: list[Listed]) -> Iterator[Listed]:
    """Leave out hidden files, and those in hidden folders."""
    return (each for each in found if not any(part.startswith(".") for part in each.name.split("/")))


def grouped(found: Iterator[Listed]) -> Mapping[str, list[Listed]]:
    """Return files by the first folder of their name; those in none under ``""``."""
    folders: dict[str, list[Listed]] = {}
    for each in found:
        folder, slash, _ = each.name.partition("/")
        folders.setdefault(folder if slash else "", []).append(each)
    return folders
