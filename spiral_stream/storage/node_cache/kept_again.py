"""When a file that was removed from a node cache for others is kept again: after its bytes came often enough for nothing.

A cache that is smaller than what is read over and over would hold nothing long enough to be of use, and blocks would bring
more bytes than were asked for. So a nearly full cache does not keep a file that it removed before. What comes of it all the
same is its debt, counted in its own size; when the debt reaches `TIMES`, the file is kept until it is removed once more. Debts
begin at a place that is drawn from the URI, so that files come back one after the other. It is the rate of bimodal insertion
(Qureshi et al. 2007, 1 in 32) without its chance: what is kept follows from what is asked for, which EXPLAIN knows.
"""

from typing import Final

import xxhash

FULL: Final = 3 / 4  # of the limit: making room frees a 32nd, or one large file
TIMES: Final = 32  # its size, until a file is kept again
_SIZE: Final = 1 << 17  # the debt of a file whose bytes came once
PERIOD: Final = TIMES * _SIZE


def owed(uri: str, debt: int, asked: int, size: int) -> tuple[int, bool]:
    """Add to the debt of a file what is asked of it.

    Args:
        uri: of the file.
        debt: so far, in [0, PERIOD).
        asked: bytes.
        size: of the file in bytes; 0 where nobody knows it.

    Returns:
        The debt, in [0, PERIOD), and whether the file is kept from now on.
    """
    more = min(PERIOD, -(-asked * _SIZE // max(1, size, asked)))
    drawn = int(xxhash.xxh3_64_intdigest(uri.encode()))
    return (debt + more) % PERIOD, (debt + drawn) % PERIOD + more >= PERIOD
