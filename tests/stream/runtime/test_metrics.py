from concurrent.futures import ThreadPoolExecutor

import pytest

from spiral_stream.runtime.metrics import Metrics, timed


def test_totals_add_up_over_threads() -> None:
    metrics = Metrics()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: metrics.add(batches=1, samples=3), range(500)))

    assert (metrics.as_dict()["batches"], metrics.as_dict()["samples"]) == (500, 1500)


@pytest.mark.parametrize(
    ("totals", "verdict"),
    [
        ({}, "unknown: nothing was delivered yet. Loop over some batches first"),
        ({"batches": 1, "consumer_waited_s": 1.0, "feeder_waited_s": 2.0}, "consumer"),
        ({"batches": 1, "consumer_waited_s": 2.0, "fetch_s": 2.0, "transform_s": 1.0}, "fetch"),
        ({"batches": 1, "consumer_waited_s": 2.0, "fetch_s": 1.0, "transform_s": 2.0}, "transform"),
    ],
)
def test_the_verdict_names_what_the_others_wait_for(totals: dict[str, float], verdict: str) -> None:
    metrics = Metrics()
    metrics.add(**totals)

    assert metrics.as_dict()["bound_by"] == verdict


def test_rates_have_operands_or_are_unknown() -> None:
    metrics = Metrics()
    assert metrics.as_dict()["cache_hit_rate"] is None
    metrics.add(cached_rows=3, source_rows=1)

    assert metrics.as_dict()["cache_hit_rate"] == 0.75


def test_time_is_counted_also_when_the_block_fails() -> None:
    metrics = Metrics()
    with pytest.raises(KeyError), timed(metrics, "fetch_s"):
        raise KeyError

    assert metrics.fetch_s > 0
