"""The code location: what it has, and a run of all of it."""

from pathlib import Path

import dagster as dg

import spiral_stream as spiral

from .conftest import PHOTOS, write_photos

INDEX = "indexes__shop__photos__embedding"


def run(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Materialize everything, with all checks."""
    return defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)


def figure(done: dg.ExecuteInProcessResult, node: str, name: str) -> object:
    """Return one entry of what an asset reported."""
    (made,) = done.asset_materializations_for_node(node)
    return made.metadata[name].value


def test_everything_in_the_folder_is_a_relation(defs: dg.Definitions) -> None:
    keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}

    assert {key for key in keys if key.startswith("catalog/")} == {"catalog/shop/photos", "catalog/shop/orders"}
    assert keys >= {"indexes/shop/photos/embedding", "caches/photos", "streams/photos", "shop/duplicates"}


def test_a_run_prepares_everything_and_the_next_what_is_new(
    defs: dg.Definitions, data: Path, instance: dg.DagsterInstance
) -> None:
    first = run(defs, instance)
    write_photos(data, PHOTOS + 6)
    second = run(defs, instance)

    assert first.success
    assert second.success
    assert [figure(each, INDEX, "written") for each in (first, second)] == [PHOTOS, 6]
    assert figure(second, INDEX, "recall_at_10") == 1.0
    assert figure(first, "shop__duplicates", "pairs") == 1  # photos 7 and 8
    assert figure(first, "caches__photos", "rows_built") == PHOTOS
    checks = {each.check_name: each.passed for each in first.get_asset_check_evaluations()}
    assert checks["identity_is_unique"]
    assert checks["cache_is_complete"]
    assert checks["recall_at_10"]
    with spiral.open_stream("photos-train", trust=["shop"], epoch=0) as stream:
        assert next(iter(stream))["image"].shape == (8, 3, 32, 32)


def test_an_identity_that_repeats_stops_the_run(defs: dg.Definitions, data: Path, instance: dg.DagsterInstance) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(data / "photos.parquet")
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), data / "photos.parquet")

    done = defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance, raise_on_error=False)

    assert not done.asset_materializations_for_node("caches__photos")
