"""CPU seconds of Dagster assets: definitions, caches by executor, and 10,000 shards through sensor and runs.

python -m benchmarks.assets definitions
python -m benchmarks.assets cache --executor processes --workers 2
python -m benchmarks.assets shards
"""

import io
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
RELATIONS = 1_000
IMAGES, IMAGE_SHARDS, PIXELS = 100_000, 50, 48
SHARDS, SHARD_ROWS = 10_000, 10


@contextmanager
def measured(what: str) -> Iterator[None]:
    """Print CPU seconds of this process and of those it started and waited for, and wall seconds."""

    def cpu() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(each.ru_utime + each.ru_stime for each in both)

    before, begun = cpu(), time.monotonic()
    yield
    print(f"{what}: {cpu() - before:.2f} CPU s, {time.monotonic() - begun:.1f} s of wall time", flush=True)


@app.command()
def definitions() -> None:
    """Definitions of 1,000 relations, with statistics and checks, compared with as many plain assets of Dagster."""
    import dagster as dg
    import dagster.components

    with measured("import of the components"):
        from spiral_assets import components
        from spiral_assets.resources import standard_resources
    context = dg.ComponentTree.for_test().load_context
    said = {"source": {"kind": "parquet", "path": "$X"}, "labels": ["label"]}
    with measured(f"{RELATIONS:,} relations"):
        made = [components.Relation(name=f"shop.r{n}", **said).build_defs(context) for n in range(RELATIONS)]
        whole = dg.Definitions.merge(dg.Definitions(resources=standard_resources()), *made)
        graph = whole.get_repository_def().asset_graph
    print(f"{len(graph.get_all_asset_keys()):,} assets, {len(graph.asset_check_keys):,} checks")

    def plain(number: int) -> list[dg.AssetsDefinition | dg.AssetChecksDefinition]:
        @dg.asset(name=f"a{number}")
        def one() -> None: ...

        @dg.asset(name=f"b{number}", deps=[one])
        def two() -> None: ...

        @dg.asset_check(asset=one, name="first")
        def first() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=True)

        @dg.asset_check(asset=two, name="second")
        def second() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=True)

        return [one, two, first, second]

    with measured("as many assets and checks of Dagster's own"):
        parts = [each for number in range(RELATIONS) for each in plain(number)]
        assets = [each for each in parts if not isinstance(each, dg.AssetChecksDefinition)]
        checks = [each for each in parts if isinstance(each, dg.AssetChecksDefinition)]
        _ = dg.Definitions(assets=assets, asset_checks=checks).get_repository_def().asset_graph


@app.command()
def cache(executor: str = "threads", workers: int = 1, images: int = IMAGES) -> None:
    """A cache of small images, inline in Parquet, built by one executor."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    import spiral_stream as spiral
    from spiral_assets.plans.standard import decoded_images

    with tempfile.TemporaryDirectory() as place:
        folder, rows = Path(place, "rows"), images // IMAGE_SHARDS
        folder.mkdir()
        noise = np.random.default_rng(0).integers(0, 255, (64, 8, 8, 3), np.uint8)
        jpegs = []
        for each in noise:
            out = io.BytesIO()
            Image.fromarray(each).resize((PIXELS, PIXELS)).save(out, "jpeg")
            jpegs.append(out.getvalue())
        for shard in range(IMAGE_SHARDS):
            data = [jpegs[(shard + row) % len(jpegs)] for row in range(rows)]
            table = pa.table({"sample_id": [f"{shard}-{row}" for row in range(rows)], "image_ref": data})
            pq.write_table(table, folder / f"part-{shard:03d}.parquet")
        catalog = spiral.connect(str(Path(place, "catalog")))
        catalog.register("photos", spiral.Parquet(str(folder)), semantic={"image_ref": "image/jpeg-ref"})
        with decoded_images(catalog, "photos", cached_side=32).to_numpy() as stream:
            with measured(f"{images:,} images of {PIXELS} pixels, {executor}, {workers} at a time"):
                stream.materialize(executor=executor, workers=workers)  # type: ignore[arg-type]  # a name
            (built,) = stream.caches()
            print(f"{built.built:,} rows, {built.payload_bytes / 1e6:,.0f} MB")


@app.command()
def shards(count: int = SHARDS) -> None:
    """A relation of 10,000 shards: ticks of its sensor, and runs of its relation, statistics and token cache."""
    import dagster as dg
    import pyarrow as pa
    import pyarrow.parquet as pq

    from spiral_assets.assets import cache_assets, relation_assets
    from spiral_assets.corpora.tokenizer import train_tokenizer
    from spiral_assets.named import Named
    from spiral_assets.resources import CatalogResource
    from spiral_assets.watching import Watched, watch_sensor

    def write(shard: int, word: str) -> None:
        texts = [f"{word} {shard} {row}" for row in range(SHARD_ROWS)]
        table = pa.table({"sample_id": [f"{shard}-{row}" for row in range(SHARD_ROWS)], "text": texts})
        pq.write_table(table, folder / f"part-{shard:05d}.parquet")

    with tempfile.TemporaryDirectory() as place, dg.DagsterInstance.ephemeral() as instance:
        folder = Path(place, "rows")
        folder.mkdir()
        for shard in range(count):
            write(shard, "text")
        catalog = CatalogResource(uri=str(Path(place, "catalog")))
        words = train_tokenizer([pa.chunked_array([["text 1 2 other"]])], Path(place, "tokenizer.json"), vocabulary=300)
        catalog.open().register_tokenizer("words", str(words))
        source = {"kind": "parquet", "path": str(folder)}
        plan = Named("spiral_assets.plans.standard:tokens", {"relation": "texts", "tokenizer": "words"})
        whole = dg.Definitions.merge(
            relation_assets("texts", source),
            cache_assets("texts", plan=plan, deps=["catalog/texts"], description="Tokens."),
            dg.Definitions(
                jobs=[dg.define_asset_job("all_of_it")],
                resources={"catalog": catalog},
                executor=dg.in_process_executor,
                loggers={"console": dg.colored_console_logger},
            ),
        )
        sensor, cursor = watch_sensor("texts", [Watched("texts", source)], every_s=30), None
        quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        for what in ("new", "unchanged", "one shard changed"):
            if what == "one shard changed":
                write(7, "other")
            with measured(f"{count:,} shards, {what}: a tick of the sensor"):
                found = sensor(dg.build_sensor_context(instance, cursor=cursor, resources={"catalog": catalog}))
            assert isinstance(found, dg.SensorResult)
            cursor = found.cursor
            print(f"{len(found.run_requests or ())} runs requested")
            with measured(f"{count:,} shards, {what}: one run registers, checks, measures and builds"):
                job = whole.resolve_job_def("all_of_it")
                run = job.execute_in_process(instance=instance, run_config=quiet)
            (built,) = run.asset_materializations_for_node("caches__texts")
            print(f"{built.metadata['shards_built'].value:,} shards built")
            for event in run.all_events:
                if event.event_type_value == "STEP_SUCCESS":
                    print(f"  {event.step_key}: {event.step_success_data.duration_ms / 1e3:.1f} s of wall time")


if __name__ == "__main__":
    app()
