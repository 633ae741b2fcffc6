"""Networks as text: bandwidth and latency, in the units that people write."""

from typing import Any

import pytest

from spiral_stream.errors import PlanError
from spiral_stream.explain.network.link import link_of


@pytest.mark.parametrize(
    ("text", "bytes_per_s", "latency_s"),
    [
        ("10 Gbit/s, 50 ms", 1.25e9, 0.05),
        ("200 MB/s, 20 ms", 2e8, 0.02),
        ("1.5Gbps,200us", 1.875e8, 2e-4),
        (" 100 MiB/s , 1 s ", 100 * 2**20, 1.0),
        ("25 Gb/s, 0 ms", 3.125e9, 0.0),
        ("800 kB/s, 0.5 s", 8e5, 0.5),
    ],
)
def test_a_network_is_read_as_it_is_written(text: str, bytes_per_s: float, latency_s: float) -> None:
    found = link_of(text)

    assert (found.bytes_per_s, found.latency_s) == (pytest.approx(bytes_per_s), pytest.approx(latency_s))
    assert found.text == text.strip()


@pytest.mark.parametrize(
    "text", ["", "fast", "10 Gbit/s", "50 ms, 10 Gbit/s", "10 Gbit, 5 ms", "0 MB/s, 1 ms", "-1 MB/s, 1 ms", 7]
)
def test_what_is_no_network_is_refused_with_one_that_is(text: Any) -> None:
    with pytest.raises(PlanError, match=r'Give the bandwidth .* a request: "10 Gbit/s, 50 ms" or "200 MB/s, 20 ms"'):
        link_of(text)
