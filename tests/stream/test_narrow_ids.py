"""Streams whose ids are uint16: the batches of int64 in a quarter of the bytes, from every place that ids come from."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given

import spiral_stream as sp
from spiral_stream.testing import frozen
from tests.fixtures import packed_columns
from tests.fixtures.drawn_streams import Drawn, catalogs, plans
from tests.fixtures.examples import few
from tests.fixtures.texts import SMALL_PLANS

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]

MOST = 2**16 - 1


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, sp.Catalog]:
    return catalogs(tmp_path_factory.mktemp("narrow"))


def need_alike(narrow: Any, wide: Any) -> None:
    """Every batch holds the same; -1, which uint16 lacks, is its largest number."""
    with narrow, wide:
        found, expected = ([frozen(batch) for batch in stream] for stream in (narrow, wide))
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name, value in other.items():
            if getattr(one[name], "dtype", None) == np.uint16:
                np.testing.assert_array_equal(one[name], value.astype(np.uint16))
            elif isinstance(value, np.ndarray):
                np.testing.assert_array_equal(one[name], value)
            else:
                assert one[name] == value


@few(3, 125, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=plans())
def test_widened_they_are_the_ids_of_int64(shelf: Mapping[str, sp.Catalog], drawn: Drawn) -> None:
    narrow, wide = replace(drawn, narrow=True).make(shelf, epoch=0), drawn.make(shelf, epoch=0)
    assert narrow.spec()["ids"].dtype == "uint16"
    if any(True for _ in drawn.make(shelf, epoch=0)):
        need_alike(narrow, wide)


def test_packed_columns_of_a_width_each_are_those_of_int64(tmp_path: Path) -> None:
    catalog = packed_columns.make_catalog(tmp_path)
    sampled = catalog.table("short").filter(sp.col("key") < 60).sample(order=sp.GlobalShuffle(seed=3))

    def made(dtype: str, ignore: int) -> Any:
        fields: dict[str, Any] = {"key": sp.List("key")}
        for column in packed_columns.WIDTHS:
            fields |= {
                column: sp.Pad(column, dtype=dtype),
                f"{column}_seg": sp.fields.Segments(column, dtype=dtype),
                f"{column}_at": sp.fields.Positions(column, dtype=dtype),
                f"{column}_next": sp.ShiftedLabels(column, dtype=dtype, ignore_index=ignore),
            }
        formed = packed_columns.packed()
        return sampled.collate(batch_size=2, formation=formed, fields=fields).to_numpy()

    need_alike(made("uint16", MOST), made("int64", -1))


def test_ids_of_token_files_are_those_of_the_file(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 2**16, 4_096, np.uint16)
    ids.tofile(tmp_path / "train.bin")
    catalog = sp.connect(str(tmp_path / "catalog"))
    source = sp.sources.Tokens(tmp_path / "train.bin", dtype="uint16", length=128)
    catalog.register("rows", source, identity=sp.RowIdentity())
    sampled = catalog.table("rows").sample(order=sp.Sequential())
    plan = sampled.collate(batch_size=8, fields={"ids": sp.Pad("tokens", dtype="uint16", length=128)})

    with plan.to_numpy() as stream:
        found = [batch["ids"].copy() for batch in stream]
    np.testing.assert_array_equal(np.concatenate(found), ids.reshape(-1, 128))


def stored(folder: Path, wrong: int) -> sp.Catalog:
    """Thirty rows of ids; row 17 has one that is ``wrong``."""
    ids = [[row] * (3 + row % 5) for row in range(30)]
    ids[17][2] = wrong
    catalog = sp.connect(str(folder / "catalog"))
    table = pa.table({"name": [f"row-{row}" for row in range(30)], "tokens": pa.array(ids, pa.list_(pa.int32()))})
    catalog.register("rows", sp.Arrow(table), identity="name")
    return catalog


FORMED: dict[str, dict[str, Any]] = {
    "fixed": {"batch_size": 4},
    "windowed": {
        "batch_size": None,
        "formation": sp.WindowedBucket(16, [sp.BucketKey("len(tokens)")], sp.BatchBudget(max_tokens=40)),
    },
    "packed": {"batch_size": 2, "formation": sp.batching.Packed(max_tokens=16)},
}


@pytest.mark.parametrize("formed", FORMED)
@pytest.mark.parametrize("wrong", [2**16, -1])
def test_an_id_that_does_not_fit_is_an_error_that_names_its_sample(tmp_path: Path, formed: str, wrong: int) -> None:
    sampled = stored(tmp_path, wrong).table("rows").sample(order=sp.GlobalShuffle(seed=1))
    plan = sampled.collate(**FORMED[formed], fields={"ids": sp.Pad("tokens", dtype="uint16")})

    with (
        plan.to_numpy() as stream,
        pytest.raises(sp.errors.DataError, match=r"row-17.*does not fit dtype uint16") as told,
    ):
        list(stream)
    assert 'Give dtype="int32", or "int64"' in str(told.value)


def test_a_sample_whose_id_does_not_fit_can_be_skipped(tmp_path: Path) -> None:
    sampled = stored(tmp_path, 2**16).table("rows").sample(order=sp.GlobalShuffle(seed=1))
    fields = {"ids": sp.Pad("tokens", dtype="uint16"), "name": sp.List("name")}
    plan = sampled.collate(batch_size=4, fields=fields, on_error="skip", last=sp.KeepPartial)

    with plan.to_numpy() as stream:
        names = {name: ids for batch in stream for name, ids in zip(batch["name"], batch["ids"].tolist(), strict=True)}
        assert stream.metrics()["refused"] == 1
    assert set(names) == {f"row-{row}" for row in range(30) if row != 17}
    assert all(ids[:3] == [int(name.removeprefix("row-"))] * 3 for name, ids in names.items())


def test_explain_counts_two_bytes_an_id_on_the_host_and_eight_in_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sampled = stored(tmp_path, 5).table("rows").sample(order=sp.GlobalShuffle(seed=1))
    told = {}
    for dtype in ("uint16", "int64"):
        fields = {"ids": sp.Pad("tokens", dtype=dtype), "mask": sp.PadMask("tokens", dtype="uint8")}
        plan = sampled.collate(batch_size=4, formation=sp.batching.Packed(max_tokens=16), fields=fields)
        for framework, stream in (("numpy", plan.to_numpy()), ("torch", plan.to_torch())):
            with stream:
                told[dtype, framework] = stream.explain().facts["deliver"]
    bytes_of = {each: int(facts["bytes a batch"].figures["arrays"].value) for each, facts in told.items()}
    places = 4 * 16
    assert bytes_of["uint16", "numpy"] == bytes_of["uint16", "torch"] == places * (2 + 1)
    assert bytes_of["int64", "torch"] == places * (8 + 1)
    assert str(told["uint16", "torch"]["widened"]) == (
        f"ids: uint16 until they are delivered, then int64: ~{places * (8 + 1)} bytes a batch"
    )
    assert "widened" not in told["int64", "torch"]
    assert "widened" not in told["uint16", "numpy"]
