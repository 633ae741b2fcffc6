"""Ids of uint16 in torch: the tensors of int64, and two bytes per id on the way to a device and between processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

import spiral_stream as sp
from spiral_stream.adapters import StreamLoader
from tests.fixtures.tensor_moves import Moves
from tests.stream.adapters.documents import BUCKETS, COUNTED, PACKED, make_catalog

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    # Both warn before every fork; what they warn of is why forked workers read in another interpreter.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore:lancedb fork support is experimental"),
]

FORMED = {"buckets": BUCKETS, "packed": PACKED, "fixed": COUNTED}
IDS = ("ids", "labels", "segments", "positions")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("narrow"))


def plan(catalog: sp.Catalog, formed: str, dtype: str = "uint16") -> sp.Relation:
    streams = [sp.Stream("web", catalog.table("web"), proportion=0.7)]
    streams.append(sp.Stream("wiki", catalog.table("wiki"), proportion=0.3))
    order = sp.ShardAwareShuffle(seed=9, shard_key=["stream_id", "storage_shard"], shuffle_block_size=100)
    fields = {
        "ids": sp.Pad("tokens", dtype=dtype, pad_to_multiple_of=8),
        "mask": sp.PadMask("tokens", dtype="uint8"),
        "labels": sp.ShiftedLabels("tokens", dtype=dtype, ignore_index=65_535),
        "segments": sp.fields.Segments("tokens", dtype=dtype),
        "positions": sp.fields.Positions("tokens", dtype=dtype),
        "name": sp.List("sample_id"),
    }
    sampled = sp.mix(streams, epoch_size=240).sample(identity="sample_id", order=order, epoch=0)
    return sampled.collate(**FORMED[formed], fields=fields)


def need_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name, value in other.items():
            if isinstance(value, torch.Tensor):
                assert one[name].dtype == value.dtype, name
                assert torch.equal(one[name], value), name
            else:
                assert one[name] == value


@pytest.mark.parametrize("formed", FORMED)
def test_tensors_are_those_of_int64(catalog: sp.Catalog, formed: str) -> None:
    with plan(catalog, formed).to_torch() as narrow, plan(catalog, formed, "int64").to_torch() as wide:
        expected = list(wide)
        assert all(expected[0][name].dtype == torch.int64 for name in IDS)
        need_same(list(narrow), expected)
        need_same([narrow.batch(n, epoch=0) for n in (1, 0)], [expected[1], expected[0]])
        assert narrow.spec() == wide.spec()
        narrow.set_epoch(0)
        state = narrow.state_dict()
        need_same(narrow.take(2), expected[:2])
        narrow.load_state_dict(state)
        need_same(list(narrow), expected)
    with plan(catalog, formed).to_numpy() as arrays:
        assert {arrays.spec()[name].dtype for name in IDS} == {"uint16"}
        assert {next(iter(arrays))[name].dtype for name in IDS} == {np.dtype("uint16")}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_gives_the_tensors_of_int64(catalog: sp.Catalog, how: str) -> None:
    with plan(catalog, "fixed", "int64").to_torch() as wide, plan(catalog, "fixed").to_torch() as narrow:
        with Moves() as moves:
            need_same(list(DataLoader(narrow, None, **workers(how))), list(wide))
        assert moves.seen == []  # the worker widens: a loader knows nothing of ids


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_ids_come_from_the_workers_of_a_stream_loader_as_16_bits(catalog: sp.Catalog, how: str) -> None:
    with plan(catalog, "fixed", "int64").to_torch() as wide, plan(catalog, "fixed").to_torch() as narrow:
        loader, expected = StreamLoader(narrow, **workers(how)), list(wide)
        with Moves() as moves:
            need_same(list(loader), expected)
        assert moves.seen == [("cpu", "cpu", "uint16", "int64")] * len(IDS) * len(expected)
        loader.close()


def workers(how: str) -> dict[str, Any]:
    return {"num_workers": 1, "multiprocessing_context": how, "timeout": 300}


def test_a_model_takes_them(catalog: sp.Catalog) -> None:
    table, head = torch.nn.Embedding(128, 8), torch.nn.Linear(8, 128)
    with plan(catalog, "packed").to_torch() as stream:
        batch = stream.take(1)[0]
    logits = head(table(batch["ids"]) + table(batch["positions"]))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=65_535)
    loss.backward()
    assert torch.isfinite(loss)
    assert table.weight.grad is not None


def test_a_column_of_uint16_that_is_no_field_of_tokens_stays_as_it_is(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    table = pa.table({"name": range(8), "x": pa.array(range(8), pa.uint16())})
    catalog.register("rows", sp.Arrow(table), identity="name")
    sampled = catalog.table("rows").sample(order=sp.Sequential())
    with sampled.collate(batch_size=8, fields={"x": sp.Stack("x")}).to_torch() as stream:
        assert stream.spec()["x"].dtype == "uint16"
        assert next(iter(stream))["x"].dtype == torch.uint16


def test_jax_gets_uint16_and_looks_up_with_it(catalog: sp.Catalog) -> None:
    jnp = pytest.importorskip("jax.numpy")
    with plan(catalog, "packed").to_jax() as narrow, plan(catalog, "packed", "int32").to_jax() as wide:
        assert narrow.spec()["ids"].dtype == "uint16"
        table = jnp.arange(65_536.0)[:, None] + jnp.arange(4.0)
        for one, other in zip(narrow, wide, strict=True):
            assert one["ids"].dtype == jnp.uint16
            assert (table[one["ids"]] == table[other["ids"]]).all()
