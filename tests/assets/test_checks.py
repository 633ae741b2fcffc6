"""Checks of rows, columns, missing values, skew, imports and streams: what passes, what warns, and what is advised."""

from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as spiral
from spiral_assets import checks
from spiral_assets.facts.findings import missing, mixed, refused
from spiral_assets.named import SavedPlan
from spiral_assets.resources import CatalogResource


def rows(folder: Path, *, one_class: bool = False, nan: int = 0) -> spiral.Catalog:
    count, shards = 600, 6
    rng = np.random.default_rng(1)
    score = rng.normal(size=count)
    score[:nan] = np.nan
    shard = np.arange(count) * shards // count
    labels = shard if one_class else rng.integers(0, 3, count)
    catalog = spiral.connect(str(folder / "catalog"))
    table = pa.table(
        {"sample_id": np.arange(count), "score": score, "label": labels, "storage_shard": [f"s{k}" for k in shard]}
    )
    catalog.register("t", spiral.Arrow(table))
    catalog.measure("t")
    return catalog


def test_nan_counts_as_missing(tmp_path: Path) -> None:
    catalog = rows(tmp_path, nan=90)
    over, under = missing(catalog, "t", 0.1, {}), missing(catalog, "t", 0.1, {"score": 0.2})

    assert (over.passed, over.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert over.description == "15.0% of score are NaN (limit 10.0%)"
    assert under.passed
    with pytest.raises(dg.Failure, match="'scoer' is not a column"):
        missing(catalog, "t", 0.1, {"scoer": 0.2})


def test_a_shard_per_class_is_a_warning_that_says_what_to_do(tmp_path: Path) -> None:
    result = mixed(rows(tmp_path, one_class=True), "t", "label", 0.5)

    assert not result.passed
    assert result.description is not None
    assert "one folder per class lies, and no fault of the data" in result.description
    assert "HashBucketed or GlobalShuffle" in result.description
    assert result.metadata["one_value_per_shard"].value is True


def test_mixed_shards_pass_and_unmeasured_ones_say_so(tmp_path: Path) -> None:
    catalog = rows(tmp_path)
    catalog.register("new", spiral.Arrow(pa.table({"sample_id": [1], "label": [2]})))

    assert mixed(catalog, "t", "label", 0.5).passed
    unknown = mixed(catalog, "new", "label", 0.5)
    assert not unknown.passed
    assert "nothing is counted yet" in (unknown.description or "")


def test_rows_that_an_import_refused_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = rows(tmp_path)

    class Facts:
        rows, refused, examples = 90, 10, ("a.tar[3]: no JPEG",)

    class Imported:
        def facts(self) -> Facts:
            return Facts()

    class Entry:
        source = Imported()

    assert refused(catalog, "t", 0.0).passed
    monkeypatch.setattr(spiral.Catalog, "entry", lambda *_: Entry())
    result = refused(catalog, "t", 0.05)
    assert not result.passed
    assert result.description == "10 of 100 rows could not be read: a.tar[3]: no JPEG"
    assert refused(catalog, "t", 0.1).passed


def test_rows_and_columns_are_compared_with_the_last_time(instance: dg.DagsterInstance) -> None:
    now: dict[str, Any] = {"rows": 100, "columns": ["a", "b"]}

    @dg.asset
    def relation() -> dg.MaterializeResult[None]:
        schema = dg.TableSchema(columns=[dg.TableColumn(name, "string") for name in now["columns"]])
        return dg.MaterializeResult(metadata={"dagster/row_count": now["rows"], "dagster/column_schema": schema})

    tests = [checks.row_count_check(relation, most_change=0.2), checks.schema_change_check(relation)]

    def run() -> dict[str, dg.AssetCheckEvaluation]:
        result = dg.materialize([relation, *tests], instance=instance)
        assert result.success
        return {each.check_name: each for each in result.get_asset_check_evaluations()}

    assert all(each.passed for each in run().values())
    now["rows"] = 110
    assert all(each.passed for each in run().values())
    now.update(rows=10, columns=["a", "c"])
    found = run()

    assert not found["row_count_is_near_the_last"].passed
    assert found["row_count_is_near_the_last"].description == "10 rows, 110 before"
    assert not found["column_schema_change"].passed
    assert {each.severity for each in found.values()} == {dg.AssetCheckSeverity.WARN}


@pytest.mark.filterwarnings("ignore::spiral_stream.SpiralWarning")  # the same, of the plan
@pytest.mark.parametrize(("batch_size", "passes"), [(4, True), (10_000, False)])
def test_a_stream_that_explains_with_a_warning_says_it(
    tmp_path: Path, instance: dg.DagsterInstance, batch_size: int, *, passes: bool
) -> None:
    catalog = rows(tmp_path)
    sampled = catalog.table("t").sample(order=spiral.GlobalShuffle(seed=0))
    plan = sampled.collate(batch_size=batch_size, fields={"label": spiral.Stack("label")})
    catalog.save_stream("train", plan.to_numpy())

    @dg.asset
    def saved() -> None: ...

    check = checks.explain_check(saved, {"train": SavedPlan("train")})
    resources = {"catalog": CatalogResource(uri=str(catalog.root))}
    result = dg.materialize([saved, check], instance=instance, resources=resources)
    (found,) = result.get_asset_check_evaluations()

    assert found.passed == passes
    assert found.severity == dg.AssetCheckSeverity.WARN
    assert str(found.description).startswith("train: ") != passes
    assert ("600 rows do not fill one of 10000" in str(found.description)) != passes
