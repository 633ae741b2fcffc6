"""All randomness: a keyed 64-bit mixer over counters.

No generator has state. Hashing whatever identifies a draw makes its key, and mixing (key, counter) gives the numbers. Any
draw can therefore be repeated by itself, in any order, on any worker. Strings and bytes enter through XXH3-128 (unseeded,
specified at xxhash.com). Integers are mixed by the finalizer of SplitMix64 (Steele, Lea and Flood 2014), on arrays.
"""

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self, final

import numpy as np
import xxhash
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_M1: Final = np.uint64(0xBF58476D1CE4E5B9)
_M2: Final = np.uint64(0x94D049BB133111EB)
_WORD, _GOLDEN_INT, _M1_INT, _M2_INT = (1 << 64) - 1, int(_GOLDEN), int(_M1), int(_M2)
_GOLDEN_INVERSE, _M1_INVERSE, _M2_INVERSE = (np.uint64(pow(int(word), -1, 1 << 64)) for word in (_GOLDEN, _M1, _M2))
_S27, _S30, _S31, _S11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(11)
_S54, _S60, _S62 = np.uint64(54), np.uint64(60), np.uint64(62)  # twice as far: what a shift leaves to undo


@final
class DrawnSeed(int):
    """A seed that this process drew, where none was given. It is written like any integer.

    ``recorded`` says whether it comes from a saved state: then other processes can know it.
    """

    recorded: bool

    def __new__(cls, value: int, *, recorded: bool = False) -> Self:
        seed = super().__new__(cls, value)
        seed.recorded = recorded
        return seed

    @classmethod
    def fresh(cls) -> Self:
        """Draw a seed of 48 bits from the operating system."""
        return cls(secrets.randbits(48))

    def __repr__(self) -> str:
        return f"{int(self)} (drawn)"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_drawn, (int(self), self.recorded))


def _drawn(value: int, recorded: bool) -> DrawnSeed:
    return DrawnSeed(value, recorded=recorded)


def mix64(values: UInt64) -> UInt64:
    """Apply the SplitMix64 finalizer, a bijection of 64-bit words.

    Args:
        values: any shape, uint64.

    Returns:
        the same shape, uint64.
    """
    x = np.asarray(values, dtype=np.uint64)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> _S30)) * _M1
        x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


def unmix64(words: UInt64) -> UInt64:
    """Return the values whose `mix64` are these words: any shape, uint64."""
    x = np.asarray(words, dtype=np.uint64)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> _S31) ^ (x >> _S62)) * _M2_INVERSE
        x = (x ^ (x >> _S27) ^ (x >> _S54)) * _M1_INVERSE
    found: UInt64 = x ^ (x >> _S30) ^ (x >> _S60)
    return found


def combine(keys: UInt64 | np.uint64, values: UInt64 | np.uint64) -> UInt64:
    """Fold ``values`` into ``keys``, with broadcasting; each pair gives a new key."""
    k = np.asarray(keys, dtype=np.uint64)
    v = np.asarray(values, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return mix64((k ^ mix64(v + _GOLDEN)) * _GOLDEN + _GOLDEN)


def combine_one(key: int, value: int) -> int:
    """Return what `combine` gives for one key and one value, from 0 up to 2**64 each: 1 us, where arrays take 30."""
    word = (key ^ _mixed((value + _GOLDEN_INT) & _WORD)) * _GOLDEN_INT + _GOLDEN_INT
    return _mixed(word & _WORD)


def _mixed(word: int) -> int:
    word = (word ^ (word >> 30)) * _M1_INT & _WORD
    word = (word ^ (word >> 27)) * _M2_INT & _WORD
    return word ^ (word >> 31)


def uncombine(keys: UInt64 | np.uint64, combined: UInt64 | np.uint64) -> UInt64:
    """Return the values that `combine` folds into ``keys`` to ``combined``, with broadcasting."""
    k = np.asarray(keys, dtype=np.uint64)
    with np.errstate(over="ignore"):
        folded = (unmix64(np.asarray(combined, dtype=np.uint64)) - _GOLDEN) * _GOLDEN_INVERSE
        found: UInt64 = unmix64(folded ^ k) - _GOLDEN
    return found


def key(*parts: int | str | bytes) -> int:
    """Make one 64-bit key of several parts: ``key("shard", seed, pass_number)``.

    Each part enters with its type and length, so ("ab", "c") and ("a", "bc")
    differ, and so do 1 and "1". Integers may have any size and sign.
    """
    state = xxhash.xxh3_128()
    for part in parts:
        if isinstance(part, int):
            data, tag = part.to_bytes((part.bit_length() + 8) // 8, "little", signed=True), b"i"
        elif isinstance(part, str):
            data, tag = part.encode(), b"s"
        else:
            data, tag = part, b"b"
        state.update(tag + len(data).to_bytes(8, "little") + data)
    return state.intdigest() & 0xFFFFFFFFFFFFFFFF


def identity_hashes(stream: str, identities: Sequence[str | bytes | int] | Iterable[str | bytes | int]) -> UInt64:
    """Return 128-bit hashes of (stream, identity): unseeded, and equal on every platform.

    The hashed bytes are: UTF-8 of the stream, a zero byte, then ``s`` and the
    UTF-8 text, ``b`` and the bytes, or ``i`` and the little-endian signed integer: 8 bytes,
    or 9 from 2**63 on. Measured at 0.35 us per identity (a CPython loop over xxhash).

    Args:
        stream: name of the stream in a mixture; "" without one.
        identities: N values of one type.

    Returns:
        shape [N, 2], uint64: high and low word.
    """
    head = stream.encode() + b"\0"
    digest = xxhash.xxh3_128_digest
    out = bytearray()
    for value in identities:
        if isinstance(value, str):
            out += digest(head + b"s" + value.encode())
        elif isinstance(value, bytes):
            out += digest(head + b"b" + value)
        else:
            try:
                number = int(value).to_bytes(8, "little", signed=True)
            except OverflowError:  # of uint64
                number = int(value).to_bytes(9, "little", signed=True)
            out += digest(head + b"i" + number)
    return np.frombuffer(bytes(out), dtype=">u8").astype(np.uint64).reshape(-1, 2)


def fractions(keys: UInt64) -> NDArray[np.float64]:
    """Return the numbers in [0, 1) that keys stand for: multiples of 2**-53, of the same shape, float64."""
    return (np.asarray(keys, dtype=np.uint64) >> _S11).astype(np.float64) * 2.0**-53


def below(keys: UInt64, size: int) -> UInt64:
    """Return the number in [0, size) that each key stands for: the high word of ``key * size``, of the same shape.

    A number is more likely than another by less than ``size / 2**64``.
    """
    x, low = np.asarray(keys, dtype=np.uint64), np.uint64(0xFFFFFFFF)
    n_high, n_low, half = np.uint64(size >> 32), np.uint64(size & 0xFFFFFFFF), np.uint64(32)
    x_high, x_low = x >> half, x & low
    middle = x_high * n_low + ((x_low * n_low) >> half)
    return np.asarray(x_high * n_high + (middle >> half) + (((middle & low) + x_low * n_high) >> half))


def sample_keys(run_seed: int, epoch: int, hashes_N2: UInt64, occurrences: UInt64) -> UInt64:
    """Make the keys of the samples' own random bits.

    Args:
        run_seed: the run's seed, any integer.
        epoch: the epoch.
        hashes_N2: shape [N, 2], uint64, from `identity_hashes`.
        occurrences: shape [N] or scalar, uint64: the pass over the rows; for orders with replacement, the draw.

    Returns:
        shape [N], uint64.
    """
    base = np.uint64(key("sample", run_seed, epoch))
    keys = combine(combine(base, hashes_N2[:, 0]), hashes_N2[:, 1])
    return combine(keys, np.asarray(occurrences, dtype=np.uint64))


def uniforms(keys: UInt64, name: str, nth: int, count: int) -> NDArray[np.float64]:
    """Draw numbers in [0, 1) for the ``nth`` transform called ``name``, for each sample.

    Args:
        keys: shape [N], uint64, from `sample_keys`.
        name: the transform's registered name.
        nth: 0 for the first transform of that name in the chain.
        count: how many numbers per sample.

    Returns:
        shape [N, count], float64: multiples of 2**-53.
    """
    return numbers(transform_keys(keys, name, nth), count)


def transform_keys(keys: UInt64, name: str, nth: int) -> UInt64:
    """Return the key of each sample for the ``nth`` transform called ``name``; shape [N], uint64."""
    return combine(np.asarray(keys, dtype=np.uint64), np.uint64(key("transform", name, nth)))


def numbers(keys: UInt64, count: int) -> NDArray[np.float64]:
    """Draw ``count`` numbers in [0, 1) from each key of `transform_keys`; shape [N, count], float64."""
    counters = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    words = mix64(keys[:, None] + counters[None, :])
    return fractions(words)


def view_keys(keys: UInt64, view: str | None) -> UInt64:
    """Return the samples' keys for a view: other random numbers per name; None leaves the keys as they are."""
    return keys if view is None else combine(keys, np.uint64(key("view", view)))


def item_keys(keys: UInt64, items: NDArray[np.int64]) -> UInt64:
    """Return a key for each image of a list, from the sample's key and the image's place in the list."""
    return combine(combine(keys, np.uint64(key("item"))), items.astype(np.uint64))
