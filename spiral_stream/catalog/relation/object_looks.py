"""What objects are like that references name: of many in one folder by a list of it, of others by a look at each.

A page of a list brings size and etag of 1,000 objects, and costs about what three looks cost. So a folder that `WORTH`
references of one batch lie in is listed, once, with all that lies below it; at most four times the rows of the relation, so
that a folder with many other objects costs little. 24 bytes per listed object are kept. What no list has is looked at, many
together. A store whose lists say another etag than its looks is not listed: the first object tells.
"""

from array import array
from collections.abc import Sequence
from itertools import islice
from typing import Final, final

import numpy as np
import xxhash

from spiral_stream.errors import SourceError, anew
from spiral_stream.sources.files.remote_folder import pin_of_object
from spiral_stream.sources.pins import NOT_THERE, Pin
from spiral_stream.sources.references.policy import Reach
from spiral_stream.storage.faults import AwayError
from spiral_stream.storage.open import store_of
from spiral_stream.storage.store import Get, Got, Store
from spiral_stream.storage.uri import WEB, is_object, scheme_of
from spiral_stream.threads import Workers

WORTH: Final = 256  # references of one batch in one folder
LEAST: Final = 10_000  # objects that a list may bring, however few rows there are
MOST: Final = 1 << 23  # objects that are kept
_LISTS: Final = 64  # of one relation
_TASKS: Final = 8  # of looks, at a time
_TOGETHER: Final = 256  # looks of one task at least


@final
class ObjectLooks:
    """Looks at objects.

    Args:
        pool: its threads wait for stores.
        reach: where relative references start.
        confined: the same for references that are URIs themselves.
        rows: of the relation.
    """

    def __init__(self, pool: Workers, reach: Reach, confined: Reach, rows: int) -> None:
        self._pool, self._reach, self._confined = pool, reach, confined
        self._left = min(MOST, LEAST + 4 * rows)
        self._lists: list[_List] = []

    def pins(self, names: Sequence[str]) -> dict[str, Pin]:
        """Return the pins of those references that name objects.

        Raises:
            ReferenceDataError: a reference holds a NUL.
            AwayError: a store stays away.
        """
        found: dict[str, Pin] = {}
        stores: dict[int, tuple[Store, dict[str, str]]] = {}  # by the `id` of a store: reference -> key
        for name in names:
            try:
                named = (self._confined if is_object(name) else self._reach).object_of(name, 0)
                if named is not None:
                    store, key = store_of(named)
                    listable = scheme_of(named) not in WEB
                    stores.setdefault(id(store) * 2 + listable, (store, {}))[1][name] = key
            except SourceError:  # the reader will raise it
                found[name] = NOT_THERE
        for kind, (store, keys) in stores.items():
            found |= self._of(store, keys, listable=bool(kind % 2))
        return found

    def _of(self, store: Store, keys: dict[str, str], *, listable: bool) -> dict[str, Pin]:
        found: dict[str, Pin] = {}
        if listable:
            self._list(store, [key for key in keys.values() if not self._is_listed(store, key)])
        for each in self._lists:
            if each.store is store:
                left = [name for name in keys if name not in found and keys[name].startswith(each.folder)]
                found |= each.pins({name: keys[name] for name in left})
        left = [name for name in keys if name not in found]
        size = max(_TOGETHER, -(-len(left) // _TASKS))
        parts = [left[at : at + size] for at in range(0, len(left), size)]
        for part, pins in zip(
            parts, self._pool.map(lambda part: _looked(store, [keys[n] for n in part]), parts), strict=True
        ):
            found.update(zip(part, pins, strict=True))
        return found

    def _is_listed(self, store: Store, key: str) -> bool:
        return any(each.store is store and key.startswith(each.folder) for each in self._lists)

    def _list(self, store: Store, keys: Sequence[str]) -> None:
        """List the folder that these objects lie in, if that is worth it."""
        if len(keys) < WORTH or len(self._lists) >= _LISTS or not self._left:
            return
        low, high = min(keys), max(keys)
        same = next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
        found = _List(store, low[: low.rfind("/", 0, same) + 1], self._left)
        found.check(keys)
        self._lists.append(found)
        self._left -= found.count


@final
class _List:
    """What lies below a folder of a store, as far as it was listed."""

    def __init__(self, store: Store, folder: str, most: int) -> None:
        self.store, self.folder, self.count = store, folder, 0
        hashes, sizes, marks = array("Q"), array("q"), array("q")
        try:
            for key, facts in islice(store.list(folder), most):
                pin = pin_of_object(facts)
                hashes.append(_hash(key))
                sizes.append(pin.size)
                marks.append(pin.mtime_ns)
        except AwayError:
            raise
        except SourceError:  # who may not list may look
            pass
        self.count = len(hashes)
        kept, first, times = np.unique(np.frombuffer(hashes, np.uint64), return_index=True, return_counts=True)
        self._hashes, first = kept[times == 1], first[times == 1]
        self._sizes, self._marks = np.frombuffer(sizes, np.int64)[first], np.frombuffer(marks, np.int64)[first]

    def check(self, keys: Sequence[str]) -> None:
        """Look at one of these objects; where that says something else than the list, the list is of no use.

        Raises:
            AwayError: the store stays away.
        """
        here = next(iter(self.pins({key: key for key in keys}).items()), None)
        if here is not None and _looked(self.store, [here[0]]) != [here[1]]:
            self._hashes = self._hashes[:0]

    def pins(self, keys: dict[str, str]) -> dict[str, Pin]:
        """Return the pins of those references whose objects were listed.

        Args:
            keys: reference -> key.
        """
        if not len(self._hashes) or not keys:
            return {}
        wanted = np.array([_hash(key) for key in keys.values()], np.uint64)
        at = np.minimum(np.searchsorted(self._hashes, wanted), len(self._hashes) - 1)
        there, sizes, marks = (self._hashes[at] == wanted).tolist(), self._sizes[at].tolist(), self._marks[at].tolist()
        return {
            name: Pin(size, mark, 0) for name, size, mark, here in zip(keys, sizes, marks, there, strict=True) if here
        }


def _looked(store: Store, keys: Sequence[str]) -> list[Pin]:
    """Look at objects together.

    Raises:
        AwayError: the store stays away: an object that was not looked at would never be compared.
    """
    pins = []
    for got in store.read([Get(key, 0, 0) for key in keys]):
        if isinstance(got, AwayError):
            raise anew(got)
        pins.append(pin_of_object(got.facts) if isinstance(got, Got) else NOT_THERE)
    return pins


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode(errors="surrogatepass"))
