"""How streams of a mixture share batches, through the public door: steps of one stream, and shares after every batch."""

import re
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.plan.saving.fingerprint import canonical
from tests.fixtures.compositions import FOUR, SIZES, THREE, TWO, make_catalog, prepared, stratified

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("compositions"))


# ---- steps of one stream


@pytest.mark.parametrize(
    ("size", "window"),
    [
        (800, 8_192),
        (12_810, 96),  # an epoch of several chapters
        pytest.param(800, 96, marks=pytest.mark.slow),
        pytest.param(12_810, 8_192, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("last", [sp.KeepPartial, sp.DropPartial, sp.batching.PadPartial])
def test_every_step_is_of_one_stream_and_batches_are_short_at_the_epochs_end_only(
    catalog: sp.Catalog, last: Any, size: int, window: int
) -> None:
    formation = sp.WindowedBucket(window_size=window, keys=[sp.BucketKey("size")])
    with prepared(catalog, TWO, size, formation=formation, last=last, **FOUR) as stream:
        batches = list(stream)
    rows = np.array([len(batch["sample_id"]) for batch in batches])
    steps = [{each for b in batches[at : at + 4] for each in b["stream_id"]} for at in range(0, len(batches), 4)]
    inside = len(steps) - 2 * (last is sp.KeepPartial)  # a stream may have fewer samples left than a step has batches

    assert {len(names) for names in steps[:inside]} == {1}
    assert {len(batch["stream_id"]) for batch in batches[: 4 * inside]} == {8}
    assert len(batches) % 4 == 0
    assert rows.sum() == size if last is sp.KeepPartial else abs(rows.sum() - size) < 2 * 32
    assert (rows.sum() - size) * {sp.KeepPartial: 0, sp.DropPartial: -1, sp.batching.PadPartial: 1}[last] >= 0


@pytest.mark.parametrize("last", [sp.KeepPartial, sp.batching.PadPartial])
def test_the_ledger_names_the_samples_of_steps_of_one_stream(catalog: sp.Catalog, last: Any) -> None:
    formation = sp.WindowedBucket(window_size=80, keys=[sp.BucketKey("size")])
    with prepared(catalog, TWO, 600, formation=formation, last=last, **FOUR) as stream:
        for number, batch in enumerate(stream):
            assert [each for _, each in stream.ledger(number, 0)] == batch["sample_id"]


def test_only_counted_batches_are_another_version(catalog: sp.Catalog) -> None:
    def version(**options: Any) -> Any:
        fields = {"ids": sp.List("sample_id")}
        mixed = sp.mix([sp.Stream(n, catalog.table(n)) for n in SIZES]).sample(order=sp.GlobalShuffle(seed=0))
        return canonical(mixed.collate(fields=fields, **{"batch_size": 8, **options}).node)["formation"]["@version"]

    assert version(composition=sp.batching.OneStream()) == version(composition=sp.StratifiedByStream()) == 3
    assert version(formation=sp.WindowedBucket(window_size=512)) == 3


def test_a_window_in_which_no_stream_may_have_a_step_is_refused_at_birth(catalog: sp.Catalog) -> None:
    says = r"3 streams may wait with 93 samples for whole steps of 4 batches of 8, .* formation=WindowedBucket\(window_size=94\)"
    with pytest.raises(sp.errors.PlanError, match=says):
        prepared(catalog, THREE, 800, formation=sp.WindowedBucket(window_size=93), **FOUR)
    with prepared(catalog, THREE, 800, formation=sp.WindowedBucket(window_size=94), **FOUR) as stream:
        assert {len(batch["sample_id"]) for batch in stream} == {8}
    with prepared(
        catalog, THREE, 800, batch_size=3_000, composition=sp.batching.OneStream(), last=sp.KeepPartial
    ) as stream:  # a window as large as it needs
        assert stream.fingerprint


# ---- shares after every batch


def furthest(stream: sp.PreparedStream) -> float:
    """How far a stream is from its share after any batch of the epoch, in samples."""
    counts = np.array([[batch["stream_id"].count(name) for name in THREE] for batch in stream])
    targets = np.multiply.outer(np.cumsum(counts.sum(axis=1)), np.array(list(THREE.values())))
    return float(np.abs(np.cumsum(counts, axis=0) - targets).max())


def test_a_window_too_small_for_a_late_stream_is_said_before_the_first_batch(catalog: sp.Catalog) -> None:
    says = r"window_size=512: a stream of 5.00% may come so late .* Give window_size of at least (\d+)"
    with stratified(catalog, 512) as stream:
        with pytest.warns(sp.SpiralWarning, match=says) as caught:
            assert stream.fingerprint
        assert re.search(says, "\n".join(stream.explain().facts["warnings"]))
        assert 1 < furthest(stream) < 7  # 30 where a full window went at once
    found = re.search(says, str(caught[0].message))
    assert found is not None
    with stratified(catalog, int(found[1])) as stream:
        assert all(furthest(stream) < 1 for _ in range(3))
        assert not any("StratifiedByStream" in line for line in stream.explain().facts["warnings"])


def test_only_windows_that_may_fill_up_are_another_version(catalog: sp.Catalog) -> None:
    def version(window: int, **options: Any) -> Any:
        return canonical(stratified(catalog, window, **options).plan).get("stratified", 1)

    assert version(512) == version(1_000) == 2
    assert version(2_048) == version(8_192) == version(8_192, size=10**10) == version(8_192, size=8_191) == 1


@pytest.mark.parametrize(
    ("shares", "size", "window", "last", "says"),
    [
        (
            THREE,
            600,
            512,
            sp.DropPartial,
            r"an epoch of 600 samples c \(about 30\) have fewer than a step's 32, and DropPartial drops",
        ),
        (THREE, 600, 512, sp.batching.PadPartial, r"PadPartial fills it with repeated ones. Give last=KeepPartial"),
    ],
)
def test_steps_of_one_stream_that_cannot_be_whole_are_warned_of(
    catalog: sp.Catalog, shares: dict[str, float], size: int, window: int, last: Any, says: str
) -> None:
    formation = sp.WindowedBucket(window_size=window)
    with prepared(catalog, shares, size, formation=formation, last=last, **FOUR) as stream:
        with pytest.warns(sp.SpiralWarning, match=says):
            assert stream.fingerprint
        assert any(re.search(says, line) for line in stream.explain().facts["warnings"])
    with prepared(catalog, shares, 8_000, last=last, **FOUR) as stream:
        assert stream.fingerprint
