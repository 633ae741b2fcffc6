"""A selection is built of survivors in any order, in bounded memory, and appears whole or not at all.

That it then is `flatnonzero` of what survives is in `test_selection`.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.errors import CacheError, PlanError
from spiral_stream.expr import Expr, col
from spiral_stream.relational import selection_build
from spiral_stream.relational.selection_build import build_selection, surviving
from spiral_stream.sources.source import ROW


@settings(max_examples=12)
@given(
    rows=st.sets(st.integers(0, 1_199)),
    pieces=st.integers(1, 4),
    joined=st.integers(0, 2),
    far=st.booleans(),
    seed=st.integers(0, 9),
)
def test_the_files_are_the_same_whatever_order_survivors_come_in(
    rows: set[int], pieces: int, joined: int, far: bool, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, starts = tmp_path_factory.mktemp("s"), np.array([0, 5, 605, 605, 1_200], np.uint64)
    sorted_rows = np.array(sorted(rows), np.uint64)
    mixed = np.random.default_rng(seed).permutation(sorted_rows)
    shift = 2**31 if far else 0

    def chunks(ordinals: np.ndarray, count: int) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        for piece in np.array_split(ordinals, count):
            yield piece, [piece.astype(np.int64) * (k + 2) + shift for k in range(joined)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection_build, "_CHUNK", 100)
        one = build_selection(folder / "one", starts, chunks(sorted_rows, 1), joined)
        build_selection(folder / "two", starts, chunks(mixed, pieces), joined)

    held = [{path.name: path.read_bytes() for path in (folder / name).iterdir()} for name in ("one", "two")]
    assert {name for name in held[0] if held[0][name] != held[1][name]} == set()
    assert set(held[0]) == set(held[1])
    every = np.arange(len(rows), dtype=np.uint64)
    for k in range(joined):
        assert one.right(k, every).tolist() == [row * (k + 2) + shift for row in sorted(rows)]


def test_a_selection_that_is_there_is_opened_and_not_built(tmp_path: Path) -> None:
    starts = np.array([0, 10], np.uint64)
    first = build_selection(tmp_path / "s", starts, [(np.array([1, 5], np.uint64), ())])

    def none() -> Iterator[tuple[np.ndarray, tuple[()]]]:
        raise AssertionError
        yield

    assert build_selection(tmp_path / "s", starts, none()).ordinals(np.arange(2, dtype=np.uint64)).tolist() == [1, 5]
    assert first.total == 2


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


def test_an_unwritable_folder_names_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CacheError, match=r"cannot be written \(File exists\). Give a catalog folder"):
        build_selection(tmp_path / "file" / "s", np.array([0, 1], np.uint64), [])


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
