"""The mix section: what each stream was promised and gets."""

from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.statistics.measure import measure, save_statistics
from tests.fixtures.texts import SMALL_PLANS
from tests.stream.explain.mixtures import SIZES, make_catalog, program
from tests.stream.explain.words import in_words

pytestmark = SMALL_PLANS


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    """Three relations; the token cache holds all rows."""
    catalog = make_catalog(tmp_path_factory.mktemp("mix"))
    with program(catalog) as stream:
        stream.materialize(lambda _: None)
    return catalog


def mix_of(stream: sp.PreparedStream) -> Any:
    with stream:
        return in_words(stream.explain())["mix"]


def lengths(catalog: sp.Catalog, name: str) -> np.ndarray:
    table = catalog.table(name).filter(sp.col("quality") >= 0.2).to_arrow()
    return np.array([len(each) for each in table["tokens"].to_pylist()])


def test_quotas_passes_and_shares_of_tokens_are_those_of_the_plan(catalog: sp.Catalog) -> None:
    found = mix_of(program(catalog))
    rows = found["streams"]
    own = [lengths(catalog, name) for name in SIZES]
    tokens = [row["quota"] * each.mean() for row, each in zip(rows, own, strict=True)]

    assert [row["quota"] for row in rows] == [700, 100, 200]
    assert [row["eligible rows"] for row in rows] == [len(each) for each in own]
    assert [row["passes this epoch"] for row in rows] == [q / len(o) for q, o in zip((700, 100, 200), own, strict=True)]
    assert [row["tokens a row"] for row in rows] == [f"{each.mean():,.1f}" for each in own]
    assert [row["share of tokens"] for row in rows] == [f"~{each / sum(tokens):.1%}" for each in tokens]
    assert found["tokens from"] == "the token cache"


def test_whole_passes_make_the_share_of_tokens_exact(catalog: sp.Catalog) -> None:
    found = mix_of(program(catalog, shares=dict.fromkeys(SIZES), epoch_size=None))

    assert all(row["passes this epoch"] == 1 for row in found["streams"])
    assert not any(row["share of tokens"].startswith("~") for row in found["streams"])


def test_unknown_lengths_name_what_would_tell(tmp_path: Any) -> None:
    found = mix_of(program(make_catalog(tmp_path)))

    assert found["share of tokens"] == "unknown: materialize the token cache"
    assert "tokens a row" not in found["streams"][0]


def test_what_proportions_by_tokens_would_give_is_what_they_give(catalog: sp.Catalog) -> None:
    would = [float(row["samples by tokens"].strip("~%")) for row in mix_of(program(catalog))["streams"]]
    by = mix_of(program(catalog, by="size"))
    gives = [row["quota"] / 10 for row in by["streams"]]

    assert would == pytest.approx(gives, abs=1)  # size is one more than the tokens
    assert by["proportions"] == "of size, by its mean over the rows that pass"
    assert by["streams"][0]["mean size"] == pytest.approx(lengths(catalog, "fineweb").mean() + 1)


def test_statistics_of_an_estimate_stand_in_for_lengths(tmp_path: Any) -> None:
    catalog = make_catalog(tmp_path)
    for name in SIZES:
        table = catalog.table(name).to_arrow()
        table = table.append_column("token_count_estimate", table["size"])
        catalog.register(f"{name}2", sp.Arrow(table), identity="sample_id", shard="storage_shard")
        entry = catalog.entry(f"{name}2")
        with OpenRelation(entry) as relation:
            save_statistics(entry, measure(relation))
    found = mix_of(
        program(catalog, shares={f"{name}2": share for name, share in zip(SIZES, (0.7, 0.1, 0.2), strict=True)})
    )

    assert found["tokens from"] == "statistics of token_count_estimate"
    assert found["by tokens"].startswith('mix(by="token_count_estimate") would')
    assert all(row["tokens a row"].startswith("~") for row in found["streams"])


def test_repeats_are_warned_of_with_the_worst_first(catalog: sp.Catalog) -> None:
    with program(catalog, epoch_size=10_000) as stream:
        warnings = in_words(stream.explain())["warnings"]

    (repeats,) = [line for line in warnings if "repeat" in line]
    assert repeats.startswith(
        "1 rows repeat more than 4 times an epoch: fineweb 29.2 times, code 20.8 times, wikipedia 15.6"
    )
    assert "Lower epoch_size or their proportions, add data" in repeats


def test_a_schedule_shows_its_points_and_where_the_epoch_goes(catalog: sp.Catalog) -> None:
    schedule = {0: {"fineweb": 1.0}, 500: {"fineweb": 0.5, "code": 0.4, "wikipedia": 0.1}}
    found = mix_of(program(catalog, composition=None, schedule=schedule))

    assert [row["target"] for row in found["streams"]] == [
        "100.000% -> 50.000%",
        "0.000% -> 10.000%",
        "0.000% -> 40.000%",
    ]
    assert found["schedule"][1] == {"from sample": 500, "proportions": "fineweb 0.5, wikipedia 0.1, code 0.4"}


def test_a_plan_without_a_mixture_has_none(catalog: sp.Catalog) -> None:
    one = catalog.table("code").sample(order=sp.Sequential()).collate(batch_size=4, fields={"id": sp.List("sample_id")})

    assert mix_of(one.to_numpy()) == "none"
