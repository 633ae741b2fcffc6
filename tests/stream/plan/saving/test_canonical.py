"""A plan written as JSON values and read back is the same plan, here and in another process."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream
from spiral_stream import (
    Catalog,
    DataParallel,
    DropPartial,
    GlobalShuffle,
    HashBucketed,
    KeepPartial,
    List,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Raw,
    RuntimeParam,
    Sequential,
    ShardAwareShuffle,
    ShuffleBuckets,
    Stack,
)
from spiral_stream.batching import PadPartial
from spiral_stream.errors import PlanError
from spiral_stream.plan import nodes
from spiral_stream.plan.saving.canonical import to_json
from spiral_stream.plan.saving.fingerprint import canonical, fingerprint
from spiral_stream.profiles import Jpeg, Original
from spiral_stream.transforms import CenterCrop, Resize
from tests.fixtures import verbs
from tests.fixtures.examples import few
from tests.fixtures.programs import image_catalog, image_program
from tests.fixtures.saved_plans import read_back

ROOT = Path(spiral_stream.__file__).parents[1]

seeds = st.integers(0, 2**40)
orders = st.one_of(
    st.just(Sequential()),
    st.builds(GlobalShuffle, seed=seeds, clump_size=st.integers(1, 9)),
    st.builds(
        ShardAwareShuffle, seed=seeds, shard_key=st.lists(st.sampled_from(["storage_shard", "label_id"]), min_size=1)
    ),
    st.builds(
        HashBucketed,
        seed=seeds,
        bucket_count=st.sampled_from([1, 2, 64]),
        bucket_order=st.builds(ShuffleBuckets, seeds),
    ),
)
ranks = st.one_of(st.just(0), st.just(RuntimeParam("rank")))
assignments = st.builds(
    DataParallel,
    rank=ranks,
    world_size=st.one_of(st.integers(1, 5), st.just(RuntimeParam("world_size"))),
    lanes=st.integers(1, 9),
)
parts = st.floats(0, 1, allow_subnormal=True)
sizes = st.one_of(st.integers(1, 300), st.tuples(st.integers(1, 300), st.integers(1, 300)))
transforms = st.one_of(
    st.just(()),
    st.tuples(st.builds(RandomResizedCrop, sizes), st.builds(RandomHorizontalFlip, parts)),
    st.tuples(st.builds(Resize, sizes), st.builds(CenterCrop, sizes)),
    st.tuples(st.builds(Normalize, st.tuples(parts, parts, parts), st.just((1.0, 0.1, 1e-3)))),
)
profiles = st.one_of(
    st.just(Original()),
    st.builds(Raw, st.one_of(st.none(), st.integers(1, 500))),
    st.builds(Jpeg, st.integers(1, 500), st.integers(1, 100)),
)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return verbs.make_catalog(tmp_path_factory.mktemp("canonical"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return image_catalog(tmp_path_factory.mktemp("images"))


def reread(catalog: Catalog, node: nodes.Node) -> nodes.Node:
    text = json.dumps(to_json(node), sort_keys=True)
    return read_back(json.loads(text), catalog)


@few(10)  # whose SQL text starts a process
@given(data=st.data())
def test_relational_plans_come_back_equal(catalog: Catalog, data: st.DataObject) -> None:
    node = data.draw(verbs.chains(catalog, "arrow")).relation.node

    again = reread(catalog, node)

    assert to_json(again) == to_json(node)
    assert again.schema().equals(node.schema(), check_metadata=True)
    assert fingerprint(again) == fingerprint(node)


@given(data=st.data())
@few(40, 100)
def test_every_value_of_a_stream_comes_back_equal(images: Catalog, data: st.DataObject) -> None:
    relation = images.table("vision.imagenet_train").cache(image_ref=data.draw(profiles))
    steps = data.draw(transforms)
    dtype = (
        "float32" if any(isinstance(step, Normalize) for step in steps) else data.draw(st.sampled_from([None, "uint8"]))
    )
    image = Stack(
        "image_ref", decode="jpeg", transforms=steps, dtype=dtype, layout=data.draw(st.sampled_from([None, "nhwc"]))
    )
    epoch = data.draw(st.one_of(st.none(), st.integers(0, 99)))
    plan = relation.sample(order=data.draw(orders), assignment=data.draw(assignments), epoch=epoch).collate(
        batch_size=data.draw(st.integers(1, 999)),
        last=data.draw(st.sampled_from([DropPartial, KeepPartial, PadPartial])),
        fields={"image": image, "label": Stack("label_id", device="cuda:1"), "id": List("sample_id")},
    )
    node = nodes.Deliver(plan.node, data.draw(st.sampled_from(["torch", "numpy", "jax"])), 3, None)

    again = reread(images, node)

    assert to_json(again) == to_json(node)
    assert canonical(again) == canonical(node)


@pytest.mark.filterwarnings("ignore:collate. batch_size is 256:spiral_stream.SpiralWarning")  # of few rows
def test_a_saved_stream_opens_in_another_process_with_the_same_fingerprint(images: Catalog) -> None:
    stream = image_program(images).to_numpy()
    images.save_stream("image", stream)
    program = "import sys, spiral_stream as s; print(s.connect(sys.argv[1]).open_stream('image', epoch=3).fingerprint)"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}

    run = subprocess.run(
        [sys.executable, "-c", program, str(images.root)], env=env, capture_output=True, text=True, check=True
    )

    assert run.stdout.strip() == stream.fingerprint


@pytest.mark.filterwarnings("ignore:collate. batch_size is 256:spiral_stream.SpiralWarning")  # of few rows
def test_bindings_are_not_saved(images: Catalog) -> None:
    images.save_stream("bound", image_program(images).to_numpy().bind(epoch=3, data_parallel_world_size=4))

    with images.open_stream("bound") as stream:
        assert stream.epoch == 0
        assert stream.state_dict()["segments"] == []


@dataclass(frozen=True)
class Later(spiral_stream.plan.fields.profiles.Profile):
    """A class of the user's, with a field called as one of the saved form's own words."""

    version: str = "2"
    node: int = 3
    changes_pixels = True


def test_a_class_of_the_users_comes_back_by_its_name(images: Catalog) -> None:
    node = images.table("vision.imagenet_train").cache(image_ref=Later("4", 5)).node

    written = to_json(node)["profiles"][0][1]
    (again,) = [value for _, value in reread(images, node).profiles]  # type: ignore[attr-defined]  # a Cache

    assert written["@class"] == f"{__name__}:Later"
    assert again == Later("4", 5)


def test_a_class_that_no_other_process_finds_is_not_saved(images: Catalog) -> None:
    @dataclass(frozen=True)
    class Local(spiral_stream.plan.fields.profiles.Profile):
        changes_pixels = True

    with pytest.raises(PlanError, match="Define it with `def` or `class` at the top level of a module"):
        to_json(images.table("vision.imagenet_train").cache(image_ref=Local()).node)


# ---- what another version may have saved


def read(catalog: Catalog, **changes: object) -> nodes.Node:
    saved = to_json(catalog.table("vision.imagenet_train").cache(image_ref=Raw(8)).limit(3).node)
    return read_back({**saved, **changes}, catalog)


def test_an_unknown_verb_says_what_to_do(images: Catalog) -> None:
    with pytest.raises(
        PlanError, match=r"verb 'shake' is unknown to this version. Upgrade spiral, or save the stream again"
    ):
        read(images, verb="shake")


def test_an_unknown_parameter_says_what_to_do(images: Catalog) -> None:
    with pytest.raises(
        PlanError, match=r"limit cannot be read here \('offset' is unknown\). Upgrade spiral, or save the stream again"
    ):
        read(images, offset=3)


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("nowhere.at:All", r"Import nowhere.at before, or trust it: open_stream\(..., trust=\["),
        ("json:JSONDecoder", r"a saved plan may name code of your own only. If you mean it, trust it"),
        (f"{__name__}:read", "is not a frozen dataclass"),
        (f"{__name__}:Gone", rf"leads to nothing. Define it in {__name__} again, or save the stream again"),
        ("Odd", "names no function or class; one is named module:name. Save the stream again"),
    ],
)
def test_an_unknown_class_says_what_to_do(images: Catalog, name: str, way_out: str) -> None:
    saved = to_json(images.table("vision.imagenet_train").cache(image_ref=Raw(8)).node)
    saved["profiles"][0][1]["@class"] = name

    with pytest.raises(PlanError, match=way_out):
        read_back(saved, images)


@pytest.mark.parametrize("value", [b"bytes", {"a": 1}, [1], object, 2**5000])
def test_a_value_that_is_no_json_is_refused(images: Catalog, value: object) -> None:
    node = images.table("vision.imagenet_train").cache(image_ref=Later(value)).node  # type: ignore[arg-type]  # on purpose

    with pytest.raises(PlanError, match=r"cannot be written as JSON(; values of a plan are|\. Give a smaller one)"):
        to_json(node)


def test_another_version_of_a_class_says_what_to_do(images: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = to_json(images.table("vision.imagenet_train").cache(image_ref=Raw(8)).node)
    monkeypatch.setattr(Raw, "VERSION", 2)

    with pytest.raises(PlanError, match=r"Raw was saved at version 1, here it is 2: .* or save the stream again"):
        read_back(saved, images)
