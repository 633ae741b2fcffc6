"""Mixtures by temperature, by tokens over a run, of different columns; streams one after the other; rows side by side."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream.plan.saving.canonical import to_json
from spiral_stream.sampling.mixing.sequential_mix import EpochInTurn
from tests.fixtures.inner import stages_of


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    catalog = sp.connect(tmp_path_factory.mktemp("mixing"))
    large = {"id": range(400), "tokens": [10] * 400, "x": [i / 2 for i in range(400)], "ids": [[1, 2]] * 400}
    small = {"id": range(1_000, 1_025), "tokens": [30] * 25, "y": [f"t{i}" for i in range(25)]}
    for name, columns in (("large", large), ("small", small)):
        catalog.register(name, sp.Arrow(pa.table(columns)), identity="id")
    return catalog


def streams(catalog: sp.Catalog, **options: Any) -> list[sp.Stream]:
    return [sp.Stream(name, catalog.table(name), **options) for name in ("large", "small")]


def stream(relation: sp.Relation, batch_size: int = 25, **fields: Any) -> sp.PreparedStream:
    sampled = relation.sample(order=sp.GlobalShuffle(1))
    every = {"id": sp.List("id"), "stream_id": sp.List("stream_id"), **fields}
    return sampled.collate(batch_size=batch_size, last=sp.KeepPartial, fields=every).to_numpy()


def quotas(relation: sp.Relation) -> list[int]:
    with stream(relation) as made:
        assert stages_of(made).epochs.mixture is not None
        return [int(each) for each in stages_of(made).epochs.mixture.quotas(0)]


# ---- temperature


@pytest.mark.parametrize("temperature", [0.5, 1, 2.0, 5.0])
def test_a_temperature_evens_out_the_sizes_of_streams(catalog: sp.Catalog, temperature: float) -> None:
    powers = np.array([400.0, 25.0]) ** (1 / temperature)

    found = quotas(sp.mix(streams(catalog), temperature=temperature))

    assert sum(found) == 425
    assert (np.abs(found - powers / powers.sum() * 425) < 1).all()


def test_a_temperature_is_of_proportions_where_there_are_some_and_of_tokens_with_by(catalog: sp.Catalog) -> None:
    given = [
        sp.Stream("large", catalog.table("large"), proportion=0.9),
        sp.Stream("small", catalog.table("small"), proportion=0.1),
    ]
    assert quotas(sp.mix(given, temperature=2, epoch_size=800)) == [600, 200]  # 3 to 1

    large, small = quotas(sp.mix(streams(catalog), temperature=2, by="tokens", epoch_size=10_000))
    assert abs(large * 10 / (small * 30) - (4_000 / 750) ** 0.5) < 0.01


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ({}, {"temperature": 0.0}, "temperature=0.0. Give a number above 0"),
        ({"repeat": 2}, {"temperature": 2.0}, "repeat= or choose= counts would not follow"),
        (
            {"proportion": 0.5},
            {"temperature": 2.0, "epoch_size": 10, "schedule": {0: {"large": 1, "small": 1}}},
            "a schedule would not",
        ),
        ({}, {"columns": "some"}, 'Give "common", or "all"'),
        ({"proportion": 0.5}, {"schedule_in": "by", "epoch_size": 10}, "without by= and a schedule"),
        ({"proportion": 0.5}, {"schedule": {0: {"large": 1}}}, "needs an epoch_size"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    catalog: sp.Catalog, given: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(sp.errors.PlanError, match=said):
        sp.mix(streams(catalog, **given), **options)


# ---- a schedule of tokens


def test_a_schedule_of_tokens_holds_at_its_points(catalog: sp.Catalog) -> None:
    points = {0: {"large": 0.5, "small": 0.5}, 400_000: {"large": 0.9, "small": 0.1}}
    relation = sp.mix(
        streams(catalog, proportion=0.5), by="tokens", epoch_size=40_000, schedule=points, schedule_in="by"
    )
    ordered = relation.sample(order=sp.GlobalShuffle(1)).order()

    names = np.array(ordered.rows(range(40_000))["stream_id"].to_pylist())

    tokens = np.where(names == "large", 10, 30)
    reached = int(np.searchsorted(np.cumsum(tokens), 400_000))
    after, whole = tokens[reached:][names[reached:] == "large"].sum(), tokens[reached:].sum()
    assert abs(after / whole - 0.9) < 0.01  # the share of tokens from the second point on
    before, begun = tokens[:2_000][names[:2_000] == "large"].sum(), tokens[:2_000].sum()
    assert 0.5 < before / begun < 0.56
    assert "from tokens" in str(stream(relation).explain())


# ---- different columns


def test_streams_of_different_columns_are_mixed_with_nulls(catalog: sp.Catalog) -> None:
    relation = sp.mix(streams(catalog), columns="all")
    assert sp.mix(streams(catalog)).schema.names == ["id", "tokens", "storage_shard", "stream_id"]
    assert {*relation.schema.names} == {"id", "tokens", "storage_shard", "stream_id", "x", "y", "ids"}

    more = {"x": sp.List("x"), "y": sp.List("y"), "ids": sp.Pad("ids", pad_value=-1)}
    with stream(relation, **more) as made:
        rows = [
            row
            for batch in made
            for row in zip(batch["id"], batch["x"], batch["y"], batch["ids"].tolist(), strict=True)
        ]
        catalog.save_stream("of-all-columns", made)
        with catalog.open_stream("of-all-columns") as again:
            assert again.fingerprint == made.fingerprint
    for key, x, y, ids in rows:
        small = key >= 1_000
        assert (x, y) == ((None, f"t{key - 1_000}") if small else (key / 2, None))
        assert [each for each in ids if each >= 0] == ([] if small else [1, 2])
    assert len(rows) == 425


def test_columns_of_different_types_are_refused_wherever_they_are(catalog: sp.Catalog) -> None:
    parts = [*streams(catalog), sp.Stream("other", catalog.table("small").project("id", y=sp.col("tokens")))]

    with pytest.raises(sp.errors.PlanError, match="column 'y' is string in stream 'small' and int64 in 'other'"):
        sp.mix(parts, columns="all")


def test_plans_without_the_new_options_are_saved_as_before(catalog: sp.Catalog) -> None:
    saved = to_json(sp.mix(streams(catalog)).node)

    assert {*saved} == {"verb", "parts", "epoch_size", "by", "schedule"}


# ---- one after the other


def test_an_epoch_of_concat_has_one_stream_after_the_other(catalog: sp.Catalog) -> None:
    parts = [
        sp.Stream("small", catalog.table("small"), repeat=2),
        sp.Stream("large", catalog.table("large"), choose=100),
    ]
    relation = sp.concat(parts)
    with stream(relation) as made:
        epochs = [
            [row for batch in made for row in zip(batch["stream_id"], batch["id"], strict=True)] for _ in range(2)
        ]
        assert made.locate(("large", epochs[1][60][1]), epoch=1) == {"epoch": 1, "batch": 2, "step": 2, "rank": 0}
        assert "one after the other" in str(made.explain())
    for epoch in epochs:
        assert [name for name, _ in epoch] == ["small"] * 50 + ["large"] * 100
        assert sorted(id for _, id in epoch[:25]) == sorted(id for _, id in epoch[25:50]) == [*range(1_000, 1_025)]  # noqa: A001
    assert not {*epochs[0][50:]} & {*epochs[1][50:]}  # the large one goes on where it was


def test_positions_of_streams_in_turn_are_the_sums_of_their_quotas() -> None:
    epoch = EpochInTurn(0, np.array([3, 0, 2]))
    positions = np.arange(5)

    names, samples = epoch.split(positions)

    assert (names.tolist(), samples.tolist()) == ([0, 0, 0, 2, 2], [0, 1, 2, 0, 1])
    assert (epoch.join(names, samples) == positions).all()
    assert [epoch.border(at)[1].tolist() for at in (0, 2, 4, 5)] == [[0, 0, 0], [2, 0, 0], [3, 0, 1], [3, 0, 2]]
    assert [epoch.shares(at).tolist() for at in (0, 3, 5)] == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]


def test_a_concat_of_mixtures_or_proportions_is_refused(catalog: sp.Catalog) -> None:
    whole = sp.Stream("mixed", sp.mix(streams(catalog)))
    turns = sp.Stream("turns", sp.concat(streams(catalog)))
    for made, said in (
        (lambda: sp.concat([whole]), "cannot both be mixtures"),
        (lambda: sp.mix([turns, whole]), "cannot both be mixtures"),
        (lambda: sp.concat(streams(catalog, proportion=0.5)), "has a proportion"),
        (lambda: sp.concat("large"), r"\[Stream\(name, relation\), ...\]"),  # type: ignore[arg-type]  # that is what is tested
    ):
        with pytest.raises(sp.errors.PlanError, match=said):
            made()
    sampled = sp.concat(streams(catalog)).sample(order=sp.GlobalShuffle(1))
    with pytest.raises(sp.errors.PlanError, match="concat reads one after the other"):
        sampled.collate(batch_size=5, fields={"id": sp.List("id")}, composition=sp.StratifiedByStream())


# ---- side by side


def test_rows_of_two_relations_are_zipped_by_position(catalog: sp.Catalog, tmp_path: Path) -> None:
    for part in range(8):
        rows = pa.table(
            {"key": [f"k{i}" for i in range(part * 50, part * 50 + 50)], "n": range(part * 50, part * 50 + 50)}
        )
        pq.write_table(rows, tmp_path / f"{part}.parquet", row_group_size=20)
    catalog.register("beside", sp.Parquet(str(tmp_path)), identity="key")

    zipped = catalog.sql("SELECT large.id, x, n FROM large POSITIONAL JOIN beside")

    with (
        zipped.sample(identity="id", order=sp.GlobalShuffle(1))
        .collate(batch_size=50, fields={"id": sp.Stack("id"), "n": sp.Stack("n")})
        .to_numpy() as made
    ):
        batches = list(made)
    assert sum(len(batch["id"]) for batch in batches) == 400
    assert all((batch["id"] == batch["n"]).all() for batch in batches)


@pytest.mark.parametrize("window", [None, 2])
def test_streams_that_follow_each_other_keep_their_sorts(catalog: sp.Catalog, window: int | None) -> None:
    order = sp.Sequential() if window is None else sp.orders.WindowShuffle(seed=1, window=window)
    sorted_down = [sp.Stream(name, catalog.table(name).sort("id", descending=True)) for name in ("large", "small")]
    sampled = sp.concat(sorted_down).sample(order=order)
    with sampled.collate(batch_size=425, fields={"id": sp.List("id")}).to_numpy() as made:
        (one,), (two,) = list(made), list(made)
    wanted = [*range(399, -1, -1), *range(1_024, 999, -1)]
    places = {identity: place for place, identity in enumerate(wanted)}
    for batch in (one, two):
        moved = [abs(places[identity] - at) for at, identity in enumerate(batch["id"])]
        assert max(moved) < (1 if window is None else 2 * window)


def test_the_order_of_storage_is_refused_where_streams_are_drawn(catalog: sp.Catalog) -> None:
    mixed = sp.mix(streams(catalog))
    with pytest.raises(
        sp.errors.PlanError, match=r"Sequential goes .* Take concat\(\[...\]\), which keeps each stream's order"
    ):
        mixed.sample(order=sp.Sequential())
    assert mixed.sample(order=sp.orders.WindowShuffle(seed=1, window=2)) is not None
