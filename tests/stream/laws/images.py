"""Subjects of images and fields of rows: every order, tail and lane, scenes, foreign pipelines, lists, patches, padded rows."""

from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.testing import MakeStream
from tests.fixtures import (
    bfloat16_fields,
    image_lists,
    mixed_rows,
    padded_fields,
    patches,
    pipelines,
    scene_fields,
    scenes,
    streams,
)
from tests.stream.laws.subject import Subject

# ---- one image per row


def _images(catalog: sp.Catalog, drawn: Any) -> MakeStream:
    options, rows, prefetch = drawn
    relation = catalog.table("lance") if rows is None else catalog.table("lance").limit(rows)
    return lambda: streams.plan(relation, **options).to_numpy(prefetch=prefetch)


IMAGES: Final = [
    Subject(
        f"images, {name}",
        streams.make_catalog,
        st.tuples(
            st.fixed_dictionaries(
                {
                    "order": st.just(order),
                    "last": st.sampled_from(list(streams.TAILS.values())),
                    "lanes": st.integers(1, 5),
                    "batch_size": st.just(55) | st.integers(20, 120),
                    "transforms": st.sampled_from([streams.RANDOM, streams.FIXED]),
                }
            ),
            st.none() | st.integers(20, streams.ROWS),
            st.integers(1, 4),
        ),
        _images,
        worlds=(2, 3, 4, 6),
        by_day=2,
    )
    for name, order in streams.ORDERS.items()
]


def _scenes(folder: Path) -> sp.Catalog:
    return scenes.catalog(folder / "catalog", scenes.table())


SCENES: Final = [
    Subject(
        f"scenes, {name}",
        _scenes,
        st.just(name),
        lambda catalog, of: lambda: scenes.stream(catalog, scene_fields.PLANS[of]),
        by_night=10,
    )
    for name in scene_fields.PLANS
]


def _pipeline(pictures: sp.Relation, made: Any) -> MakeStream:
    return pipelines.plan(pictures, batch_size=2, transforms=made()).to_numpy  # type: ignore[no-any-return]


PIPELINES: Final = [
    Subject(f"random pipelines of {name}", pipelines.pictures, st.just(made), _pipeline, by_night=10)
    for name, made in (
        ("albumentations", pipelines.random_albumentations),
        ("torchvision", pipelines.random_version_one),
    )
]

# ---- lists of images


def _lists(folder: Path) -> sp.Catalog:
    catalog = image_lists.make_catalog(folder)
    images = image_lists.rows().select(["id", "images"])
    for name, table in (("more", images.slice(3)), ("others", images)):
        catalog.register(name, sp.Arrow(table), identity="id", semantic={"images": "image/jpeg-ref"})
    return catalog


def _listed(catalog: sp.Catalog, options: Any) -> MakeStream:
    return lambda: image_lists.stream(catalog, image_lists.fields(), **options)


def _budget(*keys: Any) -> dict[str, Any]:
    formation = sp.WindowedBucket(window_size=8, keys=keys, budget=sp.BatchBudget(max_images=6))
    return {"formation": formation, "batch_size": None, "last": sp.KeepPartial}


def _mixed_lists(catalog: sp.Catalog, _: None) -> MakeStream:
    parts = [sp.Stream(name, catalog.table(name), proportion=0.5) for name in ("more", "others")]
    sampled = sp.mix(parts).sample(identity="id", order=sp.GlobalShuffle(seed=1))
    return sampled.collate(batch_size=6, fields=image_lists.fields()).to_numpy


LISTS: Final = [
    *(
        Subject(f"lists of images, {name}", _lists, st.just(options), _listed, by_night=10)
        for name, options in (
            ("two a batch", {"batch_size": 2}),
            ("a budget in order", _budget()),
            ("a budget by length", _budget(sp.BucketKey("len(images)"))),
        )
    ),
    Subject("lists of images, a mixture", _lists, st.none(), _mixed_lists, by_night=5),
]

# ---- rows of numbers

ROWS: Final = [
    Subject(
        "padded rows",
        padded_fields.make_catalog,
        st.none(),
        lambda catalog, _: padded_fields.plan(catalog, padded_fields.FIELDS).to_numpy,
        by_day=2,
        by_night=10,
    ),
    Subject(
        "fields of bfloat16",
        bfloat16_fields.make_catalog,
        st.none(),
        lambda catalog, _: bfloat16_fields.plan(catalog).to_torch,
        by_day=2,
        by_night=10,
    ),
]

# ---- patches

PATCHES: Final = [
    Subject(
        f"patches, {name}",
        patches.make_catalog,
        st.fixed_dictionaries(
            {
                "batch_size": st.integers(2, 6),
                "last": st.sampled_from([sp.DropPartial(), sp.KeepPartial(), sp.batching.PadPartial(value=0)]),
                "max_patches": st.integers(1, 30),
                "order": st.just(order),
            }
        ),
        lambda catalog, options: lambda: patches.stream(catalog, transforms=patches.RANDOM, **options),
        by_night=20,
    )
    for name, order in (("shuffled", sp.GlobalShuffle(seed=3)), ("by shard", sp.ShardAwareShuffle(seed=4)))
]

# ---- rows of text with images

MIXED: Final = [
    Subject(
        f"text with images, {name}",
        mixed_rows.make_catalog,
        st.fixed_dictionaries(
            {"order": st.sampled_from([sp.GlobalShuffle(seed=3), sp.ShardAwareShuffle(seed=4)]), **options}
        ),
        lambda catalog, options: lambda: mixed_rows.stream(catalog, **options),
        by_night=10,
    )
    for name, options in (
        (
            "packed",
            {
                "formation": st.builds(
                    sp.batching.Packed,
                    max_tokens=st.integers(700, 1_000),
                    strategy=st.sampled_from(["best_fit", "first_fit"]),
                    window_size=st.integers(2, 30),
                    max_images=st.none() | st.integers(8, 12),
                    max_patches=st.none() | st.integers(400, 600),
                ),
                "batch_size": st.integers(1, 3),
                "last": st.sampled_from([sp.DropPartial, sp.KeepPartial, sp.batching.PadPartial]),
            },
        ),
        (
            "by a budget of each kind",
            {
                "formation": st.builds(
                    sp.WindowedBucket,
                    window_size=st.integers(8, 40),
                    keys=st.sampled_from([(), (sp.BucketKey("len(tokens)"),)]),
                    budget=st.builds(
                        sp.BatchBudget,
                        max_tokens=st.just(2_000),
                        max_images=st.integers(8, 20),
                        max_patches=st.just(500),
                    ),
                ),
                "batch_size": st.none(),
                "last": st.just(sp.KeepPartial),
            },
        ),
    )
]

SUBJECTS: Final = (*IMAGES, *SCENES, *PIPELINES, *LISTS, *ROWS, *PATCHES, *MIXED)
