"""Find the few records of a block that cannot be read: by halves, so that the others are still read together."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

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
