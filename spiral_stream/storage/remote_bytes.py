"""All bytes of an object: its parts are asked for together."""

from typing import Final

from spiral_stream.storage.file_object import read_parts
from spiral_stream.storage.store import Facts

PART_BYTES: Final = 16 << 20  # what one request asks for


def object_bytes(uri: str, facts: Facts) -> memoryview:
    """Return all bytes of an object, whose parts are asked for together.

    Raises:
        SourceError: it cannot be read, or changed.
    """
    ranges = [(start, min(PART_BYTES, facts.size - start)) for start in range(0, facts.size, PART_BYTES)]
    parts = [data for _, data in read_parts(uri, facts, ranges)]
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
