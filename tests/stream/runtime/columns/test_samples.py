from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.planner.columns.lineage import Stored
from spiral_stream.runtime.columns.samples import SampleReader, Samples, lengths_of
from spiral_stream.sampling.epoch import StreamRows
from tests.fixtures.examples import few
from tests.fixtures.inner import batches_of
from tests.fixtures.texts import TOKENIZER, documents, fields, ids_of, make_catalog, tokenized

ROWS = 40
TABLE = documents("a", ROWS)
FEW = few(8, 20)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("samples"), {"a": ROWS, "b": 7})


def draw(size: int, rng: np.random.Generator) -> float:
    return float(size + rng.random())


def halves(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[:3]), " ".join(words[3:6])][: len(words)]


def long(size: Any) -> Any:
    return size.to_numpy() > 8


@pytest.fixture(scope="module")
def mapped(catalog: sp.Catalog) -> Iterator[Any]:
    sampled = tokenized(catalog.table("a"), sp.Sequential())
    plan = (
        sampled.with_columns(twice=sp.col("size") * 2)
        .map(draw, columns=["twice"], name="drawn", returns=pa.float64(), batched=False, random=True)
        .filter(sp.len_("tokens") > 2)
        .filter(long, columns=["size"])
    )
    with plan.collate(batch_size=4, fields={"d": sp.List("drawn"), "t": sp.Pad("tokens")}).to_numpy() as stream:
        yield stream


def reader_of(stream: Any) -> SampleReader:
    """What the stream reads columns of samples with."""
    reader: SampleReader = batches_of(stream).forming.reader
    return reader


def at(rows: list[int]) -> Samples:
    wanted = np.array(rows, dtype=np.uint64)
    return Samples.at(StreamRows(np.zeros(len(rows), dtype=np.int32), wanted, np.zeros(len(rows), dtype=np.uint64)))


# ---- laws


@FEW
@given(rows=st.lists(st.integers(0, ROWS - 1), max_size=12))
def test_what_is_drawn_for_a_sample_does_not_depend_on_its_company(mapped: Any, rows: list[int]) -> None:
    reader = reader_of(mapped)
    key = reader.lineage.key("drawn", reader.end)
    together = at(rows)
    reader.need(2, together, [key])
    for place, row in enumerate(rows):
        alone = at([row])
        reader.need(2, alone, [key])
        assert together.columns[key][place] == alone.columns[key][0]
        assert 0 <= alone.columns[key][0].as_py() - 2 * TABLE["size"][row].as_py() < 1


@FEW
@given(rows=st.lists(st.integers(0, ROWS - 1), max_size=12), picks=st.lists(st.integers(0, 11), max_size=12))
def test_taking_and_joining_keep_columns_with_their_samples(mapped: Any, rows: list[int], picks: list[int]) -> None:
    reader = reader_of(mapped)
    keys = [Stored("size"), reader.lineage.key("tokens", reader.end)]
    first, second = at(rows), at(rows[::-1])
    for some in (first, second):
        reader.need(0, some, keys)
    both = Samples.concat([first, second])
    found = both.take(np.array([pick % len(both) for pick in picks] if rows else [], dtype=np.int64))
    wanted = [[*rows, *rows[::-1]][pick % len(both)] for pick in picks] if rows else []

    assert found.stream_rows.rows.tolist() == wanted
    assert found.columns[keys[0]].to_pylist() == [TABLE["size"][row].as_py() for row in wanted]
    assert lengths_of(found.columns[keys[1]]).tolist() == [len(TABLE["tokens"][row]) for row in wanted]
    assert found.only([keys[0]]).columns.keys() == {keys[0]}


# ---- examples


def test_filters_after_sample_leave_samples_out(mapped: Any) -> None:
    expected = [i for i in range(ROWS) if len(TABLE["tokens"][i]) > 2 and TABLE["size"][i].as_py() > 8]
    with mapped.eval() as stream:
        lengths = [int(n) for batch in stream for n in (batch["t"] >= 0).sum(axis=1)]
        assert len(lengths) == len(expected)
        assert stream.metrics()["filtered"] == ROWS - len(expected)


def test_flat_map_replaces_a_sample_by_its_parts(catalog: sp.Catalog) -> None:
    sampled = catalog.table("a").sample(order=sp.Sequential())
    parts = sampled.flat_map(halves, name="text", columns=["text"], returns=pa.utf8(), fan_out=2)
    tokens = parts.map(sp.Tokenize("text", tokenizer=TOKENIZER) >> "tokens")
    plan = tokens.collate(
        batch_size=8, fields=fields() | {"part": sp.List("part"), "text": sp.List("text")}, last=sp.KeepPartial
    )
    expected = [(f"a-{i}", k, half) for i in range(ROWS) for k, half in enumerate(halves(TABLE["text"][i].as_py()))]
    with plan.to_numpy() as stream:
        batches = list(stream)
    found = [triple for b in batches for triple in zip(b["sample_id"], b["part"], b["text"], strict=True)]
    assert found == expected
    assert [int(n) for b in batches for n in b["mask"].sum(axis=1)] == [len(text.split()) for _, _, text in expected]


def test_flat_map_beyond_its_fan_out_names_the_sample(catalog: sp.Catalog) -> None:
    sampled = catalog.table("a").sample(order=sp.Sequential())
    parts = sampled.flat_map(halves, name="text", columns=["text"], returns=pa.utf8(), fan_out=1)
    with (
        parts.collate(batch_size=8, fields={"id": sp.List("sample_id")}).to_numpy() as stream,
        pytest.raises(sp.errors.DataError, match=r"sample_id='a-\d+'.*became 2 samples, fan_out is 1. Raise fan_out"),
    ):
        next(iter(stream))


def test_a_function_that_fails_names_the_sample(catalog: sp.Catalog) -> None:
    def broken(size: int) -> bool:
        return 1 / (size - 9) > 0

    sampled = catalog.table("a").sample(order=sp.Sequential())
    plan = sampled.filter(broken, columns=["size"], batched=False)
    with (
        plan.collate(batch_size=8, fields={"id": sp.List("sample_id")}).to_numpy() as stream,
        pytest.raises(sp.errors.DataError, match=r"a: sample sample_id='a-\d+': .*broken.*ZeroDivisionError"),
    ):
        list(stream)


def test_two_maps_may_give_one_name(catalog: sp.Catalog) -> None:
    sampled = catalog.table("a").sample(order=sp.Sequential())
    cut = sampled.map(sp.Tokenize("text", tokenizer=TOKENIZER, max_length=3) >> "tokens").filter(sp.len_("tokens") <= 3)
    plan = cut.map(sp.Tokenize("text", tokenizer=TOKENIZER) >> "tokens")
    with plan.collate(batch_size=8, fields=fields(), last=sp.KeepPartial).to_numpy() as stream:
        batches = list(stream)
    assert len(ids_of(batches)) == ROWS
    assert max(int(b["mask"].sum(axis=1).max()) for b in batches) > 3


def test_text_that_is_computed_is_tokenized_on_the_fly(catalog: sp.Catalog) -> None:
    sampled = catalog.table("a").sample(order=sp.Sequential())
    upper = sampled.map(lambda text: text, columns=["text"], name="copy", returns=pa.utf8())
    plan = upper.map(sp.Tokenize("copy", tokenizer=TOKENIZER) >> "tokens")
    with plan.collate(batch_size=8, fields=fields(), last=sp.KeepPartial).to_numpy() as stream:
        lengths = [int(n) for b in stream for n in b["mask"].sum(axis=1)]
    assert lengths == [len(each) for each in TABLE["tokens"]]


def test_random_draws_of_an_epoch_are_its_own(mapped: Any) -> None:
    with mapped.eval() as one:
        values = [{v for batch in one.bind(epoch=epoch) for v in batch["d"]} for epoch in (0, 0)]
    assert values[0] == values[1]
    first, second = at([3]), at([3])
    reader = reader_of(mapped)
    key = reader.lineage.key("drawn", reader.end)
    reader.need(0, first, [key])
    reader.need(1, second, [key])
    assert first.columns[key] != second.columns[key]
