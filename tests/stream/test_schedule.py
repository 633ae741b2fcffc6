"""Mixtures whose shares move, are of tokens, nest or count: what an epoch holds is what the plan says, sample by sample."""

import time
import tracemalloc
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from spiral_stream.errors import PlanError
from spiral_stream.plan.saving.fingerprint import canonical
from tests.fixtures.inner import stages_of
from tests.fixtures.schedules import ORDER, SIZES, prepared, scheduled, streams
from tests.fixtures.texts import SMALL_PLANS, documents, make_catalog

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("schedule"), SIZES)


def names_of(stream: sp.PreparedStream, epochs: int = 1) -> list[str]:
    with stream:
        return [name for _ in range(epochs) for batch in stream for name in batch["stream_id"]]


# ---- schedules


def test_counts_follow_the_integral_of_the_schedule_at_slice_borders(catalog: sp.Catalog) -> None:
    size, points = 20_000, np.array([0, 10_000, 25_000])
    shares = np.array([[0.8, 0.2, 0.0], [0.4, 0.2, 0.4], [0.1, 0.9, 0.0]])
    with prepared(scheduled(catalog)) as stream:
        mixture = stages_of(stream).epochs.mixture
        assert mixture is not None
        for epoch in range(3):
            at = np.arange(size) + epoch * size
            own = np.stack([np.interp(at + 0.5, points, shares[:, k]) for k in range(3)], axis=1)
            target = np.concatenate([np.zeros((1, 3)), np.cumsum(own, axis=0)])
            drawn, _ = mixture.split(epoch, np.arange(size, dtype=np.uint64))
            real = np.concatenate([np.zeros((1, 3)), np.cumsum(np.eye(3)[drawn], axis=0)])
            border, borders = 0, [0]
            while border < size:
                border = mixture.border(epoch, border + 1)
                borders.append(border)
            assert len(borders) > 4
            assert np.abs(real[borders] - target[borders]).max() < 2
            assert np.allclose(mixture.shares(epoch, 0), own[0], atol=1e-3)
        assert mixture.quotas(5).tolist() == [2_000, 18_000, 0]  # past the last point


@pytest.mark.parametrize(
    ("size", "step", "points"),
    [
        (4_000, 1, {0: (1.0, 0.0), 4_000: (0.0, 1.0)}),  # an epoch that was one slice
        (4_000, 4, {0: (1.0, 0.0), 500: (0.0, 1.0)}),
        (100_000, 1, {0: (0.9, 0.1), 2_000: (0.2, 0.8), 90_000: (0.5, 0.5)}),  # a short rise before a long one
        (5_000, 1, {0: (1.0, 0.0), 999: (1.0, 0.0), 1_000: (0.0, 1.0)}),  # a rest before a jump
        (3_000, 1, {500: (1.0, 0.0), 501: (0.0, 1.0)}),
    ],
)
def test_a_short_schedule_is_followed_inside_an_epoch(
    catalog: sp.Catalog, size: int, step: int, points: dict[int, tuple[float, float]]
) -> None:
    schedule = {at: dict(zip("ab", shares, strict=True)) for at, shares in points.items()}
    options = {"schedule": schedule, "samples_per_step": step}
    mixed = sp.mix(streams(catalog, "a", "b", proportion=(0.5, 0.5)), epoch_size=size, **options)
    moves = min(size, step * max(points))
    first = np.array(names_of(prepared(mixed, 500)))[:moves] == "a"

    at = np.arange(moves) + 0.5
    target = np.interp(at, step * np.array(list(points)), [shares[0] for shares in points.values()])
    tenths = [each.mean() for each in np.array_split(first, 10)]
    wanted = [each.mean() for each in np.array_split(target, 10)]
    assert np.abs(np.array(tenths) - wanted).max() < 0.1
    assert np.abs(np.cumsum(first) - np.cumsum(target)).max() < 0.03 * moves


def test_a_schedule_that_is_over_within_the_smallest_slice_is_refused(catalog: sp.Catalog) -> None:
    mixed = sp.mix(
        streams(catalog, "a", "b", "c", proportion=(0.5, 0.3, 0.2)),
        epoch_size=1_000,
        schedule={0: {"a": 1.0, "b": 1.0, "c": 1.0}, 20: {"c": 1.0}},
    )

    with pytest.raises(
        PlanError, match=r"from sample 0 to sample 20, but .* it would be flat. Stretch it over at least 25"
    ):
        prepared(mixed).count()


def test_only_a_short_schedule_is_another_version_of_the_order(catalog: sp.Catalog) -> None:
    def version(points: dict[int, float]) -> Any:
        schedule = {at: {"a": share, "b": 1 - share} for at, share in points.items()}
        mixed = sp.mix(streams(catalog, "a", "b", proportion=(0.5, 0.5)), epoch_size=10**6, schedule=schedule)
        return canonical(mixed.sample(order=ORDER).node)["mixture"]

    assert version({}) == version({0: 0.5}) == version({0: 0.5, 10: 0.5}) == version({5: 0.5, 6: 0.1}) - 1 == 1
    assert version({0: 0.5, 8_192: 0.1}) == version({0: 0.5, 8_192: 0.5, 8_193: 0.1}) == 1
    assert version({0: 0.5, 8_191: 0.1}) == version({0: 0.5, 100: 0.4, 10**6: 0.3}) == 2


def test_a_stream_comes_where_its_share_begins_and_not_where_it_has_ended(catalog: sp.Catalog) -> None:
    names = np.array(names_of(prepared(scheduled(catalog, size=10_000), 500), epochs=3))

    c = np.flatnonzero(names == "c")
    assert c.min() > 0
    assert c.max() < 25_000
    assert np.count_nonzero(c < 10_000) == pytest.approx(2_000, abs=1)
    assert np.count_nonzero(c >= 10_000) == pytest.approx(3_000, abs=1)


def test_stratified_batches_follow_a_schedule(catalog: sp.Catalog) -> None:
    options = {
        "formation": sp.WindowedBucket(window_size=200, keys=()),
        "composition": sp.StratifiedByStream("stream_id"),
    }
    with prepared(scheduled(catalog, size=10_000), 40, **options) as stream:
        early = [Counter(batch["stream_id"]) for _, batch in zip(range(20), stream, strict=False)]
        stream.set_epoch(2)
        late = [Counter(batch["stream_id"]) for _, batch in zip(range(20), stream, strict=False)]

    assert sum(own["a"] for own in early) > 3 * sum(own["b"] for own in early)
    assert sum(own["b"] for own in late) > 3 * sum(own["a"] for own in late)


@pytest.mark.parametrize(
    ("schedule", "options", "says"),
    [
        ({0: {"z": 1.0}}, {}, "names 'z'; the streams are 'a', 'b'"),
        ({0: {"a": -1.0, "b": 2.0}}, {}, r"Give one of at least 0 for each stream, not all 0"),
        ({0: {}}, {}, r"Give one of at least 0 for each stream, not all 0"),
        ({10: {"a": 1.0}, 5: {"b": 1.0}}, {}, "List points in rising order"),
        ({0: {"a": 1.0}}, {"epoch_size": None}, "a schedule is of samples and needs an epoch_size. Give epoch_size"),
        ({0: {"a": 1.0}}, {"schedule_in": "by"}, 'Give "samples", or "by" where the schedule counts'),
        ({0: {"a": 1.0}}, {"samples_per_step": 0}, "samples_per_step"),
    ],
)
def test_what_is_no_schedule_is_refused(catalog: sp.Catalog, schedule: Any, options: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        sp.mix(
            streams(catalog, "a", "b", proportion=(0.5, 0.5)), **{"epoch_size": 100, "schedule": schedule, **options}
        )


# ---- what proportions are of


def test_token_shares_approach_the_proportions(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    sizes = {"short": (5, 300), "long": (60, 100), "mixed": (30, 200)}
    for name, (longest, rows) in sizes.items():
        table = documents(name, rows, longest=longest, shortest=1)
        table = table.append_column("token_count_estimate", table["size"])
        catalog.register(name, sp.Arrow(table), identity="sample_id", shard="storage_shard")
    wanted = dict(zip(sizes, (0.5, 0.3, 0.2), strict=True))
    mixed = sp.mix(
        [sp.Stream(name, catalog.table(name), proportion=share) for name, share in wanted.items()],
        epoch_size=6_000,
        by="token_count_estimate",
    )
    fields = {"stream_id": sp.List("stream_id"), "n": sp.Stack("token_count_estimate")}
    tokens, samples = Counter[str](), Counter[str]()
    with mixed.sample(order=ORDER).collate(batch_size=500, fields=fields).to_numpy() as stream:
        for batch in stream:
            for name, n in zip(batch["stream_id"], batch["n"].tolist(), strict=True):
                tokens[name] += n
                samples[name] += 1

    total = sum(tokens.values())
    for name, share in wanted.items():
        assert tokens[name] / total == pytest.approx(share, abs=0.005)
    assert samples["short"] / 6_000 > 0.8  # which is no share of samples


# ---- nested mixes and counts


def test_a_nested_mix_shares_what_its_part_has(catalog: sp.Catalog) -> None:
    inner = sp.mix(streams(catalog, "b", "c", proportion=(0.75, 0.25)))
    mixed = sp.mix(
        [sp.Stream("a", catalog.table("a"), proportion=0.6), sp.Stream("rest", inner, proportion=0.4)], epoch_size=1_000
    )

    assert Counter(names_of(prepared(mixed))) == {"a": 600, "rest/b": 300, "rest/c": 100}


def test_a_nested_mix_may_be_scheduled_from_outside(catalog: sp.Catalog) -> None:
    inner = sp.mix(streams(catalog, "b", "c", proportion=(0.75, 0.25)))
    mixed = sp.mix(
        [sp.Stream("a", catalog.table("a"), proportion=0.5), sp.Stream("rest", inner, proportion=0.5)],
        epoch_size=1_000,
        schedule={0: {"a": 1.0}, 1_000: {"rest": 1.0}},
    )
    names = names_of(prepared(mixed), epochs=2)

    assert Counter(names[:1_000]) == {"a": 500, "rest/b": 375, "rest/c": 125}
    assert Counter(names[1_000:]) == {"rest/b": 750, "rest/c": 250}


def test_repeat_and_choose_count_rows(catalog: sp.Catalog) -> None:
    mixed = sp.mix(
        [
            sp.Stream("a", catalog.table("a"), choose=25),
            sp.Stream("b", catalog.table("b"), repeat=2),
            sp.Stream("c", catalog.table("c")),
        ]
    )

    assert Counter(names_of(prepared(mixed))) == {"a": 25, "b": 46, "c": 7}


def test_use_evens_out_over_epochs(catalog: sp.Catalog) -> None:
    mixed = sp.mix(streams(catalog, "a", "b", "c", proportion=(0.1, 0.2, 0.7)), epoch_size=37)
    used: dict[str, Counter[str]] = {name: Counter() for name in SIZES}
    with prepared(mixed) as stream:
        for _ in range(40):
            for batch in stream:
                for name, each in zip(batch["stream_id"], batch["sample_id"], strict=True):
                    used[name][each] += 1
            for name, rows in SIZES.items():
                counts = [*used[name].values(), *[0] * (rows - len(used[name]))]
                assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("text", "size"), [("10b", 10**10), ("1.5k", 1_500), ("64M", 64 * 10**6), ("2_000", 2_000), (" 3 ", 3), (7, 7)]
)
def test_an_epoch_size_may_be_written_for_people(catalog: sp.Catalog, text: Any, size: int) -> None:
    with prepared(sp.mix(streams(catalog, "a", "b", proportion=(0.5, 0.5)), epoch_size=text)) as stream:
        assert stages_of(stream).epochs.total == size
        assert len(stream.batch(size // 50 // 2 if size > 100 else 0)["stream_id"]) == min(50, size)


@pytest.mark.parametrize("text", ["", "many", "1.5", "b", "-3k", 0, -5, 2.5, True])
def test_what_is_no_epoch_size_is_refused(catalog: sp.Catalog, text: Any) -> None:
    with pytest.raises(PlanError, match="epoch_size"):
        sp.mix(streams(catalog, "a", "b", proportion=(0.5, 0.5)), epoch_size=text)


# ---- many streams


@pytest.mark.slow
def test_a_thousand_streams_are_prepared_and_read_in_seconds(catalog: sp.Catalog) -> None:
    """Measured, CPU: prepare 4.7 s, first batch of 1,024 1.4 s (under tracemalloc), then 25 ms each."""
    many = [
        sp.Stream(f"s{k}", catalog.table("abc"[k % 3]), proportion=float(Fraction(k + 1, 500_500)))
        for k in range(1_000)
    ]
    start = time.process_time()
    mixed = sp.mix(many, epoch_size="10b")
    with prepared(mixed, 1_024) as stream:
        assert stages_of(stream).streams[-1].name == "s999"
        tracemalloc.start()
        run = iter(stream)
        first = next(run)
        took = time.process_time()
        for _ in range(10):
            next(run)
        rest = (time.process_time() - took) / 10
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        run.close()  # type: ignore[attr-defined]  # a generator
    assert len(first["stream_id"]) == 1_024
    assert took - start < 60
    assert rest < 1
    assert peak < 500e6
