"""CPU seconds of 300 relations in Dagster and a stream over one: load, a quiet tick, and one changed file to the rebuilt stream.

python -m benchmarks.one_change --count 300
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer

from benchmarks.assets import measured

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
CHANGED = 7  # the relation that the stream reads
LABELS = 5
MOST_TICKS = 6  # of the automation; by then the stream must be rebuilt
LOAD = """
import time
import dagster
import dagster.components
begun = time.process_time()
from pathlib import Path
from spiral_assets.yaml_definitions import definitions_from
graph = definitions_from(Path("defs.yaml")).get_repository_def().asset_graph
print(f"load {len(graph.get_all_asset_keys()):,} assets: {time.process_time() - begun:.2f} CPU s beyond dagster")
"""
PLAN = f"""
import spiral_stream as spiral


def training(catalog):
    order = spiral.GlobalShuffle(seed=0)
    fields = {{"score": spiral.Stack("score", dtype="float32")}}
    return catalog.table("shop.r{CHANGED:04d}").sample(order=order).collate(batch_size=8, fields=fields)
"""
YAML = f"""
type: spiral_assets.components.RelationCatalog
attributes:
  folder: data
  prefix: shop
  watch_s: 60
  options: {{labels: [label]}}
---
type: spiral_assets.components.Catalog
attributes: {{path: catalog, root: .}}
---
type: spiral_assets.components.TrainingStream
attributes:
  name: scores
  streams: [{{name: scores, plan: "benchmarked_plans:training"}}]
  deps: [catalog/shop/r{CHANGED:04d}]
---
type: spiral_assets.components.Upkeep
"""


@app.command()
def main(count: int = 300, rows: int = 100, loads: int = 5) -> None:
    """Measure a project.

    Args:
        count: relations.
        rows: of each.
        loads: how often the definitions are loaded.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["DAGSTER_HOME"] = str(Path(folder, "home"))
        Path("home").mkdir()
        Path("home", "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        Path("defs.yaml").write_text(YAML)
        Path("benchmarked_plans.py").write_text(PLAN)
        sys.path.insert(0, folder)
        Path("data").mkdir()
        for number in range(count):
            _write(number, rows)
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
        for _ in range(loads + 1):  # the first one looks into the folder
            subprocess.run([sys.executable, "-c", LOAD], check=True, env=environment)
        _runs(rows)


def _write(number: int, rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng([number, rows])
    ids = [f"{number}-{row}" for row in range(rows)]
    table = pa.table({"sample_id": ids, "label": rng.integers(0, LABELS, rows), "score": rng.normal(size=rows)})
    pq.write_table(table, Path("data", f"r{number:04d}.parquet"))


def _runs(rows: int) -> None:
    import dagster as dg

    from spiral_assets.yaml_definitions import definitions_from

    defs = definitions_from(Path("defs.yaml"))
    keys = {each.key for each in defs.resolve_all_asset_specs()}
    stream = dg.AssetKey(["streams", "scores"])
    (sensor,) = [each for each in defs.sensors or () if str(getattr(each, "name", "")).startswith("watch_")]
    quiet: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with dg.DagsterInstance.get() as instance:
        looked, ticked = None, None

        def run(wanted: set[dg.AssetKey]) -> None:
            job = dg.define_asset_job("part", dg.AssetSelection.assets(*wanted))
            made = dg.Definitions.merge(defs, dg.Definitions(jobs=[job])).resolve_job_def("part")
            assert made.execute_in_process(instance=instance, run_config=quiet, raise_on_error=False).success

        def look() -> set[dg.AssetKey]:
            nonlocal looked
            context = dg.build_sensor_context(instance, cursor=looked, resources=dict(defs.resources or {}))
            found: Any = sensor(context)  # type: ignore[operator]  # a sensor is called with its context
            looked = found.cursor
            return {key for each in found.run_requests or () for key in each.asset_selection or ()}

        def tick() -> set[dg.AssetKey]:
            nonlocal ticked
            found = dg.evaluate_automation_conditions(defs, instance, cursor=ticked)
            ticked = found.cursor
            return {each.key for each in found.results if not each.true_subset.is_empty}

        def version() -> str | None:
            event = instance.get_latest_materialization_event(stream)
            made = None if event is None else event.asset_materialization
            return (made.tags or {}).get("dagster/data_version") if made is not None else None

        with measured(f"a run of all {len(keys):,} assets"):
            run(keys)
        look(), tick(), tick()
        with measured("a quiet look of the sensor"):
            assert not look()
        with measured("a quiet tick of the automation"):
            assert not tick()
        before = version()
        _write(CHANGED, rows + 1)
        with measured("one changed file to the rebuilt stream"):
            with measured("  the look that sees it"):
                wanted = look()
            with measured(f"  the run that registers {len(wanted)}"):
                run(wanted)
            for number in range(1, MOST_TICKS + 1):
                with measured(f"  tick {number}"):
                    wanted = tick()
                if wanted:
                    with measured(f"  the run of {', '.join(sorted(each.to_user_string() for each in wanted))}"):
                        run(wanted)
                elif version() != before:
                    break
        assert version() != before, "the stream was not rebuilt"


if __name__ == "__main__":
    app()
