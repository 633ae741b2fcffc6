"""Work on a batch's rows, done without those that fail; and fields without them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import DataError, SourceError
from spiral_stream.runtime import bad_samples
from spiral_stream.runtime.bad_samples import BatchRefusals, Refusals, RefusalTally
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.quarantine import Quarantine
from tests.fixtures.damaged import catalog, image_plan
from tests.fixtures.inner import drawn_of, stages_of

# B rows of a batch


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes the refusals of a batch of B rows, of one policy."""
    folder = tmp_path_factory.mktemp("images")
    rows = catalog(folder, "images", whole=True).table("rows")
    streams = {
        name: image_plan(rows, sp.Sequential(), batch_size=60, on_error=name).to_numpy()
        for name in ("raise", "skip", "substitute")
    }

    def make(name: str, bounds: list[int], allowed: int | None = None) -> BatchRefusals:
        stream = streams[name]
        made = Refusals(stages_of(stream), Metrics(), Quarantine(folder, stages_of(stream), None), RefusalTally())
        made.allowed = made.allowed if allowed is None else allowed
        samples = drawn_of(stream, 0, 0).samples.take(np.arange(bounds[-1]))
        return BatchRefusals(made, 0, range(len(bounds) - 1), samples, np.diff(bounds).tolist())

    yield make
    for stream in streams.values():
        stream.close()


def worker(bad: set[int], done: list[int], *, told: bool) -> Any:
    """Work that fails at the first bad row of a run, and says which it was if ``told``."""

    def work(begin: int, end: int) -> None:
        for row in range(begin, end):
            if row in bad:
                msg = f"row {row}"
                raise DataError(msg, row=row - begin if told else None)
        done.extend(range(begin, end))

    return work


@given(
    bad=st.sets(st.integers(0, 39)),
    first=st.integers(0, 20),
    last=st.integers(20, 40),
    told=st.booleans(),
)
def test_every_good_row_is_done_once_and_every_bad_one_is_refused(
    policy: Any, bad: set[int], first: int, last: int, told: bool
) -> None:
    batch, done = policy("skip", [0, 40]), list[int]()
    batch.attempt("image", first, last, worker(bad, done, told=told))

    mine = set(range(first, last))
    assert sorted(done) == sorted(mine - bad)
    assert set(range(40)) - set(batch.good().tolist()) == bad & mine


def test_work_that_does_not_fail_is_called_once(policy: Any) -> None:
    calls: list[tuple[int, int]] = []
    policy("substitute", [0, 40]).attempt("image", 3, 9, lambda a, b: calls.append((a, b)))
    assert calls == [(3, 9)]


def test_a_plan_that_raises_names_the_sample_and_the_ways_out(policy: Any) -> None:
    message = (
        r"rows: sample sample_id='rows-\d+': row 7\. Mend it, or leave it out with .*, or go on without such samples: "
        r'collate\(\.\.\., on_error="skip"\)'
    )
    with pytest.raises(DataError, match=message):
        policy("raise", [0, 40]).attempt("image", 4, 12, worker({7}, [], told=True))


@pytest.mark.parametrize("name", ["raise", "skip", "substitute"])
def test_storage_is_never_skipped(policy: Any, name: str) -> None:
    def work(begin: int, end: int) -> None:
        del begin, end
        raise SourceError("no disk", row=2)

    batch = policy(name, [0, 40])
    with pytest.raises(
        SourceError, match=r"sample_id='rows-\d+': no disk\. Mend it, or leave it out .* before sample$"
    ):
        batch.attempt("image", 0, 8, work)
    assert len(batch.good()) == 40


def test_of_several_reasons_the_first_fields_holds(policy: Any) -> None:
    for order in (("image", "label"), ("label", "image")):
        batch = policy("skip", [0, 8])
        for field in order:
            batch.attempt(field, 0, 8, worker({3}, [], told=True))
        assert batch.found[3].field == "image"


@given(
    bad=st.sets(st.integers(0, 19), max_size=12),
    cut=st.integers(1, 19),
    name=st.sampled_from(["skip", "substitute"]),
)
def test_fields_are_settled_batch_by_batch(policy: Any, bad: set[int], cut: int, name: str) -> None:
    bounds = [0, cut, 20]
    fields = {"image": np.arange(60).reshape(20, 3), "label": np.arange(20), "sample_id": [*range(20)]}
    batch = policy(name, bounds, allowed=20)
    batch.attempt("image", 0, 20, worker(bad, [], told=True))
    parts = [range(a, b) for a, b in ((0, cut), (cut, 20))]
    if emptied := [at for at, part in enumerate(parts) if part and set(part) <= bad]:
        assert batch.emptied() == emptied
        return
    wanted = [row for row in range(20) if row not in bad]
    if name == "substitute":
        wanted = []
        for part in parts:
            turned = [*part, *part]
            wanted += [next(r for r in turned[at:] if r not in bad) for at in range(len(part))]
    memory = fields["label"]
    batch.record()
    settled = batch.remaining(fields)

    assert settled["label"].tolist() == settled["sample_id"] == wanted
    assert settled["image"][:, 0].tolist() == [3 * row for row in wanted]
    assert np.shares_memory(settled["label"], memory)  # in place: the slot stays the batch's


def test_a_batch_is_counted_once_and_epochs_apart() -> None:
    tally = RefusalTally()
    assert tally.add(0, {3: 2, 4: 1}) == (True, 3)
    assert tally.add(0, {3: 2}) == (False, 3)
    assert tally.add(1, {3: 5}) == (True, 5)
    assert tally.add(0, {4: 1, 5: 2}) == (True, 5)
    for epoch in range(2, 2 + bad_samples.EPOCHS):
        tally.add(epoch, {0: 1})
    assert tally.add(0, {3: 2}) == (True, 2)  # long gone
