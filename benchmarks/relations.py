"""CPU seconds of many relations of one file in Dagster: load, look, one run that registers them, one that measures them.

python -m benchmarks.relations --count 1000
python -m benchmarks.relations --count 300 --only load,look
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import typer

from benchmarks.assets import measured

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
LABELS = 5
LOAD = """
import time
import dagster
import dagster.components
begun = time.process_time()
from pathlib import Path
from spiral_assets.yaml_definitions import definitions_from
defs = definitions_from(Path("defs.yaml"))
graph = defs.get_repository_def().asset_graph
spent = time.process_time() - begun
print(f"{len(graph.get_all_asset_keys()):,} assets, {len(graph.asset_check_keys):,} checks: {spent:.2f} CPU s beyond dagster")
"""
YAML = """
type: spiral_assets.components.RelationCatalog
attributes:
  folder: data
  prefix: shop
  watch_s: 60
  options: {{labels: [label]{options}}}
{more}---
type: spiral_assets.components.Catalog
attributes: {{path: catalog, root: .}}
---
type: spiral_assets.components.Upkeep
"""


@app.command()
def main(
    count: int = 1_000,
    rows: int = 100,
    only: str = "load,look,register,measure,tick,again",
    options: str = "",
    more: str = "",
) -> None:
    """Measure a folder of relations.

    Args:
        count: relations.
        rows: of each.
        only: what is measured.
        options: more fields of all relations, as YAML has them.
        more: fields of the component, as YAML has them.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["DAGSTER_HOME"] = str(Path(folder, "home"))
        Path("home").mkdir()
        Path("home", "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        said = f"  {more}\n" if more else ""
        Path("defs.yaml").write_text(YAML.format(options=f", {options}" if options else "", more=said))
        _write(Path("data"), count, rows)
        for _what in ("load", "load", "load") if "load" in only else ():  # the first one looks into the folder
            subprocess.run([sys.executable, "-c", LOAD], check=True)
        _runs(only.split(","))


def _write(folder: Path, count: int, rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        ids = [f"{number}-{row}" for row in range(rows)]
        table = pa.table({"sample_id": ids, "label": rng.integers(0, LABELS, rows), "score": rng.normal(size=rows)})
        pq.write_table(table, folder / f"r{number:04d}.parquet")


def _runs(only: list[str]) -> None:
    import dagster as dg

    from spiral_assets.yaml_definitions import definitions_from

    defs = definitions_from(Path("defs.yaml"))
    keys = {each.key for each in defs.resolve_all_asset_specs()}
    jobs = [
        dg.define_asset_job("register", dg.AssetSelection.groups("catalog")),
        dg.define_asset_job("measure", dg.AssetSelection.groups("stats")),
    ]
    made = dg.Definitions.merge(defs, dg.Definitions(jobs=jobs))
    (sensor,) = [each for each in made.sensors or () if str(getattr(each, "name", "")).startswith("watch_")]
    quiet: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    print(f"{len(keys):,} assets")
    with dg.DagsterInstance.get() as instance:
        cursor = None

        def look() -> None:
            nonlocal cursor
            with measured("a look of the sensor"):
                context = dg.build_sensor_context(instance, cursor=cursor, resources=dict(made.resources or {}))
                found: Any = sensor(context)  # type: ignore[operator]  # a sensor is called with its context
            cursor = found.cursor
            asked = [len(each.asset_selection or ()) for each in found.run_requests or ()]
            print(f"  asks for {asked or found.skip_reason}")

        def run(name: str) -> None:
            job = made.resolve_job_def(name)
            with measured(f"run {name}"):
                done = job.execute_in_process(instance=instance, run_config=quiet, raise_on_error=False)
            events = Counter(each.event_type_value for each in done.all_events)
            print(f"  success: {done.success}; {sum(events.values()):,} events: {dict(events.most_common(12))}")
            size = sum(each.stat().st_size for each in Path("home").rglob("*.db*"))
            print(f"  {size / 1e6:.1f} MB in Dagster's home")

        if "look" in only:
            look()
        if "register" in only:
            run("register")
            look()
        if "measure" in only:
            run("measure")
        if "again" in only:
            run("register")
            run("measure")
        if "tick" in only:
            state: Any = None
            for _ in range(3):
                with measured("a tick of the automation"):
                    found = dg.evaluate_automation_conditions(made, instance, cursor=state)
                state = found.cursor
                print(f"  asks for {found.total_requested}")


if __name__ == "__main__":
    app()
