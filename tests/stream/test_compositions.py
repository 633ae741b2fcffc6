"""How streams of a mixture share batches, through the public door: steps of one stream, and shares after every batch."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.plan.fingerprint import canonical
from spiral_stream.testing import check_elastic, check_replay, check_resume

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]

SIZES = {"a": 3_000, "b": 900, "c": 300}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    made = sp.connect(str(tmp_path_factory.mktemp("compositions") / "catalog"))
    rng = np.random.default_rng(0)
    for name, rows in SIZES.items():
        table = {"sample_id": [f"{name}{i}" for i in range(rows)], "size": rng.integers(1, 100, rows)}
        made.register(name, sp.Arrow(pa.table(table)), identity="sample_id")
    return made


def prepared(catalog: sp.Catalog, shares: dict[str, float], size: int, **options: Any) -> sp.PreparedStream:
    mixed = sp.mix([sp.Stream(n, catalog.table(n), proportion=p) for n, p in shares.items()], epoch_size=size)
    order = options.pop("order", sp.GlobalShuffle(seed=0))
    fields = {"sample_id": sp.List("sample_id"), "stream_id": sp.List("stream_id")}
    return mixed.sample(order=order).collate(fields=fields, **options).to_numpy()


# ---- steps of one stream

TWO = {"a": 0.75, "b": 0.25}
FOUR = {"batch_size": 8, "composition": sp.OneStream(batches=4)}


@pytest.mark.parametrize("window", [8_192, 96])  # 96: an epoch of one chapter, and of several
@pytest.mark.parametrize("size", [800, 12_810])
@pytest.mark.parametrize("last", [sp.KeepPartial, sp.DropPartial, sp.PadPartial])
def test_every_step_is_of_one_stream_and_batches_are_short_at_a_chapters_end_only(
    catalog: sp.Catalog, last: Any, size: int, window: int
) -> None:
    formation = sp.WindowedBucket(window_size=window, keys=[sp.BucketKey("size")])
    with prepared(catalog, TWO, size, formation=formation, last=last, **FOUR) as stream:
        batches = list(stream)
        chapters = -(-size // (64 * window))
    rows = np.array([len(batch["sample_id"]) for batch in batches])
    steps = [{each for b in batches[at : at + 4] for each in b["stream_id"]} for at in range(0, len(batches), 4)]
    short = np.count_nonzero(rows < 8)

    assert {len(names) for names in steps} == {1}
    assert len(batches) % 4 == 0
    assert {len(batch["sample_id"]) for batch in batches} <= {8} or last is sp.KeepPartial
    assert short <= 2 * 2 * 4 * chapters
    assert rows.sum() == size if last is sp.KeepPartial else abs(rows.sum() - size) < 2 * 32 * chapters
    assert (rows.sum() - size) * {sp.KeepPartial: 0, sp.DropPartial: -1, sp.PadPartial: 1}[last] >= 0


@pytest.mark.parametrize("last", [sp.KeepPartial, sp.PadPartial])
def test_steps_of_one_stream_replay_resume_and_are_the_same_for_all_ranks(catalog: sp.Catalog, last: Any) -> None:
    def make() -> sp.PreparedStream:
        formation = sp.WindowedBucket(window_size=80, keys=[sp.BucketKey("size")])
        return prepared(catalog, TWO, 600, formation=formation, last=last, **FOUR)

    check_replay(make)
    check_resume(make, [1, 40, 72])
    check_elastic(make, (2, 4))
    with make() as stream:
        for number, batch in enumerate(stream):
            assert [each for _, each in stream.ledger(number, 0)] == batch["sample_id"]


def test_only_counted_units_of_several_batches_are_another_version(catalog: sp.Catalog) -> None:
    def version(batches: int, **options: Any) -> Any:
        fields = {"ids": sp.List("sample_id")}
        mixed = sp.mix([sp.Stream(n, catalog.table(n)) for n in SIZES]).sample(order=sp.GlobalShuffle(seed=0))
        plan = mixed.collate(fields=fields, composition=sp.OneStream(batches), **{"batch_size": 8, **options})
        return canonical(plan.node)["formation"]["@version"]

    assert version(1) == 1
    assert version(2) == version(2, formation=sp.WindowedBucket(window_size=512)) == 2
