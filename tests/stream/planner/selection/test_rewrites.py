"""Filters move to the scan of the relation they refer to, and never past what chooses among rows."""

from pathlib import Path

import pytest

import spiral_stream as sp
from spiral_stream.plan.tree import spine
from spiral_stream.planner.selection.rewrites import First, Head, Keep, Match, Rewritten, rewrite
from tests.fixtures import streams

LABEL, NAME = sp.col("label_id") == 2, sp.col("class_name") == "class 2"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return streams.make_catalog(tmp_path_factory.mktemp("images"))


def rewritten(relation: sp.Relation) -> Rewritten:
    verbs = list(spine(relation.node))[::-1]
    return rewrite(verbs[0].schema(), verbs[1:])


def joined(catalog: sp.Catalog, how: str = "inner") -> sp.Relation:
    labels = catalog.table("labels")
    return catalog.table("lance").join(labels, on="label_id", how=how)


def test_each_condition_of_an_and_moves_to_its_own_relation(catalog: sp.Catalog) -> None:
    found = rewritten(joined(catalog).filter(LABEL & NAME))

    assert [str(each) for each in found.pushed] == [str(LABEL)]
    (match,) = found.steps
    assert isinstance(match, Match)
    assert [text.replace(" ", "") for text in match.moved] == [str(NAME).replace(" ", "")]


def test_no_condition_moves_into_a_left_join(catalog: sp.Catalog) -> None:
    found = rewritten(joined(catalog, "left").filter(LABEL & NAME))

    assert [type(step) for step in found.steps] == [Match, Keep]
    assert [str(each) for each in found.pushed] == [str(LABEL)]


@pytest.mark.parametrize(("choose", "step"), [(lambda r: r.limit(5), Head), (lambda r: r.distinct("label_id"), First)])
def test_no_condition_moves_past_what_chooses_among_rows(catalog: sp.Catalog, choose: object, step: type) -> None:
    found = rewritten(choose(catalog.table("lance")).filter(LABEL))

    assert found.pushed == ()
    assert [type(each) for each in found.steps] == [step, Keep]


def test_a_condition_on_a_computed_column_is_pushed_in_terms_of_the_base(catalog: sp.Catalog) -> None:
    found = rewritten(catalog.table("lance").with_columns(double=sp.col("label_id") * 2).filter(sp.col("double") == 4))

    assert found.steps == ()
    assert [each.columns() for each in found.pushed] == [{"label_id"}]


def test_a_constant_stays_with_its_neighbour(catalog: sp.Catalog, tmp_path: Path) -> None:
    del tmp_path
    found = rewritten(catalog.table("lance").filter(LABEL & sp.lit(value=True)))

    assert len(found.pushed) == 1
    assert found.pushed[0].columns() == {"label_id"}
