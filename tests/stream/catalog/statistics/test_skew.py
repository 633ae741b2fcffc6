import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spiral_stream.catalog.statistics.measure import HISTOGRAMS, SHARDS
from spiral_stream.catalog.statistics.merge import Histograms
from spiral_stream.catalog.statistics.skew import distances, skew_of
from spiral_stream.results import Statistics


@given(counts_SL=hnp.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.integers(0, 50)))
def test_distances_are_those_of_the_dense_histogram(counts_SL: np.ndarray) -> None:
    counts_SL[:, 0] += 1  # no empty shard
    counts_SL = counts_SL[:, counts_SL.sum(axis=0) > 0]
    shards, labels = np.nonzero(counts_SL)
    distance, effective, whole = distances(shards, labels, counts_SL[shards, labels])
    share_SL = counts_SL / counts_SL.sum(axis=1, keepdims=True)
    mean_L = counts_SL.sum(axis=0) / counts_SL.sum()

    np.testing.assert_allclose(distance, 0.5 * np.abs(share_SL - mean_L).sum(axis=1), atol=1e-9)
    assert ((distance >= 0) & (distance < 1)).all()
    assert ((effective >= 1 - 1e-9) & (effective <= counts_SL.shape[1] + 1e-9)).all()
    assert 1 - 1e-9 <= whole <= counts_SL.shape[1] + 1e-9


def statistics(rows: list[tuple[str, str | None, int]]) -> Statistics:
    table = pa.Table.from_pylist(
        [{"shard": s, "column": "label", "value": v, "count": c} for s, v, c in rows], schema=HISTOGRAMS
    )
    return Statistics(SHARDS.empty_table(), Histograms(known=table), {"label": "known"})


def test_shards_of_one_class_are_far_and_mixed_shards_near() -> None:
    skew = skew_of(statistics([("p0", "a", 10), ("p1", "b", 10), ("p2", "a", 5), ("p2", "b", 5)]), "label")

    assert skew is not None
    assert skew.distance.tolist() == [0.5, 0.5, 0.0]
    assert skew.worst(2) == [("p0", 0.5), ("p1", 0.5)]
    assert skew.mean == pytest.approx(1 / 3)
    assert skew.p95 == 0.5
    assert skew.effective.tolist() == pytest.approx([1, 1, 2])
    assert skew.effective_global == pytest.approx(2)


def test_null_is_a_label_of_its_own() -> None:
    skew = skew_of(statistics([("p0", None, 4), ("p1", "a", 4)]), "label")

    assert skew is not None
    assert skew.distance.tolist() == [0.5, 0.5]


def test_a_column_without_histogram_has_no_skew() -> None:
    assert skew_of(statistics([("p0", "a", 1)]), "other") is None
