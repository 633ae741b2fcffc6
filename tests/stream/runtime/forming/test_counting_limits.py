"""What would take long because chapters are not counted is refused, with the time it takes and the way out."""

import re
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream.runtime.forming import counting_limits as long_counts
from spiral_stream.runtime.forming.chapter import Chapter
from tests.fixtures.inner import batches_of, numbering_of, stages_of
from tests.fixtures.texts import fields, make_catalog, mixed, tokenized

ROWS = 3_000
HUGE = 10**8
ASKS = {
    "ledger": lambda one: one.ledger(10**6),
    "batch": lambda one: one.batch(10**6),
    "steps_per_epoch": lambda one: one.steps_per_epoch,
}
TIME = r"about [\d,]+ chapters, about [\d,]+ samples, \S+ CPU s per chapter as measured here: [\d,.]+ (s|min|h)\. "
WAY_OUT = r"Count them once: .*stream\.materialize\(lengths=True\), which several processes share, or stream\.count\(\)"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("long"), {"a": ROWS, "b": 300})


def stream(catalog: sp.Catalog, size: int = ROWS, *, lanes: int = 1, stored: bool = True) -> Any:
    docs = catalog.table("a") if size == ROWS else mixed(catalog, {"a": 0.7, "b": 0.3}, size)
    formation = sp.WindowedBucket(4, [sp.BucketKey("len(tokens)")], budget=sp.BatchBudget(max_tokens=128))
    sampled = tokenized(docs, sp.GlobalShuffle(seed=1), stored=stored, lanes=lanes)
    return sampled.collate(batch_size=None, formation=formation, fields=fields(), last=sp.KeepPartial).to_numpy()


@pytest.fixture
def chapters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions at which the windows that were formed began."""
    formed: list[int] = []
    take = Chapter.take_window

    def taken(chapter: Chapter) -> None:
        formed.append(chapter.formed)
        take(chapter)

    monkeypatch.setattr(Chapter, "take_window", taken)
    return formed


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is quick."""
    monkeypatch.setattr(long_counts, "CHAPTERS_AT_ONCE", 0)
    monkeypatch.setattr(long_counts, "QUICK_S", 0.0)


@pytest.mark.crossed
@pytest.mark.parametrize("what", ASKS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_place_behind_uncounted_chapters_is_refused_with_the_time_it_takes(
    catalog: sp.Catalog, caches: Path, chapters: list[int], what: str, lanes: int
) -> None:
    with (
        stream(catalog, HUGE, lanes=lanes) as one,
        pytest.raises(sp.errors.StreamError, match=TIME + WAY_OUT) as refused,
    ):
        ASKS[what](one)

    assert str(refused.value).startswith(f"{what}: ")
    assert 0 < len(chapters) < 1_000  # of 30,000,000: a measurement


def test_len_is_refused_with_the_time_it_takes_and_a_list_takes_that_for_no_length(
    catalog: sp.Catalog, caches: Path
) -> None:
    with stream(catalog, HUGE) as one, pytest.raises(TypeError, match=r"len: .*" + TIME + WAY_OUT):
        len(one)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lanes", [1, 3])
def test_once_counted_everything_costs_one_chapter(
    catalog: sp.Catalog, caches: Path, chapters: list[int], lanes: int
) -> None:
    with stream(catalog, lanes=lanes) as one:
        for ask in (one.ledger, one.batch):
            with pytest.raises(sp.errors.StreamError, match=WAY_OUT):
                ask(10**6)
        one.materialize(lambda _: None, lengths=True)
        total = one.count()
        assert len(one) == one.steps_per_epoch == total
    with stream(catalog, lanes=lanes) as one:
        span = batches_of(one).forming.span
        for ask in (lambda: one.ledger(total - 1), lambda: one.batch(total // 2), lambda: one.ledger(total // 3)):
            chapters.clear()
            ask()
            assert max(chapters) - min(chapters) <= span
        chapters.clear()
        assert len(one) == total
        assert chapters == []
        place = one.locate("a-7")
        assert place is not None
        assert max(chapters) - min(chapters) <= span
        assert "a-7" in one.ledger(place["batch"])


@pytest.mark.usefixtures("impatient")
def test_a_row_behind_uncounted_chapters_is_refused_and_one_before_them_is_found(
    catalog: sp.Catalog, caches: Path
) -> None:
    with stream(catalog) as one:
        order, forming = stages_of(one).epochs, batches_of(one).forming
        chapter = [min(forming.chapter_of(0, int(at))[1] for at in order.positions(0, 0, row)) for row in range(40)]
        early, late = chapter.index(0), next(row for row, number in enumerate(chapter) if number > 1)
        found = one.locate(f"a-{early}")
        assert f"a-{early}" in one.ledger(found["batch"])
        with pytest.raises(
            sp.errors.StreamError, match=r"locate: chapter \d+ of epoch 0, which holds the sample: .*" + WAY_OUT
        ):
            one.locate(f"a-{late}")


@pytest.mark.usefixtures("impatient")
def test_counted_as_far_as_the_place_is_far_enough(catalog: sp.Catalog, caches: Path) -> None:
    with stream(catalog) as one:
        loop = iter(one)
        for _ in range(40):
            next(loop)
        loop.close()
        reached = [one.ledger(number) for number in range(40)]
        assert numbering_of(one).unknown(0) > 1
        assert one.ledger(3) == reached[3]
        with pytest.raises(sp.errors.StreamError, match=WAY_OUT):
            one.ledger(10**6)


@pytest.mark.usefixtures("impatient")
def test_a_loaded_state_finds_the_place_at_once(catalog: sp.Catalog, caches: Path, tmp_path: Path) -> None:
    with stream(catalog) as one:
        expected = [one.ledger(number) for number in range(one.count())]
    with stream(catalog) as one:
        loop = iter(one)
        for _ in range(len(expected) // 2):
            next(loop)
        loop.close()
        state = one.state_dict()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPIRAL_CACHE", str(tmp_path / "elsewhere"))
        with stream(catalog) as one:
            one.load_state_dict(state)
            assert one.ledger(len(expected) // 2) == expected[len(expected) // 2]
            assert [batch["sample_id"] for batch in one][-1] == expected[-1]


def test_text_that_no_cache_holds_is_measured_and_the_way_out_is_its_cache(
    catalog: sp.Catalog, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stream(catalog, stored=False) as one:
        quick = one.ledger(30)  # samples are few
    monkeypatch.setattr(long_counts, "QUICK_S", 0.0)
    with stream(catalog, stored=False) as one:
        with pytest.raises(sp.errors.StreamError, match=r"\(len\(tokens\) is in no cache\)") as refused:
            one.ledger(10**6)
        assert "stream.materialize(), or the asset that builds the token cache; stream.materialize(lengths" in str(
            refused.value
        )
        with pytest.raises(sp.errors.StreamError, match=r"steps_per_epoch: .*\(len\(tokens\) is not known\)"):
            one.steps_per_epoch  # noqa: B018  it raises
        one.materialize(lambda _: None, lengths=True)
        assert one.ledger(30) == quick
        assert one.steps_per_epoch == one.count()


def test_a_short_epoch_whose_lengths_are_computed_is_counted_at_once(catalog: sp.Catalog, caches: Path) -> None:
    sampled = tokenized(catalog.table("a"), sp.GlobalShuffle(seed=1), stored=False)
    packed = sp.batching.Packed(max_tokens=64, window_size=512)
    made = sampled.collate(batch_size=2, formation=packed, fields={"ids": sp.Pad("tokens")}, last=sp.KeepPartial)
    with made.to_numpy() as one:
        steps = one.steps_per_epoch
        assert numbering_of(one).unknown(0) == 0
        assert len(one) == steps == one.count()


@pytest.mark.parametrize(("wait_s", "refused"), [(0.0, False), (0.01, True)])
def test_a_function_that_waits_is_refused_by_the_time_that_passes(
    catalog: sp.Catalog, caches: Path, monkeypatch: pytest.MonkeyPatch, wait_s: float, refused: bool
) -> None:
    now = [0.0]
    monkeypatch.setattr("spiral_stream.runtime.forming.cost.monotonic", lambda: now[0])

    def waiting(text: str) -> bool:
        now[0] += wait_s
        return bool(text)

    waiting.__spiral_version__ = "1"  # type: ignore[attr-defined]  # a clock has no content to fingerprint

    sampled = tokenized(catalog.table("a"), sp.GlobalShuffle(seed=1), stored=False)
    kept = sampled.filter(waiting, columns=["text"], batched=False)
    packed = sp.batching.Packed(max_tokens=64, window_size=128)
    made = kept.collate(batch_size=2, formation=packed, fields={"ids": sp.Pad("tokens")}, last=sp.KeepPartial)
    with made.to_numpy() as one:
        if not refused:
            assert one.steps_per_epoch == one.count()
            return
        with pytest.raises(
            sp.errors.StreamError, match=r"filter .*waiting.* [\d.]+ s per chapter as measured here: [\d.]+ s\."
        ) as said:
            one.steps_per_epoch  # noqa: B018  it raises
        assert now[0] < 10  # of 30 s
        assert 'give the lengths as a column, Packed(length=col("..."))' in str(said.value)


def test_a_number_below_zero_is_refused_without_counting(
    catalog: sp.Catalog, caches: Path, chapters: list[int]
) -> None:
    with (
        stream(catalog, HUGE) as one,
        pytest.raises(IndexError, match=r"batch -1 is below 0\. Give a number from 0 up"),
    ):
        one.ledger(-1)

    assert chapters == []


def test_what_is_quick_is_counted_at_once(catalog: sp.Catalog, caches: Path) -> None:
    with stream(catalog) as one:
        assert one.steps_per_epoch == one.count()
        assert re.fullmatch(r"a-\d+", one.ledger(one.count() - 1)[0])


def test_the_progress_of_counting_comes_as_rows(catalog: sp.Catalog, caches: Path) -> None:
    told: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_counts, "CHAPTERS_AT_ONCE", 0)
        with stream(catalog) as one:
            one.materialize(lambda done: told.append((done.rows, done.rows_total)), lengths=True)

    assert told[-1] == (ROWS, ROWS)
