"""A look at a source: what its files are, told by a digest, and what a registration records of the look that it began with."""

import hashlib
import os
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Final

import dagster as dg

from spiral_assets.relations.sources import Declared, expanded, made, place_of

if TYPE_CHECKING:
    import spiral_stream as spiral

LOOK_TAG: Final = "spiral/look"  # of a registration: the digest of its source's files, before they were read
MANIFEST_TAG: Final = "spiral/manifest"  # of a registration: the shard table that the catalog had after it
_DIGEST_BYTES: Final = 16


def look(source: Declared, catalog: "spiral.Catalog") -> str:
    """Return a digest of names, sizes and times of a source's files, or of its units' content keys.

    Args:
        source: where the rows are.
        catalog: that a function of the source gets.

    Raises:
        Failure: there is no file below its path.
    """
    place = place_of(source)
    if place is None or "://" in expanded(place):
        with made(source, catalog).open() as reader:
            facts: list[tuple[object, ...]] = [(unit.name, unit.content_key) for unit in reader.units()]
    else:
        facts = list(_files(expanded(place)))
    if not facts:
        msg = f"source: there is no file at {place or source}. Put its files there, or correct its path"
        raise dg.Failure(msg)
    state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for each in facts:
        state.update(repr(each).encode())
    return state.hexdigest()


def before_reading(source: Declared, catalog: "spiral.Catalog", *, watched: bool) -> str | None:
    """Look at a source that is about to be registered; None for one that no sensor looks at and that is no local path.

    Args:
        source: where the rows are.
        catalog: that a function of the source gets.
        watched: whether a sensor looks at it, whatever that costs.
    """
    place = place_of(source)
    if not watched and (place is None or "://" in expanded(place)):
        return None
    try:
        return look(source, catalog)
    except Exception:  # noqa: BLE001  registering it says what is wrong, and says it better
        return None


def tags(catalog: "spiral.Catalog", name: str, seen: str | None) -> dict[str, str]:
    """Return what a registration records of itself for the sensor.

    Args:
        catalog: that has the relation.
        name: of the relation.
        seen: the look at its source before it was read, if there was one.
    """
    return {} if seen is None else {LOOK_TAG: seen, MANIFEST_TAG: catalog.entry(name).manifest_name}


def _files(start: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, bytes and time of each file below a path, sorted; the path may be a pattern."""
    path = os.path.expanduser(start)  # noqa: PTH111  a pattern is no path
    roots = sorted(glob(path)) if any(sign in path for sign in "*?[") else [path]  # noqa: PTH207
    for root in roots:
        if Path(root).is_file():
            facts = Path(root).stat()
            yield root, facts.st_size, facts.st_mtime_ns
        for folder, below, names in os.walk(root):
            below.sort()
            for name in sorted(names):
                facts = (Path(folder) / name).stat()
                yield f"{folder}/{name}", facts.st_size, facts.st_mtime_ns
