"""A cache is looked up shard by shard, and each row is found where it lies."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.runtime.fields.images import stored_rows

STARTS = np.array([0, 10, 10, 25])  # the second shard is empty
KEYS = ["a", "b", "c", "d"]
TOTAL = 30


class Shard:
    """A cached shard that holds some offsets, in an order of its own."""

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = offsets

    def find(self, wanted: Any) -> Any:
        return np.array([self.offsets.index(each) if each in self.offsets else -1 for each in wanted.tolist()])


def relation() -> Any:
    def shard_of(ordinals: Any) -> Any:
        return np.searchsorted(STARTS, ordinals, side="right") - 1

    return SimpleNamespace(manifest=SimpleNamespace(shard_of=shard_of, content_keys=pa.array(KEYS), starts=STARTS))


@given(
    held=st.lists(st.integers(0, TOTAL - 1), unique=True),
    built=st.sets(st.sampled_from(KEYS)),
    asked=st.lists(st.integers(0, TOTAL - 1), max_size=20),
)
def test_each_stored_row_is_found_once_where_it_lies(held: list[int], built: set[str], asked: list[int]) -> None:
    of = relation().manifest.shard_of
    shards = {key: Shard([row - int(STARTS[k]) for row in held if of(row) == k]) for k, key in enumerate(KEYS)}
    cache: Any = SimpleNamespace(shard=lambda key: shards[key] if key in built else None)
    ordinals = np.array(asked, dtype=np.int64)

    found: dict[int, int] = {}
    for places, shard, at in stored_rows(relation(), cache, ordinals):  # type: ignore[arg-type]
        for place, where in zip(places.tolist(), at.tolist(), strict=True):
            assert place not in found
            found[place] = shard.offsets[where] + int(STARTS[of(asked[place])])  # type: ignore[attr-defined]

    assert found == {i: row for i, row in enumerate(asked) if row in held and KEYS[of(row)] in built}


def test_without_a_cache_nothing_is_stored() -> None:
    assert list(stored_rows(relation(), None, np.array([1, 2], dtype=np.uint64))) == []
