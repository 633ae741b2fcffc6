import pytest

import spiral_stream as sp
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.run.opened_plan import Opening
from tests.fixtures.texts import fields, make_catalog, mixed, tokenized


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("opening"), {"a": 30, "b": 7})


def plan(catalog: sp.Catalog, relation: sp.Relation, **collate: object) -> sp.Relation:
    sampled = tokenized(relation, sp.GlobalShuffle(seed=0))
    return sampled.collate(**{"batch_size": 4, "fields": fields(), **collate})  # type: ignore[arg-type]  # of a test


def test_another_run_seed_is_another_reader(catalog: sp.Catalog) -> None:
    deliver = plan(catalog, catalog.table("a")).to_numpy().plan
    opening = Opening(deliver, catalog.registry, Metrics())
    first = opening.read(1)
    assert opening.read(1) is first
    assert opening.read(2).reader.run_seed == 2
    stages = opening.stages
    opening.close()
    assert opening.stages is not stages
    opening.close()


def test_what_a_random_map_decides_is_kept_by_run_seed(catalog: sp.Catalog) -> None:
    """The formation index of one run is not another's."""
    import numpy as np
    import pyarrow as pa

    def some(size: int, rng: np.random.Generator) -> list[int]:
        return [size] * int(rng.integers(0, 3))

    sampled = catalog.table("a").sample(order=sp.Sequential())
    flat = sampled.flat_map(some, name="size", columns=["size"], returns=pa.int64(), fan_out=2, random=True)
    plan = flat.collate(batch_size=1, fields={"id": sp.List("sample_id")}, last=sp.KeepPartial)
    counts = []
    for seed in (1, 2, 3):
        for _ in range(2):
            with plan.to_numpy().bind(run_seed=seed) as stream:
                counts.append((stream.count(), len(list(stream))))
    assert all(known == delivered for known, delivered in counts)
    assert len(set(counts)) > 1


def test_a_stream_sees_what_it_has_built(catalog: sp.Catalog) -> None:
    formation = sp.WindowedBucket(window_size=16, keys=[sp.BucketKey("len(tokens)")])
    with plan(catalog, mixed(catalog, {"a": 0.5, "b": 0.5}, 40), formation=formation).to_numpy() as stream:
        list(stream)
        text = stream.metrics()["source_bytes"]
        assert text > 0
        stream.materialize(lambda _: None)
        list(stream)
        assert stream.metrics()["source_bytes"] == text
        assert len(list(stream.bind(rank=1, world_size=2))) > 0
