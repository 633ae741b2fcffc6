"""Remove files of a cache that no reader or writer can need any more.

Every writer shares the lock file ``writers`` while it writes a part or commits, and every reader shares ``readers``
as long as it may open parts of the version that it pinned. Whoever is alone among the writers removes what no ledger
entry names: parts of writers that were killed, parts that add no row, drafts. What an earlier version names goes only
when no reader is open; the kernel takes a lock back from a process that ends, however it ends.
"""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from spiral_stream.cache.store.checksums import PartFiles
from spiral_stream.cache.store.ledger import LedgerEntry
from spiral_stream.integrity.one_look import files_below, size_of, written_at
from spiral_stream.integrity.publish import drafts, sweep_drafts

WRITERS: Final = "writers"
READERS: Final = "readers"


@final
@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of a cache on disk."""

    live_bytes: int  # of parts that readers see, or will after the next commit
    dead_bytes: int  # of what the next build, or its last reader's end, removes


def usage(folder: Path, live: Collection[str]) -> Usage:
    """Return bytes on disk.

    Args:
        folder: of the cache.
        live: what the names of live parts begin with.
    """
    live_bytes = dead_bytes = 0
    data = folder / "data.lance" / "data"
    for path in files_below(data):
        alive, size = path.relative_to(data).parts[0].removesuffix(".lance") in live, size_of(path)
        live_bytes, dead_bytes = live_bytes + alive * size, dead_bytes + (not alive) * size
    dead_bytes += sum(size_of(path) for each in _draft_folders(folder) for path in drafts(each))
    versions = sorted(data.parent.glob("_versions/*.manifest"))[1:]  # the newest comes first
    return Usage(live_bytes, dead_bytes + sum(map(size_of, versions)))


def remove_dead(folder: Path, needed: list[LedgerEntry], unneeded: list[LedgerEntry], keep: Collection[str]) -> None:
    """Remove parts that nobody names; the caller is alone among the writers.

    Args:
        folder: of the cache.
        needed: ledger entries that stay.
        unneeded: the others.
        keep: data files that some reader may still open, whatever the ledger says.
    """
    for entry in unneeded:
        entry.path.unlink(missing_ok=True)
    live = {entry.stem for entry in needed} | {Path(file).stem for file in keep}
    data = folder / "data.lance" / "data"
    found = {path.name.removesuffix(".lance") for path in data.iterdir()} if data.exists() else set()
    for extra in ("sums", "damaged"):
        found |= {p.name for p in (folder / extra).glob("*")} if (folder / extra).exists() else set()
    for stem in found - live:
        if not stem.startswith("."):
            PartFiles(folder, "", f"{stem}.lance").remove()
        else:  # what Lance had not finished; drafts of ours are elsewhere
            (data / stem).unlink(missing_ok=True)
    for each in _draft_folders(folder):
        sweep_drafts(each)


def remove_old_versions(folder: Path, newest: Path) -> None:
    """Remove what earlier versions left; the caller is alone among writers and readers."""
    data = folder / "data.lance"
    for path in data.glob("_versions/*.manifest"):
        if path.name > newest.name:  # names count down
            path.unlink(missing_ok=True)
            with suppress(OSError):
                (folder / "committed" / f"{path.stem}.json").unlink(missing_ok=True)
    last = newest.stat().st_mtime
    for path in data.glob("_transactions/*.txn"):
        if written_at(path) < last - 1:
            path.unlink(missing_ok=True)


def _draft_folders(folder: Path) -> list[Path]:
    return [folder, *(folder / name for name in ("ledger", "sums", "committed"))]
