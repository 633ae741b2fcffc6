"""Publish derived files at once, complete and sealed, even if other processes build the same ones.

Files are written as drafts next to the target, sealed and synced; one rename publishes them. If another builder was
faster its folder stays and ours is dropped: both have the same content, since the target's name is its fingerprint.
A draft is locked by its writer, so that drafts of writers that died are known, and removed by the next one. What is
damaged is set aside under one name, replacing what was set aside before, and built again with a warning.
"""

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from spiral_stream.errors import DamageError, warn
from spiral_stream.integrity.blocks import need_sound
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.locks import NO_LOCKS, Held, lock, wait_for
from spiral_stream.integrity.seal import MENDED, seal

ASIDE: Final = ".damaged-"
_DRAFT: Final = re.compile(r"\..+\.[0-9a-f]{32}")
_ELSEWHERE: Final = "Give a catalog folder that can be written, or set $SPIRAL_CACHE"
DEADLINE_S: Final = 60.0  # for the turn of another process
Made = TypeVar("Made")


@contextmanager
def publish(directory: Path) -> Iterator[Path]:
    """A draft folder that becomes ``directory`` when the block ends without an error, its files sealed.

    Raises:
        CacheError: the folder cannot be written or renamed.
        DamageError: what it was made from could not be read.
    """
    work = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        sweep_drafts(directory.parent, directory.name)
        work, held = new_draft(directory, lambda work: work.mkdir())
        yield work
        need_sound()
        for path in work.iterdir():
            if path.is_file():
                seal(path, path.suffix)
            _sync(path)
        _sync(work)
        _rename(work, directory)
    except OSError as error:
        raise failed(error, _ELSEWHERE, directory, "cannot be written") from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
            held.release()


@contextmanager
def publish_file(file: Path) -> Iterator[Path]:
    """An empty draft that becomes ``file``, sealed, when the block ends without an error.

    Raises:
        CacheError: the file cannot be written.
        DamageError: what it was made from could not be read.
    """
    work = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        work, held = new_draft(file, lambda work: work.touch(exist_ok=False))
        yield work
        need_sound()
        seal(work, file.suffix)
        _sync(work)
        work.replace(file)
        held.release()
    except OSError as error:
        raise failed(error, _ELSEWHERE, file, "cannot be written") from error
    finally:
        if work is not None:
            work.unlink(missing_ok=True)


def publish_table(file: Path, table: pa.Table) -> None:
    """Let a table appear as a sealed file; see `publish_file` and `seal.table`."""
    with (
        publish_file(file) as draft,
        pa.OSFile(str(draft), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table.combine_chunks())


def write_file(file: Path, data: bytes) -> None:
    """Let a file appear whole: bytes that carry their own seal.

    Raises:
        OSError: it cannot be written.
    """
    work, held = new_draft(file, lambda work: work.touch(exist_ok=False))
    try:
        with work.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        work.replace(file)
    finally:
        held.release()
        work.unlink(missing_ok=True)


@contextmanager
def drafting(folder: Path, name: str) -> Iterator[Path]:
    """An empty draft of a file that is called by its content: the block gives it its name; otherwise it goes.

    Drafts of this name whose writers died go first.

    Args:
        folder: where the file comes to lie.
        name: of such drafts.

    Raises:
        OSError: it cannot be made.
    """
    sweep_drafts(folder, name)
    work, held = new_draft(folder / name, lambda work: work.touch(exist_ok=False))
    try:
        yield work
    finally:
        work.unlink(missing_ok=True)
        held.release()


def drafts(folder: Path, name: str = "") -> list[Path]:
    """Drafts in a folder: of one name, or all."""
    with suppress(OSError):
        found = [each for each in os.listdir(folder) if each.startswith(".") and _DRAFT.fullmatch(each)]  # noqa: PTH208  a folder of parts is large
        return [folder / each for each in found if not name or each[1:-33] == name]
    return []


def is_draft(path: Path) -> bool:
    """Whether a name is that of a draft."""
    return _DRAFT.fullmatch(path.name) is not None


def is_aside(path: Path) -> bool:
    """Whether a name is that of what was set aside."""
    return path.name.startswith(ASIDE)


def take_out(path: Path) -> None:
    """Remove a folder: at once under its name, and then as a draft, so that the rest goes if this process is killed.

    Whoever else removes it at the same moment is no fault: it is gone afterwards.

    Raises:
        OSError: it cannot be removed.
    """
    dead = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        path.rename(dead)
    remove(dead)


def remove(path: Path) -> None:
    """Remove a file or folder that others may be removing too; one that is not there is removed.

    Raises:
        OSError: it cannot be removed.
    """
    while os.path.lexists(path):
        with suppress(FileNotFoundError):  # somebody else removed a part of it: the next look is at what is left
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def sweep_draft(path: Path) -> bool:
    """Remove a draft if its writer died; whether it is gone."""
    with suppress(OSError):
        held = lock(path, alone=True)
        if held is not None:
            remove(path)
            held.release()
    return not path.exists()


def sweep_drafts(folder: Path, name: str = "") -> None:
    """Remove the drafts of writers that died: of one name, or all."""
    for path in drafts(folder, name):
        sweep_draft(path)


def mended(path: Path, opened: Callable[[], Made], build: Callable[[], None]) -> Made:
    """Return what a derived file or folder holds; one that is damaged is set aside and built again, with a warning.

    Args:
        path: of the file or folder.
        opened: reads it, verified.
        build: makes it; it is called where it is missing, too.

    Raises:
        CacheError: it can be neither read nor built.
    """
    if not path.exists():
        build()
    try:
        return opened()
    except DamageError as error:
        with _turn(path.parent):
            found = _still(opened)  # another process may have mended it meanwhile
            if found is not None:
                return found
            set_aside(path)
        said = str(error).removesuffix(MENDED)
        warn(f"{said}It was set aside as .damaged-{path.name}, and is built again now")
    build()
    return opened()


def set_aside(path: Path) -> Path | None:
    """Put a damaged file or folder under a name that nobody reads; where it is now, None if it is gone."""
    aside = path.with_name(f"{ASIDE}{path.name}")
    try:
        remove(aside)
        path.rename(aside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise failed(error, "Remove it", path, "is damaged and cannot be set aside") from error
    return aside


def _still(opened: Callable[[], Made]) -> Made | None:
    try:
        return opened()
    except DamageError:
        return None


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One process at a time; each takes as long as verifying and one rename do."""
    held: Held | None = None
    with suppress(OSError):  # no locks here, or none in time
        held = wait_for(lambda: lock(folder, alone=True), folder, DEADLINE_S)
    try:
        yield
    finally:
        if held is not None:
            held.release()


def new_draft(target: Path, make: Callable[[Path], object]) -> tuple[Path, Held]:
    """Make a draft next to its target, locked; whoever sweeps before it is locked removes it, and another is made.

    Args:
        target: what the draft is to become.
        make: makes an empty file or folder of a name.

    Raises:
        OSError: it cannot be made or locked.
    """
    while True:
        work = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        make(work)
        try:
            held = lock(work, alone=True)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in NO_LOCKS:  # sweepers cannot lock it either
                return work, Held(-1)
            raise
        if held is not None and work.exists():
            return work, held


def _rename(work: Path, directory: Path) -> None:
    try:
        work.rename(directory)
        _sync(directory.parent)
    except OSError as error:
        if not directory.is_dir():  # another builder's folder is as good
            raise failed(
                error, "give a catalog folder on one local file system", directory, "cannot be made"
            ) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
