"""Columns of struct<bytes, path>, as Hugging Face stores images, in files that say nothing more of them."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import lance
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import spiral_stream as spiral
from spiral_stream.catalog.convert import convert
from spiral_stream.errors import DataError, SpiralError
from spiral_stream.semantic import JPEG_REF
from spiral_stream.sources.references.policy import ReferenceDataError
from spiral_stream.sources.references.ranged import locate
from spiral_stream.sources.references.resolve import resolve

datasets.disable_progress_bars()

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.utf8())])
ROWS = 10


def png(number: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (number, 2 * number, 7)).save(out, "PNG")
    return out.getvalue()


def pixel(number: int) -> list[int]:
    return [number, 2 * number, 7]


@pytest.fixture
def copies(tmp_path: Path) -> dict[str, spiral.sources.Source]:
    """One dataset of the Hub, copied by whatever reads Parquet."""
    features = datasets.Features(
        {"id": datasets.Value("int64"), "one": datasets.Image(), "some": datasets.List(datasets.Image())}
    )
    rows = [
        {
            "id": at,
            "one": {"bytes": png(at), "path": f"{at}.png"},
            "some": [{"bytes": png(at + k), "path": None} for k in range(at % 3 + 1)],
        }
        for at in range(ROWS)
    ]
    written = datasets.Dataset.from_list(rows, features=features)
    written.to_parquet(str(tmp_path / "hub" / "data" / "train-00000-of-00001.parquet"))
    written.save_to_disk(str(tmp_path / "saved"))
    hub = tmp_path / "hub" / "data" / "train-00000-of-00001.parquet"
    pd.read_parquet(hub).to_parquet(tmp_path / "pandas.parquet")
    pl.read_parquet(hub).write_parquet(tmp_path / "polars.parquet")
    bare = pq.read_table(hub).replace_schema_metadata(None)
    pq.write_table(bare, tmp_path / "pyarrow.parquet")
    lance.write_dataset(bare, tmp_path / "rows.lance")
    return {
        "hub": spiral.sources.HuggingFace(str(tmp_path / "hub")),
        "saved": spiral.sources.HuggingFace(str(tmp_path / "saved")),
        **{name: spiral.Parquet(str(tmp_path / f"{name}.parquet")) for name in ("pandas", "polars", "pyarrow")},
        "lance": spiral.Lance(str(tmp_path / "rows.lance")),
        "arrow": spiral.Arrow(bare),
    }


def delivered(catalog: spiral.Catalog, name: str, size: int = ROWS) -> dict[str, Any]:
    fields = {
        "id": spiral.Stack("id"),
        "one": spiral.Stack("one", decode="image", layout="nhwc", crop=2),
        "some": spiral.Stack("some", decode="image", layout="nhwc", crop=2),
        "bytes": spiral.List("one"),
        "all": spiral.List("some"),
    }
    sampled = catalog.table(name).sample(identity="id", order=spiral.Sequential())
    with sampled.collate(batch_size=size, fields=fields).to_numpy() as stream:
        [batch] = list(stream)
    return {key: np.array(value) if isinstance(value, np.ndarray) else value for key, value in batch.items()}


@pytest.mark.parametrize("name", ["hub", "saved", "pandas", "polars", "pyarrow", "lance", "arrow"])
def test_copies_of_a_dataset_of_the_hub_give_its_images(copies: dict[str, Any], tmp_path: Path, name: str) -> None:
    catalog = spiral.connect(str(tmp_path / "catalog"))
    marked = {} if name in ("hub", "saved") else {"one": JPEG_REF, "some": JPEG_REF}
    catalog.register("x", copies[name], identity="id", semantic=marked)

    batch = delivered(catalog, "x")

    assert batch["one"][:, 0, 0].tolist() == [pixel(at) for at in range(ROWS)]
    assert batch["some"].shape == (ROWS, 3, 2, 2, 3)
    for at in range(ROWS):
        there = at % 3 + 1
        assert batch["some"][at, :there, 0, 0].tolist() == [pixel(at + k) for k in range(there)]
        assert not batch["some"][at, there:].any()
    assert batch["bytes"] == [png(at) for at in range(ROWS)]
    assert batch["all"] == [[png(at + k) for k in range(at % 3 + 1)] for at in range(ROWS)]


def test_convert_writes_the_bytes_of_lists_of_images(copies: dict[str, Any], tmp_path: Path) -> None:
    convert(copies["hub"], str(tmp_path / "again.lance"))
    catalog = spiral.connect(str(tmp_path / "catalog"))
    marked = {"one": JPEG_REF, "some": JPEG_REF}
    catalog.register("x", spiral.Lance(str(tmp_path / "again.lance")), identity="id", semantic=marked)
    assert delivered(catalog, "x")["all"] == [[png(at + k) for k in range(at % 3 + 1)] for at in range(ROWS)]


def write_files(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for at in range(ROWS):
        (folder / f"{at}.png").write_bytes(png(at))


def table_of(images: Sequence[Any]) -> pa.Table:
    column = pa.array(images, MEDIA)
    return pa.table(
        {"id": range(len(images)), "one": column, "some": pa.array([[each] for each in images], pa.list_(MEDIA))}
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    held=st.lists(st.booleans(), min_size=1, max_size=ROWS),
    kinds=st.sampled_from([(pa.binary(), pa.utf8()), (pa.large_binary(), pa.large_utf8())]),
    skipped=st.integers(0, 3),
    order=st.sampled_from([0, 1]),
)
def test_bytes_and_paths_in_any_mixture_give_the_same_bytes(
    held: list[bool], kinds: tuple[Any, Any], skipped: int, order: int, tmp_path: Path
) -> None:
    write_files(tmp_path)
    parts = [("bytes", kinds[0]), ("path", kinds[1])]
    kind = pa.struct(parts if order else parts[::-1])
    values = [
        {"bytes": png(at) if here else None, "path": "elsewhere" if here else f"{at}.png"}
        for at, here in enumerate(held)
    ]
    array = pa.array([None] * skipped + values, kind).slice(skipped)

    assert [bytes(each) for each in resolve(array, str(tmp_path))] == [png(at) for at in range(len(held))]
    places = locate(array, str(tmp_path))
    assert [bytes(each.read(0, each.size)) for each in places] == [png(at) for at in range(len(held))]


def test_one_that_holds_neither_is_named_by_its_row() -> None:
    array = pa.array([{"bytes": b"x", "path": None}, {"bytes": None, "path": None}], MEDIA)
    with pytest.raises(ReferenceDataError, match=r"neither bytes nor a path. Filter the row out") as found:
        resolve(array, "")
    assert found.value.row == 1


@pytest.mark.parametrize("column", ["one", "some"])
def test_files_that_rows_name_are_pinned(tmp_path: Path, column: str) -> None:
    folder = tmp_path / "files"
    write_files(folder)
    catalog = spiral.connect(str(tmp_path / "catalog"))
    table = table_of([{"bytes": None, "path": f"{at}.png"} for at in range(ROWS)])
    source = spiral.Arrow(table, base=str(folder))
    marked = {"one": JPEG_REF, "some": JPEG_REF}
    entry = catalog.register("x", source, identity="id", semantic=marked)
    assert delivered(catalog, "x")["bytes"] == [png(at) for at in range(ROWS)]

    (folder / "3.png").write_bytes(png(9))
    with pytest.raises(SpiralError, match=r"3.png changed since .*refresh"):
        delivered(catalog, "x")
    assert catalog.refresh("x").data_version != entry.data_version
    assert delivered(catalog, "x")["bytes"][3] == png(9)


def test_rows_that_hold_bytes_are_not_read_when_they_are_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spiral_stream.sources.columnar.parquet import ParquetReader

    scanned = list[str]()
    scan = ParquetReader.scan

    def noted(self: Any, columns: Sequence[str], *rest: Any) -> Any:
        scanned.extend(columns)
        return scan(self, columns, *rest)

    pq.write_table(table_of([{"bytes": png(at), "path": f"{at}.png"} for at in range(ROWS)]), tmp_path / "x.parquet")
    monkeypatch.setattr(ParquetReader, "scan", noted)
    catalog = spiral.connect(str(tmp_path / "catalog"))
    marked = {"one": JPEG_REF, "some": JPEG_REF}
    catalog.register("x", spiral.Parquet(str(tmp_path / "x.parquet")), identity="id", semantic=marked)
    assert not {"one", "some"} & set(scanned)


def test_a_bad_image_is_left_out_and_named_by_its_path(tmp_path: Path) -> None:
    images = [{"bytes": png(at), "path": f"{at}.png"} for at in range(ROWS)]
    images[4]["bytes"] = b"no image"
    catalog = spiral.connect(str(tmp_path / "catalog"))
    catalog.register("x", spiral.Arrow(table_of(images)), identity="id", semantic={"one": JPEG_REF, "some": JPEG_REF})
    sampled = catalog.table("x").sample(identity="id", order=spiral.Sequential())
    for column in ("one", "some"):
        fields = {"x": spiral.Stack(column, decode="image", crop=2)}
        plan = sampled.collate(batch_size=5, fields=fields, on_error="skip")
        with plan.to_numpy() as stream:
            assert sum(len(batch["x"]) for batch in stream) == ROWS - 1
            (left_out,) = stream.quarantine().to_pylist()
        assert "4.png" in left_out["reference"]
        assert len(left_out["reference"]) < 20
    with pytest.raises(DataError, match="sample"):
        delivered(catalog, "x")
