"""Limits that registrations teach: no alarm for what is usual, an alarm for what is far, in whatever order they are read."""

import itertools
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_assets.assets import Learned, Limits, relation_assets
from spiral_assets.assets.observed import CHECK, OBSERVED
from spiral_assets.automation import with_its_asset
from spiral_assets.facts.learned import LEAST, REST, Band, Observation, band_of, distinct, judged
from spiral_assets.resources import CatalogResource
from spiral_stream.report import ColumnSkew
from tests.fixtures.folded_pages import everything
from tests.stream.report.test_samples import picture

KINDS = st.sampled_from(sorted(LEAST))
VALUE = st.floats(-1e9, 1e9)
OPTIONS = Learned()
PICTURE_BYTES = 300_000
LONGEST_TABLE = 12


@st.composite
def histories(draw: st.DrawFn) -> list[float]:
    size = draw(st.integers(OPTIONS.observe, 40))
    return draw(st.lists(VALUE, min_size=size, max_size=size))


def limits(before: list[float], kind: str) -> Band:
    found = band_of(before, kind, OPTIONS)
    assert found is not None
    return found


@given(before=histories(), kind=KINDS, where=st.floats(-1, 1))
def test_a_value_within_the_spread_is_no_alarm(before: list[float], kind: str, where: float) -> None:
    middle = float(np.median(before))
    spread = 1.4826 * float(np.median(np.abs(np.array(before) - middle)))

    assert limits(before, kind).holds(middle + where * spread)


@given(before=histories(), kind=KINDS, beyond=st.floats(1.01, 1e3), below=st.booleans())
def test_a_value_far_from_all_is_an_alarm(before: list[float], kind: str, beyond: float, *, below: bool) -> None:
    middle, ends = float(np.median(before)), (min(before), max(before))
    share, least = LEAST[kind]
    reach = OPTIONS.spreads * max(2.6 * (ends[1] - ends[0]), share * abs(middle), least)  # 1.4826 * (1 + 6 / 8)

    assert not limits(before, kind).holds(middle - beyond * reach if below else middle + beyond * reach)


@given(before=histories(), kind=KINDS, data=st.data())
def test_limits_do_not_depend_on_the_order_of_values(before: list[float], kind: str, data: st.DataObject) -> None:
    assert band_of(data.draw(st.permutations(before)), kind, OPTIONS) == band_of(before, kind, OPTIONS)


@given(before=histories(), kind=KINDS, wild=st.lists(VALUE, max_size=3))
def test_a_few_wild_registrations_move_the_limits_within_the_usual_values(
    before: list[float], kind: str, wild: list[float]
) -> None:
    found = limits([*before, *wild], kind)

    assert min(before) <= found.median <= max(before)


@given(before=st.lists(VALUE, max_size=OPTIONS.observe - 1), kind=KINDS)
def test_few_registrations_are_only_observed(before: list[float], kind: str) -> None:
    assert band_of(before, kind, OPTIONS) is None


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e6)), min_size=1, max_size=40),
    data=st.data(),
)
def test_judgements_do_not_depend_on_the_order_of_reads(rows: list[tuple[int, float]], data: st.DataObject) -> None:
    read = [Observation(k, str(version), {"rows": {"rows": value}}) for k, (version, value) in enumerate(rows)]

    found = judged(data.draw(st.permutations(read)), OPTIONS)

    assert found == judged(read, OPTIONS)
    (last,) = found
    assert last.value == rows[-1][1]
    versions = [each.data_version for each in distinct(read)]
    assert all(one != other for one, other in itertools.pairwise(versions))


def observations(*labels: dict[str, float]) -> list[Observation]:
    return [Observation(k, str(k), {"labels": each}) for k, each in enumerate(labels)]


def test_a_label_that_vanishes_is_an_alarm_and_one_that_is_cut_off_is_none() -> None:
    usual, options = {"label=fox": 0.5, "label=owl": 0.5}, Learned(observe=3)

    gone = judged(observations(*[usual] * 5, {"label=fox": 1.0}), options)
    cut = judged(observations(*[usual] * 5, {"label=fox": 0.51, f"label={REST}": 0.49}), options)

    assert [each.name for each in gone if each.is_far] == ["label=fox", "label=owl"]
    assert [each.name for each in cut] == [f"label={REST}", "label=fox"]  # owls may be among the others


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"of": ["rwos"]}, "'rwos' is none of rows"),
        ({"observe": 30}, "Give observe from 1 to last"),
        ({"spreads": 0}, "Give a number above 0"),
        ({"severity": {"rwos": "error"}}, "'rwos' is none of rows"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=said):
        Learned(**wrong)


class Nights:
    """A relation that grows every night, and what Dagster says of it."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, learned: Learned) -> None:
        self.file, self.instance = folder / "rows.parquet", instance
        source = {"kind": "parquet", "path": str(self.file)}
        made = relation_assets(
            "shop.t",
            source,
            semantic={"image_ref": "image/jpeg-ref"},
            labels=["label"],
            limits=Limits(skew=None, learned=learned),
        )
        resources = {"catalog": CatalogResource(uri=str(folder / "catalog"))}
        self.defs = dg.Definitions.merge(
            made,
            dg.Definitions(resources=resources, executor=dg.in_process_executor, jobs=[dg.define_asset_job("nightly")]),
        )
        self.rng, self.night = np.random.default_rng(0), 0

    def run(self, rows: int = 0, *, text: str = "a fox", label: str = "owl") -> dg.ExecuteInProcessResult:
        """Write the rows of a night, if any, and register and measure them."""
        if rows:
            self.night += 1
            labels = np.where(np.arange(rows) % 2, "fox", label)
            table = {
                "sample_id": [f"{self.night}-{k}" for k in range(rows)],
                "image_ref": [picture("red")] * rows,
                "label": labels,
                "text": [text + "x" * (k % 5) for k in range(rows)],
                "score": self.rng.normal(10, 1, rows),
            }
            pq.write_table(pa.table(table), self.file)
        config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        job = self.defs.resolve_job_def("nightly")
        return job.execute_in_process(instance=self.instance, run_config=config, raise_on_error=False)


def check(run: dg.ExecuteInProcessResult) -> dg.AssetCheckEvaluation:
    found = [each for each in run.get_asset_check_evaluations() if each.check_name == CHECK]
    failures = [str(each.step_failure_data.error) for each in run.all_events if each.is_step_failure]
    assert len(found) == 1, "\n".join(failures)
    return found[0]


def page(run: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (found,) = [
        each.materialization for each in run.get_asset_materialization_events() if each.asset_key.path[0] == "stats"
    ]
    return everything(found.metadata)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of skew take most of the time of statistics; test_statistics has them."""
    monkeypatch.setattr(ColumnSkew, "pictures", lambda *_: [])


def test_what_a_night_is_like_is_learned_and_one_that_is_not_is_told(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        nights = Nights(tmp_path, instance, Learned(observe=3))
        usual = [check(nights.run(400 + 3 * k)) for k in range(5)]
        again = nights.run()
        odd = nights.run(90, text="a very long story of a fox and an owl", label="cat")

        assert [each.passed for each in usual] == [True] * 5
        assert usual[0].description == "0 registrations before this one; limits are learned from 3 on"
        assert "as in the last 4 registrations" in str(usual[-1].description)
        assert check(again).metadata["registrations"].value == 4  # the same data is the same registration
        found = check(odd)
        assert (found.passed, found.severity, found.blocking) == (False, dg.AssetCheckSeverity.WARN, False)
        assert odd.success
        table = found.metadata["values"].records  # type: ignore[union-attr]  # a table
        far = [
            row.data for row in table if str(row.data["of the limit"]).endswith("%")
        ]  # the last row says how many more
        rows = {row["value"] for row in far if float(str(row["of the limit"])[:-1]) > 100}
        assert {"rows", "bytes of text", "label=cat", "label=owl"} <= rows
        assert len(table) <= LONGEST_TABLE
        shown = page(odd)
        observed = {(row["kind"], row["value"]): row["measured"] for row in shown[OBSERVED]}
        assert observed["sizes", "width of image_ref"] == 40
        assert observed["sizes", "height of image_ref"] == 20
        assert observed["nulls", "score is NaN"] == 0
        (drawn,) = [each for each in (tmp_path / "storage").rglob("*.svg") if b"registrations" in each.read_bytes()][
            -1:
        ]
        assert "/logs/" in shown["last_registrations"]
        assert drawn.stat().st_size < PICTURE_BYTES


def test_an_error_stops_what_is_built_on_the_statistics(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    nights = Nights(tmp_path, instance, Learned(of=["rows"], observe=2, severity={"rows": "error"}))
    graph = nights.defs.resolve_asset_graph()
    (key,) = [each for each in graph.asset_check_keys if each.name == CHECK]
    assert graph.get(key).automation_condition == with_its_asset()  # or other checks of its runs are left out
    for _ in range(3):
        assert nights.run(300).success

    failed = nights.run(30)

    assert not failed.success
    found = check(failed)
    assert (found.passed, found.severity, found.blocking) == (False, dg.AssetCheckSeverity.ERROR, True)
    assert found.description == "rows is 30, usual is 285 to 315"
