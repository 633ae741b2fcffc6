"""Chains of verbs leave the rows that the same verbs leave of plain dicts; and no payload is read to decide."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream import Catalog, KeepPartial, List, Sequential
from tests.fixtures import verbs

SOURCES = ["arrow", "lance", "parquet"]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return verbs.make_catalog(tmp_path_factory.mktemp("select"))


def streamed(chain: verbs.Chain, batch_size: int = 7) -> list[verbs.Row]:
    """The rows that a sampled stream delivers, with every column fetched late."""
    names = chain.names
    plan = chain.relation.sample(identity="id", order=Sequential()).collate(
        batch_size=batch_size, last=KeepPartial, fields={name: List(name) for name in names}
    )
    with plan.to_numpy() as stream:
        return [dict(zip(names, row, strict=True)) for b in stream for row in zip(*b.values(), strict=True)]


@given(data=st.data(), start=st.sampled_from(SOURCES))
@settings(max_examples=150)
def test_a_chain_leaves_the_rows_that_it_leaves_of_plain_dicts(
    catalog: Catalog, data: st.DataObject, start: str
) -> None:
    chain = data.draw(verbs.chains(catalog, start))

    found = chain.relation.to_arrow()

    assert found.schema.names == chain.names
    assert repr(found.to_pylist()) == repr(chain.expected()), chain.text


@given(data=st.data(), start=st.sampled_from(SOURCES))
@settings(max_examples=60)
def test_a_sampled_chain_delivers_them_in_relation_order(catalog: Catalog, data: st.DataObject, start: str) -> None:
    chain = data.draw(verbs.chains(catalog, start).filter(lambda c: c.sampled and c.rows and "id" in c.names))

    places = [row[verbs.AT] for row in chain.rows]
    expected = [chain.expected()[i] for i in np.argsort(places, kind="stable")]

    assert repr(streamed(chain)) == repr(expected), chain.text
