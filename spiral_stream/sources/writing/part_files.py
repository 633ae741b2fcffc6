"""The files of one part of a written dataset: its draft folder, its note, and its shards.

A shard's file is called (part, number, digest of its bytes), so a name stands for its bytes.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import pyarrow as pa
import xxhash

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.lance.fragments import Appendable

DRAFTS: Final = "_drafts"
CLAIMS: Final = "claims"  # locks of those who convert to the dataset (`keeping.leases`)
NOTE: Final = "part.json"
_NAME: Final = re.compile("[A-Za-z0-9_]{1,64}")
_FILE: Final = re.compile("([A-Za-z0-9_]{1,64})-[0-9]{5,}-[0-9a-f]{32}[.]lance")
_STAGED: Final = "staged-"
_BLOCK: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True)
class PartShard:
    """One shard of a part."""

    file: str
    rows: int
    size_bytes: int
    described: str  # Lance's own description, with the file's first name

    def __post_init__(self) -> None:
        if not _FILE.fullmatch(self.file):
            msg = f"part: {shown(self.file)} is no name of a shard. Remove the part, and write it again"
            raise SourceError(msg)

    @property
    def part(self) -> str:
        """The name of its part."""
        return self.file.partition("-")[0]


def need_part_name(name: object) -> str:
    """Return the name of a part as text.

    Raises:
        SourceError: it is no legal name.
    """
    text = str(name) if isinstance(name, str | int) and not isinstance(name, bool) else ""
    if not _NAME.fullmatch(text):
        msg = f"Writer: part {shown(name)}. Give a number, or a name of up to 64 letters, digits and _"
        raise SourceError(msg)
    return text


def parts_in(dataset: Appendable) -> frozenset[str]:
    """Return the names of the parts that a dataset has, from the names of its files."""
    return frozenset(match[1] for match in map(_FILE.fullmatch, dataset.files) if match)


def file_name(part: str, number: int, path: Path, salt: str) -> str:
    """Return the name of a shard's file: another one for each salt."""
    state = xxhash.xxh3_128(salt.encode())
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return f"{part}-{number:05d}-{state.hexdigest()}.lance"


def staged(folder: Path, name: str) -> Path:
    """Return the place of a part that is finished and not visible yet."""
    return folder / DRAFTS / f"{_STAGED}{name}"


def noted(part: Path) -> list[PartShard]:
    """Return the shards of a finished part.

    Raises:
        SourceError: its note is missing or damaged.
    """
    try:
        return [PartShard(**each) for each in json.loads((part / NOTE).read_text())]
    except (OSError, ValueError, TypeError) as error:
        msg = f"part {part}: its note cannot be read: {cut(str(error))}. Remove the folder, and write the part again"
        raise SourceError(msg) from error


def need_columns(uri: str, ours: pa.Schema, theirs: pa.Schema) -> None:
    """Refuse rows whose columns are not those of the dataset.

    Raises:
        SourceError: names the first that differs.
    """
    for name in dict.fromkeys([*theirs.names, *ours.names]):
        here = str(ours.field(name).type) if name in ours.names else "not there"
        there = str(theirs.field(name).type) if name in theirs.names else "not there"
        if here != there:
            msg = (
                f"Lance dataset {uri}: column {shown(name)} is {there}, in the rows to write it is {here}. "
                "Write the columns that it has, or to another folder"
            )
            raise SourceError(msg)
    if ours.names != theirs.names:
        msg = f"Lance dataset {uri}: its columns stand in the order {', '.join(theirs.names)}. Give the schema in this order"
        raise SourceError(msg)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say which folder cannot be written."""
    try:
        yield
    except OSError as error:
        msg = f"{folder}: {error.strerror or error}. Give a folder that can be written, on a disk with room"
        raise SourceError(msg) from error


def remove_empty(drafts: Path) -> None:
    """Remove the folder of drafts if it has nothing but the locks of those who convert. For whoever is alone with it.

    Raises:
        OSError: it has something else, or cannot be removed.
    """
    if [path.name for path in drafts.iterdir()] == [CLAIMS]:
        (drafts / CLAIMS).unlink()
    drafts.rmdir()


def sync(path: Path) -> None:
    """Let the disk have what was written to a file or folder.

    Raises:
        OSError: it cannot.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
