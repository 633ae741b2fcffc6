"""A second team's code location: its own relation, made into assets by the public factories."""

import sys
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest
import simplejpeg

import spiral_stream as spiral
from spiral_assets.assets import Named, SavedStream, cache_asset, stream_asset, training, training_asset
from spiral_assets.checks import cache_check, identity_check, schema_check
from spiral_assets.resources import CatalogResource, RunsResource
from tests.assets.conftest import emptied
from tests.fixtures.folded_pages import everything

ROWS = 6
PHOTOS = "shop.photos"
FORM = spiral.Raw(shorter_side=8)
# Reports its command line to Dagster, as a training process would report its results.
PROGRAM = """
import sys
from dagster_pipes import open_dagster_pipes
with open_dagster_pipes() as pipes:
    for name in ("beats_chance", "nobody_asked"):
        pipes.report_asset_check(name, True, severity="WARN")
    pipes.report_asset_materialization(metadata={"options": sys.argv[1:]})
"""

# Dagster's own Pipes client uses a preview feature and a deprecated name of Dagster's; nothing here can avoid it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Function `PipesMessageReader.expected_writer_count`"),
    pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated"),
]


def photos(catalog: spiral.Catalog) -> spiral.Relation:
    field = spiral.Stack("photo", decode="jpeg", transforms=[spiral.transforms.Resize((8, 8))])
    cached = catalog.table(PHOTOS).cache(photo=FORM)
    return cached.sample(order=spiral.Sequential()).collate(
        batch_size=2, last=spiral.KeepPartial, fields={"image": field, "sample_id": spiral.List("sample_id")}
    )


class Tuning(dg.Config):
    steps: int = 3
    save_every: int = 2


photos_relation = dg.AssetSpec(["catalog", "shop", "photos"])
photos_decoded = cache_asset(
    "photos_decoded",
    domain="shop",
    plan=photos,
    code_version=spiral.profiles.cache_fingerprint(PHOTOS, "photo", FORM),
    deps=[photos_relation],
    description="Decoded product photos.",
    metadata=lambda cache: {"form": cache.form},
)
photos_stream = stream_asset(
    "photos",
    domain="shop",
    streams=[SavedStream("photos-train", photos), SavedStream("photos-check", photos, prefetch=1)],
    deps=[photos_decoded],
    description="Product photos by name.",
    metadata=lambda train, check: {"steps": len(train), "check_steps": len(check)},
)
photos_model = training_asset(
    "photos_model",
    "shop",
    Tuning,
    deps=[photos_stream],
    description="A model of product photos.",
    checks={"beats_chance": "It is better than chance.", "low_loss": "Its loss is low."},
    command=[sys.executable, "-c", PROGRAM],
)
COMPLETE = cache_check(photos_decoded, photos)
UNIQUE = identity_check(photos_decoded, PHOTOS, name="photos_are_different")
DECLARED = schema_check(photos_decoded, PHOTOS, {"photo": "image/jpeg-ref", "price": "int64"})


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> spiral.Catalog:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "caches"))
    made = spiral.connect(str(tmp_path / "catalog"))
    register(made, [f"photo-{row}" for row in range(ROWS)])
    return made


def register(catalog: spiral.Catalog, names: list[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (len(names), 16, 16, 3), np.uint8)
    jpegs = pa.array([simplejpeg.encode_jpeg(each, 90, "RGB", "420") for each in pixels], pa.large_binary())
    table = pa.table({"sample_id": names, "photo": jpegs})
    catalog.register(PHOTOS, spiral.Arrow(table), semantic={"photo": "image/jpeg-ref"}, unique=False, replace=True)


def run(
    tmp_path: Path,
    selection: dg.AssetSelection,
    ops: dict[str, Any] | None = None,
    decoded: dg.AssetsDefinition = photos_decoded,
    log_level: str = "CRITICAL",
) -> dg.ExecuteInProcessResult:
    location = dg.Definitions(
        assets=[photos_relation, decoded, photos_stream, photos_model],
        asset_checks=[COMPLETE, UNIQUE, DECLARED],
        jobs=[dg.define_asset_job("part", selection)],
        resources={
            "catalog": CatalogResource(uri=str(tmp_path / "catalog")),
            "runs": RunsResource(root=str(tmp_path / "runs")),
            "pipes": dg.PipesSubprocessClient(),
        },
    )
    config = {"loggers": {"console": {"config": {"log_level": log_level}}}, "ops": ops or {}}
    job = location.resolve_job_def("part")
    return job.execute_in_process(instance=emptied(), run_config=config, raise_on_error=False)


def only(asset: dg.AssetsDefinition) -> dg.AssetSelection:
    return dg.AssetSelection.assets(asset).without_checks() | dg.AssetSelection.checks(*asset.check_keys)


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.get_asset_materialization_events()
    return everything(event.materialization.metadata)


def test_a_cache_is_built_once_and_its_fingerprint_is_its_code_version(catalog: spiral.Catalog, tmp_path: Path) -> None:
    first, second = (metadata(run(tmp_path, only(photos_decoded))) for _ in range(2))

    assert (first["rows_built"], second["rows_built"], second["dagster/row_count"]) == (ROWS, 0, ROWS)
    assert first["fingerprint"] == photos_decoded.code_versions_by_key[photos_decoded.key]
    assert first["form"] == str(FORM)
    with photos(catalog).to_numpy() as stream:
        assert [cache.complete for cache in stream.caches()] == [True]


def test_processes_of_this_machine_build_the_same_cache(catalog: spiral.Catalog, tmp_path: Path) -> None:
    by_processes = cache_asset(
        "photos_decoded",
        plan=Named("tests.assets.test_assets:photos"),
        deps=[photos_relation],
        description="Decoded product photos.",
        executor="processes",
        workers=2,
    )

    facts = metadata(run(tmp_path, only(photos_decoded), decoded=by_processes))

    assert (facts["rows_built"], facts["built_by"]) == (ROWS, "processes")
    assert metadata(run(tmp_path, only(photos_decoded)))["rows_built"] == 0  # threads find what processes built


def test_an_executor_that_there_is_not_is_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="Give one of threads, processes, ray"):
        cache_asset("photos", plan=photos, deps=[], description="", executor="celery")


def checked(tmp_path: Path, *checks: dg.AssetChecksDefinition) -> dict[str, dg.AssetCheckEvaluation]:
    result = run(tmp_path, dg.AssetSelection.checks(*checks))
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def test_checks_say_what_is_wrong_and_block(catalog: spiral.Catalog, tmp_path: Path) -> None:
    found = checked(tmp_path, COMPLETE)
    register(catalog, ["one", "two", "one"])
    found |= checked(tmp_path, UNIQUE, DECLARED)

    assert {name: each.description for name, each in found.items()} == {
        "cache_is_complete": f"0 of {ROWS} rows are cached",
        "photos_are_different": "1 identities repeat: one",
        "schema_is_as_declared": "price is missing, declared int64",
    }
    assert {(each.passed, each.blocking) for each in found.values()} == {(False, True)}


def test_streams_are_saved_by_name_and_the_first_is_explained(catalog: spiral.Catalog, tmp_path: Path) -> None:
    facts = metadata(run(tmp_path, only(photos_stream)))

    assert catalog.streams() == ["photos-check", "photos-train"]
    assert (facts["steps"], facts["check_steps"]) == (ROWS // 2, ROWS // 2)
    assert "photo" in facts["explain"]
    opened: dict[str, Any] = {}
    exec(facts["open_it"].removeprefix("```python").removesuffix("```"), opened)  # as somebody copies it
    with opened["stream"] as stream:
        assert stream.fingerprint == facts["fingerprint"]
    with catalog.open_stream("photos-train", device="cpu", epoch=0) as stream:
        assert stream.fingerprint == facts["fingerprint"]


def test_a_training_process_gets_its_folder_the_catalog_and_its_config(catalog: spiral.Catalog, tmp_path: Path) -> None:
    result = run(tmp_path, only(photos_model), ops={"models__photos_model": {"config": {"steps": 7}}})

    folder = tmp_path / "runs" / "checkpoints" / result.run_id / "photos_model"
    options = {"--folder": str(folder), "--catalog": str(tmp_path / "catalog"), "--steps": "7", "--save-every": "2"}
    assert metadata(result)["options"] == [word for option in options.items() for word in option]


def test_a_check_that_one_side_alone_names_warns(
    catalog: spiral.Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path, only(photos_model), log_level="WARNING")

    passed = {check.check_name: check.passed for check in result.get_asset_check_evaluations()}
    assert passed == {"beats_chance": True, "low_loss": False}
    (unreported,) = (check for check in result.get_asset_check_evaluations() if not check.passed)
    assert (unreported.severity, "did not report" in str(unreported.description)) == (dg.AssetCheckSeverity.WARN, True)
    assert "the check 'nobody_asked', which the asset does not declare" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "started"),
    [
        (["python", "train.py", "--fast"], ["train.py", "--fast"]),
        (["python", "-m", "shop.train"], ["-m", "shop.train"]),
    ],
)
def test_several_processes_are_started_by_torchrun(command: list[str], started: list[str]) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    assert training.started("m", command, 2) == [sys.executable, *torchrun, *started]
    assert training.started("m", command, 1) == [sys.executable, *started]
    assert training.started("m", ["bash", "x.sh"], 1) == ["bash", "x.sh"]


@pytest.mark.parametrize(("command", "processes"), [(["bash", "x.sh"], 2), (["python", "-c", "1"], 2), (["python"], 0)])
def test_what_torchrun_cannot_start_is_refused(command: list[str], processes: int) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="start torchrun in the command yourself"):
        training_asset("m", "d", {}, deps=[], description="", command=command, processes=processes)
