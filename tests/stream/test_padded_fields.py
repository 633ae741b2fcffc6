"""Fields of rows that differ in length, through the public door: boxes, sound, tensors, and rows of a fixed length."""

from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.testing import same
from tests.fixtures.padded_fields import BOXES, FIELDS, IMAGE, SOUND, TOKENS, make_catalog, plan


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("rows"))


def test_rows_are_padded_to_the_longest_of_the_batch_or_to_their_length(catalog: sp.Catalog) -> None:
    with plan(catalog, FIELDS).to_numpy() as stream:
        assert stream.spec()["boxes"].shape == (None, 4)
        assert stream.spec()["tokens"].shape == stream.spec()["mask"].shape == (5,)
        for batch in stream:
            rows = batch["id"]
            longest = max(1, *(len(BOXES[row]) for row in rows))
            assert batch["boxes"].shape == (8, longest, 4)
            assert batch["boxes_mask"].sum(axis=1).tolist() == [len(BOXES[row]) for row in rows]
            assert [b[m].tolist() for b, m in zip(batch["boxes"], batch["boxes_mask"], strict=True)] == [
                BOXES[row] for row in rows
            ]
            assert (batch["boxes"][~batch["boxes_mask"]] == -1).all()
            assert batch["sound"].shape[1] == -(-max(len(SOUND[row]) for row in rows) // 4) * 4
            assert [s[: len(SOUND[r])].tolist() for s, r in zip(batch["sound"], rows, strict=True)] == [
                SOUND[row] for row in rows
            ]
            assert batch["tokens"].shape == batch["mask"].shape == (8, 5)
            assert [t[m == 1].tolist() for t, m in zip(batch["tokens"], batch["mask"], strict=True)] == [
                TOKENS[row] for row in rows
            ]
            assert same(batch["grid"], IMAGE[rows])


def test_the_same_rows_reach_torch(catalog: sp.Catalog) -> None:
    with plan(catalog, FIELDS).to_torch() as tensors, plan(catalog, FIELDS).to_numpy() as arrays:
        for ours, theirs in zip(tensors, arrays, strict=True):
            assert same(
                {name: np.asarray(value) for name, value in ours.items()}, theirs | {"id": np.asarray(theirs["id"])}
            )


def test_a_row_above_the_length_is_named_or_left_out(catalog: sp.Catalog) -> None:
    for column, count in (("tokens", "5 tokens"), ("sound", r"\d+ values")):
        field = sp.Pad(column, length=4, dtype="int64" if column == "tokens" else "float32")
        with (
            plan(catalog, {"x": field}).to_numpy() as stream,
            pytest.raises(
                sp.errors.DataError, match=rf"Pad\('{column}'\): the row has {count}, above length=4. Raise it"
            ),
        ):
            list(stream)
        lengths = [len(row) for row in (TOKENS if column == "tokens" else SOUND)]
        with plan(catalog, {"x": field}, on_error="skip", error_budget=1.0, last=sp.KeepPartial).to_numpy() as stream:
            left = [row for batch in stream for row in batch["id"]]
        assert sorted(left) == [row for row, length in enumerate(lengths) if length <= 4]


@pytest.mark.parametrize(
    ("fields", "options", "found"),
    [
        (
            {"a": sp.Pad("tokens", length=8), "b": sp.PadMask("tokens", length=9)},
            {},
            r"share their width, and say \[8, 9\]",
        ),
        (
            {"a": sp.Pad("tokens", length=9), "b": sp.PadMask("tokens", 2)},
            {},
            "length=9 of 'tokens' is no multiple of 2",
        ),
        (
            {"a": sp.Pad("tokens", length=9)},
            {"batch_size": None, "formation": sp.WindowedBucket(window_size=8, budget=sp.BatchBudget(max_tokens=64))},
            r"Pad\('tokens', length=9\) fixes the width, and a budget of tokens",
        ),
        (
            {"a": sp.Pad("tokens"), "b": sp.Pad("sound", dtype="float32")},
            {"formation": sp.batching.Packed(max_tokens=16)},
            "a packed row holds several samples, which Pad cannot show",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    catalog: sp.Catalog, fields: dict[str, Any], options: dict[str, Any], found: str
) -> None:
    with pytest.raises(sp.errors.PlanError, match=found):
        plan(catalog, fields, **options).to_numpy()


def test_formation_by_the_length_of_rows_that_are_no_tokens(catalog: sp.Catalog) -> None:
    formation = sp.WindowedBucket(window_size=20, keys=[sp.BucketKey("len(sound)")])
    with plan(catalog, FIELDS, formation=formation).to_numpy() as stream:
        widths = [batch["sound"].shape[1] for batch in stream]
    assert len(set(widths)) > 1
