"""Progress of a build as log lines."""

from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

import spiral_stream as spiral
from spiral_assets import caching


def progress(rows: int, total: int) -> spiral.Progress:
    return cast(
        "spiral.Progress", SimpleNamespace(rows=rows, rows_total=total, shards=rows // 10, shards_total=total // 10)
    )


def test_progress_is_logged_every_few_seconds_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(caching, "time", clock)
    now = 100.0
    context: Any = SimpleNamespace(log=SimpleNamespace(info=lines.append))
    logged = caching.LoggedProgress(cast("dg.AssetExecutionContext", context))

    for now, rows in ((101.0, 10), (102.5, 20), (103.0, 30), (105.0, 50), (105.1, 100)):  # noqa: B007  read by the clock
        logged(progress(rows, 100))

    assert lines == [
        "20/100 rows, 2/10 shards, 8 rows/s, ETA 10 s",
        "50/100 rows, 5/10 shards, 10 rows/s, ETA 5 s",
        "100/100 rows, 10/10 shards, 20 rows/s, ETA 0 s",
    ]
