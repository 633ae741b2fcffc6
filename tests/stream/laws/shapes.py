"""Subjects whose batches have one shape each: every order, tail, crop and unit; with optimizer steps, costs and mixtures."""

from typing import Any, Final

from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import MakeStream
from tests.fixtures import shapes
from tests.stream.laws.subject import Subject

UNIT: Final = 12
ORDERS: Final = [sp.GlobalShuffle(seed=3), sp.ShardAwareShuffle(seed=4), sp.Sequential()]


def _shaped(catalog: sp.Catalog, drawn: dict[str, Any]) -> MakeStream:
    options = dict(drawn)
    step_batches, crop, skipped = (options.pop(name) for name in ("step_batches", "crop", "skipped"))
    texts = {"tokens": sp.Pad("tokens")} if options["cost"] else {}

    def make() -> sp.PreparedStream:
        stream = shapes.plan(catalog, given={**shapes.fields(crop), **texts}, **options).to_numpy()
        if skipped:
            stream.skip(batches=range(UNIT))
        return stream.bind(step_batches=step_batches) if step_batches else stream

    return make


def _drawn(step_batches: int | None, *, mixed: bool = False, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "batches": st.just(UNIT),
            "batch_size": st.integers(1, 2),
            "last": st.sampled_from([sp.KeepPartial, sp.DropPartial, sp.batching.PadPartial]),
            "crop": st.sampled_from(["random", "center", "none"]),
            "order": st.sampled_from(ORDERS[: 2 if mixed else 3]),
            "mixed": st.just(mixed),
            "cost": st.just(None),
            "step_batches": st.just(step_batches),
            "skipped": st.just(value=False),
            **more,
        }
    )


SUBJECTS: Final = [
    Subject(
        "one shape",
        shapes.make_catalog,
        _drawn(None, skipped=st.booleans()),
        _shaped,
        one_shape=("image",),
        by_night=60,
    ),
    Subject(
        "one shape, a mixture",
        shapes.make_catalog,
        _drawn(None, mixed=True),
        _shaped,
        one_shape=("image",),
        by_night=20,
    ),
    Subject(
        "one shape, even steps",
        shapes.make_catalog,
        _drawn(UNIT, cost=st.sampled_from([None, "len(tokens)"]), batch_size=st.just(1)),
        _shaped,
        step_batches=UNIT,
        one_shape=("image",),
        by_night=60,
    ),
]
