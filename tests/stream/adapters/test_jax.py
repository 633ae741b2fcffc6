"""JAX streams: the NumPy stream's batches as JAX arrays, or an error where 32 bits are too few."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from tests.fixtures.streams import plan as image_plan
from tests.stream.adapters import documents

pytestmark = pytest.mark.usefixtures("no_threads_left")


NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What JAX does unless ``jax_enable_x64`` is set, seen in JAX 0.10: 64 bits become 32, wrapping around."""
    try:
        import jax  # noqa: F401
    except ImportError:
        numbers = ModuleType("jax.numpy")
        numbers.array = lambda value: np.array(value, dtype=NARROW.get(str(value.dtype), value.dtype))  # type: ignore[attr-defined]
        package = ModuleType("jax")
        package.numpy = numbers  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "jax", package)
        monkeypatch.setitem(sys.modules, "jax.numpy", numbers)


@pytest.mark.usefixtures("narrow")
def test_the_spec_tells_the_dtypes_that_are_delivered(tmp_path: Any) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    columns = {f"c_{name}": pa.array([1, 0], getattr(pa, name)()) for name in ("int64", "uint64", "float64", "int16")}
    table = pa.table({"sample_id": ["a", "b"], **columns, "c_bool": [True, False]})
    catalog.register("wide", sp.Arrow(table), identity="sample_id")
    fields = {name: sp.Stack(name) for name in table.column_names[1:]} | {"id": sp.List("sample_id")}
    sampled = catalog.table("wide").sample(identity="sample_id", order=sp.Sequential())
    with sampled.collate(batch_size=2, fields=fields).to_jax() as stream:
        spec, batch = stream.spec(), next(iter(stream))
    found = {name: str(np.asarray(value).dtype) for name, value in batch.items() if not isinstance(value, list)}
    assert {name: each.dtype for name, each in spec.items() if each.dtype is not None} == found
    assert spec["c_int64"].dtype == "int32"
    assert spec["id"].dtype is None
    with documents.plan(documents.make_catalog(tmp_path / "texts"), documents.COUNTED).to_jax() as text:
        assert {each.dtype for each in text.spec().values()} == {"int32", None}


def same(stream: Any, arrays: Any) -> None:
    with stream, arrays:
        for batch, wanted in zip(stream, arrays, strict=True):
            for name, value in wanted.items():
                if isinstance(value, np.ndarray):
                    assert np.array_equal(np.asarray(batch[name]), value)
                    assert not np.shares_memory(np.asarray(batch[name]), value)
                else:
                    assert batch[name] == value


@pytest.mark.parametrize("formed", [documents.BUCKETS, documents.PACKED, documents.COUNTED])
@pytest.mark.usefixtures("narrow")
def test_text_arrives_as_in_numpy(tmp_path: Any, formed: Any) -> None:
    made = documents.plan(documents.make_catalog(tmp_path), formed)
    same(made.to_jax(), made.to_numpy())


@pytest.mark.usefixtures("narrow")
def test_images_arrive_as_in_numpy(catalog: sp.Catalog) -> None:
    made = image_plan(catalog.table("lance"))
    same(made.to_jax(), made.to_numpy())


@pytest.mark.usefixtures("narrow")
def test_bfloat16_arrives_as_bfloat16(tmp_path: Any) -> None:
    catalog = sp.connect(str(tmp_path))
    catalog.register("t", sp.Arrow(pa.table({"id": [1, 2], "x": [1.0, 1 / 3]})), identity="id")
    plan = catalog.table("t").sample(order=sp.Sequential())
    plan = plan.collate(batch_size=2, fields={"x": sp.Stack("x", dtype="bfloat16")})
    with plan.to_jax() as stream:
        assert stream.spec()["x"].dtype == str(next(iter(stream))["x"].dtype) == "bfloat16"


@pytest.mark.usefixtures("narrow")
def test_a_number_of_more_than_32_bits_is_an_error(tmp_path: Any) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    table = pa.table({"sample_id": ["a", "b"], "number": pa.array([1, 2**40], pa.int64())})
    catalog.register("wide", sp.Arrow(table), identity="sample_id")
    sampled = catalog.table("wide").sample(identity="sample_id", order=sp.Sequential())
    refused = pytest.raises(sp.errors.DataError, match=r"'number' holds 1099511627776.*jax_enable_x64")
    with sampled.collate(batch_size=2, fields={"number": sp.Stack("number")}).to_jax() as stream, refused:
        next(iter(stream))


def test_without_jax_the_way_out_is_numpy(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with image_plan(catalog.table("lance")).to_jax() as stream:
        for use in (lambda: next(iter(stream)), stream.spec, lambda: stream.bind(epoch=1)):
            with pytest.raises(sp.errors.MissingExtraError, match=r'spiral-stream\[jax\]"; or use to_numpy\(\)'):
                use()
        assert stream.epoch == 0, "what was refused changes nothing"
        assert "EXPLAIN" in str(stream.explain())
