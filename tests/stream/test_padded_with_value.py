"""`PadPartial(value=)`: the last batch is filled with a value, and a mask says which rows are samples."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import col
from spiral_stream.errors import PlanError
from spiral_stream.host_dtypes import BFLOAT16, widened
from spiral_stream.testing import frozen, same
from tests.fixtures.examples import few

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

ROWS = 61
FORMED = sp.WindowedBucket(window_size=32, keys=[sp.BucketKey("n")])
VALUES: list[Any] = [0, -7, {"label": -100}, {"ids": 3, "x": 0.5}]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    catalog = sp.connect(str(tmp_path_factory.mktemp("values") / "catalog"))
    numbers = np.arange(ROWS)
    columns = {
        "id": numbers,
        "n": numbers * 7 % 23,
        "label": numbers % 5 + 1,
        "x": (numbers + 1) / 4,
        "good": numbers >= 0,
        "ids": [list(range(1, n % 6 + 2)) for n in range(ROWS)],
        "shard": [f"s{n // 20}" for n in range(ROWS)],
    }
    catalog.register("d", sp.Arrow(pa.table(columns)), identity="id", shard="shard")
    return catalog


def fields() -> dict[str, Any]:
    stacked = {name: sp.Stack(name) for name in ("label", "x", "good")}
    return {
        "id": sp.List("id"),
        **stacked,
        "ids": sp.Pad("ids"),
        "pad": sp.PadMask("ids"),
        "bf": sp.Stack("x", dtype="bfloat16"),
    }


@few(8, 300)
@given(data=st.data())
def test_rows_that_are_no_samples_hold_the_value_and_all_others_are_those_of_pad_partial(
    catalog: sp.Catalog, data: st.DataObject
) -> None:
    """On any number of ranks, merged or not, in lanes, formed or counted, after a filter, and for each epoch."""
    value, size = data.draw(st.sampled_from(VALUES)), data.draw(st.integers(1, 24))
    formed, lanes = data.draw(st.sampled_from([None, FORMED])), data.draw(st.sampled_from([1, 2, 3]))
    world, merge, epoch = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2)), data.draw(st.integers(0, 2))
    ranks = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=lanes)
    rows = catalog.table("d").filter(col("n") < data.draw(st.integers(1, 23)))
    base = rows.sample(order=sp.GlobalShuffle(seed=3), assignment=ranks)

    def read(last: Any, rank: int) -> list[dict[str, Any]]:
        made = base.collate(batch_size=size, fields=fields(), formation=formed, last=last).to_torch()
        with made.bind(rank=rank, world_size=world, merge=merge, epoch=epoch) as stream:
            return [frozen(batch) for batch in stream]

    seen: list[int] = []
    filler = value if isinstance(value, dict) else dict.fromkeys(("label", "x", "ids", "bf"), value)
    for rank in range(world):
        by_value, repeated = read(sp.batching.PadPartial(value=value), rank), read(sp.batching.PadPartial, rank)
        assert len(by_value) == len(repeated)
        for batch, other in zip(by_value, repeated, strict=True):
            real = np.asarray(batch["real"])
            seen += [each for each, one in zip(batch["id"], real.tolist(), strict=True) if one]
            for name, values in other.items():
                if name == "id":
                    assert batch[name] == [
                        each if one else None for each, one in zip(values, real.tolist(), strict=True)
                    ]
                    continue
                assert batch[name].shape == values.shape
                assert same({"": np.asarray(batch[name])[real]}, {"": np.asarray(values)[real]})
                held = batch[name][~real]
                blank = (widened(held) if held.dtype == BFLOAT16 else held).astype(np.float64)
                assert (blank == (0 if name in ("good", "pad") else filler.get(name, 0))).all(), name
    assert sorted(seen) == sorted(rows.to_arrow()["id"].to_pylist())  # each sample once, and none that is not


def test_a_saved_plan_keeps_the_value_and_old_plans_keep_their_fingerprint(catalog: sp.Catalog) -> None:
    base = catalog.table("d").sample(order=sp.Sequential())
    rest: dict[str, Any] = {"batch_size": 8, "fields": {"x": sp.Stack("x"), "label": sp.Stack("label")}}
    assert (
        base.collate(last=sp.batching.PadPartial(), **rest).fingerprint
        == base.collate(last=sp.batching.PadPartial, **rest).fingerprint
    )

    stream = base.collate(last=sp.batching.PadPartial(value={"label": -100}, mask="ok"), **rest).to_numpy()
    catalog.save_stream("valued", stream)
    with catalog.open_stream("valued") as again, stream:
        assert again.fingerprint == stream.fingerprint
        *_, last = again
        assert last["ok"].tolist() == [True] * 5 + [False] * 3
        assert (last["label"][5:].tolist(), last["x"][5:].tolist()) == ([-100] * 3, [0.0] * 3)
        assert again.ledger(7) == list(range(56, 61))


@pytest.mark.parametrize(
    ("last", "options", "says"),
    [
        (lambda: sp.batching.PadPartial(value="a"), {}, "Give a finite number, or one for each field"),  # type: ignore[arg-type]
        (lambda: sp.batching.PadPartial(value=float("nan")), {}, "Give a finite number"),
        (lambda: sp.batching.PadPartial(value=0, mask=""), {}, "Give the name of the mask"),
        (lambda: sp.batching.PadPartial(value=0, mask="x"), {}, 'PadPartial\\(value=..., mask="is_sample"\\)'),
        (
            lambda: sp.batching.PadPartial(value=0.5),
            {},
            "does not fit field 'label', which is int64. Give values by field",
        ),
        (lambda: sp.batching.PadPartial(value={"other": 1}), {}, "names 'other', which is not a field. Leave it out"),
        (lambda: sp.batching.PadPartial(value={"id": 1}), {}, "names 'id', which is a list or a mask"),
        (
            lambda: sp.batching.PadPartial(value=0),
            {"formation": sp.batching.Packed(max_tokens=8)},
            r"with Packed.* Give PadPartial\(\)",
        ),
    ],
)
def test_what_no_row_can_hold_is_refused(catalog: sp.Catalog, last: Any, options: dict[str, Any], says: str) -> None:
    base = catalog.table("d").sample(order=sp.Sequential())
    some = {"ids": sp.Pad("ids")} if options else {"id": sp.List("id"), "x": sp.Stack("x"), "label": sp.Stack("label")}
    with pytest.raises(PlanError, match=says):
        base.collate(batch_size=8, fields=some, last=last(), **options)
