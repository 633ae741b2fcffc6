"""The index of a derivation: which pieces there are, and where they lie.

One file for all shards of all relations that share the derivation, read with one read whatever their number and
replaced as a whole under a lock, so that a reader sees a complete one. A row has the key of a shard, the part and the
place of its piece, the number of items of each array, and the summary: about 60 bytes.
"""

import binascii
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any, Final, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.derived.part import DATA, SUMS, Written, digest_of
from spiral_stream.errors import CacheError
from spiral_stream.integrity import seal
from spiral_stream.integrity.locks import turn
from spiral_stream.integrity.publish import publish_file, sweep_drafts
from spiral_stream.keeping.in_use import Reading, reading, used
from spiral_stream.keeping.share import forget, noted, share_of

FILE: Final = "roster.sealed.arrow"
_PARTS: Final = b"spiral:parts"
_SLOTS: Final = b"spiral:slots"
_LOCK: Final = "commits"
DEADLINE_S: Final = 60.0

Keys = NDArray[np.uint64]  # [S, 2]: the 128-bit content keys of shards


def keys_of(content_keys: pa.StringArray) -> Keys:
    """Shape [S, 2], uint64: content keys of 32 hex digits as pairs of words."""
    text = content_keys.cast(pa.large_utf8()) if len(content_keys) else pa.array([], pa.large_utf8())
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    data = memoryview(text.buffers()[2] or b"")[offsets[0] : offsets[-1]]
    return np.frombuffer(binascii.unhexlify(data), np.uint64).reshape(-1, 2)


class Described(Protocol):
    """What a roster needs to know of a derivation."""

    @property
    def KIND(self) -> str:  # noqa: N802
        """The folder of all derivations of this kind."""
        ...

    @property
    def SUMMARY(self) -> tuple[str, ...]:  # noqa: N802
        """The names of a piece's numbers."""
        ...

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        """The arrays of a piece."""
        ...

    @property
    def fingerprint(self) -> str:
        """The folder of this one."""
        ...

    def facts(self) -> dict[str, object]:
        """Return what the fingerprint covers."""
        ...


@final
@dataclass(frozen=True, slots=True)
class PartFacts:
    """One part, as the roster knows it."""

    name: str
    size: int  # bytes of its data
    digest: str  # of its sums


def record_of(facts: PartFacts) -> str:
    """Return the name under which a store has the roster of one part."""
    return f"{facts.name}.sealed.arrow"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """The pieces of one derivation. R of them, each key once."""

    parts: tuple[PartFacts, ...]
    keys: Keys  # [R, 2], sorted by (first, second) word
    part: NDArray[np.uint32]  # [R] index into `parts`
    offsets: NDArray[np.uint64]  # [R] where the piece begins in its part
    counts: NDArray[np.uint64]  # [R, slots] items of each array
    summaries: NDArray[np.int64]  # [R, names of the summary]
    reading: Reading | None = None  # keeps everybody from removing the parts
    _found: list[tuple[Keys, NDArray[np.int64]]] = field(default_factory=list, init=False, repr=False)  # of `all_of`

    @classmethod
    def empty(cls, derivation: Described, reading: Reading | None = None) -> "Roster":
        """Return a roster without pieces."""
        return cls(
            (),
            np.zeros((0, 2), np.uint64),
            np.zeros(0, np.uint32),
            np.zeros(0, np.uint64),
            np.zeros((0, len(derivation.slots)), np.uint64),
            np.zeros((0, len(derivation.SUMMARY)), np.int64),
            reading,
        )

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Shape [S, 2] -> [S], int64: the row of each key, -1 where there is no piece."""
        if not len(self.keys):
            return np.full(len(keys), -1, np.int64)
        at = np.searchsorted(np.ascontiguousarray(self.keys[:, 0]), np.ascontiguousarray(keys[:, 0]))
        while True:  # keys that share their first word stand side by side; there is one round in practice
            at = np.minimum(at, len(self.keys) - 1)
            same = self.keys[at, 0] == keys[:, 0]
            hit = same & (self.keys[at, 1] == keys[:, 1])
            later = same & ~hit & (at + 1 < len(self.keys))
            if not later.any():
                return np.where(hit, at, -1)
            at = at + later

    def all_of(self, keys: Keys, like: "Roster | None" = None) -> NDArray[np.int64]:
        """Return `find` of the keys of a relation; asked for the same array again, it is not searched again.

        Args:
            keys: shape [S, 2], uint64.
            like: a roster that was asked for the same array. Where it has the same keys, so does this one in the same rows.
        """
        rows = self.known(keys)
        if rows is None and like is not None:
            rows = self._as_in(like, keys)
        if rows is None:
            rows = self.find(keys)
        self._found[:] = [(keys, rows)]
        return rows

    def known(self, keys: Keys) -> NDArray[np.int64] | None:
        """Return what `all_of` found for this very array, if it was asked last."""
        return next((rows for known, rows in self._found if known is keys), None)

    def _as_in(self, like: "Roster", keys: Keys) -> NDArray[np.int64] | None:
        """What another roster found, if it holds here; a search of 10^5 keys takes 11 ms, and this 1.5."""
        rows = like.known(keys)
        if rows is None or len(self.keys) != len(like.keys) or not (rows >= 0).all():
            return None
        return rows if bool((self.keys[rows] == keys).all()) else None

    def with_parts(self, added: Sequence[tuple[PartFacts, Keys, Written]]) -> "Roster":
        """Return a roster that has the pieces of other parts too; of two pieces with one key the older stays."""
        parts = [*self.parts, *(facts for facts, _, _ in added)]
        part = [np.full(len(keys), len(self.parts) + k, np.uint32) for k, (_, keys, _) in enumerate(added)]
        pieces = Roster(
            tuple(parts),
            np.concatenate([self.keys, *(keys for _, keys, _ in added)]),
            np.concatenate([self.part, *part]),
            np.concatenate([self.offsets, *(w.offsets for _, _, w in added)]),
            np.concatenate([self.counts, *(w.counts for _, _, w in added)]),
            np.concatenate([self.summaries, *(w.summaries for _, _, w in added)]),
            self.reading,
        )
        order = np.lexsort((pieces.keys[:, 1], pieces.keys[:, 0]))  # stable: the older of two comes first
        keys = pieces.keys[order]
        first = np.ones(len(keys), np.bool_)
        first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        return pieces.only(order[first])

    def only(self, rows: NDArray[Any]) -> "Roster":
        """Return some of the rows, given by mask or place in the order of their keys, and the parts that they need."""
        used, number = np.unique(self.part[rows], return_inverse=True)
        return Roster(
            tuple(self.parts[at] for at in used.tolist()),
            self.keys[rows],
            number.astype(np.uint32),
            self.offsets[rows],
            self.counts[rows],
            self.summaries[rows],
            self.reading,
        )


@final
class RosterFile:
    """The folder of one derivation: its roster, its parts, and who may change them."""

    def __init__(self, root: Path, derivation: Described) -> None:
        """Name the folder; nothing is read or made.

        Args:
            root: of all derived data.
            derivation: whose pieces lie here.
        """
        self.derivation = derivation
        self._root = root
        self._reading: Reading | None = None
        self.folder = root / "derived" / derivation.KIND / derivation.fingerprint
        self.path = self.folder / FILE
        self.parts = self.folder / "parts"
        self.share = share_of(root)  # with other machines
        self.mapped: dict[str, Any] = {}  # parts by name: pieces of many relations lie in one, and it is mapped once

    def stamp(self) -> tuple[int, ...] | None:
        """Return facts of the file that change with each commit; None without one."""
        try:
            facts = self.path.stat()
        except OSError:
            return None
        return facts.st_ino, facts.st_size, facts.st_mtime_ns

    def load(self) -> Roster:
        """Read the roster; empty if there is none. Nobody removes the parts while it is referred to, or this is.

        Raises:
            DamageError: it is not what was written.
            CacheError: the operating system refuses.
        """
        if self._reading is None:
            self._reading = reading(self._root, self.folder.name)
            used(self.folder)
        return self.peek()

    def peek(self) -> Roster:
        """Read the roster; others may remove the parts meanwhile.

        Raises:
            DamageError: it is not what was written.
            CacheError: the operating system refuses.
        """
        if not self.path.exists():
            return Roster.empty(self.derivation, self._reading)
        return read_roster(self.path, self.derivation, self._reading)

    def prepare(self) -> None:
        """Make the folder, and write down what it is of, for people.

        Raises:
            OSError: it cannot be written.
        """
        self.parts.mkdir(parents=True, exist_ok=True)
        facts = self.folder / "derivation.json"
        if not facts.exists():
            with publish_file(facts) as draft:
                draft.write_text(json.dumps({"kind": self.derivation.KIND, **self.derivation.facts()}))

    def commit(self, made: Sequence[tuple[Path, Keys, Written]]) -> tuple[Roster, tuple[int, ...] | None]:
        """Enter parts that are complete, unless all of their pieces were made by others meanwhile.

        Returns the roster as it is now, and its stamp.

        Args:
            made: drafts below `parts`, the keys of their pieces, and what was written.

        Raises:
            CacheError: the folder cannot be written, or another process holds it for longer than the deadline.
        """
        with self._alone():
            for folder in (self.folder, self.parts):
                sweep_drafts(folder)
            before = self.peek()
            added = []
            for draft, keys, written in made:
                if (before.find(keys) < 0).any():
                    name = draft.name[1:].split(".")[0]
                    added.append((PartFacts(name, written.size, digest_of(written.sums.tobytes())), keys, written))
                    with publish_file(self.parts / f"{name}{SUMS}") as sums:
                        sums.write_bytes(written.sums.tobytes())
                    draft.rename(self.parts / f"{name}{DATA}")
                else:
                    draft.unlink(missing_ok=True)
            if not added:
                return before, self.stamp()
            after = before.with_parts(added)
            self.publish(after)
            return after, self.stamp()

    def enter(self, others: Sequence[Roster], unsure: Collection[PartFacts] = ()) -> None:
        """Enter rosters of one part each, whose files come later; ``unsure`` parts go if others have all of their pieces."""
        with self._alone():
            before = self.peek()
            numbers = [k for k, facts in enumerate(before.parts) if facts in unsure]
            rest = [before.only(before.part == k) for k in numbers]
            after = before.only(~np.isin(before.part, numbers))
            for each in [*others, *rest]:
                if (after.find(each.keys) < 0).any():
                    none, (facts,) = np.zeros(0, np.uint64), each.parts
                    written = Written(each.offsets, each.counts, each.summaries, none, facts.size)
                    after = after.with_parts([(facts, each.keys, written)])
            if set(after.parts) != set(before.parts):
                self.publish(after)

    def begin(self) -> None:
        """Begin anew, without pieces, unless somebody else began meanwhile."""
        with self._alone():
            if not self.path.exists():
                self.publish(Roster.empty(self.derivation))
                for name in noted(self.folder):
                    forget(self.folder, name)

    def drop(self, facts: PartFacts) -> None:
        """Take a damaged part out, so that its pieces are made again; whoever has it mapped goes on with it.

        In a folder that cannot be written it stays.
        """
        with suppress(OSError, CacheError), self._alone():
            before = self.peek()
            forget(self.folder, record_of(facts))
            if facts in before.parts:
                without = before.part != before.parts.index(facts)
                self.publish(before.only(without))

    def keep(self, rows: Callable[[Roster], NDArray[np.bool_]]) -> None:
        """Take all other pieces out, and remove the parts whose pieces are all gone.

        Args:
            rows: which pieces of the present roster stay.
        """
        with self._alone():
            sweep_drafts(self.parts)
            before = self.peek()
            after = before.only(np.flatnonzero(rows(before)))
            self.publish(after)
            for facts in set(before.parts) - set(after.parts):
                forget(self.folder, record_of(facts))

    def publish(self, roster: Roster) -> None:
        with publish_file(self.path) as file:
            write_roster(file, roster, self.derivation)
        self._remove_all_but(roster)

    def part_path(self, facts: PartFacts) -> Path:
        """Return where the data of a part lies."""
        return self.parts / f"{facts.name}{DATA}"

    def _remove_all_but(self, roster: Roster) -> None:
        """Remove files of parts that the roster does not have: their makers were killed. The caller is alone."""
        named = {f"{facts.name}{suffix}" for facts in roster.parts for suffix in (DATA, SUMS)}
        for name in os.listdir(self.parts):  # noqa: PTH208  a folder may have thousands of parts, and paths cost 10 us each
            if name.endswith((DATA, SUMS)) and not name.startswith(".") and name not in named:
                (self.parts / name).unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        file = self.folder / _LOCK
        file.touch()
        with turn(file, DEADLINE_S, "a process that commits", CacheError):
            yield


def _columns(columns: list[NDArray[Any]], rows: int, kind: type) -> NDArray[Any]:
    return np.column_stack(columns).astype(kind, copy=False) if columns else np.zeros((rows, 0), kind)


def slots_in(path: Path) -> tuple[dict[str, np.dtype[Any]], tuple[str, ...]] | None:
    """Return the arrays and the names of the numbers of a roster's pieces; None if it does not say.

    Raises:
        DamageError: it is not what was written.
        CacheError: the operating system refuses.
    """
    schema = seal.table(path).schema
    with seal.reading(path):
        metadata = (schema.metadata or {}).get(_SLOTS)
        names = tuple(name.removeprefix("s:") for name in schema.names if name.startswith("s:"))
        return None if metadata is None else ({name: np.dtype(kind) for name, kind in json.loads(metadata)}, names)


def read_roster(path: Path, derivation: Described, reading: Reading | None = None) -> Roster:
    """Read the roster in a file.

    Raises:
        DamageError: it is not what was written.
        CacheError: the operating system refuses.
    """
    table = seal.table(path)
    with seal.reading(path):
        parts = json.loads(table.schema.metadata[_PARTS])
        slots, names = list(derivation.slots), list(derivation.SUMMARY)
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
        none = np.zeros(len(table), np.int64)  # of what an earlier version did not write down
        return Roster(
            tuple(starmap(PartFacts, parts)),
            np.column_stack([columns["key0"], columns["key1"]]),
            columns["part"],
            columns["offset"],
            _columns([columns[f"n:{slot}"] for slot in slots], len(table), np.uint64),
            _columns([columns.get(f"s:{name}", none) for name in names], len(table), np.int64),
            reading,
        )


def write_roster(path: Path, roster: Roster, derivation: Described) -> None:
    """Write a roster to a file that is not sealed yet."""
    columns: dict[str, Any] = {
        "key0": roster.keys[:, 0],
        "key1": roster.keys[:, 1],
        "part": roster.part,
        "offset": roster.offsets,
    }
    columns |= {f"n:{slot}": roster.counts[:, k] for k, slot in enumerate(derivation.slots)}
    columns |= {f"s:{name}": roster.summaries[:, k] for k, name in enumerate(derivation.SUMMARY)}
    table = pa.table({name: np.ascontiguousarray(values) for name, values in columns.items()})
    parts = [(facts.name, facts.size, facts.digest) for facts in roster.parts]
    slots = [(name, kind.str) for name, kind in derivation.slots.items()]
    table = table.replace_schema_metadata({_PARTS: json.dumps(parts), _SLOTS: json.dumps(slots)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
