from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.errors import DataError, PlanError
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.forming.inputs import Forming
from tests.fixtures.inner import batches_of
from tests.fixtures.texts import fields, make_catalog, mixed, tokenized

LENGTH = sp.BucketKey("len(tokens)")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("forming"), {"a": 60, "b": 20})


def bucketed(sampled: sp.Relation, *keys: sp.BucketKey, **options: Any) -> Any:
    formation = options.pop("formation", sp.WindowedBucket(window_size=8, keys=keys or [LENGTH]))
    return sampled.collate(batch_size=4, formation=formation, fields=options.pop("fields", fields())).to_numpy()


@pytest.fixture
def forming(catalog: sp.Catalog) -> Iterator[Forming]:
    """Of stored tokens; two streams, keyed by two expressions."""
    docs = mixed(catalog, {"a": 0.5, "b": 0.5}, 100)
    with bucketed(tokenized(docs, sp.GlobalShuffle(seed=1), stored=True), LENGTH, sp.BucketKey("size * 0.5")) as one:
        yield batches_of(one).forming


def samples(forming: Forming, count: int) -> Samples:
    """The first samples of the epoch, with the columns that the formation looks at."""
    some = Samples.at(forming.stages.epochs.stream_rows(0, np.arange(count, dtype=np.uint64)))
    forming.reader.need(0, some, forming.wanted)
    return some


def test_a_window_has_numbers_streams_and_keys(forming: Forming) -> None:
    some = samples(forming, 10)
    window = forming.window(some, 40)

    assert window.samples.tolist() == list(range(40, 50))
    assert window.streams.tolist() == some.stream_rows.streams.tolist()
    lengths, sizes = window.keys
    assert (sizes * 2 - 1).tolist() == lengths.tolist()  # a document's size is one more than its tokens
    assert (lengths.dtype, sizes.dtype) == (np.int64, np.float64)
    assert window.lengths is None  # without a budget only the keys count
    assert window.costs == ()
    assert window.shares is None


def test_a_key_that_is_null_is_refused(catalog: sp.Catalog) -> None:
    table = catalog.table("a").to_arrow()
    table = table.set_column(
        table.schema.get_field_index("size"), "size", pa.array([None, *table["size"].to_pylist()[1:]])
    )
    catalog.register("holes", sp.Arrow(table), identity="sample_id", shard="storage_shard")
    sampled = catalog.table("holes").sample(order=sp.Sequential())
    with bucketed(sampled, sp.BucketKey("size"), fields={"id": sp.List("sample_id")}) as one:
        forming = batches_of(one).forming
        with pytest.raises(
            PlanError, match=r"bucket key 'size' is null for 1 of 5 samples of a window. Filter those rows out"
        ):
            forming.window(samples(forming, 5), 0)


def test_packed_columns_of_other_lengths_are_refused_with_the_row(catalog: sp.Catalog) -> None:
    def shorter(tokens: Any) -> Any:
        return pa.array([each if at != 3 else [] for at, each in enumerate(tokens.to_pylist())], pa.list_(pa.uint16()))

    sampled = catalog.table("a").sample(order=sp.Sequential())
    both = sampled.map(shorter, columns=["tokens"], name="labels", returns=pa.list_(pa.uint16()))
    own = {"x": sp.Pad("tokens"), "y": sp.Pad("labels")}
    with bucketed(both, formation=sp.batching.Packed(max_tokens=64, window_size=8), fields=own) as one:
        forming = batches_of(one).forming
        with pytest.raises(
            DataError, match=r"0 tokens in 'labels' and \d+ in 'tokens'.*Make them equally long"
        ) as found:
            forming.window(samples(forming, 8), 0)
    assert getattr(found.value, "row", None) == 3


def test_only_maps_that_decide_are_named_and_a_cache_makes_them_known(catalog: sp.Catalog) -> None:
    made = tokenized(catalog.table("a"), sp.Sequential())
    with bucketed(made) as one:
        forming = batches_of(one).forming
        assert forming.decides_on() == forming.unknown() == ["len(tokens)"]
        assert forming.ways_out() == ["stream.materialize(), or the asset that builds the token cache"]
        one.materialize(lambda _: None)
    with bucketed(made) as one:
        forming = batches_of(one).forming
        assert (forming.decides_on(), forming.unknown(), forming.ways_out()) == (["len(tokens)"], [], [])
    with bucketed(made, sp.BucketKey("size")) as one:
        assert batches_of(one).forming.decides_on() == []


def test_windows_keep_what_maps_computed_and_not_what_is_stored(catalog: sp.Catalog) -> None:
    with bucketed(tokenized(catalog.table("a"), sp.Sequential())) as one:
        forming = batches_of(one).forming
        assert forming.keeps(forming.reader.lineage.key("tokens", forming.reader.end))
        assert not forming.keeps(forming.reader.lineage.key("text", forming.reader.end))
        assert not forming.keeps(forming.reader.lineage.key("sample_id", forming.reader.end))
