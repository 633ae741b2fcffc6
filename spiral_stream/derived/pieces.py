"""The open pieces of one derivation for the shards of one relation: where each array lies in memory.

Opening reads the roster. A part is mapped when a row of it is first read, and its blocks are verified when they are
first touched, so resident memory grows with shards (a few words each) and never with rows.
"""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.derived import _gather
from spiral_stream.derived.derivation import Derivation, ShardRows
from spiral_stream.derived.index import Keys, Roster, RosterFile
from spiral_stream.derived.part import ALIGN, open_part
from spiral_stream.derived.shared_parts import PiecesPart, PiecesParts
from spiral_stream.errors import CacheError, DamageError
from spiral_stream.integrity import seal
from spiral_stream.integrity.blocks import verify_rows

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]


@final
class Pieces:
    """The pieces of S shards. Thread-safe.

    Attributes:
        counts: slot -> shape [S], uint64: items of that array of each shard.
        summary: name -> shape [S], int64.
    """

    def __init__(self, file: RosterFile, roster: Roster, keys: Keys) -> None:
        """Find the pieces.

        Args:
            file: the derivation's folder.
            roster: its roster.
            keys: shape [S, 2], uint64: of the shards.

        Raises:
            CacheError: a shard has no piece.
        """
        rows = roster.all_of(keys)
        if len(rows) and int(rows.min()) < 0:
            msg = (
                f"{file.folder}: {int((rows < 0).sum())} of {len(keys)} shards have no piece. Prepare the stream again"
            )
            raise CacheError(msg)
        slots, derivation = file.derivation.slots, file.derivation
        self._file, self._parts = file, roster.parts
        self._reading = roster.reading  # so that no part is removed that is not mapped yet
        self._part = roster.part[rows]
        items = roster.counts[rows]
        self.counts: dict[str, UInt64] = {name: items[:, k] for k, name in enumerate(slots)}
        self.summary: dict[str, Int64] = {name: roster.summaries[rows, k] for k, name in enumerate(derivation.SUMMARY)}
        sizes = [
            -(-(items[:, k] * np.uint64(kind.itemsize)).astype(np.int64) // ALIGN) * ALIGN
            for k, kind in enumerate(slots.values())
        ]
        ends = roster.offsets[rows].astype(np.int64) + np.cumsum([np.zeros(len(rows), np.int64), *sizes], axis=0)
        self._begins: dict[str, UInt64] = {
            name: ends[k].astype(np.uint64) for k, name in enumerate(slots)
        }  # in the part
        self._bases = np.zeros(len(roster.parts), np.uint64)  # address of each part; 0: not mapped yet
        self._mapped: dict[int, Any] = {}
        self._owners: tuple[Any, ...] = ()
        self._absolute: dict[str, UInt64] = {}  # slot -> [S] addresses, once every part is mapped
        self._lock = threading.Lock()

    def map_all(self) -> None:
        """Map every part now, so that one that is cut or missing is found before anything is read.

        Raises:
            DamageError: a part is not what was written; it is taken out of the roster.
        """
        parts = self._numbers()
        if self._file.share is not None:
            PiecesParts(self._file).fetch_all([PiecesPart(self._file, self._parts[part]) for part in parts])
        for part in parts:
            self._map(part)
        self._absolute = {slot: self._bases[self._part] + begins for slot, begins in self._begins.items()}

    def addresses(self, slot: str, shards: Int64) -> UInt64:
        """Shape [P] -> [P], uint64: where the array of each of these shards begins; its part is mapped if it was not.

        Raises:
            DamageError: a part is not what was written.
            CacheError: it cannot be read.
        """
        whole = self._absolute.get(slot)
        if whole is not None:
            return whole[shards]
        parts = self._part[shards]
        bases = self._bases[parts]
        if not bases.all():
            for part in np.unique(parts[bases == 0]).tolist():
                self._map(part)
            bases = self._bases[parts]
        found: UInt64 = bases + self._begins[slot][shards]
        return found

    def table(self, slot: str) -> UInt64:
        """Return where the array of every shard begins, shape [S], uint64; 0 where its part is not mapped yet."""
        if self._absolute:
            return self._absolute[slot]
        bases = self._bases[self._part]
        return np.where(bases == 0, bases, bases + self._begins[slot])

    def item_addresses(self, slot: str, shards: Int64, offsets: UInt64, width: int) -> UInt64:
        """Shape [P] -> [P], uint64: where the items of an array lie whose items have ``width`` bytes; see `addresses`."""
        whole = self._absolute.get(slot)
        if whole is None:
            return self.addresses(slot, shards) + offsets * np.uint64(width)
        out = np.empty(len(shards), np.uint64)
        _gather.addresses(whole, shards, offsets, width, out)
        return out

    def first_addresses(self, shards: Int64) -> UInt64:
        """Return the address of each part that holds one of these shards: at most as many; they must be mapped."""
        found: UInt64 = self._bases[np.flatnonzero(np.bincount(self._part[shards]))]
        return found

    def array(self, slot: str, shard: int) -> NDArray[Any]:
        """Return one array of one shard, mapped and verified.

        Raises:
            DamageError: it is not what was written.
            CacheError: it cannot be read.
        """
        found = self.mapped(slot, shard)
        if len(found):
            self.verify(self.addresses(slot, np.array([shard])), np.array([found.nbytes]))
        return found

    def mapped(self, slot: str, shard: int) -> NDArray[Any]:
        """Return one array of one shard, mapped; whoever reads it verifies it first.

        Raises:
            DamageError: its part is not what was written.
            CacheError: it cannot be read.
        """
        kind, count = self._file.derivation.slots[slot], int(self.counts[slot][shard])
        if not count:
            return np.zeros(0, kind)
        address = self.addresses(slot, np.array([shard]))
        part = int(self._part[shard])
        return np.frombuffer(self._mapped[part], kind, count, int(address[0] - self._bases[part]))

    def joined(self, slot: str, shards: Int64) -> NDArray[Any]:
        """Return one array of several shards, end to end in the order given, verified.

        Raises:
            DamageError: one is not what was written.
            CacheError: it cannot be read.
        """
        kind = self._file.derivation.slots[slot]
        counts = self.counts[slot][shards].astype(np.int64)
        held, counts = shards[counts > 0], counts[counts > 0]
        begins = self.addresses(slot, held)
        self.verify(begins, counts * kind.itemsize)
        maps = {part: np.frombuffer(mapped, np.uint8) for part, mapped in self._mapped.items()}
        first, parts = begins - self._bases[self._part[held]], self._part[held].tolist()
        ends = (first.astype(np.int64) + counts * kind.itemsize).tolist()
        found = [maps[part][at:end] for part, at, end in zip(parts, first.tolist(), ends, strict=True)]
        return np.concatenate([np.zeros(0, np.uint8), *found]).view(kind)

    def verify(self, addresses: UInt64, sizes: Int64) -> None:
        """Verify the blocks that rows touch, except those that were verified before.

        Args:
            addresses: shape [P], of bytes in these pieces.
            sizes: shape [P] or [1]: how many.

        Raises:
            DamageError: a block is not what was written; the part is taken out of the roster.
        """
        verify_rows(addresses, sizes, self.damaged)

    @property
    def is_mapped(self) -> bool:
        """Whether `map_all` was called, so that addresses are looked up in a table."""
        return bool(self._absolute)

    def files(self) -> Iterator[Path]:
        """Yield every file next to the roster that these pieces need, and that is here if it lies on a store too."""
        yield self._file.folder / "derivation.json"
        for at in self._numbers():
            path = self._file.part_path(self._parts[at])
            if self._file.share is None or path.exists():
                yield path

    @property
    def parts(self) -> int:
        """How many parts these pieces lie in."""
        return len(self._numbers())

    def _numbers(self) -> list[int]:
        """The parts that hold a piece, ascending; parts are few, so they are counted rather than sorted."""
        numbers: list[int] = np.flatnonzero(np.bincount(self._part)).tolist()
        return numbers

    def owners(self) -> tuple[Any, ...]:
        """Return what keeps the mapped memory alive."""
        if len(self._owners) != len(self._mapped):
            self._owners = tuple(self._mapped.values())
        return self._owners

    def _map(self, part: int) -> None:
        facts = self._parts[part]
        path = self._file.part_path(facts)
        with self._lock:
            if part in self._mapped:
                return
            mapped = self._file.mapped.get(facts.name)
            if mapped is None:
                if self._file.share is not None:
                    PiecesParts(self._file).fetch(PiecesPart(self._file, facts))
                try:
                    mapped = open_part(path, facts.size, facts.digest)
                except DamageError:
                    self._file.drop(facts)
                    raise
                self._file.mapped[facts.name] = mapped
            self._mapped[part] = mapped
            self._bases[part] = mapped.address

    def damaged(self, path: Path, found: str) -> DamageError:
        """Take a part out of the roster, if it is one of these; returns the error."""
        for facts in self._parts:
            if self._file.part_path(facts) == path:
                self._file.drop(facts)
        return seal.damaged(path, found)


@final
class FactsInMemory:
    """What a derivation has of a few shards, in memory: sooner made again than written down. A merge takes it for `Pieces`.

    Args:
        derivation: what is made.
        shards: the rows of all shards.
    """

    def __init__(self, derivation: Derivation, shards: Sequence[ShardRows]) -> None:
        made = [derivation.piece(each) for each in shards]
        self._arrays = {
            slot: [np.asarray(each.arrays.get(slot, ()), kind) for each in made]
            for slot, kind in derivation.slots.items()
        }
        self.counts: dict[str, UInt64] = {
            slot: np.array([len(each) for each in arrays], np.uint64) for slot, arrays in self._arrays.items()
        }
        self.summary: dict[str, Int64] = {
            name: np.array([each.summary[name] for each in made], np.int64) for name in derivation.SUMMARY
        }

    def joined(self, slot: str, shards: Int64) -> NDArray[Any]:
        """Return one array of several shards, end to end in the order given."""
        return np.concatenate([self._arrays[slot][shard] for shard in shards.tolist()])


@final
class PiecesTogether:
    """The pieces of one column of several relations, end to end: shards of the second follow those of the first. Thread-safe.

    Args:
        each: the pieces of each relation, all of them mapped.
    """

    def __init__(self, each: Sequence[Pieces]) -> None:
        self._each = tuple(each)
        self.summary = {name: np.concatenate([one.summary[name] for one in each]) for name in each[0].summary}
        self._whole: dict[str, UInt64] = {}
        self._owners = tuple(owner for one in each for owner in one.owners())

    def owners(self) -> tuple[Any, ...]:
        """Return what keeps the mapped memory alive."""
        return self._owners

    def addresses(self, slot: str, shards: Int64) -> UInt64:
        """Where the array of each of these shards begins; see `Pieces`."""
        return self.table(slot)[shards]

    def item_addresses(self, slot: str, shards: Int64, offsets: UInt64, width: int) -> UInt64:
        """Where items lie; see `Pieces`."""
        out = np.empty(len(shards), np.uint64)
        _gather.addresses(self.table(slot), shards, offsets, width, out)
        return out

    def verify(self, addresses: UInt64, sizes: Int64) -> None:
        """Verify what is read; see `Pieces`."""
        verify_rows(addresses, sizes, self._damaged)

    def table(self, slot: str) -> UInt64:
        """Return where the array of every shard begins, shape [S], uint64."""
        if slot not in self._whole:
            every = [(one, np.arange(len(one.counts[slot]))) for one in self._each]
            self._whole[slot] = np.concatenate([one.addresses(slot, shards) for one, shards in every])
        return self._whole[slot]

    def _damaged(self, path: Path, found: str) -> DamageError:
        for one in self._each:
            one.damaged(path, found)
        return seal.damaged(path, found)
