import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from spiral_stream.errors import CacheError, PlanError, SpiralWarning
from spiral_stream.expr import Expr, col
from spiral_stream.relational.selection import Selection, whole
from spiral_stream.relational.selection_build import Chunk, build_selection, surviving
from spiral_stream.sources.source import ROW
from tests.fixtures.mutations import COUNTS, mutated_bytes, survives


@st.composite
def _relations(draw: st.DrawFn) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Shards, some empty, with all, none, few, half or most of their rows surviving."""
    sizes = draw(st.lists(st.sampled_from([0, 1, 7, 64, 511, 512, 513, 1500, 3000]), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shares = [draw(st.sampled_from([0.0, 0.002, 0.1, 0.5, 0.99, 1.0])) for _ in sizes]
    kept = np.concatenate([rng.random(size) < share for size, share in zip(sizes, shares, strict=True)])
    return np.cumsum([0, *sizes]).astype(np.uint64), kept


def _chunks(ordinals: NDArray[np.uint64], pieces: int) -> Iterator[Chunk]:
    """The survivors in another order than theirs, with a joined row beside each."""
    for piece in np.array_split(np.random.default_rng(pieces).permutation(ordinals), pieces):
        yield piece, (piece.astype(np.int64) * 3 - 1,)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(relation=_relations(), pieces=st.integers(1, 4))
def test_a_selection_is_flatnonzero_of_what_survives(
    tmp_path_factory: pytest.TempPathFactory, relation: tuple[NDArray[np.uint64], NDArray[np.bool_]], pieces: int
) -> None:
    starts, survives = relation
    expected = np.flatnonzero(survives).astype(np.uint64)
    folder = tmp_path_factory.mktemp("s") / "sel"

    selection = build_selection(folder, starts, _chunks(expected, pieces), rights=1)

    every = np.arange(len(survives), dtype=np.uint64)
    rows = np.random.default_rng(0).permutation(np.arange(len(expected), dtype=np.uint64))
    assert selection.total == len(expected)
    assert selection.counts.tolist() == [int(survives[a:b].sum()) for a, b in itertools.pairwise(starts)]
    np.testing.assert_array_equal(selection.ordinals(rows), expected[rows.astype(np.int64)])
    found, hits = selection.rows(every)
    np.testing.assert_array_equal(hits, survives)
    np.testing.assert_array_equal(found, np.cumsum(survives) - survives)
    np.testing.assert_array_equal(selection.right(0, rows), expected[rows.astype(np.int64)].astype(np.int64) * 3 - 1)
    assert selection.unit_counts(starts).tolist() == selection.counts.tolist()
    assert not list(folder.glob("spool*"))


@settings(deadline=None, derandomize=True, max_examples=20)
@given(relation=_relations())
def test_survivors_of_row_groups_add_up(
    tmp_path_factory: pytest.TempPathFactory, relation: tuple[NDArray[np.uint64], NDArray[np.bool_]]
) -> None:
    starts, survives = relation
    cuts = np.unique(np.concatenate([np.arange(0, len(survives), 100), [0, len(survives)]])).astype(np.uint64)
    ordinals = np.flatnonzero(survives).astype(np.uint64)
    selection = build_selection(tmp_path_factory.mktemp("s") / "sel", starts, [(ordinals, ())])

    pieces = [int(survives[a:b].sum()) for a, b in itertools.pairwise(cuts.tolist())]
    assert selection.unit_counts(cuts).tolist() == pieces


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=5))
def test_an_unfiltered_relation_needs_no_file(sizes: list[int]) -> None:
    starts = np.cumsum([0, *sizes]).astype(np.uint64)
    every = np.arange(int(starts[-1]), dtype=np.uint64)

    selection = whole(starts)

    assert selection.total == len(every)
    assert selection.ordinals(every).tolist() == every.tolist()
    assert selection.rows(every)[1].all()
    assert selection.unit_counts(starts).tolist() == sizes


def test_shards_are_kept_in_their_smallest_form(tmp_path: Path) -> None:
    starts = np.arange(4, dtype=np.uint64) * np.uint64(100_000)
    dense, sparse, full = np.arange(0, 100_000, 2), np.arange(100_000, 200_000, 1000), np.arange(200_000, 300_000)

    build_selection(tmp_path / "s", starts, [(np.concatenate([dense, sparse, full]).astype(np.uint64), ())])

    sizes = {file.name: file.stat().st_size for file in (tmp_path / "s").iterdir()}
    assert sizes["words.npy"] < 100_000 / 8 + 300
    assert sizes["offsets.npy"] == 100 * 4 + 128 + 32  # values, their header, the seal
    assert sum(sizes.values()) < 18_000


def test_a_row_that_survives_twice_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    starts = np.array([0, 10], np.uint64)

    with pytest.raises(PlanError, match=r"1 of 3 rows survive twice\..*\.distinct"):
        build_selection(tmp_path / "s", starts, [(np.array([1, 2, 2], np.uint64), ())])

    assert list(tmp_path.iterdir()) == []


def test_a_row_past_the_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="Register the relation again"):
        build_selection(tmp_path / "s", np.array([0, 10], np.uint64), [(np.array([10], np.uint64), ())])


def test_a_broken_selection_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(
        CacheError, match=r"is missing.*The next stream that opens it sets it aside and builds it again"
    ):
        Selection.open(tmp_path)
    (tmp_path / "selection.json").write_text(json.dumps({"version": 99, "total": 0, "shards": 0}))
    with pytest.raises(CacheError, match="has format 99"):
        Selection.open(tmp_path)


def test_an_unwritable_folder_names_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CacheError, match=r"cannot be written \(File exists\). Give a catalog folder"):
        build_selection(tmp_path / "file" / "s", np.array([0, 1], np.uint64), [])


def test_pickling_passes_the_path(tmp_path: Path) -> None:
    starts = np.array([0, 100_000], np.uint64)
    rows = np.arange(0, 100_000, 3, dtype=np.uint64)
    selection = build_selection(tmp_path / "s", starts, [(rows, ())])

    assert len(pickle.dumps(selection)) < 1_000
    assert pickle.loads(pickle.dumps(selection)).total == len(rows)
    assert pickle.loads(pickle.dumps(whole(starts))).total == 100_000


def test_a_scan_streams_into_a_selection(tmp_path: Path) -> None:
    class Relation:
        def scan(self, columns: list[str], predicate: Expr | None = None) -> Iterator[pa.RecordBatch]:
            assert columns == []
            assert str(predicate) == "x > 1"
            for rows in ([8, 9], [1]):  # physical order
                yield pa.record_batch({ROW: pa.array(rows, pa.uint64())})

    selection = build_selection(tmp_path / "s", np.array([0, 5, 10], np.uint64), surviving(Relation(), col("x") > 1))

    assert selection.ordinals(np.arange(3, dtype=np.uint64)).tolist() == [1, 8, 9]


BUILDER = """
import sys, time
from pathlib import Path
import numpy as np
from spiral_stream.relational.selection_build import build_selection
folder = Path(sys.argv[1])
def chunks():
    print("ready", flush=True)
    sys.stdin.readline()  # both are inside the build before either ends
    yield np.arange(0, 50_000, 7, dtype=np.uint64), ()
selection = build_selection(folder, np.array([0, 50_000], np.uint64), chunks())
print(int(selection.ordinals(np.arange(selection.total, dtype=np.uint64)).sum()), flush=True)
"""


def test_two_builders_at_once_both_get_the_selection(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILDER, str(tmp_path / "s")]
    builders = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for builder in builders:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "ready\n"

    sums = [int(builder.communicate("go\n", timeout=60)[0]) for builder in builders]

    assert sums == [sum(range(0, 50_000, 7))] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def everything(folder: Path) -> tuple[Any, ...]:
    """All that a selection says."""
    found = Selection.open(folder)
    rows = np.arange(found.total, dtype=np.uint64)
    ordinals = found.ordinals(rows)
    return ordinals.tolist(), found.ranks(ordinals).tolist(), found.right(0, rows).tolist(), found.counts.tolist()


@pytest.mark.parametrize("count", COUNTS)
def test_no_mutation_of_a_selection_gives_other_rows(count: int, tmp_path: Path) -> None:
    starts = np.array([0, 5000, 10_000, 10_500, 11_000], np.uint64)
    rows = np.concatenate([np.arange(0, 5000, 3), np.arange(5000, 10_000, 700), np.arange(10_000, 10_500)])
    build_selection(tmp_path / "s", starts, [(rows.astype(np.uint64), (rows // 2,))], 1)
    sound, files = everything(tmp_path / "s"), sorted((tmp_path / "s").iterdir())
    for seed in range(count):
        path = files[seed % len(files)]
        data = path.read_bytes()
        path.write_bytes(mutated_bytes(data, seed))
        survives(lambda: everything(tmp_path / "s"), sound, says=f"{path.name}, seed {seed}")
        path.write_bytes(data)

    assert {path.name for path in files} >= {"words.npy", "offsets.npy", "ranks.npy", "right-000.npy", "selection.json"}


def test_a_damaged_selection_is_built_again_with_a_warning(tmp_path: Path) -> None:
    starts, rows = np.array([0, 100], np.uint64), np.arange(0, 100, 2, dtype=np.uint64)
    first = build_selection(tmp_path / "s", starts, [(rows, ())])
    (tmp_path / "s" / "words.npy").write_bytes(b"nothing")
    with pytest.warns(SpiralWarning, match=r"words\.npy is damaged.*set aside as \.damaged-s, and is built again now"):
        again = build_selection(tmp_path / "s", starts, [(rows, ())])

    assert again.ordinals(np.arange(50, dtype=np.uint64)).tolist() == rows.tolist()
    assert first.total == 50
    assert (tmp_path / ".damaged-s" / "words.npy").read_bytes() == b"nothing"
