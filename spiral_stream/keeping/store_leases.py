"""Leases of shards between machines that share a store: one object per derivation or cache says who builds what.

The object says of each builder which shards it has, and how often it has written: its beat. Whoever changes it replaces
the version that it read, so of two builders one gets a lease. Nobody compares clocks: a builder whose beat stays the same
for `DEAD_S` on the observer's own clock, which stands still when the observer does, is dead, and what it had is free. One of
the same working folder is dead as soon as the kernel has taken back its locks. Taking the leases of a unit costs one
request, or two if another builder wrote.

A builder that was taken for dead and lives makes things twice; readers take each shard once (`Roster.with_parts`).
"""

import json
import threading
import uuid
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from spiral_stream.errors import CacheError, cut
from spiral_stream.integrity.locks import LONG_PAUSES_S, Wait
from spiral_stream.keeping.leases import Claims, ShardLeases
from spiral_stream.keeping.share import Share, share_of
from spiral_stream.storage.store import ObjectStat
from spiral_stream.storage.uri import printable
from spiral_stream.threads import Stopwatch

FILE: Final = "leases.json"
BEAT_S: Final = 5.0
DEAD_S: Final = 30.0
LOOK_EVERY_S: Final = 2.0  # while waiting for others
_DEADLINE_S: Final = 120.0  # for a change that others come before

State = dict[str, dict[str, Any]]  # builder -> {"beat": int, "place": working folder, "keys": [16 hex digits]}


def leases_of(folder: Path) -> ShardLeases:
    """Return the leases of a builder of a derivation or cache, in its folder.

    Raises:
        OSError: the claims of the folder cannot be opened.
    """
    share, local = share_of(folder), Claims(folder)
    return local if share is None else StoreLeases(share, folder, local)


@final
class StoreLeases:
    """The leases that one builder holds, on this machine and on the store. Thread-safe.

    Args:
        share: the store.
        folder: of what is made.
        own: the leases of this machine, which are closed with these.
        tidy: whether the last one to close removes the object. One that begins at that moment may lose its lease.
    """

    def __init__(self, share: Share, folder: Path, local: Claims, *, tidy: bool = False) -> None:
        self._share, self._folder, self._local, self._tidy = share, folder, local, tidy
        self._path = folder / FILE
        self._name = uuid.uuid4().hex
        self._held: set[str] = set()
        self._beat = 0
        self._state: State = {}
        self._facts: ObjectStat | None = None
        self._read = False
        self._seen: dict[str, tuple[int, float]] = {}  # builder -> its beat, and since when it is that
        self._clock = Stopwatch(BEAT_S)
        self._looked_at, self._moved = -LOOK_EVERY_S, False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._heart: threading.Thread | None = None

    def take_all(self, keys: Sequence[int]) -> list[bool]:
        """Take leases without waiting; which of them were free, or ours before."""
        here = {_hex(key): key for key, taken in zip(keys, self._local.take_all(keys), strict=True) if taken}
        new = set(here) - self._held
        got = self._change(new) if new else set()
        self._local.give_back_all([here[name] for name in new - got])
        if got:
            self._share.ask_again(self._folder)  # with what was entered before the lease was ours
            self._start()
        return [_hex(key) in self._held and _hex(key) in here for key in keys]

    def give_back_all(self, keys: Sequence[int]) -> None:
        """Give leases back."""
        gone = {_hex(key) for key in keys} & self._held
        if gone:
            self._held -= gone
            self._change()
        self._local.give_back_all(keys)

    def is_free(self, key: int) -> bool:
        """Whether nobody has a lease, as far as was seen not long ago."""
        if not self._local.is_free(key):
            return False
        with self._lock:
            if self._clock.seconds() - self._looked_at >= LOOK_EVERY_S:
                self._look()
            return bool(self._free_names({_hex(key)}))

    def are_moving(self) -> bool:
        """Whether another builder wrote since this was asked last."""
        moved, self._moved = self._moved, False
        return moved

    def close(self) -> None:
        """Give all leases back; where the store does not answer, others wait until this one is dead to them."""
        self._ended.set()
        if self._heart is not None:
            self._heart.join()
        if self._held:
            self._held.clear()
            with suppress(CacheError):
                self._change()
                if self._tidy and not self._state:
                    self._share.remove(self._path)
        self._local.close()

    def _free_names(self, names: AbstractSet[str]) -> set[str]:
        """Those names that no living builder has. Ours hold the machine's own leases, so others of this folder are dead."""
        now = self._clock.seconds()
        taken: set[str] = set()
        for who, entry in self._state.items():
            if who != self._name and not self._is_dead(who, now):
                taken |= names & set(entry["keys"]) if entry["place"] != self._share.working_id else set()
        return set(names - taken)

    def _is_dead(self, who: str, now: float) -> bool:
        return who in self._seen and now - self._seen[who][1] > DEAD_S

    def _change(self, wanted: AbstractSet[str] = frozenset()) -> set[str]:
        """Write what we have now, with those leases that are wanted and free; returns the latter.

        Raises:
            CacheError: the store failed, or others come before us for longer than the deadline.
        """
        wait = Wait(_DEADLINE_S, LONG_PAUSES_S)
        with self._lock:
            while True:
                if not self._read:
                    self._look()
                added = self._free_names(wanted)
                if self._write(added):
                    self._held |= added
                    return added
                self._read = False
                if not wait.pause():
                    shown = cut(printable(self._share.uri_of(self._path)))
                    msg = (
                        f"{shown}: other builders changed it for {_DEADLINE_S:g} s without a pause. Start fewer of them"
                    )
                    raise CacheError(msg)

    def _write(self, added: set[str]) -> bool:
        """Replace the state that was read by one with our leases; whether nobody came before us."""
        now, keys = self._clock.seconds(), sorted(self._held | added)
        state = {
            who: {**entry, "keys": [key for key in entry["keys"] if key not in added]}
            for who, entry in self._state.items()
            if who != self._name and not self._is_dead(who, now)
        }
        state = {who: entry for who, entry in state.items() if entry["keys"]}
        if keys:
            state[self._name] = {"beat": self._beat + 1, "place": self._share.working_id, "keys": keys}
        data = json.dumps(state).encode()
        facts = self._share.put(self._path, data, absent=self._facts is None, unchanged=self._facts)
        if facts is None:
            return False
        self._state, self._facts, self._beat = state, facts, self._beat + 1
        return True

    def _look(self) -> None:
        """Read the state."""
        found = self._share.look(self._path)
        self._state, self._facts = ({}, None) if found is None else (_parsed(found[0]), found[1])
        self._read, now = True, self._clock.seconds()
        self._looked_at = now
        for who, entry in self._state.items():
            if who != self._name and self._seen.get(who, (None,))[0] != entry["beat"]:
                self._moved = True
                self._seen[who] = entry["beat"], now

    def _start(self) -> None:
        if self._heart is None:
            self._heart = threading.Thread(target=self._beats, name="spiral-leases", daemon=True)
            self._heart.start()

    def _beats(self) -> None:
        while not self._ended.wait(BEAT_S):
            if self._held:
                with suppress(CacheError):  # the next one may come through; else others take us for dead
                    self._change()


def _parsed(data: bytes) -> State:
    """The state in an object; empty if it is none: then things are made twice at worst."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        return {
            str(who): {"beat": int(each["beat"]), "place": str(each["place"]), "keys": list(map(str, each["keys"]))}
            for who, each in json.loads(data).items()
        }
    return {}


def _hex(key: int) -> str:
    return f"{key:016x}"
