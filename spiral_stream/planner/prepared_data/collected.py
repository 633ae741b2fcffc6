"""Removal from a store: parts whose shards no catalog has and no machine used lately are marked, and removed after a grace.

Any machine may do it, if it can read every catalog that uses the store. What is not made of shards (surviving rows of a
filter that are numbers) and what only a saved stream could name stays.
"""

import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.cache.copying import StoreSide
from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.shared.mirror import mirror_of, mirrored
from spiral_stream.errors import warn
from spiral_stream.keeping.collect import CatalogUse, collect, forget_catalog, registered, used_keys
from spiral_stream.keeping.parts import SharedPart, SharedParts
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
        folder = mirror_of(use.location) if mirrored(use.location) else Path(use.location)
        keys += [each.keys.tobytes() for each in present(opened(folder))]
    needed = np.unique(np.frombuffer(b"".join(keys), _KEY))
    with tempfile.TemporaryDirectory(prefix="spiral-collect-") as work:
        side = StoreSide(share.uri, Path(work))
        for folder_name in sorted(side.folders()):
            if f"/{Outcome.KIND}/" not in folder_name:
                found = list(side.parts(folder_name))
                done = _collected(side.share, found, needed, older_than) if found else None
                if done is not None:
                    yield folder_name, *done


def _collected(
    share: Share, found: list[tuple[SharedParts, SharedPart]], needed: NDArray[np.void], older_than: timedelta
) -> tuple[int, int, int, str] | None:
    """What was done of one folder; None if nothing was."""
    dead = [part for _, part in found if not np.isin(np.frombuffer(part.keys(), _KEY), needed).any()]
    names = {part.name for part in dead}
    live = [part.name for _, part in found if part.name not in names]
    done = collect(share, found[0][0], dead, live, older_than)
    if not done.marked and not done.removed:
        return None
    size = sum(part.size for _, part in found) - done.removed_bytes
    removed = [f"{done.removed:,} parts are removed from {share.shown}"] if done.removed else []
    until = (datetime.now(UTC) + older_than).date()
    waiting = [f"{done.marked:,} parts are marked there, and removed from {until} on"] if done.marked else []
    return max(0, size), done.marked_bytes, done.removed_bytes, "; ".join([*removed, *waiting])


def _there(share: Share) -> Iterator[CatalogUse]:
    """The catalogs that use a store; one of this machine whose folder is gone is forgotten."""
    for use in registered(share):
        if use.machine and use.is_readable and not Path(use.location).is_dir():
            forget_catalog(share, use)
        else:
            yield use
