"""Rows by number and numbers by row: `Selection` against plain NumPy, over drawn shards in every form."""

import itertools
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from spiral_stream.derived.derivation import Derivation, Piece, ShardRows
from spiral_stream.derived.kinds.selected_rows import SLOTS, SUMMARY, encoded
from spiral_stream.errors import CacheError, DamageError, SpiralWarning
from spiral_stream.relational import _select, selection
from spiral_stream.relational.selection import Selection, all_rows
from tests.fixtures.mutations import mutated_bytes
from tests.fixtures.shards import Rows, made

UInt64 = NDArray[np.uint64]
INT32 = np.dtype("<i4")


class Kept(Derivation):
    """Rows by a column of truth, each with a matching row of a joined relation: thrice its number, less one."""

    KIND = "kept"
    SUMMARY = SUMMARY
    columns = ("kept", "id")
    slots = {**SLOTS, "right0": INT32}  # noqa: RUF012

    def facts(self) -> dict[str, object]:
        return {}

    def piece(self, shard: ShardRows) -> Piece:
        survive = np.flatnonzero(shard.table["kept"].to_numpy())
        arrays, summary = encoded(survive.astype(np.uint64), shard.rows)
        right = shard.table["id"].to_numpy()[survive].astype(np.int32) * 3 - 1
        return Piece({**arrays, "right0": right}, summary)


def rows_of(starts: UInt64, survives: NDArray[np.bool_]) -> Rows:
    number = np.arange(len(survives))
    spans = itertools.pairwise(starts.astype(int).tolist())
    return Rows([pa.table({"kept": survives[a:b], "id": number[a:b]}) for a, b in spans])


def opened(folder: Path, starts: UInt64, survives: NDArray[np.bool_]) -> Selection:
    source = rows_of(starts, survives)
    return Selection(starts, made(source, Kept(), folder), [INT32], lambda: made(source, Kept(), folder))


@st.composite
def _relations(draw: st.DrawFn) -> tuple[UInt64, NDArray[np.bool_]]:
    """Shards with all, none, few, half or most of their rows surviving, spread evenly or not."""
    sizes = draw(st.lists(st.sampled_from([1, 7, 64, 511, 512, 513, 1500, 3000, 9000]), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kept = []
    for size in sizes:
        share, power = draw(st.sampled_from([0.0, 0.002, 0.1, 0.5, 0.99, 1.0])), draw(st.sampled_from([1, 8]))
        kept.append(rng.random(size) ** power < share * (1 if power == 1 else np.linspace(0, 1, size)))
    return np.cumsum([0, *sizes]).astype(np.uint64), np.concatenate(kept)


@settings(deadline=None, max_examples=60)
@given(relation=_relations(), large=st.booleans())
def test_a_selection_is_flatnonzero_of_what_survives(
    tmp_path_factory: pytest.TempPathFactory, relation: tuple[UInt64, NDArray[np.bool_]], large: bool
) -> None:
    starts, survives = relation
    expected = np.flatnonzero(survives).astype(np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "LARGE", 0 if large else 1 << 22)  # words verified by row, or as a whole

        found = opened(tmp_path_factory.mktemp("s"), starts, survives)

        every = np.arange(len(survives) + 1, dtype=np.uint64)
        rows = np.random.default_rng(0).permutation(np.arange(len(expected), dtype=np.uint64))
        assert found.total == len(expected)
        assert found.counts.tolist() == [int(survives[a:b].sum()) for a, b in itertools.pairwise(starts)]
        np.testing.assert_array_equal(found.ordinals(rows), expected[rows.astype(np.int64)])
        ranks, hits = found.rows(every)
        np.testing.assert_array_equal(hits, np.append(survives, False))
        np.testing.assert_array_equal(ranks, np.cumsum([0, *survives]))
        np.testing.assert_array_equal(found.right(0, rows), expected[rows.astype(np.int64)].astype(np.int64) * 3 - 1)
        assert found.unit_counts(starts).tolist() == found.counts.tolist()


@settings(deadline=None, max_examples=20)
@given(relation=_relations())
def test_survivors_of_row_groups_add_up(
    tmp_path_factory: pytest.TempPathFactory, relation: tuple[UInt64, NDArray[np.bool_]]
) -> None:
    starts, survives = relation
    cuts = np.unique(np.concatenate([np.arange(0, len(survives), 100), [0, len(survives)]])).astype(np.uint64)

    found = opened(tmp_path_factory.mktemp("s"), starts, survives)

    pieces = [int(survives[a:b].sum()) for a, b in itertools.pairwise(cuts.tolist())]
    assert found.unit_counts(cuts).tolist() == pieces


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=5))
def test_an_unfiltered_relation_needs_no_piece(sizes: list[int]) -> None:
    starts = np.cumsum([0, *sizes]).astype(np.uint64)
    every = np.arange(int(starts[-1]), dtype=np.uint64)

    selection = all_rows(starts)

    assert selection.total == len(every)
    assert selection.ordinals(every).tolist() == every.tolist()
    assert selection.rows(every)[1].all()
    assert selection.unit_counts(starts).tolist() == sizes


def test_shards_are_mapped_when_a_row_of_them_is_asked_for(tmp_path: Path) -> None:
    starts = np.array([0, 1000, 2000], np.uint64)
    found = opened(tmp_path, starts, np.arange(2000) % 3 == 0)
    (damaged,) = tmp_path.rglob("*.piece")
    damaged.unlink()

    assert found.total == 667  # the roster says it
    with pytest.warns(SpiralWarning, match=r"is damaged: .*What the file held is made again now"):
        assert found.ordinals(np.array([666], np.uint64)).tolist() == [1998]


def test_a_row_beyond_the_last_is_refused(tmp_path: Path) -> None:
    found = opened(tmp_path, np.array([0, 100], np.uint64), np.arange(100) % 2 == 0)

    with pytest.raises(ValueError, match="a row beyond the last shard"):
        found.ordinals(np.array([50], np.uint64))


def test_pieces_of_shards_of_another_size_are_refused(tmp_path: Path) -> None:
    starts = np.array([0, 100], np.uint64)
    pieces = made(rows_of(starts, np.arange(100) % 2 == 0), Kept(), tmp_path)

    with pytest.raises(CacheError, match="Register the relation again"):
        Selection(np.array([0, 101], np.uint64), pieces)


def test_threads_that_read_at_once_read_the_same(tmp_path: Path) -> None:
    starts = np.arange(0, 100_001, 1000, dtype=np.uint64)
    survives = np.random.default_rng(1).random(100_000) < 0.4
    found, expected = opened(tmp_path, starts, survives), np.flatnonzero(survives)
    wrong: list[int] = []

    def read(seed: int) -> None:
        for k in range(50):
            rows = np.random.default_rng(seed * 100 + k).integers(0, found.total, 64)
            wrong.extend((found.ordinals(rows.astype(np.uint64)) != expected[rows]).nonzero()[0].tolist())

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert wrong == []


def everything(found: Selection) -> tuple[Any, ...]:
    """All that a selection says."""
    rows = np.arange(found.total, dtype=np.uint64)
    ordinals = found.ordinals(rows)
    return ordinals.tolist(), found.ranks(ordinals).tolist(), found.right(0, rows).tolist(), found.counts.tolist()


@pytest.mark.parametrize("count", [60, pytest.param(5_000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
def test_no_mutation_of_a_piece_gives_other_rows(count: int, tmp_path: Path) -> None:
    starts, survives = np.array([0, 5000, 10_000, 10_500, 11_000], np.uint64), np.zeros(11_000, np.bool_)
    survives[:5000:3] = survives[5000:10_000:700] = survives[10_000:10_500] = True
    sound = everything(opened(tmp_path, starts, survives))
    for seed in range(count):
        files = sorted(path for path in tmp_path.rglob("*") if path.suffix in {".piece", ".sums", ".arrow"})
        path = files[seed % len(files)]
        path.write_bytes(mutated_bytes(path.read_bytes(), seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpiralWarning)
            found = opened(tmp_path, starts, survives)
            assert everything(found) == sound, f"{path.name}, seed {seed}"


def test_damage_is_an_error_where_nobody_can_mend_it(tmp_path: Path) -> None:
    starts = np.array([0, 100], np.uint64)
    pieces = made(rows_of(starts, np.arange(100) % 2 == 0), Kept(), tmp_path)
    (piece,) = tmp_path.rglob("*.piece")
    piece.write_bytes(piece.read_bytes()[:-1])

    with pytest.raises(DamageError, match="The next stream that opens it sets it aside and builds it again"):
        Selection(starts, pieces).ordinals(np.array([0], np.uint64))


def test_native_code_refuses_arrays_of_unequal_length() -> None:
    one, two = np.zeros(1, np.uint64), np.zeros(2, np.uint64)
    table = np.zeros((1, 4), np.uint64)

    with pytest.raises(ValueError, match="unequal length"):
        _select.select(two, two, table, two, one, two)
    with pytest.raises(ValueError, match="unequal length"):
        _select.select(two, one, table, one, one, one)
    with pytest.raises(ValueError, match="a shard beyond the last"):
        _select.enter(table, np.ones(1, np.uint64), one, one, one)
