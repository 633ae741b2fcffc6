import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.errors import CacheError, PlanError
from spiral_stream.relational.identity_index import IdentityIndex, build_index
from spiral_stream.seeding import identity_hashes
from tests.fixtures.mutations import COUNTS, mutated_bytes, survives

IDENTITIES = st.one_of(
    st.lists(st.text(max_size=6), unique=True, max_size=60),
    st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=60),
    st.lists(st.binary(max_size=6), unique=True, max_size=60),
)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(values=IDENTITIES, stream=st.sampled_from(["", "code"]), bucket_count=st.sampled_from([1, 2, 3, 7, 64, 1000]))
def test_rows_lie_in_hash_order_and_buckets_cut_them(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[str] | list[int] | list[bytes],
    stream: str,
    bucket_count: int,
) -> None:
    rows = np.random.default_rng(len(values)).permutation(len(values)).astype(np.uint64)
    shuffled = [values[row] for row in rows.tolist()]
    half = len(values) // 2
    chunks = [(rows[:half], shuffled[:half]), (rows[half:], pa.array(shuffled[half:]))]

    index = build_index(tmp_path_factory.mktemp("i") / "index", stream, chunks)

    hashes = [(int(high) << 64) | int(low) for high, low in identity_hashes(stream, values)]
    every = np.arange(len(values), dtype=np.uint64)
    assert index.rows(every).tolist() == sorted(range(len(values)), key=hashes.__getitem__)
    assert index.ranks(index.rows(every)).tolist() == every.tolist()
    buckets = [((hash_ >> 64) * bucket_count) >> 64 for hash_ in sorted(hashes)]
    expected = [sum(b < bucket for b in buckets) for bucket in range(bucket_count + 1)]
    assert index.starts(bucket_count).tolist() == expected


@pytest.mark.parametrize("bucket_count", [1, 3, 8192, 10_007, 2**20])
def test_bucket_borders_are_exact(tmp_path: Path, bucket_count: int) -> None:
    index = build_index(tmp_path / "i", "", [(np.arange(1, dtype=np.uint64), ["a"])])
    borders = [-(-(bucket << 64) // bucket_count) for bucket in range(bucket_count)]
    for step in (0, 1):
        index._high = np.maximum(np.array(borders, np.uint64), step) - np.uint64(step)
        starts = index.starts(bucket_count)
        # a word on a border opens its bucket; the word before it still belongs to the bucket before
        assert starts[:-1].tolist() == [min(b + step, bucket_count) if b else 0 for b in range(bucket_count)]
    assert index.total == 1


def test_a_repeated_identity_names_both_rows_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"repeats in rows 1 and 3 .*identity=\[\.\.\.\]"):
        build_index(tmp_path / "i", "", [(np.arange(4, dtype=np.uint64), ["a", "b", "c", "b"])])

    assert list(tmp_path.iterdir()) == []


def test_a_missing_identity_names_its_row(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="identity of row 6 is null"):
        build_index(tmp_path / "i", "", [(np.arange(5, 8, dtype=np.uint64), pa.array(["a", None, "c"]))])


def test_an_index_is_built_once_and_pickles_by_path(tmp_path: Path) -> None:
    chunk = (np.arange(1000, dtype=np.uint64), list(range(1000)))
    first = build_index(tmp_path / "i", "", [chunk])

    again = build_index(tmp_path / "i", "", [])

    assert again.total == 1000
    assert len(pickle.dumps(first)) < 500
    assert pickle.loads(pickle.dumps(first)).starts(8).tolist() == first.starts(8).tolist()


def test_a_broken_index_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(
        CacheError, match=r"is missing.*The next stream that opens it sets it aside and builds it again"
    ):
        IdentityIndex(tmp_path)


def test_bucket_counts_have_limits(tmp_path: Path) -> None:
    index = build_index(tmp_path / "i", "", [])

    assert index.starts(4).tolist() == [0, 0, 0, 0, 0]
    with pytest.raises(PlanError, match="between 1 and"):
        index.starts(0)


@pytest.mark.parametrize("count", COUNTS)
def test_no_mutation_of_an_index_gives_another_order(count: int, tmp_path: Path) -> None:
    def everything() -> tuple[Any, ...]:
        found = IdentityIndex(tmp_path / "i")
        rows = np.arange(found.total, dtype=np.uint64)
        return found.rows(rows).tolist(), found.ranks(rows).tolist(), found.starts(7).tolist()

    build_index(tmp_path / "i", "", [(np.arange(300, dtype=np.uint64), list(range(300)))])
    sound, files = everything(), sorted((tmp_path / "i").iterdir())
    for seed in range(count):
        path = files[seed % len(files)]
        data = path.read_bytes()
        path.write_bytes(mutated_bytes(data, seed))
        survives(everything, sound, says=f"{path.name}, seed {seed}")
        path.write_bytes(data)
