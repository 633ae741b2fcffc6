"""Which of a source's files are read as one unit: one file, several small ones, or a range of a big one.

Each unit becomes a fragment of a Lance dataset, and is read by one worker. So a million small files must be few units, and a
file of 100 GB many. Which files belong together depends on their names alone, except that few small files stay alone: a file
that is added changes one unit. A range holds the lines that begin in it; where it begins depends on the size of the file.

Unreadable records of a block are found by bisection, so that the others are still read together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash

from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.import_source import ImportUnit

RANGE_BYTES: Final = 256 << 20  # of a part of a file, at most
SMALL_BYTES: Final = 1 << 20  # a file below this is small
FEW_FILES: Final = 1000  # small files up to this number stay alone, so that each is a storage shard
MOST_FILES: Final = 4096  # of one unit
MOST_BYTES: Final = 256 << 20  # of one unit of several files
CUT_EVERY: Final = 2048  # a unit of several files ends with one name in this many


def units_of(files: Sequence[ImportUnit], *, parted: Callable[[ImportUnit], bool]) -> list[ImportUnit]:
    """Return the units of files of lines, in the order of the files.

    Args:
        files: one unit per file.
        parted: whether the rows of a file are those of its lines, wherever one begins to read; asked of big files.
    """
    joins = sum(file.size_bytes < SMALL_BYTES for file in files) > FEW_FILES
    found: list[ImportUnit] = []
    small: list[ImportUnit] = []
    for file in files:
        if joins and file.size_bytes < SMALL_BYTES:
            small.append(file)
            continue
        found += joined(small)
        small = []
        found += ranges(file) if file.size_bytes > RANGE_BYTES and parted(file) else [file]
    return [*found, *joined(small)]


def joined(files: Iterable[ImportUnit]) -> Iterator[ImportUnit]:
    """Yield units of neighbouring files. A unit ends where the name of a file says so, so that a new file changes one unit."""
    group: list[ImportUnit] = []
    held = 0
    for file in files:
        if group and held + file.size_bytes > MOST_BYTES:
            yield _together(group)
            group, held = [], 0
        group.append(file)
        held += file.size_bytes
        if len(group) == MOST_FILES or xxhash.xxh3_64_intdigest(file.name.encode()) % CUT_EVERY == 0:
            yield _together(group)
            group, held = [], 0
    if group:
        yield _together(group)


def ranges(file: ImportUnit) -> list[ImportUnit]:
    """Return a file as parts of equal size."""
    count = -(-file.size_bytes // RANGE_BYTES)
    bounds = [file.size_bytes * k // count for k in range(count + 1)]
    return [
        ImportUnit(
            f"{file.name}#{k:04d}",
            file.path,
            end - begin,
            content_key("range", file.content_key, begin, end),
            of=file,
            begin=begin,
            end=end,
        )
        for k, (begin, end) in enumerate(pairwise(bounds))
    ]


def _together(files: list[ImportUnit]) -> ImportUnit:
    """One unit of several files, named by the first of them."""
    key = content_key("files", *(part for file in files for part in (file.name, file.content_key)))
    size = sum(file.size_bytes for file in files)
    return ImportUnit(files[0].name, files[0].path, size, key, files=tuple(files))


def spread(units: Sequence[ImportUnit], most: int) -> list[ImportUnit]:
    """Return some units, spread over all."""
    return [units[at] for at in np.unique(np.linspace(0, len(units) - 1, min(len(units), most)).astype(int))]


Record = tuple[int, bytes]  # number of its first line, and its bytes

Parse = Callable[[Sequence[Record]], pa.Table | None]  # None: they cannot be read together
Refuse = Callable[[Record], None]


def sound(records: Sequence[Record], parse: Parse, refuse: Refuse) -> Iterator[pa.Table]:
    """Yield the rows of records that can be read, in order; refuse each that cannot.

    Args:
        records: at least one.
        parse: reads records together.
        refuse: called with each record that cannot be read even alone.
    """
    table = parse(records)
    if table is not None:
        yield table
    elif len(records) == 1:
        refuse(records[0])
    else:
        middle = len(records) // 2
        yield from sound(records[:middle], parse, refuse)
        yield from sound(records[middle:], parse, refuse)
