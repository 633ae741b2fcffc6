"""What stands out of a run, and its card: in a terminal, as pages, by the command; with pictures, texts and tokens."""

import io
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from rich.console import Console

import spiral_stream as spiral

ROWS, BATCH = 1_920, 32
BAD = range(1_280, 1_300)  # rows of shard 40
SINGLE = 77


def jpeg(shade: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (shade % 256, 90, 200)).save(out, "JPEG")
    return out.getvalue()


def rows(shades: int = 1) -> pa.Table:
    numbers = np.random.default_rng(0)
    return pa.table(
        {
            "id": [f"r{k}" for k in range(ROWS)],
            "image": [jpeg(shades * k) for k in range(ROWS)],
            "label": [k % 7 for k in range(ROWS)],
            "text": ["a red fox and two owls " * 4] * ROWS,
            "tokens": [[k, k + 1, k + 2] for k in range(ROWS)],
            "file": [f"part-{k // BATCH:02}" for k in range(ROWS)],
            "embedding": pa.FixedSizeListArray.from_arrays(
                pa.array(numbers.normal(size=ROWS * 3).astype(np.float32)), 3
            ),
        }
    )


@dataclass(frozen=True)
class Logged:
    catalog: Any
    run: Any
    folder: Path


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """Two epochs whose losses fall; one shard is 5 higher in the first, one row always."""
    folder = tmp_path_factory.mktemp("run")
    catalog = spiral.connect(str(folder / "catalog"))
    catalog.register("rows", spiral.Arrow(rows()), identity="id", shard="file", semantic={"image": "image/jpeg-ref"})
    plan = (
        catalog.table("rows")
        .sample(order=spiral.orders.Sequential())
        .collate(batch_size=BATCH, fields={"id": spiral.List("id"), "label": spiral.Stack("label")})
    )
    numbers, step = np.random.default_rng(1), 0
    with plan.to_numpy() as stream:
        run = catalog.run("first", stream)
        for epoch in range(2):
            for batch in stream:
                row = np.array([int(each[1:]) for each in batch["id"]])
                losses = numbers.exponential(0.2, len(row)) + 2.0 / (1 + step / 8) + 9.0 * (row == SINGLE)
                run.log(batch=batch, loss=losses + 5.0 * (np.isin(row, BAD) & (epoch == 0)))
                step += 1
        run.close()
    return Logged(catalog, run, folder)


def test_a_page_shows_who_carries_a_spike_and_the_rows(logged: Logged) -> None:
    report = spiral.report.report_spikes(logged.catalog, logged.run)

    page = report.html()

    (spike,) = [each for each in report.spikes if each.filters and "part-40" in each.filters[0].text]
    assert spike.text("loss") in page.replace("&#x27;", "'")
    assert "col(&#x27;storage_shard&#x27;) != &#x27;part-40&#x27;" in page
    assert page.count("data:image/") > 12
    assert "a red fox and two owls" in page
    assert "<script" not in page
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_a_terminal_shows_the_curve_and_marks_the_spikes(logged: Logged) -> None:
    report = spiral.report.report_spikes(logged.catalog, logged.run)
    console = Console(width=140, record=True, file=io.StringIO())

    console.print(report)

    text = console.export_text()
    assert "█" in text
    assert "^" in text
    assert "shard part-40 carries" in text
    assert "part-40" in str(report)
    assert "sample r77" not in text
    assert "r77" in text


def test_the_picture_marks_the_spikes(logged: Logged) -> None:
    drawn = spiral.report.report_spikes(logged.catalog, logged.run).picture("png")

    assert drawn.data[1:4] == b"PNG"


def test_rows_like_the_first_ones_are_shown(logged: Logged) -> None:
    pytest.importorskip("lancedb")
    relation = logged.catalog.table("rows")
    relation.index("embedding")

    report = spiral.report.report_spikes(logged.catalog, logged.run, like="embedding")

    nearest = relation.nearest(f"r{SINGLE}", count=8)["id"].to_pylist()
    assert [tile.title for tile in report.like_sheets[-1].tiles] == nearest
    assert f"like r{SINGLE}, by embedding" in report.html()


def test_a_column_without_an_index_says_how_to_make_one(logged: Logged) -> None:
    pytest.importorskip("lancedb")
    with pytest.raises(spiral.SpiralError, match=r'Make one: catalog.table\("rows"\).index\("label"\)'):
        spiral.report.report_spikes(logged.catalog, logged.run, like="label")


def test_each_figure_of_a_card_is_what_its_query_gives(logged: Logged) -> None:
    card = spiral.report.run_card(logged.catalog, logged.run)

    assert len(card.figures) == 4
    for figure in card.figures:
        again = logged.catalog.sql(figure.query).to_arrow()
        assert again.column_names == figure.table.column_names
        for name in again.column_names:
            assert again[name].to_pylist() == pytest.approx(figure.table[name].to_pylist())
        assert figure.query in card.markdown()
    first = card.figures[0].table.to_pylist()[0]
    assert (first["records"], first["steps"], first["epochs"]) == (2 * ROWS, 2 * ROWS // BATCH, 2)
    assert card.figures[1].table["passes"].to_pylist() == [2.0]


def test_a_card_says_where_the_run_came_from(logged: Logged) -> None:
    card = spiral.report.run_card(logged.catalog, logged.run)

    facts = dict(card.facts)
    assert facts["data version of rows"] == logged.catalog.entry("rows").data_version
    assert facts["attempts"] == logged.run.attempts()[0].name
    assert "## Spikes" in card.markdown()
    assert "<table" in card.html()


def test_a_card_without_the_value_has_no_spikes(logged: Logged) -> None:
    assert spiral.report.run_card(logged.catalog, logged.run, "accuracy").spikes is None


@pytest.mark.parametrize("name", ["card.html", "card.md"])
def test_a_card_is_saved_as_its_name_says(logged: Logged, tmp_path: Path, name: str) -> None:
    card = spiral.report.run_card(logged.catalog, logged.run)

    text = card.save(tmp_path / name).read_text()

    assert text == (card.html() if name.endswith("html") else card.markdown())


def test_another_ending_of_a_card_names_the_way_out(logged: Logged, tmp_path: Path) -> None:
    with pytest.raises(spiral.SpiralError, match=r"Give one that ends with \.html or \.md"):
        spiral.report.run_card(logged.catalog, logged.run).save(tmp_path / "card.pdf")


def typed(logged: Logged, *words: str) -> str:
    command = [sys.executable, "-m", "spiral_stream", *words, "--catalog", str(logged.folder / "catalog")]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.e2e
def test_the_commands_print_and_write(logged: Logged, tmp_path: Path) -> None:
    page, card = tmp_path / "spikes.html", tmp_path / "card.md"

    spiked = typed(logged, "spike", "first", "--html", str(page))
    printed = typed(logged, "card", "first")
    typed(logged, "card", "first", "--out", str(card))

    assert "shard part-40 carries" in spiked
    assert page.read_text().startswith("<!doctype html>")
    assert printed.startswith("# Run first")
    assert card.read_text().startswith("# Run first")


def test_rows_that_were_registered_again_are_not_shown_as_if_they_were_the_same(logged: Logged) -> None:
    catalog, kinds = logged.catalog, {"semantic": {"image": "image/jpeg-ref"}, "identity": "id", "shard": "file"}
    catalog.register("rows", spiral.Arrow(rows().slice(1)), **kinds, replace=True)
    try:
        report = spiral.report.report_spikes(catalog, catalog.run("first"))
    finally:
        catalog.register("rows", spiral.Arrow(rows()), **kinds, replace=True)

    assert report.outlier_sheet is not None
    assert ("gone", "rows has other rows since the run read it") in report.outlier_sheet.tiles[0].labels
    assert report.outlier_sheet.tiles[0].strips == []
    assert report.spikes[0].shards["name"][0].as_py() == "part-40"  # as the run read it
