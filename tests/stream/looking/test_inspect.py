"""What a stream shows of itself, and that looking changes nothing."""

import re
import time
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import spiral_stream as sp
from spiral_stream.commands.cli import app
from spiral_stream.testing import same
from tests.fixtures import texts
from tests.fixtures.streams import plan
from tests.stream.explain.words import in_words


def sheet_text(stream: Any, **options: Any) -> str:
    return str(stream.show(3, **options))


def test_a_stream_prints_its_plan_fields_and_place(catalog: sp.Catalog) -> None:
    with plan(catalog.table("lance")).to_numpy() as stream:
        before = repr(stream)
        next(iter(stream))
        after = str(stream)
        stream.skip(batches=[2, 1])
        skipping = str(stream)

    assert "(2) Sample identity sample_id" in before
    assert "image: uint8 [B, 3, 16, 16]" in before
    assert "not open yet" in before
    assert "epoch 0 before step 0" in before
    assert "length: 15 steps per epoch on rank 0 of 1" in after
    assert "epoch 0 before step 1 (global batch 1)" in after
    assert "epoch 0 before step 1 (global batch 3)" in skipping
    assert repr(stream) == "<PreparedStream: closed>"


def test_relations_and_catalogs_print_what_they_hold(catalog: sp.Catalog) -> None:
    shown = repr(catalog.table("lance").filter(sp.col("label_id") > 1))

    assert "(2) Filter" in shown
    assert "label_id: int64" in shown
    assert f"<Catalog in {catalog.root}: 3 relations" in repr(catalog)
    collated = plan(catalog.table("lance"))
    assert "(3) Collate" in repr(collated)


def test_a_sheet_shows_the_next_samples_and_disturbs_nothing(catalog: sp.Catalog, tmp_path: Path) -> None:
    with plan(catalog.table("lance")).to_numpy() as stream, plan(catalog.table("lance")).to_numpy() as other:
        reading, undisturbed = iter(stream), iter(other)
        next(reading), next(undisturbed)
        state = stream.state_dict()
        sheet = stream.show(20, path=tmp_path / "sheet.png")

        assert stream.state_dict() == state
        assert all(same(a, b) for a, b in zip(reading, undisturbed, strict=True))
        assert stream.metrics()["batches"] == other.metrics()["batches"]
        assert sheet.tiles[0].labels[1] == ("id", stream.ledger(1, 0)[0])
        assert len(sheet.tiles) == 20
    assert (tmp_path / "sheet.png").read_bytes()[:4] == b"\x89PNG"
    assert sheet._repr_html_().count("<img") == 20
    with Console(record=True, width=100, file=StringIO()) as console:
        console.print(sheet)
    assert "▀" in console.export_text()


def test_normalized_pixels_are_shown_as_they_were(catalog: sp.Catalog) -> None:
    fixed = (sp.transforms.Resize(20), sp.transforms.CenterCrop(16))
    normal = sp.Normalize(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    sheets = []
    for steps, dtype in ((fixed, "uint8"), ((*fixed, normal), "float32")):
        image = sp.Stack("image_ref", decode="jpeg", transforms=steps, dtype=dtype)
        sampled = catalog.table("lance").sample(order=sp.Sequential())
        with sampled.collate(batch_size=4, fields={"image": image}).to_numpy() as stream:
            sheets.append(stream.show(4))

    for plain, normalized in zip(*(sheet.tiles for sheet in sheets), strict=True):
        assert np.abs(plain.strips[0][1][0].astype(int) - normalized.strips[0][1][0]).max() <= 1


def test_packed_tokens_are_decoded_one_document_at_a_time(tmp_path: Path) -> None:
    catalog = texts.make_catalog(tmp_path, {"docs": 30})
    sampled = catalog.table("docs").sample(order=sp.Sequential()).map(sp.Tokenize("text", tokenizer="words") >> "tok")
    packed = sampled.collate(
        batch_size=2, formation=sp.batching.Packed(max_tokens=64, window_size=30), fields={"ids": sp.Pad("tok")}
    )
    known = set(catalog.table("docs").to_arrow()["text"].to_pylist())
    with packed.to_numpy() as stream:
        (_, documents), *_ = stream.show(1).tiles[0].texts
        by_hand = stream.show(1, tokenizer=texts.tokenizer()).tiles[0].texts[0][1]

    assert len(documents) > 1
    assert {each.text for each in documents} <= known
    assert documents == by_hand


@pytest.mark.parametrize(("options", "message"), [({"count": 0}, "from 1 up"), ({"path": "a.gif"}, "ends with .png")])
def test_a_sheet_that_cannot_be_says_what_would_be_right(
    catalog: sp.Catalog, options: dict[str, Any], message: str
) -> None:
    with plan(catalog.table("lance")).to_numpy() as stream, pytest.raises(sp.errors.PlanError, match=message):
        stream.show(**options)


def test_arrow_batches_are_the_batches_and_views_of_their_memory(catalog: sp.Catalog) -> None:
    with plan(catalog.table("lance")).to_numpy() as stream:
        wanted = list(stream)
    with plan(catalog.table("lance")).to_numpy() as stream:
        found = list(stream.to_batches())
        assert stream.epoch == 1
        counted = duckdb.from_arrow(stream.to_reader()).aggregate("count(*), count(distinct id)").fetchall()
        stream.set_epoch(0)
        frame = pl.DataFrame(stream.to_reader())

    assert counted == [(240, 240)]
    assert frame["id"].to_list() == [each for batch in wanted for each in batch["id"]]
    for batch, table in zip(wanted, found, strict=True):
        assert table["label"].to_pylist() == batch["label"].tolist()
        flat = table["image"].flatten().flatten().flatten()
        assert flat.to_numpy().reshape(batch["image"].shape).tolist() == batch["image"].tolist()


def test_an_arrow_column_is_not_copied() -> None:
    import pyarrow as pa

    from spiral_stream.looking.tables import record_batches

    image = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    schema = pa.schema([pa.field("x", pa.list_(pa.list_(pa.uint8(), 4), 3))])
    (found,) = record_batches([{"x": image}], schema)

    assert found["x"].flatten().flatten().buffers()[1].address == image.ctypes.data


def test_batches_travel_by_dlpack_without_a_copy(catalog: sp.Catalog) -> None:
    with plan(catalog.table("lance")).to_numpy() as stream:
        batch = next(iter(stream))
        tensor = torch.from_dlpack(batch["image"])
        assert tensor.data_ptr() == batch["image"].ctypes.data
    with plan(catalog.table("lance")).to_torch() as stream:
        tensors = next(iter(stream))
        assert np.from_dlpack(tensors["image"]).ctypes.data == tensors["image"].data_ptr()


def test_the_bar_goes_on_at_a_resumed_place_and_only_rank_0_draws_one(catalog: sp.Catalog) -> None:
    drawn = {}
    for rank in range(2):
        console = Console(record=True, width=100, force_terminal=True, file=StringIO())
        with plan(catalog.table("lance")).to_numpy().bind(rank=rank, world_size=2) as stream:
            next(iter(stream))
            state = stream.state_dict()
        with plan(catalog.table("lance")).to_numpy().bind(rank=rank, world_size=2) as stream:
            stream.load_state_dict(state)
            assert len(list(stream.progress(console=console))) == 6
        drawn[rank] = console.export_text()

    assert "7/7" in drawn[0]
    assert "epoch 0" in drawn[0]
    assert drawn[1] == ""


def test_read_batch_size_and_threads_change_tasks_and_no_batch(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spiral_stream.runtime.fields.images import ImageField

    sizes: list[int] = []
    render = ImageField.render
    monkeypatch.setattr(ImageField, "render", lambda own, at, *rest: (sizes.append(len(at)), render(own, at, *rest))[1])
    with plan(catalog.table("lance")).to_torch() as stream:
        wanted = [each["image"].clone() for each in stream]
    assert max(sizes) == 16
    sizes.clear()
    with plan(catalog.table("lance")).to_torch(threads=3, read_batch_size=5) as stream:
        found = [each["image"].clone() for each in stream]
        assert stream.explain().to_dict()["deliver"]["threads"] == 3

    assert max(sizes) == 5
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    with pytest.raises(sp.errors.PlanError, match="read_batch_size=0"):
        plan(catalog.table("lance")).to_torch(read_batch_size=0)


def test_stages_and_columns_are_counted(catalog: sp.Catalog) -> None:
    with plan(catalog.table("lance")).to_numpy() as stream:
        for _ in stream:
            pass
        found = stream.metrics()

    assert list(found["stages"]) == ["form", "read", "decode", "transform", "map", "collate", "copy", "wait"]
    assert found["stages"]["decode"] > 0
    assert found["columns"]["image_ref"]["rows"] == 240
    assert found["columns"]["image_ref"]["bytes"] == found["source_bytes"] > 0


def test_waiting_is_counted_on_both_sides(tmp_path: Path) -> None:
    """Sleeps are lower bounds: another program on both cores makes the waits longer, and the last pause is far above them."""

    def late(ids: pa.Array) -> pa.Array:
        time.sleep(0.02)
        return ids

    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("d", sp.Arrow(pa.table({"id": range(40)})), identity="id")
    sampled = catalog.table("d").sample(order=sp.Sequential())
    mapped = sampled.map(late, columns=["id"], name="late", returns=pa.int64(), version="1")
    with mapped.collate(batch_size=4, fields={"id": sp.Stack("late")}).to_numpy(threads=1) as slow:
        assert len(list(slow)) == 10
        assert slow.metrics()["consumer_waited_s"] > 0.02
    with sampled.collate(batch_size=4, fields={"id": sp.Stack("id")}).to_numpy(prefetch=1) as fast:
        waited, pauses_s = [0.0], [0.02, 0.1, 1.0, 5.0]
        while len(waited) < 3 or fast.metrics()["bound_by"] != "consumer":
            pause_s = pauses_s.pop(0)
            for _ in fast:
                time.sleep(pause_s)
            waited.append(fast.metrics()["feeder_waited_s"])
            assert waited[-1] > waited[-2]


def test_explain_data_is_a_prefix_of_sql_and_of_the_command(own: sp.Catalog) -> None:
    own.save_stream("train", plan(own.table("lance")).to_numpy())
    with own.open_stream("train") as stream:
        expected = str(stream.explain())

    assert str(own.sql("explain data train;")) == expected
    assert "Scan lance" in str(own.sql("EXPLAIN DATA lance"))
    assert "Sql" in str(own.sql("EXPLAIN DATA select label_id from lance"))
    for prefix in ("EXPLAIN DATA ANALYZE", "explain analyze data"):
        measured = in_words(own.sql(f"{prefix} train"))["deliver"]  # type: ignore[arg-type]  # an Explanation
        assert measured["seconds by stage"].startswith("! form")
        assert measured["delivered"] == "! 15 batches, 240 samples"
    with pytest.raises(sp.errors.PlanError, match="no saved stream"):
        own.sql("EXPLAIN DATA ANALYZE lance")
    with pytest.raises(
        sp.errors.CatalogError, match=r"Of saved streams, did you mean train\? Of relations, there are .*lance"
    ):
        own.sql("EXPLAIN DATA trian")
    done = CliRunner().invoke(app, ["explain", "train", "--analyze", "--batches", "2", "--catalog", str(own.root)])
    assert "! 2 batches, 32 samples" in done.output
    in_commands = re.sub(r'catalog\.(measure|refresh)\("([^"]*)"\)', r"spiral \1 \2", expected)
    assert in_commands in CliRunner().invoke(app, ["sql", "EXPLAIN DATA train", "--catalog", str(own.root)]).output


def test_a_sheet_shows_the_batch_of_that_number_though_others_are_skipped(catalog: sp.Catalog) -> None:
    with plan(catalog.table("lance")).to_numpy() as stream:
        stream.skip(batches=[2, 3])
        for number in (0, 1, 4, 6):
            sheet = stream.show(2, batch=number)
            assert [tile.title for tile in sheet.tiles] == [f"batch {number} row {row}" for row in range(2)]
            assert [dict(tile.labels)["id"] for tile in sheet.tiles] == stream.ledger(number)[:2]
        with pytest.raises(IndexError, match=r"batch 3 of epoch 0 is skipped; stream.skipped\(\) lists what is"):
            stream.show(batch=3)
        with pytest.raises(TypeError, match=r"batch 'x' is a str. Give an integer"):
            stream.show(batch="x")  # type: ignore[arg-type]
