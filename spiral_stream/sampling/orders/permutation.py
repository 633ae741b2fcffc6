"""Keyed permutation of ``range(size)``: which number stands at which position, without a table.

Above `EXACT` values this is an additive Feistel network of eight rounds over ``Z_a x Z_b`` with cycle walking (Black and
Rogaway 2002). Up to there it is the order of hashed values, which is uniform over all ``size!`` permutations. Both are
evaluated on arrays in which every element may have its own size and key, in O(1) memory, so every place costs the same:
3 to 10 ns per index (`_permutation.c`), 95 ns in small groups that are evaluated completely, 2.6 us in small groups of
which one element is evaluated (docs/decisions/0001).

The algorithm, version 1. All words are unsigned and 64 bits wide, arithmetic
wraps, ``G = 0x9E3779B97F4A7C15``, ``mix`` is `seeding.mix64`, and ``half(x)`` is
``mix`` without its last xor-shift: ``x ^= x >> 30; x *= 0xBF58476D1CE4E5B9;
x ^= x >> 27; x *= 0x94D049BB133111EB``.

* ``size > 128``: let ``t`` be the bit length of ``size - 1``, ``k = t // 2``,
  ``a = 2**k`` and ``b = ceil(size / a)``, so that ``b / 2 < a <= 2 * b``. Split the
  index into ``l = index % a`` and ``r = index // a``. For i = 0 .. 7, with
  ``key_i = mix(key) + i * G``: if i is even,
  ``r = (r + ((half(l + key_i) >> 32) * b >> 32)) % b``, else
  ``l = (l + (half(r + key_i) >> (64 - k))) % a``. The result is ``r * a + l``; while
  it is ``size`` or more it is fed through again, by the same key.
* ``size <= 128``: value ``j`` gets the hash ``combine(key, j)`` of `seeding`; the
  result for index ``p`` is the ``j`` whose (hash, j) is the p-th smallest.
"""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spiral_stream.sampling import _permutation
from spiral_stream.seeding import combine

UInt64 = NDArray[np.uint64]

VERSION: Final = 1  # golden vectors pin the output of each version
EXACT: Final = 128  # 300,000 keys see a bias of pairs up to 40 values with 8 rounds, none from 64 on
LARGEST: Final = 2**63
ROUNDS: Final = 8
_CHUNK: Final = 16_384  # elements whose sizes and keys are looked at together: most are equal
_EXACT_CHUNK: Final = 1_024  # elements: at most 131,072 hashes, one megabyte


def permute(index: ArrayLike, size: ArrayLike, keys: ArrayLike, *, inverse: bool = False) -> UInt64:
    """Return the value at each place of a keyed permutation of ``range(size)``.

    Args:
        index: shape [P], uint64, each in [0, size).
        size: shape [P] or a scalar, uint64, at most 2**63.
        keys: shape [P] or a scalar, uint64, any.
        inverse: return the place of each value instead.

    Returns:
        shape [P], uint64, each in [0, size).

    Raises:
        IndexError: an index is not below its size, or a size is past 2**63.
    """
    x = np.atleast_1d(np.asarray(index, dtype=np.uint64))
    n = np.asarray(size, dtype=np.uint64)
    k = np.asarray(keys, dtype=np.uint64)
    if n.size == k.size == 1 and n <= LARGEST and x.size and x.max() < n:  # one permutation, as for most batches
        evaluated = _walk if n > EXACT else _exact
        return evaluated(x, n.reshape(1), k.reshape(1), inverse=inverse)
    if x.size and bool(((x >= n) | (n > LARGEST)).any()):
        at = int(np.argmax((x >= n) | (n > LARGEST)))
        msg = (
            f"permute: index {int(x[at])} of a permutation of {int(np.broadcast_to(n, x.shape)[at])} values; "
            "an index lies in [0, size) and a size is at most 2**63"
        )
        raise IndexError(msg)
    out = np.empty_like(x)
    for start in range(0, x.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        out[part] = _chunk(x[part], _narrow(n, part), _narrow(k, part), inverse=inverse)
    return out


def unpermute(index: ArrayLike, size: ArrayLike, keys: ArrayLike) -> UInt64:
    """Return the place of each value: ``unpermute(permute(index, n, k), n, k) == index``.

    Arguments, result and errors are those of `permute`.
    """
    return permute(index, size, keys, inverse=True)


def _narrow(values: UInt64, part: slice) -> UInt64:
    """The values of one chunk; shape [1] if they are all equal, which halves the cost."""
    if values.size == 1:
        return values.reshape(1)
    narrow = values[part]
    return narrow[:1] if bool((narrow == narrow[0]).all()) else narrow


def _chunk(x: UInt64, n: UInt64, k: UInt64, *, inverse: bool) -> UInt64:
    small = n <= EXACT
    if small.all():
        return _exact(x, n, k, inverse=inverse)
    if not small.any():
        return _walk(x, n, k, inverse=inverse)
    k = np.broadcast_to(k, x.shape)
    out = np.empty_like(x)
    out[small] = _exact(x[small], n[small], k[small], inverse=inverse)
    out[~small] = _walk(x[~small], n[~small], k[~small], inverse=inverse)
    return out


def _exact(x: UInt64, n: UInt64, k: UInt64, *, inverse: bool) -> UInt64:
    """Sort the hashes of each distinct run of (size, key); shape [P] -> [P]."""
    out = np.empty_like(x)
    n, k = np.broadcast_to(n, x.shape), np.broadcast_to(k, x.shape)
    for start in range(0, x.size, _EXACT_CHUNK):
        part = slice(start, start + _EXACT_CHUNK)
        sizes, keys = n[part], k[part]
        first = np.concatenate(([True], (keys[1:] != keys[:-1]) | (sizes[1:] != sizes[:-1])))
        group = np.cumsum(first) - 1
        values = np.arange(int(sizes.max()), dtype=np.uint64)[None, :]
        hashes = combine(keys[first, None], values)  # [G, V]: G runs, values 0 .. V - 1
        # Values past a group's size go last: the sort is stable, so they follow even an equal hash.
        hashes[values >= sizes[first, None]] = np.iinfo(np.uint64).max
        table = np.argsort(hashes, axis=1, kind="stable")
        if inverse:
            table = np.argsort(table, axis=1, kind="stable")
        out[part] = table[group, x[part].astype(np.int64)]
    return out


def _walk(x: UInt64, n: UInt64, k: UInt64, *, inverse: bool) -> UInt64:
    """Feistel rounds, repeated for results that are not below the size; n and k have shape [1] or [P]; shape [P] -> [P]."""
    out = np.empty_like(x)
    index, sizes, keys = map(np.ascontiguousarray, (x, n, k))
    _permutation.walk(index, sizes, keys, out, ROUNDS, inverse)
    return out
