"""The evaluation of a plan draws nothing at random and leaves nothing out."""

import spiral_stream as sp
from spiral_stream.plan.functions.evaluation import evaluation
from spiral_stream.plan.nodes import Collate, Sample
from spiral_stream.plan.tree import need
from tests.fixtures import streams


def test_rows_and_names_stay_and_randomness_goes(catalog: sp.Catalog) -> None:
    plan = streams.plan(catalog.table("lance"), transforms=streams.RANDOM, last=sp.DropPartial).to_numpy().plan

    found = evaluation(plan, 3, sp.KeepPartial())

    before, after = need(plan, Collate), need(found, Collate)
    assert need(found, Sample).epoch == 3
    assert after.last == sp.KeepPartial()
    assert [name for name, _ in after.fields] == [name for name, _ in before.fields]
    image = dict(after.fields)["image"]
    assert isinstance(image, sp.Stack)
    assert [type(each) for each in image.transforms] == [sp.transforms.Resize, sp.transforms.CenterCrop]
    assert evaluation(found, 3, sp.KeepPartial()).source.schema() == found.source.schema()
