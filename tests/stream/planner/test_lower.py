"""Lowering opens the relation, settles the selection and compiles the fields, and reads no payload for it."""

import json
from pathlib import Path

import numpy as np
import pytest

from spiral_stream import Catalog, HashBucketed, List, Raw, ShuffleBuckets, Stack, col
from spiral_stream.errors import CacheError, PlanError
from spiral_stream.plan.saving.fingerprint import canonical
from spiral_stream.planner.prepared_data.folder import cache_root, saved_plan
from spiral_stream.planner.stages import Stages
from tests.fixtures import reads
from tests.fixtures.inner import lower_plan, stages_of
from tests.fixtures.mutations import mutated_bytes, mutated_json
from tests.fixtures.programs import as_written, image_catalog, image_fields, image_program, image_transforms
from tests.fixtures.texts import SMALL_PLANS

pytestmark = SMALL_PLANS


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return image_catalog(tmp_path)


def test_the_seed_program_becomes_stages_without_a_payload_byte(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = reads.watch(monkeypatch)
    program = image_program(catalog, batch_size=8)

    stages = lower_plan(program.to_numpy().plan, catalog.registry)

    assert seen.payload_bytes == 0
    assert stages.fingerprint == program.fingerprint
    assert stages.columns == ("sample_id", "label_id")
    assert stages.field_names == ("image", "label", "sample_id")
    assert [(stage.name, stage.column, stage.spec.shape) for stage in stages.fields[:1]] == [
        ("image", "image_ref", (3, 224, 224))
    ]
    assert stages.streams[0].population.total == stages.streams[0].selected.total == 36
    assert stages.batch_bytes(8) == 8 * (3 * 224 * 224 * 2 + 8)
    assert dict(stages.data_versions) == {
        name: catalog.entry(name).data_version for name in ("vision.imagenet_train", "vision.imagenet_labels")
    }
    stages.streams[0].base.close()


def test_declared_profiles_reach_the_decoding_stage_and_its_cache(catalog: Catalog) -> None:
    def stages_of(profile: Raw) -> Stages:
        plan = image_program(catalog, keep=lambda r: as_written(r).cache(image_ref=profile))
        return lower_plan(plan.to_numpy().plan, catalog.registry)

    stages = [stages_of(Raw(shorter_side=32)), stages_of(Raw(shorter_side=33))]

    assert [each.fields[0].caches[0].kind.profile for each in stages] == [Raw(32), Raw(33)]
    assert stages[0].fields[0].caches[0].kind.fingerprint != stages[1].fields[0].caches[0].kind.fingerprint
    for each in stages:
        each.streams[0].base.close()


def test_an_index_is_made_where_the_order_needs_one(catalog: Catalog) -> None:
    order = HashBucketed(3, 4, ShuffleBuckets(3))
    with image_program(catalog, order=order, fields={"id": List("sample_id")}).to_numpy() as stream:
        population = stages_of(stream).streams[0].population
        assert population.index is not None
        ranks = population.index.ranks(np.arange(36, dtype=np.uint64))

    assert sorted(ranks.tolist()) == list(range(36))
    with image_program(catalog).to_numpy() as plain:
        assert stages_of(plain).streams[0].population.index is None


def test_the_plan_is_kept_under_its_fingerprint_for_later_comparison(catalog: Catalog) -> None:
    program = image_program(catalog)
    with program.to_numpy() as stream:
        name = stream.fingerprint

    assert saved_plan(catalog.registry, name) == json.loads(json.dumps(canonical(program.node)))
    assert saved_plan(catalog.registry, "0" * 32) is None
    assert saved_plan(catalog.registry, "../" + name) is None
    assert saved_plan(catalog.registry, "a" * 5_000) is None


def test_a_kept_plan_that_is_not_of_its_fingerprint_is_not_compared_with(catalog: Catalog) -> None:
    """A changed one could make the state of another plan look like this plan's."""
    with image_program(catalog).to_numpy() as stream:
        name = stream.fingerprint
    file = catalog.root / "prepared" / "plans" / f"{name}.json"
    sound = file.read_bytes()
    for seed in range(40):
        damaged = mutated_bytes(sound, seed) if seed % 2 else json.dumps(mutated_json(json.loads(sound), seed)).encode()
        file.write_bytes(damaged)

        assert saved_plan(catalog.registry, name) in (None, json.loads(sound))


def test_prepared_things_lie_beside_the_catalog_or_where_the_variable_says(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_root(catalog.registry) == catalog.root / "prepared"
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "elsewhere"))
    with image_program(catalog).to_numpy() as stream:
        assert len(stream) == 0

    assert (tmp_path / "elsewhere" / "selections").is_dir()
    assert not (catalog.root / "prepared" / "selections").exists()


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "file" / "below"))

    with image_program(catalog).to_numpy() as stream, pytest.raises(CacheError, match=r"below.*"):
        len(stream)


def test_a_plan_that_no_row_passes_is_refused_when_it_is_prepared(catalog: Catalog) -> None:
    program = image_program(
        catalog,
        keep=lambda r: r.filter(col("split") == "test"),
        fields={**image_fields(image_transforms()), "w": Stack("width")},
    )

    with (
        program.to_numpy() as stream,
        pytest.raises(
            PlanError,
            match=r"no row of vision.imagenet_train is left \(filter split == 'test' .*0 rows left.*Loosen the filter",
        ),
    ):
        len(stream)
