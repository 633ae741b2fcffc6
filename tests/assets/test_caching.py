"""Progress of a build as log lines."""

from types import SimpleNamespace
from typing import cast

import dagster as dg
import pytest

import spiral_stream as spiral
from spiral_assets import caching


def progress(rows: int, total: int) -> spiral.results.Progress:
    return cast(
        "spiral.results.Progress",
        SimpleNamespace(rows=rows, rows_total=total, shards=rows // 10, shards_total=total // 10, payload_bytes=0),
    )


class Context:
    """What progress is reported to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.events: list[dg.AssetObservation] = []
        self.log = SimpleNamespace(info=self.lines.append)
        self.log_event = self.events.append
        self.asset_key = dg.AssetKey(["caches", "photos"])


def test_progress_is_logged_every_few_seconds_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    context, clock = Context(), SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(caching, "time", clock)
    now = 100.0
    reported = caching.ReportedProgress.of(cast("dg.AssetExecutionContext", context))

    for now, rows in ((101.0, 10), (102.5, 20), (103.0, 30), (105.0, 50), (105.1, 100)):  # noqa: B007  read by the clock
        reported(progress(rows, 100))

    assert context.lines == [
        "20/100 rows, 2/10 shards to do, 8 rows/s, ETA 10 s",
        "50/100 rows, 5/10 shards to do, 10 rows/s, ETA 5 s",
        "100/100 rows, 10/10 shards to do, 20 rows/s, ETA 0 s",
    ]
    assert context.events == []


def test_a_resumed_build_counts_what_was_built_before_and_shows_figures_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context, clock = Context(), SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(caching, "time", clock)
    now = 0.0
    before = [cast("spiral.results.CacheStatus", SimpleNamespace(built=900, rows=1_000))]
    reported = caching.ReportedProgress.of(cast("dg.AssetExecutionContext", context), before)

    for now, rows in ((10.0, 20), (25.0, 50)):  # noqa: B007  read by the clock
        reported(progress(rows, 100))

    assert context.lines[-1] == "950/1,000 rows, 5/10 shards to do, 2 rows/s, ETA 25 s"
    (event,) = context.events
    told = {name: value.value for name, value in event.metadata.items()}
    assert told == {"rows": 950, "rows_total": 1_000, "bytes": 0, "rows_per_second": 2.0, "seconds_left": 25}
