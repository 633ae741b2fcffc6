"""The report of a relation: what it guesses and is told, one page of it, and what it says of a stream's blocks."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from tests.fixtures.streams import plan

SHARDS, ROWS = 6, 40


def registered(folder: Path, *, one_class: bool, name: str = "my.rows") -> sp.Catalog:
    rng = np.random.default_rng(0)
    rows = SHARDS * ROWS
    shard = np.arange(rows) // ROWS
    catalog = sp.connect(str(folder / "catalog"))
    table = pa.table(
        {
            "sample_id": [f"id{k}" for k in range(rows)],
            "class_name": [f"<class {k}>" for k in (shard if one_class else rng.integers(0, 3, rows))],
            "language": rng.choice(["en", "de"], rows),
            "source_uri": [f"x{k}" for k in range(rows)],
            "score": rng.normal(size=rows),
            "storage_shard": [f"s{k}" for k in shard],
        }
    )
    catalog.register(name, sp.Arrow(table))
    return catalog


def test_labels_and_origins_are_guessed_by_name_and_others_are_named(tmp_path: Path) -> None:
    catalog = registered(tmp_path, one_class=False)
    catalog.measure("my.rows")

    guessed = sp.report.report_relation(catalog, "my.rows")
    named = sp.report.report_relation(catalog, "my.rows", labels=["language"], origins=["score"])

    assert [each.column for each in guessed.skews] == ["class_name", "language"]
    assert [each.column for each in named.skews] == ["language"]
    assert named.notes == ("score has no histogram: it is no text or integer column of at most 10,000 values",)
    with pytest.raises(sp.errors.CatalogError, match="class_name"):
        sp.report.report_relation(catalog, "my.rows", labels=["clas_name"])


def test_a_shard_per_class_is_told_from_skewed_data(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    folders, mixed = registered(tmp_path, one_class=True), registered(tmp_path / "other", one_class=False)
    skews = []
    for catalog in (folders, mixed):
        catalog.measure("my.rows")
        skews.append(sp.report.report_relation(catalog, "my.rows", labels=["class_name"]).skews[0])

    apart, alike = skews
    assert apart.is_one_value_per_shard
    assert "one folder per class" in apart.advice()
    assert f"shuffle_block_size of {SHARDS * ROWS} rows" in apart.advice()
    assert alike.is_mixed
    assert "any order" in alike.advice()


def test_the_page_holds_everything_and_refers_to_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    catalog = registered(tmp_path, one_class=True)
    catalog.measure("my.rows")
    report = sp.report.report_relation(catalog, "my.rows")
    file = report.save()
    page = file.read_text()

    assert file == catalog.root / "reports" / "my.rows.html"
    assert "&lt;class 0&gt;" in page
    assert "<class 0>" not in page
    assert page.count("data:image/svg+xml;base64,") == 4 * len(report.skews)
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert all(shard in page for shard in ("s0", "s5"))
    assert list(file.parent.glob(".*")) == []
    first, again = report.pictures(), report.pictures()
    assert all(one is other for one, other in zip(first, again, strict=True))  # drawn once


def test_of_one_shard_only_what_moves_with_time_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    catalog = sp.connect(str(tmp_path / "catalog"))
    days = np.arange("2026-01-01", "2026-01-31", dtype="datetime64[D]")
    rows = {"sample_id": range(30), "label": [k % 3 for k in range(30)], "taken_at": days}
    catalog.register("one.file", sp.Arrow(pa.table(rows)))
    catalog.measure("one.file")

    timed = sp.report.report_relation(catalog, "one.file", labels=["label"], along="taken_at")
    alone = sp.report.report_relation(catalog, "one.file", labels=["label"], along="")

    assert timed.shards == 1
    assert [each.name for each in timed.pictures()] == ["label_over_taken_at"]
    assert alone.pictures() == []
    assert "Skew of label" in alone.html()


def test_what_is_not_measured_says_so_and_has_a_page_all_the_same(tmp_path: Path) -> None:
    catalog = registered(tmp_path, one_class=False)
    report = sp.report.report_relation(catalog, "my.rows")

    assert not report.is_measured
    assert report.skews == ()
    assert "nothing is counted yet" in report.html()


def test_the_blocks_are_those_of_the_stream(own: sp.Catalog) -> None:
    own.measure("lance")
    with plan(own.table("lance")).to_numpy() as stream, plan(own.table("parquet")).to_numpy() as other:
        (label,) = sp.report.report_relation(own, "lance", labels=["label_id"], origins=(), stream=stream).skews
        with pytest.raises(sp.errors.CatalogError, match="Name a stream of this relation"):
            sp.report.report_relation(own, "lance", stream=other)

    assert label.used_by == "of the stream"
    assert [each.block_rows for each in label.blocks if each.chosen] == [50]


def test_an_order_that_ignores_storage_has_no_picture_of_blocks(own: sp.Catalog) -> None:
    own.measure("lance")
    with plan(own.table("lance"), order=sp.GlobalShuffle(seed=0)).to_numpy() as stream:
        report = sp.report.report_relation(own, "lance", labels=["label_id"], origins=(), stream=stream)

    assert report.skews[0].blocks == ()
    assert "GlobalShuffle" in report.notes[0]


def test_the_snippet_opens_the_relation(tmp_path: Path) -> None:
    catalog = registered(tmp_path, one_class=False)
    scope: dict[str, sp.Relation] = {}
    exec(sp.report.report_relation(catalog, "my.rows", pictures=0).snippet, scope)

    assert len(scope["rows"].to_arrow()) == SHARDS * ROWS
