"""What lies below a URI, from one list: names, sizes and etags, so that no object is looked at alone."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.files.remote_listing import without_markers
from spiral_stream.sources.pins import ObjectFacts, Pin, pin_of
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import Facts
from spiral_stream.storage.uri import printable


class Listed(NamedTuple):
    """One object."""

    name: str  # relative to the URI
    facts: Facts


def listed_below(uri: str, what: str) -> list[Listed]:
    """Return what lies below a URI, sorted by name.

    Args:
        uri: without a slash at its end.
        what: the source, for messages.

    Raises:
        SourceError: nothing does, or the store failed.
    """
    store, key = store_of(uri)
    prefix = f"{key.rstrip('/')}/" if key else ""
    found = [Listed(name[len(prefix) :], facts) for name, facts in without_markers(store.list(prefix))]
    if not found:
        msg = f"{what}: nothing lies below {cut(printable(uri))}/. Correct the URI"
        raise SourceError(msg)
    return found


def shown_files(found: list[Listed]) -> Iterator[Listed]:
    """Leave out hidden files, and those in hidden folders."""
    return (each for each in found if not any(part.startswith(".") for part in each.name.split("/")))


def pin_of_object(facts: Facts) -> Pin:
    """Return the pin of an object."""
    return pin_of(ObjectFacts(facts.size, facts.modified_ns, facts.mark, facts.etag))


def grouped(found: Iterator[Listed]) -> Mapping[str, list[Listed]]:
    """Return files by the first folder of their name; those in none under ``""``."""
    folders: dict[str, list[Listed]] = {}
    for each in found:
        folder, slash, _ = each.name.partition("/")
        folders.setdefault(folder if slash else "", []).append(each)
    return folders
