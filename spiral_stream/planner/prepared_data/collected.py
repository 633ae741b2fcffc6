"""Removal from a store: parts whose shards no catalog has and no machine used lately are marked, and removed after a grace.

So are files that no record names. Any machine may do it, if it can read every catalog that uses the store. What is not made of
shards (surviving rows of a filter that are numbers) and what only a saved stream could name stays.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.cache.copying import StoreSide
from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.shared.mirror import root_of
from spiral_stream.errors import warn
from spiral_stream.keeping.collect import CatalogUse, collect, forget_catalog, registered, used_keys
from spiral_stream.keeping.parts import SharedPart
from spiral_stream.keeping.share import Share
from spiral_stream.planner.prepared_data.usage import present
from spiral_stream.planner.selection.by_shard import Outcome

_KEY: Final = np.dtype("V16")


def collected(
    share: Share, opened: Callable[[Path], Registry], older_than: timedelta
) -> Iterator[tuple[str, int, int, int, str]]:
    """Mark and remove what no catalog needs; yields of each folder of the store what was done, if anything was.

    Args:
        share: the store.
        opened: opens a catalog by its folder.
        older_than: how long ago a part has to be marked.

    Yields:
        folder, bytes of its parts, bytes that nobody needs and that wait, bytes that were removed, and a note.

    Raises:
        CacheError: the store failed, or may not be written.
        CatalogError: a relation cannot be read, so nobody knows which of its shards are there.
    """
    uses = list(_there(share))
    blind = next((use for use in uses if not use.is_readable), None)
    if blind is not None:
        warn(
            f"caches: nothing is removed from {share.shown}: catalog {blind.location} lies on machine {blind.machine}, and "
            f"cannot be read here. Put that catalog on a store (spiral.connect), remove it there, or run this on {blind.machine}"
        )
        return
    keys = [used_keys(share, older_than)]
    for use in uses:
        keys += [each.keys.tobytes() for each in present(opened(root_of(use.location)))]
    needed = np.unique(np.frombuffer(b"".join(keys), _KEY))
    with tempfile.TemporaryDirectory(prefix="spiral-collect-") as work:
        side = StoreSide(share.uri, Path(work))
        for folder_name, (records, files) in sorted(side.files().items()):
            found = [part for _, part in side.parts(folder_name)]
            readable = records <= {part.name for part in found}  # else nobody knows which files the others name
            done = _collected(side, folder_name, found, files if readable else {}, needed, older_than)
            if done is not None:
                yield folder_name, *done


def _collected(
    side: StoreSide,
    folder_name: str,
    found: list[SharedPart],
    files: Mapping[str, int],
    needed: NDArray[np.void],
    older_than: timedelta,
) -> tuple[int, int, int, str] | None:
    """What was done of one folder; None if nothing was."""
    share, dead = side.share, list[SharedPart]()
    if f"/{Outcome.KIND}/" not in folder_name:  # an outcome's keys are numbers
        dead = [part for part in found if not np.isin(np.frombuffer(part.keys(), _KEY), needed).any()]
    names = {part.name for part in dead}
    live = [part for part in found if part.name not in names]
    done = collect(share, side.records_of(folder_name), (dead, live), files, older_than)
    there, gone = _counted(done.marked, done.marked_loose), _counted(done.removed, done.removed_loose)
    if not there and not gone:
        return None
    size = sum(part.size for part in live) + done.marked_bytes
    removed = [f"{gone} are removed from {share.shown}"] if gone else []
    until = (datetime.now(UTC) + older_than).date()
    waiting = [f"{there} are marked there, and removed from {until} on"] if there else []
    return size, done.marked_bytes, done.removed_bytes, "; ".join([*removed, *waiting])


def _counted(parts: int, files: int) -> str:
    """So many, in words; empty for none."""
    found = [(parts, "parts"), (files, "files without a record")]
    return " and ".join(f"{count:,} {what}" for count, what in found if count)


def _there(share: Share) -> Iterator[CatalogUse]:
    """The catalogs that use a store; one of this machine whose folder is gone is forgotten."""
    for use in registered(share):
        if use.machine and use.is_readable and not Path(use.location).is_dir():
            forget_catalog(share, use)
        else:
            yield use
