"""What a lowered plan needs before its first batch: its book, and rows by identity."""

from pathlib import Path
from typing import Any

from spiral_stream.plan.fingerprint import digest
from spiral_stream.planner.physical import Stages
from spiral_stream.runtime.book import Book, FixedBook, FormedBook
from spiral_stream.runtime.chapters import Forming
from spiral_stream.runtime.samples import SampleReader


def open_book(stages: Stages, reader: SampleReader, root: Path, edits: object) -> Book:
    """The book of a stream.

    Args:
        stages: the lowered plan.
        reader: reads what membership needs.
        root: folder of prepared things; the formation index lies there under fingerprint, data and edits.
        edits: what of the run changes who stands where: JSON values, None without any.
    """
    if stages.formation is None:
        return FixedBook(stages)
    name = digest([stages.fingerprint, dict(stages.data_versions), edits])
    return FormedBook(Forming(stages, reader, stages.formation), root / "formations" / name)


def found_row(stages: Stages, identity: Any) -> tuple[int, int]:
    """The stream and surviving row of an identity.

    Raises:
        KeyError: no row has it, or several streams do and the identity does not name one.
    """
    values = identity if isinstance(identity, tuple) else (identity,)
    streams = list(range(len(stages.streams)))
    if len(values) == len(stages.identity) + 1:
        streams = [k for k in streams if stages.streams[k].name == values[0]]
        values = values[1:]
    wanted = dict(zip(stages.identity, values, strict=True))
    found = [(k, int(rows[0])) for k in streams if len(rows := stages.streams[k].selected.find(wanted))]
    if not found:
        msg = f"locate: no row that the plan keeps has {', '.join(stages.identity)} = {identity!r}"
        raise KeyError(msg)
    if len(found) > 1:
        names = ", ".join(repr(stages.streams[k].name) for k, _ in found)
        msg = f"locate: {identity!r} is in streams {names}; give (stream, identity)"
        raise KeyError(msg)
    return found[0]
