"""Random access into a formed epoch: it says what it costs, shows how far it is, and an interrupt loses nothing."""

import io
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich import console
from rich.console import Console

import spiral_stream as sp
from spiral_stream import WindowedBucket
from spiral_stream.display import progress
from spiral_stream.errors import SpiralWarning
from spiral_stream.runtime.columns.samples import SampleReader
from spiral_stream.runtime.forming import cost as outlook
from spiral_stream.runtime.forming.chapter import Chapter
from spiral_stream.runtime.forming.cost import duration
from tests.fixtures.examples import few
from tests.fixtures.inner import numbering_of
from tests.fixtures.texts import fields, make_catalog, tokenized

ROWS = 380  # 3 chapters, of 64 windows of 2 samples


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("outlook"), {"a": ROWS})


def stream(catalog: sp.Catalog) -> Any:
    formation = WindowedBucket(2, [sp.BucketKey("len(tokens)")], budget=sp.BatchBudget(max_tokens=256))
    sampled = tokenized(catalog.table("a"), sp.GlobalShuffle(seed=1), stored=True)
    return sampled.collate(batch_size=None, formation=formation, fields=fields(), last=sp.KeepPartial).to_numpy()


@pytest.fixture(scope="module")
def ledgers(catalog: sp.Catalog, tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """Of every batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPIRAL_CACHE", str(tmp_path_factory.mktemp("whole")))
        with stream(catalog) as one:
            return [one.ledger(number) for number in range(one.count())]


def told(one: Any, ask: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ask(one)
    return [str(each.message) for each in found if issubclass(each.category, SpiralWarning)]


ASKED = {
    "ledger": (lambda one, last: one.ledger(last), r"batch [\d,]+ of epoch 0: about 3 chapters"),
    "batch": (lambda one, last: one.batch(last), r"batch [\d,]+ of epoch 0: about 3 chapters"),
    "locate": (lambda one, last: one.locate(one.last), r"the place of a row in epoch 0: about 2 chapters"),
    "count": (lambda one, last: one.count(), r"count of epoch 0: about 3 chapters"),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_takes_long_is_told_once_and_before_most_of_it_is_done(
    catalog: sp.Catalog, ledgers: list[list[Any]], caches: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(outlook, "WORTH_TELLING_CPU_S", 0.0)
    monkeypatch.setattr(outlook, "MEASURED_CPU_S", 0.0)
    ask, words = ASKED[what]
    formed = 0
    grow = Chapter.take_window

    def counted(chapter: Chapter) -> None:
        nonlocal formed
        formed += 1
        grow(chapter)

    monkeypatch.setattr(Chapter, "take_window", counted)
    warn, at = outlook.warn, list[int]()
    monkeypatch.setattr(outlook, "warn", lambda text: (at.append(formed), warn(text)))
    with stream(catalog) as one:
        one.last = ledgers[-1][0]
        (said,) = told(one, lambda one: ask(one, len(ledgers) - 1))
        again = told(one, lambda one: ask(one, len(ledgers) - 1))

    assert re.match(words + r" have to be formed for the first time, at .* CPU s each: ", said)
    assert "Ctrl-C loses nothing" in said
    assert at[0] <= 12 + 64 * (what == "locate")  # of 190 windows; a row's own chapter is formed first
    assert again == []  # what is formed is known


def test_what_is_quick_is_not_told(catalog: sp.Catalog, ledgers: list[list[Any]], caches: Path) -> None:
    with stream(catalog) as one:
        assert told(one, lambda one: one.ledger(len(ledgers) - 1)) == []


class Clock:
    """CPU seconds that pass only when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(outlook, "process_time", lambda: self.now)
        monkeypatch.setattr(outlook, "monotonic", lambda: 0.0)

    def windows(self, costs_s: list[float], left: float = 10_000) -> list[str]:
        """What is said while windows of one sample that cost this much are formed, with ``left`` chapters to come."""

        def form(_: Any) -> None:
            asked = outlook.Outlook("batch 7 of epoch 0", 64)
            for at, cost_s in enumerate(costs_s, 1):
                self.now += cost_s
                asked.window(at, at + left * 64)

        return told(None, form)


def test_one_slow_window_is_no_measure_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    for slow in range(40):  # 30 s in one window, and 0.64 CPU ms per chapter in the others
        assert clock.windows([30.0 if at == slow else 1e-5 for at in range(40)]) == []


@given(cost_s=st.floats(0.001, 10.0), early=st.integers(0, 40))
def test_nothing_is_said_before_two_measurements_agree(cost_s: float, early: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        said = clock.windows([cost_s] * (1 + early))

    windows, seconds = early, cost_s * early
    if windows < 2 * outlook.MEASURED_WINDOWS or seconds < 2 * outlook.MEASURED_CPU_S:
        assert said == []
    elif windows >= 2 * (outlook.MEASURED_WINDOWS + 1) and seconds >= 2 * (outlook.MEASURED_CPU_S + 2 * cost_s):
        assert len(said) == 1


def test_the_smaller_of_two_measurements_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = Clock(monkeypatch).windows([1.0, *[2.0] * 4, *[1.0] * 4])

    assert "about 10,000 chapters" in said
    assert "at 64 CPU s each: 177.8 h" in said


def test_a_bar_shows_how_far_it_is(
    catalog: sp.Catalog, ledgers: list[list[Any]], caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(outlook, "BAR_AFTER_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(console, "Console", lambda **_: Console(file=shown, force_terminal=True, width=200))
    with stream(catalog) as one:
        one.ledger(len(ledgers) - 1)

    assert "of about 3 chapters" in shown.getvalue()
    assert "Ctrl-C keeps them" in shown.getvalue()


@few(4, 8)
@given(number=st.integers(0, 10**6), where=st.sampled_from(["read", "form", "enter", "window"]), at=st.integers(0, 190))
def test_an_interrupt_anywhere_loses_no_chapter_and_spoils_none(
    catalog: sp.Catalog,
    ledgers: list[list[Any]],
    tmp_path_factory: pytest.TempPathFactory,
    number: int,
    where: str,
    at: int,
) -> None:
    room, name = {
        "read": (SampleReader, "need"),
        "form": (Chapter, "form_window"),
        "enter": (Chapter, "hold"),
        "window": (Chapter, "admit"),
    }[where]
    inner, calls = getattr(room, name), iter(range(10**6))

    def sometimes(*args: Any, **options: Any) -> Any:
        done = inner(*args, **options)
        if next(calls) == at:
            raise KeyboardInterrupt
        return done

    number %= len(ledgers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPIRAL_CACHE", str(tmp_path_factory.mktemp("own")))
        with stream(catalog) as one:
            with pytest.MonkeyPatch.context() as inside:
                inside.setattr(room, name, sometimes)
                try:
                    assert one.ledger(number) == ledgers[number]
                except KeyboardInterrupt:
                    assert (
                        where == "read" or numbering_of(one).unknown(0) <= 3 - at // 64
                    )  # no chapter that was formed is lost
            assert one.ledger(number) == ledgers[number]
            with stream(catalog) as other:  # what it kept is there for others
                assert numbering_of(other).unknown(0) == numbering_of(one).unknown(0)
            assert next(iter(one))["sample_id"] is not None


def test_a_fault_in_a_chapter_does_not_spoil_it(
    catalog: sp.Catalog, ledgers: list[list[Any]], caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, calls = Chapter.hold, iter(range(10**6))

    def sometimes(*args: Any) -> None:
        form(*args)
        if next(calls) == 3:
            msg = "the disk is gone"
            raise sp.errors.SourceError(msg)

    monkeypatch.setattr(Chapter, "hold", sometimes)
    with stream(catalog) as one:
        with pytest.raises(sp.errors.SourceError, match="the disk is gone"):
            one.ledger(100)
        assert [one.ledger(number) for number in range(20)] == ledgers[:20]


@pytest.mark.parametrize(("seconds", "text"), [(3.4, "3 s"), (90, "1.5 min"), (3600 * 2.25, "2.2 h")])
def test_durations_are_in_a_unit_that_reads(seconds: float, text: str) -> None:
    assert duration(seconds) == text
