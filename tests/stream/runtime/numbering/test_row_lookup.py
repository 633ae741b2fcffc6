import pytest

import spiral_stream as sp
from spiral_stream.runtime.numbering.random_access import found_rows
from tests.fixtures.inner import stages_of
from tests.fixtures.texts import fields, make_catalog, tokenized


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("opening"), {"a": 30, "b": 7})


def plan(catalog: sp.Catalog, relation: sp.Relation, **collate: object) -> sp.Relation:
    sampled = tokenized(relation, sp.GlobalShuffle(seed=0))
    return sampled.collate(**{"batch_size": 4, "fields": fields(), **collate})  # type: ignore[arg-type]  # of a test


def test_a_row_is_found_by_its_identity_and_stream(catalog: sp.Catalog) -> None:
    docs = sp.mix(
        [sp.Stream("x", catalog.table("a")), sp.Stream("y", catalog.table("a")), sp.Stream("b", catalog.table("b"))]
    )
    with plan(catalog, docs).to_numpy() as stream, plan(catalog, catalog.table("a")).to_numpy() as single:
        assert found_rows(stages_of(stream), ("y", "a-4"), "locate") == (1, 4)
        assert found_rows(stages_of(stream), "b-3", "locate") == (2, 3)
        assert found_rows(stages_of(single), "a-9", "locate") == (0, 9)
        with pytest.raises(KeyError, match=r"'a-4' is in streams 'x', 'y'. Give \(stream, identity\)"):
            found_rows(stages_of(stream), "a-4", "locate")
        for nobody in ("a-99", ("z", "a-4"), ("b", "a-4")):
            with pytest.raises(KeyError, match="no row that the plan keeps has sample_id"):
                found_rows(stages_of(stream), nobody, "locate")
