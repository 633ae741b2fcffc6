"""What `ShardAwareShuffle(shard_key=...)` groups by: rows that are equal in its columns move as one unit, or it is refused."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import PlanError
from spiral_stream.plan.saving.fingerprint import canonical
from spiral_stream.testing import check_order, frozen, same
from tests.fixtures.examples import few
from tests.fixtures.inner import stages_of
from tests.fixtures.shard_keys import COLUMNS, KEYS, grouped, make_catalog, order_of
from tests.stream.explain.words import in_words

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]

FEW = few(4, 166, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("keys"))


def stream_of(
    relation: sp.Relation, order: sp.ShardAwareShuffle, batch_size: int = 7, **options: Any
) -> sp.PreparedStream:
    names = [name for name in ("sample_id", *COLUMNS) if name in relation.schema.names]
    fields = {name: sp.List(name) for name in names}
    sampled = relation.sample(order=order).collate(batch_size=batch_size, fields=fields, last=sp.KeepPartial, **options)
    return sampled.to_numpy()


def rows_of(stream: sp.PreparedStream, epoch: int = 0) -> list[dict[str, Any]]:
    """The samples of an epoch."""
    with stream:
        stream.set_epoch(epoch)
        return [dict(zip(batch, each, strict=True)) for batch in stream for each in zip(*batch.values(), strict=True)]


def values(row: Mapping[str, Any], key: list[str]) -> tuple[str, ...]:
    return tuple(repr(row[name]) for name in key)  # NaN equals NaN by its text


# ---- laws


@FEW
@given(
    key=KEYS,
    name=st.sampled_from("ad"),
    below=st.sampled_from([0.3, 2.0]),
    block=st.integers(2, 300),
    epoch=st.integers(0, 3),
)
def test_rows_of_one_key_move_as_one_unit_and_blocks_cut_the_tape_of_units(
    catalog: sp.Catalog, key: list[str], name: str, below: float, block: int, epoch: int
) -> None:
    relation = catalog.table(name).filter(sp.col("quality") < below)
    laid = rows_of(stream_of(relation, order_of(key, 1)), epoch)
    units = [(value, [row["sample_id"] for row in unit]) for value, unit in groupby(laid, lambda row: values(row, key))]

    assert len(dict(units)) == len(units)  # no value begins twice
    for _, unit in units:
        assert unit == sorted(unit, key=lambda each: int(each[1:]))  # in the order of storage
    ids = [row["sample_id"] for row in rows_of(stream_of(relation, order_of(key, block)), epoch)]
    for begin in range(0, len(ids), block):
        part = slice(begin, begin + block)
        assert sorted(ids[part]) == sorted(row["sample_id"] for row in laid[part])


@FEW
@given(key=KEYS, block=st.integers(1, 100), mixed=st.booleans(), lanes=st.integers(1, 3))
def test_batches_of_an_order_with_a_shard_key_are_found_again(
    catalog: sp.Catalog, key: list[str], block: int, mixed: bool, lanes: int
) -> None:
    with grouped(catalog, key, block, mixed=mixed, lanes=lanes) as stream:
        for each in stages_of(stream).streams:
            check_order(stages_of(stream).order, each.population)
        batches = [frozen(batch) for batch in stream]
        assert same(stream.batch(5, epoch=0), batches[5])
        name, place = stream.ledger(4, epoch=0)[0], stream.locate(stream.ledger(4, epoch=0)[0], epoch=0)
        assert place is not None
        assert name in stream.ledger(place["batch"], epoch=0)


# ---- examples


def test_a_key_of_another_column_is_another_order(catalog: sp.Catalog) -> None:
    keys = [["storage_shard"], ["grp"], ["user"], ["grp", "storage_shard"]]
    orders = [[row["sample_id"] for row in rows_of(stream_of(catalog.table("a"), order_of(key, 40)))] for key in keys]

    assert len({tuple(order) for order in orders}) == len(keys)


def test_what_names_only_shards_and_streams_is_as_ever(catalog: sp.Catalog) -> None:
    keys = [["storage_shard"], ["stream_id", "storage_shard"], ["storage_shard", "stream_id"], ["stream_id"]]
    plain = sp.ShardAwareShuffle(seed=3, shuffle_block_size=40)
    expected = repr(rows_of(stream_of(catalog.table("a"), plain)))

    for key in keys:
        assert repr(rows_of(stream_of(catalog.table("a"), order_of(key, 40)))) == expected
        with stream_of(catalog.table("a"), order_of(key, 40)) as stream:
            assert canonical(stream.plan)["source"]["order"]["@version"] == 1
    with stream_of(catalog.table("a"), order_of(["grp"], 40)) as stream:
        assert canonical(stream.plan)["source"]["order"]["@version"] == 2


def test_joined_and_computed_columns_group_too(catalog: sp.Catalog) -> None:
    relation = catalog.table("a").with_columns(half=sp.col("user") > 6)
    halves = [row["user"] > 6 for row in rows_of(stream_of(relation, order_of(["half"], 1)))]

    assert len(list(groupby(halves))) == 2


def test_explain_says_what_it_groups_by(catalog: sp.Catalog) -> None:
    with stream_of(catalog.table("a"), order_of(["grp"], 40)) as stream:
        facts = in_words(stream.explain())["sample"]
    with stream_of(catalog.table("a"), order_of(["storage_shard"], 40)) as stream:
        plain = in_words(stream.explain())["sample"]

    assert facts["moves whole between blocks"] == (
        "rows equal in grp: 4 groups in 5 runs of rows, which stand for shards below"
    )
    assert plain["moves whole between blocks"] == "shard"


@pytest.mark.parametrize(
    ("key", "options", "says"),
    [
        (
            ["label"],
            {},
            r"11 different values of 'label' lie in 240 runs of rows.* Store the rows sorted by 'label' and reg",
        ),
        (["grp", "label"], {}, r"different values of 'grp', 'label' lie in 240 runs"),
        (["lable"], {}, r"sample \(shard_key\): 'lable' is not a column of the input; did you mean 'label'"),
        (
            ["grp"],
            {"sampling_granularity": "row_group"},
            r"names 'grp', but sampling_granularity='row_group' moves smaller",
        ),
        (["storage_shard", "grp"], {"sampling_granularity": "row"}, r"Use sampling_granularity='shard', or shard_key"),
    ],
)
def test_a_key_that_cannot_be_kept_is_refused(catalog: sp.Catalog, key: list[str], options: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says), stream_of(catalog.table("a"), order_of(key, **options)) as stream:
        assert stages_of(stream)


def test_a_key_of_payload_is_refused(catalog: sp.Catalog, tmp_path: Path) -> None:
    made = sp.connect(str(tmp_path / "catalog"))
    rows = pa.table({"sample_id": ["a", "b"], "ref": pa.array([b"x", b"y"], pa.large_binary())})
    made.register("images", sp.Arrow(rows), semantic={"ref": "image/jpeg-ref"})

    with pytest.raises(
        PlanError, match=r"sample \(shard_key\): 'ref' is image/jpeg-ref, so comparing it would read all"
    ):
        made.table("images").sample(order=order_of(["ref"]))
