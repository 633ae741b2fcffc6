"""Two plans have one fingerprint when and only when their batches are meant equal."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import spiral_stream
from spiral_stream import (
    Catalog,
    DataParallel,
    GlobalShuffle,
    HashBucketed,
    KeepPartial,
    List,
    Normalize,
    Raw,
    Relation,
    RuntimeParam,
    ShardAwareShuffle,
    ShuffleBuckets,
    Stack,
    col,
)
from spiral_stream.errors import PlanError
from spiral_stream.plan.saving.fingerprint import fingerprint
from spiral_stream.profiles import Jpeg, Original
from spiral_stream.transforms import Transform
from tests.fixtures.programs import image_catalog, image_fields, image_program, image_transforms

REPLAY = Path(__file__).parents[3] / "replay" / "fingerprints.json"
ROOT = Path(spiral_stream.__file__).parents[1]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return image_catalog(tmp_path_factory.mktemp("fingerprint"))


def crop(size: int) -> dict[str, spiral_stream.Stack]:
    return image_fields(image_transforms(size))


RANKS = {"rank": RuntimeParam("rank"), "world_size": RuntimeParam("world_size")}
two = {"a": col("split") == "train", "b": col("width") >= 50}

SAME: dict[str, Callable[[Catalog], Relation]] = {
    "constant first": lambda c: image_program(c, keep=lambda r: r.filter("train" == col("split"))),  # noqa: SIM300  the spelling under test
    "a list of one": lambda c: image_program(c, keep=lambda r: r.filter(col("split").is_in(["train"]))),
    "twice not": lambda c: image_program(c, keep=lambda r: r.filter(~~(col("split") == "train"))),
    "said twice": lambda c: image_program(c, keep=lambda r: r.filter(two["a"]).filter(two["a"])),
    "field order": lambda c: image_program(c, fields=dict(reversed(image_fields(image_transforms()).items()))),
    "a field's device": lambda c: image_program(c, fields=image_fields(image_transforms(), device=None)),
    "a number of epoch": lambda c: image_program(c, epoch=3),
    "fixed rank and world size": lambda c: image_program(c, assignment=DataParallel(rank=1, world_size=4)),
    "a cache of the bytes": lambda c: image_program(c, keep=lambda r: kept(r).cache(image_ref=Original())),
    "a cache of all pixels": lambda c: image_program(c, keep=lambda r: kept(r).cache(image_ref=Raw())),
    "the last cache declared": lambda c: image_program(
        c, keep=lambda r: kept(r).cache(image_ref=Raw(shorter_side=64)).cache(image_ref=Original())
    ),
    "a tail rule called": lambda c: image_program(c, last=spiral_stream.DropPartial()),
}  # fmt: skip

OTHER: dict[str, Callable[[Catalog], Relation]] = {
    "batch_size": lambda c: image_program(c, batch_size=512),
    "tail rule": lambda c: image_program(c, last=KeepPartial),
    "seed": lambda c: image_program(c, order=ShardAwareShuffle(seed=18)),
    "block size": lambda c: image_program(c, order=ShardAwareShuffle(seed=17, shuffle_block_size=1_000)),
    "kind of order": lambda c: image_program(c, order=GlobalShuffle(seed=17)),
    "bucket_count": lambda c: image_program(c, order=HashBucketed(17, 64, ShuffleBuckets(17))),
    "lanes": lambda c: image_program(c, assignment=DataParallel(lanes=2, **RANKS)),
    "identity": lambda c: image_program(c, identity=("sample_id", "source_uri")),
    "transform's parameter": lambda c: image_program(c, fields=crop(192)),
    "one transform less": lambda c: image_program(c, fields=image_fields(image_transforms()[1:])),
    "dtype": lambda c: image_program(
        c, fields={**image_fields(image_transforms()), "label": Stack("label_id", dtype="int32")}
    ),
    "layout": lambda c: image_program(
        c, fields={"image": Stack("image_ref", decode="jpeg", transforms=image_transforms(), dtype="float16", layout="nhwc")}
    ),
    "decoder": lambda c: image_program(
        c, fields={"image": Stack("image_ref", decode="image", transforms=image_transforms(), dtype="float16")}
    ),
    "name of a field": lambda c: image_program(c, fields={"id": List("sample_id")}),
    "condition": lambda c: image_program(c, keep=lambda r: r.filter(col("split") != "train")),
    "condition's type": lambda c: image_program(c, keep=lambda r: r.filter(col("width") > 50)),
    "no condition": lambda c: image_program(c, keep=lambda r: r),
    "limit": lambda c: image_program(c, keep=lambda r: kept(r).limit(7)),
    "smaller pixels": lambda c: image_program(c, keep=lambda r: kept(r).cache(image_ref=Raw(shorter_side=64))),
    "other smaller pixels": lambda c: image_program(c, keep=lambda r: kept(r).cache(image_ref=Raw(shorter_side=65))),
    "encoded again": lambda c: image_program(c, keep=lambda r: kept(r).cache(image_ref=Jpeg())),
    "quality": lambda c: image_program(c, keep=lambda r: kept(r).cache(image_ref=Jpeg(quality=80))),
}  # fmt: skip


def kept(relation: Relation) -> Relation:
    return relation.filter(two["a"])


@pytest.mark.parametrize("way", SAME)
def test_another_spelling_of_the_same_batches_does_not_move_it(catalog: Catalog, way: str) -> None:
    assert SAME[way](catalog).fingerprint == image_program(catalog).fingerprint


@pytest.mark.filterwarnings("ignore:collate. batch_size is 256:spiral_stream.SpiralWarning")  # of few rows
def test_delivery_does_not_move_it(catalog: Catalog) -> None:
    plan = image_program(catalog)

    assert plan.to_numpy(prefetch=1).fingerprint == plan.to_numpy(prefetch=9).fingerprint == plan.fingerprint


def test_the_order_of_conditions_does_not_move_it(catalog: Catalog) -> None:
    ways = [
        lambda r: r.filter(two["a"], two["b"]),
        lambda r: r.filter(two["b"]).filter(two["a"]),
        lambda r: r.where(two["b"] & two["a"]),
    ]

    assert len({image_program(catalog, keep=way).fingerprint for way in ways}) == 1


def test_whatever_changes_the_batches_moves_it_and_no_two_of_them_agree(catalog: Catalog) -> None:
    found = {"as written": image_program(catalog).fingerprint}
    found |= {change: make(catalog).fingerprint for change, make in OTHER.items()}

    assert len(set(found.values())) == len(found)


def test_the_seed_program_has_the_fingerprint_that_saved_states_carry(catalog: Catalog) -> None:
    found = {"image": image_program(catalog).fingerprint}

    assert found == json.loads(REPLAY.read_text()), f"if results changed on purpose, keep {json.dumps(found)}"


@pytest.mark.parametrize("seed", ["4242", *(pytest.param(seed, marks=pytest.mark.slow) for seed in "01")])
def test_the_hash_seed_of_the_process_does_not_move_it(catalog: Catalog, seed: str) -> None:
    program = (
        "import sys; from spiral_stream import connect; from tests.fixtures.programs import image_program; "
        "print(image_program(connect(sys.argv[1])).fingerprint)"
    )
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", program, str(catalog.root)], env=env, capture_output=True, text=True, check=True
    )

    assert run.stdout.strip() == image_program(catalog).fingerprint


# ---- what the user wrote

POLICY = '''
from dataclasses import dataclass
import numpy as np
from spiral_stream.sampling.order import Arrangement, Order
from spiral_stream.transforms.image.image import ImageTransform

STEP = 1

class _Turned(Arrangement):
    def __init__(self, size):
        self.size = size
    def rows(self, positions):
        return (positions + np.uint64(STEP)) % np.uint64(self.size)
    def positions(self, rows):
        return (rows - np.uint64(STEP)) % np.uint64(self.size)

@dataclass(frozen=True)
class Turned(Order):
    """Begin somewhere else."""
    seed: int = 0
    version: str = "a field may be called so"
    def arrange(self, population, pass_number):
        return _Turned(population.total)

@dataclass(frozen=True)
class Shift(ImageTransform):
    NAME = "shift"
    by: int
    @property
    def deterministic(self):
        return True
    def place(self, at, draw, *, resized):
        return at
    def size_after(self, size):
        return size
'''

Load = Callable[..., object]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Write the user's module, with one text replaced, and import it anew."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(old: str = "", new: str = "") -> object:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "mypolicy.py").write_text(POLICY.replace(old, new, 1) if old else POLICY)
        monkeypatch.syspath_prepend(str(folder))
        sys.modules.pop("mypolicy", None)
        return importlib.import_module("mypolicy")

    yield write
    sys.modules.pop("mypolicy", None)


CHANGES = {
    "a comment": ('"""Begin somewhere else."""', '"""Start later."""  # said better', False),
    "a method": ("return _Turned(population.total)", "return _Turned(population.total - 0)", True),
    "a helper's method": ("(positions + np", "(positions - np", True),
    "a constant that a helper uses": ("STEP = 1", "STEP = 2", True),
    "another class's method": ("        return at\n", "        return at.flip()\n", False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_order_of_the_users_own_counts_with_its_code(catalog: Catalog, load: Load, change: str) -> None:
    old, new, moves = CHANGES[change]
    before = image_program(catalog, order=load().Turned()).fingerprint  # type: ignore[attr-defined]  # see POLICY

    after = image_program(catalog, order=load(old, new).Turned()).fingerprint  # type: ignore[attr-defined]

    assert (after != before) is moves


def test_a_transform_of_the_users_own_counts_with_its_code_and_fields(catalog: Catalog, load: Load) -> None:
    def found(module: object, by: int) -> str:
        fields = image_fields((module.Shift(by), *image_transforms()))  # type: ignore[attr-defined]  # see POLICY
        return image_program(catalog, fields=fields).fingerprint

    before = found(load(), 3)

    assert found(load(), 3) == before
    assert found(load(), 4) != before
    assert found(load("        return at\n", "        return at.flip()\n"), 3) != before
    assert found(load("STEP = 1", "STEP = 2"), 3) == before


def test_a_value_without_content_is_refused_with_what_may_be(catalog: Catalog) -> None:
    @dataclass(frozen=True)
    class Odd(GlobalShuffle.__mro__[1]):  # type: ignore[misc]  # Order
        table: object = None

        def arrange(self, population: object, pass_number: int) -> None: ...

    with pytest.raises(PlanError, match="numbers, texts, tuples and frozen dataclasses"):
        _ = image_program(catalog, order=Odd(table={1: 2})).fingerprint


def test_half_a_character_has_no_fingerprint(catalog: Catalog) -> None:
    fields = {"\ud800": image_fields(image_transforms())["image"]}

    with pytest.raises(
        PlanError, match=r"plan: it has no fingerprint, because it holds a value that cannot be written"
    ):
        assert image_program(catalog, fields=fields).fingerprint


def test_a_part_of_a_plan_has_a_fingerprint_too(catalog: Catalog) -> None:
    relation = catalog.table("vision.imagenet_train")

    assert fingerprint(relation.node) == relation.fingerprint != relation.limit(3).fingerprint


def test_constants_are_told_apart_by_their_bits(catalog: Catalog) -> None:
    def found(mean: float) -> str:
        steps: tuple[Transform, ...] = (*image_transforms()[:2], Normalize(mean=[mean, 0.4, 0.4], std=[1, 1, 1]))
        return image_program(catalog, fields=image_fields(steps)).fingerprint

    assert found(0.1 + 0.2) != found(0.3)
    assert found(0.5) == found(1 / 2)


def test_the_decoders_version_is_part_of_it(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    from spiral_stream.decoders.registry import decoder

    before = image_program(catalog).fingerprint
    monkeypatch.setattr(type(decoder("jpeg")), "VERSION", type(decoder("jpeg")).VERSION + 1)

    assert image_program(catalog).fingerprint != before


def test_the_encoder_counts_where_its_pixels_are_seen(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    lossy, lossless = OTHER["encoded again"](catalog), OTHER["smaller pixels"](catalog)
    before = lossy.fingerprint, lossless.fingerprint
    monkeypatch.setattr("spiral_stream.plan.saving.fingerprint.codec_version", lambda: "another encoder 1.0")

    assert lossy.fingerprint != before[0]
    assert lossless.fingerprint == before[1]


def test_a_plan_does_not_change_when_its_fingerprint_is_taken(catalog: Catalog) -> None:
    plan = image_program(catalog)
    copy = replace(plan)

    assert plan.fingerprint == copy.fingerprint == plan.fingerprint
