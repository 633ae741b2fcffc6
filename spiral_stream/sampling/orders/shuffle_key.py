"""The key of a shuffle: what decides how the rows of a pass are permuted.

It covers the order and its version, the order's seed, the stream, and the number of the pass. Nothing else enters: no
rank, no data version, no run seed. `seeding.key` hashes it. Orders that shuffle in two stages derive one key per stage from
it, such as ``key("units", pass_key)``. How the streams of a mixture are interleaved has keys of its own
(`sampling.mixing.slices`).
"""

from spiral_stream.sampling.order import Population
from spiral_stream.seeding import key


def shuffle_key(order: str, version: int, seed: int, population: Population, pass_number: int) -> int:
    """Return the key of one pass.

    Args:
        order: the name of the order.
        version: the order's.
        seed: the order's.
        population: whose rows are shuffled; only its stream's name counts.
        pass_number: the pass.
    """
    return key(order, version, seed, population.stream, pass_number)
