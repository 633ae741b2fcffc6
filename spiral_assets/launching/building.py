"""Build the caches and kept values of a plan, and say through Dagster Pipes how far it is.

python -m spiral_assets.launching.building '{"catalog": "catalog", "plan": {"function": "shop.plans:every_photo"}}'
"""

import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from spiral_assets.caching import ReportedProgress, need_caches
from spiral_assets.launching.messages import OBSERVED
from spiral_assets.named import Named, Plan, SavedPlan

if TYPE_CHECKING:
    from dagster_pipes import PipesContext


def work_of(catalog: str, plan: Plan, executor: str, workers: int | None) -> dict[str, Any]:
    """Return what the program is given.

    Args:
        catalog: folder or URI.
        plan: a `Named` function, or a `SavedPlan`.
        executor: ``threads``, ``processes`` or ``ray``.
        workers: how many work at a time.
    """
    assert isinstance(plan, Named | SavedPlan)
    said = (
        {"function": plan.function, "arguments": dict(plan.arguments)}
        if isinstance(plan, Named)
        else {"stream": plan.stream, "trust": list(plan.trust)}
    )
    return {"catalog": catalog, "plan": said, "executor": executor, "workers": workers}


def _plan(said: Mapping[str, Any]) -> Plan:
    if "stream" in said:
        return SavedPlan(said["stream"], tuple(said["trust"]))
    return Named(said["function"], said.get("arguments", {}))


def _observe(pipes: "PipesContext", facts: Mapping[str, Any]) -> None:
    pipes.report_custom_message({OBSERVED: facts})


def build(work: Mapping[str, Any]) -> None:
    """Build what is missing.

    Args:
        work: from `work_of`.
    """
    from dagster_pipes import open_dagster_pipes

    import spiral_stream as spiral

    with open_dagster_pipes() as pipes:
        begun = time.monotonic()
        with _plan(work["plan"])(spiral.connect(work["catalog"])).to_numpy() as stream:
            observe = partial(_observe, pipes)
            progress = ReportedProgress(pipes.log.info, observe, need_caches(stream))
            done = stream.materialize(progress, workers=work.get("workers"), executor=work.get("executor") or "threads")
        seconds = time.monotonic() - begun
        facts = {"rows": done.rows, "refused": done.refused, "shards": done.shards, "seconds": seconds}
        pipes.report_asset_materialization(metadata=facts)


if __name__ == "__main__":
    build(json.loads(sys.argv[1]))
