"""Columns of types that Arrow's kernels do not take, at the public door: they give what their plain twins give, or are named."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import datasets
import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import vortex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream.errors import CatalogError, PlanError

datasets.disable_progress_bars()
col = spiral.col
_NUMBER = count()


class Celsius(pa.ExtensionType):
    """What a package of somebody else registers."""

    def __init__(self) -> None:
        super().__init__(pa.float32(), "test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> "Celsius":
        del storage_type, serialized
        return cls()


def written(table: pa.Table, folder: Path, kind: str) -> spiral.sources.Source:
    """A source of a kind that holds the rows."""
    place = folder / f"rows-{next(_NUMBER)}.{kind}"
    if kind == "parquet":
        pq.write_table(table, place)
        return spiral.Parquet(str(place))
    if kind == "lance":
        lance.write_dataset(table, place)
        return spiral.Lance(str(place))
    if kind == "vortex":
        vortex.io.write(table, str(place))
        return spiral.sources.Vortex(str(place))
    if kind == "saved":
        place.mkdir()
        with pa.OSFile(str(place / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
        (place / "dataset_info.json").write_text("{}")
        return spiral.sources.HuggingFace(str(place))
    return spiral.Arrow(table)


def registered(source: spiral.sources.Source, folder: Path, **options: Any) -> spiral.Catalog:
    catalog = spiral.connect(str(folder / f"catalog-{next(_NUMBER)}"))
    catalog.register("x", source, identity="id", **options)
    return catalog


def fields_of(catalog: spiral.Catalog, rows: int, **fields: Any) -> dict[str, Any]:
    sampled = catalog.table("x").sample(identity="id", order=spiral.GlobalShuffle(seed=3), epoch=0)
    with sampled.collate(batch_size=rows, fields=fields).to_numpy() as stream:
        [batch] = list(stream)
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in batch.items()}


VERBS: dict[str, Callable[[spiral.Catalog, int], Any]] = {
    "stack": lambda c, n: fields_of(c, n, x=spiral.Stack("v"), wide=spiral.Stack("v", dtype="float64")),
    "list": lambda c, n: fields_of(c, n, x=spiral.List("v")),
    "filter": lambda c, _: c.table("x").filter(col("v") >= 2).to_arrow()["id"].to_pylist(),
    "two columns": lambda c, _: c.table("x").filter(col("v") == col("w")).to_arrow()["id"].to_pylist(),
    "some": lambda c, _: c.table("x").filter(col("v").is_in([1, 3])).to_arrow()["id"].to_pylist(),
    "sort": lambda c, _: c.table("x").sort("v", "id").to_arrow()["id"].to_pylist(),
    "distinct": lambda c, _: c.table("x").distinct("v").to_arrow()["id"].to_pylist(),
    "groups": lambda c, _: c.table("x").group_by("v").aggregate(n=("id", "count")).to_arrow().to_pylist(),
    "split": lambda c, _: c.table("x").split(a=0.5, b=0.5, by="v")["a"].to_arrow()["id"].to_pylist(),
    "sql": lambda c, _: c.sql("select id from x where v >= 2 order by v, id").to_arrow().to_pylist(),
}


def outcome(of: Callable[[], Any]) -> Any:
    try:
        return of()
    except spiral.SpiralError as error:
        return type(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    codes=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    values=st.sampled_from([[1, 2, 3, 4], [0.5, 2.0, 3.0, -1.0], [3, 1, 4, 1_000_000_007]]),
    kind=st.sampled_from(["arrow", "parquet", "lance", "vortex"]),
    verb=st.sampled_from(sorted(VERBS)),
)
def test_categories_of_numbers_do_what_the_numbers_do(
    codes: list[int], values: list[Any], kind: str, verb: str, tmp_path: Path
) -> None:
    numbers = [values[code] for code in codes]
    plain = pa.table({"id": range(len(codes)), "v": numbers, "w": numbers[::-1]})
    frame = plain.to_pandas().astype({"v": pd.CategoricalDtype(values), "w": pd.CategoricalDtype(values)})
    made = pa.Table.from_pandas(frame, preserve_index=False)
    assert pa.types.is_dictionary(made.schema.field("v").type)

    found, expected = (
        outcome(lambda t=table: VERBS[verb](registered(written(t, tmp_path, kind), tmp_path), len(codes)))
        for table in (made, plain)
    )

    assert found == expected


def test_a_category_that_is_missing_is_refused_as_a_null(tmp_path: Path) -> None:
    table = pa.table({"id": [0, 1], "v": pa.array([5, None]).dictionary_encode()})
    with pytest.raises(spiral.errors.DataError, match=r"the value is null. Filter it out before sample"):
        VERBS["stack"](registered(spiral.Arrow(table), tmp_path), 2)


@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["arrow", "parquet", "lance", "vortex", "saved"])
@pytest.mark.parametrize("known", [True, False])
def test_an_extension_type_of_somebody_else_is_what_it_stores(tmp_path: Path, kind: str, *, known: bool) -> None:
    stored = pa.array([1.0, 2.0, 4.0, 8.0], pa.float32())
    table = pa.table({"id": range(4), "v": pa.ExtensionArray.from_storage(Celsius(), stored), "w": stored})
    if known:
        pa.register_extension_type(Celsius())
    try:
        source = written(table, tmp_path, kind)
        catalog = registered(source, tmp_path)
        assert catalog.entry("x").schema.field("v").type == pa.float32()
        for name, verb in VERBS.items():
            assert outcome(lambda v=verb: v(catalog, 4)) is not None, name
        assert VERBS["filter"](catalog, 4) == [1, 2, 3]
        assert sorted(VERBS["stack"](catalog, 4)["x"]) == [1.0, 2.0, 4.0, 8.0]
        version = catalog.entry("x").data_version
    finally:
        if known:
            pa.unregister_extension_type("test.celsius")
    if kind != "arrow":  # the version must not depend on what is imported
        assert registered(source, tmp_path).entry("x").data_version == version
    assert sorted(VERBS["stack"](catalog, 4)["x"]) == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["arrow", "parquet", "vortex", "saved"])
@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
def test_list_views_are_lists(tmp_path: Path, kind: str, view: Callable[..., pa.DataType]) -> None:
    values = [[1], None, [2, 3], [], [4, 5, 6]]
    table = pa.table({"id": range(6), "v": pa.array([[9], *values], view(pa.int64()))}).slice(1)
    catalog = registered(written(table, tmp_path, kind), tmp_path)
    assert catalog.table("x").to_arrow()["v"].to_pylist() == values
    catalog.measure("x")


@pytest.mark.parametrize("kind", ["arrow", "parquet", "lance"])
def test_tensors_with_a_permutation_have_the_shape_that_they_say(tmp_path: Path, kind: str) -> None:
    tensor = pa.fixed_shape_tensor(pa.float64(), (2, 3), permutation=[1, 0])
    flat = np.arange(24.0).reshape(4, 6)
    stored = pa.array(flat.tolist(), pa.list_(pa.float64(), 6))
    table = pa.table({"id": range(4), "v": pa.ExtensionArray.from_storage(tensor, stored)})
    catalog = registered(written(table, tmp_path, kind), tmp_path)
    fields = fields_of(catalog, 4, x=spiral.Stack("v"), id=spiral.Stack("id"))
    expected = flat.reshape(4, 2, 3).transpose(0, 2, 1)[fields["id"]].tolist()
    assert fields["x"] == expected
    assert len(catalog.sql("select * from x").to_arrow()) == 4
    assert catalog.table("x").filter(col("id") > 9).to_arrow().num_rows == 0
    catalog.measure("x")


@pytest.mark.parametrize("kind", ["arrow", "parquet", "lance", "saved"])
@pytest.mark.parametrize("nested", [True, False])
def test_a_time_zone_that_nobody_knows_is_named(tmp_path: Path, kind: str, *, nested: bool) -> None:
    values = pa.array([1, 2], pa.timestamp("us", "Mars/Olympus"))
    column = pa.StructArray.from_arrays([values], ["at"]) if nested else values
    source = written(pa.table({"id": [0, 1], "v": column}), tmp_path, kind)
    with pytest.raises(CatalogError, match=r"'v' .*no time zone 'Mars/Olympus'. Write it with one that is known"):
        registered(source, tmp_path)
    with pytest.raises(PlanError, match=r"no time zone 'Mars/Olympus'. Register it with a zone that is known"):
        spiral.List("v").spec(pa.field("v", column.type))


def test_conditions_on_uuids_and_json_are_computed_whatever_the_file_is(tmp_path: Path) -> None:
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16), None], pa.binary(16)))
    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', "2"]))
    for kind, column in [("parquet", ids), ("lance", ids), ("vortex", texts), ("arrow", texts)]:
        catalog = registered(written(pa.table({"id": [0, 1], "v": column}), tmp_path, kind), tmp_path)
        asked = col("v").is_null() if column is ids else col("v") == "2"
        assert catalog.table("x").filter(asked).to_arrow()["id"].to_pylist() == [1]


def test_known_time_zones_stay(tmp_path: Path) -> None:
    values = pa.array([0, 1], pa.timestamp("us", "Europe/Berlin"))
    catalog = registered(spiral.Arrow(pa.table({"id": [0, 1], "v": values})), tmp_path)
    found = fields_of(catalog, 2, x=spiral.List("v"))["x"]
    assert min(found) == datetime(1970, 1, 1, tzinfo=UTC)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    dtype=st.sampled_from(["float32", "int64", "uint8"]),
    form=st.sampled_from(["saved", "hub"]),
    rows=st.integers(1, 6),
)
def test_arrays_of_hugging_face_keep_their_shape(
    shape: list[int], dtype: str, form: str, rows: int, tmp_path: Path
) -> None:
    kind = {2: datasets.Array2D, 3: datasets.Array3D, 4: datasets.Array4D}[len(shape)](tuple(shape), dtype)
    values = np.random.default_rng(rows).integers(0, 100, (rows, *shape)).astype(dtype)
    features = datasets.Features({"id": datasets.Value("int64"), "v": kind})
    made = datasets.Dataset.from_dict({"id": list(range(rows)), "v": list(values)}, features=features)
    place = tmp_path / f"arrays-{next(_NUMBER)}"
    if form == "saved":
        made.save_to_disk(str(place))
    else:
        made.to_parquet(str(place / "data" / "train-00000-of-00001.parquet"))
    catalog = registered(spiral.sources.HuggingFace(str(place)), tmp_path)
    found = fields_of(
        catalog, rows, x=spiral.Stack("v"), id=spiral.Stack("id"), wide=spiral.Stack("v", dtype="float64")
    )
    assert found["x"] == values[found["id"]].tolist()
    assert found["wide"] == values[found["id"]].astype(float).tolist()


def test_an_array_of_another_shape_than_its_source_says_is_named(tmp_path: Path) -> None:
    for values in ([[[1, 2]], [[3, 4, 5]]], [[[1, 2]], [[3, 4], [5, 6]]], [[[1, 2]], None]):
        field = pa.field("v", pa.list_(pa.list_(pa.int64())), metadata={b"spiral:shape": b"1,2"})
        assert spiral.Stack("v").spec(field).shape == (1, 2)
        with pytest.raises(
            spiral.errors.DataError, match=r"is no array of shape 1, 2, which its source says of all. Mend it"
        ) as found:
            spiral.Stack("v").fill(pa.array(values, field.type), np.empty((2, 1, 2), np.int64))
        assert found.value.row == 1
    with pytest.raises(spiral.errors.DataError, match="is null in part"):
        spiral.Stack("v").fill(pa.array([[[1, 2]], [[3, None]]], field.type), np.empty((2, 1, 2), np.int64))


def test_arrays_of_mds_keep_their_shape(tmp_path: Path) -> None:
    folder = Path(__file__).parents[1] / "data" / "mds" / "raw"
    catalog = spiral.connect(str(tmp_path / "catalog"))
    catalog.register("x", spiral.sources.Mds(str(folder), arrays={"tokens": "int64"}), identity="int")
    sampled = catalog.table("x").sample(identity="int", order=spiral.Sequential())
    fields = {"x": spiral.Stack("fixed"), "flat": spiral.List("fixed")}
    for _ in range(2):  # the second time from kept columns
        with sampled.collate(batch_size=8, fields=fields).to_numpy() as stream:
            [batch] = list(stream)
        assert batch["x"].shape == (8, 2, 3)
        assert batch["x"].reshape(8, 6).tolist() == batch["flat"]
