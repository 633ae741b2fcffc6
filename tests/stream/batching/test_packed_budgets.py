"""Packed rows with several budgets: each holds in every row, and every sample is delivered once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from tests.fixtures.examples import few

costs = st.tuples(st.integers(0, 20), st.integers(0, 4), st.integers(0, 60))  # tokens, images, patches of a sample


@given(
    samples=st.lists(costs, max_size=80),
    strategy=st.sampled_from(["best_fit", "first_fit"]),
    limits=st.sampled_from([(4, None), (None, 60), (5, 90)]),
    batch_size=st.integers(1, 3),
    key=st.integers(0, 2**64 - 1),
    window=st.integers(1, 30),
)
@few(60, 300)
def test_every_budget_holds_in_every_row(
    samples: list[tuple[int, int, int]],
    strategy: str,
    limits: tuple[int | None, int | None],
    batch_size: int,
    key: int,
    window: int,
) -> None:
    images, patches = limits
    policy = sp.batching.Packed(20, strategy, window_size=window, max_images=images, max_patches=patches)  # type: ignore[arg-type]  # drawn
    values = np.array(samples, np.int64).reshape(-1, 3)
    named = {"images": values[:, 1], "patches": values[:, 2]}
    former = policy.former(sp.batching.Setting(key=key, size=len(values), batch_size=batch_size))
    batches, at = [], 0
    while at < len(values) or not at:
        part = slice(at, at + former.room)
        at += former.room
        some = np.arange(len(values))[part]
        joined = sp.batching.Window(
            some,
            np.zeros(len(some), np.int32),
            values[part, 0],
            costs=tuple(named[name][part] for name in policy.cost_names),
        )
        batches += former.form(joined, final=at >= len(values))

    seen = [sample for batch in batches for sample in batch.samples.tolist()]
    assert sorted(seen) == list(range(len(values)))
    for batch in batches:
        assert batch.packing is not None
        assert batch.packing.lengths.tolist() == values[batch.samples, 0].tolist()
        rows = batch.packing.rows
        assert (np.bincount(rows, values[batch.samples, 0]) <= 20).all()
        for name, most in (("images", images), ("patches", patches)):
            if most is not None:
                assert (np.bincount(rows, named[name][batch.samples]) <= most).all()
        for row in range(batch.rows):  # no two pieces share a place
            mine = rows == row
            ends = (batch.packing.starts + batch.packing.lengths)[mine]
            assert (batch.packing.starts[mine][1:] >= ends[:-1]).all()
            assert (ends <= 20).all()


def test_a_budget_that_never_binds_changes_no_row_of_first_fit() -> None:
    lengths = np.random.default_rng(0).integers(1, 20, 60)
    plain = sp.batching.Packed(20, "first_fit")
    with_images = sp.batching.Packed(20, "first_fit", max_images=1_000)

    formed = []
    for policy, more in ((plain, ()), (with_images, (np.ones(60, np.int64),))):
        former = policy.former(sp.batching.Setting(key=1, size=60, batch_size=1))
        window = sp.batching.Window(np.arange(60), np.zeros(60, np.int32), lengths, costs=more)
        formed.append([each.samples.tolist() for each in former.form(window, final=True)])

    assert formed[0] == formed[1]
