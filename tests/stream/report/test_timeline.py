"""Shares over time: counted from rows of small relations, from shards where they follow time, sampled otherwise."""

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.statistics.skew import spread_of
from spiral_stream.report import timeline as room
from spiral_stream.report.timeline import OTHER, Timeline, timeline

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def made(folder: Path, *, follows: bool, most: int = 7, shards: int = 12, values: int = 3) -> Timeline | None:
    """A relation of 240 rows whose first half is of value a, in time."""
    rows = 240
    catalog = sp.connect(str(folder / "catalog"))
    order = np.arange(rows) if follows else np.random.default_rng(0).permutation(rows)
    names = ["a" if k < rows // 2 else f"v{k % values}" for k in range(rows)]
    table = pa.table(
        {
            "sample_id": list(range(rows)),
            "label": pa.array([names[k] for k in order]).dictionary_encode(),
            "at": pa.array([START + dt.timedelta(hours=int(k)) for k in order], pa.timestamp("us", "UTC")),
            "storage_shard": [f"s{k * shards // rows:02d}" for k in range(rows)],
        }
    )
    catalog.register("t", sp.Arrow(table))
    statistics = catalog.measure("t")
    spread = spread_of(statistics, "label")
    assert spread is not None
    with OpenRelation(catalog.entry("t")) as relation:
        return timeline(relation, statistics, spread, "label", "at", most)


def test_rows_of_a_small_relation_are_all_counted(tmp_path: Path) -> None:
    found = made(tmp_path, follows=True)

    assert found is not None
    assert (found.by, found.values[0]) == ("all 240 rows", "a")
    assert found.rows.sum() == 240
    half = len(found.rows) // 2
    assert found.rows[:half, 0].sum() == found.rows[:half].sum()
    assert found.drift is not None
    assert found.drift.explained > 0.5


def test_shards_that_follow_time_are_counted_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_ROWS", 100)
    monkeypatch.setattr(OpenRelation, "fetch", None)
    found = made(tmp_path, follows=True)

    assert found is not None
    assert "by the middle of each shard's time, 12 shards" in found.by
    assert found.rows.sum() == 240
    assert found.rows[0, 0] == found.rows[0].sum()


def test_rows_of_shards_that_span_all_time_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_ROWS", 120)
    found = made(tmp_path, follows=False)

    assert found is not None
    assert found.by.startswith("~ ")
    assert 90 <= found.rows.sum() <= 120


def test_rare_values_are_counted_together(tmp_path: Path) -> None:
    found = made(tmp_path, follows=True, most=2, values=9)

    assert found is not None
    assert found.values[-1] == OTHER
    assert len(found.values) == 3
