"""Which imported rows are in use, and the removal of the rest: rows of files that changed or went."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from spiral_stream.catalog.lock import locked
from spiral_stream.catalog.relation.refused import sweep_refused
from spiral_stream.errors import SourceError
from spiral_stream.integrity.one_look import written_at
from spiral_stream.sources.internal.imported import ROWS, SNAPSHOTS, UNITS, Snapshot
from spiral_stream.sources.lance.fragments import forget_versions


@final
@dataclass(frozen=True, slots=True)
class ImportUse:
    """The snapshots of one import that no relation has any more."""

    dead: tuple[str, ...]  # names of snapshots
    dead_bytes: int  # of rows that only those have


def import_use(folder: Path, live: Iterable[str], before: float) -> ImportUse:
    """Find what can go of an import.

    Args:
        folder: where it lies.
        live: the snapshots that registered relations have.
        before: in seconds since 1970; a snapshot that was written later is not dead.
    """
    live_keys = set(live)
    dead = {path for path in _snapshots(folder) if _name(path) not in live_keys and written_at(path) < before}
    used: set[str] = set()
    sizes: dict[str, int] = {}
    for path in _snapshots(folder):
        with suppress(SourceError):
            table = Snapshot.load(str(folder), _name(path)).table
            found = dict(zip(table.column("fragment").to_pylist(), table.column("kept_bytes").to_pylist(), strict=True))
            sizes |= found
            used |= set() if path in dead else set(found)
    gone = sum(size for fragment, size in sizes.items() if fragment not in used)
    return ImportUse(tuple(sorted(map(_name, dead))), gone)


def remove_snapshots(folder: Path, names: Iterable[str]) -> bool:
    """Remove snapshots, with the rows, and the refused ones, that no other one has; returns True.

    Raises:
        CatalogError: another process writes there for too long.
        SourceError: Lance refuses.
    """
    with locked(folder / "committing", str(folder)):
        versions = []
        for name in names:
            with suppress(SourceError):
                versions.append(Snapshot.load(str(folder), name).version)
            (folder / SNAPSHOTS / f"{name}.sealed.arrow").unlink(missing_ok=True)
        forget_versions(folder / ROWS, versions)
        with locked(folder / "entering", str(folder)):
            sweep_refused(folder, _units(folder))
    return True


def _units(folder: Path) -> set[str]:
    """Content keys of the units that are kept. Notes first: what was noted is in a snapshot when the note goes."""
    found = {path.stem for path in (folder / UNITS).glob("[!.]*.json")}
    for path in _snapshots(folder):
        found |= set(Snapshot.load(str(folder), _name(path)).table.column("key").to_pylist())
    return found


def _snapshots(folder: Path) -> list[Path]:
    return sorted((folder / SNAPSHOTS).glob("[!.]*.sealed.arrow"))


def _name(path: Path) -> str:
    return path.name.split(".")[0]
