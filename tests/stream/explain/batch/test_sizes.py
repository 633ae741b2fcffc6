"""EXPLAIN's bytes of a batch: what facts tell is counted, the rest is unknown and says what would tell it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.runtime.fields.size import OBJECT_BYTES
from tests.fixtures.examples import few
from tests.fixtures.streams import plan
from tests.stream.explain.words import in_words

ROWS, BATCH = 64, 8


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    table = pa.table(
        {
            "sample_id": [f"row-{at:04}" for at in range(ROWS)],
            "pay": [bytes(1_000)] * ROWS,
            "text": ["x" * 300] * ROWS,
            "number": np.arange(ROWS),
            "box": pa.array([[1.0, 2.0]] * ROWS, pa.list_(pa.float32(), 2)),
            "point": [{"x": 1, "y": 2.0}] * ROWS,
            "tokens": pa.array([[1] * 10] * ROWS, pa.list_(pa.int32())),
        }
    )
    catalog = sp.connect(str(tmp_path_factory.mktemp("sizes") / "catalog"))
    catalog.register("rows", sp.Arrow(table), identity="sample_id")
    return catalog


def facts(catalog: sp.Catalog, *, measured: bool = False, **fields: Any) -> dict[str, Any]:
    sampled = catalog.table("rows").sample(order=sp.Sequential())
    sampled = sampled.map(lambda number: number, columns=["number"], name="made", returns=pa.utf8())
    with sampled.collate(batch_size=BATCH, fields=fields).to_numpy() as stream:
        if measured:
            next(iter(stream))
        deliver: dict[str, Any] = in_words(stream.explain(analyze=measured))["deliver"]
    return deliver


@pytest.mark.parametrize(
    ("column", "bytes_each"),
    [
        ("number", 8 + 32),
        ("box", 8 + 72 + 2 * (8 + 24)),
        ("point", 8 + sys.getsizeof({"x": 1, "y": 2.0}) + 32 + 24),
        ("sample_id", OBJECT_BYTES + 12),  # 8 letters and an offset, of the column beside the selection
    ],
)
def test_lists_of_what_is_known_are_counted(catalog: sp.Catalog, caches: Path, column: str, bytes_each: int) -> None:
    found = facts(catalog, x=sp.List(column), n=sp.Stack("number"))

    assert found["bytes a batch"] == f"{8 * BATCH} and ~{BATCH * bytes_each:,} in lists"
    assert found["host memory bound"] == f"~{4 * BATCH * (8 + bytes_each):,} bytes (prefetch + 2 slots)"


@pytest.mark.parametrize("column", ["pay", "tokens", "made"])
def test_what_nothing_tells_is_unknown_and_says_what_would(catalog: sp.Catalog, caches: Path, column: str) -> None:
    found = facts(catalog, x=sp.List(column))

    assert found["bytes a batch"].startswith("0 and unknown: x (")
    assert "metrics()['peak_batch_bytes'] counts them" in found["bytes a batch"]
    assert found["host memory bound"].startswith("unknown: ")


def test_long_texts_are_told_by_statistics(catalog: sp.Catalog, caches: Path) -> None:
    assert 'x (catalog.measure("rows") counts them)' in facts(catalog, x=sp.List("text"))["bytes a batch"]
    catalog.measure("rows")

    found = facts(catalog, x=sp.List("text"))["bytes a batch"]
    assert found == f"0 in arrays, ~{BATCH * (OBJECT_BYTES + 300):,} in lists"


def test_widths_and_image_sizes_are_not_guessed(catalog: sp.Catalog, caches: Path) -> None:
    found = facts(catalog, x=sp.Pad("tokens"))["bytes a batch"]

    assert found.startswith("0 and unknown: x (as wide as the longest sample of each batch")


def test_images_of_their_own_size_are_not_guessed(own: sp.Catalog, caches: Path) -> None:
    with plan(own.table("lance"), transforms=()).to_numpy() as stream:
        found = in_words(stream.explain())["deliver"]["bytes a batch"]

    assert "unknown: image (each image has its own size" in found


def test_a_running_stream_tells_its_largest_batch(catalog: sp.Catalog, caches: Path) -> None:
    found = facts(catalog, measured=True, x=sp.List("pay"))

    each = BATCH * (OBJECT_BYTES + 1_000) + 4 * BATCH  # and offsets
    assert found["largest batch"].startswith(f"! {each:,} bytes, batches ahead ")
    assert "0 payload bytes" not in found["read"]


@few(6, 40)
@given(
    columns=st.lists(st.sampled_from(["number", "box", "point", "sample_id"]), min_size=1, max_size=4, unique=True),
    size=st.integers(1, ROWS),
    prefetch=st.integers(1, 4),
)
def test_a_batch_is_as_large_as_said(catalog: sp.Catalog, columns: list[str], size: int, prefetch: int) -> None:
    fields: dict[str, Any] = {f"as_{name}": sp.List(name) for name in columns} | {"n": sp.Stack("number")}
    sampled = catalog.table("rows").sample(order=sp.Sequential())
    with sampled.collate(batch_size=size, fields=fields).to_numpy(prefetch=prefetch) as stream:
        found = stream.explain().to_dict()["deliver"]
        batch = next(iter(stream))
        peak = stream.metrics()["peak_queue_bytes"]
    said = found["bytes a batch"]["figures"]
    held = sum(8 + _held(each) for name in columns for each in batch[f"as_{name}"])

    assert said["arrays"]["value"] == batch["n"].nbytes
    assert held * 0.8 <= said["lists"]["value"] <= held * 1.35 + 64
    assert found["host memory bound"]["figures"]["bytes"]["value"] >= peak * 0.98


def _held(value: Any) -> int:
    """Bytes of a value in Python, with what is in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sys.getsizeof(value) + sum(map(_held, inner))
