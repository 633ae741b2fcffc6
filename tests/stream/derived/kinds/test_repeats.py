"""Whether identities repeat: the verdict of a dict, whatever the hashes, the ranges and what is known already."""

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.derived.derivation import ShardRows
from spiral_stream.derived.kinds import repeats as room
from spiral_stream.derived.kinds.identities import Identities
from spiral_stream.derived.kinds.repeats import Repeats, Run, repeats

ROW = st.tuples(st.integers(-3, 40), st.sampled_from(["", "a", "b", "ab"]))


def runs_of(shards: list[list[Any]], bits: int, known: frozenset[int] = frozenset()) -> list[Run]:
    """Runs of rows of two columns, or of one."""
    runs = []
    for k, rows in enumerate(shards):
        table = pa.table({f"c{j}": list(values) for j, values in enumerate(zip(*rows, strict=True))})
        derivation = Identities(tuple(table.column_names), tuple(table.schema.types), bits)
        piece = derivation.piece(ShardRows(len(rows), np.arange(len(rows), dtype=np.uint64), table))
        rows_at = piece.arrays["rows"]
        runs.append(Run(piece.arrays["hashes"], lambda rows_at=rows_at: rows_at, k in known))
    return runs


class Relation:
    """Rows of shards, which lie in the source in the opposite order of the shards; counts what is fetched."""

    def __init__(self, shards: list[list[Any]]) -> None:
        self.shards = shards
        sizes = [len(rows) for rows in shards]
        self.starts = np.array([sum(sizes[k + 1 :]) for k in range(len(sizes))], np.uint64)
        self.rows = [row for rows in reversed(shards) for row in rows]
        self.fetched = 0

    def place(self, shards: Any, offsets: Any) -> Any:
        return self.starts[shards] + offsets

    def values(self, places: Any) -> list[tuple[Any, ...]]:
        self.fetched += len(places)
        return [self.rows[at] for at in places.tolist()]

    def expected(self) -> Repeats | None:
        where = defaultdict(list)
        for at, row in enumerate(self.rows):
            where[row].append(at)
        groups = [at for at in where.values() if len(at) > 1]
        if not groups:
            return None
        first = min(groups)
        return Repeats(first[0], first[-1], sum(len(at) - 1 for at in groups))


@given(
    shards=st.lists(st.lists(ROW, min_size=1, max_size=25), min_size=1, max_size=5),
    bits=st.sampled_from([64, 64, 4, 1]),
    range_rows=st.sampled_from([1, 3, 1 << 20]),
)
def test_the_verdict_is_that_of_a_dict(shards: list[list[Any]], bits: int, range_rows: int) -> None:
    relation = Relation(shards)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "RANGE_ROWS", range_rows)
        found = repeats(runs_of(shards, bits), relation.place, relation.values)

    assert found == relation.expected()


@given(
    shards=st.lists(st.lists(ROW, min_size=1, max_size=25), min_size=1, max_size=5),
    bits=st.sampled_from([64, 4, 1]),
    range_rows=st.sampled_from([1, 3, 1 << 20]),
    settled=st.integers(1, 8),
)
def test_what_repeats_first_is_exact_however_few_rows_are_settled(
    shards: list[list[Any]], bits: int, range_rows: int, settled: int
) -> None:
    relation = Relation(shards)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "RANGE_ROWS", range_rows)
        patch.setattr(room, "SETTLED", settled)
        found = repeats(runs_of(shards, bits), relation.place, relation.values)
    expected = relation.expected()

    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert (found.first, found.last) == (expected.first, expected.last)
        assert bits < 64 or found.extra == expected.extra


@given(
    rows=st.lists(ROW, min_size=2, max_size=60, unique=True),
    more=st.lists(ROW, min_size=1, max_size=20),
    shards=st.integers(1, 4),
    bits=st.sampled_from([64, 4]),
    range_rows=st.sampled_from([1, 1 << 20]),
)
def test_rows_that_are_known_to_differ_are_compared_with_new_ones_only(
    rows: list[Any], more: list[Any], shards: int, bits: int, range_rows: int
) -> None:
    old = [rows[k::shards] for k in range(shards) if rows[k::shards]]
    relation = Relation([*old, more])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "RANGE_ROWS", range_rows)
        found = repeats(runs_of(relation.shards, bits, frozenset(range(len(old)))), relation.place, relation.values)

    assert found == relation.expected()
    assert repeats(runs_of(old, bits, frozenset(range(len(old)))), relation.place, relation.values) is None


@pytest.mark.parametrize("distinct", [1, 7, 30_000])
def test_many_rows_that_repeat_are_told_without_fetching_them(monkeypatch: pytest.MonkeyPatch, distinct: int) -> None:
    monkeypatch.setattr(room, "RANGE_ROWS", 1000)
    monkeypatch.setattr(room, "SETTLED", 500)
    values = np.random.default_rng(2).integers(0, distinct, 60_000)
    relation = Relation([[(int(value),) for value in part] for part in np.split(values, 6)])
    found = repeats(runs_of(relation.shards, 64), relation.place, relation.values)

    assert found == relation.expected()
    assert relation.fetched < 2_000


def test_a_relation_of_shards_that_are_known_is_not_looked_at() -> None:
    run = Run(np.zeros(2, np.uint64), lambda: np.arange(2), known=True)
    assert repeats([run], lambda _, offsets: offsets, lambda _: []) is None
