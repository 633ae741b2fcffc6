"""A loop that is back at once builds its batches itself: the same ones, in the same order, with errors at their places."""

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.runtime.batch.builder import BatchBuilder
from spiral_stream.runtime.batch.pending_batch import Pending
from spiral_stream.runtime.run import pipeline
from spiral_stream.testing import same
from tests.fixtures.streams import our_threads
from tests.fixtures.waits import FAR_S, until

pytestmark = [pytest.mark.usefixtures("no_threads_left")]
ROWS, BATCHES = 1_600, 100


@pytest.fixture
def rows(tmp_path: Path) -> sp.Relation:
    lists = [[row] * (row % 5 + 1) for row in range(ROWS)]
    table = pa.table({"id": range(ROWS), "x": np.arange(ROWS, dtype=np.float32), "tokens": lists})
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("rows", sp.Arrow(table), identity="id")
    return catalog.table("rows")


def stream_of(rows: sp.Relation, *, formed: bool = False, prefetch: int = 3) -> Any:
    sampled = rows.sample(order=sp.GlobalShuffle(seed=4))
    fields: dict[str, Any] = {"id": sp.Stack("id"), "ids": sp.Pad("tokens")}
    if formed:
        window = sp.WindowedBucket(200, [sp.BucketKey("len(tokens)")], sp.BatchBudget(max_tokens=64))
        return sampled.collate(batch_size=None, formation=window, fields=fields).to_numpy(prefetch=prefetch)
    return sampled.collate(batch_size=16, fields=fields).to_numpy(prefetch=prefetch)


class Builders:
    """Counts batches by the thread that begins them, and can fail at one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, hungry: bool) -> None:
        self.by: Counter[str] = Counter()
        self.bad: int | None = None
        begin = BatchBuilder.begin

        def counting(builder: BatchBuilder, epoch: int, numbers: range, *given: Any) -> Pending:
            self.by["feeder" if threading.current_thread().name == "spiral-feed" else "loop"] += 1
            if numbers.start == self.bad:
                msg = "rows cannot be read"
                raise sp.errors.SourceError(msg)
            return begin(builder, epoch, numbers, *given)

        monkeypatch.setattr(BatchBuilder, "begin", counting)
        for name in ("QUICK_S", "BACK_S"):
            monkeypatch.setattr(pipeline, name, FAR_S if hungry else -1.0)


@pytest.mark.parametrize("formed", [False, True])
def test_batches_do_not_depend_on_who_builds_them(
    rows: sp.Relation, monkeypatch: pytest.MonkeyPatch, *, formed: bool
) -> None:
    found = {}
    for hungry in (True, False):
        with monkeypatch.context() as patch, stream_of(rows, formed=formed) as stream:
            builders = Builders(patch, hungry=hungry)
            found[hungry] = [(batch, stream.state_dict()) for _ in range(2) for batch in stream]
        assert (builders.by["loop"] > len(found[hungry]) // 2) is hungry
        assert builders.by["loop"] + builders.by["feeder"] == len(found[hungry])

    assert len(found[True]) == len(found[False]) > BATCHES
    assert all(same(a, b) and s == t for (a, s), (b, t) in zip(found[True], found[False], strict=True))


@pytest.mark.parametrize("bad", [0, 1, 20, BATCHES - 1])
def test_an_error_comes_at_its_batch(rows: sp.Relation, monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    builders = Builders(monkeypatch, hungry=True)
    with stream_of(rows) as stream:
        builders.bad, seen = bad, list[Any]()
        with pytest.raises(sp.errors.SourceError, match="rows cannot be read"):
            seen.extend(stream)
        assert len(seen) == stream.state_dict()["batch"] == bad
        assert our_threads() == []
        builders.bad = None
        assert len(list(stream)) == BATCHES - bad


def test_a_loop_that_takes_its_time_finds_its_batches_built(rows: sp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    builders = Builders(monkeypatch, hungry=True)
    with stream_of(rows, prefetch=4) as stream:
        run = iter(stream)
        for _ in range(20):
            next(run)
        assert builders.by["loop"] > 0
        until(lambda: stream.metrics()["queued"] == 4)  # while it is away
        before = builders.by["loop"]
        for _ in range(4):
            next(run)
        assert builders.by["loop"] == before
        run.close()


def test_a_loop_that_is_away_for_longer_waits_for_the_feeder(
    rows: sp.Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders = Builders(monkeypatch, hungry=True)
    monkeypatch.setattr(pipeline, "BACK_S", 1e-4)
    with stream_of(rows) as stream:
        for _ in stream:
            time.sleep(0.001)
    assert builders.by == {"feeder": BATCHES}


def test_closing_from_another_thread_ends_a_hungry_loop(rows: sp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    builders = Builders(monkeypatch, hungry=True)
    stream, heard = stream_of(rows), list[Any]()

    def loop() -> None:
        try:
            while True:
                for _ in stream:
                    pass
        except sp.errors.StreamError as error:
            heard.append(str(error))

    consumer = threading.Thread(target=loop)
    consumer.start()
    until(lambda: builders.by["loop"] > 2 * BATCHES)
    stream.close()
    consumer.join(FAR_S)

    assert not consumer.is_alive()
    assert "closed" in heard[0]
