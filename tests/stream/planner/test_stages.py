"""What the stage list tells of a stream before it runs is what its batches then have."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.planner.stages import Stages
from tests.fixtures import streams, texts
from tests.fixtures.inner import lower_plan, stages_of

TEXT_FIELDS: dict[str, Any] = {
    "sample_id": sp.List("sample_id"),
    "six": sp.Pad("tokens", pad_to_multiple_of=6),
    "eight": sp.PadMask("tokens", pad_to_multiple_of=8),
    "quality": sp.Stack("quality", dtype="float16"),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    catalog = texts.make_catalog(tmp_path_factory.mktemp("physical"), {"a": 20, "b": 10})
    relation = texts.mixed(catalog, {"a": 0.5, "b": 0.5}, 20)
    plan = texts.tokenized(relation, sp.GlobalShuffle(seed=1)).collate(batch_size=4, fields=TEXT_FIELDS)
    stages = lower_plan(plan.to_numpy().plan, catalog.registry)
    yield stages
    stages.close()


def test_widths_of_one_column_share_a_multiple(text: Stages) -> None:
    assert text.multiple("tokens") == 24


def test_fields_come_in_the_plans_order_and_identities_first_of_what_is_read(text: Stages) -> None:
    assert text.field_names == tuple(TEXT_FIELDS)
    assert text.columns == ("sample_id", "quality")
    assert (text.mixed, text.formed, text.order) == (True, False, sp.GlobalShuffle(seed=1))
    assert replace(text, formation=sp.WindowedBucket(8, [sp.BucketKey("size")])).formed
    assert [stage.name for stage in text.plains] + [stage.name for stage in text.sequences] == [
        "sample_id",
        "quality",
        "six",
        "eight",
    ]


def test_each_stream_of_a_mixture_has_a_cache_of_its_own_relation(text: Stages) -> None:
    (tokens,) = text.tokens

    assert [each.payload.relation.entry.name for each in tokens.caches] == ["a", "b"]
    assert [each.relation.entry.name for each in tokens.payloads] == ["a", "b"]
    assert len({each.store.folder for each in tokens.caches}) == 2


@given(rows=st.integers(0, 1000))
def test_lengths_that_only_the_data_knows_count_as_256(rows: int, text: Stages) -> None:
    assert text.batch_bytes(rows) == rows * (2 + 256 * 8 + 256 * 8)


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_bytes_of_a_batch_are_those_of_its_arrays(dtype: str, catalog: sp.Catalog) -> None:
    fields = {"image": sp.Stack("image_ref", decode="jpeg", crop=16, dtype=dtype), "label": sp.Stack("label_id")}
    sampled = catalog.table("lance").sample(identity="sample_id", order=sp.Sequential(), epoch=0)
    with sampled.collate(batch_size=3, fields=fields).to_numpy() as stream:
        batch = next(iter(stream))
        stages = stages_of(stream)
        image, label = stages.fields

        assert stages.batch_bytes(3) == sum(batch[name].nbytes for name in fields)
        assert (3, *image.spec.shape) == batch["image"].shape
        assert label.shape(3) == batch["label"].shape
        assert [each.relation.entry.name for each in image.payloads] == ["lance"]


def test_closing_the_stages_closes_the_relations(own: sp.Catalog) -> None:
    stages = lower_plan(streams.plan(own.table("lance"), epoch=0).to_numpy().plan, own.registry)
    base = stages.streams[0].base
    assert base.fetch(np.zeros(1, np.uint64), ["label_id"]).num_rows == 1
    stages.close()

    with pytest.raises(sp.errors.SourceError, match="closed"):
        base.fetch(np.zeros(1, np.uint64), ["label_id"])
